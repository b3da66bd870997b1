"""`paracond classify`: decisions of a saved model, as a table."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import paracond as pc
from paracond.cli.given import ModelConfig, context_rows, seen_parts
from paracond.data import InputError, at_least
from paracond.metrics.scores import accuracy


@dataclass(frozen=True)
class Config(ModelConfig):
    """Decide a group of a saved model by its maximum marginal.

    Writes OUT, a table with one row per question: for a class the decision and its probability, for binary values the
    probabilities.
    """

    dataset: Literal["mnist", "fashion"] | None = None
    """classify the test images of this data set, and print the accuracy"""
    data: Path | None = None
    """folder with the IDX files"""
    want: str = "c"
    """the group to decide"""
    sweeps: int | None = None
    """length of chains that never begin anew, where a chain is needed (if not given: tours, until errors are small)"""
    out: Path = Path("runs/decisions.csv")
    """the table"""

    @property
    def folder(self) -> Path:
        return self.out.parent


def main(config: Config) -> str:
    if config.out.is_dir():
        table = config.out / "decisions.csv"
        raise InputError(f"--out {config.out} is a folder: give the name of a table, such as {table}")
    at_least({"--sweeps": (1 if config.sweeps is None else config.sweeps, 1)})
    model, names, given = config.load()
    truth, wanted = None, given.get(config.want)
    if wanted is not None and wanted.mask is None:
        raise InputError(
            f"--given says {config.want!r}, which is the group to decide: leave it out, or name another --want"
        )
    if config.dataset is not None:
        if "x" not in model.names:
            raise InputError(f"--dataset gives images x, and the model has {', '.join(model.names)}: use --given")
        if "x" in given:
            raise InputError("--given and --dataset both say x: give one of them")
        test = getattr(pc.datasets, config.dataset)("test", folder=config.data)
        given["x"], truth = pc.Observed(test.state["x"]), test.state.get(config.want)
    if not given:
        raise InputError("nothing is given: say --given NAME=VALUE, or --dataset")
    model.check_names([config.want])
    family = model.variables[config.want]
    one_class = isinstance(family, pc.Categorical) and not family.event_shape
    if not one_class and not (isinstance(family, pc.Binary) and len(family.event_shape) == 1):
        raise InputError(f"{config.want!r} is {family}: only a class or flat binary values are decided here")
    some = context_rows(model, given, min(64, max(len(each.value) for each in given.values())))
    pc.Engine(model.device).choose_threads(lambda: pc.sample(model, **some, sweeps=1))
    seen, stop = seen_parts(model, given, config.seen), None if config.sweeps is None else pc.Sweeps(config.sweeps)
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
