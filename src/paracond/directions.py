"""Gaussians with few directions: x = mu + A' u + sigma e, with u ~ N(0, I) and e ~ N(0, I).

Where some coordinates K are known (`KnownPart`), with b = A_K (x_K - mu_K) / sigma^2,

    u | x_K ~ N(P^-1 b, P^-1),      P = I + A_K A_K' / sigma^2.

`Stirred` is such a Gaussian as the conditional of a group, given the rest. Why it is wanted: the pixels of an image
are nearly known given its latents, up to independent noise of a sigma of some hundredths. What thousands of pixels have
in common, such as light, or the colour of a background, is then drawn again almost exactly: of faces, the first 16
principal components keep .998 of what they are in a sweep, and 500 sweeps would be needed to forget them. A chain stays
with what its start has drawn, however unlikely that is beside the rest, and the more so the longer the model learns.
With noise along A, of a share kappa of the spread of the data there, it moves. The idea is that latents learn to be as
uncertain about these directions as the group is given them, and to go back to what is likely by a part kappa^2 or so in
each step, instead of one so small that nothing can learn it; what was measured is how well such models draw (RESULTS).

With orthogonal rows A_j of squared lengths a_j, and r = x - mu,

    log p(x) = sum_d log N(r_d; 0, sigma^2)
               + sum_j [(A_j r)^2 / (sigma^2 (sigma^2 + a_j)) - log(1 + a_j / sigma^2)] / 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from paracond.families import Distribution, Gaussian

AT_ONCE = 2**26  # numbers


def in_full(tensor: Tensor) -> torch.autocast:
    """Sums over thousands of coordinates, and what is solved with them, want all digits, whatever networks have."""
    return torch.autocast(tensor.device.type, enabled=False)


@dataclass(frozen=True, eq=False)
class Stirred(Gaussian):
    """N(mu, sigma^2 I + A'A) with one sigma, and orthogonal rows A, `[k, coordinates]`.

    `scores` add up to the log-density; each coordinate has an equal share in what is about all of them. So learning
    from a part of the coordinates is not exact here (clamping one is).
    """

    directions: Tensor

    def scores(self, value: Tensor) -> Tensor:
        apart, lengths = Gaussian.scores(self, value), self.directions.square().sum(1)
        noise = torch.exp(2 * self.log_scale)
        with in_full(value):
            along = (value - self.mu).flatten(1) @ self.directions.T
        common = (along.square() / (noise * (noise + lengths)) - torch.log1p(lengths / noise)).sum(1) / 2
        return apart + (common / self.directions.shape[1]).view(-1, *[1] * (value.ndim - 1))

    @torch.no_grad()
    def sample(self, generator: torch.Generator) -> Tensor:
        u = self.mu.new_empty(len(self.mu), len(self.directions)).normal_(generator=generator)
        with in_full(u):
            return Gaussian.sample(self, generator) + (u @ self.directions).view_as(self.mu)

    @property
    def variance(self) -> Tensor:
        along = self.directions.square().sum(0).view(self.mu.shape[1:])
        return (torch.exp(2 * self.log_scale) + along).expand_as(self.mu)

    @property
    def entropy(self) -> Tensor:
        common = torch.log1p(self.directions.square().sum(1) * torch.exp(-2 * self.log_scale)).sum() / 2
        return Gaussian.entropy.fget(self) + common / self.directions.shape[1]  # type: ignore[attr-defined]

    def given(self, value: Tensor, clamp: Tensor, factors: Factors | None = None) -> Distribution:
        sigma = torch.exp(self.log_scale)
        value, clamp = (each.expand_as(self.mu).flatten(1) for each in (value, clamp))
        part = KnownPart(self.directions / sigma, sigma, value, clamp, factors)
        return StirredPart(self.mu, self.log_scale, self, part)

    def factors(self, clamp: Tensor) -> Factors:
        """What `given` needs to know of a mask `[rows, *event]`: it can be worked out once for many laws."""
        return Factors.of(self.directions * torch.exp(-self.log_scale), clamp.flatten(1))

    def around(self, value: Tensor) -> Gaussian:
        """The law of coordinates given u, which are then independent; u as x = `value` says, by its mean."""
        noise, lengths = torch.exp(2 * self.log_scale), self.directions.square().sum(1)
        with in_full(value):
            u = (value - self.mu).flatten(1) @ self.directions.T / (noise + lengths)
            return Gaussian(self.mu + (u @ self.directions).view_as(self.mu), self.log_scale)


@dataclass(frozen=True, eq=False)
class StirredPart(Gaussian):
    """A stirred law, given the coordinates of `part`: those are left to `redraw`. `scores` are of the whole law."""

    law: Stirred
    part: KnownPart

    def scores(self, value: Tensor) -> Tensor:
        return self.law.scores(value)

    @torch.no_grad()
    def sample(self, generator: torch.Generator) -> Tensor:
        along = self._at(self._noise(generator))
        return along + torch.exp(self.log_scale) * torch.empty_like(self.mu).normal_(generator=generator)

    def _noise(self, generator: torch.Generator | None) -> Tensor:
        noise = self.mu.new_zeros(len(self.mu), len(self.law.directions))
        return noise if generator is None else noise.normal_(generator=generator)

    def _at(self, noise: Tensor) -> Tensor:
        with in_full(noise):
            u = self.part.directions(self.mu.flatten(1), noise)
            return self.mu + (u @ self.law.directions).view_as(self.mu)

    @cached_property
    def mean(self) -> Tensor:
        return self._at(self._noise(None))

    @property
    def variance(self) -> Tensor:
        along = self.part.spread(self.law.directions).view(-1, *self.mu.shape[1:])
        return (torch.exp(2 * self.log_scale) + along).expand_as(self.mu)


def around(law: Distribution, value: Tensor) -> Distribution:
    """A law whose coordinates are independent, near `value` if they are not: see `Stirred.around`."""
    return law.around(value) if isinstance(law, Stirred) else law


class Factors(NamedTuple):
    """P = L L' of every distinct mask, and which of these each row has."""

    lower: Tensor
    which: Tensor

    @staticmethod
    def of(scaled: Tensor, mask: Tensor) -> Factors:
        masks, which = _distinct(mask)
        prior = torch.eye(len(scaled), dtype=scaled.dtype, device=scaled.device)
        with in_full(scaled):
            products = _products(scaled, masks)
        return Factors(torch.linalg.cholesky_ex(prior + products).L, which)  # P >= 1: no need for a check

    def rows(self, rows: Tensor) -> Factors:
        """Of some rows."""
        return Factors(self.lower, self.which if len(self.which) == 1 else self.which[rows])


class KnownPart:
    """x_K, and what it says of u. K may be another in every row. `scaled` is A' / sigma."""

    def __init__(self, scaled: Tensor, sigma: Tensor, value: Tensor, mask: Tensor, factors: Factors | None = None):
        self.scaled, self.sigma, self.value, self.mask = scaled, sigma, value, mask
        self.factors = factors or Factors.of(scaled, mask)
        lower, which = self.factors
        self.factor = lower if len(lower) == 1 else lower[which]

    def directions(self, mean: Tensor, noise: Tensor) -> Tensor:
        """u = P^-1 b + L'^-1 noise = L'^-1 (L^-1 b + noise)."""
        return self._solve(self.factor.mT, self._half(self._gap(mean)) + noise, upper=True)

    def spread(self, directions: Tensor) -> Tensor:
        """The variances of A' u, `[rows of masks, coordinates]`."""
        lower, which = self.factors
        halves = torch.linalg.solve_triangular(lower, directions.expand(len(lower), -1, -1), upper=False)
        return halves.square().sum(1)[which]

    def evidence(self, mean: Tensor) -> Tensor:
        gap = self._gap(mean)
        return -0.5 * (gap.square().sum(1) - self._half(gap).square().sum(1))

    def _gap(self, mean: Tensor) -> Tensor:
        """(x_K - mu_K) / sigma, and zero elsewhere."""
        return torch.where(self.mask, self.value - mean, 0) / self.sigma

    def _half(self, gap: Tensor) -> Tensor:
        """L^-1 b."""
        with in_full(gap):
            return self._solve(self.factor, gap @ self.scaled.T, upper=False)

    def _solve(self, factor: Tensor, rows: Tensor, upper: bool) -> Tensor:
        if len(factor) == 1:
            return torch.linalg.solve_triangular(factor[0], rows.T, upper=upper).T
        return torch.linalg.solve_triangular(factor, rows.unsqueeze(-1), upper=upper).squeeze(-1)


def _products(scaled: Tensor, masks: Tensor) -> Tensor:
    """sum_k mask_k a_ik a_jk, `[masks, rank, rank]`; some at a time, or large images would take gigabytes."""
    (rank, size), masks = scaled.shape, masks.to(scaled.dtype)
    if len(masks) < rank:
        some = masks.split(max(1, AT_ONCE // (rank * size)))
        return torch.cat([(part[:, None] * scaled).flatten(0, 1) @ scaled.T for part in some]).view(-1, rank, rank)
    some = scaled.split(max(1, AT_ONCE // (rank * size)))
    return torch.cat([masks @ (part[:, None] * scaled).flatten(0, 1).T for part in some], 1).view(-1, rank, rank)


def _distinct(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that differ from the one before, and which of them each row is: all chains of one question have the same.
    While a program is recorded, nothing may wait for the host, and every row counts."""
    if mask.is_cuda and torch.cuda.is_current_stream_capturing():
        return mask, torch.arange(len(mask), device=mask.device)
    found: tuple[Tensor, Tensor] = mask.unique_consecutive(dim=0, return_inverse=True)
    return found
