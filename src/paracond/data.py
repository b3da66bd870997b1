"""What the chain carries, and what is known of it (section 4: x = (x_o, x_-o)).

A `State` maps the name of each group of variables to a tensor `[batch, *event]`. A `Mask` maps it to
a boolean tensor of the same shape, true where the value is observed (clamped); a shorter form, one
boolean per row, stands for whole groups. A name that is absent from a mask is not observed at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

State = dict[str, Tensor]
Mask = dict[str, Tensor]


class InputError(ValueError):
    """Bad input, refused before anything is changed: the message names the variable and what was found."""


@dataclass(frozen=True)
class Observed:
    """A group of which only some coordinates are known: `mask` is true there (see `expand_mask` for its shapes)."""

    value: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True)
class Data:
    """A training set: values, and which of them are observed.

    `mask` entries are `[rows]` (whole groups), `[*event]` (the same coordinates in every row) or `[rows, *event]`; a
    group without an entry is observed everywhere, a group of the model without a value nowhere.
    Values at unobserved coordinates are never read and may be anything, NaN included.
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

    def __getitem__(self, rows) -> Data:
        """Some rows: a slice, a mask or indices; a single number keeps its batch axis."""
        single = isinstance(rows, Integral) and not isinstance(rows, bool)
        if single or (isinstance(rows, Tensor) and rows.ndim == 0 and rows.dtype != torch.bool):
            rows = slice(int(rows), int(rows) + 1 or None)
        return Data(take(self.state, rows), take(self.mask, rows))

    def to(self, device: torch.device | str) -> Data:
        return Data({k: v.to(device) for k, v in self.state.items()}, {k: v.to(device) for k, v in self.mask.items()})


def as_numbers(name: str, value) -> Tensor:
    """A tensor from what can be one: a tensor, an array, nested lists."""
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name!r} must be a tensor or nested lists of numbers, found {value!r:.60}: {error}"
        ) from None
    if tensor.is_complex():
        raise InputError(f"{name!r} must be real numbers, found {tensor.dtype}")
    return tensor


def named(what: str, groups) -> dict:
    """A dictionary by names, or a clear refusal."""
    if not isinstance(groups, Mapping):
        raise InputError(f"{what} must be a dictionary by the names of groups, found {type(groups).__name__}")
    return dict(groups)


def at_least(numbers: Mapping[str, tuple[int, int]]) -> None:
    """Refuse what is not a whole number, or too small: `{what: (found, least)}`."""
    for what, (found, least) in numbers.items():
        if not isinstance(found, int) or isinstance(found, bool) or found < least:
            raise InputError(f"{what} must be a whole number, at least {least}, found {found!r}")


def one_of(what: str, found: str, allowed: Sequence[str]) -> None:
    """Refuse a word that is none of these."""
    if found not in allowed:
        raise InputError(f"{what} must be one of {', '.join(allowed)}, found {found!r}")


def row_count(state: Mapping[str, Tensor]) -> int:
    """The number of rows, the same in every group."""
    sizes = {name: len(value) for name, value in state.items()}
    if not sizes:
        raise InputError("no group of variables was given")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name!r} has {n}" for name, n in sizes.items())
        raise InputError(f"groups differ in their number of rows: {listed}")
    return next(iter(sizes.values()))


def expand_mask(name: str, mask: Tensor | None, shape: Sequence[int], device: torch.device) -> Tensor:
    """A mask in full form, `shape` = [batch, *event], from one in full, per row, per coordinate, or None (all true)."""
    full, rows, event = tuple(shape), tuple(shape[:1]), tuple(shape[1:])
    if mask is None:
        return torch.ones(full, dtype=torch.bool, device=device)
    mask = torch.as_tensor(mask, device=device)
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
    """The given rows of every group."""
    return {name: value[rows] for name, value in state.items()}


def merge(mask: Mapping[str, Tensor], known: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> State:
    """`known` where the mask is true, `other` elsewhere; groups that are not in `known` come from `other`."""
    return {
        name: torch.where(mask[name], known[name].to(value.dtype), value) if name in known else value
        for name, value in other.items()
    }


def wide(mask: Tensor, like: Tensor) -> Tensor:
    """A mask with the axes at its end that it lacks beside `like`."""
    return mask.view(*mask.shape, *[1] * (like.ndim - mask.ndim))
