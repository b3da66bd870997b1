"""Ablations of the image models: train one design with one change at a time, all for the same number of updates.

    python research/levers.py --dataset fashion --updates 8000 --only base maps_8 wide

The script writes OUT/results.json and OUT/report.html after each model; `--resume` continues a stopped run. Each model
gets the measures of `images.model.quality`, its accuracy, and the bits and number of active latents, which show a
collapse.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import tyro

import paracond as pc
from paracond.data import InputError, at_least
from paracond.experiments.common.config import ResumableConfig
from paracond.experiments.common.images import shown
from paracond.experiments.common.pictures import grid
from paracond.experiments.common.results import Outcome
from paracond.experiments.common.runner import Unfinished
from paracond.experiments.images import fashion, mnist
from paracond.experiments.images.experiment import TRIAL, ImageRunner, open_runner
from paracond.experiments.images.model import Design, bits, make_learner, quality, small, test_accuracy, usage

EXPERIMENTS = {"mnist": mnist.EXPERIMENT, "fashion": fashion.EXPERIMENT}
CHANGES: dict[str, dict] = {
    "base": {},
    "flat_64": {"latents": 64, "maps": 0},
    "flat_256": {"latents": 256, "maps": 0},
    "maps_4": {"latents": 0, "maps": 4},
    "maps_8": {"latents": 0, "maps": 8},
    "maps_16": {"latents": 0, "maps": 16},
    "maps_32": {"latents": 0, "maps": 32},
    "maps_and_flat": {"latents": 128, "maps": 16},
    "length_2": {"chain_length": (2.0, 2.0)},
    "length_4": {"chain_length": (4.0, 4.0)},
    "length_8": {"chain_length": (8.0, 8.0)},
    "length_16": {"chain_length": (16.0, 16.0)},
    "growing": {"chain_length": (4.0, 16.0)},
    "falling": {"chain_length": (16.0, 4.0)},
    "fast": {"learning_rate": 2e-3},
    "slow": {"learning_rate": 5e-4},
    "narrow": {"width": 64, "width_class": 64},
    "wide": {"width": 128},
    "deep": {"blocks": 2},
    "small_batch": {"batch_size": 512},
    "large_batch": {"batch_size": 2048},
    "class_reads_latents": {"class_reads_latents": True},
    "shifts": {"shifts": 2},
    "jitter": {"jitter": 2},
    "no_jitter": {"jitter": 0, "mirrored": False},
    "no_init": {"init": 0},
    "long_init": {"init": 192},
    "long_average": {"average": 0.9998},
}


@dataclass(frozen=True)
class Config(ResumableConfig):
    """Ablations of the image models: one change at a time."""

    out: Path = Path("runs/levers")
    dataset: Literal["mnist", "fashion"] = "fashion"
    data: Path | None = None
    """folder with the IDX files"""
    updates: int = 20_000
    only: tuple[str, ...] = tuple(CHANGES)
    """names of the changes"""
    compile: bool = False


def main(config: Config) -> Outcome:
    if not config.only:
        raise InputError(f"--only names no lever; there are {', '.join(CHANGES)}")
    at_least({"--updates": (config.updates, 1)})
    unknown = [name for name in config.only if name not in CHANGES]
    if unknown:
        raise InputError(f"no lever is called {unknown[0]!r}; there are {', '.join(CHANGES)}")
    experiment = EXPERIMENTS[config.dataset]
    base = replace(experiment.presets["best"], updates=config.updates)
    about = f"{config.dataset}, {config.updates} updates each, with one change at a time from {base}"
    runner = open_runner(experiment, config, base, "levers", "Which levers matter", about)
    parts = {name: partial(try_out, runner, name, replace(base, **CHANGES[name])) for name in config.only}
    return runner.run(parts, timed=True)


def try_out(runner: ImageRunner, name: str, design: Design) -> None:
    """Train one design and measure it."""
    design = small(design) if runner.config.quick else design
    learner = make_learner(design, runner.train, runner.engine(), runner.config.seed)
    began = time.perf_counter()
    model = learner.fit(design.updates)
    learner.engine.synchronise()
    numbers = {"seconds": time.perf_counter() - began, "accuracy": test_accuracy(model, runner.test)}
    latents = usage(model, runner.test)
    numbers |= {"bits": bits(latents), "active": float(sum(u.count for u in latents.values()))}
    if runner.fid is not None:
        numbers |= quality(model, runner.train, runner.fid, TRIAL)
    for metric, value in numbers.items():
        better = "higher" if metric in ("accuracy", "bits", "active") else "lower"
        runner.add(f"{name}_{metric}", value, better)
    print(f"  {name}: " + ", ".join(f"{metric} {value:.5g}" for metric, value in numbers.items()), flush=True)
    classes = runner.train.state["c"][:20].to(runner.device)
    drawn = pc.sample(model, {"c": classes}, sweeps=runner.count(100, 5))
    runner.show(name, "Means after 100 sweeps.", grid([shown(model, drawn).cpu()]))


if __name__ == "__main__":
    try:
        main(tyro.cli(Config)).show()
    except (InputError, Unfinished) as stop:
        raise SystemExit(str(stop)) from None
