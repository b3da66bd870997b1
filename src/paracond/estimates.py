"""Marginals from independent tours, with standard errors (regenerative simulation: Mykland, Tierney and Yu 1995).

Tour i has N_i states that count; a quantity f has the mean f_i along it, and q_i is the sum of (f - f_i)^2 (plus the
conditional variances, where f is a conditional mean). By the renewal theorem the mean m and the variance v of f under
the limit of K are ratios of means over tours, and the jackknife gives their errors from n tours, by leaving out each:

    m = sum N_i f_i / sum N_i,                 error(m)^2 = t^2 (n - 1) / n sum g_i^2,
    v = sum Q_i / sum N_i + error(m)^2 / t^2,  error(v)^2 = t^2 (n - 1) / n sum h_i^2 + z^2 error(m)^4,

with Q_i = q_i + N_i (f_i - m)^2, g_i = N_i (f_i - m) / M_i, h_i = (Q_i - N_i v) / M_i, M_i the sum of all other N_j,
z = 1.96, and error(std) = error(v) / (2 std). The last term is of second order. Where v has no slope in m, as the
m (1 - m) of a fair coin, v +- 1.96 error(v) so has every v that m +- 1.96 error(m) allows. Tours are independent, so
these errors are right whatever happens inside a tour.

Where few tours make most of a sum, because they are long or visit what is rare, the sum is uncertain itself. It has
about d = 2 n / (kurtosis - 1) degrees of freedom (Satterthwaite), and misses more often on one side than on the other.
So

    t = 1 + 1.21 / d + 1.44 / d^2 + (1.08 skewness^2 + 1) / n,

where kurtosis and skewness are those of the g_i or h_i. The first terms are Student's 97.5% quantile over the normal
one. Then follow what a skewed sum needs to second order, (z^4 + 2 z^2 - 3) / 18 for z = 1.96 (Hall 1983), which is what
Wilson's interval does for rare events, and what M_i and m cost that come from the same tours. So +- 1.96 errors are 95%
intervals, also from few tours, but not for what none of these has visited.

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

Z = 1.96
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
    total = n.sum(1, keepdim=True)
    mean = (n * tours.mean).sum(1) / total.squeeze(1)
    gap = tours.mean - mean.unsqueeze(1)
    error, spread = _errors(n * gap / (total - n))
    squares = tours.spread + n * gap.square()
    variance = squares.sum(1) / total.squeeze(1)
    of_variance, _ = _errors((squares - n * variance.unsqueeze(1)) / (total - n))
    of_variance = (of_variance.square() + Z**2 * error**4).sqrt()
    std = (variance + spread).sqrt()
    certain = variance <= TINY * mean.square()
    error, of_std = (torch.where(certain, 0.0, e) for e in (error, of_variance / (2 * std)))
    return Estimate(mean, torch.where(certain, 0.0, std), error, of_std, _drift(tours, n))


def _errors(left_out: Tensor) -> tuple[Tensor, Tensor]:
    """The error, from the changes where each tour is left out, and its square without the factor t^2."""
    count, squares = left_out.shape[1], left_out.square()
    total = squares.sum(1)
    unit = left_out / (total / count).sqrt().unsqueeze(1)  # cubes of small units would vanish
    kurtosis, skewness = unit.pow(4).mean(1), unit.pow(3).mean(1)
    d = 2 * count / (kurtosis - 1).clamp(min=1e-9)
    t = 1 + 1.21 / d + 1.44 / d.square() + (1.08 * skewness.square() + 1) / count
    spread = total * ((count - 1) / count)
    return torch.where(total > 0, t * spread.sqrt(), spread), spread


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
