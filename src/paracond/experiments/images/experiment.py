"""The experiment of section 5.3, for any data set of labelled images: train once, then ask everything.

Training comes in time boxes (`--minutes`, `--resume`): every model has its own checkpoint under OUT. What is measured
needs all of them to be done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
from torch import Tensor

import paracond as pc
from paracond.data import InputError, at_least
from paracond.experiments.common import timing
from paracond.experiments.common.notebook import Notebook
from paracond.experiments.common.results import Outcome, choose_device
from paracond.experiments.images import report as pictures
from paracond.experiments.images.model import (
    TOP,
    Config,
    Design,
    Milestones,
    bits,
    from_top_half,
    generate,
    make_learner,
    quality,
    shown,
    small,
    test_accuracy,
    train,
    usage,
    variables_of,
)
from paracond.metrics.fid import FID, Extractor, accuracy, psnr

TRIAL = 10_000  # images for FIDs while training: fewer images give a larger value, so no goal is met by it too early


@dataclass(frozen=True)
class Experiment:
    """A data set, its presets, what the paper reports and what must be reached."""

    name: str
    load: Callable[..., pc.Data]
    presets: dict[str, Design]
    few_labels: dict
    """what few labels change in a design"""
    paper: dict[str, float]
    goals: dict[str, float]
    half_pixels: bool = False
    """whether the extras include a model learned from images with half of their pixels missing"""


@dataclass(kw_only=True)
class Session(Notebook):
    """One run of an experiment: its data, and what has been found so far."""

    experiment: Experiment
    config: Config
    train: pc.Data
    test: pc.Data
    fid: FID | None


def run(experiment: Experiment, config: Config) -> Outcome:
    updates = 1 if config.updates is None else config.updates
    at_least({"--updates": (updates, 1), "--generated": (config.generated, 2)})
    design = chosen(experiment, config)
    session = open_session(experiment, config, design)
    if config.model is None:
        model, milestones = trained(session, design)
        model.save(config.out / "model", dtype=torch.bfloat16)
        session.details["milestones"] = milestones.found
    else:
        model, milestones = saved(session, design), None
    parts: dict[str, Callable[[], None]] = {"directions": partial(judge, session, model, milestones)}
    if session.device == "cuda" and config.stopwatch and not config.quick:
        parts["stopwatch"] = partial(stopwatch, session, design, model)
    if config.extras:
        parts["few labels"] = partial(from_few_labels, session, replace(design, **experiment.few_labels))
    if config.extras and experiment.half_pixels:
        partial_design = replace(design, updates=design.updates // 4, completion_steps=4, shifts=0)
        parts["half of the pixels"] = partial(from_half_pixels, session, partial_design)
    return session.go_through(parts)


def chosen(experiment: Experiment, config: Config) -> Design:
    design = experiment.presets[config.preset]
    if config.quick:
        design = small(design)
    return design if config.updates is None else replace(design, updates=config.updates)


def open_session(experiment: Experiment, config: Config, design: Design) -> Session:
    device, began = choose_device(config.device), time.perf_counter()
    train_set = experiment.load("train", folder=config.data)
    test_set = experiment.load("test", folder=config.data)
    if config.quick:
        train_set, test_set = train_set[:2000], test_set[:200]
    session = Session(
        name=experiment.name,
        title=f"{experiment.name}: one model, every direction (section 5.3)",
        about=f"p(x, c, z) of {len(train_set):,} images, preset {config.preset}: {design}",
        settings=config,
        device=device,
        paper=experiment.paper,
        goals=experiment.goals,
        details={"design": asdict(design), "milestones": []},
        began=began,
        experiment=experiment,
        config=config,
        train=train_set,
        test=test_set,
        fid=None if config.quick else FID(Extractor.load(tf32=True), device, batch=1000 if device == "cuda" else 100),
    )
    if session.fid is not None:
        session.fid.real(train_set.state["x"], cache=config.out / "cache")
        floor = session.fid.floor(test_set.state["x"])
        session.add("fid_floor", floor.value, "lower", f"{floor.generated_count} test images; {floor.protocol}")
        session.details["fid_protocol"] = session.fid.extractor.protocol
    return session


def saved(session: Session, design: Design) -> pc.JointModel:
    """The model that was asked for, which must be one of this data set."""
    assert session.config.model is not None
    model = pc.JointModel.load(session.config.model).to(session.device)
    binary = bool(((session.test.state["x"] == 0) | (session.test.state["x"] == 1)).all())
    for name, family in variables_of(design, binary).items():
        if name in "xc" and type(model.variables.get(name)) is not type(family):
            found = model.variables.get(name, "no such group")
            raise InputError(f"{session.config.model} is no model of {session.experiment.name}: {name!r} is {found}")
    return model


def trained(session: Session, design: Design) -> tuple[pc.JointModel, Milestones]:
    """The main model, measured while it learns."""

    def measure(model: pc.JointModel) -> dict[str, float]:
        found = {"accuracy": test_accuracy(model, session.test), "bits": bits(usage(model, session.test))}
        if session.fid is not None:
            classes = session.train.state["c"][:TRIAL].to(session.device)
            found["fid"] = session.fid.score(shown(model, generate(model, classes))).value
        return found

    milestones = Milestones(measure, session.config.out / "milestones.json")
    milestones.start(session.config.resume)
    learner = make_learner(design, session.train, session.engine(), session.config.seed)
    train(learner, design.updates, session.config.out / "checkpoint", session, milestones)
    if not milestones.found or milestones.found[-1]["updates"] < learner.step_count:
        milestones.take(learner)
    return learner.averaged, milestones


def judge(session: Session, model: pc.JointModel, milestones: Milestones | None) -> None:
    """Every direction of the main model."""
    config, test = session.config, session.test
    session.add("accuracy", test_accuracy(model, test), "higher", "maximum marginal over the latents, test images")
    half = test[: 20 if config.quick else 2000]
    answer = from_top_half(model, half.state["x"], sweeps=4 if config.quick else 50)
    found = accuracy(answer.decisions["c"].cpu(), half.state["c"])
    session.add("accuracy_top_half", found, "higher", f"class from the top half, {len(half)} test images")
    inpainting(session, half.state["x"], answer.mean["x"].cpu())
    latents = usage(model, test)
    session.add("bits", bits(latents), "higher", "what the latents say of an image")
    session.add("active_latents", sum(u.count for u in latents.values()), "higher", "over 0.02 nats, also read back")
    if session.fid is not None:
        judge_images(session, model)
    if session.fid is not None and milestones is not None:
        session.add("minutes_to_paper", minutes_to_paper(session, milestones), "lower", "training time; FID of 10,000")
        curve = pictures.curve(milestones.found, session.experiment.paper)
        session.show("Learning", "Accuracy and FID (of 10,000 images) along the training.", curve)
    columns = generate(model, torch.arange(10).repeat(10).to(model.device), sweeps=5 if config.quick else 100)
    rows = pictures.by_class(shown(model, columns).cpu(), columns["c"].cpu())
    session.show("Given the class", "Columns are classes; 100 sweeps.", pictures.grid(rows))
    unconditional(session, model)
    filled = pictures.completed(half.state["x"][:16], answer.mean["x"][:16].cpu())
    session.show("Given the top half", "Mean marginals of the lower half.", filled)


def inpainting(session: Session, images: Tensor, found: Tensor) -> None:
    """The hidden lower half, by mean marginals."""
    hidden = (~TOP).expand_as(images)
    value, fill = (psnr(x, images, hidden) for x in (found, session.train.state["x"].mean(0).expand_as(images)))
    session.add("inpainting_psnr", value, "higher", f"dB in the hidden lower half; the training mean has {fill:.2f}")


def judge_images(session: Session, model: pc.JointModel) -> None:
    assert session.fid is not None
    classes = session.train.state["c"][: session.config.generated].to(session.device)
    count = len(classes)
    state = generate(model, classes)
    score = session.fid.score(shown(model, state))
    session.add(
        "fid", score.value, "lower", f"{count} generated, 100 sweeps from the start, against {score.real_count}"
    )
    if isinstance(model.variables["x"], pc.Binary):
        draws = session.fid.score(state["x"]).value
        session.add("fid_draws", draws, "lower", "draws of the pixels instead of thresholded probabilities")
    for name, value in quality(model, session.train, session.fid, TRIAL).items():
        session.add(name, value, "lower", f"{TRIAL} images")


def unconditional(session: Session, model: pc.JointModel) -> None:
    """With nothing given: images and classes together. Classes are equally frequent in the data."""
    count, sweeps = (40, 5) if session.config.quick else (TRIAL, 100)
    state = pc.sample(model, rows=count, sweeps=sweeps, seed=session.config.seed)
    shares = torch.bincount(state["c"].cpu(), minlength=10).double() / count
    gap = float((shares - 0.1).abs().sum() / 2)
    session.add("class_share_error", gap, "lower", f"{count} images, nothing given: total variation from equal shares")
    images = shown(model, state)
    if session.fid is not None:
        session.add("fid_unconditional", session.fid.score(images).value, "lower", f"{count} images, nothing given")
    session.show("Nothing given", "Images of all classes, as they come.", pictures.grid(images[:40].cpu().split(10)))


def minutes_to_paper(session: Session, milestones: Milestones) -> float:
    """When both of the paper's numbers were passed at once; infinite if never."""
    paper = session.experiment.paper
    for point in milestones.found:
        if point["fid"] <= paper["fid"] and point["accuracy"] >= paper["accuracy"]:
            return point["seconds"] / 60
    return float("inf")


