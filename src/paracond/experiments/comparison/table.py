"""The table of the comparison: means and standard deviations over seeds, with the paper's values (fig:compare)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from paracond.experiments.common.results import Metric
from paracond.experiments.comparison.measures import HALVES, LONGER, SWEEPS
from paracond.experiments.comparison.model import METHODS, MORE

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
GOALS = {name: value for name, value in PAPER.items() if name.endswith("_random")} | {
    "faces_ours_limiting": PAPER["faces_ours_limiting"],
    "fashion_ours_limiting": 35.0,
    "fashion_ours_before_symmetric": 2.0,
    "fashion_symmetric_before_vae": 2.0,
    "faces_ours_before_symmetric": 0.0,
    "faces_symmetric_before_vae": 0.0,
}
#: Measures of a run: the better direction, and the meaning.
COLUMNS = {
    "random": ("lower", "FID of images by random codes"),
    "limiting": ("lower", f"FID of images by the chain, {SWEEPS} sweeps from the fitted init"),
    "limiting_from_random": ("lower", f"FID of images by the chain, {SWEEPS} sweeps from random codes"),
    "gap": ("lower", f"inconsistency, nats per step, after {SWEEPS} sweeps (includes drift)"),
    "disagreement": ("lower", "distance of codes of the free chain from those of real images, per coordinate"),
    "half_accuracy": ("higher", "class of an image from its upper half, by Bayes' rule on codes of the chain"),
    "half_accuracy_random": ("higher", "class of an image from its upper half, by Bayes' rule on random codes"),
    "elbo": ("higher", "ELBO of test images, nats"),
    "half_error": ("lower", f"error of the lower half given the upper and c: root mean square, {HALVES} chains' mean"),
    "bits": ("higher", "information of a code about its image given c, in bits, at most"),
    "reconstruction": ("lower", "FID of images decoded from codes of real images"),
    "seconds_train": ("lower", "seconds to train, including compilation"),
    "seconds_10k_random": ("lower", "seconds for 10,000 images by random codes"),
    "seconds_10k_limiting": ("lower", "seconds for 10,000 images by the chain"),
    "limiting_one_sweep": ("lower", "FID of images by the chain, 1 sweep from the fitted init"),
    "limiting_longer": ("lower", f"FID of images by the chain, {LONGER * SWEEPS} sweeps from the fitted init"),
    "limiting_from_random_longer": ("lower", f"FID of images by the chain, {LONGER * SWEEPS} sweeps from random codes"),
    "limiting_from_data": ("lower", f"FID of images by the chain, {SWEEPS} sweeps from real images"),
    "gap_longer": ("lower", f"inconsistency, nats per step, after {LONGER * SWEEPS} sweeps"),
}
WAYS = ("random", "limiting")  # ways to generate, in the paper's table
ALONG_LENGTHS = ("limiting", "gap", "disagreement")


@dataclass(frozen=True)
class Run:
    """One training."""

    dataset: str
    method: str
    seed: int
    length: int | None = None
    """chain length, in runs for the trade-off"""

    @property
    def name(self) -> str:
        return f"{self.method}-{self.seed}" if self.length is None else f"length-{self.length}-{self.seed}"


def methods_of(found: Mapping[Run, dict]) -> list[str]:
    """Columns of tables."""
    return [method for method in (*METHODS, *MORE) if any(run.method == method for run in found)]


def values_of(found: Mapping[Run, dict], dataset: str, method: str, key: str) -> list[float]:
    """One for every seed that has it."""
    mine = [n for run, n in found.items() if (run.dataset, run.method, run.length) == (dataset, method, None)]
    return [numbers[key] for numbers in mine if key in numbers]


def summary(found: Mapping[Run, dict], usual: Mapping[str, float]) -> list[Metric]:
    """Means and standard deviations over seeds, the two orders, and the trade-off. `usual`: chain lengths of ours."""
    metrics: list[Metric] = []
    for dataset in dict.fromkeys(run.dataset for run in found):
        for method in methods_of(found):
            for key in COLUMNS:
                values = values_of(found, dataset, method, key)
                metrics += [over_seeds(f"{dataset}_{method}_{key}", values, key)] if values else []
        metrics += orders(found, dataset)
        for length, numbers in by_length(found, dataset, usual[dataset]).items():
            name, about = f"{dataset}_ours_length_{length:g}", f"chain length {length:g}, first seed"
            metrics += [Metric(f"{name}_{k}", numbers[k], "lower", about=about) for k in ALONG_LENGTHS if k in numbers]
    return metrics


def first_seed(found: Mapping[Run, dict]) -> int:
    """The seed with extra measures."""
    return min(run.seed for run in found)


def by_length(found: Mapping[Run, dict], dataset: str, usual: float) -> dict[float, dict]:
    """Measures of ours with the first seed by chain length; empty if only one length was trained."""
    first = first_seed(found)
    mine = {r: n for r, n in found.items() if (r.dataset, r.method, r.seed) == (dataset, "ours", first)}
    each = {usual if run.length is None else run.length: numbers for run, numbers in mine.items()}
    return dict(sorted(each.items())) if len(each) > 1 else {}


def over_seeds(name: str, values: list[float], key: str) -> Metric:
    better, about = COLUMNS[key]
    spread = statistics.stdev(values) if len(values) > 1 else None
    about = f"{about}; {len(values)} seed{'s' * (len(values) > 1)}"
    return Metric(name, statistics.fmean(values), better, spread, PAPER.get(name), GOALS.get(name), about)


def orders(found: Mapping[Run, dict], dataset: str) -> list[Metric]:
    """Differences of limiting FIDs between methods, in standard errors."""
    result = []
    for better, worse in (("ours", "symmetric"), ("symmetric", "vae")):
        a, b = (values_of(found, dataset, method, "limiting") for method in (better, worse))
        if min(len(a), len(b)) < 2:
            continue
        error = math.sqrt(statistics.variance(a) / len(a) + statistics.variance(b) / len(b))
        gap = statistics.fmean(b) - statistics.fmean(a)
        name = f"{dataset}_{better}_before_{worse}"
        about = f"{worse} - {better}, limiting FID: {gap:.4g}, in standard errors of that, {error:.3g}"
        errors = gap / error if error else math.copysign(math.inf, gap)
        result.append(Metric(name, errors, "higher", goal=GOALS.get(name), about=about))
    return result


def beside_the_paper(found: Mapping[Run, dict]) -> list[list[str]]:
    """The table fig:compare: mean and standard deviation over seeds, and the paper's value in brackets."""
    kinds = [(data, how) for data in dict.fromkeys(run.dataset for run in found) for how in WAYS]
    return [[f"{data}, {how}", *(cell(found, data, m, how) for m in methods_of(found))] for data, how in kinds]


