"""Settings that experiments share. tyro turns them into command-line options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from paracond.data import InputError, at_least
from paracond.experiments.common.results import portable

#: A name that `choose_device` takes.
Device = Annotated[str, tyro.conf.arg(metavar="auto|cpu|cuda|cuda:N")]


@dataclass(frozen=True)
class ExperimentConfig:
    """Settings of every experiment."""

    out: Path = Path("runs")
    device: Device = "auto"
    seed: int = 0
    quick: bool = False
    """a smoke test of under a minute, too small to reach the goals"""

    def count(self, full: int, quick: int = 4) -> int:
        """`full`, or `quick` in a quick run."""
        return quick if self.quick else full


@dataclass(frozen=True)
class ResumableConfig(ExperimentConfig):
    """Settings of experiments that can stop after some minutes and continue later."""

    resume: bool = False
    """continue from the checkpoints and measured parts in OUT"""
    minutes: float | None = None
    """stop training when the run has taken this long; --resume continues it"""
    compile: bool = True
    """fuse the networks with torch.compile (on CUDA only): takes a minute once, then updates take a third less time"""


@dataclass(frozen=True)
class PresetConfig(ResumableConfig):
    """Settings of experiments that train one main model from a preset and then measure it."""

    preset: Literal["best", "paper"] = "best"
    model: Path | None = None
    """measure this saved model instead of training one"""
    updates: int | None = None
    """number of updates, instead of the preset's"""


def check_sizes(config: Any, more: Mapping[str, tuple[int, int]] | None = None) -> None:
    """Refuse impossible numbers before any data is loaded. `more`: further options, each with its value and minimum."""
    updates = 1 if config.updates is None else config.updates
    at_least({"--updates": (updates, 1), "--generated": (config.generated, 2), **(more or {})})
    if config.minutes is not None and not config.minutes >= 0:
        raise InputError(f"--minutes must not be negative, found {config.minutes}")


def plain(config: Any) -> dict:
    """The settings as JSON, without folders of this machine."""
    return {key: portable(value) if isinstance(value, Path) else value for key, value in asdict(config).items()}
