"""States and masks: the values of all groups, and which of them are observed (section 4: x = (x_o, x_-o)).

A `State` maps the name of each group of variables to a tensor `[batch, *event]`. A `Mask` maps it to a boolean tensor
of the same shape, true where the value is observed (clamped). A shorter form of a mask has one boolean per row, for
whole groups. A group that is absent from a mask is not observed at all.

Values may carry a mask of their own (see `arrays`). Where there are two masks, a value is observed where both are true.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paracond.arrays import columns, is_table, numbers
from paracond.errors import InputError, shown
from paracond.html_table import html_table

State = dict[str, Tensor]
Mask = dict[str, Tensor]
MOST = 2**31 - 1  # counts are no larger: no memory holds as many rows


@dataclass(frozen=True)
class Observed:
    """Marks which coordinates of a group are known.

    value: the values, `[batch, *event]`. Values at unknown coordinates are ignored.
    mask: Bool, true where the value is known: `[batch]` (whole rows), `[*event]` (the same coordinates in every row) or
        `[batch, *event]`. None means that all of it is known that the values' own mask does not hide.
    """

    value: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True)
class Data:
    """Holds the values of named groups, and which of them are observed.

    `len(data)` is the number of rows, `data[rows]` selects some of them. A group of the model that the data lack is
    observed nowhere. `Data.from_nan(values)` takes NaN as missing.

    state: the values `[rows, *event]` by group, as tensors, arrays, nested lists or columns of a data frame; or a data
        frame, whose columns are then the groups. Masked arrays and columns with missing entries are observed where they
        have a value. Values that are not observed are never read and may be anything, NaN included.
    mask: Bool by group, true where a value is observed: `[rows]` (whole rows), `[*event]` (the same coordinates in
        every row) or `[rows, *event]`. A group without a mask is observed everywhere.
    """

    state: State
    mask: Mask

    def __init__(self, state: Mapping[str, Any], mask: Mapping[str, Any] | None = None):
        masks = named("the mask of data", {} if mask is None else mask)
        values, masks = separated(named("data", state), masks)
        self._set(values, masks)

    @classmethod
    def from_nan(cls, values: Mapping[str, Any], mask: Mapping[str, Any] | None = None) -> Data:
        """Hold values in which NaN, None, pandas.NA and NaT mean that a coordinate is missing.

        values: as in `Data`; lists and arrays of objects may have None.
        mask: as in `Data`. A value is observed where it is there and its mask, if it has one, is true.
        """
        masks = named("the mask of data", {} if mask is None else mask)
        found = cls.__new__(cls)
        found._set(*separated(named("data", values), masks, holes=True))
        return found

    def _set(self, state: State, mask: Mapping[str, Tensor]) -> None:
        for name, value in state.items():
            if value.ndim == 0:
                raise InputError(f"{name!r} of the data must have rows, found the single number {value.item()}")
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
        chosen = _rows(rows, len(self))
        return Data(take(self.state, chosen), take(self.mask, chosen))

    def __iter__(self) -> Iterator[Data]:
        return (self[row] for row in range(len(self)))

    def to(self, device: torch.device | str) -> Data:
        """Copy the data to a device."""
        device = as_device(device)
        return Data({k: v.to(device) for k, v in self.state.items()}, {k: v.to(device) for k, v in self.mask.items()})


def warn_caller(warning: Warning) -> None:
    """Warn at the line of the user, who may have called one function of the package through another."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("paracond."):
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)


def as_numbers(name: str, value: Any) -> Tensor:
    """Convert an array or nested lists to a tensor, or refuse them. None of the values may be missing."""
    values, seen = numbers(repr(name), value)
    if seen is not None:
        raise InputError(f"{name!r} has missing values, where all must be known")
    return values


def as_mask(name: str, mask: Any) -> Tensor:
    """Convert the mask of a group to a boolean tensor, or refuse it."""
    try:
        found, seen = numbers(f"the mask of {name!r}", mask, holes=True)
    except InputError:
        raise InputError(
            f"mask of {name!r} must be boolean, true where a value is observed, found {shown(mask)}"
        ) from None
    if seen is not None:
        raise InputError(f"mask of {name!r} has missing entries: it must be true or false everywhere")
    if found.dtype != torch.bool:
        raise InputError(f"mask of {name!r} must be boolean, found {found.dtype}: give mask.bool()")
    return found


def separated(
    values: Mapping[str, Any], masks: Mapping[str, Any] | None = None, holes: bool = False
) -> tuple[State, Mask]:
    """Values as tensors, and their masks: those that are given, and those that the values carry. A group has none where
    neither is there.

    values, masks: what a user gave, by group.
    holes: whether NaN and None are missing values.
    """
    found = {name: numbers(repr(name), value, holes) for name, value in values.items()}
    joint = {name: as_mask(name, mask) for name, mask in (masks or {}).items() if mask is not None}
    for name, (value, seen) in found.items():
        if seen is not None and value.ndim > 0:
            joint[name] = _joint(name, joint.get(name), value, seen.to(value.device))
    return {name: value for name, (value, _) in found.items()}, joint


def _joint(name: str, mask: Tensor | None, value: Tensor, seen: Tensor) -> Tensor:
    """A full mask, true where the value is there and the mask is true. One row of values goes with many of a mask."""
    if mask is None:
        return seen
    rows = len(mask) if len(value) == 1 and mask.ndim == value.ndim else len(value)
    return expand_mask(name, mask, (rows, *value.shape[1:]), value.device) & seen


def named(what: str, groups: Any) -> dict:
    """Check that `groups` is a dictionary by names of groups, or a table; `what` is the name of the argument."""
    if is_table(groups):
        groups = columns(what, groups)
    if not isinstance(groups, Mapping):
        raise InputError(f"{what} must be a dictionary by the names of groups, found {type(groups).__name__}")
    for name in groups:
        if not isinstance(name, str):
            raise InputError(f"{what} must be a dictionary by names of groups, which are text, found {shown(name)}")
    return dict(groups)


