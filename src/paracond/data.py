"""States and masks: the values of all groups, and which of them are observed (section 4: x = (x_o, x_-o)).

A `State` maps the name of each group of variables to a tensor `[batch, *event]`. A `Mask` maps it to a boolean tensor
of the same shape, true where the value is observed (clamped). A shorter form of a mask has one boolean per row, for
whole groups. A group that is absent from a mask is not observed at all.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from paracond.html_table import html_table

State = dict[str, Tensor]
Mask = dict[str, Tensor]


class InputError(ValueError):
    """Bad input is refused with this error, before anything is changed. The message names the argument."""


@dataclass(frozen=True)
class Observed:
    """Marks which coordinates of a group are known.

    value: the values, `[batch, *event]`. Values at unknown coordinates are ignored.
    mask: Bool, true where the value is known: `[batch]` (whole rows), `[*event]` (the same coordinates in every row) or
        `[batch, *event]`. None means that all of it is known.
    """

    value: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True)
class Data:
    """Holds the values of named groups, and which of them are observed.

    `len(data)` is the number of rows, `data[rows]` selects some of them. A group of the model that the data lack is
    observed nowhere.

    state: the values `[rows, *event]` by group, as tensors, arrays or nested lists. Values that are not observed are
        never read and may be anything, NaN included.
    mask: Bool by group, true where a value is observed: `[rows]` (whole rows), `[*event]` (the same coordinates in
        every row) or `[rows, *event]`. A group without a mask is observed everywhere.
    """

    state: State
    mask: Mask

    def __init__(self, state: Mapping[str, Tensor], mask: Mapping[str, Tensor] | None = None):
        state = {name: as_numbers(name, value) for name, value in named("data", state).items()}
        for name, value in state.items():
            if value.ndim == 0:
                raise InputError(f"{name!r} of the data must have rows, found the single number {value.item()}")
        mask = named("the mask of data", {} if mask is None else mask)
        unknown = sorted(set(mask) - set(state))
        if unknown:
            raise InputError(f"mask for {unknown[0]!r}, but the data has no such group (it has {', '.join(state)})")
        rows = row_count(state)
        full = {name: expand_mask(name, mask.get(name), value.shape, value.device) for name, value in state.items()}
        if rows == 0:
            raise InputError("the data is empty: it has no rows")
        object.__setattr__(self, "state", dict(state))
        object.__setattr__(self, "mask", full)

    def __len__(self) -> int:
        return row_count(self.state)

    def __repr__(self) -> str:
        shares = {name: float(mask.double().mean()) for name, mask in self.mask.items()}
        listed = [f"{name} {list(self.state[name].shape[1:])} {share:.0%} observed" for name, share in shares.items()]
        return f"<Data of {len(self):,} rows: {', '.join(listed)}>"

    def _repr_html_(self) -> str:
        lines = []
        for name, value in self.state.items():
            share = float(self.mask[name].double().mean())
            lines.append((name, list(value.shape[1:]), str(value.dtype).removeprefix("torch."), f"{share:.0%}"))
        return html_table(f"Data of {len(self):,} rows", ("group", "shape", "type", "observed"), lines)

    def __getitem__(self, rows) -> Data:
        """Select rows by a slice, a mask or indices. A single number keeps its batch axis."""
        single = isinstance(rows, Integral) and not isinstance(rows, bool)
        if single or (isinstance(rows, Tensor) and rows.ndim == 0 and rows.dtype != torch.bool):
            rows = slice(int(rows), int(rows) + 1 or None)
        return Data(take(self.state, rows), take(self.mask, rows))

    def to(self, device: torch.device | str) -> Data:
        """Copy the data to a device."""
        return Data({k: v.to(device) for k, v in self.state.items()}, {k: v.to(device) for k, v in self.mask.items()})


def warn_caller(warning: Warning) -> None:
    """Warn at the line of the user, who may have called one function of the package through another."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("paracond."):
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)


