"""Priors p(z) of directed models p(z) p(x | z, c): what a bound charges for a code, and where random codes come from.

With an encoder q(z | x, c),

    ELBO = E_q log p(x | z, c) - KL(q | p(z)) = E_q [log p(x | z, c) + log p(z)] + H(q).

- `Fixed`: uniform for a Binary z, standard normal for a Real one; KL in closed form.
- `Vamp` (Tomczak & Welling 2018, their variant with data for pseudo-inputs): the codes of K examples,

      p(z) = (1/K) sum_k q(z | x_k, c_k),

  so that it learns with the encoder. H(q) in closed form; log p(z) is exact, and its mean under q is estimated together
  with that of log p(x | z, c).

A prior has no parameters of its own. It asks the encoder, so a model and its examples are used together: a saved model
does not have them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from paracond.data import InputError, State
from paracond.distributions import Bernoulli, Distribution, Gaussian
from paracond.families import Binary, Real

Encoder = Callable[[State], Distribution]


class Prior(ABC):
    """p(z)."""

    @abstractmethod
    def charge(self, q: Distribution) -> Tensor:
        """What a bound charges for q in closed form, `[batch]`."""

    @abstractmethod
    def log_prob(self, encoder: Encoder) -> Callable[[Tensor], Tensor] | None:
        """log p(z) of codes `[batch, *event]`, where `charge` is without it; else None."""

    @abstractmethod
    def sample(self, encoder: Encoder, rows: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Random codes, `[rows, *event]`."""


@dataclass(frozen=True)
class Fixed(Prior):
    """The standard prior of a family: N(0, 1), or fair coins."""

    family: Binary | Real

    def charge(self, q: Distribution) -> Tensor:
        return _sums(divergence(q))

    def log_prob(self, encoder: Encoder) -> None:
        return None

    def sample(self, encoder: Encoder, rows: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        return self.family.random(rows, generator, dtype)


@dataclass(frozen=True, eq=False)
class Vamp(Prior):
    """`examples`: x_k and c_k, as the encoder takes them (what it has for z is not read). All are encoded at once, and
    log p(z) takes memory for every code at every example: K of some hundred are meant."""

    examples: State

    def charge(self, q: Distribution) -> Tensor:
        return -_sums(q.entropy)

    def log_prob(self, encoder: Encoder) -> Callable[[Tensor], Tensor]:
        each = encoder(self.examples)
        count = len(each.mean)
        return lambda z: each.scores(z.unsqueeze(1)).reshape(len(z), count, -1).sum(2).logsumexp(1) - math.log(count)

    def sample(self, encoder: Encoder, rows: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        each = encoder(self.examples)
        chosen = torch.randint(len(each.mean), (rows,), generator=generator, device=generator.device)
        return _of_rows(each, chosen).sample(generator)


def _of_rows(law: Any, rows: Tensor) -> Distribution:
    """The laws of these rows; parameters that all rows share stay as they are."""
    each = {field.name: getattr(law, field.name) for field in fields(law)}
    return replace(law, **{name: value[rows] for name, value in each.items() if value.shape == law.mean.shape})


def _sums(values: Tensor) -> Tensor:
    """Over all coordinates, `[batch]`."""
    return values.reshape(len(values), -1).sum(1)


def divergence(q: Distribution) -> Tensor:
    """KL(q | p(z)) for each coordinate, `[batch, *event]`, of the fixed prior."""
    if isinstance(q, Bernoulli):
        return math.log(2) - q.entropy
    if isinstance(q, Gaussian):
        return 0.5 * (q.mean.square() + q.variance - 1) - q.log_scale
    raise InputError(f"there is a prior for Binary and Real latents, found {type(q).__name__}")
