"""`paracond train`: train the model of one of these experiments, and save it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

import paracond as pc
from paracond.data import at_least
from paracond.experiments.common.config import Device
from paracond.experiments.common.milestones import train
from paracond.experiments.common.results import choose_device
from paracond.experiments.common.runner import Unfinished
from paracond.experiments.images import fashion, mnist
from paracond.experiments.images.model import make_learner

MODULES = {"mnist": mnist, "fashion": fashion}


@dataclass(frozen=True)
class Config:
    """Train the model of an experiment and save it in OUT/model.

    OUT/checkpoint is what --resume continues from.
    """

    dataset: Annotated[Literal["mnist", "fashion"], tyro.conf.Positional]
    out: Path | None = None
    """folder (runs/DATASET-PRESET if not given)"""
    preset: Literal["best", "paper"] = "best"
    data: Path | None = None
    """folder with the IDX files"""
    labels: int | None = None
    """learn from this many labels only"""
    updates: int | None = None
    minutes: float | None = None
    """time box; --resume continues"""
    resume: bool = False
    compile: bool = False
    device: Device = "auto"
    seed: int = 0

    @property
    def folder(self) -> Path:
        return self.out or Path("runs") / f"{self.dataset}-{self.preset}"


def main(config: Config) -> str:
    experiment, device = MODULES[config.dataset].EXPERIMENT, choose_device(config.device)
    data = experiment.load("train", folder=config.data)
    if config.labels is not None:
        data = pc.datasets.keep_labels(data, config.labels, config.seed)
    design = experiment.presets[config.preset]
    if config.labels is not None:
        design = replace(design, **experiment.few_labels)
    if config.updates is not None:
        at_least({"--updates": (config.updates, 1)})
        design = replace(design, updates=config.updates)
    engine = pc.Engine(device, compile=config.compile and device == "cuda")
    learner = make_learner(design, data, engine, config.seed)
    try:
        train(learner, design.updates, config.folder / "checkpoint", config)
    except (Unfinished, KeyboardInterrupt):  # --resume continues; the model can be used already
        if learner.step_count:  # else nothing was learned or restored: a model that was saved before stays
            _save(learner, config.folder)
        raise
    _save(learner, config.folder)
    return f"done: {design.updates} updates"


def _save(learner: pc.Learner, folder: Path) -> None:
    learner.averaged.save(folder / "model", dtype=torch.bfloat16)
    print(f"model: {folder / 'model'}")
