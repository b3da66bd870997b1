"""Parts of experiments on images: the image that a state shows, and the FID."""

from __future__ import annotations

import torch
from torch import Tensor

import paracond as pc
from paracond.chain import max_rows
from paracond.data import State
from paracond.metrics.fid import FID, Extractor


@torch.no_grad()
def shown(model: pc.JointModel, state: State, rows: int | None = None) -> Tensor:
    """The images of a state: the mean of p(x | rest) in [0, 1], thresholded at one half where pixels are binary."""
    rows, reads = rows or max_rows(model, 16_384), model.reads("x")
    asked, parts = model.eval_copy(), range(0, len(state["x"]), rows)
    mean = torch.cat([asked("x", {k: state[k][i : i + rows] for k in reads}).mean for i in parts]).float()
    return (mean > 0.5).float() if isinstance(model.variables["x"], pc.Binary) else mean.clamp(0, 1)


def make_fid(device: str) -> FID:
    return FID(Extractor.load(tf32=True), device, batch=1000 if device == "cuda" else 100)
