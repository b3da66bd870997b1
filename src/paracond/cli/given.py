"""Values on the command line, NAME=VALUE, as tensors.

A value is a number (the same in every row), numbers with commas between them (one per row), a .npy file, or pictures
(.png, one per row: white is 1; over one half is 1 where pixels are binary). A picture may be known in part: one half of
it, or where a mask is white. NAME[COORDINATE]=VALUE is one coordinate of a flat group, by its number or, where the
model's folder has a `names.json` ({"NAME": [names]}), by its name.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

import paracond as pc
from paracond import serialization
from paracond.cli import files, polarity
from paracond.cli.pictures import is_picture
from paracond.data import InputError, at_least, seeded
from paracond.experiments.common.config import Device
from paracond.experiments.common.names import NAMES, NAMES_FORMAT
from paracond.experiments.common.results import choose_device

COORDINATE = re.compile(r"([^\[\]]+)\[([^\[\]]+)\]")
PLACE = re.compile(r"[0-9]{1,9}")
NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
HALVES = ("all", "top", "bottom", "left", "right")
GIVEN = """what is known, as NAME=VALUE or NAME[COORDINATE]=VALUE. A value is a number, numbers with commas between them
(one per row), a .npy file, or .png pictures with commas between them, in which white is 1 (MNIST's digits are white on
black)"""
SEEN = "the part of given pictures that is known: all, top, bottom, left, right, or a .png in which it is white"


@dataclass(frozen=True)
class Given:
    """What is given: values by group, and for rows that came from files the name of each row's file."""

    values: dict[str, pc.Observed] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)
    pictures: dict[str, str] = field(default_factory=dict)
    """the words that gave pictures"""


@dataclass(frozen=True)
class ModelConfig:
    """Settings of commands that ask a saved model."""

    model: Annotated[Path, tyro.conf.Positional]
    given: Annotated[tuple[str, ...], tyro.conf.arg(help=GIVEN)] = ()
    seen: Annotated[str, tyro.conf.arg(help=SEEN)] = "all"
    invert: bool = False
    """read given pictures (.png) with black as 1"""
    overwrite: bool = False
    """replace files of the same names"""
    device: Device = "auto"
    seed: int = 0

    def check_counts(self, counts: dict[str, tuple[int | None, int]]) -> None:
        """Refuse impossible counts: `{option: (found, least)}`, None where the option was not given."""
        for name, (found, least) in counts.items():
            at_least({name: (least if found is None else found, least)})
        seeded(self.seed)

    def load(self) -> tuple[pc.JointModel, dict[str, list[str]], Given]:
        """The model, the names of its coordinates, and what is given."""
        model = pc.JointModel.load(self.model).to(choose_device(self.device)).eval()
        names = coordinate_names(self.model, model)
        given = read_given(model, self.given, names, self.invert)
        if self.invert and not given.pictures:
            raise InputError("--invert needs a .png picture among what is given")
        return model, names, given

    def remark_polarity(self, model: pc.JointModel, given: Given, seen: dict[str, pc.Observed]) -> None:
        """Tell the user where a picture looks inverted."""
        for name, word in given.pictures.items():
            found = None
            if name in model.names:
                value, mask = given.values[name].value, seen[name].mask
                own = polarity.own_images(model, name, context_rows(model, given.values, 1)["given"])
                found = polarity.looks_inverted(value, own, mask)
            if remark := polarity.remark(word, found, self.invert):
                print(f"paracond: {remark}", file=sys.stderr)


def coordinate_names(folder: Path, model: pc.JointModel) -> dict[str, list[str]]:
    """The names of coordinates in `names.json` of a model's folder, by group."""
    path = folder / NAMES
    if not path.exists():
        return {}
    read = serialization.read_json(path, NAMES_FORMAT)
    found = read.get("names") if "format" in read else read
    if not isinstance(found, dict):
        raise InputError(f"{path} must have an object of names by group, found {found!r:.80}")
    for name, called in found.items():
        if name not in model.variables:
            raise InputError(f"{path} names {name!r:.80}, which is no group of the model")
        shape = model.variables[name].event_shape
        texts = isinstance(called, list) and all(isinstance(each, str) for each in called)
        if len(shape) != 1 or not texts or len(set(called)) != shape[0] or len(called) != shape[0]:
            raise InputError(f"{path} must have a list of {list(shape)} different names for {name!r}")
    return found


