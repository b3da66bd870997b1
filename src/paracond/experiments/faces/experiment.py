"""The experiments of section 5.4 on one model of faces: train once, on all that is known, then ask everything.

Training comes in time boxes (`--minutes`, `--resume`); what is measured (`faces_directions`) needs it to be done. Here
are the training, and how long updates and images take; what single choices are worth is in `faces_variants`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

import paracond as pc
from paracond.cli import given as use
from paracond.data import InputError, at_least
from paracond.experiments.common import timing
from paracond.experiments.common.results import Outcome
from paracond.experiments.faces import tasks
from paracond.experiments.faces.directions import DIRECTIONS, TRIAL, progress
from paracond.experiments.faces.model import BEST, PAPER, Design, finished, make_learner, small
from paracond.experiments.faces.session import PAPER_REPORTS, Config, Session, open_session
from paracond.experiments.faces.variants import check, variants
from paracond.experiments.images import report as images_report
from paracond.experiments.images.model import Milestones, train

PRESETS = {"best": BEST, "paper": PAPER}
LOOKS = (60, 120, 180, 240, 300, 420, 600, 900, 1800, 3600)  # seconds of training after which it is measured


def main(config: Config) -> Outcome:
    updates = 1 if config.updates is None else config.updates
    at_least({"--updates": (updates, 1), "--generated": (config.generated, 2)})
    at_least({"--variant-updates": (config.variant_updates, 1)})
    check(config.variants)
    design = chosen(config)
    session = open_session(config, design)
    if config.model is None:
        learned: list[pc.JointModel] = []
        session.measure("training", lambda: learned.append(trained(session, design)))
        model = learned[0]
    else:
        model = saved(config, session.device)
        session.recall("training")
    parts: dict[str, Callable[[], None]] = {part.__name__: partial(part, session, model) for part in DIRECTIONS}
    if session.device == "cuda" and not config.quick and config.stopwatch:
        parts["stopwatch"] = partial(stopwatch, session, design, model)
    return session.go_through(parts | variants(session, design))


def keep(model: pc.JointModel, session: Session) -> None:
    """The model, in files of at most 8 MiB, and what its attributes are called (see `use`)."""
    folder = session.config.out / "model"
    model.save(folder, dtype=torch.bfloat16, max_bytes=8 * 2**20)
    (folder / use.NAMES).write_text(json.dumps({"c": list(session.names)}))


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


def trained(session: Session, design: Design) -> pc.JointModel:
    """The main model, measured while it learns. The last that draws well is kept: long trainings may go astray."""
    path = session.config.out / "milestones.json"
    aside = replace(session, test=session.apart)  # test faces are for the end

    def look(model: pc.JointModel) -> dict[str, float]:
        model = finished(design, model, session.train, session.config.seed)
        found = progress(aside, model)
        if draws_well(found, milestones.found):
            keep(model, session)
        return found

    milestones = Milestones(look, path, seconds=LOOKS)
    milestones.start(session.config.resume)
    learner = make_learner(design, session.train, session.engine(), session.config.seed)
    train(learner, design.updates, session.config.out / "checkpoint", session, milestones)
    if not milestones.found or milestones.found[-1]["updates"] < learner.step_count:
        milestones.take(learner)
    kept = last_kept(milestones.found)
    about = f"{learner.step_count:,} updates; kept is the model after {kept['updates']:,}, the last that drew well"
    session.add("training_minutes", milestones.trained / 60, "lower", about)
    names = [name for name in ("attribute_accuracy", "f1", "fid") if name in kept]
    curve = images_report.curve(milestones.found, PAPER_REPORTS, names)
    session.show(
        "Learning", f"Training faces that were set apart, and the FID of {TRIAL} images, along the training.", curve
    )
    session.details["milestones"] = milestones.found
    return pc.JointModel.load(session.config.out / "model").to(session.device)


def draws_well(found: dict[str, float], earlier: Sequence[dict[str, float]]) -> bool:
    """Whether no earlier look has a FID that is smaller by more than a tenth: what is read gets better with time.
    Where there is no FID, the last is the best."""
    return all(found.get("fid", 0.0) <= 1.1 * each.get("fid", 0.0) for each in earlier)


def last_kept(looks: Sequence[dict[str, float]]) -> dict[str, float]:
    return [look for k, look in enumerate(looks) if draws_well(look, looks[:k])][-1]


# --- time -------------------------------------------------------------------------------------------------------


def stopwatch(session: Session, design: Design, model: pc.JointModel) -> None:
    """An update at batch 64 with the paper's chain and completion, and what the two ideas of appendix D save."""
    asked = replace(design, batch_size=64, chain_length=(16.0, 16.0), completion_steps=10, parallel=True, warm=())

    def maker(d: Design) -> Callable[[pc.Engine], pc.Learner]:
        return lambda engine: make_learner(d, session.train, engine, 0)

    def milliseconds(d: Design) -> float:
        return timing.fast_update(maker(d), session.config.compile)[0]

    times = timing.update_times(maker(asked), session.config.compile)
    session.add("update_ms", times.fast, "lower", "batch 64, expected chain length 16, 10 completion steps")
    session.add("update_ms_eager", times.eager, "lower", "the same in plain eager float32, same run")
    session.add("update_ms_floor", times.floor, "lower", "arithmetic and bandwidth, counted and at measured rates")
    before = milliseconds(replace(asked, parallel=False))
    session.add("update_ms_before", before, "lower", "completion before training instead of beside it")
    warm = milliseconds(replace(asked, completion_steps=2, warm=("s", "c", "y", "z"), mirrored=False, shifts=0))
    session.add("update_ms_warm", warm, "lower", "2 completion steps instead of 10, with all that was completed cached")
    own = milliseconds(design)
    session.add("update_ms_own", own, "lower", f"batch {design.batch_size}, as this model was trained")
    began = time.perf_counter()
    tasks.portraits(model, session.attributes(30_000)).cpu()
    session.add(
        "minutes_30k_images", (time.perf_counter() - began) / 60, "lower", "100 sweeps, images back on the host"
    )
