"""What an experiment measured: metrics beside the paper's numbers and our goals, as JSON and as a table."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table

from paracond.data import InputError


@dataclass(frozen=True)
class Metric:
    """One number. `goal` is what it must reach, in the direction of `better`; `paper` is what the paper reports."""

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


@dataclass
class Outcome:
    """All that an experiment leaves behind. A quick run is a smoke test: its metrics have no goals."""

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
        for column in ("metric", "measured", "goal", "paper", "reached"):
            table.add_column(column)
        for m in self.metrics:
            spread = "" if m.std is None else f" ± {m.std:.2g}"
            verdict = {None: "", True: "yes", False: "[bold]no[/bold]"}[m.reached]
            table.add_row(
                m.name, f"{m.value:.4g}{spread}", goal_text(m), "" if m.paper is None else f"{m.paper:g}", verdict
            )
        Console(width=None if sys.stdout.isatty() else 100).print(table)


def _finite(record: dict) -> dict:
    """JSON has no infinity: what was never reached is null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}


@dataclass(frozen=True)
class ExperimentConfig:
    """What the settings of all recipes have in common."""

    out: Path = Path("runs")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = 0
    quick: bool = False
    """a smoke version of under a minute: too small to reach the goals"""


@dataclass(frozen=True)
class BoxedConfig(ExperimentConfig):
    """Those of recipes whose training comes in time boxes."""

    resume: bool = False
    """go on from the checkpoints in OUT, with what was measured there of the same model"""
    minutes: float | None = None
    """end the training when the run has taken so long; --resume continues it"""
    compile: bool = True
    """fuse the networks with torch.compile (on CUDA only): a minute once, then updates take two thirds of the time"""


@dataclass(frozen=True)
class PresetConfig(BoxedConfig):
    """Those of recipes that train one main model, by a preset, and then ask it everything."""

    preset: Literal["best", "paper"] = "best"
    model: Path | None = None
    """take this saved model instead of training the main one"""
    updates: int | None = None
    """instead of the preset's number"""
    stopwatch: bool = True
    """also time updates and generation (on CUDA only, which must have nothing else to do)"""


def plain(config: Any) -> dict:
    """The settings of a recipe or a script as JSON."""
    return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(config).items()}


def goal_text(metric: Metric) -> str:
    if metric.goal is None:
        return ""
    return f"{'<=' if metric.better == 'lower' else '>='} {metric.goal:.4g}"


def command() -> str:
    """The command line as a person would type it."""
    program = Path(sys.argv[0]).name.replace("__main__.py", "paracond")
    return " ".join([program, *sys.argv[1:]])


def commit() -> str | None:
    """The commit of the source tree that runs, with + where it has changes, or None for a copy without its history.
    $PARACOND_COMMIT overrides it, for a copy whose history is another's."""
    told = os.environ.get("PARACOND_COMMIT")
    if told:
        return told
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
    """Where numbers come from."""
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
    """ "auto" is the accelerator where there is one."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda, but torch finds no CUDA device; use --device cpu or auto")
    return wanted
