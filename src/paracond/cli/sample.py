"""`paracond sample`: draws from a saved model, and edits of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import paracond as pc
from paracond.cli.given import ModelConfig, context_rows, given_values, seen_part, seen_parts
from paracond.cli.pictures import is_picture, written
from paracond.data import InputError, at_least
from paracond.guidance import SWEEPS, WEIGHT, check_weight

ON_CPU = 50  # rows at a time: activations of an image network for more rows do not stay in the cache


@dataclass(frozen=True)
class Config(ModelConfig):
    """Draw from a saved model, given any part of it.

    Writes OUT/samples.npz, and samples.png where there are images.
    """

    rows: int | None = None
    """number of draws, unless the given values have several rows (100 if not given, or 1 for a whole picture)"""
    sweeps: int | None = None
    """length of the chain (if not given, draws are exact: chains begin anew as the model says)"""
    edit: tuple[str, ...] = ()
    """coordinates of a binary group to change afterwards, as NAME[COORDINATE]=VALUE: the chain continues with them
    until they show, and OUT/edited.npz and edited.png are written too"""
    guidance: float = WEIGHT
    """how much more the edited coordinates count than they did in learning"""
    edit_sweeps: int = SWEEPS
    """most sweeps of an edit, whether it shows or not"""
    out: Path = Path("runs/sample")
    """folder"""


def main(config: Config) -> str:
    most = {"--sweeps": (config.sweeps or 0, 0), "--edit-sweeps": (config.edit_sweeps, 0)}
    at_least({"--rows": (1 if config.rows is None else config.rows, 1), **most})
    check_weight(config.guidance)
    model, names, given = config.load()
    rows = _row_count(model, given, config)
    given = {name: pc.Observed(_rows(each.value, rows), each.mask) for name, each in given.items()}
    seen, change = seen_parts(model, given, config.seen), _change(model, config.edit, names, rows)
    if given:
        model.validate({name: each.value for name, each in given.items()})  # refuses bad values before time is spent
    some = context_rows(model, given, min(rows, 32))
    engine = pc.Engine.fastest(model.device, lambda engine: pc.sample(model, **some, sweeps=1, engine=engine))
    chunk = None if model.device.type == "cuda" else ON_CPU
    options: dict[str, Any] = {"engine": engine, "seed": config.seed, "chunk": chunk}
    state = pc.sample(model, seen, rows=rows, sweeps=config.sweeps, **options)
    pictures = [name for name in given if is_picture(model.variables[name])]
    parts = {name: seen_part(model.variables[name].event_shape[-2:], config.seen) for name in pictures}
    files = written(model, state, config.out, "samples", parts)
    if change is not None:
        options |= {"weight": config.guidance, "sweeps": config.edit_sweeps}
        after = pc.edited(model, state, *change, **options)
        files += written(model, after, config.out, "edited", {})
    return "\n".join(f"written: {path}" for path in files)


def _row_count(model: pc.JointModel, given: dict[str, pc.Observed], config: Config) -> int:
    """The number of given rows if there are several, else --rows, else its default."""
    several = [len(each.value) for each in given.values() if len(each.value) > 1]
    whole = config.seen == "all" and any(is_picture(model.variables[name]) for name in given)
    return several[0] if several else config.rows or (1 if whole else 100)


def _change(
    model: pc.JointModel, words: tuple[str, ...], names: dict[str, list[str]], rows: int
) -> tuple[str, pc.Observed] | None:
    """The group to edit and its new values, or None."""
    found = given_values(model, words, names)
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


def _rows(value: Tensor, rows: int) -> Tensor:
    return value.expand(rows, *value.shape[1:]) if len(value) == 1 else value
