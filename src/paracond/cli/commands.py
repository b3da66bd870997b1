"""What the command line does with a model: train one of the recipes', sample from a saved one, decide with it.

What is known is said as NAME=VALUE: a number (the same in every row), numbers with commas between them (one per row),
or a file: .npy, or a picture (.png: white is 1; over one half is 1 where pixels are binary). Of pictures, perhaps only
one half is seen, or what is white in a mask. NAME[COORDINATE]=VALUE is one coordinate of a flat group, by its number
or, where the model's folder has a `names.json` ({"NAME": [names]}), by its name.
"""

from __future__ import annotations

import csv
import difflib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from matplotlib import image
from torch import Tensor

import paracond as pc
from paracond.cli.pictures import is_picture, written
from paracond.data import InputError, at_least
from paracond.experiments.common.milestones import train as fit
from paracond.experiments.common.results import choose_device
from paracond.experiments.common.runner import Unfinished
from paracond.experiments.images import model as images
from paracond.experiments.images.presets import EXPERIMENTS
from paracond.guidance import SWEEPS, WEIGHT, check_weight
from paracond.metrics.fid import accuracy

Device = Literal["auto", "cpu", "cuda"]
NAMES = "names.json"
ON_CPU = 50  # rows at a time: what an image network makes of more does not stay in the cache
COORDINATE = re.compile(r"([^\[\]]+)\[([^\[\]]+)\]")
HALVES = ("all", "top", "bottom", "left", "right")


@dataclass(frozen=True)
class Train:
    """Train the model of a recipe and save it: OUT/model, and OUT/checkpoint to go on from."""

    dataset: Annotated[Literal["mnist", "fashion"], tyro.conf.Positional]
    out: Path | None = None
    """folder (runs/DATASET-PRESET if not given)"""
    preset: Literal["best", "paper"] = "best"
    data: Path | None = None
    """folder with the IDX files"""
    labels: int | None = None
    """learn from this many labels only"""
    updates: int | None = None
    minutes: float | None = None
    """time box; --resume continues"""
    resume: bool = False
    compile: bool = False
    device: Device = "auto"
    seed: int = 0

    @property
    def folder(self) -> Path:
        return self.out or Path("runs") / f"{self.dataset}-{self.preset}"


@dataclass(frozen=True)
class Sample:
    """Draw from a saved model, given anything: writes OUT/samples.npz, and samples.png where there are images."""

    model: Annotated[Path, tyro.conf.Positional]
    given: tuple[str, ...] = ()
    """what is known, as NAME=VALUE or NAME[COORDINATE]=VALUE. A value is a number, numbers with commas between them (of
    one row each), a .npy file, or a .png picture, in which white is 1 (MNIST's digits are white on black)"""
    seen: str = "all"
    """which part of the pictures among it: all, top, bottom, left, right, or a .png in which it is white"""
    rows: int | None = None
    """draws, where what is given has no rows of its own (if not said: 100, or 1 where a picture is given whole)"""
    sweeps: int = 100
    """of the chain"""
    edit: tuple[str, ...] = ()
    """coordinates of a binary group to change afterwards, as NAME[COORDINATE]=VALUE: writes OUT/edited.npz and
    edited.png besides, in which the chain has gone on from there until they show"""
    guidance: float = WEIGHT
    """how much more these count than they did in learning"""
    edit_sweeps: int = SWEEPS
    """after which a row is left as it is, whether they show or not"""
    out: Path = Path("runs/sample")
    """folder"""
    device: Device = "auto"
    seed: int = 0


@dataclass(frozen=True)
class Classify:
    """Decide a group of a saved model by its maximum marginal: writes OUT, a table with one row per question. For a
    class these are the decision and its probability, for binary values the probabilities."""

    model: Annotated[Path, tyro.conf.Positional]
    given: tuple[str, ...] = ()
    """what is known, as NAME=VALUE or NAME[COORDINATE]=VALUE. A value is a number, numbers with commas between them (of
    one row each), a .npy file, or a .png picture, in which white is 1 (MNIST's digits are white on black)"""
    seen: str = "all"
    """which part of the pictures among it: all, top, bottom, left, right, or a .png in which it is white"""
    dataset: Literal["mnist", "fashion"] | None = None
    """ask about the test images of this data set, and say how many answers are right"""
    data: Path | None = None
    """folder with the IDX files"""
    want: str = "c"
    """the group"""
    sweeps: int | None = None
    """of the chains, where not all that matters is given (until they have converged if not said)"""
    out: Path = Path("runs/decisions.csv")
    device: Device = "auto"
    seed: int = 0


