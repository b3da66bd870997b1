"""Scores of decisions and of values: accuracy, F1, PSNR."""

from __future__ import annotations

import torch
from torch import Tensor

from paracond.data import InputError, as_mask, as_numbers


def accuracy(decided: Tensor, truth: Tensor) -> float:
    """Return the share of decisions that are right."""
    decided, truth = _alike(decided=decided, truth=truth)
    if not truth.numel():
        raise InputError("accuracy needs at least one decision, found none")
    return float((decided == truth).double().mean())


def f1(decided: Tensor, truth: Tensor) -> Tensor:
    """Return the F1 score of each mask, 2 TP / (2 TP + FP + FN), over all rows; NaN if a mask is empty in both."""
    decided, truth = _alike(decided=decided, truth=truth)
    if decided.ndim < 2:
        raise InputError(f"decided must have shape [rows, masks, ...], found {list(decided.shape)}")
    decided, truth = (each.bool().transpose(0, 1).flatten(1) for each in (decided, truth))
    both = (decided & truth).sum(1).double()
    return 2 * both / (decided.sum(1) + truth.sum(1))


def psnr(found: Tensor, truth: Tensor, where: Tensor | None = None) -> float:
    """Return the peak signal-to-noise ratio in dB of values in [0, 1], over the places `where` of all rows together."""
    found, truth = _alike(found=found, truth=truth)
    found, truth = (each if each.is_floating_point() else each.double() for each in (found, truth))
    error = (found - truth).square()
    places = torch.ones_like(error, dtype=torch.bool) if where is None else as_mask("where", where).to(error.device)
    try:
        places = places.expand_as(error)
    except RuntimeError:
        raise InputError(f"where must fit values of shape {list(error.shape)}, found {list(places.shape)}") from None
    if not bool(places.any()):
        raise InputError("`where` is empty: psnr needs at least one place to compare")
    return float(-10 * torch.log10(error[places].double().mean()))


def _alike(**pair: Tensor) -> list[Tensor]:
    """Two tensors of one shape, all of whose numbers are finite, or refuse them."""
    values = {name: as_numbers(name, value) for name, value in pair.items()}
    if len({value.shape for value in values.values()}) > 1:
        listed = " and ".join(f"{name} {list(value.shape)}" for name, value in values.items())
        raise InputError(f"{listed} must have the same shape")
    for name, value in values.items():
        if value.ndim == 0:
            raise InputError(f"{name} must have rows, found a single number")
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise InputError(f"{name} has NaN or infinite values")
    return list(values.values())
