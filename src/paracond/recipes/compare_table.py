"""The table of the comparison: numbers of all runs, means and spreads over seeds beside the paper's (fig:compare)."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from paracond.recipes.compare_model import METHODS
from paracond.results import Metric

PAPER = {
    "fashion_vae_random": 81.70,
    "fashion_vae_limiting": 52.66,
    "fashion_symmetric_random": 52.39,
    "fashion_symmetric_limiting": 47.24,
    "fashion_ours_limiting": 35.87,
    "faces_vae_random": 86.55,
    "faces_vae_limiting": 133.31,
    "faces_symmetric_random": 98.97,
    "faces_symmetric_limiting": 120.65,
    "faces_ours_limiting": 118.92,
}
GOALS = {
    "fashion_vae_random": 81.70,
    "fashion_symmetric_random": 52.39,
    "fashion_ours_limiting": 35.0,
    "faces_vae_random": 86.55,
    "faces_symmetric_random": 98.97,
    "faces_ours_limiting": 118.92,
    "fashion_ours_before_symmetric": 2.0,
    "fashion_symmetric_before_vae": 2.0,
    "faces_ours_before_symmetric": 0.0,
    "faces_symmetric_before_vae": 0.0,
}
#: What is measured of every run, besides the two FIDs: which direction is better, and what it is.
COLUMNS = {
    "gap": ("lower", "nats per step by which conditionals disagree, in the limit"),
    "disagreement": ("lower", "Frechet distance of codes of the unclamped chain from those of real images, relative"),
    "half_accuracy": ("higher", "class from the upper half, by Bayes' rule on limiting codes"),
    "half_accuracy_random": ("higher", "class from the upper half, by Bayes' rule on random codes"),
    "bits": ("higher", "what the code says of an image given its class"),
    "reconstruction": ("lower", "FID of images decoded from codes of real images"),
    "seconds_train": ("lower", "training alone"),
    "seconds_10k_random": ("lower", "10,000 images by random codes"),
    "seconds_10k_limiting": ("lower", "10,000 images by the chain"),
    "limiting_from_data": ("lower", "FID of the chain from real images, as many sweeps"),
    "limiting_from_random": ("lower", "FID of the chain from random codes, as many sweeps"),
    "limiting_longer": ("lower", "FID of the chain from the start, four times as many sweeps"),
}
ALONG_LENGTHS = ("limiting", "gap", "disagreement")


@dataclass(frozen=True)
class Run:
    """One training."""

    dataset: str
    method: str
    seed: int
    length: int | None = None
    """chain length, where that is what is varied"""

    @property
    def name(self) -> str:
        return f"{self.method}-{self.seed}" if self.length is None else f"length-{self.length}"


def summary(found: dict[Run, dict]) -> list[Metric]:
    """Means and standard deviations over seeds, the two orders, and the trade-off."""
    metrics: list[Metric] = []
    for dataset in dict.fromkeys(run.dataset for run in found):
        for method in METHODS:
            mine = [n for run, n in found.items() if (run.dataset, run.method, run.length) == (dataset, method, None)]
            for key in ("random", "limiting", *COLUMNS):
                values = [numbers[key] for numbers in mine if key in numbers]
                metrics += [over_seeds(f"{dataset}_{method}_{key}", values, key)] if values else []
        metrics += orders(dataset, metrics)
        for run, numbers in found.items():
            if run.dataset == dataset and run.length is not None:
                name = f"{dataset}_ours_length_{run.length}"
                about = f"chain length {run.length}, first seed"
                metrics += [
                    Metric(f"{name}_{k}", numbers[k], "lower", about=about) for k in ALONG_LENGTHS if k in numbers
                ]
    return metrics


def over_seeds(name: str, values: list[float], key: str) -> Metric:
    better, about = COLUMNS.get(key, ("lower", f"FID of {key} images"))
    spread = statistics.stdev(values) if len(values) > 1 else None
    about = f"{about}; {len(values)} seed{'s' * (len(values) > 1)}"
    return Metric(name, statistics.fmean(values), better, spread, PAPER.get(name), GOALS.get(name), about)


def orders(dataset: str, metrics: list[Metric]) -> list[Metric]:
    """By how many standard errors of their difference one method's limiting FID is under another's."""
    by_name = {metric.name: metric for metric in metrics}
    result = []
    for better, worse in (("ours", "symmetric"), ("symmetric", "vae")):
        a, b = (by_name.get(f"{dataset}_{method}_limiting") for method in (better, worse))
        if a is None or b is None or not a.std or not b.std:
            continue
        seeds = int(a.about.split(";")[-1].split()[0])
        errors = (b.value - a.value) / math.sqrt((a.std**2 + b.std**2) / seeds)
        name = f"{dataset}_{better}_before_{worse}"
        about = f"({worse} - {better}), limiting FID, in standard errors of the difference"
        result.append(Metric(name, errors, "higher", goal=GOALS.get(name), about=about))
    return result
