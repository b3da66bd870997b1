"""`paracond classify`: decisions of a saved model, as a table."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

import paracond as pc
from paracond.cli.given import GIVEN, SEEN, context_rows, coordinate_names, given_values, seen_parts
from paracond.cli.registry import EXPERIMENTS
from paracond.data import InputError, at_least
from paracond.experiments.common.results import choose_device
from paracond.metrics.scores import accuracy


@dataclass(frozen=True)
class Config:
    """Decide a group of a saved model by its maximum marginal.

    Writes OUT, a table with one row per question: for a class the decision and its probability, for binary values the
    probabilities.
    """

    model: Annotated[Path, tyro.conf.Positional]
    given: Annotated[tuple[str, ...], tyro.conf.arg(help=GIVEN)] = ()
    seen: Annotated[str, tyro.conf.arg(help=SEEN)] = "all"
    dataset: Literal["mnist", "fashion"] | None = None
    """classify the test images of this data set, and print the accuracy"""
    data: Path | None = None
    """folder with the IDX files"""
    want: str = "c"
    """the group to decide"""
    sweeps: int | None = None
    """length of the chains, where they are needed (until they have converged if not given)"""
    out: Path = Path("runs/decisions.csv")
    """the table"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = 0

    @property
    def folder(self) -> Path:
        return self.out.parent


def main(config: Config) -> str:
    if config.out.is_dir():
        table = config.out / "decisions.csv"
        raise InputError(f"--out {config.out} is a folder: give the name of a table, such as {table}")
    at_least({"--sweeps": (1 if config.sweeps is None else config.sweeps, 1)})
    model = pc.JointModel.load(config.model).to(choose_device(config.device)).eval()
    names = coordinate_names(config.model)
    given, truth = given_values(model, config.given, names), None
    if config.dataset is not None:
        test = EXPERIMENTS[config.dataset].load().EXPERIMENT.load("test", folder=config.data)
        given["x"], truth = pc.Observed(test.state["x"]), test.state["c"]
    if not given:
        raise InputError("nothing is given: say --given NAME=VALUE, or --dataset")
    model.check_names([config.want])
    family = model.variables[config.want]
    one_class = isinstance(family, pc.Categorical) and not family.event_shape
    if not one_class and not (isinstance(family, pc.Binary) and len(family.event_shape) == 1):
        raise InputError(f"{config.want!r} is {family}: only a class or flat binary values are decided here")
    asked = context_rows(model, given, min(64, max(len(each.value) for each in given.values())))
    pc.Engine(model.device).settle(lambda: pc.sample(model, **asked, sweeps=1))
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