def train(config: Train) -> str:
    experiment, device = EXPERIMENTS[config.dataset], choose_device(config.device)
    data = experiment.load("train", folder=config.data)
    if config.labels is not None:
        data = pc.datasets.keep_labels(data, config.labels, config.seed)
    design = experiment.presets[config.preset]
    if config.labels is not None:
        design = replace(design, **experiment.few_labels)
    if config.updates is not None:
        at_least({"--updates": (config.updates, 1)})
        design = replace(design, updates=config.updates)
    engine = pc.Engine(device, compile=config.compile and device == "cuda")
    learner = images.make_learner(design, data, engine, config.seed)
    try:
        fit(learner, design.updates, config.folder / "checkpoint", config)
    except (Unfinished, KeyboardInterrupt):  # it will go on, and can be asked already
        if learner.step_count:  # nothing learned yet, or not restored yet: what is saved there stays
            _keep(learner, config.folder)
        raise
    _keep(learner, config.folder)
    return f"done: {design.updates} updates"


def _keep(learner: pc.Learner, folder: Path) -> None:
    learner.averaged.save(folder / "model", dtype=torch.bfloat16)
    print(f"model: {folder / 'model'}")


def sample(config: Sample) -> str:
    most = {"--sweeps": (config.sweeps, 0), "--edit-sweeps": (config.edit_sweeps, 0)}
    at_least({"--rows": (1 if config.rows is None else config.rows, 1), **most})
    check_weight(config.guidance)
    model = pc.JointModel.load(config.model).to(choose_device(config.device)).eval()
    names = _names(config.model)
    given = _given(model, config.given, names)
    rows = _row_count(model, given, config)
    given = {name: pc.Observed(_rows(each.value, rows), each.mask) for name, each in given.items()}
    seen, change = _seen(model, given, config.seen), _change(model, config.edit, names, rows)
    if given:
        model.validate({name: each.value for name, each in given.items()})  # refuses it before time is spent
    some = _conditions(model, given, min(rows, 32))
    engine = pc.Engine.fastest(model.device, lambda engine: pc.sample(model, **some, sweeps=1, engine=engine))
    chunk = None if model.device.type == "cuda" else ON_CPU
    options: dict[str, Any] = {"engine": engine, "seed": config.seed, "chunk": chunk}
    state = pc.sample(model, seen, rows=rows, sweeps=config.sweeps, **options)
    pictures = [name for name in given if is_picture(model.variables[name])]
    parts = {name: _part(model.variables[name].event_shape[-2:], config.seen) for name in pictures}
    files = written(model, state, config.out, "samples", parts)
    if change is not None:
        options |= {"weight": config.guidance, "sweeps": config.edit_sweeps}
        after = pc.edited(model, state, *change, **options)
        files += written(model, after, config.out, "edited", {})
    return "\n".join(f"written: {path}" for path in files)


def _conditions(model: pc.JointModel, given: dict[str, pc.Observed], rows: int) -> dict[str, Any]:
    """Of what is given, that without which nothing can be drawn, in a few rows: for trying out."""
    return {"given": {name: given[name].value[:rows] for name in model.context if name in given}, "rows": rows}


def _row_count(model: pc.JointModel, given: dict[str, pc.Observed], config: Sample) -> int:
    """As many as are given; else as many as are asked for."""
    several = [len(each.value) for each in given.values() if len(each.value) > 1]
    whole = config.seen == "all" and any(is_picture(model.variables[name]) for name in given)
    return several[0] if several else config.rows or (1 if whole else 100)


def _change(
    model: pc.JointModel, words: tuple[str, ...], names: dict[str, list[str]], rows: int
) -> tuple[str, pc.Observed] | None:
    """The group that is edited in so many rows, and how."""
    found = _given(model, words, names)
    if not found:
        return None
    (name, change), *others = found.items()
    if others or not isinstance(model.variables[name], pc.Binary):
        listed = ", ".join(f"{group}: {model.variables[group]}" for group in found)
        raise InputError(f"--edit changes one binary group, found {listed}")
    if len(change.value) not in (1, rows):
        raise InputError(f"--edit has {len(change.value)} values of {name!r} for {rows} rows")
    model.validate({name: change.value})
    return name, change


