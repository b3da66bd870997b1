"""Hide values at random, for experiments with incomplete data."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paracond.data import Data, InputError, as_float, named, seeded, true_or_false


def hide(data: Data, fractions: Mapping[str, float], *, coordinates: bool = False, seed: int = 0) -> Data:
    """Hide values at random: they are then not observed.

    data: the data set.
    fractions: the share to hide, by group.
    coordinates: whether single coordinates are hidden, and not whole rows. Where rows of labels are hidden, every class
        keeps the same share of its labels, as far as they divide.
    seed: fixes what is hidden.
    """
    if not isinstance(data, Data):
        raise InputError(f"hide takes Data(values, mask), found {type(data).__name__}")
    generator = seeded(seed)
    true_or_false("coordinates", coordinates)
    mask = dict(data.mask)
    for name, share in named("fractions", fractions).items():
        if name not in data.state:
            raise InputError(f"cannot hide {name!r}: the data has {', '.join(data.state)}")
        fraction = as_float(f"the hidden fraction of {name!r}", share)
        if not 0 <= fraction <= 1:
            raise InputError(f"the hidden fraction of {name!r} must be between 0 and 1, found {fraction}")
        value = data.state[name]
        if coordinates:
            kept = torch.rand(value.shape, generator=generator) >= fraction
        else:
            kept = _kept_rows(value, fraction, generator).view(-1, *[1] * (value.ndim - 1)).expand(value.shape)
        mask[name] = mask[name] & kept.to(value.device)
    return Data(data.state, mask)


def _kept_rows(value: torch.Tensor, fraction: float, generator: torch.Generator) -> torch.Tensor:
    """Choose an exact share of the rows, spread evenly over the classes where the group has one label per row."""
    shuffled = torch.randperm(len(value), generator=generator)
    if value.ndim == 1 and not value.is_floating_point():
        shuffled = shuffled[value[shuffled].argsort(stable=True)]
    rank = torch.empty(len(value), dtype=torch.double)
    rank[shuffled] = torch.arange(len(value), dtype=torch.double)
    keep = 1 - fraction
    return ((rank + 1) * keep + 1e-9).floor() > (rank * keep + 1e-9).floor()
