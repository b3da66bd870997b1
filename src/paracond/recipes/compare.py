"""The comparison of section 5.5 on equal terms: VAE, symmetric equilibrium learning and ours, on the same conditionals.

Every training is a run of its own, named by data set, method and seed (ours also by chain length, for the trade-off
between fit and consistency). A run is trained, measured once and kept as OUT/DATASET/RUN/found.json; the page and the
table are made from these files. So work comes in time boxes: `--minutes` ends one, `--resume` does what is left, if it
was begun with the same settings (RUN/settings.json). Several commands may share OUT, each with other --methods or
--only; one more, with --resume and all of them, then makes the page. (On a shared device seconds are of that.)

The designs were chosen by trainings with the seeds 0 to 3 (RESULTS), so the seeds here begin at four.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

import paracond as pc
from paracond import checkpoints
from paracond.diagnostics import Consistency
from paracond.metrics import FID, Extractor
from paracond.recipes import compare_measures as measures
from paracond.recipes import compare_report as report
from paracond.recipes.compare_model import (
    DESIGNS,
    LOADERS,
    METHODS,
    Design,
    Pictures,
    make_learner,
    small,
    steps_of,
    steps_per_update,
)
from paracond.recipes.compare_table import Run, summary
from paracond.recipes.images import Milestones, Unfinished, train
from paracond.results import BoxedConfig, Metric, Outcome, choose_device, command, commit, hardware, plain
from paracond.state import InputError, at_least, one_of
from paracond.storage import replace_file

OF_BITS = ("disarm", "straight-through", "gumbel")  # estimators of the VAE's gradient for so many
MOMENTS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # seconds of training at which the first seed is measured
TRIAL = 5000  # images for FIDs while training
TESTED = 10_000  # test images, at most, whose class is asked for


@dataclass(frozen=True)
class Config(BoxedConfig):
    """VAE, symmetric equilibrium learning and ours on the same conditionals (section 5.5)."""

    out: Path = Path("runs/compare")
    seed: int = 4
    """the first of them"""
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
    """of the VAE's gradient for bits: disarm, straight-through or gumbel, instead of the best (see `directed`)"""
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
    sessions = [open_session(config, name) for name in ([config.only] if config.only else DESIGNS)]
    for session in sessions:  # before anything is learned
        for run in runs_of(config, session.name):
            check_kept(session, run)
    found: dict[Run, dict] = {}
    floors = []
    for session in sessions:
        floors += [] if config.quick else floors_of(session)
        for run in runs_of(config, session.name):
            found[run] = of_run(session, run, end)
    usual = {session.name: session.design.chain_length for session in sessions}
    details = {
        "designs": {session.name: str(session.design) for session in sessions},
        "runs": {f"{run.dataset} {run.name}": numbers for run, numbers in found.items()},
    }
    metrics, seconds = summary(found, usual) + floors, time.perf_counter() - began
    outcome = Outcome("compare", metrics, seconds, plain(config), sessions[0].device, details)
    outcome.write(config.out)
    figures = report.figures(config.out, config.seed, found, usual, TRIAL)
    report.page(about(config, found), outcome, found, figures).write(config.out)
    return outcome


def about(config: Config, found: dict[Run, dict]) -> str:
    seeds = f"{config.seeds} seeds each, mean and standard deviation over seeds"
    seeds = seeds if config.seeds > 1 else "one seed each"
    where = {f"{n['origin']['hardware']} (commit {n['origin']['commit']})" for n in found.values()}
    text = f"Encoder and decoder given c, {seeds}. Trained and measured on {', '.join(sorted(where))}."
    return text + (" A quick run: nothing here is learned." if config.quick else "")


def check(config: Config) -> None:
    if not config.methods:
        raise InputError(f"--methods are some of {', '.join(METHODS)}, found none")
    for method in config.methods:
        one_of("each of --methods", method, METHODS)
    lengths = {"each of --lengths": (min(config.lengths, default=1), 1)}
    updates = 1 if config.updates is None else config.updates
    at_least({"--seeds": (config.seeds, 1), "--generated": (config.generated, 2), "--updates": (updates, 1), **lengths})
    if config.length is not None and not 1 <= config.length < math.inf:
        raise InputError(f"--length must be at least 1 and finite, found {config.length}")
    if isinstance(config.sigma, float) and not 0 < config.sigma < math.inf:
        raise InputError(f"--sigma must be positive and finite, or learned, found {config.sigma}")
    if config.minutes is not None and not config.minutes >= 0:
        raise InputError(f"--minutes must not be negative, found {config.minutes}")
    if config.estimator is not None:
        one_of("--estimator", config.estimator, OF_BITS)


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
    asked = {of: value for of, value in asked.items() if value is not None}
    return replace(design, **asked)  # type: ignore[arg-type]