def stopwatch(session: Session, design: Design, model: pc.JointModel) -> None:
    """How long updates and generation take on this device."""
    times = timing.update_times(lambda engine: make_learner(design, session.train, engine, 0), session.config.compile)
    session.add("update_ms", times.fast, "lower", f"batch {design.batch_size}, set-up {times.set_up:.0f} s")
    session.add("update_ms_eager", times.eager, "lower", "the same in plain eager float32, same run")
    session.add("update_ms_floor", times.floor, "lower", "arithmetic and bandwidth, counted and at measured rates")
    session.add("update_speedup", times.eager / times.fast, "higher", "eager / fast")
    session.add("update_over_floor", times.fast / times.floor, "lower", "fast / floor")
    classes = session.train.state["c"][:30_000].to(session.device)
    began = time.perf_counter()
    shown(model, generate(model, classes)).cpu()
    session.add("seconds_30k_images", time.perf_counter() - began, "lower", "100 sweeps, start to finish, images back")


def extra(session: Session, name: str, design: Design, data: pc.Data) -> pc.JointModel:
    """A model learned from less."""
    learner = make_learner(design, data, session.engine(), session.config.seed)
    train(learner, design.updates, session.config.out / f"checkpoint_{name}", session, None)
    return learner.averaged


def from_few_labels(session: Session, design: Design) -> None:
    design = small(design) if session.config.quick else design
    for name, data in label_sets(session):
        found = test_accuracy(extra(session, name, design, data), session.test)
        session.add(f"accuracy_{name}", found, "higher", f"{int(data.mask['c'].sum())} labels known")


def from_half_pixels(session: Session, design: Design) -> None:
    hidden = pc.datasets.hide(session.train, {"x": 0.5}, coordinates=True, seed=session.config.seed)
    model = extra(session, "half_pixels", design, hidden)
    found = test_accuracy(model, session.test)
    session.add("accuracy_half_pixels", found, "higher", "half of the pixels missing at random in training")
    if session.fid is not None:
        classes = session.train.state["c"][:TRIAL].to(session.device)
        value = session.fid.score(shown(model, generate(model, classes))).value
        session.add("fid_half_pixels", value, "lower", f"the same model, {TRIAL} images")


def label_sets(session: Session) -> Iterable[tuple[str, pc.Data]]:
    for count in (100, 1000):
        yield f"{count}_labels", pc.datasets.keep_labels(session.train, count, session.config.seed)
    yield "tenth_of_labels", pc.datasets.hide(session.train, {"c": 0.9}, seed=session.config.seed)
