"""Hostile values for arguments, each with what a call must make of it.

    same    another form of the valid value: the answer must be the same, bit for bit (or the call may refuse it)
    fine    another valid value: the call may answer or refuse
    bad     not a value that the argument can have: the call must refuse it

A `Kind` says what an argument takes, and lists its attacks. Values are made when an attack is chosen, and made anew for
every trial.
"""

from __future__ import annotations

import array
import decimal
import fractions
import math
import pathlib
import types
import warnings
from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Number
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import paracond as pc

try:
    import pandas as pd
except ImportError:  # it is not needed
    pd = None

BIG = 2**40  # more is surely too much


@dataclass(frozen=True)
class Attack:
    """One hostile value: how it is written, how it is made, and what a call must make of it."""

    label: str
    make: Callable[[], Any]
    verdict: str


class Subclass(torch.Tensor):
    """A tensor of the user's own type."""


class Liar:
    """An object whose comparison, length and truth raise."""

    def __eq__(self, other):
        raise RuntimeError("a comparison of a liar")

    def __bool__(self):
        raise RuntimeError("the truth of a liar")

    __hash__ = None  # type: ignore[assignment]


def _junk() -> dict[str, Callable[[], Any]]:
    made: dict[str, Callable[[], Any]] = {
        "None": lambda: None,
        "True": lambda: True,
        "False": lambda: False,
        "'word'": lambda: "word",
        "''": lambda: "",
        "'1'": lambda: "1",
        "'x' * 10000": lambda: "x" * 10000,
        "b'x'": lambda: b"x",
        "nan": lambda: math.nan,
        "inf": lambda: math.inf,
        "-inf": lambda: -math.inf,
        "-1": lambda: -1,
        "0": lambda: 0,
        "-0.5": lambda: -0.5,
        "1.5": lambda: 1.5,
        "10**30": lambda: 10**30,
        "-10**30": lambda: -(10**30),
        "2**63": lambda: 2**63,
        "1e300": lambda: 1e300,
        "1j": lambda: 1j,
        "Decimal('0.5')": lambda: decimal.Decimal("0.5"),
        "Fraction(1, 2)": lambda: fractions.Fraction(1, 2),
        "[]": list,
        "[[]]": lambda: [[]],
        "[1, [2]]": lambda: [1, [2]],
        "[None]": lambda: [None],
        "['a']": lambda: ["a"],
        "()": tuple,
        "(1, 2)": lambda: (1, 2),
        "set()": set,
        "{1, 2}": lambda: {1, 2},
        "{}": dict,
        "{'typo': 1}": lambda: {"typo": 1},
        "{1: 2}": lambda: {1: 2},
        "{None: None}": lambda: {None: None},
        "generator": lambda: (k for k in range(3)),
        "range(3)": lambda: range(3),
        "slice(2)": lambda: slice(2),
        "...": lambda: ...,
        "lambda": lambda: lambda *_: 1,
        "int": lambda: int,
        "object()": object,
        "liar": Liar,
        "torch": lambda: torch,
        "pathlib.Path('nowhere')": lambda: pathlib.Path("nowhere"),
        "np.array(0)": lambda: np.array(0),
        "np.array(3)": lambda: np.array(3),
        "np.array([])": lambda: np.array([]),
        "np.array([1, 2])": lambda: np.array([1, 2]),
        "np.array([None])": lambda: np.array([None]),
        "np.array(['a'])": lambda: np.array(["a"]),
        "np.datetime64": lambda: np.datetime64("2020-01-01"),
        "np.str_('word')": lambda: np.str_("word"),
        "np.ma.masked": lambda: np.ma.masked,
        "masked array": lambda: np.ma.array([1.0, 2.0], mask=[True, False]),
        "torch.tensor(1)": lambda: torch.tensor(1),
        "torch.tensor(0.5)": lambda: torch.tensor(0.5),
        "torch.tensor(nan)": lambda: torch.tensor(math.nan),
        "torch.zeros(0)": lambda: torch.zeros(0),
        "torch.ones(2, 2)": lambda: torch.ones(2, 2),
        "torch.tensor([True])": lambda: torch.tensor([True]),
        "sparse": lambda: torch.eye(2).to_sparse(),
        "meta": lambda: torch.ones(2, device="meta"),
        "complex tensor": lambda: torch.ones(2, dtype=torch.complex64),
        "nn.Linear(1, 1)": lambda: nn.Linear(1, 1),
        "nn.Linear": lambda: nn.Linear,
        "torch.Generator()": torch.Generator,
        "pc.JointModel": lambda: pc.JointModel,
        "pc.Binary(2)": lambda: pc.Binary(2),
        "pc.Binary": lambda: pc.Binary,
        "pc.Regeneration()": pc.Regeneration,
        "pc.Precise()": pc.Precise,
        "pc.Precise": lambda: pc.Precise,
        "pc.CompletionOptions()": pc.CompletionOptions,
        "pc.Observed([[1.0]])": lambda: pc.Observed([[1.0]]),
        "pc.Data({'smoker': [[0, 1]]})": lambda: pc.Data({"smoker": [[0, 1]]}),
        "pc.Engine('cpu')": lambda: pc.Engine("cpu"),
        "pc.Context(pc.Binary(2))": lambda: pc.Context(pc.Binary(2)),
    }
    kinds = "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64"
    for kind in kinds.split():
        for value in (0, 1, 3):
            made[f"np.{kind}({value})"] = lambda kind=kind, value=value: getattr(np, kind)(value)
    made["np.float32(nan)"] = lambda: np.float32(math.nan)
    if pd is not None:
        made |= {
            "pd.NA": lambda: pd.NA,
            "pd.NaT": lambda: pd.NaT,
            "pd.Series([1, 2])": lambda: pd.Series([1, 2]),
            "pd.DataFrame({'smoker': [1]})": lambda: pd.DataFrame({"smoker": [1]}),
        }
    return made


