"""Parts of experiments on images: the image that a state shows, the FID, and moved and mirrored examples."""

from __future__ import annotations

import torch
from torch import Tensor

import paracond as pc
from paracond.chain import max_rows
from paracond.data import State
from paracond.datasets.faces import LABELS
from paracond.metrics.fid import FID, Extractor
from paracond.networks.conv import jittered


@torch.no_grad()
def shown(model: pc.JointModel, state: State, rows: int | None = None) -> Tensor:
    """The images of a state: the mean of p(x | rest) in [0, 1], thresholded at one half where pixels are binary."""
    rows, reads = rows or max_rows(model, 16_384), model.reads("x")
    with model.eval_mode():
        parts = range(0, len(state["x"]), rows)
        mean = torch.cat([model("x", {k: state[k][i : i + rows] for k in reads}).mean for i in parts]).float()
    return (mean > 0.5).float() if isinstance(model.variables["x"], pc.Binary) else mean.clamp(0, 1)


MOVED = "moved"  # the context group that is 1 in moved examples, so that generated images stay in their place


def moved_context(pixels: int) -> dict[str, pc.Context]:
    """The context that a model needs to learn from examples that move by up to `pixels`."""
    return {MOVED: pc.Context(pc.Categorical(2), 0)} if pixels else {}


def make_fid(device: str) -> FID:
    return FID(Extractor.load(tf32=True), device, batch=1000 if device == "cuda" else 100)


class Moved:
    """Moves and mirrors images x and segmentations s, for `augment`.

    A `share` of the rows moves by up to `pixels`; half of all rows are mirrored, with left and right parts exchanged.
    The border is black background. flag: a context group that is 1 in moved rows.
    """

    moves = ("x", "s")

    def __init__(
        self, pixels: int, mirrored: bool, device: torch.device | str, share: float = 1.0, flag: str | None = None
    ):
        self.pixels, self.mirrored, self.share, self.flag = pixels, mirrored, share, flag
        names = [name.replace("l_", "r_", 1) if name[:2] == "l_" else name.replace("r_", "l_", 1) for name in LABELS]
        swapped = [LABELS.index(new if new in LABELS else old) for new, old in zip(names, LABELS, strict=True)]
        self.masks = torch.tensor(swapped, device=device)  # now: recorded programs cannot copy from the host
        self.labels = torch.tensor([0, *(k + 1 for k in swapped)], device=device)

    def __call__(self, state: State, generator: torch.Generator) -> State:
        x, s = state["x"], state.get("s")
        chance = torch.rand(4, len(x), generator=generator, device=x.device)
        moved, chance = chance[3] < self.share, chance[:3]
        chance[:2] = torch.where(moved, chance[:2], 0.5)  # the middle: no move
        flags = {} if self.flag is None else {self.flag: moved.long()}
        return {**state, **flags, **self._moved(x, s, chance)}

    def _moved(self, x: Tensor, s: Tensor | None, chance: Tensor) -> State:
        if s is None:
            return {"x": jittered(x, chance, self.pixels, self.mirrored)}
        layers = s if s.ndim == 4 else s.unsqueeze(1)
        moved = jittered(torch.cat([x, layers.to(x.dtype)], 1), chance, self.pixels, self.mirrored)
        image, layers = moved[:, : x.shape[1]], moved[:, x.shape[1] :]
        if self.mirrored:
            layers = torch.where((chance[2] < 0.5).view(-1, 1, 1, 1), self._exchanged(layers), layers)
        return {"x": image, "s": layers.view_as(s).to(s.dtype)}

    def _exchanged(self, layers: Tensor) -> Tensor:
        if layers.shape[1] == 1:
            return self.labels[layers.long()].to(layers.dtype)
        return layers.index_select(1, self.masks)