def open_session(config: Config, name: str) -> Session:
    device = choose_device(config.device)
    folder = config.data
    if folder is not None and (folder / name).is_dir():
        folder = folder / name
    pictures, design = LOADERS[name](folder), chosen(config, name)
    if config.quick:
        pictures = replace(pictures, train=pictures.train[:400], test=pictures.test[:100])
    return Session(config, name, device, pictures, design)


def floors_of(session: Session) -> list[Metric]:
    """What real images have: their FID, and what half of one tells of its class by the estimator of all methods."""
    path = session.config.out / session.name / "floors.json"
    if not (session.config.resume and path.is_file()):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps([asdict(metric) for metric in measured_floors(session)], indent=1).encode())
    return [Metric(**kept) for kept in json.loads(path.read_text())]


def measured_floors(session: Session) -> list[Metric]:
    assert session.fid is not None
    name, pictures, scale = session.name, session.pictures, session.design.scale
    images = pictures.test.state["x"]
    about = f"FID of {len(images)} test images against {len(pictures.train)}; {session.fid.extractor.protocol}"
    few = len(images) < session.config.generated
    about += "; of fewer images than are drawn, so with more bias than theirs" if few else ""
    found = [Metric(f"{name}_floor", session.fid.score(images).value, "lower", about=about)]
    found.append(
        Metric(f"{name}_half_majority", measures.majority(pictures), "higher", about="the most frequent class")
    )
    if isinstance(scale, float):
        real = examples(session, session.config.generated, session.config.seed).state
        means = real["x"].to(session.device)
        value = measures.told_by(means, real["c"], scale, pictures, TESTED)
        about = f"for scale: class from the upper half, {len(means)} training images in the place of means"
        found.append(Metric(f"{name}_half_real", value, "higher", about=about))
    return found


# --- one run ----------------------------------------------------------------------------------------------------


def of_run(session: Session, run: Run, end: float) -> dict:
    """What was found of a run, in this time box or a former one."""
    folder = folder_of(session, run)
    if (folder / "found.json").is_file():
        return json.loads((folder / "found.json").read_text())
    left = (end - time.monotonic()) / 60
    if left <= 0:
        raise Unfinished(f"the time is over before {run.dataset} {run.name}; continue with --resume")
    print(f"{run.dataset} {run.name}", flush=True)
    settings = settings_of(session, run)
    model, milestones = trained(session, run, folder, left)
    numbers, pictures = measured(session, run, model)
    curve = per_conditional(milestones.found, run)
    numbers |= {"seconds_train": milestones.trained, "curve": curve, "settings": settings}
    numbers["origin"] = {"command": command(), "commit": commit(), "hardware": hardware(session.device)}
    save_file({name: images.contiguous() for name, images in pictures.items()}, folder / "pictures.safetensors")
    replace_file(folder / "found.json", (json.dumps(numbers, indent=1) + "\n").encode())
    shutil.rmtree(folder / "checkpoint")
    print("  " + ", ".join(f"{k} {v:.4g}" for k, v in numbers.items() if isinstance(v, float)), flush=True)
    return numbers


def folder_of(session: Session, run: Run) -> Path:
    return session.config.out / run.dataset / run.name


def design_of(session: Session, run: Run) -> Design:
    return session.design if run.length is None else replace(session.design, chain_length=float(run.length))


def per_conditional(curve: list[dict], run: Run) -> list[dict]:
    """A learning curve, with updates of each conditional in the place of steps of the learner."""
    return [point | {"updates": point["updates"] / steps_per_update(run.method)} for point in curve]


def settings_of(session: Session, run: Run) -> dict[str, str]:
    """All that numbers of a run depend on, but for its name and the code."""
    design, config = design_of(session, run), session.config
    of_design = {field.name: str(getattr(design, field.name)) for field in fields(design)}
    of_design["estimator"] = design.estimator or pc.directed.BEST[type(design.latent)]
    extras = session.looks_closer(run)
    others = {"generated": config.generated, "quick": config.quick, "compile": config.compile, "extras": extras}
    return of_design | {name: str(value) for name, value in others.items()}


def check_kept(session: Session, run: Run) -> None:
    """What there is of a run must be wanted, and have been begun with the same settings."""
    folder = folder_of(session, run)
    done = (folder / "found.json").is_file()
    if not done and not checkpoints.exists(folder / "checkpoint"):
        return
    if not session.config.resume:
        what = "results" if done else "a checkpoint"
        raise InputError(f"{folder} has {what}: go on with --resume, or give another --out")
    kept = json.loads((folder / ("found.json" if done else "settings.json")).read_text())
    before, now = kept["settings"] if done else kept, settings_of(session, run)
    other = [f"{name} {before.get(name)} instead of {now[name]}" for name in now if before.get(name) != now[name]]
    if other:
        raise InputError(f"{folder} was begun with {', '.join(other)}: give another --out")