JUNK = _junk()


class Kind:
    """What an argument takes. `judge` says what a call must make of a value, given the valid one."""

    def judge(self, value: Any, valid: Any) -> str:
        return "bad"

    def own(self, valid: Any) -> list[Attack]:
        """Attacks on this argument alone."""
        return []

    def attack(self, rng: Random, valid: Any) -> tuple[str, Any, str]:
        """A value, how it is written, and the verdict."""
        own = self.own(valid)
        if own and rng.random() < 0.5:
            chosen = rng.choice(own)
            return chosen.label, chosen.make(), chosen.verdict
        label = rng.choice(list(JUNK))
        value = JUNK[label]()
        return label, value, self.judge(value, valid)


@dataclass(frozen=True)
class Count(Kind):
    """A whole number."""

    least: int = 1
    most: int = BIG
    none: bool = False
    huge: bool = False  # whether so many as a count can be are surely too many for the memory

    def judge(self, value: Any, valid: Any) -> str:
        if value is None:
            return "fine" if self.none else "bad"
        if isinstance(value, bool | np.bool_):
            return "bad"
        if isinstance(value, Integral):
            return ("same" if value == valid else "fine") if self.least <= value <= self.most else "bad"
        if isinstance(value, Tensor | np.ndarray) and not np.ma.isMaskedArray(value) and value.ndim == 0:
            whole = not (value.is_floating_point() if isinstance(value, Tensor) else value.dtype.kind not in "iu")
            return "fine" if whole and self.least <= int(value) <= self.most else "bad"
        if isinstance(value, float | np.floating | fractions.Fraction | decimal.Decimal):
            return "fine" if float(value).is_integer() and self.least <= float(value) <= self.most else "bad"
        return "bad"

    def own(self, valid: Any) -> list[Attack]:
        found = [Attack(str(self.least - 1), lambda: self.least - 1, "bad")]
        if self.huge:
            found += [Attack("2**31 - 1", lambda: 2**31 - 1, "bad"), Attack("2 * 10**9", lambda: 2 * 10**9, "bad")]
        if self.most < BIG:
            found.append(Attack(str(self.most + 1), lambda: self.most + 1, "bad"))
        if isinstance(valid, int):
            kinds = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
            fits = [kind for kind in kinds if np.iinfo(kind).min <= valid <= np.iinfo(kind).max]
            found += [Attack(f"np.{kind.__name__}({valid})", lambda kind=kind: kind(valid), "same") for kind in fits]
            found.append(Attack(f"{valid}.5", lambda: valid + 0.5, "bad"))
            found.append(Attack(f"np.float64({valid}.5)", lambda: np.float64(valid + 0.5), "bad"))
            found.append(Attack(f"'{valid}'", lambda: str(valid), "bad"))
            found.append(Attack(f"[{valid}]", lambda: [valid], "bad"))
        return found


@dataclass(frozen=True)
class Seed(Count):
    """A seed."""

    least: int = -(2**63)
    most: int = 2**64 - 1


