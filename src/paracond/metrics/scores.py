"""Scores of decisions and of values: accuracy, F1, PSNR."""

from __future__ import annotations

import torch
from torch import Tensor

from paracond.data import InputError


def accuracy(decided: Tensor, truth: Tensor) -> float:
    """Return the share of decisions that are right."""
    if decided.shape != truth.shape:
        raise InputError(f"decisions {list(decided.shape)} and truth {list(truth.shape)} must have the same shape")
    if not truth.numel():
        raise InputError("accuracy needs at least one decision, found none")
    return float((decided == truth).double().mean())


def f1(decided: Tensor, truth: Tensor) -> Tensor:
    """Return the F1 score of each mask, 2 TP / (2 TP + FP + FN), over all rows; NaN if a mask is empty in both."""
    if decided.shape != truth.shape or decided.ndim < 2:
        raise InputError(f"masks must have equal shapes [rows, masks, ...], found {decided.shape} and {truth.shape}")
    decided, truth = (each.bool().transpose(0, 1).flatten(1) for each in (decided, truth))
    both = (decided & truth).sum(1).double()
    return 2 * both / (decided.sum(1) + truth.sum(1))


def psnr(found: Tensor, truth: Tensor, where: Tensor | None = None) -> float:
    """Return the peak signal-to-noise ratio in dB of values in [0, 1], over the places `where` of all rows together."""
    error = (found - truth).square()
    where = torch.ones_like(error, dtype=torch.bool) if where is None else where.expand_as(error)
    if not bool(where.any()):
        raise InputError("`where` is empty: psnr needs at least one place to compare")
    return float(-10 * torch.log10(error[where].double().mean()))
