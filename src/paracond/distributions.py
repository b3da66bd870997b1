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


def _row_sums(numbers: Tensor) -> Tensor:
    """The sum of every row, which is finite if all its numbers are."""
    return numbers.reshape(len(numbers), -1).sum(1)
