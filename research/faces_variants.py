"""Ablations of the faces model: pairs of designs that differ in one choice, trained for the same number of updates.

    union    all faces                                   against the faces with segmentations and attributes
    masks    s as 18 binary masks                        against one label for each pixel
    warm     completion continues from cached y and z    against from scratch (see DENSE)
    warm_all the same, from missing s and c too          against from scratch
    parallel completion runs in parallel with training   against in turn with it

A gain is the excess of the first in F1 and accuracy, or its smaller FID. All pairs are seven trainings of about two
minutes each on an H200. Small networks leave much of a device idle, so several commands may share it: each trains
single sides, and a last one compares them:

    python research/faces_variants.py base --out DIR & python research/faces_variants.py complete --out DIR
    python research/faces_variants.py union --out DIR --resume

A design that occurs in several pairs is trained once, under its first name: "base" is also "labels" and "parallel".
"paper" trains the preset of that name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
import tyro

import paracond as pc
from paracond.data import InputError, at_least
from paracond.datasets.faces import LABELS
from paracond.experiments.common.config import ResumableConfig
from paracond.experiments.common.milestones import train
from paracond.experiments.common.pictures import label_map
from paracond.experiments.common.results import Outcome
from paracond.experiments.common.runner import Unfinished
from paracond.experiments.faces.directions import TRIAL, progress
from paracond.experiments.faces.model import BEST, PAPER, Design, finished, make_learner, small
from paracond.experiments.faces.runner import FacesRunner, open_runner


@dataclass(frozen=True)
class Variant:
    """Changes of a design, and whether it learns from complete faces only."""

    name: str
    changes: tuple[tuple[str, object], ...] = ()
    complete: bool = False


BASE = Variant("base")
#: Every group reads all others, completion has one step, and images stay in place, so that cached values fit. In the
#: preset itself two steps of completion forget their init, and warm completion changes nothing.
DENSE = (("sparse", False), ("completion_steps", 1), ("jitter", 0), ("mirrored", False), ("shifts", 0))
COLD = Variant("cold", DENSE)
PAIRS: Mapping[str, tuple[Variant, Variant]] = {
    "union": (BASE, Variant("complete", complete=True)),
    "masks": (Variant("masks", (("segmentation", "masks"),)), Variant("labels", (("segmentation", "labels"),))),
    "warm": (Variant("warm", (*DENSE, ("warm", ("y", "z")))), COLD),
    "warm_all": (Variant("warm_all", (*DENSE, ("warm", ("s", "c", "y", "z")))), COLD),
    "parallel": (Variant("parallel", (("parallel", True),)), Variant("in_turn", (("parallel", False),))),
}
SIDES = {side.name: side for pair in PAIRS.values() for side in pair} | {"paper": Variant("paper")}


@dataclass(frozen=True)
class Config(ResumableConfig):
    """Ablations of the faces model: some pairs, or single sides of pairs."""

    preset: ClassVar[str] = "best"
    only: tyro.conf.Positional[tuple[str, ...]] = tuple(PAIRS)
    """pairs (union, masks, warm, warm_all, parallel) or sides (base, complete, labels, cold, in_turn, paper, ...)"""
    out: Path = Path("runs/faces_variants")
    data: Path | None = None
    """folder with faces64.npz or CelebAMask-HQ (default: $PARACOND_DATA)"""
    compile: bool = False
    updates: int = 30_000
    """number of updates of each training"""


def main(config: Config) -> Outcome:
    at_least({"--updates": (config.updates, 1)})
    unknown = [name for name in config.only if name not in PAIRS and name not in SIDES]
    if unknown:
        known = ", ".join(dict.fromkeys([*PAIRS, *SIDES]))
        raise InputError(f"no pair or side is called {unknown[0]!r}; there are {known}")
    runner = open_runner(config, BEST)
    return runner.run(parts_of(runner))


def parts_of(runner: FacesRunner) -> dict[str, Callable[[], None]]:
    """The trainings and comparisons by name; a design of several pairs is trained once."""
    parts: dict[str, Callable[[], None]] = {}
    known: dict[tuple[str, bool], str] = {}
    for name in runner.config.only:
        pair = PAIRS.get(name)
        keys = []
        for variant in pair or (SIDES[name],):
            design = design_of(variant, runner)
            key = known.setdefault((str(design), variant.complete), key_of(design, variant))
            parts.setdefault(key, partial(learned, runner, design, variant))
            keys.append(key)
        if pair:
            parts[f"variant_{name}_{design.updates}_{digest(str(keys))}"] = partial(report, runner, name, keys)
    return parts


def design_of(variant: Variant, runner: FacesRunner) -> Design:
    preset = PAPER if variant.name == "paper" else BEST
    base = small(preset) if runner.config.quick else preset
    return replace(base, updates=runner.count(runner.config.updates, 20), **dict(variant.changes))  # type: ignore


def key_of(design: Design, variant: Variant) -> str:
    """The name of a training, which depends on its design and its faces."""
    return f"learning_{variant.name}_{design.updates}_{digest(f'{design} {variant.complete}')}"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def learned(runner: FacesRunner, design: Design, variant: Variant) -> None:
    """Run one training; its numbers go to the details."""
    key = key_of(design, variant)
    own = replace(runner, train=stored(runner.train, design), test=stored(runner.test, design))
    rows = complete_rows(own.train)
    data = own.train[rows] if variant.complete else own.train
    learner = make_learner(design, data, runner.engine(), runner.config.seed)
    train(learner, design.updates, runner.config.out / f"checkpoint_{key}", runner)
    runner.details[key] = progress(own, finished(design, learner.averaged, data, runner.config.seed))
    print("  " + ", ".join(f"{k} {v:.4g}" for k, v in runner.details[key].items()), flush=True)


def report(runner: FacesRunner, name: str, keys: list[str]) -> None:
    first, second = (variant.name for variant in PAIRS[name])
    updates = runner.count(runner.config.updates, 20)
    one, other = (runner.details[key] for key in keys)
    for metric, value in one.items():
        gain = value - other[metric] if metric != "fid" else other[metric] - value
        of = f", FID of {TRIAL:,} images" if metric == "fid" else ""
        about = f"{first} against {second}, {updates:,} updates each{of}: {value:.4g} and {other[metric]:.4g}"
        runner.add(f"{name}_gain_{metric.removeprefix('attribute_')}", gain, "higher", about)


def complete_rows(data: pc.Data) -> torch.Tensor:
    """The rows with segmentations and attributes."""
    return (data.mask["s"].flatten(1).all(1) & data.mask["c"].all(1)).nonzero().squeeze(1)


def stored(data: pc.Data, design: Design) -> pc.Data:
    """The faces with segmentations in the form of the design."""
    s, known = data.state["s"], data.mask["s"].flatten(1).all(1)
    masks = s.ndim == 4
    if masks == (design.segmentation == "masks"):
        return data
    ranks = torch.arange(1, len(LABELS) + 1).view(1, -1, 1, 1)
    other = label_map(s) if masks else (s.unsqueeze(1) == ranks).to(torch.uint8)
    return pc.Data({**data.state, "s": other}, {**data.mask, "s": known})


if __name__ == "__main__":
    try:
        main(tyro.cli(Config)).show()
    except (InputError, Unfinished) as stop:
        raise SystemExit(str(stop)) from None
