"""`paracond sample`: draws from a saved model, and edits of them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from torch import Tensor

import paracond as pc
from paracond.cli.given import Given, ModelConfig, context_rows, read_given, seen_part, seen_parts
from paracond.cli.pictures import Files, is_picture
from paracond.cli.places import free
from paracond.data import InputError
from paracond.guidance import SWEEPS, WEIGHT, check_weight

ON_CPU = 50  # rows at a time: activations of an image network for more rows do not stay in the cache
GUIDANCE = f"how much more the edited coordinates count than they did in learning ({WEIGHT:g} if not given)"
EDIT_SWEEPS = f"most sweeps of an edit, whether it shows or not ({SWEEPS} if not given)"


@dataclass(frozen=True)
class Config(ModelConfig):
    """Draw from a saved model, given any part of it.

    Writes OUT/samples.npz, and samples.png where there are images: one image with its own pixels, several as a sheet.
    """

    rows: int | None = None
    """number of draws, unless the given values have several rows (100 if not given, or 1 for a whole picture)"""
    sweeps: int | None = None
    """length of the chain (if not given, draws are exact: chains begin anew as the model says)"""
    edit: tuple[str, ...] = ()
    """coordinates of a binary group to change afterwards, as NAME[COORDINATE]=VALUE: the chain continues with them
    until they show, and OUT/edited.npz and edited.png are written too"""
    guidance: Annotated[float | None, tyro.conf.arg(help=GUIDANCE)] = None
    edit_sweeps: Annotated[int | None, tyro.conf.arg(help=EDIT_SWEEPS)] = None
    separate: bool = False
    """write every image into a file of its own too, OUT/samples/NUMBER.png, which can be given again"""
    out: Path = field(default_factory=lambda: free(Path("runs/sample")))
    """folder (if not given, the first of runs/sample, runs/sample-2, ... that is not there yet)"""


def main(config: Config) -> str:
    _check(config)
    model, names, given = config.load()
    rows = _row_count(model, given, config)
    values = {name: pc.Observed(_rows(name, each.value, rows), each.mask) for name, each in given.values.items()}
    seen, change = seen_parts(model, values, config.seen), _change(model, config.edit, names, rows)
    if values:
        model.validate({name: each.value for name, each in values.items()})  # refuses bad values before time is spent
    before, after = (Files(model, config.out, title, rows, config.separate) for title in ("samples", "edited"))
    for each in [before] if change is None else [before, after]:
        each.require_free(config.overwrite)
    config.remark_polarity(model, given, seen)
    some = context_rows(model, values, min(rows, 32))
    engine = pc.Engine.fastest(model.device, lambda engine: pc.sample(model, **some, sweeps=1, engine=engine))
    chunk = None if model.device.type == "cuda" else ON_CPU
    options: dict[str, Any] = {"engine": engine, "seed": config.seed, "chunk": chunk}
    state = pc.sample(model, seen, rows=rows, sweeps=config.sweeps, **options)
    pictures = [name for name in values if is_picture(model.variables[name])]
    parts = {name: seen_part(model.variables[name].event_shape[-2:], config.seen) for name in pictures}
    files = before.write(state, parts)
    if change is not None:
        weight = WEIGHT if config.guidance is None else config.guidance
        sweeps = SWEEPS if config.edit_sweeps is None else config.edit_sweeps
        edited = pc.edited(model, state, *change, **options, weight=weight, sweeps=sweeps)
        files += after.write(edited, {})
    return "\n".join(f"written: {path}" for path in files)


def _check(config: Config) -> None:
    """Refuse numbers that are impossible, and options that would be ignored."""
    sweeps = {"--sweeps": (config.sweeps, 0), "--edit-sweeps": (config.edit_sweeps, 0)}
    config.check_counts({"--rows": (config.rows, 1), **sweeps})
    if config.guidance is not None:
        check_weight(config.guidance)
    options = {"--guidance": config.guidance, "--edit-sweeps": config.edit_sweeps}
    unused = [name for name, value in options.items() if value is not None and not config.edit]
    if unused:
        raise InputError(f"{unused[0]} is about --edit, which is not given")


def _row_count(model: pc.JointModel, given: Given, config: Config) -> int:
    """The number of given rows if there are several, else --rows, else its default."""
    several = {name: len(each.value) for name, each in given.values.items() if len(each.value) > 1}
    wrong = [name for name, count in several.items() if config.rows not in (None, count)]
    if wrong:
        raise InputError(
            f"--rows {config.rows}, but {wrong[0]!r} is given in {several[wrong[0]]} rows: leave out --rows"
        )
    whole = config.seen == "all" and any(is_picture(model.variables[name]) for name in given.values)
    rows = max(several.values(), default=config.rows or (1 if whole else 100))
    size = 4 * rows * sum(math.prod(family.event_shape) for family in model.variables.values())
    if size > (memory := _memory()):
        raise InputError(
            f"--rows {rows}: so many draws take {size / 1e9:,.1f} GB, and there are {memory / 1e9:,.1f} GB"
        )
    return rows


def _memory() -> float:
    """The bytes of memory of this machine."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not on POSIX
        return math.inf


def _change(
    model: pc.JointModel, words: tuple[str, ...], names: dict[str, list[str]], rows: int
) -> tuple[str, pc.Observed] | None:
    """The group to edit and its new values, or None."""
    given = read_given(model, words, names)
    found = given.values
    if not found:
        return None
    if given.files:
        raise InputError(f"--edit takes numbers, found a file for {next(iter(given.files))!r}")
    (name, change), *others = found.items()
    if others or not isinstance(model.variables[name], pc.Binary):
        listed = ", ".join(f"{group}: {model.variables[group]}" for group in found)
        raise InputError(f"--edit changes one binary group, found {listed}")
    if len(change.value) not in (1, rows):
        raise InputError(f"--edit has {len(change.value)} values of {name!r} for {rows} rows")
    model.validate({name: change.value})
    return name, pc.Observed(change.value, None if change.mask is None else change.mask[0])


def _rows(name: str, value: Tensor, rows: int) -> Tensor:
    if len(value) not in (1, rows):
        raise InputError(f"{name!r} is given in {len(value)} rows, but another group in {rows}")
    return value.expand(rows, *value.shape[1:])
