"""How images are generated: three protocols, always together, and the FID along sweeps.

    K  the limit of the chain that begins anew, by exact draws             fid_limit
    P  the paper's: random values, 100 sweeps                              fid_paper_protocol
    G  the limit of the chain that never begins anew, approached from      fid_gibbs_random, fid_gibbs_data
       random values and from codes of real images, 1,600 sweeps

The classes or attributes of real images are given. A generated image is the mean of p(x | rest) at the last state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, stdev

from matplotlib.figure import Figure

import paracond as pc
from paracond.data import State
from paracond.experiments.common.runner import Runner
from paracond.question import Init

PAPER_SWEEPS = 100
LIMIT_SWEEPS = 1600
AGES = (10, 30, 100, 400, LIMIT_SWEEPS)

Score = Callable[[State], float]


def judge_protocols(
    runner: Runner,
    model: pc.JointModel,
    score: Score,
    real: State,
    given: Sequence[str],
    *,
    counts: tuple[int, int],
    seeds: int = 3,
    ages: Sequence[int] | None = None,
    chunk: int | None = None,
) -> None:
    """Add the metrics of all protocols, and a figure of the score along sweeps.

    score: the FID of the images of a state.
    real: examples, all groups that are observed.
    given: the groups of `real` that are clamped.
    counts: the number of images for K and P, and for G and the figure.
    seeds: K and P are repeated with so many seeds.
    ages: the sweeps of the figure (default: 10 to 1,600); the last one is that of G.
    chunk: rows that run at a time in chains of a fixed length.
    """
    (many, some), ages = counts, AGES if ages is None else ages
    known = {name: real[name][:many] for name in given}
    few = {name: value[:some] for name, value in real.items()}
    options: dict = {"chunk": chunk}
    limits = [score(pc.sample(model, known, seed=seed)) for seed in range(seeds)]
    anew = model.regeneration
    _add(runner, "fid_limit", limits, f"{many} exact draws, rate {anew.rate:g}, warm-up {anew.warmup}")
    papers = [
        score(pc.sample(model, known, sweeps=PAPER_SWEEPS, init="random", seed=seed, **options))
        for seed in range(seeds)
    ]
    _add(runner, "fid_paper_protocol", papers, f"{many} images, {PAPER_SWEEPS} sweeps from random values")
    coded = pc.sample(model, few, sweeps=1, **options)
    few = {name: few[name] for name in given}
    inits: dict[str, Init] = {"random": "random", "data": _free(coded, given), "fitted": "fitted"}
    lines = {
        name: {age: score(state) for age, state in along(model, few, init, ages, options)}
        for name, init in inits.items()
    }
    for name in ("random", "data"):
        about = f"{some} images, {ages[-1]} sweeps from {'real images' if name == 'data' else 'random values'}"
        runner.add(f"fid_gibbs_{name}", lines[name][ages[-1]], "lower", about)
    runner.details["fid_along_sweeps"] = {
        name: {str(age): round(value, 3) for age, value in line.items()} for name, line in lines.items()
    }
    caption = f"FID of {some} images along sweeps of chains that never begin anew, and the limit of tours."
    runner.show("Along the chain", caption, figure(lines, fmean(limits)))


def along(
    model: pc.JointModel, given: State, init: Init, ages: Sequence[int], options: dict
) -> Iterator[tuple[int, State]]:
    """States of the same chains after so many sweeps."""
    now = 0
    for age in ages:
        state = pc.sample(model, given, sweeps=age - now, init=init, seed=age, **options)
        init, now = _free(state, list(given)), age
        yield age, state


def _free(state: State, given: Sequence[str]) -> State:
    """What a chain may begin at: all but what is given."""
    return {name: value for name, value in state.items() if name not in given}


def _add(runner: Runner, name: str, values: Sequence[float], about: str) -> None:
    std = stdev(values) if len(values) > 1 else None
    runner.add(name, fmean(values), "lower", f"{about}; {len(values)} seeds of the draws", std)


def figure(lines: dict[str, dict[int, float]], limit: float) -> Figure:
    """The score along sweeps, a line per beginning."""
    drawn = Figure(figsize=(5, 3), layout="constrained")
    axes = drawn.subplots()
    labels = {"random": "from random values", "data": "from data", "fitted": "from the initializer"}
    for name, line in lines.items():
        axes.plot(list(line), list(line.values()), "o-", ms=3, label=labels[name])
    axes.axhline(limit, color="grey", lw=1, ls="--", label="limit of tours")
    axes.set(xscale="log", yscale="log", xlabel="sweeps", ylabel="FID")
    axes.legend(fontsize=8)
    return drawn
