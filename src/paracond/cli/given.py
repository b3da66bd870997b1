"""Values on the command line, NAME=VALUE, as tensors.

A value is a number (the same in every row), numbers with commas between them (one per row), or a file: .npy, or a
picture (.png: white is 1; over one half is 1 where pixels are binary). A picture may be known in part: one half of it,
or where a mask is white. NAME[COORDINATE]=VALUE is one coordinate of a flat group, by its number or, where the model's
folder has a `names.json` ({"NAME": [names]}), by its name.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from torch import Tensor

import paracond as pc
from paracond.cli.pictures import is_picture
from paracond.data import InputError
from paracond.experiments.common.results import choose_device

NAMES = "names.json"
COORDINATE = re.compile(r"([^\[\]]+)\[([^\[\]]+)\]")
HALVES = ("all", "top", "bottom", "left", "right")
GIVEN = """what is known, as NAME=VALUE or NAME[COORDINATE]=VALUE. A value is a number, numbers with commas between them
(one per row), a .npy file, or a .png picture, in which white is 1 (MNIST's digits are white on black)"""
SEEN = "the part of given pictures that is known: all, top, bottom, left, right, or a .png in which it is white"


@dataclass(frozen=True)
class ModelConfig:
    """Settings of commands that ask a saved model."""

    model: Annotated[Path, tyro.conf.Positional]
    given: Annotated[tuple[str, ...], tyro.conf.arg(help=GIVEN)] = ()
    seen: Annotated[str, tyro.conf.arg(help=SEEN)] = "all"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = 0

    def load(self) -> tuple[pc.JointModel, dict[str, list[str]], dict[str, pc.Observed]]:
        """The model, the names of its coordinates, and the given values."""
        model = pc.JointModel.load(self.model).to(choose_device(self.device)).eval()
        names = coordinate_names(self.model)
        return model, names, given_values(model, self.given, names)


def coordinate_names(folder: Path) -> dict[str, list[str]]:
    """The names of coordinates in `names.json` of a model's folder, by group."""
    path = folder / NAMES
    try:
        return json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}") from None


def given_values(model: pc.JointModel, words: tuple[str, ...], names: dict[str, list[str]]) -> dict[str, pc.Observed]:
    """The values of all words, by group; coordinates of one group are joined."""
    found: dict[str, pc.Observed] = {}
    for word in words:
        name, text = _split(word)
        single = COORDINATE.fullmatch(name)
        if single is None:
            value = pc.Observed(_value(model, name, text, names))
        else:
            name, key = single[1], single[2]
            value = _single(model, name, key, text, names)
        found[name] = _both(name, found[name], value) if name in found else value
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
    if path.suffix == ".png":
        return _pixels("--seen", path, size).mean(0) > 0.5
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
    shape, called = model.variables[name].event_shape, names.get(name, [])
    if len(shape) != 1:
        raise InputError(f"{name}[{key}]: only flat groups have such coordinates; {name!r} is {model.variables[name]}")
    index = called.index(key) if key in called else int(key) if key.isdecimal() else -1
    if not 0 <= index < shape[0]:
        known = f" or one of {', '.join(called)}" if called else ""
        close = difflib.get_close_matches(key, called, 1)
        hint = f" (do you mean {close[0]}?)" if close else ""
        raise InputError(f"{name}[{key}]{hint}: a coordinate is a number from 0 to {shape[0] - 1}{known}")
    return pc.Observed(_numbers(f"{name}[{key}]", text, shape), torch.arange(shape[0]) == index)


def _both(name: str, first: pc.Observed, second: pc.Observed) -> pc.Observed:
    """The known coordinates of both, which must be different ones."""
    if first.mask is None or second.mask is None or bool((first.mask & second.mask).any()):
        raise InputError(f"{name!r} is given twice: give each group, or each of its coordinates, once")
    return pc.Observed(torch.where(second.mask, second.value, first.value), first.mask | second.mask)


def _split(word: str) -> tuple[str, str]:
    name, equals, text = word.partition("=")
    if not equals or not name or not text:
        raise InputError(f"--given and --edit take NAME=VALUE, found {word!r}")
    return name, text


def _value(model: pc.JointModel, name: str, text: str, names: dict[str, list[str]]) -> Tensor:
    group = next((group for group, called in names.items() if name in called), None)
    if group is not None and name not in model.variables:
        raise InputError(f"{name!r} is a coordinate of {group!r}: say {group}[{name}]={text}")
    model.check_names([name])
    shape = model.variables[name].event_shape
    path = Path(text)
    if path.suffix == ".npy":
        return _read(name, path, lambda: torch.as_tensor(np.load(path, allow_pickle=False)))
    if path.suffix == ".png":
        if isinstance(model.variables[name], pc.Categorical):
            raise InputError(f"{name}={path} is a picture, and {name!r} has labels: give them as a .npy file")
        pixels = _pixels(name, path, shape[-2:])
        pixels = pixels.mean(0, keepdim=True) if len(shape) < 3 or shape[0] == 1 else pixels
        pixels = (pixels > 0.5).float() if isinstance(model.variables[name], pc.Binary) else pixels
        return pixels.expand(1, *shape)
    return _numbers(name, text, shape)


def _pixels(name: str, path: Path, size: tuple[int, ...]) -> Tensor:
    """A picture of this size, `[1 or 3, height, width]`."""
    from matplotlib import image

    pixels = _read(name, path, lambda: torch.as_tensor(image.imread(path)).float())
    if tuple(pixels.shape[:2]) != tuple(size):
        raise InputError(f"{name}={path} has {list(pixels.shape[:2])} pixels, the model wants {list(size)}")
    return pixels[..., :3].permute(2, 0, 1) if pixels.ndim == 3 else pixels.unsqueeze(0)


def _numbers(name: str, text: str, shape: tuple[int, ...]) -> Tensor:
    try:
        numbers = torch.tensor([float(part) for part in text.split(",")])
    except ValueError:
        raise InputError(
            f"{name}={text}: neither numbers nor a .npy or .png file (save other pictures as .png)"
        ) from None
    return numbers.view(-1, *[1] * len(shape)).expand(-1, *shape)


def _read(name: str, path: Path, read: Callable[[], Tensor]) -> Tensor:
    try:
        return read()
    except (OSError, EOFError, ValueError, SyntaxError, TypeError) as error:
        raise InputError(f"{name}={path} cannot be read: {error}") from None
