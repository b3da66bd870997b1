"""MNIST, binarised (section 5.3): x in {0, 1}^(28 x 28), c in {0, ..., 9}, binary latents.

results/mnist.json has our results and those of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from paracond import datasets
from paracond.experiments.common.results import Outcome
from paracond.experiments.images import model as images
from paracond.experiments.images.experiment import Experiment, run
from paracond.experiments.images.model import Design

PAPER = replace(images.PAPER, latents=64)
BEST = Design(latents=64, width=96, width_class=96, batch_size=1024, updates=60_000, jitter=2)
FEW_LABELS = {"updates": 15_000, "shifts": 2}  # changes to a preset

EXPERIMENT = Experiment(
    name="mnist",
    load=datasets.mnist,
    presets={"paper": PAPER, "best": BEST},
    few_labels=FEW_LABELS,
    paper={"fid": 5.87, "accuracy": 0.9904},
    goals={
        "fid": 4.0,
        "accuracy": 0.993,
        "minutes_to_paper": 2.0,
        "accuracy_100_labels": 0.92,
        "accuracy_1000_labels": 0.965,
    },
    half_pixels=True,
)


@dataclass(frozen=True)
class Config(images.Config):
    """MNIST: images, classes and latents in one model (section 5.3)."""

    out: Path = Path("runs/mnist")


def main(config: Config) -> Outcome:
    return run(EXPERIMENT, config)
