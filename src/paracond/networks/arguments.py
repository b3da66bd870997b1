"""What constructors of networks and initializers check of their arguments; the plain values are returned.

Numbers of numpy become Python's: sums of theirs may overflow, and JSON does not know them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paracond.data import InputError, at_least, named, shown
from paracond.families import Family


def counts(numbers: Mapping[str, tuple[Any, int]]) -> list[int]:
    """Whole numbers, at least so large each: `{argument: (found, least)}`."""
    at_least(numbers)
    return [int(found) for found, _ in numbers.values()]


def shape_of(what: str, found: Any, axes: int | None = None) -> tuple[int, ...]:
    """A shape without the batch; `axes` is how many sizes it must have."""
    if not isinstance(found, (tuple, list, torch.Size)) or (axes is not None and len(found) != axes):
        wanted = "a tuple of whole numbers" if axes is None else f"{axes} whole numbers"
        raise InputError(f"{what} must be {wanted}, found {shown(found)}")
    return tuple(counts({f"the size {k} of {what}": (size, 1) for k, size in enumerate(found)}))


def sizes_of(what: str, found: Any) -> dict[str, int]:
    """Sizes by the names of groups."""
    sizes = named(what, found)
    return dict(zip(sizes, counts({f"{what} of {name!r}": (size, 1) for name, size in sizes.items()}), strict=True))


def shapes_of(what: str, found: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of images by the names of groups; they have two axes or more."""
    shapes = {name: shape_of(f"{what} of {name!r}", shape) for name, shape in named(what, found).items()}
    for name, shape in shapes.items():
        if len(shape) < 2:
            raise InputError(f"{what} of {name!r} must be the shape of an image, found {list(shape)}")
    return shapes


def families_of(variables: Any) -> dict[str, Family]:
    """Families by the names of groups."""
    families = named("variables", variables)
    for name, family in families.items():
        if not isinstance(family, Family):
            raise InputError(f"{name!r} of variables must be a Family, found {shown(family)}")
    return families


def names_of(what: str, found: Any) -> tuple[str, ...]:
    """Names of groups."""
    single = not hasattr(found, "__iter__") or getattr(found, "ndim", 1) == 0
    if single or isinstance(found, (str, Tensor, Mapping)):
        raise InputError(f"{what} must be a list of names of groups, found {shown(found)}")
    names = tuple(found)
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"{what} must be names of groups, which are text, found {shown(name)}")
    return names


def plain(value: Any) -> Any:
    """A value as JSON has it, where numpy has a number."""
    return value.item() if isinstance(value, np.generic) else value
