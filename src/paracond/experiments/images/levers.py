"""Which levers matter for a model of images: one design, changed in one way at a time, each trained equally long.

Every variant is measured in full (see `images`): reconstructions bound generation, the chain from data adds drift, the
chains from the start and from random values add mixing; bits and active coordinates tell a collapse.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import paracond as pc
from paracond.data import InputError, at_least
from paracond.experiments.common.results import ExperimentConfig, Outcome, plain
from paracond.experiments.images import experiment as images_experiment
from paracond.experiments.images import report as pictures
from paracond.experiments.images.experiment import TRIAL, Session
from paracond.experiments.images.model import Config as ImagesConfig
from paracond.experiments.images.model import Design, bits, make_learner, quality, shown, small, test_accuracy, usage
from paracond.experiments.images.presets import EXPERIMENTS

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
class Config(ExperimentConfig):
    """Which levers matter for a model of images: one change at a time."""

    out: Path = Path("runs/levers")
    dataset: Literal["mnist", "fashion"] = "fashion"
    data: Path | None = None
    """folder with the IDX files"""
    updates: int = 20_000
    only: tuple[str, ...] = tuple(CHANGES)
    """which changes"""
    compile: bool = False


def main(config: Config) -> Outcome:
    if not config.only:
        raise InputError(f"--only names no lever; there are {', '.join(CHANGES)}")
    at_least({"--updates": (config.updates, 1)})
    unknown = [name for name in config.only if name not in CHANGES]
    if unknown:
        raise InputError(f"no lever is called {unknown[0]!r}; there are {', '.join(CHANGES)}")
    began = time.perf_counter()
    experiment = EXPERIMENTS[config.dataset]
    common = ImagesConfig(out=config.out, device=config.device, seed=config.seed, quick=config.quick, data=config.data)
    base = replace(experiment.presets["best"], updates=config.updates)
    session = images_experiment.open_session(experiment, replace(common, compile=config.compile), base)
    for name in config.only:
        try_out(session, name, replace(base, **CHANGES[name]))
        outcome = Outcome("levers", session.metrics, time.perf_counter() - began, plain(config), session.device)
        outcome.write(config.out)  # each time: a run that is stopped has measured the levers before
    about = f"{config.dataset}, {config.updates} updates each, changed in one way at a time from {base}"
    pictures.page("Which levers matter", about, outcome, session.figures).write(config.out)
    return outcome


def try_out(session: Session, name: str, design: Design) -> None:
    design = small(design) if session.config.quick else design
    learner = make_learner(design, session.train, session.engine(), session.config.seed)
    began = time.perf_counter()
    model = learner.fit(design.updates)
    learner.engine.synchronise()
    found = {"seconds": time.perf_counter() - began, "accuracy": test_accuracy(model, session.test)}
    latents = usage(model, session.test)
    found |= {"bits": bits(latents), "active": float(sum(u.count for u in latents.values()))}
    if session.fid is not None:
        found |= quality(model, session.train, session.fid, TRIAL)
    for metric, value in found.items():
        better = "higher" if metric in ("accuracy", "bits", "active") else "lower"
        session.add(f"{name}_{metric}", value, better)
    print(f"  {name}: " + ", ".join(f"{metric} {value:.5g}" for metric, value in found.items()), flush=True)
    _show(session, name, model)


def _show(session: Session, name: str, model: pc.JointModel) -> None:
    classes = session.train.state["c"][:20].to(session.device)
    drawn = pc.sample(model, {"c": classes}, sweeps=5 if session.config.quick else 100)
    session.show(name, "Means after 100 sweeps.", pictures.grid([shown(model, drawn).cpu()]))
