"""Numbers as tensors, and which of them are there, from what users have: tensors, arrays, lists, columns and tables.

A masked array, a column of pandas or polars and a masked tensor carry a mask of their own. It is never dropped:
`numbers` returns it beside the values. A plain NaN is a value; only where `holes` are allowed is it a missing one, as
None, pandas.NA and NaT are.

Objects of pandas, polars and Arrow are known by what they can do, so none of these libraries is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from paracond.errors import InputError, shown

Found = tuple[Tensor, Tensor | None]
DEPTH = 64  # of nested lists; torch allows as many axes
CODES = "give the code of each class, 0, 1, 2, ..."
#: Which methods drop missing entries, in pandas, polars and Arrow.
DROPS = ("dropna", "drop_nulls", "drop_null")


def numbers(what: str, value: Any, holes: bool = False) -> Found:
    """Convert values to a tensor, or refuse them.

    what: the name of the argument in messages.
    holes: whether NaN, None, pandas.NA and NaT are missing values, and not refused.

    Returns the values, and a mask of their shape, true where a value is there (None: everywhere).
    """
    try:
        values, seen = _converted(what, value, holes)
    except (InputError, MemoryError):
        raise
    except Exception as error:
        _refuse(what, value, error)
    if holes and values.is_floating_point():
        seen = _both(seen, ~values.isnan())
    return values, None if seen is None or bool(seen.all()) else seen


def is_table(value: object) -> bool:
    """Whether a value has named columns: a data frame of pandas or polars, or a table of Arrow."""
    return hasattr(value, "shape") and hasattr(value, "columns") and hasattr(value, "__getitem__")


def columns(what: str, table: Any) -> dict:
    """The columns of a table by name."""
    names = list(getattr(table, "column_names", table.columns))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{what} has two columns called {shown(twice)}: give each a name of its own")
    return {name: table[name] for name in names}


def _converted(what: str, value: Any, holes: bool) -> Found:
    if isinstance(value, Tensor):
        return _from_tensor(what, value)
    if isinstance(value, np.ma.MaskedArray):
        return _from_masked(what, value, holes)
    if is_table(value):
        parts = [numbers(f"column {name!r} of {what}", each, holes) for name, each in columns(what, value).items()]
        return _stacked(parts, 1)
    if any(hasattr(value, drop) for drop in DROPS):
        return _from_column(what, value, holes)
    if isinstance(value, (list, tuple)):
        return _from_list(what, value, holes)
    if hasattr(value, "__array__"):
        return _from_array(what, np.asarray(value), holes)
    return _from_tensor(what, torch.as_tensor(value))


def _from_tensor(what: str, value: Any) -> Found:
    if hasattr(value, "get_mask"):  # a torch.masked.MaskedTensor
        return _from_tensor(what, value.get_data())[0], value.get_mask()
    for wrong, kind, remedy in (
        (value.is_nested, "a nested tensor", "give one with the same shape in every row"),
        (value.is_quantized, "a quantized tensor", "give value.dequantize()"),
        (value.layout != torch.strided, "a sparse tensor", "give value.to_dense()"),
        (value.is_meta, 'a tensor on the device "meta"', "give one with numbers: it has no values"),
    ):
        if wrong:
            raise InputError(f"{what} must be a plain tensor, found {kind}: {remedy}")
    if value.is_complex():
        raise InputError(f"{what} must be real numbers, found {value.dtype}")
    plain = value.detach().clone() if value.is_inference() else value.detach()  # those hold no gradient of others
    return _common(what, plain), None


def _common(what: str, value: Tensor) -> Tensor:
    """Numbers of types that torch can hardly compute with, in a wider one."""
    if value.is_floating_point() and value.dtype.itemsize == 1:
        return value.float()
    if value.dtype not in (torch.uint16, torch.uint32, torch.uint64):
        return value
    wide = value.long()
    if value.dtype == torch.uint64 and bool((wide < 0).any()):
        _too_large(what)
    return wide


def _from_masked(what: str, value: np.ma.MaskedArray, holes: bool) -> Found:
    hidden, array = np.ma.getmaskarray(value), np.ma.getdata(value)
    if array.dtype.kind == "O":
        array = np.where(hidden, 0, array)
    values, seen = _from_array(what, array, holes)
    return values, _both(seen, torch.as_tensor(~hidden))


def _from_column(what: str, value: Any, holes: bool) -> Found:
    """From a column of pandas, polars or Arrow. Missing entries have no number, so the others are converted alone."""
    dtype = getattr(value, "dtype", getattr(value, "type", None))
    if str(dtype).startswith(("category", "Categorical", "Enum", "dictionary")):
        raise InputError(
            f"{what} must be numbers, found a column of categories: {CODES}, and a mask where it is missing"
        )
    if isinstance(dtype, np.dtype):  # has no mask: a NaN in it is a value
        return _from_array(what, np.asarray(value), holes)
    seen = ~np.asarray(value.isna() if hasattr(value, "isna") else value.is_null(), dtype=bool)
    dropped = next(getattr(value, drop) for drop in DROPS if hasattr(value, drop))()
    there, among = _from_array(what, np.asarray(dropped), holes)
    values = there.new_zeros(len(seen), *there.shape[1:])
    mask = torch.zeros(values.shape, dtype=torch.bool)
    rows = torch.from_numpy(seen)
    values[rows], mask[rows] = there, torch.ones_like(there, dtype=torch.bool) if among is None else among
    return values, mask


def _from_list(what: str, value: Sequence, holes: bool) -> Found:
    if any(_is_array(part) for part in value) or _is_array(_first(value)):
        return _stacked([numbers(what, part, holes) for part in value], 0)
    try:
        found = torch.as_tensor(value)
        if found.is_floating_point():  # Python's numbers have 64 bits, and models may have too
            found = torch.as_tensor(value, dtype=torch.float64)
        return _from_tensor(what, found)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        objects = np.array(value, dtype=object)  # None or words among the numbers
        if any(isinstance(each, (list, tuple)) for each in objects.flat):
            raise
        return _from_objects(what, objects, holes)


def _from_array(what: str, array: np.ndarray, holes: bool) -> Found:
    kind = array.dtype.kind
    if kind == "O":
        return _from_objects(what, array, holes)
    if kind in "SUT":
        _refuse_words(what, array.flat[0] if array.size else "")
    if kind in "mM":
        _refuse_dates(what)
    if kind == "c":
        raise InputError(f"{what} must be real numbers, found {array.dtype}")
    if kind in "biuf":
        plain = np.dtype(f"{kind}{min(array.itemsize, 8)}")  # no long double, no other order of bytes
        forward = all(step >= 0 for step in array.strides)
        if array.dtype.char != plain.char or not (array.dtype.isnative and array.flags.writeable and forward):
            array = array.astype(plain, order="C")  # torch takes no other, and warns where it cannot write
    return _from_tensor(what, torch.as_tensor(array))


def _from_objects(what: str, array: np.ndarray, holes: bool) -> Found:
    """From an array of objects, which should be numbers, or missing."""
    hidden = np.array([_is_missing(each) for each in array.flat], dtype=bool).reshape(array.shape)
    for each in array[~hidden].flat:
        if isinstance(each, (str, bytes)):
            _refuse_words(what, each)
        if hasattr(each, "isoformat") or isinstance(each, (np.datetime64, np.timedelta64)):
            _refuse_dates(what)
        if not isinstance(each, (Real, Decimal, np.bool_)):
            raise InputError(
                f"{what} must be numbers, found {shown(each)}: make it numbers, and a mask where it is none"
            )
    if hidden.any() and not holes:
        missing = shown(array[hidden].flat[0])
        raise InputError(f"{what} has missing values ({missing}): give Data.from_nan(values), or numbers and a mask")
    there = np.array([float(each) if isinstance(each, (Decimal, Fraction)) else each for each in array[~hidden].flat])
    if there.dtype.kind == "O":
        _too_large(what)
    values = np.zeros(array.shape, there.dtype)
    values[~hidden] = there
    return _from_array(what, values, holes)[0], torch.from_numpy(~hidden)


def _is_missing(value: object) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _is_array(value: object) -> bool:
    return (hasattr(value, "__array__") or isinstance(value, Tensor)) and not isinstance(value, np.generic)


def _first(value: Any) -> object:
    """The first element of nested lists."""
    for _ in range(DEPTH):
        if not isinstance(value, (list, tuple)) or not value:
            break
        value = value[0]
    return value


def _stacked(parts: Sequence[Found], axis: int) -> Found:
    values = torch.stack([each for each, _ in parts], axis)
    if all(seen is None for _, seen in parts):
        return values, None
    masks = [torch.ones_like(each, dtype=torch.bool) if seen is None else seen for each, seen in parts]
    return values, torch.stack(masks, axis)


def _both(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one & other


def _refuse(what: str, value: object, error: Exception) -> NoReturn:
    why = f"{error}".strip().splitlines() or [type(error).__name__]
    raise InputError(
        f"{what} must be a tensor or nested lists of numbers, found {shown(value)}: {why[0]:.100}"
    ) from None


def _refuse_words(what: str, word: object) -> NoReturn:
    raise InputError(f"{what} must be numbers, found words such as {shown(str(word))}: {CODES}")


def _refuse_dates(what: str) -> NoReturn:
    raise InputError(f"{what} must be numbers, found dates or times: give numbers, such as days since the first one")


def _too_large(what: str) -> NoReturn:
    raise InputError(f"{what} has whole numbers of more than 64 bits with sign: give them as floating-point numbers")