def read_given(
    model: pc.JointModel, words: tuple[str, ...], names: dict[str, list[str]], invert: bool = False
) -> Given:
    """What all words give; coordinates of one group are joined. `invert`: black is 1 in pictures."""
    found = Given()
    for word in words:
        name, key, text = _split(model, word, names)
        if key is None:
            _refuse_coordinate(model, name, text, names)
            paths = _paths(text)
            value = pc.Observed(_value(model, name, text, paths, invert))
            if paths:
                found.files[name] = [str(path) for path in paths] if len(paths) > 1 else [text] * len(value.value)
            if paths and _is_png(paths[0]):
                found.pictures[name] = word
        else:
            value = _single(model, name, key, text, names)
        former = found.values.get(name)
        found.values[name] = value if former is None else _both(name, former, value)
    return found


def seen_parts(model: pc.JointModel, given: dict[str, pc.Observed], seen: str) -> dict[str, pc.Observed]:
    """The given values, with the masks of pictures that are seen in part."""
    pictures = [name for name in given if is_picture(model.variables[name])]
    if seen != "all" and not pictures:
        raise InputError(f"--seen {seen} needs a picture among what is given")
    found = dict(given)
    for name in pictures:
        shape = model.variables[name].event_shape
        found[name] = pc.Observed(given[name].value, seen_part(shape[-2:], seen).expand(shape))
    return found


def seen_part(size: tuple[int, ...], seen: str) -> Tensor:
    """A mask `[height, width]` over the pixels of a picture, true where it is seen."""
    path = Path(seen)
    if _is_png(path):
        return files.pixels("--seen", path, size).double().mean(0) > 0.5
    if seen not in HALVES:
        raise InputError(
            f"--seen is one of {', '.join(HALVES)}, or a .png in which what is seen is white, found {seen!r}"
        )
    i, j = torch.arange(size[0]).view(-1, 1) * 2 < size[0], torch.arange(size[1]) * 2 < size[1]
    parts = {"all": i | ~i, "top": i, "bottom": ~i, "left": j, "right": ~j}
    return parts[seen].expand(size[0], size[1])


def context_rows(model: pc.JointModel, given: dict[str, pc.Observed], rows: int) -> dict[str, Any]:
    """The given context in a few rows, as options of `pc.sample`: enough to time the model."""
    return {"given": {name: given[name].value[:rows] for name in model.context if name in given}, "rows": rows}


def _single(model: pc.JointModel, name: str, key: str, text: str, names: dict[str, list[str]]) -> pc.Observed:
    """One coordinate of a flat group."""
    model.check_names([name])
    shape, called, label = model.variables[name].event_shape, names.get(name, []), f"{name}[{key:.80}]"
    if len(shape) != 1:
        raise InputError(f"{label}: only flat groups have such coordinates; {name!r} is {model.variables[name]}")
    index = called.index(key) if key in called else int(key) if PLACE.fullmatch(key) else -1
    if not 0 <= index < shape[0]:
        known = f" or one of {', '.join(called)}" if called else ""
        close = difflib.get_close_matches(key[:80], called, 1)
        hint = f" (do you mean {close[0]}?)" if close else ""
        raise InputError(f"{label}{hint}: a coordinate is a number from 0 to {shape[0] - 1}{known}")
    return pc.Observed(_numbers(model, label, text, shape), torch.arange(shape[0])[None] == index)


def _both(name: str, first: pc.Observed, second: pc.Observed) -> pc.Observed:
    """The known coordinates of both, which must be different ones."""
    if first.mask is None or second.mask is None or bool((first.mask & second.mask).any()):
        raise InputError(f"{name!r} is given twice: give each group, or each of its coordinates, once")
    counts = [len(each.value) for each in (first, second)]
    if min(counts) > 1 and counts[0] != counts[1]:
        raise InputError(f"coordinates of {name!r} have {counts[0]} and {counts[1]} values: give one, or equally many")
    return pc.Observed(torch.where(second.mask, second.value, first.value), first.mask | second.mask)


