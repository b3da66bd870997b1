"""Fashion-MNIST (section 5.3): grey images x in R^(28 x 28), c in {0, ..., 9}, binary latents.

results/fashion.json has our results and those of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from paracond import datasets
from paracond.experiments.common.results import Outcome
from paracond.experiments.images import model as images
from paracond.experiments.images.experiment import Experiment, run
from paracond.experiments.images.model import Design

PAPER = replace(images.PAPER, latents=256)
BEST = Design(
    latents=0,
    maps=16,
    width=96,
    width_class=96,
    batch_size=1024,
    updates=120_000,
    chain_length=(4.0, 12.0),
    jitter=2,
    mirrored=True,
)

# Changes to a preset for few labels. With flat latents the class carries more; chosen on held-out training images.
FEW_LABELS = {"latents": 64, "maps": 0, "chain_length": (4.0, 4.0), "updates": 12_000}

EXPERIMENT = Experiment(
    name="fashion",
    load=datasets.fashion,
    presets={"paper": PAPER, "best": BEST},
    few_labels=FEW_LABELS,
    paper={"fid": 30.49, "accuracy": 0.8861},
    goals={"fid": 28.0, "accuracy": 0.925, "minutes_to_paper": 10.0},
)


@dataclass(frozen=True)
class Config(images.Config):
    """Fashion-MNIST: grey images, classes and latents in one model (section 5.3)."""

    out: Path = Path("runs/fashion")


def main(config: Config) -> Outcome:
    return run(EXPERIMENT, config)