@dataclass(frozen=True)
class Num(Kind):
    """A real number between two bounds, which it may reach or not."""

    low: float = 0.0
    high: float = math.inf
    open_low: bool = False
    open_high: bool = True
    none: bool = False

    def judge(self, value: Any, valid: Any) -> str:
        if value is None:
            return "fine" if self.none else "bad"
        if isinstance(value, bool | np.bool_):
            return "bad"
        if isinstance(value, Tensor | np.ndarray) and not np.ma.isMaskedArray(value) and value.ndim == 0:
            if isinstance(value, Tensor) and value.is_meta:
                return "bad"
            return "bad" if value.dtype in (torch.bool, bool) or not self.inside(float(value)) else "fine"
        if isinstance(value, np.number | Number) and not isinstance(value, complex | np.complexfloating):
            return "fine" if self.inside(value) else "bad"
        return "bad"

    def inside(self, value: Any) -> bool:
        over = value > self.low if self.open_low else value >= self.low
        under = value < self.high if self.open_high else value <= self.high
        return bool(over and under)

    def own(self, valid: Any) -> list[Attack]:
        found = [Attack("np.float64(nan)", lambda: np.float64(math.nan), "bad")]
        if self.low > -math.inf:
            found.append(Attack(f"{self.low} - 1e-9", lambda: self.low - 1e-9, "bad"))
        if self.high < math.inf:
            found.append(Attack(f"{self.high} + 1e-9", lambda: self.high + 1e-9, "bad"))
        if isinstance(valid, float):
            found.append(Attack(f"np.float64({valid})", lambda: np.float64(valid), "same"))
            found.append(Attack(f"'{valid}'", lambda: str(valid), "bad"))
        return found


@dataclass(frozen=True)
class Word(Kind):
    """One of some words."""

    words: Sequence[str]
    none: bool = False
    others: tuple[type, ...] = ()

    def judge(self, value: Any, valid: Any) -> str:
        if value is None and self.none:
            return "fine"
        return (
            "fine"
            if isinstance(value, (str, *self.others)) and (isinstance(value, self.others) or value in self.words)
            else "bad"
        )

    def own(self, valid: Any) -> list[Attack]:
        word = self.words[0]
        return [
            Attack(repr(word.upper()), lambda: word.upper(), "bad"),
            Attack(repr(word + " "), lambda: word + " ", "bad"),
            Attack(repr([word]), lambda: [word], "bad"),
            Attack(f"np.str_({valid!r})", lambda: np.str_(valid), "same")
            if isinstance(valid, str)
            else Attack("0", lambda: 0, "bad"),
            Attack(f"np.array([{word!r}] * 2)", lambda: np.array([word] * 2), "bad"),
            Attack(f"b{word!r}", lambda: word.encode(), "bad"),
        ]


@dataclass(frozen=True)
class Flag(Kind):
    """True or False."""

    none: bool = False

    def judge(self, value: Any, valid: Any) -> str:
        if value is None:
            return "fine" if self.none else "bad"
        if isinstance(value, bool | np.bool_):
            return "same" if bool(value) == valid else "fine"
        return "fine" if isinstance(value, Integral) and value in (0, 1) else "bad"


@dataclass(frozen=True)
class Is(Kind):
    """An object of some classes."""

    types: tuple[type, ...]
    none: bool = False
    callables: bool = False  # any function of the right form, which cannot be judged from outside
    more: tuple[Attack, ...] = ()

    def judge(self, value: Any, valid: Any) -> str:
        if value is None:
            return "fine" if self.none else "bad"
        if isinstance(value, self.types):
            return "fine"
        return "fine" if self.callables and callable(value) else "bad"

    def own(self, valid: Any) -> list[Attack]:
        return [
            Attack(f"type({type(valid).__name__})", lambda: type(valid), "fine" if self.callables else "bad"),
            *self.more,
        ]


@dataclass(frozen=True)
class Free(Kind):
    """Any value may be right: the call may answer or refuse, but not fail."""

    def judge(self, value: Any, valid: Any) -> str:
        return "fine"