def as_numbers(name: str, value) -> Tensor:
    """Convert an array or nested lists to a tensor, or refuse them."""
    try:
        read_only = isinstance(value, np.ndarray) and not value.flags.writeable  # pandas gives such, and torch warns
        tensor = torch.as_tensor(value.copy() if read_only else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name!r} must be a tensor or nested lists of numbers, found {value!r:.60}: {error}"
        ) from None
    if tensor.is_complex():
        raise InputError(f"{name!r} must be real numbers, found {tensor.dtype}")
    return tensor


def named(what: str, groups) -> dict:
    """Check that `groups` is a dictionary by names of groups; `what` is the name of the argument."""
    if not isinstance(groups, Mapping):
        raise InputError(f"{what} must be a dictionary by the names of groups, found {type(groups).__name__}")
    return dict(groups)


def seeded(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A source of randomness, or refuse the seed."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not -(2**63) <= seed < 2**64:
        raise InputError(f"seed must be a whole number of at most 64 bits, found {seed!r}")
    return torch.Generator(device).manual_seed(int(seed))


def at_least(numbers: Mapping[str, tuple[int, int]]) -> None:
    """Refuse arguments that are not whole numbers, or too small: `{argument: (found, least)}`."""
    for what, (found, least) in numbers.items():
        if not isinstance(found, Integral) or isinstance(found, bool) or found < least:
            raise InputError(f"{what} must be a whole number, at least {least}, found {found!r}")


def one_of(what: str, found: str, allowed: Sequence[str]) -> None:
    """Refuse a word that is not allowed; `what` is the name of the argument."""
    if found not in allowed:
        raise InputError(f"{what} must be one of {', '.join(allowed)}, found {found!r}")


def row_count(state: Mapping[str, Tensor]) -> int:
    """Return the number of rows, which must be the same in every group."""
    sizes = {name: len(value) for name, value in state.items()}
    if not sizes:
        raise InputError("values of at least one group are needed, found none: pass {name: values}")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name!r} has {n}" for name, n in sizes.items())
        raise InputError(f"groups differ in their number of rows: {listed}")
    return next(iter(sizes.values()))


def expand_mask(name: str, mask: Tensor | None, shape: Sequence[int], device: torch.device) -> Tensor:
    """Expand a mask to `shape` = [batch, *event]. It may be full, per row, per coordinate, or None (all true)."""
    full, rows, event = tuple(shape), tuple(shape[:1]), tuple(shape[1:])
    if mask is None:
        return torch.ones(full, dtype=torch.bool, device=device)
    mask = as_numbers(f"the mask of {name}", mask).to(device)
    if mask.dtype != torch.bool:
        raise InputError(f"mask of {name!r} must be boolean, found {mask.dtype}")
    if mask.shape == full:
        return mask
    if mask.shape == rows == event != (1,):
        raise InputError(
            f"mask of {name!r}: {list(rows)} could mean rows or coordinates; for coordinates give mask[None], for rows "
            f"mask[:, None].expand({', '.join(map(str, full))})"
        )
    if mask.shape == rows:
        return mask.view(-1, *[1] * len(event)).expand(full)
    if mask.shape in (event, (1, *event)):
        return mask.expand(full)
    raise InputError(
        f"mask of {name!r} must have shape {list(full)}, {list(rows)} (rows) or {list(event)} (coordinates of every "
        f"row), found {list(mask.shape)}"
    )


def take(state: Mapping[str, Tensor], rows) -> State:
    """Select rows of every group."""
    return {name: value[rows] for name, value in state.items()}


def merge(mask: Mapping[str, Tensor], known: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> State:
    """Take `known` where the mask is true and `other` elsewhere. Groups that are not in `known` come from `other`."""
    return {
        name: torch.where(mask[name], known[name].to(value.dtype), value) if name in known else value
        for name, value in other.items()
    }


def wide(mask: Tensor, like: Tensor) -> Tensor:
    """Append axes of size 1 to a mask, until it has as many axes as `like`."""
    return mask.view(*mask.shape, *[1] * (like.ndim - mask.ndim))
