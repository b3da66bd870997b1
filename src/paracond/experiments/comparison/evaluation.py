"""All measures of one trained model: of its chain, its prior, its conditionals, and of real images.

The first seed gets extra measures of longer chains and of chains with other inits. A limit depends on neither.
"""

from __future__ import annotations

import torch
from torch import Tensor

import paracond as pc
from paracond.baselines import directed
from paracond.data import State
from paracond.diagnostics import Consistency
from paracond.experiments.common.results import Metric
from paracond.experiments.comparison import measures
from paracond.experiments.comparison.setup import Setup
from paracond.experiments.comparison.table import Run

TESTED = 10_000  # test images to classify, at most


def evaluate(setup: Setup, run: Run, model: pc.JointModel) -> tuple[dict, dict[str, Tensor]]:
    """All measures of a trained model, and some of its images."""
    count = setup.config.count(setup.config.generated, 16)
    c = measures.contexts_of(setup.pictures, count, run.seed).to(setup.device)
    data = examples(setup, count, run.seed)
    real = measures.coded(model, data, run.seed)
    state, limit, seconds = measures.timed(model, lambda: limiting(setup, run, model, c))
    found = setup.score("limiting", limit) | {"seconds_10k_limiting": seconds * 10_000 / count}
    more, random = measure_prior(setup, run, model, c)
    found |= more | measure_conditionals(setup, run, model, state)
    found["disagreement"] = measures.disagreement(model.variables["z"], real["z"], state["z"])
    found["bits"] = measures.bits(model, data)
    decoded = measures.shown(model, real)
    found |= setup.score("reconstruction", decoded)
    if setup.extras(run):
        found |= measure_other_chains(setup, run, model, c, real)
    samples = {"real": data.state["x"], "reconstruction": decoded.cpu(), "limiting": limit} | random
    return found, {name: images[:40] for name, images in samples.items()}


def measure_prior(setup: Setup, run: Run, model: pc.JointModel, c: Tensor) -> tuple[dict, dict[str, Tensor]]:
    """Random codes, and chains that begin there. Ours has no prior and uses them as an init only."""
    prior = setup.prior(run)
    codes, images, seconds = measures.timed(model, lambda: measures.random_codes(model, c, run.seed, prior))
    found: dict[str, float] = {}
    if run.length is None:
        found |= setup.score("limiting_from_random", chained(setup, run, model, codes))
    if run.method == "ours":
        return found, {}
    found |= setup.score("random", images) | {"seconds_10k_random": seconds * 10_000 / len(c)}
    count = setup.config.count(TESTED, 50)
    found["half_accuracy_random"] = measures.half_accuracy(model, setup.pictures, codes, count)
    found["elbo"] = float(directed.elbo(model, setup.pictures.test, prior=prior, seed=run.seed).mean())
    return found, {"random": images}


def measure_conditionals(setup: Setup, run: Run, model: pc.JointModel, state: State) -> dict[str, float]:
    """Consistency of the conditionals from states of the limit on, and inference from the upper half of images."""
    gap, pictures, sweeps = gap_of(setup, model, state), setup.pictures, setup.config.count(measures.SWEEPS, 3)
    return {
        "gap": gap.gap,
        "gap_error": gap.error,
        "half_accuracy": measures.half_accuracy(model, pictures, state, setup.config.count(TESTED, 50)),
        "half_error": measures.half_error(model, pictures, setup.config.count(400, 8), sweeps, run.seed),
    }


def gap_of(setup: Setup, model: pc.JointModel, state: State) -> Consistency:
    return measures.gap(model, state, steps=setup.config.count(50, 2), chains=setup.config.count(512, 8))


def measure_other_chains(setup: Setup, run: Run, model: pc.JointModel, c: Tensor, real: State) -> dict[str, float]:
    """FIDs and inconsistency of chains with other inits and other lengths."""
    longer = limiting(setup, run, model, c, measures.LONGER)
    codes = measures.random_codes(model, c, run.seed, setup.prior(run))
    images = {
        "limiting_one_sweep": measures.shown(model, measures.limiting(model, c, run.seed, 1)),
        "limiting_from_data": chained(setup, run, model, real),
        "limiting_longer": measures.shown(model, longer),
        "limiting_from_random_longer": chained(setup, run, model, codes, measures.LONGER),
    }
    found = {"gap_longer": gap_of(setup, model, longer).gap}
    return found | {key: value for name in images for key, value in setup.score(name, images[name]).items()}


def limiting(setup: Setup, run: Run, model: pc.JointModel, c: Tensor, times: int = 1, **options) -> State:
    sweeps = times * setup.config.count(measures.SWEEPS, 3)
    return measures.limiting(model, c, run.seed, sweeps, **options)


def chained(setup: Setup, run: Run, model: pc.JointModel, state: State, times: int = 1) -> Tensor:
    """Images of the chain that begins at a state."""
    init = {name: state[name] for name in ("x", "z")}
    return measures.shown(model, limiting(setup, run, model, state["c"], times, init=init))


def examples(setup: Setup, count: int, seed: int) -> pc.Data:
    """Training images, chosen at random."""
    train = setup.pictures.train
    return train[torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:count]]


def measure_floors(setup: Setup) -> list[Metric]:
    """Measures of real images: their FID, and the accuracy of their class from the upper half by the same estimator."""
    assert setup.fid is not None
    name, pictures, scale = setup.name, setup.pictures, setup.design.scale
    images = pictures.test.state["x"]
    about = f"FID of {len(images)} test images against {len(pictures.train)}; {setup.fid.extractor.protocol}"
    few = len(images) < setup.config.generated
    about += "; fewer images than generated ones, so the FID has more bias" if few else ""
    found = [Metric(f"{name}_floor", setup.fid.score(images).value, "lower", about=about)]
    majority = measures.majority(pictures)
    found.append(Metric(f"{name}_half_majority", majority, "higher", about="the most frequent class"))
    if isinstance(scale, (int, float)):
        real = examples(setup, setup.config.generated, setup.config.seed).state
        means = real["x"].to(setup.device)
        value = measures.bayes_accuracy(means, real["c"], scale, pictures, TESTED)
        about = f"for scale: class from the upper half, with {len(means)} training images as means"
        found.append(Metric(f"{name}_half_real", value, "higher", about=about))
    return found
