"""The units of real latents.

A real group z that is never observed has no units of its own: with z' = A (z - m), for any m and any invertible A, and
conditionals that read and draw z' instead, the joint of all other groups is the same. Algorithm 1 does not choose among
them, so that units drift, and real codes ran away (RESULTS, the comparison). A likely reason, not tested by itself:
with p(x | z) = N(b z, s^2) and codes of variance S, a conditional of z that was learned from draws of x gives, where
what the decoder leaves of the data has the variance r^2 along some direction,

    S' = S + k^2 (r^2 - s^2),    k = b S / (b^2 S + s^2)

(the variance of what it says of data, k^2 (b^2 S + r^2), and of its own noise, S s^2 / (b^2 S + s^2)). Neighbouring
pixels leave the same, so along smooth directions r > s, and codes grow from round to round.

So the completed examples have their codes changed by such a map: m is their mean, and A, with their covariance
C = V diag(l) V^T,

    A = V diag(min(1, l^(-1/2))) V^T,

lets no direction have a variance over one; those under it, which may say nothing, are left as they are. The other
groups learn from codes in these units, and the conditional of z from what these then draw: so it comes to draw such
codes itself. It does not learn from the changed codes of data directly: these are its own draws, noise and errors
included, and codes that were learned from said next to nothing at full size (RESULTS; no way to hold real codes that
was tried so far is good).

Moments are running means over pools, and the map follows them every so often (on the host's call, since eigenvalues
cannot be recorded in a graph).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from paracond.families import Real
from paracond.joint import JointModel
from paracond.state import InputError, Mask, State

WEIGHT = 0.02  # of a pool in the moments
EVERY = 16  # pools, between two maps


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
        self.map = {name: torch.eye(n, device=device, dtype=dtype) for name, n in sizes.items()}

    @torch.no_grad()
    def hold(self, pool: State) -> None:
        """Change the codes of a completed pool, in place. They count as fresh draws as before."""
        for name, mean in self.mean.items():
            codes = pool[name].flatten(1)
            mean.lerp_(codes.mean(0), WEIGHT)
            centred = codes - mean
            self.covariance[name].lerp_(centred.T @ centred / len(codes), WEIGHT)
            pool[name].copy_((centred @ self.map[name]).view_as(pool[name]))

    @torch.no_grad()
    def renew(self) -> None:
        """Let the maps follow the moments."""
        for name, covariance in self.covariance.items():
            values, vectors = torch.linalg.eigh(covariance.double())
            shrunk = vectors * values.clamp(min=1).rsqrt() @ vectors.T
            self.map[name].copy_(shrunk)

    def kept(self) -> State:
        """All that the next pool depends on, by name."""
        parts = {"mean": self.mean, "covariance": self.covariance, "map": self.map}
        return {f"{part}_{name}": value for part, named in parts.items() for name, value in named.items()}
