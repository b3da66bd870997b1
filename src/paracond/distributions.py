"""Light distributions: one law p(x_i | x_-i) for every row of a batch, scored, drawn and summarised.

Coordinates are independent given the rest of the state,

    log p(x_i | x_-i) = sum_d log p(x_id | x_-i),

so `scores` are per coordinate, and clamping some coordinates leaves the law of the others unchanged. Every draw takes a
generator and uses the functions of `streams`. `torch.distributions` is the oracle in tests.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from paracond.data import InputError
from paracond.streams import Generator, exponential, normal, uniform

LOG_2PI = math.log(2 * math.pi)


class Distribution(ABC):
    """Scores, draws and summarises one group: one law p(x_i | x_-i) for every row of a batch. The base class.

    `model(name, state)` returns one. `scores`, `log_prob` and `sample` evaluate and draw; `mean`, `variance` and
    `entropy` summarise.
    """

    @abstractmethod
    def scores(self, value: Tensor) -> Tensor:
        """Return log p of every coordinate, `[batch, *event]` (`[batch]` where the family does not factorise)."""

    @abstractmethod
    def sample(self, generator: Generator) -> Tensor:
        """Draw one value per row, `[batch, *event]`, without gradient."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """E[encode(x)], of which marginals are averages."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Var[encode(x)], per element."""

    @property
    @abstractmethod
    def entropy(self) -> Tensor:
        """Entropy of every coordinate in nats, `[batch, *event]`."""

    def witness(self) -> Tensor:
        """A number for every row, `[batch]`, which is finite where the row has a law, and NaN or infinite where its
        parameters are not numbers. A draw does not show that: comparisons with NaN are false."""
        return _row_sums(self.mean)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log p(x_i | x_-i), `[batch]`."""
        return self.scores(value).reshape(len(value), -1).sum(1)

    def redraw(self, value: Tensor, clamp: Tensor | None, generator: Generator) -> Tensor:
        """Draw the free coordinates, given `value` at those where `clamp` is true."""
        drawn = self.sample(generator)
        if drawn.shape != value.shape:
            raise InputError(
                f"a draw of {type(self).__name__} has shape {list(drawn.shape)}, expected {list(value.shape)}: "
                "networks, rules and families return one row for every row that they read"
            )
        return drawn if clamp is None else torch.where(clamp, value, drawn)


@dataclass(frozen=True, eq=False)
class Bernoulli(Distribution):
    """p(x) = prod_d sigmoid(l_d)^x_d (1 - sigmoid(l_d))^(1 - x_d)."""

    logits: Tensor

    def scores(self, value: Tensor) -> Tensor:
        return value * self.logits - F.softplus(self.logits)

    def sample(self, generator: Generator) -> Tensor:
        mean = self.mean.detach()  # `mean` itself is cached with its gradient
        # On CPU, torch.bernoulli takes several times as long. NaN becomes 0; scores stay NaN, which the guard finds.
        return uniform(mean, generator).lt_(mean)

    @cached_property
    def mean(self) -> Tensor:
        return torch.sigmoid(self.logits)

    @property
    def variance(self) -> Tensor:
        return self.mean * torch.sigmoid(-self.logits)

    @property
    def entropy(self) -> Tensor:
        return F.softplus(self.logits) - self.logits * self.mean


@dataclass(frozen=True, eq=False)
class Softmax(Distribution):
    """p(x_d = k) = exp(l_dk) / sum_j exp(l_dj)."""

    logits: Tensor

    def scores(self, value: Tensor) -> Tensor:
        return self.logits.log_softmax(-1).gather(-1, value.unsqueeze(-1)).squeeze(-1)

    @torch.no_grad()
    def sample(self, generator: Generator) -> Tensor:
        # A race of exponential clocks: the first to ring, with rates exp(l), is a draw from the softmax.
        clocks = exponential(self.logits, generator)
        return (self.logits - clocks.log()).argmax(-1)

    @cached_property
    def mean(self) -> Tensor:
        return self.logits.softmax(-1)

    @property
    def variance(self) -> Tensor:
        return self.mean * (1 - self.mean)

    @property
    def entropy(self) -> Tensor:
        return -(self.mean * self.logits.log_softmax(-1)).sum(-1)

    def witness(self) -> Tensor:
        # Some classes may be impossible, with logits of minus infinity, but not all.
        return _row_sums(self.logits.amax(-1))


@dataclass(frozen=True, eq=False)
class Gaussian(Distribution):
    """p(x) = prod_d N(x_d; mu_d, exp(log_scale_d)^2)."""

    mu: Tensor
    log_scale: Tensor  # broadcasts against mu

    def scores(self, value: Tensor) -> Tensor:
        standard = (value - self.mu) * torch.exp(-self.log_scale)
        return -0.5 * (standard * standard + LOG_2PI) - self.log_scale

    @torch.no_grad()
    def sample(self, generator: Generator) -> Tensor:
        return self.mu + torch.exp(self.log_scale) * normal(self.mu, generator)

    @property
    def mean(self) -> Tensor:
        return self.mu

    @property
    def variance(self) -> Tensor:
        return torch.exp(2 * self.log_scale).expand_as(self.mu)

    @property
    def entropy(self) -> Tensor:
        return (self.log_scale + 0.5 * (1 + LOG_2PI)).expand_as(self.mu)

    def witness(self) -> Tensor:
        return _row_sums(self.mu + self.log_scale)


FAR = 50.0  # standard deviations from which on series are used
WIDE = 40.0  # log Phi(b) - log Phi(a) from which on a has no influence


@dataclass(frozen=True, eq=False)
class TruncatedGaussian(Distribution):
    """p(x) = prod_d N(x_d; mu_d, s_d^2) / Z_d for low <= x_d <= high, with s_d = exp(log_scale_d).

    Z is the Gaussian's probability of the interval, Phi(b) - Phi(a). Its logarithm stays exact where mu is many s_d
    away from the interval, because it is computed in float64 in the lower tail: an interval in the upper tail is
    mirrored (a + b <= 0), and mu and draws with it.
    """

    mu: Tensor
    log_scale: Tensor  # broadcasts against mu
    low: float | None
    high: float | None

    def scores(self, value: Tensor) -> Tensor:
        standard = (value.double() - self._mu) / self._s
        near = -0.5 * (standard * standard + LOG_2PI) - self._log_z
        h, t = self._distance, self._b - self._mirror * standard  # t: from the near end
        scores = torch.where(self._far, torch.log(h + self._excess) - t * (h + 0.5 * t), near) - self._s.log()
        return torch.where(self._contains(value), scores, -torch.inf).to(self.mu.dtype)

    def sample(self, generator: Generator) -> Tensor:
        # Of another object: what is cached here has its gradient.
        return TruncatedGaussian(self.mu.detach(), self.log_scale.detach(), self.low, self.high)._draw(generator)

    def _draw(self, generator: Generator) -> Tensor:
        """The inverse of the distribution function, of probabilities in (0, 1]."""
        part = 1 - uniform(torch.empty_like(self._mu), generator)
        if self._gap is not None:
            part = part + (1 - part) * torch.exp(-self._gap)
        standard = _inverse_log_ndtr(torch.special.log_ndtr(self._b) + part.log())
        drawn = self._mu + self._s * self._mirror * standard
        return drawn.to(self.mu.dtype).clamp(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        mean = self._mu + self._s * self._mirror * self._first
        return mean.to(self.mu.dtype).clamp(self.low, self.high)

    @property
    def variance(self) -> Tensor:
        q = self._distance**-2
        series = q * (1 - q * (6 - q * (50 - q * (518 - q * 6354))))
        standard = torch.where(self._far, series, self._second - self._first**2)
        return (self._s**2 * standard).to(self.mu.dtype)

    @property
    def entropy(self) -> Tensor:
        h, excess = self._distance, self._excess
        series = 0.5 + 0.5 * h * excess - torch.log(h + excess)
        standard = torch.where(self._far, series, self._log_z + 0.5 * (LOG_2PI + self._second))
        return (self._s.log() + standard).to(self.mu.dtype)

    def witness(self) -> Tensor:
        return _row_sums(self.mu + self.log_scale)

    # --- in float64 -------------------------------------------------------------------------------------------------

    @cached_property
    def _mu(self) -> Tensor:
        return self.mu.double()

    @cached_property
    def _s(self) -> Tensor:
        return self.log_scale.double().exp().expand_as(self.mu)

    def _contains(self, value: Tensor) -> Tensor:
        inside = torch.ones_like(value, dtype=torch.bool)
        inside = inside if self.low is None else inside & (value >= self.low)
        return inside if self.high is None else inside & (value <= self.high)

    @cached_property
    def _ends(self) -> tuple[Tensor | None, Tensor | None]:
        """The interval in standard units."""
        low = None if self.low is None else (self.low - self._mu) / self._s
        return low, None if self.high is None else (self.high - self._mu) / self._s

    @cached_property
    def _mirror(self) -> Tensor:
        """-1 where the interval is mirrored, else 1."""
        low, high = self._ends
        if low is None or high is None:
            return torch.full_like(self._mu, 1.0 if low is None else -1.0)
        return torch.where(low + high > 0, -1.0, 1.0).to(self._mu.dtype)

    @cached_property
    def _b(self) -> Tensor:
        """The upper end in standard units, mirrored."""
        low, high = self._ends
        if low is None or high is None:
            return high if low is None else -low  # type: ignore[return-value]
        return torch.where(self._mirror < 0, -low, high)

    @cached_property
    def _a(self) -> Tensor | None:
        """The lower end in standard units, mirrored; None if there is none."""
        low, high = self._ends
        return None if low is None or high is None else torch.where(self._mirror < 0, -high, low)

    @cached_property
    def _gap(self) -> Tensor | None:
        """log Phi(b) - log Phi(a)."""
        if self._a is None:
            return None
        return torch.special.log_ndtr(self._b) - torch.special.log_ndtr(self._a)

    @cached_property
    def _log_z(self) -> Tensor:
        log_phi = torch.special.log_ndtr(self._b)
        return log_phi if self._gap is None else log_phi + torch.log(-torch.expm1(-self._gap))

    def _density(self, end: Tensor) -> Tensor:
        """The density at an end, in standard units."""
        return torch.exp(-0.5 * (end * end + LOG_2PI) - self._log_z)

    @cached_property
    def _first(self) -> Tensor:
        """The mean in standard units, mirrored."""
        found = -self._density(self._b)
        found = found if self._a is None else found + self._density(self._a)
        return torch.where(self._far, self._b - self._excess, found)

    # Far from the interval, what remains of differences of large numbers has few digits. There the law is that of a
    # tail, which falls off within h^-1 standard deviations, and has series in h^-2:
    # p(t) = (h + excess) exp(-t (h + t / 2)), where the mean of t is the excess.

    @cached_property
    def _far(self) -> Tensor:
        far = -self._b > FAR
        return far if self._gap is None else far & (self._gap > WIDE)

    @cached_property
    def _distance(self) -> Tensor:
        """h, how many standard deviations mu is from the interval."""
        return (-self._b).clamp(min=FAR)

    @cached_property
    def _excess(self) -> Tensor:
        """How much farther the mean is than the near end."""
        h, q = self._distance, self._distance**-2
        return (1 - q * (2 - q * (10 - q * 74))) / h

    @cached_property
    def _second(self) -> Tensor:
        """The mean square in standard units."""
        found = 1 - self._b * self._density(self._b)
        return found if self._a is None else found + self._a * self._density(self._a)


def _inverse_log_ndtr(log_p: Tensor) -> Tensor:
    """z with log Phi(z) = log_p, for float64."""
    # Where exp(log_p) would lose digits: Newton's method from where the leading terms of log Phi put z. log Phi is
    # concave, so this converges from the left.
    tail = log_p < -10
    far = -2 * log_p.clamp(max=-10)
    z = -(far - torch.log(2 * math.pi * far)).clamp(min=1.0).sqrt()
    for _ in range(4):
        log_phi = torch.special.log_ndtr(z)
        z = z - (log_phi - log_p.clamp(max=-10)) * torch.exp(0.5 * (z * z + LOG_2PI) + log_phi)
    return torch.where(tail, z, torch.special.ndtri(log_p.exp()))


def _row_sums(numbers: Tensor) -> Tensor:
    """The sum of every row, which is finite if all its numbers are."""
    return numbers.reshape(len(numbers), -1).sum(1)
