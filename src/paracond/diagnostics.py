"""Diagnostics of a model: are latents used, are conditionals consistent, do chains mix?

Latent usage. For a latent coordinate z_j and examples (x, c) of the data, with q(z_j | c) the average of p(z_j | x, c)
over the examples of class c,

    information_j = E_c H(q(z_j | c)) - E H(p(z_j | x, c))                          (what z_j encodes of x)
    read_back_j   = E_c H(q(z_j | c)) + E log p(z_j | x', c),   x' ~ p(x | z, c)     (what survives a redraw of x).

Both are mutual informations in nats given c (the second a lower bound of one). x is the largest observed group, and c
are all observed classes: a latent that only repeats the class has no information about x. Learning has a stable state
in which the decoder ignores z and the encoder returns its prior: then both are zero for every latent. Such a model
still classifies, but has one picture per class. A coordinate is active if both exceed `ACTIVE`.

Consistency. At the limiting distribution p of the chain, the loss per step in eq:chain_kl is

    sum_x p(x) KL(p(x' | x) || p^r(x' | x)) = E[log p_i(x'_i | x_-i) - log p_i(x_i | x_-i)],

since the terms log p(x) - log p(x') cancel in the mean: the score of a redrawn value minus the score of the value it
replaced. It is zero iff the conditionals are consistent (theorem T1), and needs no enumeration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.chain import Chain, Move, transition
from paracond.data import Data, InputError, Mask, State, as_count, row_count
from paracond.distributions import Distribution
from paracond.families import is_class
from paracond.inference import Diagnostics, Sweeps, query
from paracond.initializers import initial_state
from paracond.memory import require_room, row_bytes
from paracond.model import JointModel, require_model

ACTIVE = 0.02  # nats


@dataclass(frozen=True, eq=False)
class LatentUsage:
    """Information of each latent coordinate, in nats (see the head of this module).

    information: what the coordinate encodes of x, `[*event]`.
    read_back: what survives a redraw of x, `[*event]`.
    """

    information: Tensor
    read_back: Tensor

    @property
    def active(self) -> Tensor:
        """Bool `[*event]`, true where a coordinate is used."""
        return (self.information > ACTIVE) & (self.read_back > ACTIVE)

    @property
    def count(self) -> int:
        """The number of active coordinates."""
        return int(self.active.sum())

    def __repr__(self) -> str:
        total = float(self.information.sum())
        return f"<{self.count} of {self.active.numel()} latent coordinates active, {total:.2f} nats in all>"


def _asked(model: JointModel) -> JointModel:
    require_model(model)
    return model.eval_copy()


@torch.no_grad()
def latent_usage(model: JointModel, data: Data, latent: str, *, sweeps: int = 4, seed: int = 0) -> LatentUsage:
    """Measure how much the coordinates of a latent group encode of the examples, and how much a redraw preserves.

    model: a trained `JointModel`.
    data: examples, in which the latent group is not observed.
    latent: the latent group.
    sweeps: sweeps of the chain that infers the latents.
    seed: fixes all randomness.
    """
    sweeps = as_count("sweeps", sweeps, 0)
    model = _asked(model)
    if not isinstance(data, Data):
        raise InputError(f"data must be Data(values, mask), found {type(data).__name__}")
    generator = model.generator(seed)
    known, mask = model.validate(data.state, data.mask)
    model.check_names([latent], "latent")
    if bool(mask[latent].any()):
        raise InputError(f"{latent!r} is observed in the data: it is not a latent")
    state = initial_state(model, len(data), generator, known, mask)
    chain = Chain(model, clamp=mask, scan="systematic", generator=generator)
    state = chain.run(state, chain.sweeps(sweeps))
    posterior = model(latent, state)
    state = {**state, latent: posterior.sample(generator)}
    entropy = _marginal_entropy(model, latent, posterior, _classes(model, latent, state, mask))
    carrier = _carrier(model, latent, mask)
    again = model(latent, {**state, carrier: transition(model, carrier, state, None, generator).value})
    return LatentUsage(entropy - posterior.entropy.mean(0), entropy + again.scores(state[latent]).mean(0))


def _carrier(model: JointModel, latent: str, mask: Mask) -> str:
    """Return the observed group with the most coordinates, which the latents describe."""
    observed = [n for n in model.names if n != latent and bool(mask[n].any())]
    if not observed:
        raise InputError("data: latent usage needs a group besides the latent that is observed, found none")
    return max(observed, key=lambda n: math.prod(model.variables[n].encoding_shape))


def _classes(model: JointModel, latent: str, state: State, mask: Mask) -> Tensor:
    """Number the rows by their observed classes, those of the context included."""
    names = [n for n in model.variables if n != latent and is_class(model.variables[n]) and bool(mask[n].all())]
    columns = [state[n] for n in names] or [torch.zeros(row_count(state), dtype=torch.long, device=model.device)]
    return torch.stack(columns, 1).unique(dim=0, return_inverse=True)[1]


def _marginal_entropy(model: JointModel, name: str, posterior: Distribution, classes: Tensor) -> Tensor:
    """Average each coordinate's law over the rows of a class; return its entropy in nats, averaged over classes."""
    total = torch.zeros_like(posterior.entropy[0])
    for k in range(int(classes.max()) + 1):
        mean, spread = posterior.mean[classes == k], posterior.variance[classes == k]
        variance = spread.mean(0) + mean.var(0, correction=0)
        total += len(mean) / len(classes) * model.variables[name].marginal_entropy(mean.mean(0), variance)
    return total


