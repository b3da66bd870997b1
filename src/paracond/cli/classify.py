"""`paracond classify`: decisions of a saved model, as a table."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torch import Tensor

import paracond as pc
from paracond.cli.given import ModelConfig, context_rows, seen_parts
from paracond.cli.places import free, require_free
from paracond.data import InputError
from paracond.metrics.scores import accuracy
from paracond.serialization import replace_file


@dataclass(frozen=True)
class Config(ModelConfig):
    """Decide a group of a saved model by its maximum marginal.

    Writes OUT, a table with one row per question: the name of the file it came from, if it did, and for a class the
    decision and its probability, for binary values the probabilities.
    """

    dataset: Literal["mnist", "fashion"] | None = None
    """classify the test images of this data set, and print the accuracy"""
    data: Path | None = None
    """folder with the IDX files"""
    want: str = "c"
    """the group to decide"""
    sweeps: int | None = None
    """length of chains that never begin anew, where a chain is needed (if not given: tours, until errors are small)"""
    out: Path = field(default_factory=lambda: free(Path("runs/decisions.csv")))
    """the table (if not given, the first of runs/decisions.csv, runs/decisions-2.csv, ... that is not there yet)"""

    @property
    def folder(self) -> Path:
        return self.out.parent


def main(config: Config) -> str:
    if config.out.is_dir():
        table = config.out / "decisions.csv"
        raise InputError(f"--out {config.out} is a folder: give the name of a table, such as {table}")
    require_free([config.out], config.overwrite)
    _check(config)
    model, names, given = config.load()
    files = given.files
    if config.dataset is None:
        known, truth = given.values, None
    else:
        known, truth = _with_images(model, given.values, config)
    if not known:
        raise InputError("nothing is given: say --given NAME=VALUE, or --dataset")
    _check_wanted(model, known, config.want)
    seen = seen_parts(model, known, config.seen)
    config.remark_polarity(model, given, seen)
    some = context_rows(model, known, min(64, max(len(each.value) for each in known.values())))
    pc.Engine(model.device).choose_threads(lambda: pc.sample(model, **some, sweeps=1))
    stop = None if config.sweeps is None else pc.Sweeps(config.sweeps)
    answer = pc.query(model, seen, [config.want], stop=stop, seed=config.seed)
    decided = answer.decisions[config.want].cpu()
    columns, cells = _cells(model, answer, config.want, names)
    where = _files(files, len(decided))
    if where:
        columns, cells = ["file", *columns], [[file, *row] for file, row in zip(where, cells, strict=True)]
    _write_table(config.out, columns, cells)
    text = f"{len(decided)} decisions: {config.out}"
    return text if truth is None else f"{text}\naccuracy: {accuracy(decided, truth):.4f}"


def _check(config: Config) -> None:
    """Refuse numbers that are impossible, and options that would be ignored."""
    config.check_counts({"--sweeps": (config.sweeps, 1)})
    if config.data is not None and config.dataset is None:
        raise InputError("--data is the folder of a data set, and no --dataset is given")


def _with_images(
    model: pc.JointModel, given: dict[str, pc.Observed], config: Config
) -> tuple[dict[str, pc.Observed], Tensor | None]:
    """What is given and the images of the data set, and the truth about the wanted group."""
    if "x" not in model.names:
        raise InputError(f"--dataset gives images x, and the model has {', '.join(model.names)}: use --given")
    if "x" in given:
        raise InputError("--given and --dataset both say x: give one of them")
    assert config.dataset is not None
    test = getattr(pc.datasets, config.dataset)("test", folder=config.data)
    return {**given, "x": pc.Observed(test.state["x"])}, test.state.get(config.want)


def _check_wanted(model: pc.JointModel, known: dict[str, pc.Observed], want: str) -> None:
    """Refuse a group that is given, or that is neither a class nor flat binary values."""
    model.check_names([want])
    if want in known and known[want].mask is None:
        raise InputError(f"--given says {want!r}, which is the group to decide: leave it out, or name another --want")
    family = model.variables[want]
    if not _is_class(family) and not (isinstance(family, pc.Binary) and len(family.event_shape) == 1):
        raise InputError(f"{want!r} is {family}: only a class or flat binary values are decided here")


def _is_class(family: pc.Family) -> bool:
    return isinstance(family, pc.Categorical) and not family.event_shape


def _cells(
    model: pc.JointModel, answer: pc.Answer, want: str, names: dict[str, list[str]]
) -> tuple[list[str], list[list[str]]]:
    """The columns of the table, and its rows."""
    probabilities, decided = answer.probabilities[want].cpu(), answer.decisions[want].cpu()
    if _is_class(model.variables[want]):
        pairs = zip(decided.tolist(), probabilities.amax(-1).tolist(), strict=True)
        return ["decision", "probability"], [[str(k), f"{p:.4f}"] for k, p in pairs]
    columns = names.get(want, [f"{want}[{k}]" for k in range(decided.shape[1])])
    return columns, [[f"{p:.4f}" for p in row] for row in probabilities.tolist()]


def _files(files: dict[str, list[str]], rows: int) -> list[str]:
    """The names of the files that every row came from; empty where none did."""
    full = [names * rows if len(names) == 1 else names for names in files.values()]
    return [" ".join(dict.fromkeys(row)) for row in zip(*full, strict=True)]


def _write_table(path: Path, columns: list[str], rows: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["row", *columns])
    table.writerows([k, *row] for k, row in enumerate(rows))
    replace_file(path, text.getvalue().encode(errors="surrogateescape"))
