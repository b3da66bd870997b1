"""The comparison of section 5.5 on equal terms: VAE, symmetric equilibrium learning and ours, on the same conditionals.

Every training is a run of its own, named by data set, method and seed (ours also by chain length, for the trade-off
between fit and consistency). A run is trained, measured once and kept as OUT/DATASET/RUN/found.json; the page and the
table are made from these files. So work comes in time boxes: `--minutes` ends one, `--resume` does what is left.
Several commands may share a device and OUT, each with other --methods or --only; one more, with --resume and all of
them, then makes the page.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file, save_file
from torch import Tensor

import paracond as pc
from paracond.metrics import FID, Extractor
from paracond.recipes import compare_measures as measures
from paracond.recipes import compare_report as report
from paracond.recipes import images_report
from paracond.recipes.compare_model import (
    DESIGNS,
    LOADERS,
    METHODS,
    Design,
    Pictures,
    make_learner,
    small,
    steps_of,
)
from paracond.recipes.compare_table import Run, summary
from paracond.recipes.images import Milestones, Unfinished, train
from paracond.results import BoxedConfig, Metric, Outcome, choose_device, command, commit, hardware, plain
from paracond.state import InputError
from paracond.storage import replace_file

MOMENTS = (2.0, 4.0, 8.0, 16.0, 32.0)  # seconds of training at which the first seed is measured
TRIAL = 5000  # images for FIDs while training


@dataclass(frozen=True)
class Config(BoxedConfig):
    """VAE, symmetric equilibrium learning and ours on the same conditionals (section 5.5)."""

    out: Path = Path("runs/compare")
    data: Path | None = None
    """folder with the data, or with folders fashion and faces of them (if not given: $PARACOND_DATA)"""
    only: Literal["fashion", "faces"] | None = None
    """one data set instead of both"""
    methods: tuple[str, ...] = METHODS
    """some of vae, symmetric, ours"""
    seeds: int = 3
    """trainings of each method"""
    lengths: tuple[int, ...] = (1, 2, 4, 8, 16)
    """chain lengths of ours for the trade-off, with the first seed (none: --lengths and nothing)"""
    length: float | None = None
    """chain length of ours in all else, instead of the preset's"""
    updates: int | None = None
    """of each conditional, instead of the preset's number"""
    estimator: str | None = None
    """of the VAE's gradient for binary codes, instead of the preset's (see `directed`)"""
    sigma: float | Literal["learned"] | None = None
    """of the pixels given the code, the same for all methods and fixed, or learned by each, instead of the preset's"""
    completed_by: Literal["model", "average"] | None = None
    """which parameters of Symmetric and of ours complete examples, instead of the preset's"""
    compile: bool = False
    """fuse the networks with torch.compile (on CUDA only): takes minutes"""
    generated: int = 10_000
    """images for the FID"""
    extras: bool = True
    """of the first seed, also measure the course of learning and chains from elsewhere"""


@dataclass
class Session:
    """A data set, and what is measured with it."""

    config: Config
    name: str
    device: str
    pictures: Pictures
    design: Design

    @cached_property
    def fid(self) -> FID | None:
        """Against the training images; none in a quick run. Made when it is first asked for."""
        if self.config.quick:
            return None
        fid = FID(Extractor.load(tf32=True), self.device, batch=1000 if self.device == "cuda" else 100)
        return fid.real(self.pictures.train.state["x"], cache=self.config.out / "cache")

    def most(self, count: int, quick: int) -> int:
        return quick if self.config.quick else count

    def score(self, name: str, images: Tensor) -> dict[str, float]:
        """The FID, by this name; nothing in a quick run."""
        return {} if self.fid is None else {name: self.fid.score(images).value}

    def looks_closer(self, run: Run) -> bool:
        """Whether more is measured of this run than of others."""
        return self.config.extras and run.seed == self.config.seed and run.length is None


def main(config: Config) -> Outcome:
    began = time.perf_counter()
    end = math.inf if config.minutes is None else time.monotonic() + 60 * config.minutes
    check(config)
    found: dict[Run, dict] = {}
    floors = []
    for name in [config.only] if config.only else list(DESIGNS):
        session = open_session(config, name)
        if not config.quick:
            floors.append(floor_of(session))
        for run in runs_of(config, name):
            found[run] = of_run(session, run, end)
    details = {
        "designs": {name: str(chosen(config, name)) for name in DESIGNS},
        "runs": {f"{run.dataset} {run.name}": numbers for run, numbers in found.items()},
    }
    device = choose_device(config.device)
    outcome = Outcome("compare", summary(found) + floors, time.perf_counter() - began, plain(config), device, details)
    outcome.write(config.out)
    title = "Three ways to learn the same two conditionals (section 5.5)"
    about = f"Encoder and decoder given c, {config.seeds} seeds each, mean and standard deviation over seeds."
    images_report.page(title, about, outcome, figures(config, found)).write(config.out)
    return outcome