@dataclass(frozen=True)
class Shape(Kind):
    """A shape: a whole number over zero, or a tuple of them."""

    axes: int | None = None

    def judge(self, value: Any, valid: Any) -> str:
        whole = Count(1, 2**20)
        if isinstance(value, list | tuple | range | Tensor | np.ndarray | torch.Size):
            if isinstance(value, Tensor | np.ndarray):
                return (
                    "fine"
                    if value.ndim <= 1
                    and not np.ma.isMaskedArray(value)
                    and str(value.dtype)[:9].find("int") >= 0
                    and bool((value > 0).all())
                    else "bad"
                )
            sizes = list(value)
            return "fine" if all(whole.judge(n, None) == "fine" for n in sizes) else "bad"
        return whole.judge(value, None)

    def own(self, valid: Any) -> list[Attack]:
        return [
            Attack("(2, 0)", lambda: (2, 0), "bad"),
            Attack("(2, -1)", lambda: (2, -1), "bad"),
            Attack("(2, True)", lambda: (2, True), "bad"),
            Attack("(2, 1.0)", lambda: (2, 1.0), "fine"),
            Attack("((2,),)", lambda: ((2,),), "bad"),
            Attack("(2, 'x')", lambda: (2, "x"), "bad"),
            Attack("(10**30,)", lambda: (10**30,), "bad"),
            Attack("torch.Size([2])", lambda: torch.Size([2]), "fine"),
            Attack("(np.int64(2),)", lambda: (np.int64(2),), "fine"),
            Attack("'2'", lambda: "2", "bad"),
        ]


@dataclass(frozen=True)
class Names(Kind):
    """Names of groups. `one` also takes a single name."""

    names: Sequence[str]
    none: bool = False
    one: bool = True
    empty: bool = False
    only_one: bool = False

    def judge(self, value: Any, valid: Any) -> str:
        if value is None:
            return "fine" if self.none else "bad"
        if isinstance(value, str):
            return "fine" if self.one and value in self.names else "bad"
        if self.only_one:
            return "bad"
        if isinstance(value, list | tuple | set | dict) or hasattr(value, "columns"):
            names = list(value)
            if names and all(isinstance(name, str) and name in self.names for name in names):
                return "fine"
        if isinstance(value, list | tuple | set) and not value:
            return "fine" if self.empty else "bad"
        return "bad" if not (self.empty and _is_empty(value)) else "fine"

    def own(self, valid: Any) -> list[Attack]:
        name = next(iter(self.names))
        found = [
            Attack("['typo']", lambda: ["typo"], "bad"),
            Attack("'typo'", lambda: "typo", "bad"),
            Attack(f"[{name!r}, 'typo']", lambda: [name, "typo"], "bad"),
            Attack(f"[{name!r}, 1]", lambda: [name, 1], "bad"),
            Attack(f"[[{name!r}]]", lambda: [[name]], "bad"),
            Attack(f"{name.encode()!r}", lambda: name.encode(), "bad"),
        ]
        if isinstance(valid, list) and not self.only_one:
            found += [
                Attack(f"tuple({valid})", lambda: tuple(valid), "same"),
                Attack(f"iter({valid})", lambda: iter(list(valid)), "same"),
                Attack(f"np.array({valid})", lambda: np.array(valid), "same"),
                Attack(f"dict.fromkeys({valid})", lambda: dict.fromkeys(valid), "same"),
                Attack(f"{valid} * 2", lambda: valid * 2, "fine"),
            ]
        if isinstance(valid, str):
            found.append(Attack(f"np.str_({valid!r})", lambda: np.str_(valid), "same"))
        return found


def _is_empty(value: Any) -> bool:
    try:
        return len(value) == 0
    except Exception:
        return False


# --- values of groups -------------------------------------------------------------------------------------------------