@dataclass(frozen=True)
class Box:
    """What is left of the time box."""

    minutes: float | None
    resume: bool


def trained(session: Session, run: Run, folder: Path, minutes: float) -> tuple[pc.JointModel, Milestones]:
    config, design = session.config, design_of(session, run)

    def measure(model: pc.JointModel) -> dict[str, float]:
        c = measures.conditions_of(session.pictures, TRIAL, run.seed).to(session.device)
        made = {"limiting": measures.limiting(model, c, run.seed)}
        if run.method != "ours":
            made["random"] = measures.random_codes(model, c, run.seed)
        scores = [session.score(name, measures.shown(model, state)) for name, state in made.items()]
        return {name: value for score in scores for name, value in score.items()}

    moments = MOMENTS if session.looks_closer(run) and not config.quick else ()
    milestones = Milestones(measure, folder / "milestones.json", moments)
    engine = pc.Engine(session.device, compile=config.compile and session.device == "cuda")
    learner = make_learner(design, session.pictures, run.method, engine, run.seed)
    learner.engine.synchronise()
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "settings.json", (json.dumps(settings_of(session, run), indent=1) + "\n").encode())
    milestones.start(checkpoints.exists(folder / "checkpoint"))  # now: what was made so far is no training
    box = Box(None if math.isinf(minutes) else minutes, config.resume)
    train(learner, steps_of(design, run.method), folder / "checkpoint", box, milestones)
    if moments and (not milestones.found or milestones.found[-1]["updates"] < learner.step_count):
        milestones.take(learner)  # the end, by as many images as the way there
    return learner.averaged, milestones


def measured(session: Session, run: Run, model: pc.JointModel) -> tuple[dict, dict[str, Tensor]]:
    """All numbers of a trained model, and some pictures."""
    config, pictures = session.config, session.pictures
    count, sweeps = session.most(config.generated, 64), session.most(measures.SWEEPS, 3)
    c = measures.conditions_of(pictures, count, run.seed).to(session.device)
    state, images, seconds = measures.timed(model, lambda: measures.limiting(model, c, run.seed, sweeps))
    gap = gap_of(session, model, state)
    data = examples(session, count, run.seed)
    real = measures.coded(model, data, run.seed)
    found: dict[str, float] = session.score("limiting", images) | {
        "seconds_10k_limiting": seconds * 10_000 / count,
        "gap": gap.gap,
        "gap_error": gap.error,
        "disagreement": measures.disagreement(model.variables["z"], real["z"], state["z"]),
        "half_accuracy": measures.half_accuracy(model, pictures, state, session.most(TESTED, 50)),
        "half_error": measures.half_error(model, pictures, session.most(400, 8), sweeps, run.seed),
        "bits": measures.bits(model, data),
    }
    decoded = measures.shown(model, real)
    found |= session.score("reconstruction", decoded)
    samples = {"real": data.state["x"][:40], "reconstruction": decoded[:40].cpu(), "limiting": images[:40]}
    if run.method != "ours":
        codes, images, seconds = measures.timed(model, lambda: measures.random_codes(model, c, run.seed))
        found |= session.score("random", images) | {"seconds_10k_random": seconds * 10_000 / count}
        found["half_accuracy_random"] = measures.half_accuracy(model, pictures, codes, session.most(TESTED, 50))
        samples["random"] = images[:40]
    if session.looks_closer(run):
        found |= elsewhere(session, run, model, c, real, sweeps)
    return found, samples


def gap_of(session: Session, model: pc.JointModel, state: pc.State) -> Consistency:
    return measures.gap(model, state, steps=session.most(50, 2), chains=session.most(512, 8))


def elsewhere(
    session: Session, run: Run, model: pc.JointModel, c: Tensor, real: pc.State, sweeps: int
) -> dict[str, float]:
    """Does the limit depend on where the chain began, or on how long it ran?"""
    codes = measures.random_codes(model, c, run.seed)
    data, codes = ({name: state[name] for name in ("x", "z")} for state in (real, codes))
    states = {
        "limiting_from_data": measures.limiting(model, real["c"], run.seed, sweeps, start=data),
        "limiting_from_random": measures.limiting(model, c, run.seed, sweeps, start=codes),
        "limiting_longer": measures.limiting(model, c, run.seed, 4 * sweeps),
    }
    found = {"gap_longer": gap_of(session, model, states["limiting_longer"]).gap}
    for name, state in states.items():
        found |= session.score(name, measures.shown(model, state))
    return found


def examples(session: Session, count: int, seed: int) -> pc.Data:
    """Training images, chosen at random."""
    train = session.pictures.train
    return train[torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:count]]