def check(config: Config) -> None:
    unknown = [method for method in config.methods if method not in METHODS]
    if unknown or not config.methods or config.seeds < 1 or any(length < 1 for length in config.lengths):
        raise InputError(f"--methods are some of {', '.join(METHODS)}, --seeds and --lengths at least 1")


def runs_of(config: Config, dataset: str) -> Iterator[Run]:
    """Seed by seed, so that a time box leaves something of every method."""
    for seed in range(config.seed, config.seed + config.seeds):
        yield from (Run(dataset, method, seed) for method in config.methods)
    if "ours" in config.methods:  # one of them has been trained already
        lengths = [length for length in config.lengths if length != chosen(config, dataset).chain_length]
        yield from (Run(dataset, "ours", config.seed, length) for length in lengths)


def chosen(config: Config, name: str) -> Design:
    design = small(DESIGNS[name]) if config.quick else DESIGNS[name]
    asked = {
        "updates": config.updates,
        "chain_length": config.length,
        "estimator": config.estimator if isinstance(design.latent, pc.Binary) else None,
        "scale": config.sigma,
        "completed_by": config.completed_by,
    }
    return replace(design, **{name: value for name, value in asked.items() if value})  # type: ignore[arg-type]


def open_session(config: Config, name: str) -> Session:
    device = choose_device(config.device)
    folder = config.data
    if folder is not None and (folder / name).is_dir():
        folder = folder / name
    pictures, design = LOADERS[name](folder), chosen(config, name)
    if config.quick:
        pictures = replace(pictures, train=pictures.train[:400], test=pictures.test[:100])
    return Session(config, name, device, pictures, design)


def floor_of(session: Session) -> Metric:
    """What real images have."""
    path = session.config.out / session.name / "floor.json"
    if not (session.config.resume and path.is_file()):
        assert session.fid is not None
        images = session.pictures.test.state["x"]
        about = f"{len(images)} test images against {len(session.pictures.train)}; {session.fid.extractor.protocol}"
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps({"value": session.fid.score(images).value, "about": about}).encode())
    return Metric(f"{session.name}_floor", better="lower", **json.loads(path.read_text()))


# --- one run ----------------------------------------------------------------------------------------------------


def of_run(session: Session, run: Run, end: float) -> dict:
    """What was found of a run, in this time box or a former one."""
    folder = session.config.out / run.dataset / run.name
    if (folder / "found.json").is_file():
        return former(session, folder)
    left = (end - time.monotonic()) / 60
    if left <= 0:
        raise Unfinished(f"the time is over before {run.dataset} {run.name}; continue with --resume")
    print(f"{run.dataset} {run.name}", flush=True)
    model, milestones = trained(session, run, folder, left)
    numbers, pictures = measured(session, run, model)
    numbers |= {"seconds_train": milestones.trained, "curve": milestones.found, "design": str(session.design)}
    numbers["origin"] = {"command": command(), "commit": commit(), "hardware": hardware(session.device)}
    save_file({name: images.contiguous() for name, images in pictures.items()}, folder / "pictures.safetensors")
    (folder / "found.json").write_text(json.dumps(numbers, indent=1) + "\n")
    shutil.rmtree(folder / "checkpoint")
    print("  " + ", ".join(f"{k} {v:.4g}" for k, v in numbers.items() if isinstance(v, float)), flush=True)
    return numbers


def former(session: Session, folder: Path) -> dict:
    """What was found before, if that may be taken."""
    numbers = json.loads((folder / "found.json").read_text())
    if not session.config.resume:
        raise InputError(f"{folder} has results: go on with --resume, or give another --out")
    if numbers["design"] != str(session.design):
        raise InputError(f"{folder} has results of another design, {numbers['design']}: give another --out")
    return numbers


@dataclass(frozen=True)
class Box:
    """What is left of the time box."""

    minutes: float | None
    resume: bool


def trained(session: Session, run: Run, folder: Path, minutes: float) -> tuple[pc.JointModel, Milestones]:
    config, design = session.config, session.design
    if run.length is not None:
        design = replace(design, chain_length=float(run.length))

    def measure(model: pc.JointModel) -> dict[str, float]:
        c = measures.conditions_of(session.pictures, TRIAL, run.seed).to(session.device)
        made = {"limiting": measures.limiting(model, c, run.seed)}
        if run.method != "ours":
            made["random"] = measures.random_codes(model, c, run.seed)
        scores = [session.score(name, measures.shown(model, state)) for name, state in made.items()]
        return {name: value for score in scores for name, value in score.items()}

    moments = MOMENTS if session.looks_closer(run) and not config.quick else ()
    milestones = Milestones(measure, folder / "milestones.json", moments)
    milestones.start(config.resume)
    engine = pc.Engine(session.device, compile=config.compile and session.device == "cuda")
    learner = make_learner(design, session.pictures, run.method, engine, run.seed)
    box = Box(None if math.isinf(minutes) else minutes, config.resume)
    train(learner, steps_of(design, run.method), folder / "checkpoint", box, milestones)
    return learner.averaged, milestones


