"""Is a restricted Boltzmann machine as fast and as good as scikit-learn's, on MNIST?

    python benchmarks/rbm.py --data DIR [--quick] [--out results]

    rbm_seconds_ratio            seconds per pass over the training images, ours / scikit-learn's `BernoulliRBM`
    rbm_pseudo_likelihood_gain   mean of log p(x_i | all other pixels) over held-out pixels, ours - scikit-learn's

Both have equal units, batches, passes and one core; the shortest of three times counts. Ours learns by contrastive
divergence with one sweep. scikit-learn's learns by persistent contrastive divergence with one sweep and does not
shuffle, so it gets the data in one random order.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

import paracond as pc
from paracond.baselines import harmonium
from paracond.data import at_least
from paracond.experiments.common.results import Metric, Outcome

Result = TypeVar("Result")

if TYPE_CHECKING:  # it takes long to import
    from sklearn.neural_network import BernoulliRBM


@dataclass(frozen=True)
class Comparison:
    """Seconds per pass over the training data, the shortest of the repeats, and pseudo-likelihoods in nats, averaged
    over held-out rows and coordinates."""

    seconds: float
    sklearn_seconds: float
    pseudo_likelihood: float
    sklearn_pseudo_likelihood: float
    repeats: int = 1

    @property
    def ratio(self) -> float:
        """Our time over scikit-learn's."""
        return self.seconds / self.sklearn_seconds


def compare_with_sklearn(
    train: Tensor,
    test: Tensor,
    *,
    hidden: int = 128,
    batch_size: int = 100,
    learning_rate: float = 0.2,
    sklearn_rate: float | None = None,
    passes: int = 3,
    persistent: bool = False,
    repeats: int = 1,
    seed: int = 0,
) -> Comparison:
    """Train both on binary data `[rows, ...]`, `repeats` times (with equal results), each on one core.

    sklearn_rate: its learning rate, if it differs from ours.
    """
    from sklearn.neural_network import BernoulliRBM

    train, test = (data.reshape(len(data), -1).float() for data in (train, test))
    theirs_at = learning_rate if sklearn_rate is None else sklearn_rate
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    shuffled = train[order].numpy()
    machine = BernoulliRBM(hidden, learning_rate=theirs_at, batch_size=batch_size, n_iter=passes, random_state=seed)
    options = {"batch_size": batch_size, "learning_rate": learning_rate, "persistent": persistent}
    learn = partial(_learn, train, hidden, passes, seed, options)
    at_least({"repeats": (repeats, 1), "passes": (passes, 1)})
    times, sklearn_times = [], []
    with _one_core():
        for _ in range(repeats):
            taken, ours = _timed(learn)
            times.append(taken / passes)
            taken, _ = _timed(lambda: machine.fit(shuffled))
            sklearn_times.append(taken / passes)
        score, theirs = (float(harmonium.pseudo_likelihood(m, test).mean()) for m in (ours, from_sklearn(machine)))
    return Comparison(min(times), min(sklearn_times), score, theirs, repeats)


def from_sklearn(machine: BernoulliRBM) -> pc.JointModel:
    """scikit-learn's machine as one of ours."""
    hidden, visible = machine.components_.shape
    model = harmonium.rbm(visible, hidden)
    x, y = harmonium.groups(model)
    with torch.no_grad():
        x.side.weight.copy_(torch.as_tensor(machine.components_.T))
        x.side.bias.copy_(torch.as_tensor(machine.intercept_visible_))
        y.side.bias.copy_(torch.as_tensor(machine.intercept_hidden_))
    return model


def _learn(train: Tensor, hidden: int, passes: int, seed: int, options: dict[str, Any]) -> pc.JointModel:
    torch.manual_seed(seed)
    model = harmonium.rbm(train.shape[1], hidden)
    learner = harmonium.ContrastiveDivergence(model, pc.Data({"x": train}), seed=seed, **options)
    return learner.fit(passes * (len(train) // learner.batch_size))


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


@contextmanager
def _one_core() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


def pixels(split: str, data: Path | None, quick: bool) -> Tensor:
    """Binary images: MNIST, or small digits in a quick run."""
    if quick:
        return (pc.datasets.digits(split).state["x"] > 0.5).float()
    return pc.datasets.mnist(split, folder=data).state["x"]


def metrics(machines: Comparison) -> list[Metric]:
    gain = machines.pseudo_likelihood - machines.sklearn_pseudo_likelihood
    which = f", shortest of {machines.repeats}" if machines.repeats > 1 else ""
    timed = f"{machines.seconds:.2f} s per pass, scikit-learn {machines.sklearn_seconds:.2f} s{which}, one core"
    scored = f"nats per pixel, held out: {machines.pseudo_likelihood:.4f}, {machines.sklearn_pseudo_likelihood:.4f}"
    return [
        Metric("rbm_seconds_ratio", machines.ratio, "lower", goal=1.0, about=timed),
        Metric("rbm_pseudo_likelihood_gain", gain, "higher", goal=0.0, about=scored),
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the IDX files")
    parser.add_argument("--quick", action="store_true", help="small digits, once, without goals")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of rbm.json")
    options = parser.parse_args(arguments)
    began, repeats = time.perf_counter(), 1 if options.quick else 3
    train, test = (pixels(split, options.data, options.quick) for split in ("train", "test"))
    found = compare_with_sklearn(train, test, repeats=repeats)
    config = {"quick": options.quick, "repeats": repeats}
    outcome = Outcome("rbm", metrics(found), time.perf_counter() - began, config, "cpu")
    outcome.show()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "rbm.json"
    path.write_text(json.dumps(outcome.record(), indent=1) + "\n")
    print(f"results: {path}")


if __name__ == "__main__":
    main()