def beyond_the_paper(found: Mapping[Run, dict], dataset: str) -> list[list[str]]:
    """The other measures by method; rows with fewer seeds say so."""
    methods = methods_of(found)
    counts = {k: [len(values_of(found, dataset, m, k)) for m in methods] for k in COLUMNS if k not in WAYS}
    measured = {k: [n for n in each if n] for k, each in counts.items() if any(each)}
    most = max(max(each) for each in measured.values())
    named = {k: COLUMNS[k][1] + of_seeds(min(each), max(each), most) for k, each in measured.items()}
    return [[about, *(cell(found, dataset, m, k) for m in methods)] for k, about in named.items()]


def of_seeds(fewest: int, many: int, most: int) -> str:
    """A note for rows with fewer seeds than others."""
    if fewest == most:
        return ""
    return "; first seed alone" if many == 1 else f"; {fewest} to {many} of {most} seeds"


def cell(found: Mapping[Run, dict], dataset: str, method: str, how: str) -> str:
    values, paper = values_of(found, dataset, method, how), PAPER.get(f"{dataset}_{method}_{how}")
    if not values:
        return ""
    mean = statistics.fmean(values)
    spread = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    return f"{mean:.2f}{spread} ({paper:.2f})" if paper is not None else f"{mean:#.3g}".rstrip(".") + spread
