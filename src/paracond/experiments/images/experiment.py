"""The experiment of section 5.3 for a data set of labelled images: train one model, then ask it in every direction.

Each training has its own checkpoint under OUT and keeps the time box (`--minutes`, `--resume`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import paracond as pc
from paracond.data import InputError, State
from paracond.experiments.common.config import check_sizes
from paracond.experiments.common.images import make_fid, shown
from paracond.experiments.common.milestones import Milestones, train
from paracond.experiments.common.pictures import curve, grid
from paracond.experiments.common.protocols import judge_protocols
from paracond.experiments.common.results import Outcome, choose_device
from paracond.experiments.common.runner import Runner
from paracond.experiments.images import report as pictures
from paracond.experiments.images.model import (
    TOP,
    Config,
    Design,
    bits,
    from_top_half,
    generate,
    make_learner,
    quality,
    small,
    test_accuracy,
    usage,
    variables_of,
)
from paracond.metrics.fid import FID
from paracond.metrics.scores import accuracy, psnr

TRIAL = 10_000  # images for FIDs while training: fewer images give a larger FID, so no goal is reached too early


@dataclass(frozen=True)
class Experiment:
    """A data set, its presets, the paper's results and our goals.

    few_labels: changes to a preset for training with few labels.
    half_pixels: whether the extras include a model trained on images with half of their pixels missing.
    """

    name: str
    load: Callable[..., pc.Data]
    presets: dict[str, Design]
    few_labels: dict
    paper: dict[str, float]
    goals: dict[str, float]
    half_pixels: bool = False


@dataclass(kw_only=True)
class ImageRunner(Runner):
    """A run on one data set. A quick run has no FID."""

    train: pc.Data
    test: pc.Data
    fid: FID | None


def run(experiment: Experiment, config: Config) -> Outcome:
    check_sizes(config)
    design = chosen(experiment, config)
    about = f"p(x, c, z), preset {config.preset}: {design}"
    title = f"{experiment.name}: one model, every direction (section 5.3)"
    runner = open_runner(experiment, config, design, experiment.name, title, about)
    if config.model is None:
        model, milestones = trained(runner, design)
        if runner.fid is not None:
            model.regeneration = chosen_regeneration(runner, model)
        model.save(config.out / "model", dtype=torch.bfloat16)
        runner.details["milestones"] = milestones.points
    else:
        model, milestones = saved(runner, design), None
    parts: dict[str, Callable[[], None]] = {"directions": partial(judge, runner, model, milestones)}
    if config.extras:
        parts["few labels"] = partial(from_few_labels, runner, replace(design, **experiment.few_labels))
    if config.extras and experiment.half_pixels:
        partial_design = replace(design, updates=design.updates // 4, completion_steps=4, shifts=0)
        parts["half of the pixels"] = partial(from_half_pixels, runner, partial_design)
    return runner.run(parts)


def chosen(experiment: Experiment, config: Config) -> Design:
    """The design of the preset, with the changes of the command line."""
    design = experiment.presets[config.preset]
    if config.quick:
        design = small(design)
    return design if config.updates is None else replace(design, updates=config.updates)


def open_runner(experiment: Experiment, config: Any, design: Design, name: str, title: str, about: str) -> ImageRunner:
    """Load the data and make the runner."""
    device, began = choose_device(config.device), time.perf_counter()
    train_set, test_set = (experiment.load(split, folder=config.data) for split in ("train", "test"))
    if config.quick:
        train_set, test_set = train_set[:2000], test_set[:200]
    runner = ImageRunner(
        name=name,
        title=title,
        about=f"{about}; {len(train_set):,} training images",
        config=config,
        device=device,
        paper=experiment.paper,
        goals=experiment.goals,
        details={"design": asdict(design), "milestones": []},
        began=began,
        train=train_set,
        test=test_set,
        fid=None if config.quick else make_fid(device),
    )
    if runner.fid is not None:
        runner.fid.real(train_set.state["x"], cache=config.out / "cache")
        floor = runner.fid.score(test_set.state["x"])
        runner.add("fid_floor", floor.value, "lower", f"{floor.generated_count} test images; {floor.protocol}")
        runner.details["fid_protocol"] = runner.fid.extractor.protocol
    return runner


def saved(runner: ImageRunner, design: Design) -> pc.JointModel:
    """The model of --model, which must have the groups of this data set."""
    assert runner.config.model is not None
    model = pc.JointModel.load(runner.config.model).to(runner.device)
    binary = bool(((runner.test.state["x"] == 0) | (runner.test.state["x"] == 1)).all())
    for name, family in variables_of(design, binary).items():
        if name in "xc" and type(model.variables.get(name)) is not type(family):
            group = model.variables.get(name, "missing")
            raise InputError(f"{runner.config.model} is no model of {runner.name}: {name!r} is {group}")
    return model


def trained(runner: ImageRunner, design: Design) -> tuple[pc.JointModel, Milestones]:
    """Train the main model and measure it on the way."""

    def measure(model: pc.JointModel) -> dict[str, float]:
        numbers = {"accuracy": test_accuracy(model, runner.test), "bits": bits(usage(model, runner.test))}
        return numbers if runner.fid is None else numbers | {"fid": trial_fid(runner, runner.fid, model)}

    milestones = Milestones(measure, runner.config.out / "milestones.json", resume=runner.resume)
    learner = make_learner(design, runner.train, runner.engine(), runner.config.seed)
    train(learner, design.updates, runner.config.out / "checkpoint", runner, milestones)
    return learner.averaged, milestones


def chosen_regeneration(runner: ImageRunner, model: pc.JointModel) -> pc.Regeneration:
    """The choice by the later half of the test images, without classes. No number that is reported of them depends on
    it: the FID compares with training images, and top halves are of the first ones."""
    images = runner.test.state["x"]
    return pc.choose_regeneration(model, {"x": images[len(images) // 2 :]}, seed=runner.config.seed)


def trial_fid(runner: ImageRunner, fid: FID, model: pc.JointModel) -> float:
    classes = runner.train.state["c"][:TRIAL].to(runner.device)
    return fid.score(shown(model, generate(model, classes))).value


def judge(runner: ImageRunner, model: pc.JointModel, milestones: Milestones | None) -> None:
    """Measure every direction of the main model."""
    test = runner.test
    runner.add("accuracy", test_accuracy(model, test), "higher", "maximum marginal over the latents, test images")
    half = test[: runner.count(2000, 20)]
    answer = from_top_half(model, half.state["x"], sweeps=runner.count(50))
    right = accuracy(answer.decisions["c"].cpu(), half.state["c"])
    runner.add("accuracy_top_half", right, "higher", f"class from the top half, {len(half)} test images")
    inpainting(runner, half.state["x"], answer.mean["x"].cpu())
    latents = usage(model, test)
    runner.add("bits", bits(latents), "higher", "information of the latents about an image")
    runner.add(
        "active_latents", sum(u.count for u in latents.values()), "higher", "more than 0.02 nats, also after a redraw"
    )
    if runner.fid is not None:
        judge_images(runner, model)
    if runner.fid is not None and milestones is not None:
        runner.add("minutes_to_paper", minutes_to_paper(runner, milestones), "lower", "training time; FID of 10,000")
        figure = curve(milestones.points, runner.paper, ("accuracy", "fid"))
        runner.show("Learning", "Accuracy and FID (of 10,000 images) along the training.", figure)
    columns = generate(model, torch.arange(10).repeat(10).to(model.device), sweeps=runner.count(100, 5))
    rows = pictures.by_class(shown(model, columns).cpu(), columns["c"].cpu())
    runner.show("Given the class", "Columns are classes; 100 sweeps.", grid(rows))
    unconditional(runner, model)
    filled = pictures.completed(half.state["x"][:16], answer.mean["x"][:16].cpu())
    runner.show("Given the top half", "Mean marginals of the lower half.", filled)


def inpainting(runner: ImageRunner, images: Tensor, completed: Tensor) -> None:
    """PSNR of the hidden lower half."""
    hidden = (~TOP).expand_as(images)
    value, fill = (psnr(x, images, hidden) for x in (completed, runner.train.state["x"].mean(0).expand_as(images)))
    runner.add("inpainting_psnr", value, "higher", f"dB in the hidden lower half; the training mean has {fill:.2f}")


def judge_images(runner: ImageRunner, model: pc.JointModel) -> None:
    assert runner.fid is not None
    classes = runner.train.state["c"][: runner.config.generated].to(runner.device)
    count = len(classes)
    state = generate(model, classes)
    score = runner.fid.score(shown(model, state))
    runner.add("fid", score.value, "lower", f"{count} generated, 100 sweeps from the init, against {score.real_count}")
    if isinstance(model.variables["x"], pc.Binary):
        draws = runner.fid.score(state["x"]).value
        runner.add("fid_draws", draws, "lower", "draws of the pixels instead of thresholded probabilities")
    for name, value in quality(model, runner.train, runner.fid, TRIAL).items():
        runner.add(name, value, "lower", f"{TRIAL} images")
    fid, real = runner.fid, {name: value.to(runner.device) for name, value in runner.train.state.items()}

    def fid_of(state: State) -> float:
        return fid.score(shown(model, state)).value

    judge_protocols(runner, model, fid_of, real, ["c"], counts=(count, TRIAL))


def unconditional(runner: ImageRunner, model: pc.JointModel) -> None:
    """Draw images and classes together. Classes are equally frequent in the data."""
    count = runner.count(TRIAL, 40)
    state = pc.sample(model, rows=count, sweeps=runner.count(100, 5), seed=runner.config.seed)
    shares = torch.bincount(state["c"].cpu(), minlength=10).double() / count
    gap = float((shares - 0.1).abs().sum() / 2)
    runner.add("class_share_error", gap, "lower", f"{count} images, nothing given: total variation from equal shares")
    images = shown(model, state)
    if runner.fid is not None:
        runner.add("fid_unconditional", runner.fid.score(images).value, "lower", f"{count} images, nothing given")
    runner.show("Nothing given", "Images of all classes, in the order drawn.", grid(images[:40].cpu().split(10)))


def minutes_to_paper(runner: ImageRunner, milestones: Milestones) -> float:
    """Minutes until both results of the paper were reached at once; infinite if never."""
    for point in milestones.points:
        if point["fid"] <= runner.paper["fid"] and point["accuracy"] >= runner.paper["accuracy"]:
            return point["seconds"] / 60
    return float("inf")


def extra(runner: ImageRunner, name: str, design: Design, data: pc.Data) -> pc.JointModel:
    """A model trained on a part of the data."""
    learner = make_learner(design, data, runner.engine(), runner.config.seed)
    train(learner, design.updates, runner.config.out / f"checkpoint_{name}", runner)
    return learner.averaged


def from_few_labels(runner: ImageRunner, design: Design) -> None:
    design = small(design) if runner.config.quick else design
    for name, data in label_sets(runner):
        value = test_accuracy(extra(runner, name, design, data), runner.test)
        runner.add(f"accuracy_{name}", value, "higher", f"{int(data.mask['c'].sum())} labels known")


def from_half_pixels(runner: ImageRunner, design: Design) -> None:
    hidden = pc.datasets.hide(runner.train, {"x": 0.5}, coordinates=True, seed=runner.config.seed)
    model = extra(runner, "half_pixels", design, hidden)
    value = test_accuracy(model, runner.test)
    runner.add("accuracy_half_pixels", value, "higher", "half of the pixels missing at random in training")
    if runner.fid is not None:
        runner.add("fid_half_pixels", trial_fid(runner, runner.fid, model), "lower", f"the same model, {TRIAL} images")


def label_sets(runner: ImageRunner) -> Iterable[tuple[str, pc.Data]]:
    for count in (100, 1000):
        yield f"{count}_labels", pc.datasets.keep_labels(runner.train, count, runner.config.seed)
    yield "tenth_of_labels", pc.datasets.hide(runner.train, {"c": 0.9}, seed=runner.config.seed)
