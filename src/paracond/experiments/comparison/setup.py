"""The comparison's settings, data sets, designs and list of trainings.

A training that OUT/DATASET/RUN already has is reused or continued if it has the same settings. If not, the command is
refused before any training starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from torch import Tensor

import paracond as pc
from paracond.baselines.estimators import estimators_of
from paracond.data import InputError, one_of
from paracond.experiments.common.config import ResumableConfig, check_sizes
from paracond.experiments.common.images import make_fid
from paracond.experiments.common.results import choose_device
from paracond.experiments.comparison.model import DESIGNS, LOADERS, METHODS, OWN, Design, Pictures, prior_of, small
from paracond.experiments.comparison.table import Run
from paracond.metrics.fid import FID
from paracond.training import checkpoints

OF_BITS = tuple(name for name in estimators_of(pc.Binary(1)) if name != "exact")  # "exact" is for few bits


@dataclass(frozen=True)
class Config(ResumableConfig):
    """VAE, symmetric equilibrium learning and ours on the same conditionals (section 5.5)."""

    out: Path = Path("runs/compare")
    seed: int = 4
    """the first seed"""
    data: Path | None = None
    """folder with the data, or with the folders fashion and faces (default: $PARACOND_DATA)"""
    only: Literal["fashion", "faces"] | None = None
    """one data set instead of both"""
    methods: tuple[str, ...] = METHODS
    """some of vae, symmetric, ours, and vamp (a VAE with a VampPrior, not in the paper)"""
    seeds: int = 3
    """number of seeds, for each method"""
    lengths: tuple[int, ...] = (1, 2, 4, 8, 16)
    """chain lengths of ours for the trade-off, with the first seed (for none, write --lengths without a number)"""
    updates: int | None = None
    """updates of each conditional, instead of the preset's number"""
    estimator: str | None = None
    """gradient estimator of the VAE for bits: gumbel (default, has the best ELBO), straight-through or disarm"""
    compile: bool = False
    """fuse the networks with torch.compile (on CUDA only): takes minutes"""
    generated: int = 10_000
    """number of images for the FID"""
    extras: bool = True
    """for the first seed, also measure learning curves, longer chains and other inits, and save the models"""


@dataclass
class Setup:
    """A data set, its design and its FID."""

    config: Config
    name: str
    device: str
    pictures: Pictures
    design: Design

    @cached_property
    def fid(self) -> FID | None:
        """The FID against the training images, made on first use; None in a quick run."""
        if self.config.quick:
            return None
        return make_fid(self.device).real(self.pictures.train.state["x"], cache=self.config.out / "cache")

    def score(self, name: str, images: Tensor) -> dict[str, float]:
        """The FID under this name; nothing in a quick run."""
        return {} if self.fid is None else {name: self.fid.score(images).value}

    def prior(self, run: Run) -> pc.Data | None:
        """The examples whose codes are the prior of a run; None for a fixed prior."""
        return prior_of(self.design, self.pictures, run.method, run.seed)

    def extras(self, run: Run) -> bool:
        """Whether this run gets the extra measures."""
        return self.config.extras and run.seed == self.config.seed and run.length is None

    def runs(self) -> Iterator[Run]:
        """All trainings, seed by seed, so that a time box has results of every method."""
        config = self.config
        for seed in range(config.seed, config.seed + config.seeds):
            yield from (Run(self.name, method, seed) for method in config.methods)
        if "ours" in config.methods:  # the design's own length is among the others
            lengths = [length for length in config.lengths if length != self.design.chain_length]
            yield from (Run(self.name, "ours", config.seed, length) for length in lengths)

    def folder(self, run: Run) -> Path:
        return self.config.out / run.dataset / run.name

    def design_of(self, run: Run) -> Design:
        return self.design if run.length is None else replace(self.design, chain_length=float(run.length))

    def settings(self, run: Run) -> dict[str, str]:
        """All settings that the numbers of a run depend on."""
        design, config = self.design_of(run), self.config
        of_others = set().union(*OWN.values()) - OWN[run.method]
        names = [field.name for field in fields(design) if field.name not in of_others]
        of_design = {name: str(getattr(design, name)) for name in names}
        if "estimator" in of_design and design.estimator is None:
            of_design["estimator"] = next(iter(estimators_of(design.latent)))
        others = {"generated": config.generated, "quick": config.quick, "compile": config.compile}
        others["extras"] = self.extras(run)
        return of_design | {name: str(value) for name, value in others.items()}

    def check_saved(self, run: Run) -> None:
        """Refuse to overwrite a saved training, or to continue one with other settings."""
        folder = self.folder(run)
        done = (folder / "found.json").is_file()
        if not done and not checkpoints.exists(folder / "checkpoint"):
            return
        if not self.config.resume:
            what = "results" if done else "a checkpoint"
            raise InputError(f"{folder} has {what}: continue with --resume, or choose another --out")
        saved = json.loads((folder / ("found.json" if done else "settings.json")).read_text())
        before, now = saved["settings"] if done else saved, self.settings(run)
        differ = [name for name in now if before.get(name) != now[name]]
        other = [f"{name} {before.get(name)} instead of {now[name]}" for name in differ]
        if other:
            raise InputError(f"{folder} was trained with {', '.join(other)}: choose another --out")


def check(config: Config) -> None:
    if not config.methods:
        raise InputError(f"--methods needs some of {', '.join(OWN)}, found none")
    for method in config.methods:
        one_of("each of --methods", method, tuple(OWN))
    lengths = {"each of --lengths": (min(config.lengths, default=1), 1)}
    check_sizes(config, {"--seeds": (config.seeds, 1), **lengths})
    if config.estimator is not None:
        one_of("--estimator", config.estimator, OF_BITS)
        if not any(isinstance(DESIGNS[name].latent, pc.Binary) for name in sets_of(config)):
            raise InputError(f"--estimator needs binary codes; the codes of {config.only} are real")


def reduced(config: Config) -> Config:
    """A quick run has at most two seeds and two chain lengths."""
    return replace(config, seeds=min(config.seeds, 2), lengths=config.lengths[:2]) if config.quick else config


def sets_of(config: Config) -> list[str]:
    return [config.only] if config.only else list(DESIGNS)


def chosen(config: Config, name: str) -> Design:
    design = small(DESIGNS[name]) if config.quick else DESIGNS[name]
    estimator = config.estimator if isinstance(design.latent, pc.Binary) else None
    return replace(design, updates=config.updates or design.updates, estimator=estimator or design.estimator)


def load_setup(config: Config, name: str) -> Setup:
    device = choose_device(config.device)
    folder = config.data
    if folder is not None and (folder / name).is_dir():
        folder = folder / name
    pictures, design = LOADERS[name](folder), chosen(config, name)
    if config.quick:
        pictures = replace(pictures, train=pictures.train[:400], test=pictures.test[:100])
    return Setup(config, name, device, pictures, design)
