"""Marginals from independent tours, with standard errors (regenerative simulation: Mykland, Tierney and Yu 1995).

Tour i has N_i states that count; a quantity f has the mean f_i along it, and q_i is the sum of (f - f_i)^2 (plus the
conditional variances, where f is a conditional mean). By the renewal theorem the mean m and the variance v of f under
the limit of K are ratios of means over tours, and the delta method gives their errors from n tours:

    m = sum N_i f_i / sum N_i,          error(m)^2 = n / (n - 1) sum g_i^2 / (sum N_i)^2,     g_i = N_i (f_i - m),
    v = sum Q_i / sum N_i + error(m)^2, error(v)^2 = n / (n - 1) sum h_i^2 / (sum N_i)^2,     h_i = Q_i - N_i v,

with Q_i = q_i + N_i (f_i - m)^2 and error(std) = error(v) / (2 std). Tours are independent, so these errors are right
whatever happens inside a tour.

Drift compares the first states of tours (ages up to the median) with the later ones. These are two such ratios, m_e and
m_l. With D and N the sums over states and the numbers of states of one tour, their difference has the error

    error(m_e - m_l)^2 = sum ((D_e - m_e N_e) / sum N_e - (D_l - m_l N_l) / sum N_l)^2.

Drift is the root mean square over coordinates of difference over error: about 1 where early and late states have the
same distribution, and 0 where there are no late states.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.data import wide

TINY = 1e-24  # variances below this, in units of the squared mean, are rounding


@dataclass(frozen=True, eq=False)
class TourMeans:
    """What tours leave of one group: arrays whose first axis is tours, or rows and tours.

    length: N_i.
    mean: f_i, the means of encode(x).
    spread: q_i.
    early: the means over the first states of each tour, at most `half` of them.
    half: the number of states that count as early.
    """

    length: Tensor
    mean: Tensor
    spread: Tensor
    early: Tensor
    half: int


@dataclass(frozen=True, eq=False)
class Estimate:
    """Mean and standard deviation of encode(x), their standard errors, and drift (a number per row)."""

    mean: Tensor
    std: Tensor
    error: Tensor
    error_of_std: Tensor
    drift: Tensor


def estimate(tours: TourMeans) -> Estimate:
    """Estimate the marginals of every row, from arrays `[rows, tours, *encoding]` of at least two tours."""
    n = wide(tours.length, tours.mean)
    count, total = n.shape[1], n.sum(1)
    factor = (count / (count - 1)) ** 0.5
    mean = (n * tours.mean).sum(1) / total
    gap = tours.mean - mean.unsqueeze(1)
    error = (n * gap).square().sum(1).sqrt() / total * factor
    squares = tours.spread + n * gap.square()
    variance = squares.sum(1) / total
    of_variance = (squares - n * variance.unsqueeze(1)).square().sum(1).sqrt() / total * factor
    std = (variance + error.square()).sqrt()
    certain = variance <= TINY * mean.square()
    error, of_std = (torch.where(certain, 0.0, e) for e in (error, of_variance / (2 * std)))
    return Estimate(mean, torch.where(certain, 0.0, std), error, of_std, _drift(tours, n))


def _drift(tours: TourMeans, n: Tensor) -> Tensor:
    early, count = n.clamp(max=tours.half), n.shape[1]
    late = n - early
    parts = []
    for size, sums in ((early, early * tours.early), (late, n * tours.mean - early * tours.early)):
        total = size.sum(1, keepdim=True).clamp(min=1)
        mean = sums.sum(1, keepdim=True) / total
        parts.append((mean.squeeze(1), (sums - mean * size) / total))
    (m_early, g_early), (m_late, g_late) = parts
    variance = (g_early - g_late).square().sum(1) * (count / (count - 1))
    known = (variance > TINY * (m_early.square() + m_late.square())) & (late.sum(1) > 0)
    known, rows = known.expand_as(variance), len(variance)
    z = torch.where(known, (m_early - m_late).square() / variance, 0)
    return (z.reshape(rows, -1).sum(1) / known.reshape(rows, -1).sum(1).clamp(min=1)).sqrt()
