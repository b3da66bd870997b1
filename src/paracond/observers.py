"""Observers: statistics of a running chain, in memory that does not grow with the chain.

An observer is called with every `Move`. Marginals are Rao-Blackwellised: instead of draws they average the
conditionals that the draws come from,

    p(x_i) ~ (1/T) sum_t p_theta_i(x_i | x_-i^t),

which has the same expectation and less variance. Clamped coordinates count with their known value.

Convergence is judged from M chains (`Monitor`). For a scalar quantity with conditional mean m_t and conditional
variance v_t, let V = E[v] + Var[m] be its marginal variance (the law of total variance). With W the mean over
half-chains of V and B the variance of half-chain means of m,

    R-hat = sqrt(((n - 1) / n W + B) / W)          (split R-hat; v = 0 gives the classical one)
    ess   = V / mcse^2,

where mcse^2 is the larger of (variance of chain means) / M and (variance of the means of K consecutive batches of each
chain) / (M K). So `ess` is the number of independent draws from the marginal that would give the same accuracy.

Quantities are all coordinates of encode(x), and for numbers their squares (x - c)^2 as well, c being where the chains
of a question are at first. Their conditional means are v + (m - c)^2, their conditional variances 2 v^2 + 4 v (m - c)^2
as those of a Gaussian. So a chain whose mean stands still while its scale moves is seen. The worst quantity decides.

A probability counts as known (R-hat 1, ess infinite) where its mcse is under `KNOWN`, if chains beyond `FEW` are not
counted: ratios for a class of probability 1e-9 mean nothing, but many chains that all begin at the same place agree as
well. One chain alone has no R-hat: a chain that never left its mode would look as good as any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.chain import Move
from paracond.data import InputError
from paracond.families import Family

KNOWN = 0.005  # standard error of a probability that needs no more draws
FEW = 8  # more chains must not make a run shorter
TINY = 1e-24  # variances below this, in units of the squared mean, are rounding


def summary(family: Family, move: Move, rao_blackwell: bool = True) -> tuple[Tensor, Tensor]:
    """Return mean and variance of encode(x_i), `[batch, *encoding]`: of its conditional, or of the draw itself."""
    drawn = family.encode(move.value).to(move.distribution.mean.dtype)
    if not rao_blackwell:
        return drawn, torch.zeros_like(drawn)
    mean, variance = move.distribution.mean, move.distribution.variance
    if move.clamp is None:
        return mean, variance
    clamp = family.expand(move.clamp)
    return torch.where(clamp, drawn, mean), torch.where(clamp, 0, variance)


@dataclass
class Marginals:
    """Accumulates mean and variance of encode(x_name) in every row, over the redraws of `name`.

    family: the family of the group.
    name: the group.
    rao_blackwell: whether to average conditionals, and not draws.
    """

    family: Family
    name: str
    rao_blackwell: bool = True
    count: Tensor | None = None  # [batch, 1, ...]: rows may be redrawn more or less often
    centre: Tensor | None = None
    spread: Tensor | None = None

    def __call__(self, move: Move) -> None:
        if move.name != self.name:
            return
        mean, variance = (part.double() for part in summary(self.family, move, self.rao_blackwell))
        if self.centre is None or self.spread is None or self.count is None:
            batch = len(mean) if move.rows is None else move.batch
            self.centre, self.spread = mean.new_zeros(2, batch, *mean.shape[1:])
            self.count = mean.new_zeros(batch, *[1] * (mean.ndim - 1))
        rows = slice(None) if move.rows is None else move.rows
        # Welford's update, in double precision: differences of large sums of squares would lose the variance.
        self.count[rows] += 1
        before = mean - self.centre[rows]
        self.centre[rows] += before / self.count[rows]
        self.spread[rows] += before * (mean - self.centre[rows]) + variance

    @property
    def mean(self) -> Tensor:
        if self.centre is None:
            raise InputError(f"{self.name!r} was never redrawn: run the chain for longer")
        return self.centre

    @property
    def variance(self) -> Tensor:
        if self.spread is None or self.count is None:
            raise InputError(f"{self.name!r} was never redrawn: run the chain for longer")
        return self.spread / self.count


class Monitor:
    """Accumulates split R-hat and effective sample size of a group, for every question.

    Rows are ordered question by question: row q * chains + k is chain k of question q.

    family: the family of the group.
    name: the group.
    chains: the number of chains per question.
    length: the number of redraws to come.
    batches: the number of batches into which they are divided.
    """

    def __init__(self, family: Family, name: str, chains: int, length: int, batches: int = 16):
        self.family, self.name, self.chains = family, name, chains
        orders = 1 if family.finite else 2  # the square of a code of 0 and 1 is the code
        self.traces = [Trace(chains, length, batches) for _ in range(orders)]
        self.origin: Tensor | None = None

    def __call__(self, move: Move) -> None:
        if move.name != self.name:
            return
        if move.rows is not None:
            raise InputError("Monitor needs every row at every redraw: run the chain without per_row")
        mean, variance = (part.double().reshape(len(part), -1) for part in summary(self.family, move))
        self.traces[0].add(mean, variance)
        if len(self.traces) == 1:
            return
        if self.origin is None:
            self.origin = by_question(mean, self.chains).mean(1, keepdim=True)
        squares = (by_question(mean, self.chains) - self.origin).square_().flatten(0, 1)
        self.traces[1].add(variance + squares, 2 * variance * (variance + 2 * squares))

    def report(self) -> tuple[Tensor, Tensor]:
        """Return the largest R-hat and the smallest ess over the quantities of each question, `[questions]` each."""
        if not self.traces[0].seen:
            raise InputError(f"{self.name!r} was never redrawn: run the chain for longer")
        r_hats, sizes = [], []
        for trace in self.traces:
            r_hat, ess, error = trace.convergence()
            if self.family.finite:
                known = error * math.sqrt(max(1, self.chains / FEW)) < KNOWN
                r_hat, ess = torch.where(known, 1.0, r_hat), torch.where(known, torch.inf, ess)
            r_hats.append(r_hat.amax(-1))
            sizes.append(ess.amin(-1))
        return torch.stack(r_hats).amax(0), torch.stack(sizes).amin(0)


class Trace:
    """Sums over scalar quantities of chains, from which convergence is judged.

    Whatever the length, these are four numbers for every quantity of every chain, and some for every question.

    chains, length, batches: as in `Monitor`.
    """

    def __init__(self, chains: int, length: int, batches: int = 16):
        self.chains, self.half, self.size = chains, length // 2, max(1, length // batches)
        self.seen = 0
        self.counts = [0, 0]  # redraws in the first half and in the second

    def _start(self, mean: Tensor) -> None:
        """mean: `[questions, chains, quantities]`."""
        # One for all chains of a question, or their differences would be lost. Nothing depends on it but rounding.
        self.reference = mean.mean(1)
        self.sums = mean.new_zeros(2, *mean.shape)
        self.batch = torch.zeros_like(mean)
        shape = self.reference.shape
        self.squares, self.inner, self.batch_sum, self.batch_squares = (mean.new_zeros(shape) for _ in range(4))

    def add(self, mean: Tensor, variance: Tensor) -> None:
        """Count one redraw: conditional means and variances, `[rows, quantities]`."""
        mean = by_question(mean, self.chains)
        if not self.seen:
            self._start(mean)
        mean = mean - self.reference.unsqueeze(1)
        half = int(self.seen >= self.half)
        self.sums[half] += mean
        self.batch += mean
        self.squares += mean.square_().sum(1)
        self.inner += by_question(variance, self.chains).sum(1)
        self.counts[half] += 1
        self.seen += 1
        if self.seen % self.size == 0:
            self.batch /= self.size
            self.batch_sum += self.batch.sum(1)
            self.batch_squares += self.batch.square_().sum(1)
            self.batch.zero_()

    def convergence(self) -> tuple[Tensor, Tensor, Tensor]:
        """Compute R-hat, ess and mcse `[questions, quantities]`."""
        if min(self.counts) == 0:  # one half is too little
            unknown = torch.full_like(self.inner, torch.nan)
            return unknown, unknown, unknown
        return self._r_hat(), *self._ess()

    def _r_hat(self) -> Tensor:
        chains, n = self.chains, self.seen / 2
        if chains == 1:  # a chain that never left its mode looks as good as any
            return torch.full_like(self.inner, torch.nan)
        halves = torch.stack([s / c for s, c in zip(self.sums, self.counts, strict=True)])
        explained = sum(c * half.square().sum(1) for c, half in zip(self.counts, halves, strict=True))
        within = self._inner + self._spread(explained, self.seen - 2)
        between = halves.transpose(0, 1).flatten(1, 2).var(1)
        return self._ratio((n - 1) / n * within + between, within, 1.0).sqrt()

    def _ess(self) -> tuple[Tensor, Tensor]:
        chains, n = self.chains, self.seen
        means = self.sums.sum(0) / n
        total = self._inner + self._spread(n * means.square().sum(1), n - 1)
        count = n // self.size * chains
        mcse = (self.batch_squares - self.batch_sum.square() / count).clamp(min=0) / max(1, count - 1)
        mcse = mcse * self.size / (n * chains)
        if chains > 1:
            total = total + means.var(1, correction=0)
            mcse = torch.maximum(mcse, means.var(1) / chains)
        return self._ratio(total, mcse, torch.inf), mcse.sqrt()

    @property
    def _inner(self) -> Tensor:
        """E[v]."""
        return self.inner / (self.seen * self.chains)

    def _spread(self, explained: Tensor, freedom: int) -> Tensor:
        """Var[m] within chains or their halves, whose means explain so much of the squares."""
        return (self.squares - explained).clamp(min=0) / (max(1, freedom) * self.chains)

    def _ratio(self, numerator: Tensor, denominator: Tensor, still: float) -> Tensor:
        """Divide variances; `still` where a quantity never varied."""
        rounding = TINY * self.reference.square()
        return torch.where(torch.maximum(numerator, denominator) <= rounding, still, numerator / denominator)


def by_question(rows: Tensor, chains: int) -> Tensor:
    """`[rows, ...]` as `[questions, chains, ...]`."""
    return rows.unflatten(0, (-1, chains))