@dataclass(frozen=True, eq=False)
class Consistency:
    """The detailed-balance gap: nats per step that the bound loses. It is zero iff the conditionals are consistent.

    gap: the gap of the model.
    error: its standard error.
    by_group: the part of each group; they add up to the gap.
    """

    gap: float
    error: float
    by_group: dict[str, float]

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {value:+.3g}" for name, value in self.by_group.items())
        return f"<consistency gap {self.gap:.3g} +- {self.error:.2g} nats per step ({parts})>"


@torch.no_grad()
def consistency(
    model: JointModel,
    *,
    chains: int = 512,
    warmup: int = 200,
    steps: int = 200,
    seed: int = 0,
    state: State | None = None,
) -> Consistency:
    """Estimate the detailed-balance gap along chains of the random scan.

    The error is the standard error over chains, which are independent.

    model: a trained `JointModel`.
    chains: the number of chains.
    warmup: steps before the estimate.
    steps: steps of the estimate.
    seed: fixes all randomness.
    state: where the chains begin, one row each (default: random values).
    """
    chains, warmup, steps = as_count("chains", chains, 2), as_count("warmup", warmup, 0), as_count("steps", steps)
    model = _asked(model)
    require_room(f"chains={chains}", chains * row_bytes(model), model.device)
    generator = model.generator(seed)
    state = initial_state(model, chains, generator) if state is None else model.whole_state(state)
    chain = Chain(model, scan="random", per_row=True, batch=row_count(state), generator=generator)
    state = chain.run(state, warmup)
    gains = torch.zeros(len(model.names), row_count(state), device=model.device)

    def gain(move: Move) -> None:
        extra = move.distribution.log_prob(move.value) - move.distribution.log_prob(move.previous)
        rows = slice(None) if move.rows is None else move.rows
        gains[model.index(move.name), rows] += extra.to(gains.dtype)

    chain.run(state, steps, [gain])
    rate = gains / steps
    total = rate.sum(0)
    if not bool(total.isfinite().all()):
        raise InputError(
            "the model gives some values the probability 0 and redraws others with certainty: its gap is not finite"
        )
    by_group = dict(zip(model.names, rate.mean(1).tolist(), strict=True))
    return Consistency(float(total.mean()), float(total.std() / math.sqrt(len(total))), by_group)


def mixing(
    model: JointModel, names: Iterable[str] | None = None, *, chains: int = 16, sweeps: int = 200, seed: int = 0
) -> Diagnostics:
    """Measure R-hat and effective sample size of the unclamped chain.

    model: a trained `JointModel`.
    names: the groups to measure (default: all).
    chains: the number of chains; they begin at random values.
    sweeps: sweeps of the measurement, after as many of warm-up.
    seed: fixes all randomness.
    """
    require_model(model)
    chains = as_count("chains", chains, 2)  # one has nothing to agree with
    wanted = model.names if names is None else names
    return query(model, {}, wanted, chains=chains, stop=Sweeps(sweeps), init="random", seed=seed).diagnostics
