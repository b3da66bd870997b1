"""Observers: statistics of a running chain, in memory that does not grow with the chain.

An observer is called with every `Move`. Marginals are Rao-Blackwellised: instead of draws they average the
conditionals that the draws come from,

    p(x_i) ~ (1/T) sum_t p_theta_i(x_i | x_-i^t),

which has the same expectation and less variance. Clamped coordinates count with their known value.

Convergence is judged from `slots` consecutive batches of each of M chains (`Monitor`). For a scalar quantity with
conditional mean m_t and conditional variance v_t, let V = E[v] + Var[m] be its marginal variance (the law of total
variance). With W the mean over half-chains of V and B the variance of half-chain means of m,

    R-hat = sqrt(((n - 1) / n W + B) / W)          (split R-hat; v = 0 gives the classical one)
    ess   = V / mcse^2,

where mcse^2 is the larger of (variance of chain means) / M and (variance of batch means) / (M slots). So `ess` is
the number of independent draws from the marginal that would give the same accuracy. A probability whose mcse is under
`KNOWN` counts as known (R-hat 1, ess infinite), because ratios for a class of probability 1e-9 mean nothing. One chain
alone has no R-hat: a chain that never left its mode would look as good as any.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.chain import Move
from paracond.data import InputError
from paracond.families import Family

KNOWN = 0.005  # standard error of a probability that needs no more draws


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
    slots: the number of batches into which they are divided.
    most: groups with more encoded coordinates are observed through this many fixed random projections of their draws.
    """

    def __init__(self, family: Family, name: str, chains: int, length: int, slots: int = 16, most: int = 64):
        self.family, self.name, self.chains, self.most = family, name, chains, most
        self.slots = max(2, min(slots, length) // 2 * 2)
        self.length = max(length, self.slots)
        self.seen = 0
        self.reference = torch.zeros(())
        self.sums: Tensor | None = None  # [slots, 3 (m, m^2, v), rows, quantities]
        self.counts = torch.zeros(self.slots)
        self.projection: Tensor | None = None

    def __call__(self, move: Move) -> None:
        if move.name != self.name:
            return
        if move.rows is not None:
            raise InputError("Monitor needs every row at every redraw: run the chain without per_row")
        mean, variance = (part.double() for part in self._quantities(move))
        if self.sums is None:
            self.sums = mean.new_zeros(self.slots, 3, *mean.shape)
            self.reference = mean.mean(0)  # one for all chains, or their differences would be lost
        mean = mean - self.reference  # nothing below depends on the origin, but rounding does
        slot = min(self.seen * self.slots // self.length, self.slots - 1)
        self.sums[slot, 0] += mean
        self.sums[slot, 1] += mean * mean
        self.sums[slot, 2] += variance
        self.counts[slot] += 1
        self.seen += 1

    def _quantities(self, move: Move) -> tuple[Tensor, Tensor]:
        mean, variance = summary(self.family, move)
        mean, variance = mean.reshape(len(mean), -1), variance.reshape(len(mean), -1)
        if mean.shape[1] <= self.most:
            return mean, variance
        if self.projection is None:
            signs = torch.randint(2, (mean.shape[1], self.most), generator=torch.Generator().manual_seed(0))
            self.projection = (2 * signs - 1).to(mean)
        drawn, _ = summary(self.family, move, rao_blackwell=False)
        projected = drawn.reshape(len(drawn), -1) @ self.projection
        return projected, torch.zeros_like(projected)

    def report(self) -> tuple[Tensor, Tensor]:
        """Return the largest R-hat and the smallest ess over the quantities of each question, `[questions]` each."""
        if self.sums is None:
            raise InputError(f"{self.name!r} was never redrawn: run the chain for longer")
        counts = self.counts.to(self.sums.device, torch.float64)
        r_hat, ess, error = convergence(self.sums, counts, self.chains)
        if self.family.finite and self.projection is None:
            r_hat, ess = torch.where(error < KNOWN, 1.0, r_hat), torch.where(error < KNOWN, torch.inf, ess)
        return r_hat.amax(-1), ess.amin(-1)


def convergence(sums: Tensor, counts: Tensor, chains: int) -> tuple[Tensor, Tensor, Tensor]:
    """Compute R-hat, ess and mcse `[questions, quantities]`.

    sums: sums of m, m^2 and v, `[slots, 3, rows, quantities]`.
    counts: the number of redraws in each slot, `[slots]`.
    chains: the number of chains per question.
    """
    used = counts > 0
    sums, counts = sums[used], counts[used]
    sums = sums.unflatten(2, (-1, chains))  # [slots, 3, questions, chains, quantities]
    half = len(counts) // 2
    if half == 0:  # one batch is too little
        unknown = torch.full_like(sums[0, 0, :, 0], torch.nan)
        return unknown, unknown, unknown
    halves = [_moments(sums[:half], counts[:half]), _moments(sums[half:], counts[half:])]
    means = torch.cat([mean for mean, _ in halves], 1)
    within = torch.cat([variance for _, variance in halves], 1).mean(1)
    n = float(counts.sum()) / 2
    r_hat = _ratio((n - 1) / n * within + means.var(1), within).sqrt()
    if chains == 1:  # a chain that never left its mode looks as good as any
        r_hat = torch.full_like(r_hat, torch.nan)
    return r_hat, *_ess(sums, counts, chains)


def _ess(sums: Tensor, counts: Tensor, chains: int) -> tuple[Tensor, Tensor]:
    """Compute effective sample size and Monte Carlo standard error."""
    mean, variance = _moments(sums, counts)
    total = variance.mean(1) + (mean.var(1, correction=0) if chains > 1 else 0)
    batches = sums[:, 0] / counts.view(-1, 1, 1, 1)
    batches = batches.transpose(0, 1).flatten(1, 2)  # [questions, slots * chains, quantities]
    mcse = batches.var(1) / batches.shape[1]
    if chains > 1:
        mcse = torch.maximum(mcse, mean.var(1) / chains)
    return torch.where(mcse <= 1e-24, torch.inf, total / mcse), mcse.sqrt()


def _moments(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean of m, and E[v] + Var[m], per chain: `[questions, chains, quantities]`."""
    n = counts.sum()
    mean, square, conditional = (sums.sum(0) / n).unbind(0)
    spread = (square - mean**2).clamp(min=0) * n / (n - 1).clamp(min=1)
    return mean, conditional + spread


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide; 1 where both vanish, because a quantity that never varies has mixed."""
    same = numerator <= 1e-12
    return torch.where(same, 1.0, numerator / denominator.clamp(min=1e-30))
