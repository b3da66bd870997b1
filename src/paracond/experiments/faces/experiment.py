"""The experiments of section 5.4 on one model of faces: train it once on all faces, then ask it in every direction.

This module trains the model. `directions` has the measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

import paracond as pc
from paracond.data import InputError
from paracond.experiments.common.config import check_sizes
from paracond.experiments.common.milestones import Milestones, train
from paracond.experiments.common.names import write_names
from paracond.experiments.common.pictures import curve
from paracond.experiments.common.results import Outcome
from paracond.experiments.faces.directions import DIRECTIONS, TRIAL, progress
from paracond.experiments.faces.model import BEST, PAPER, Design, finished, make_learner, small
from paracond.experiments.faces.runner import PAPER_RESULTS, Config, FacesRunner, open_runner

PRESETS = {"best": BEST, "paper": PAPER}
MILESTONES = (60, 120, 180, 240, 300, 420, 600, 900, 1800, 3600)  # seconds of training at which to measure


def main(config: Config) -> Outcome:
    check_sizes(config)
    design = chosen(config)
    runner = open_runner(config, design)
    if config.model is None:
        learned: list[pc.JointModel] = []
        runner.measure("training", lambda: learned.append(trained(runner, design)))
        model = learned[0]
    else:
        model = saved(config, runner.device)
        runner.recall("training")
    parts: dict[str, Callable[[], None]] = {part.__name__: partial(part, runner, model) for part in DIRECTIONS}
    return runner.run(parts)


def keep(model: pc.JointModel, runner: FacesRunner) -> None:
    """Save the model in files of at most 8 MiB, with the names of its attributes for the command line."""
    folder = runner.config.out / "model"
    model.save(folder, dtype=torch.bfloat16, max_bytes=8 * 2**20)
    write_names(folder, {"c": runner.names})


def chosen(config: Config) -> Design:
    design = small(PRESETS[config.preset]) if config.quick else PRESETS[config.preset]
    return design if config.updates is None else replace(design, updates=config.updates)


def saved(config: Config, device: str) -> pc.JointModel:
    assert config.model is not None
    model = pc.JointModel.load(config.model).to(device)
    missing = [name for name in ("x", "s", "c") if name not in model.names]
    if missing or model.variables["x"].event_shape != (3, 64, 64):
        raise InputError(f"{config.model} is no model of faces: it has {', '.join(model.names)}")
    return model


# --- training ---------------------------------------------------------------------------------------------------


def trained(runner: FacesRunner, design: Design) -> pc.JointModel:
    """Train the main model and measure it on the way. Keep the last milestone that draws well: long trainings may
    become worse."""
    on_held_out = replace(runner, test=runner.held_out)  # test faces are for the end

    def measure(model: pc.JointModel) -> dict[str, float]:
        model = finished(design, model, runner.train, runner.config.seed)
        numbers = progress(on_held_out, model)
        if draws_well(numbers, milestones.points):
            keep(model, runner)
        return numbers

    milestones = Milestones(measure, runner.config.out / "milestones.json", MILESTONES, runner.resume)
    learner = make_learner(design, runner.train, runner.engine(), runner.config.seed)
    train(learner, design.updates, runner.config.out / "checkpoint", runner, milestones)
    kept = last_kept(milestones.points)
    about = f"{learner.step_count:,} updates; kept is the model after {kept['updates']:,}, the last that drew well"
    runner.add("training_minutes", milestones.trained / 60, "lower", about)
    names = [name for name in ("attribute_accuracy", "f1", "fid") if name in kept]
    caption = f"Held-out training faces, and the FID of {TRIAL} images, along the training."
    runner.show("Learning", caption, curve(milestones.points, PAPER_RESULTS, names))
    runner.details["milestones"] = milestones.points
    return pc.JointModel.load(runner.config.out / "model").to(runner.device)


def draws_well(numbers: dict[str, float], earlier: Sequence[dict[str, float]]) -> bool:
    """Whether no earlier milestone has a FID smaller by more than a tenth. Other measures improve with time, so without
    a FID the last milestone is the best."""
    return all(numbers.get("fid", 0.0) <= 1.1 * each.get("fid", 0.0) for each in earlier)


def last_kept(points: Sequence[dict[str, float]]) -> dict[str, float]:
    return [point for k, point in enumerate(points) if draws_well(point, points[:k])][-1]