def classify(config: Classify) -> str:
    at_least({"--sweeps": (1 if config.sweeps is None else config.sweeps, 1)})
    model = pc.JointModel.load(config.model).to(choose_device(config.device)).eval()
    names = _names(config.model)
    given, truth = _given(model, config.given, names), None
    if config.dataset is not None:
        test = EXPERIMENTS[config.dataset].load("test", folder=config.data)
        given["x"], truth = pc.Observed(test.state["x"]), test.state["c"]
    if not given:
        raise InputError("nothing is given: say --given NAME=VALUE, or --dataset")
    model.check_names([config.want])
    family = model.variables[config.want]
    one_class = isinstance(family, pc.Categorical) and not family.event_shape
    if not one_class and not (isinstance(family, pc.Binary) and len(family.event_shape) == 1):
        raise InputError(f"{config.want!r} is {family}: only a class or flat binary values are decided here")
    asked = _conditions(model, given, min(64, max(len(each.value) for each in given.values())))
    pc.Engine(model.device).settle(lambda: pc.sample(model, **asked, sweeps=1))
    seen, stop = _seen(model, given, config.seen), None if config.sweeps is None else pc.Sweeps(config.sweeps)
    answer = pc.query(model, seen, [config.want], stop=stop, seed=config.seed)
    probabilities, decided = answer.probabilities[config.want].cpu(), answer.decisions[config.want].cpu()
    if one_class:
        pairs = zip(decided.tolist(), probabilities.amax(-1).tolist(), strict=True)
        _write_table(config.out, ["decision", "probability"], [[k, f"{p:.4f}"] for k, p in pairs])
    else:
        columns = names.get(config.want, [f"{config.want}[{k}]" for k in range(decided.shape[1])])
        _write_table(config.out, columns, [[f"{p:.4f}" for p in row] for row in probabilities.tolist()])
    text = f"{len(decided)} decisions: {config.out}"
    return text if truth is None else f"{text}\naccuracy: {accuracy(decided, truth):.4f}"


def _write_table(path: Path, columns: list[str], rows: list[list]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["row", *columns])
        table.writerows([k, *row] for k, row in enumerate(rows))


def _names(folder: Path) -> dict[str, list[str]]:
    """What the coordinates of a model's groups are called, if its folder says so."""
    path = folder / NAMES
    try:
        return json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}") from None


def _given(model: pc.JointModel, words: tuple[str, ...], names: dict[str, list[str]]) -> dict[str, pc.Observed]:
    """Everything that was said; coordinates of one group come together."""
    found: dict[str, pc.Observed] = {}
    for word in words:
        name, text = _split(word)
        single = COORDINATE.fullmatch(name)
        if single is None:
            said = pc.Observed(_value(model, name, text, names))
        else:
            name, key = single[1], single[2]
            said = _single(model, name, key, text, names)
        found[name] = _both(found[name], said) if name in found else said
    return found


def _single(model: pc.JointModel, name: str, key: str, text: str, names: dict[str, list[str]]) -> pc.Observed:
    """One coordinate of a flat group."""
    model.check_names([name])
    shape, called = model.variables[name].event_shape, names.get(name, [])
    if len(shape) != 1:
        raise InputError(f"{name}[{key}]: only flat groups have such coordinates; {name!r} is {model.variables[name]}")
    index = called.index(key) if key in called else int(key) if key.isdigit() else -1
    if not 0 <= index < shape[0]:
        known = f" or one of {', '.join(called)}" if called else ""
        close = difflib.get_close_matches(key, called, 1)
        hint = f" (do you mean {close[0]}?)" if close else ""
        raise InputError(f"{name}[{key}]{hint}: a coordinate is a number from 0 to {shape[0] - 1}{known}")
    return pc.Observed(_numbers(f"{name}[{key}]", text, shape), torch.arange(shape[0]) == index)


def _both(first: pc.Observed, second: pc.Observed) -> pc.Observed:
    """Some coordinates of a group, and others."""
    if first.mask is None or second.mask is None:
        return second
    return pc.Observed(torch.where(second.mask, second.value, first.value), first.mask | second.mask)


def _seen(model: pc.JointModel, given: dict[str, pc.Observed], seen: str) -> dict[str, pc.Observed]:
    """What is given, of pictures only the part that is seen."""
    pictures = [name for name in given if is_picture(model.variables[name])]
    if seen != "all" and not pictures:
        raise InputError(f"--seen {seen} needs a picture among what is given")
    found = dict(given)
    for name in pictures:
        shape = model.variables[name].event_shape
        found[name] = pc.Observed(given[name].value, _part(shape[-2:], seen).expand(shape))
    return found


def _part(size: tuple[int, ...], seen: str) -> Tensor:
    """Which places of a picture of this size are seen, `[height, width]`."""
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
        _must_exist(name, path)
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
    _must_exist(name, path)
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
    except (OSError, ValueError, SyntaxError, TypeError) as error:
        raise InputError(f"{name}={path} cannot be read: {error}") from None


def _must_exist(name: str, path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{name}={path}: there is no such file")


def _rows(value: Tensor, rows: int) -> Tensor:
    return value.expand(rows, *value.shape[1:]) if len(value) == 1 else value