def measured(session: Session, run: Run, model: pc.JointModel) -> tuple[dict, dict[str, Tensor]]:
    """All numbers of a trained model, and some pictures."""
    config, pictures = session.config, session.pictures
    count, sweeps = session.most(config.generated, 64), session.most(measures.SWEEPS, 3)
    c = measures.conditions_of(pictures, count, run.seed).to(session.device)
    state, images, seconds = measures.timed(model, lambda: measures.limiting(model, c, run.seed, sweeps))
    found: dict[str, float] = session.score("limiting", images) | {
        "seconds_10k_limiting": seconds * 10_000 / count,
        "gap": measures.gap(model, state, steps=session.most(50, 2), chains=session.most(512, 8)),
        "half_accuracy": measures.half_accuracy(model, pictures, state, session.most(10_000, 50)),
        "bits": measures.bits(model, pictures.test[: session.most(2000, 50)]),
    }
    real = measures.coded(model, examples(session, count, run.seed), run.seed)
    found["disagreement"] = measures.disagreement(real["z"], state["z"])
    samples = {"limiting": images[:40], "reconstruction": measures.shown(model, real)[:40].cpu()}
    if run.method != "ours":
        codes, images, seconds = measures.timed(model, lambda: measures.random_codes(model, c, run.seed))
        found |= session.score("random", images) | {"seconds_10k_random": seconds * 10_000 / count}
        found["half_accuracy_random"] = measures.half_accuracy(model, pictures, codes, session.most(10_000, 50))
        samples["random"] = images[:40]
    if session.looks_closer(run):
        found |= elsewhere(session, run, model, c, real, sweeps)
    return found, samples


def elsewhere(
    session: Session, run: Run, model: pc.JointModel, c: Tensor, real: pc.State, sweeps: int
) -> dict[str, float]:
    """Does the limit depend on where the chain began, or on how long it ran?"""
    codes = measures.random_codes(model, c, run.seed)
    data, codes = ({name: state[name] for name in ("x", "z")} for state in (real, codes))
    states = {
        "reconstruction": lambda: real,
        "limiting_from_data": lambda: measures.limiting(model, real["c"], run.seed, sweeps, start=data),
        "limiting_from_random": lambda: measures.limiting(model, c, run.seed, sweeps, start=codes),
        "limiting_longer": lambda: measures.limiting(model, c, run.seed, 4 * sweeps),
    }
    found: dict[str, float] = {}
    for name, make in states.items():
        found |= session.score(name, measures.shown(model, make()))
    return found


def examples(session: Session, count: int, seed: int) -> pc.Data:
    """Training images, chosen at random."""
    train = session.pictures.train
    return train[torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:count]]


# --- the page ---------------------------------------------------------------------------------------------------


def figures(config: Config, found: dict[Run, dict]) -> list[tuple[str, str, Figure]]:
    made: list[tuple[str, str, Figure]] = []
    for dataset in dict.fromkeys(run.dataset for run in found):
        first = {r.method: n for r, n in found.items() if (r.dataset, r.seed, r.length) == (dataset, config.seed, None)}
        lengths = by_length(config, found, dataset)
        if len(lengths) > 1 and all("limiting" in numbers for numbers in lengths.values()):
            caption = "Ours, along the chain length n; the other methods beside it."
            made.append((f"{dataset}: fit and consistency", caption, report.trade_off(lengths, first)))
        if any(numbers.get("curve") for numbers in first.values()):
            caption = f"FID of {TRIAL} images along the training, first seed."
            made.append((f"{dataset}: learning", caption, report.curves(first)))
        made += samples(config, dataset, list(first))
    return made


def by_length(config: Config, found: dict[Run, dict], dataset: str) -> dict[float, dict]:
    """Of ours with the first seed, by chain length."""
    mine = {r: n for r, n in found.items() if (r.dataset, r.method, r.seed) == (dataset, "ours", config.seed)}
    usual = chosen(config, dataset).chain_length
    return {usual if run.length is None else run.length: numbers for run, numbers in mine.items()}


def samples(config: Config, dataset: str, methods: list[str]) -> list[tuple[str, str, Figure]]:
    rows: dict[str, Tensor] = {}
    for method in methods:
        kept = load_file(config.out / dataset / f"{method}-{config.seed}" / "pictures.safetensors")
        rows |= {f"{method}, {how}": kept[how][:16] for how in ("reconstruction", "random", "limiting") if how in kept}
    inches = 0.5 if dataset == "fashion" else 0.8
    figure = images_report.grid(list(rows.values()), names=list(rows), inches=inches)
    return [(f"{dataset}: images", "Not chosen; first seed. Reconstructions are of real images.", figure)]