def seeded(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A source of randomness, or refuse the seed."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not -(2**63) <= seed < 2**64:
        raise InputError(f"seed must be a whole number of at most 64 bits, found {shown(seed)}")
    return torch.Generator(device).manual_seed(int(seed))


def at_least(numbers: Mapping[str, tuple[int, int]], most: int = MOST) -> None:
    """Refuse arguments that are not whole numbers, too small or too large: `{argument: (found, least)}`."""
    for what, (found, least) in numbers.items():
        as_count(what, found, least, most)


def as_count(what: str, found: Any, least: int = 1, most: int = MOST) -> int:
    """A whole number, or refuse it. Those of numpy become plain: with 8 bits, products of them would be wrong."""
    if not isinstance(found, Integral) or isinstance(found, bool) or int(found) < least:
        raise InputError(f"{what} must be a whole number, at least {least}, found {shown(found)}")
    if int(found) > most:
        raise InputError(f"{what} must be at most {most:,}, found {shown(found)}")
    return int(found)


def as_float(what: str, found: Any, kind: str = "a number") -> float:
    """A finite number, or refuse it; `what` is the name of the argument, `kind` what it must be."""
    plain = isinstance(found, Tensor) and not found.is_meta and found.layout == torch.strided
    if (plain or isinstance(found, np.ndarray)) and found.ndim == 0 and not np.ma.isMaskedArray(found):
        found = found.item()
    if not isinstance(found, Real) or isinstance(found, bool):
        raise InputError(f"{what} must be {kind}, found {shown(found)}")
    try:
        number = float(found)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{what} must be a number, not NaN nor infinite, found {shown(found)}")
    return number


def true_or_false(what: str, found: object) -> None:
    """Refuse what is not True or False; `what` is the name of the argument."""
    if not isinstance(found, (bool, np.bool_)):
        raise InputError(f"{what} must be True or False, found {shown(found)}")


def require_a(kind: type, **found: object) -> None:
    """Refuse arguments that are not of a kind: `require_a(Kernel, q=q)`."""
    for what, value in found.items():
        if not isinstance(value, kind):
            article = "an" if kind.__name__[0] in "AEIO" else "a"
            wrong = f"the class {value.__name__}" if isinstance(value, type) else shown(value)
            raise InputError(f"{what} must be {article} {kind.__name__}, found {wrong}")


def called(what: str, function: Callable, *arguments: Any) -> Any:
    """What a function of the user returns. Where it fails, as with arguments of another kind, the message names it."""
    try:
        return function(*arguments)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise InputError(f"{what} failed: {type(error).__name__}: {error!s:.200}".splitlines()[0]) from error


def as_device(device: Any) -> torch.device:
    """A device that this machine has, or refuse it."""
    try:
        found = torch.device(device)
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f'device must be such as "cpu", "cuda" or "cuda:1", found {shown(device)}: {why:.160}'
        ) from None
    if found.type == "meta" or (found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count()):
        raise InputError(f"device {found} cannot be used: this machine has none")
    return found


def one_of(what: str, found: str, allowed: Sequence[str]) -> None:
    """Refuse a word that is not allowed; `what` is the name of the argument."""
    if not isinstance(found, str) or found not in allowed:
        raise InputError(f"{what} must be one of {', '.join(allowed)}, found {shown(found)}")


def _rows(rows: Any, count: int) -> slice | Tensor:
    """Rows of data with `count` of them, as a slice or as indices."""
    how = f"rows of the data are chosen by a slice, {count} booleans, or whole numbers from 0 to {count - 1}"
    if isinstance(rows, slice):
        try:
            first, last, step = rows.indices(count)
        except (TypeError, ValueError):
            raise InputError(f"{how}, found {shown(rows)}") from None
        return rows if step > 0 else torch.arange(count)[list(range(first, last, step))]
    try:
        index = (
            torch.as_tensor([], dtype=torch.long) if isinstance(rows, list) and not rows else as_numbers("rows", rows)
        )
    except InputError:
        raise InputError(f"{how}, found {shown(rows)}") from None
    fits = index.ndim == 1 and (index.dtype != torch.bool or len(index) == count)
    single = index.ndim == 0 and index.dtype != torch.bool
    if index.is_floating_point() or isinstance(rows, tuple) or not (fits or single):
        raise InputError(f"{how}, found {shown(rows)}")
    if index.dtype == torch.bool:
        return index
    index = index.long()  # torch takes uint8 for a mask
    if bool(((index < -count) | (index >= count)).any()):
        raise InputError(f"{how}, found {shown(rows)}: there are {count} rows")
    return slice(int(index), int(index) + 1 or None) if single else index


def row_count(state: Mapping[str, Tensor]) -> int:
    """Return the number of rows, which must be the same in every group."""
    sizes = {name: len(value) for name, value in state.items()}
    if not sizes:
        raise InputError("the data or state is empty: values of at least one group are needed, {name: values}")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name!r} has {n}" for name, n in sizes.items())
        raise InputError(f"groups differ in their number of rows: {listed}")
    return next(iter(sizes.values()))


def expand_mask(name: str, mask: Any, shape: Sequence[int], device: torch.device) -> Tensor:
    """Expand a mask to `shape` = [batch, *event]. It may be full, per row, per coordinate, or None (all true)."""
    full, rows, event = tuple(shape), tuple(shape[:1]), tuple(shape[1:])
    if mask is None:
        return torch.ones(full, dtype=torch.bool, device=device)
    mask = as_mask(name, mask).to(device)
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