def _split(model: pc.JointModel, word: str, names: dict[str, list[str]]) -> tuple[str, str | None, str]:
    """The group, perhaps its coordinate, and the value of a word. Known names may hold any sign, "=" too."""
    known: dict[str, tuple[str, str | None]] = {f"{name}=": (name, None) for name in model.variables}
    known |= {f"{group}[{key}]=": (group, key) for group, called in names.items() for key in called}
    start = max((each for each in known if word.startswith(each)), key=len, default="")
    name, equals, text = (start, "=", word[len(start) :]) if start else word.partition("=")
    if not equals or not name or not text:
        raise InputError(f"--given and --edit take NAME=VALUE, found {word!r:.80}")
    if start:
        return *known[start], text
    single = COORDINATE.fullmatch(name)
    return (name, None, text) if single is None else (single[1], single[2], text)


def _refuse_coordinate(model: pc.JointModel, name: str, text: str, names: dict[str, list[str]]) -> None:
    """Refuse the bare name of a coordinate, and other names that are no group."""
    group = next((group for group, called in names.items() if name in called), None)
    if group is not None and name not in model.variables:
        raise InputError(f"{name!r} is a coordinate of {group!r}: say {group}[{name}]={text}")
    model.check_names([name])


def _is_png(path: Path) -> bool:
    return path.suffix.lower() == ".png"


def _paths(text: str) -> list[Path]:
    """The files that a value names: one .npy file, or pictures with commas between them."""
    if Path(text).suffix.lower() == ".npy" or (_is_png(Path(text)) and os.path.exists(text)):
        return [Path(text)]
    paths = [Path(part) for part in text.split(",")]
    return paths if all(map(_is_png, paths)) else []


def _value(model: pc.JointModel, name: str, text: str, paths: list[Path], invert: bool) -> Tensor:
    family = model.variables[name]
    if not paths:
        return _numbers(model, name, text, family.event_shape)
    if _is_png(paths[0]):
        return torch.cat([_picture(name, family, path, invert) for path in paths])
    found = files.array(name, paths[0], family.event_shape)
    if found.is_floating_point() and not bool(found.to(model.dtype).isfinite().all()):
        raise InputError(f"{name}={text} has values that are not finite numbers in {model.dtype}")
    whole = not found.is_floating_point() and found.dtype != torch.bool
    if isinstance(family, pc.Real) and is_picture(family) and whole and bool((found > 1).any()):
        raise InputError(
            f"{name}={text} has whole numbers up to {found.max()}: pixels are from 0 to 1, so divide by 255"
        )
    return found


def _picture(name: str, family: pc.Family, path: Path, invert: bool) -> Tensor:
    """A picture as one row of a group."""
    shape = family.event_shape
    if isinstance(family, pc.Categorical):
        raise InputError(f"{name}={path} is a picture, and {name!r} has labels: give them as a .npy file")
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] not in (1, 3)):
        raise InputError(f"{name}={path} is a picture, and {name!r} is {family}: give its numbers as a .npy file")
    pixels = files.pixels(name, path, shape[-2:], invert)
    if len(shape) == 2 or shape[0] == 1:
        pixels = pixels.double().mean(0, keepdim=True).float()
    pixels = (pixels > 0.5).float() if isinstance(family, pc.Binary) else pixels
    return pixels.expand(1, *shape)


def _numbers(model: pc.JointModel, name: str, text: str, shape: tuple[int, ...]) -> Tensor:
    """Numbers, one per row, in every coordinate of the group."""
    parts = text.split(",")
    if not all(NUMBER.fullmatch(part) for part in parts):
        raise InputError(f"{name}={text}: neither numbers nor a .npy or .png file (save other pictures as .png)")
    numbers = torch.tensor([float(part) for part in parts], dtype=torch.float64)
    if not bool(numbers.to(model.dtype).isfinite().all()):
        raise InputError(f"{name}={text}: the model computes in {model.dtype}, in which this is not a finite number")
    return numbers.view(-1, *[1] * len(shape)).expand(-1, *shape)
