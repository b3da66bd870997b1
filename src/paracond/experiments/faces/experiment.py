"""The experiments of section 5.4 on one model of faces: train it once on all faces, then ask it in every direction.

This module trains and times the model. `directions` has the measures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

import paracond as pc
from paracond.data import InputError
from paracond.experiments.common import timing
from paracond.experiments.common.config import check_sizes
from paracond.experiments.common.milestones import Milestones, train
from paracond.experiments.common.pictures import curve
from paracond.experiments.common.results import Outcome
from paracond.experiments.faces import tasks
from paracond.experiments.faces.directions import DIRECTIONS, TRIAL, progress
from paracond.experiments.faces.model import BEST, PAPER, Design, finished, make_learner, small
from paracond.experiments.faces.runner import PAPER_RESULTS, Config, FacesRunner, open_runner

PRESETS = {"best": BEST, "paper": PAPER}
LOOKS = (60, 120, 180, 240, 300, 420, 600, 900, 1800, 3600)  # seconds of training at which to measure


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
    if runner.device == "cuda" and not config.quick and config.stopwatch:
        parts["stopwatch"] = partial(stopwatch, runner, design, model)
    return runner.run(parts)


def keep(model: pc.JointModel, runner: FacesRunner) -> None:
    """Save the model in files of at most 8 MiB, with the names of its attributes for the command line."""
    folder = runner.config.out / "model"
    model.save(folder, dtype=torch.bfloat16, max_bytes=8 * 2**20)
    (folder / "names.json").write_text(json.dumps({"c": list(runner.names)}))


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

    def look(model: pc.JointModel) -> dict[str, float]:
        model = finished(design, model, runner.train, runner.config.seed)
        numbers = progress(on_held_out, model)
        if draws_well(numbers, milestones.points):
            keep(model, runner)
        return numbers

    milestones = Milestones(look, runner.config.out / "milestones.json", LOOKS, runner.resume)
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


# --- time -------------------------------------------------------------------------------------------------------


def stopwatch(runner: FacesRunner, design: Design, model: pc.JointModel) -> None:
    """Time updates at batch 64 with the paper's chain and completion, and with the two ideas of appendix D."""
    paper = replace(design, batch_size=64, chain_length=(16.0, 16.0), completion_steps=10, parallel=True, warm=())

    def maker(d: Design) -> Callable[[pc.Engine], pc.Learner]:
        return lambda engine: make_learner(d, runner.train, engine, 0)

    def milliseconds(d: Design) -> float:
        return timing.fast_update(maker(d), runner.config.compile)[0]

    times = timing.update_times(maker(paper), runner.config.compile)
    timing.add_times(runner, times, "batch 64, expected chain length 16, 10 completion steps")
    before = milliseconds(replace(paper, parallel=False))
    runner.add("update_ms_before", before, "lower", "completion before training instead of in parallel")
    warm = milliseconds(replace(paper, completion_steps=2, warm=("s", "c", "y", "z"), mirrored=False, shifts=0))
    runner.add("update_ms_warm", warm, "lower", "2 completion steps instead of 10, from cached values")
    own = milliseconds(design)
    runner.add("update_ms_own", own, "lower", f"batch {design.batch_size}, the settings of this model")
    began = time.perf_counter()
    tasks.portraits(model, runner.attributes(30_000)).cpu()
    runner.add("minutes_30k_images", (time.perf_counter() - began) / 60, "lower", "100 sweeps, images back on the host")
