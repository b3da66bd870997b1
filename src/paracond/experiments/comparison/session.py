"""A run of the comparison: its settings, its data and design, and which trainings it is made of.

What there is of a training in OUT/DATASET/RUN is taken, or gone on with, if it was begun with the same settings; what
is refused is refused before anything is learned, and changes nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from torch import Tensor

import paracond as pc
from paracond.baselines.estimators import estimators_of
from paracond.data import InputError, at_least, one_of
from paracond.experiments.common.results import BoxedConfig, choose_device
from paracond.experiments.comparison.model import DESIGNS, LOADERS, METHODS, OWN, Design, Pictures, prior_of, small
from paracond.experiments.comparison.table import Run
from paracond.metrics.fid import FID, Extractor
from paracond.training import checkpoints

OF_BITS = tuple(name for name in estimators_of(pc.Binary(1)) if name != "exact")  # which is for few
OPTIONS = {"scale": "sigma", "chain_length": "length"}  # of the command line, where fields of a design have other names


@dataclass(frozen=True)
class Config(BoxedConfig):
    """VAE, symmetric equilibrium learning and ours on the same conditionals (section 5.5)."""

    out: Path = Path("runs/compare")
    seed: int = 4
    """the first of the seeds"""
    data: Path | None = None
    """folder with the data, or with folders fashion and faces of them (if not given: $PARACOND_DATA)"""
    only: Literal["fashion", "faces"] | None = None
    """one data set instead of both"""
    methods: tuple[str, ...] = METHODS
    """some of vae, symmetric, ours, and vamp, which the paper does not have: a VAE with a VampPrior"""
    seeds: int = 3
    """trainings of each method"""
    lengths: tuple[int, ...] = (1, 2, 4, 8, 16)
    """chain lengths of ours for the trade-off, with the first seed (none: --lengths and nothing)"""
    length: float | None = None
    """chain length of ours in all else, instead of the preset's"""
    updates: int | None = None
    """of each conditional, instead of the preset's number"""
    estimator: str | None = None
    """of the VAE's gradient for bits: gumbel (if not given: it has the best ELBO), straight-through or disarm"""
    sigma: float | Literal["learned"] | None = None
    """of the pixels given the code, the same for all methods and fixed, or learned by each, instead of the preset's"""
    completed_by: Literal["model", "average"] | None = None
    """which parameters of Symmetric and of ours complete examples, instead of the preset's"""
    compile: bool = False
    """fuse the networks with torch.compile (on CUDA only): takes minutes"""
    generated: int = 10_000
    """images for the FID"""
    extras: bool = True
    """of the first seed, also measure learning curves and longer chains, and chains from elsewhere; keep its models"""


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

    def prior(self, run: Run) -> pc.Data | None:
        """The examples whose codes are the prior of a run; none where it is fixed, or there is none."""
        return prior_of(self.design, self.pictures, run.method, run.seed)

    def looks_closer(self, run: Run) -> bool:
        """Whether more is measured of this run than of others."""
        return self.config.extras and run.seed == self.config.seed and run.length is None


def check(config: Config) -> None:
    if not config.methods:
        raise InputError(f"--methods are some of {', '.join(OWN)}, found none")
    for method in config.methods:
        one_of("each of --methods", method, tuple(OWN))
    lengths = {"each of --lengths": (min(config.lengths, default=1), 1)}
    updates = 1 if config.updates is None else config.updates
    at_least({"--seeds": (config.seeds, 1), "--generated": (config.generated, 2), "--updates": (updates, 1), **lengths})
    if config.length is not None and not 1 <= config.length < math.inf:
        raise InputError(f"--length must be at least 1 and finite, found {config.length}")
    if isinstance(config.sigma, (int, float)) and not 0 < config.sigma < math.inf:
        raise InputError(f"--sigma must be positive and finite, or learned, found {config.sigma}")
    if config.minutes is not None and not config.minutes >= 0:
        raise InputError(f"--minutes must not be negative, found {config.minutes}")
    if config.estimator is not None:
        one_of("--estimator", config.estimator, OF_BITS)
        if not any(isinstance(DESIGNS[name].latent, pc.Binary) for name in sets_of(config)):
            raise InputError(f"--estimator is for codes of bits; those of {config.only} are numbers")


def fewer(config: Config) -> Config:
    """Enough runs, in a quick one, to see all kinds of them."""
    return replace(config, seeds=min(config.seeds, 2), lengths=config.lengths[:2]) if config.quick else config


def sets_of(config: Config) -> list[str]:
    return [config.only] if config.only else list(DESIGNS)


def runs_of(session: Session) -> Iterator[Run]:
    """Seed by seed, so that a time box leaves something of every method."""
    config = session.config
    for seed in range(config.seed, config.seed + config.seeds):
        yield from (Run(session.name, method, seed) for method in config.methods)
    if "ours" in config.methods:  # one of them has been trained already
        lengths = [length for length in config.lengths if length != session.design.chain_length]
        yield from (Run(session.name, "ours", config.seed, length) for length in lengths)


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


# --- what there is of a training ---------------------------------------------------------------------------------


def folder_of(session: Session, run: Run) -> Path:
    return session.config.out / run.dataset / run.name


def design_of(session: Session, run: Run) -> Design:
    return session.design if run.length is None else replace(session.design, chain_length=float(run.length))


def settings_of(session: Session, run: Run) -> dict[str, str]:
    """All that numbers of a run depend on, but for its name and the code."""
    design, config = design_of(session, run), session.config
    of_others = set().union(*OWN.values()) - OWN[run.method]
    names = [field.name for field in fields(design) if field.name not in of_others]
    of_design = {name: str(getattr(design, name)) for name in names}
    if "estimator" in of_design and design.estimator is None:
        of_design["estimator"] = next(iter(estimators_of(design.latent)))
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
    differ = [name for name in now if before.get(name) != now[name]]
    other = [f"{OPTIONS.get(name, name)} {before.get(name)} instead of {now[name]}" for name in differ]
    if other:
        raise InputError(f"{folder} was begun with {', '.join(other)}: give another --out")
