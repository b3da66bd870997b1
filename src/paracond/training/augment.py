"""Augmentation of images: examples are moved and mirrored each time they are learned from.

A context group is 1 in moved examples (`Moved.context`), so that generated images stay in their place. Segmentations
move with their image. In a mirror image the label of a left part is that of the right one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paracond.data import InputError, State, as_device, as_float, shown, true_or_false
from paracond.families import Categorical
from paracond.model import Context
from paracond.networks.arguments import counts
from paracond.networks.conv import jittered

FLAG = "moved"


class Moved:
    """Moves and mirrors images x and segmentations s, for `Learner(augment=...)`. What comes in at the border is 0.

    pixels: the largest distance, each way.
    mirrored: whether half of all rows are mirrored.
    share: the share of rows that is moved.
    flag: whether to set the context group "moved", which is 1 in moved rows.
    exchange: for each of the labels 1, 2, ... of s, the index of its mirror image among them (default: itself).
    """

    moves = ("x", "s")

    def __init__(
        self,
        pixels: int,
        mirrored: bool,
        device: torch.device | str,
        share: float = 1.0,
        flag: bool = False,
        exchange: Sequence[int] = (),
    ):
        (self.pixels,), self.share = counts({"pixels": (pixels, 0)}), as_float("share", share)
        if not 0 <= self.share <= 1:
            raise InputError(f"share must be between 0 and 1, found {self.share}")
        true_or_false("mirrored", mirrored)
        true_or_false("flag", flag)
        self.mirrored, self.flag = bool(mirrored), bool(flag)
        labels, place = _exchange(exchange), as_device(device)
        self.masks = torch.tensor(labels, device=place)  # now: recorded programs cannot copy from the host
        self.labels = torch.tensor([0, *(k + 1 for k in labels)], device=place)

    @staticmethod
    def context(pixels: int) -> dict[str, Context]:
        """The context that a model needs to learn from examples that move by up to `pixels`."""
        return {FLAG: Context(Categorical(2), 0)} if pixels else {}

    def __call__(self, state: State, generator: torch.Generator) -> State:
        x, s = state["x"], state.get("s")
        chance = torch.rand(4, len(x), generator=generator, device=x.device)
        moved, chance = chance[3] < self.share, chance[:3]
        chance[:2] = torch.where(moved, chance[:2], 0.5)  # the middle: no move
        flags = {FLAG: moved.long()} if self.flag else {}
        return {**state, **flags, **self._moved(x, s, chance)}

    def _moved(self, x: Tensor, s: Tensor | None, chance: Tensor) -> State:
        if s is None:
            return {"x": jittered(x, chance, self.pixels, self.mirrored)}
        layers = s if s.ndim == 4 else s.unsqueeze(1)
        moved = jittered(torch.cat([x, layers.to(x.dtype)], 1), chance, self.pixels, self.mirrored)
        image, layers = moved[:, : x.shape[1]], moved[:, x.shape[1] :]
        if self.mirrored and len(self.masks):
            layers = torch.where((chance[2] < 0.5).view(-1, 1, 1, 1), self._exchanged(layers), layers)
        return {"x": image, "s": layers.view_as(s).to(s.dtype)}

    def _exchanged(self, layers: Tensor) -> Tensor:
        if layers.shape[1] == 1:
            return self.labels[layers.long()].to(layers.dtype)
        return layers.index_select(1, self.masks)


def _exchange(exchange: Sequence[int]) -> list[int]:
    """The labels that take each other's places: a permutation of 0, 1, ..."""
    if not isinstance(exchange, (list, tuple)):
        raise InputError(f"exchange must be a list of labels, found {shown(exchange)}")
    labels = counts({f"the label {k} of exchange": (label, 0) for k, label in enumerate(exchange)})
    if sorted(labels) != list(range(len(labels))):
        raise InputError(f"exchange must have each of 0 to {len(labels) - 1} once, found {shown(exchange)}")
    return labels
