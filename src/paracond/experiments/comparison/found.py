"""All numbers of one trained model: by the limit of its chain, by random codes, of its conditionals, of real images.

Of the first seed, of which more is measured, also by chains that begin elsewhere, or last longer: a limit would not
depend on that.
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
from paracond.experiments.comparison.session import Session
from paracond.experiments.comparison.table import Run

TESTED = 10_000  # test images, at most, whose class is asked for


def measured(session: Session, run: Run, model: pc.JointModel) -> tuple[dict, dict[str, Tensor]]:
    """All numbers of a trained model, and some pictures."""
    count = session.most(session.config.generated, 16)
    c = measures.conditions_of(session.pictures, count, run.seed).to(session.device)
    data = examples(session, count, run.seed)
    real = measures.coded(model, data, run.seed)
    found, state, limit = of_limit(session, run, model, c)
    more, random = of_prior(session, run, model, c)
    found |= more | of_conditionals(session, run, model, state)
    found["disagreement"] = measures.disagreement(model.variables["z"], real["z"], state["z"])
    found["bits"] = measures.bits(model, data)
    decoded = measures.shown(model, real)
    found |= session.score("reconstruction", decoded)
    if session.looks_closer(run):
        found |= elsewhere(session, run, model, c, real)
    samples = {"real": data.state["x"], "reconstruction": decoded.cpu(), "limiting": limit} | random
    return found, {name: images[:40] for name, images in samples.items()}


def of_limit(session: Session, run: Run, model: pc.JointModel, c: Tensor) -> tuple[dict, State, Tensor]:
    state, images, seconds = measures.timed(model, lambda: limiting(session, run, model, c))
    return session.score("limiting", images) | {"seconds_10k_limiting": seconds * 10_000 / len(c)}, state, images


def of_prior(session: Session, run: Run, model: pc.JointModel, c: Tensor) -> tuple[dict, dict[str, Tensor]]:
    """Random codes, and the chain from there. Ours has no prior: for it they are only somewhere to begin."""
    prior = session.prior(run)
    codes, images, seconds = measures.timed(model, lambda: measures.random_codes(model, c, run.seed, prior))
    found: dict[str, float] = {}
    if run.length is None:
        found |= session.score("limiting_from_random", chained(session, run, model, codes))
    if run.method == "ours":
        return found, {}
    found |= session.score("random", images) | {"seconds_10k_random": seconds * 10_000 / len(c)}
    asked = session.most(TESTED, 50)
    found["half_accuracy_random"] = measures.half_accuracy(model, session.pictures, codes, asked)
    found["elbo"] = float(directed.elbo(model, session.pictures.test, prior=prior, seed=run.seed).mean())
    return found, {"random": images}


def of_conditionals(session: Session, run: Run, model: pc.JointModel, state: State) -> dict[str, float]:
    """Do they agree, from states of the limit on, and what do they say of images of which half is hidden?"""
    gap, pictures, sweeps = gap_of(session, model, state), session.pictures, session.most(measures.SWEEPS, 3)
    return {
        "gap": gap.gap,
        "gap_error": gap.error,
        "half_accuracy": measures.half_accuracy(model, pictures, state, session.most(TESTED, 50)),
        "half_error": measures.half_error(model, pictures, session.most(400, 8), sweeps, run.seed),
    }


def gap_of(session: Session, model: pc.JointModel, state: State) -> Consistency:
    return measures.gap(model, state, steps=session.most(50, 2), chains=session.most(512, 8))


def elsewhere(session: Session, run: Run, model: pc.JointModel, c: Tensor, real: State) -> dict[str, float]:
    """Does the limit depend on where the chain began, or on how long it ran?"""
    longer = limiting(session, run, model, c, measures.LONGER)
    codes = measures.random_codes(model, c, run.seed, session.prior(run))
    images = {
        "limiting_one_sweep": measures.shown(model, measures.limiting(model, c, run.seed, 1)),
        "limiting_from_data": chained(session, run, model, real),
        "limiting_longer": measures.shown(model, longer),
        "limiting_from_random_longer": chained(session, run, model, codes, measures.LONGER),
    }
    found = {"gap_longer": gap_of(session, model, longer).gap}
    return found | {key: value for name in images for key, value in session.score(name, images[name]).items()}


def limiting(session: Session, run: Run, model: pc.JointModel, c: Tensor, times: int = 1, **options) -> State:
    sweeps = times * session.most(measures.SWEEPS, 3)
    return measures.limiting(model, c, run.seed, sweeps, **options)


def chained(session: Session, run: Run, model: pc.JointModel, state: State, times: int = 1) -> Tensor:
    """Images of the chain that begins at a state."""
    init = {name: state[name] for name in ("x", "z")}
    return measures.shown(model, limiting(session, run, model, state["c"], times, init=init))


def examples(session: Session, count: int, seed: int) -> pc.Data:
    """Training images, chosen at random."""
    train = session.pictures.train
    return train[torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:count]]


def measured_floors(session: Session) -> list[Metric]:
    assert session.fid is not None
    name, pictures, scale = session.name, session.pictures, session.design.scale
    images = pictures.test.state["x"]
    about = f"FID of {len(images)} test images against {len(pictures.train)}; {session.fid.extractor.protocol}"
    few = len(images) < session.config.generated
    about += "; of fewer images than are drawn, so with more bias than theirs" if few else ""
    found = [Metric(f"{name}_floor", session.fid.score(images).value, "lower", about=about)]
    found.append(
        Metric(f"{name}_half_majority", measures.majority(pictures), "higher", about="the most frequent class")
    )
    if isinstance(scale, (int, float)):
        real = examples(session, session.config.generated, session.config.seed).state
        means = real["x"].to(session.device)
        value = measures.told_by(means, real["c"], scale, pictures, TESTED)
        about = f"for scale: class from the upper half, {len(means)} training images in the place of means"
        found.append(Metric(f"{name}_half_real", value, "higher", about=about))
    return found
