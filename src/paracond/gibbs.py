"""Chains that never begin anew: the kernel of the paper alone (`regeneration=0`), and when to stop it.

`chains` chains begin at the first state of every row and run in stretches. With `Converged`, stretches of doubled
length are run, each measured afresh so that the earlier ones are its warm-up, until one has R-hat and effective sample
size in bounds. The first one has no warm-up, so it is never the answer: where all chains are still on the way from
where they began, they agree. How long that takes depends on the model, and nothing bounds it. More chains make answers
more precise, not runs shorter, since R-hat <= 1.05 needs as many draws of each chain whatever their number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paracond.chain import Chain, Observer, transition
from paracond.data import InputError, as_count, shown
from paracond.observers import Marginals, Monitor
from paracond.question import Answer, Diagnostics, Moments, Question
from paracond.runtime.engine import Engine

FIRST_STRETCH = 32  # sweeps


@dataclass(frozen=True)
class Converged:
    """Runs chains until they agree.

    ess: the effective sample size that every row must reach.
    limit: the largest number of sweeps.
    r_hat: the largest R-hat that counts as agreement.
    """

    ess: float = 200
    limit: int = 2000
    r_hat: float = 1.05

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", as_count("limit", self.limit))
        for name, least in (("ess", 0.0), ("r_hat", 1.0)):
            found = getattr(self, name)
            if not isinstance(found, (int, float)) or isinstance(found, bool) or not found >= least:
                raise InputError(f"{name} must be a number, at least {least:g}, found {shown(found)}")

    def run(self, chains: Chains) -> bool:
        """Run; whether the chains have converged."""
        chains.disperse()
        length = min(FIRST_STRETCH, max(1, self.limit // 3))
        chains.stretch(length)
        while chains.sweeps < self.limit:
            length = min(2 * length, self.limit - chains.sweeps)
            chains.stretch(length)
            if chains.converged(self):
                return True
        return False


@dataclass(frozen=True)
class Sweeps:
    """Runs chains for a fixed number of sweeps.

    count: sweeps to average over.
    warmup: sweeps before these (default: as many).
    """

    count: int
    warmup: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", as_count("sweeps", self.count))
        if self.warmup is not None:
            object.__setattr__(self, "warmup", as_count("warmup", self.warmup, 0))

    def run(self, chains: Chains) -> bool:
        """Run; whether the chains have converged."""
        chains.stretch(self.count if self.warmup is None else self.warmup)
        chains.stretch(self.count)
        return chains.converged(Converged())


class Chains:
    """The chains of one question, run in stretches; marginals are those of the last stretch."""

    def __init__(
        self,
        question: Question,
        relevant: set[str],
        chains: int,
        scan: str,
        engine: str | Engine,
        generator: torch.Generator,
    ):
        self.question, self.model, self.chains = question, question.model, chains
        self.init = question.init
        each = question.repeated(chains)
        self.state = each.first_state(generator)
        irrelevant = [name for name in self.model.names if name not in relevant]
        clamp = each.mask | {name: torch.ones_like(each.mask[name]) for name in irrelevant}
        self.chain = Chain(self.model, clamp=clamp, scan=scan, engine=engine, generator=generator)
        self.open = [name for name in question.wanted if name in self.chain.free]
        self.marginals: dict[str, Marginals] = {}
        self.monitors: dict[str, Monitor] = {}
        self.sweeps = self.measured = 0

    @torch.no_grad()
    def disperse(self) -> None:
        """Draw numbers, which begin alike, where finite groups put them, which begin anywhere (if none has an init).

        Otherwise chains may all begin in one mode, and then agree.
        """
        if self.init != "random":
            return
        for name in [name for name in self.chain.free if not self.model.variables[name].finite]:
            move = transition(self.model, name, self.state, self.chain.clamp.get(name), self.chain.generator)
            self.state = {**self.state, name: move.value}

    def stretch(self, sweeps: int) -> None:
        """Run on, and measure this stretch alone."""
        variables = self.model.variables
        self.marginals = {n: Marginals(variables[n], n) for n in self.open}
        self.monitors = {n: Monitor(variables[n], n, self.chains, sweeps) for n in self.open}
        observers: list[Observer] = [*self.marginals.values(), *self.monitors.values()]
        self.state = self.chain.advance(self.state, self.chain.sweeps(sweeps), observers)
        self.sweeps += sweeps
        self.measured = sweeps

    def converged(self, bounds: Converged) -> bool:
        """Whether the last stretch is in bounds, in every row."""
        reports = [monitor.report() for monitor in self.monitors.values()]
        return all(bool((r <= bounds.r_hat).all() and (e >= bounds.ess).all()) for r, e in reports)

    @property
    def undefined(self) -> Tensor:
        """As `first` of `Undefined`, of every row of the question."""
        found = self.chain.undefined
        return torch.full((0,), -1) if found is None else found.first.unflatten(0, (-1, self.chains)).amax(1)

    def answer(self, converged: bool) -> Answer:
        reports = {name: monitor.report() for name, monitor in self.monitors.items()}
        diagnostics = Diagnostics(
            converged,
            self.sweeps,
            self.init,
            r_hat={n: r for n, (r, _) in reports.items()},
            ess={n: e for n, (_, e) in reports.items()},
            measured=self.measured,
        )
        moments = {name: self._marginal(name) for name in self.question.wanted}
        samples = {name: self.state[name].unflatten(0, (-1, self.chains)) for name in self.question.wanted}
        return self.question.answer(moments, samples, diagnostics)

    def _marginal(self, name: str) -> Moments:
        """Mean and standard deviation of encode(x), over chains and steps."""
        if name not in self.marginals:
            return replace(self.question.certain(name), error=None, error_of_std=None)
        marginal = self.marginals[name]
        means = marginal.mean.unflatten(0, (-1, self.chains))
        variances = marginal.variance.unflatten(0, (-1, self.chains))
        mean, variance = means.mean(1), variances.mean(1) + means.var(1, correction=0)
        return Moments(mean.to(self.model.dtype), variance.sqrt().to(self.model.dtype))


def joined(answers: list[Answer]) -> Answer:
    """One answer from those of some rows each."""

    def rows(name: str, source: list) -> dict[str, Tensor]:
        parts = [getattr(each, name) for each in source]
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}

    found = [answer.diagnostics for answer in answers]
    diagnostics = Diagnostics(
        all(each.converged for each in found),
        max(each.sweeps for each in found),
        found[0].init,
        r_hat=rows("r_hat", found),
        ess=rows("ess", found),
        measured=min(each.measured for each in found),
    )
    probabilities, mean, std = (rows(name, answers) for name in ("probabilities", "mean", "std"))
    return Answer(probabilities, mean, std, rows("decisions", answers), rows("samples", answers), diagnostics)
