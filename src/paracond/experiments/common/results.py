"""Results of an experiment: metrics with the paper's numbers, our goals and their origin, as JSON and as a table."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from paracond.data import InputError

COLUMNS = ("metric", "measured", "goal", "paper", "reached")


@dataclass(frozen=True)
class Metric:
    """One number. `goal` is the value to reach, in the direction of `better`; `paper` is the value in the paper."""

    name: str
    value: float
    better: str  # "lower" or "higher"
    std: float | None = None
    paper: float | None = None
    goal: float | None = None
    about: str = ""

    @property
    def reached(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.better == "lower" else self.value >= self.goal

    def cells(self) -> list[str]:
        """One row of a table with the columns COLUMNS."""
        spread = "" if self.std is None else f" ± {self.std:.2g}"
        goal = "" if self.goal is None else f"{'<=' if self.better == 'lower' else '>='} {self.goal:.4g}"
        paper = "" if self.paper is None else f"{self.paper:g}"
        return [self.name, f"{self.value:.4g}{spread}", goal, paper, {None: "", True: "yes", False: "no"}[self.reached]]


@dataclass
class Outcome:
    """All results of an experiment. A quick run is a smoke test: its metrics have no goals."""

    experiment: str
    metrics: list[Metric]
    seconds: float
    config: dict = field(default_factory=dict)
    device: str = "cpu"
    details: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.config.get("quick"):
            self.metrics = [replace(metric, goal=None) for metric in self.metrics]

    def record(self) -> dict:
        return {
            "experiment": self.experiment,
            **origin(self.device),
            "date": time.strftime("%Y-%m-%d"),
            "seconds": round(self.seconds, 2),
            "config": self.config,
            "metrics": [_finite(asdict(metric)) for metric in self.metrics],
            **self.details,
        }

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "results.json"
        path.write_text(json.dumps(self.record(), indent=1) + "\n")
        return path

    def show(self) -> None:
        table = Table(title=f"{self.experiment}, {self.seconds:.0f} s")
        for column in COLUMNS:
            table.add_column(column)
        for *cells, reached in (metric.cells() for metric in self.metrics):
            table.add_row(*cells, "[bold]no[/bold]" if reached == "no" else reached)
        Console(width=None if sys.stdout.isatty() else 100).print(table)


def _finite(record: dict) -> dict:
    """JSON has no infinity: a value that was never reached is null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}


def command() -> str:
    """The command line as a person would type it, without folders of this machine."""
    script = Path(sys.argv[0])
    own = script.suffix == ".py" and script.stem not in ("__main__", "main")  # a script of research/
    return " ".join([f"python {portable(script)}" if own else "paracond", *(portable(word) for word in sys.argv[1:])])


def portable(word: str | Path) -> str:
    """A path inside the current folder as a relative one, any other path as DIR; other words stay as they are.

    Words may be NAME=PATH. Words that are absolute, begin with ~ or lead upwards count as paths.
    """
    text = str(word).removeprefix(names := (re.match(r"(?:[^/~=]*=)*", str(word)) or [""])[0])
    path, here = Path(text), Path.cwd()
    if not (path.is_absolute() or text.startswith("~") or ".." in path.parts):
        return str(word)
    place = Path(os.path.abspath(path.expanduser()))
    return names + (str(place.relative_to(here)) if place.is_relative_to(here) else "DIR")


def commit() -> str | None:
    """The commit of the running source tree, with + if it has changes; None for a copy without history.
    $PARACOND_COMMIT overrides it, for a copy inside the history of another project."""
    if os.environ.get("PARACOND_COMMIT"):
        return os.environ["PARACOND_COMMIT"]
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", here, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = "+" if git("status", "--porcelain", "--", ".") else ""
        return git("rev-parse", "--short=12", "HEAD") + changed
    except (OSError, subprocess.CalledProcessError):
        return None


def origin(device: str) -> dict[str, str | None]:
    """The command, commit, hardware and torch version that made the numbers."""
    versions = {"commit": commit(), "hardware": hardware(device), "torch": torch.__version__}
    return {"command": command(), **versions}


def hardware(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{_processor()}, {os.cpu_count()} cores"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def choose_device(wanted: str) -> str:
    """The device to use, "cpu" or "cuda". "auto" is CUDA if there is a CUDA device, else the CPU; "cuda:1" makes the
    second CUDA device the one that "cuda" means from now on."""
    number = re.fullmatch(r"cuda(?::([0-9]{1,4}))?", wanted)
    if number is None and wanted not in ("auto", "cpu"):
        raise InputError(f"--device must be auto, cpu, cuda or cuda:NUMBER, found {wanted!r}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number is None:
        return "cuda" if wanted == "auto" and count else "cpu"
    if not count:
        raise InputError(f"--device {wanted}, but torch finds no CUDA device; use --device cpu or auto")
    if number[1] is not None:
        if int(number[1]) >= count:
            raise InputError(f"--device {wanted}, but the CUDA devices are cuda:0 to cuda:{count - 1}")
        torch.cuda.set_device(int(number[1]))
    return "cuda"
