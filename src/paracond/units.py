"""The units of real latents.

A real group z that is never observed has no units of its own: with z' = A (z - m), for any m and any invertible A, and
conditionals that read and draw z' instead, the joint of all other groups is the same. Algorithm 1 does not choose among
them, so that units drift, and real codes ran away (RESULTS, the comparison). A likely reason, not tested by itself:
with p(x | z) = N(b z, s^2) and codes of variance S, a conditional of z that was learned from draws of x gives, where
what the decoder leaves of the data has the variance r^2 along some direction,

    S' = S + k^2 (r^2 - s^2),    k = b S / (b^2 S + s^2)

(the variance of what it says of data, k^2 (b^2 S + r^2), and of its own noise, S s^2 / (b^2 S + s^2)). Neighbouring
pixels leave the same, so along smooth directions r > s, and codes grow from round to round.

So where z learns, its loss has one more term. With m the mean and C = V diag(l) V^T the covariance of the codes of
completed examples, and mu the means that the conditional gives to the rows of the batch, it is

    PULL E [(mu - m)^T P (mu - m) / 2 + m^T mu],    P = V diag(max(0, 1 - 1/l)) V^T,

whose gradient in mu is PULL (P (mu - m) + m): directions with a variance over one shrink, others, which may say
nothing, are left as they are, and the mean goes to zero. It is small beside the likelihood, which has a say wherever
the conditional learns from draws, and holds what it does elsewhere: on the data themselves, from which it learns only
by way of what others draw. (Completed codes that were brought to these units by a map instead, z -> A (z - m), said
ever less at full size, learned from or not: RESULTS.)

Moments are running means over pools of completed examples, and P follows them every so often (on the host's call, since
eigenvalues cannot be recorded in a graph).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from paracond.families import Distribution, Gaussian, Real
from paracond.joint import JointModel
from paracond.state import InputError, Mask, State

PULL = 0.3
WEIGHT = 0.02  # of a pool in the moments
EVERY = 16  # pools, between two looks at the eigenvalues


class Units:
    """Those of the groups `names` of a model, each of which must be `Real` and observed nowhere."""

    def __init__(self, model: JointModel, names: Iterable[str], observed: Mask):
        names = tuple(names)
        for name in names:
            if name not in model.names:
                raise InputError(f"{name!r} has no units to hold: it is no group of the model")
            if not isinstance(model.variables[name], Real) or bool(observed[name].any()):
                raise InputError(f"{name!r} has no units to hold: these are of Real groups that are observed nowhere")
        sizes = {name: math.prod(model.variables[name].event_shape) for name in names}
        device, dtype = model.device, model.dtype
        self.mean = {name: torch.zeros(n, device=device, dtype=dtype) for name, n in sizes.items()}
        self.covariance = {name: torch.eye(n, device=device, dtype=dtype) for name, n in sizes.items()}
        self.excess = {name: torch.zeros_like(one) for name, one in self.covariance.items()}  # P

    @torch.no_grad()
    def watch(self, pool: State) -> None:
        """Let the moments follow those of a completed pool."""
        for name, mean in self.mean.items():
            codes = pool[name].flatten(1)
            mean.lerp_(codes.mean(0), WEIGHT)
            centred = codes - mean
            self.covariance[name].lerp_(centred.T @ centred / len(codes), WEIGHT)

    @torch.no_grad()
    def renew(self) -> None:
        """Let P follow the moments."""
        for name, covariance in self.covariance.items():
            values, vectors = torch.linalg.eigh(covariance.double())
            self.excess[name].copy_(vectors * (1 - 1 / values.clamp(min=1)) @ vectors.T)

    def term(self, name: str, given: Distribution) -> Tensor | None:
        """What the loss of the group `name` has besides, from its distribution in the batch; None for other groups."""
        if name not in self.mean:
            return None
        assert isinstance(given, Gaussian)
        mu, mean = given.mu.flatten(1), self.mean[name]
        centred = mu - mean
        return PULL * (0.5 * (centred @ self.excess[name] * centred).sum(1) + mu @ mean).mean()

    def kept(self) -> State:
        """All that the next update depends on, by name."""
        parts = {"mean": self.mean, "covariance": self.covariance, "excess": self.excess}
        return {f"{part}_{name}": value for part, named in parts.items() for name, value in named.items()}