def forms(value: Tensor) -> list[Attack]:
    """Other forms of a tensor of numbers: all mean the same."""
    whole = bool((value == value.round()).all()) if value.is_floating_point() else True
    plain = value.detach()
    found = {
        "list": plain.tolist,
        "tuples": lambda: _tuples(plain.tolist()),
        "numpy": plain.numpy,
        "numpy copy": lambda: plain.numpy().copy(),
        "read-only numpy": lambda: _read_only(plain.numpy().copy()),
        "numpy float64": lambda: plain.numpy().astype(np.float64),
        "numpy longdouble": lambda: plain.numpy().astype(np.longdouble),
        "numpy Fortran": lambda: np.asfortranarray(plain.numpy()),
        "numpy strided": lambda: np.repeat(plain.numpy(), 2, 0)[::2],
        "numpy reversed": lambda: np.ascontiguousarray(plain.numpy()[::-1])[::-1],
        "numpy big-endian": lambda: plain.numpy().astype(np.float64).astype(">f8"),
        "numpy object": lambda: plain.numpy().astype(object),
        "numpy matrix": lambda: _matrix(plain.numpy()),
        "unmasked array": lambda: np.ma.array(plain.numpy(), mask=False),
        "nomask array": lambda: np.ma.array(plain.numpy()),
        "list of arrays": lambda: list(plain.numpy()),
        "list of tensors": lambda: list(plain),
        "double": plain.double,
        "strided": lambda: plain.repeat_interleave(2, 0)[::2],
        "reversed twice": lambda: plain.flip(0).flip(0),
        "requires grad": lambda: plain.float().clone().requires_grad_(),
        "result of an operation": lambda: plain.float().clone().requires_grad_() * 1,
        "parameter": lambda: nn.Parameter(plain.float().clone(), requires_grad=False),
        "subclass": lambda: plain.clone().as_subclass(Subclass),
        "sparse": lambda: plain.to_sparse(),
        "inference": lambda: _inference(plain),
        "conjugate view": lambda: plain.clone().neg()._neg_view() if hasattr(torch.Tensor, "_neg_view") else plain,
        "memoryview": lambda: memoryview(np.ascontiguousarray(plain.numpy())),
    }
    if whole:
        low, high = int(plain.min()), int(plain.max())
        for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
            if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
                found[f"numpy {kind}"] = lambda kind=kind: plain.numpy().astype(kind)
                found[f"torch {kind}"] = lambda kind=kind: torch.from_numpy(plain.numpy().astype(np.int64)).to(
                    getattr(torch, kind)
                )
        if abs(low) <= 2 and abs(high) <= 2:
            found["numpy float16"] = lambda: plain.numpy().astype(np.float16)
            found["half"] = plain.half
            found["bfloat16"] = plain.bfloat16
            found["float8"] = lambda: plain.float().to(torch.float8_e4m3fn)
        if low >= 0 and high <= 1:
            found["numpy bool"] = lambda: plain.numpy().astype(bool)
            found["torch bool"] = plain.bool
    if plain.ndim == 1:
        found["array.array"] = lambda: array.array("d", plain.tolist())
        if len(plain):
            found["generator list"] = lambda: [float(v) for v in plain]
    if pd is not None and plain.ndim == 1:
        found["pd.Series"] = lambda: pd.Series(plain.numpy())
        found["pd.Series odd index"] = lambda: pd.Series(plain.numpy(), index=list(range(len(plain)))[::-1])
        found["pd.Series Float64"] = lambda: pd.Series(plain.tolist(), dtype="Float64")
        found["pd.Index"] = lambda: pd.Index(plain.numpy())
        if whole:
            found["pd.Series Int64"] = lambda: pd.Series(plain.long().tolist(), dtype="Int64")
            found["pd.Categorical"] = lambda: pd.Series(plain.long().tolist())
    if pd is not None and plain.ndim == 2:
        found["pd.DataFrame"] = lambda: pd.DataFrame(plain.numpy())
        found["pd.DataFrame Float64"] = lambda: pd.DataFrame(plain.tolist()).astype("Float64")
    return [Attack(label, make, "same") for label, make in found.items()]


