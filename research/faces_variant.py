"""One training of the faces experiment by itself: one side of a pair of variants, or the preset `paper`.

The experiment trains all sides one after the other. Small networks leave much of a device idle, so several of these
commands may share it:

    python research/faces_variant.py base --out runs/faces & python research/faces_variant.py complete --out runs/faces

Each command saves its measures as a part of the run in OUT. `paracond reproduce faces --out OUT --model MODEL --resume`
uses that part if model and settings agree. The experiment trains a design that occurs in several pairs once, under its
first name: "base" is also "labels" and "parallel".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from paracond.data import InputError
from paracond.experiments.faces import variants
from paracond.experiments.faces.model import BEST, PAPER, small
from paracond.experiments.faces.runner import Config as FacesConfig
from paracond.experiments.faces.runner import open_runner

SIDES = {side.name: side for pair in variants.PAIRS.values() for side in pair} | {"paper": variants.Variant("paper")}


@dataclass(frozen=True)
class Config:
    """One training of a side of a pair, or of the preset `paper`."""

    side: tyro.conf.Positional[str]
    """base, complete, masks, labels, warm, warm_all, cold, parallel, in_turn, or paper"""
    updates: int = 30_000
    seed: int = 0
    model: Path = Path("models/faces")
    """that the run asks all else"""
    out: Path = Path("runs/faces")
    data: Path | None = None
    quick: bool = False
    """small networks, few images: to see whether all of this runs"""


def main(config: Config) -> None:
    if config.side not in SIDES:
        raise InputError(f"no side is called {config.side!r}; there are {', '.join(SIDES)}")
    options: dict = {"seed": config.seed, "quick": config.quick, "resume": True}
    faces = FacesConfig(out=config.out, data=config.data, model=config.model, **options)
    runner, side = open_runner(faces, BEST), SIDES[config.side]
    preset = PAPER if config.side == "paper" else BEST
    design = replace(small(preset) if config.quick else preset, updates=runner.count(config.updates, 20))
    design = replace(design, **dict(side.changes))
    runner.measure(variants.key_of(design, side), lambda: variants.learned(runner, design, side))


if __name__ == "__main__":
    try:
        main(tyro.cli(Config))
    except InputError as error:
        raise SystemExit(str(error)) from None