def _matrix(value: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asmatrix(value) if value.ndim == 2 else value


def _inference(value: Tensor) -> Tensor:
    with torch.inference_mode():
        return value.clone()


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def _read_only(value: np.ndarray) -> np.ndarray:
    value.flags.writeable = False
    return value


def _put(value: Tensor, new: Any, dtype: torch.dtype | None = None) -> Tensor:
    changed = value.clone() if dtype is None else value.to(dtype)
    flat = changed.contiguous().view(-1)
    flat[len(flat) // 2] = new
    return flat.view(value.shape)


def _object(value: Tensor, new: Any) -> np.ndarray:
    changed = value.numpy().astype(object)
    changed.reshape(-1)[0] = new
    return changed


def spoiled(family: pc.Family, value: Tensor) -> list[Attack]:
    """Values that a group cannot have."""
    double = torch.float64
    found = {
        "NaN inside": lambda: _put(value, math.nan, double),
        "inf inside": lambda: _put(value, math.inf, double),
        "-inf inside": lambda: _put(value, -math.inf, torch.float32),
        "1e39 inside": lambda: _put(value, 1e39, double),
        "10**30 in a list": lambda: (
            _deep(value.tolist(), 10**30) if not isinstance(family, pc.Real) else _deep(value.tolist(), 10**400)
        ),
        "None in a list": lambda: _deep(value.tolist(), None),
        "'a' in a list": lambda: _deep(value.tolist(), "a"),
        "a list in a list": lambda: _deep(value.tolist(), [1, 2]),
        "NaN in a list": lambda: _deep(value.tolist(), math.nan),
        "objects with None": lambda: _object(value, None),
        "objects with a word": lambda: _object(value, "word"),
        "objects with NaN": lambda: _object(value, math.nan),
        "strings": lambda: value.numpy().astype(str),
        "bytes": lambda: value.numpy().astype("S"),
        "datetimes": lambda: value.long().numpy().astype("datetime64[D]"),
        "complex": lambda: value.to(torch.complex64),
        "meta": lambda: value.to("meta"),
        "one more axis": lambda: value.unsqueeze(-1),
        "one more axis in front": lambda: value.unsqueeze(0),
        "no batch axis": lambda: value[0],
        "a single number": lambda: value.flatten()[0],
        "no rows": lambda: value[:0],
        "wider": lambda: torch.cat([value, value], -1) if value.ndim > 1 else torch.stack([value, value, value], 1),
        "empty list": list,
        "a string": lambda: "value",
        "a class": lambda: torch.Tensor,
        "a function": lambda: lambda: value,
        "a generator": lambda: (v for v in value),
        "a set": lambda: set(value.flatten().tolist()),
        "a nested dictionary": lambda: {"value": value},
        "None": lambda: None,
        "Observed of Observed": lambda: pc.Observed(pc.Observed(value)),
        "a family": lambda: family,
    }
    if isinstance(family, pc.Binary):
        for number in (0.5, 2, -1, 1 + 1e-6):
            found[f"{number} inside"] = lambda number=number: _put(value, number, double)
        found["uint8 255 inside"] = lambda: _put(value.to(torch.uint8), 255)
    if isinstance(family, pc.Categorical):
        for number in (family.classes, -1, 0.5, 1e10, 2**53, -(2**63)):
            found[f"{number} inside"] = lambda number=number: _put(value, number, double)
        found["uint8 255 inside"] = lambda: _put(value.to(torch.uint8), 255)
        found["uint64 2**63 inside"] = lambda: _uint64(value)
    if pd is not None and value.ndim == 1:
        found["pd.Series of words"] = lambda: pd.Series(["a"] * len(value))
    return [Attack(label, make, "bad") for label, make in found.items()]


def _uint64(value: Tensor) -> np.ndarray:
    changed = value.numpy().astype(np.uint64)
    changed.reshape(-1)[0] = 2**63
    return changed


def _deep(value: Any, new: Any) -> Any:
    if isinstance(value, list) and value:
        return [_deep(value[0], new), *value[1:]]
    return new


def missing(value: Tensor) -> list[Attack]:
    """Values of which the first is masked or missing: they may be refused, or taken as not observed, never as known."""

    def masked() -> np.ma.MaskedArray:
        mask = np.zeros(value.shape, dtype=bool)
        mask.reshape(-1)[0] = True
        return np.ma.array(value.numpy().copy(), mask=mask)

    found = {"masked array": masked}
    if pd is not None and value.ndim == 1:
        found["pd.Series with NA"] = lambda: pd.Series([pd.NA, *value.tolist()[1:]], dtype="Float64")
        found["pd.Series with NaN"] = lambda: pd.Series([math.nan, *value.tolist()[1:]])
        found["pd.Series Int64 with NA"] = lambda: pd.Series([pd.NA, *value.long().tolist()[1:]], dtype="Int64")
    return [Attack(label, make, "missing") for label, make in found.items()]


@dataclass(frozen=True)
class Groups(Kind):
    """A dictionary of values by group. Values may be `Observed`."""

    families: Mapping[str, pc.Family]
    none: bool = False
    empty: bool = True
    rows: bool = True  # whether values have rows
    observed: bool = True
    whole: bool = False  # every group is needed
    spread: bool = True  # one row fits any number
    optional: tuple[str, ...] = ()  # groups that may be left out in spite of `whole`
    data: bool = False  # `Data` is taken too
    missing_is: str = "missing"

    def judge(self, value: Any, valid: Any) -> str:
        if value is None:
            return "fine" if self.none else "bad"
        if isinstance(value, Mapping):
            return "bad" if value or not self.empty else "fine"
        return "bad"

    def attack(self, rng: Random, valid: Mapping[str, Any]) -> tuple[str, Any, str]:
        if rng.random() < 0.12 or not valid:
            return super().attack(rng, valid)
        if rng.random() < 0.15:
            return self._outer(rng, valid)
        names = [name for name in valid if isinstance(valid[name], Tensor | pc.Observed)]
        if not names:
            return super().attack(rng, valid)
        name = rng.choice(names)
        value, wrapped = valid[name], isinstance(valid[name], pc.Observed)
        if wrapped and rng.random() < 0.5:
            label, mask, verdict = Mask(self.families[name], value.value).attack(rng, value.mask)
            return f"{name!r}: Observed(mask={label})", {**valid, name: pc.Observed(value.value, mask)}, verdict
        own = value.value if wrapped else value
        if wrapped and isinstance(value.mask, Tensor) and not bool(value.mask.any()):
            return super().attack(rng, valid)
        if not self.rows:
            chosen = rng.choice(_without_rows(self.families[name], own))
        else:
            chosen = rng.choice([*forms(own), *(a for a in spoiled(self.families[name], own)), *missing(own)])
        if wrapped and chosen.verdict != "same":  # a known place may not be the spoiled one
            chosen = rng.choice(forms(own))
        new = chosen.make()
        changed = {**valid, name: pc.Observed(new, value.mask) if wrapped else new}
        return f"{name!r}: {chosen.label}", changed, chosen.verdict

    def _outer(self, rng: Random, valid: Mapping[str, Any]) -> tuple[str, Any, str]:
        some = next(iter(valid), None)
        first = valid[some] if some is not None else torch.zeros(2)
        rows = first.value if isinstance(first, pc.Observed) else first
        attacks = [
            Attack("OrderedDict", lambda: OrderedDict(valid), "same"),
            Attack("MappingProxyType", lambda: types.MappingProxyType(dict(valid)), "same"),
            Attack("UserDict", lambda: UserDict(valid), "same"),
            Attack("with 'typo'", lambda: {**valid, "typo": rows}, "bad"),
            Attack("with a number as name", lambda: {**valid, 3: rows}, "bad"),
            Attack("with None as name", lambda: {**valid, None: rows}, "bad"),
            Attack("as pairs", lambda: list(valid.items()), "bad"),
            Attack("as a set of names", lambda: set(valid), "bad" if valid or not self.empty else "fine"),
            Attack("as values", lambda: list(valid.values()), "bad"),
        ]
        if self.rows and len(valid) > 1 and some is not None and len(rows) > 1:
            short = rows[:-1]
            bad = {**valid, some: pc.Observed(short, None) if isinstance(first, pc.Observed) else short}
            attacks.append(
                Attack(f"{some!r}: a row less", lambda: bad, "fine" if len(short) == 1 and self.spread else "bad")
            )
        if self.whole and valid:
            lacking = next((name for name in valid if name not in self.optional), None)
            if lacking:
                attacks.append(
                    Attack(f"without {lacking!r}", lambda: {k: v for k, v in valid.items() if k != lacking}, "bad")
                )
        chosen = rng.choice(attacks)
        return chosen.label, chosen.make(), chosen.verdict


def _without_rows(family: pc.Family, value: Tensor) -> list[Attack]:
    """Attacks on one value without a batch axis."""
    found = {
        "with rows": lambda: value.unsqueeze(0).repeat(2, *[1] * value.ndim),
        "NaN": lambda: torch.full_like(value, math.nan, dtype=torch.float64),
        "7": lambda: torch.full_like(value, 7),
        "-1": lambda: torch.full_like(value, -1),
        "a word": lambda: "word",
        "None": lambda: None,
        "complex": lambda: value.to(torch.complex64),
        "a set": lambda: {1},
        "objects": lambda: np.full(value.shape, None, dtype=object),
        "meta": lambda: value.to("meta"),
    }
    same = {
        "list": value.tolist,
        "numpy": value.numpy,
        "double": value.double,
        "requires grad": lambda: value.float().requires_grad_(),
    }
    return [Attack(k, v, "bad") for k, v in found.items()] + [Attack(k, v, "same") for k, v in same.items()]


@dataclass(frozen=True)
class Mask(Kind):
    """A mask of a group's values: Bool, full or short."""

    family: pc.Family
    value: Tensor

    def attack(self, rng: Random, valid: Tensor | None) -> tuple[str, Any, str]:
        full = torch.ones(self.value.shape, dtype=torch.bool) if valid is None else torch.as_tensor(valid)
        many = "fine" if len(self.value) == 1 else "bad"  # one row of values goes with many of a mask
        attacks = [
            Attack("list", full.tolist, "same"),
            Attack("numpy", full.numpy, "same"),
            Attack("read-only numpy", lambda: _read_only(full.numpy().copy()), "same"),
            Attack("numpy objects", lambda: full.numpy().astype(object), "same"),
            Attack("strided", lambda: full.repeat_interleave(2, 0)[::2], "same"),
            Attack("uint8", lambda: full.to(torch.uint8), "fine"),
            Attack("floats", lambda: full.double(), "fine"),
            Attack("NaN", lambda: torch.full(full.shape, math.nan), "bad"),
            Attack("twos", lambda: torch.full(full.shape, 2), "bad"),
            Attack("words", lambda: full.numpy().astype(str), "bad"),
            Attack("objects with None", lambda: np.full(full.shape, None, dtype=object), "bad"),
            Attack("two more axes", lambda: full[..., None, None], "bad"),
            Attack("three times as many rows", lambda: full.repeat(3, *[1] * (full.ndim - 1)), many),
            Attack("empty", lambda: torch.zeros(0, dtype=torch.bool), "bad"),
            Attack("a set", lambda: {True}, "bad"),
            Attack("a word", lambda: "mask", "bad"),
            Attack("a class", lambda: bool, "bad"),
            Attack("a dictionary", lambda: {"mask": True}, "bad"),
            Attack("meta", lambda: full.to("meta"), "bad"),
            Attack("complex", lambda: full.to(torch.complex64), "bad"),
            Attack("3", lambda: 3, "bad"),
            Attack("masked", lambda: np.ma.array(full.numpy(), mask=True), "bad"),
        ]
        if pd is not None and full.ndim == 1:
            attacks += [
                Attack("pd.Series", lambda: pd.Series(full.numpy()), "same"),
                Attack("pd.Series boolean", lambda: pd.Series(full.tolist(), dtype="boolean"), "same"),
                Attack("pd.Series with NA", lambda: pd.Series([pd.NA, *full.tolist()[1:]], dtype="boolean"), "bad"),
            ]
        chosen = rng.choice(attacks)
        return chosen.label, chosen.make(), chosen.verdict


@dataclass(frozen=True)
class Values(Kind):
    """Values of one group, or any array of numbers."""

    family: pc.Family
    none: bool = False

    def attack(self, rng: Random, valid: Tensor) -> tuple[str, Any, str]:
        chosen = rng.choice([*forms(valid), *spoiled(self.family, valid)])
        if chosen.label == "None" and self.none:
            return "None", None, "fine"
        return chosen.label, chosen.make(), chosen.verdict


@dataclass(frozen=True)
class Probabilities(Kind):
    """A distribution over states, or another table of numbers that are at least zero."""

    total: bool = True  # whether it must sum to one
    shaped: bool = True  # whether another argument says its shape
    optional: bool = False  # whether None is a value

    def own(self, valid: Tensor) -> list[Attack]:
        return [
            Attack("NaN inside", lambda: _put(valid, math.nan), "bad"),
            Attack("-1 inside", lambda: _put(valid, -1.0), "bad"),
            Attack("inf inside", lambda: _put(valid, math.inf), "bad"),
            Attack("twice", lambda: valid * 2, "bad" if self.total else "fine"),
            Attack("flat", lambda: valid.flatten()[1:], "bad" if self.shaped or self.total else "fine"),
            Attack("one more axis", lambda: valid.unsqueeze(0), "bad" if self.shaped else "fine"),
            Attack("complex", lambda: valid.to(torch.complex128), "bad"),
            Attack("words", lambda: valid.numpy().astype(str), "bad"),
            Attack("numpy", valid.numpy, "same"),
            Attack("float32", valid.float, "fine"),
            Attack("strided", lambda: valid.repeat_interleave(2, 0)[::2], "same"),
        ]

    def judge(self, value: Any, valid: Any) -> str:
        if value is None and self.optional:
            return "fine"
        if hasattr(value, "columns"):
            value = value.to_numpy()
        plain = isinstance(value, np.ndarray) or (isinstance(value, Tensor) and value.layout == torch.strided)
        if self.shaped or not plain or getattr(value, "is_meta", False) or value.ndim == 0:
            return "bad"
        return "fine" if len(value.flatten()) == 1 and value.flatten().tolist() == [1] else "bad"
