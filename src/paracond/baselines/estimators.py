"""Estimators of the gradient of E_q(z) f(z) in the parameters of q. A VAE learns its encoder by one of them.

- "pathwise" (Real z; unbiased): z = mu + sigma e with e ~ N(0, 1), differentiated through;
- "gumbel" (Binary z; biased): z = [s > 1/2], s = sigmoid((l + logistic noise) / T), differentiated as if z were s
  (Jang et al. 2017; Maddison et al. 2017);
- "straight-through" (Binary z; biased): z ~ q, differentiated as if z were p (Bengio et al. 2013);
- "disarm" (Binary z; unbiased): p_d = sigmoid(l_d) and a uniform u_d give z_d = [u_d < p_d], z'_d = [1 - u_d < p_d],

      d E f / d l_d ~ 1/2 (f(z) - f(z')) (z_d - z'_d) sigmoid(|l_d|)

  (Dong, Mnih & Tucker 2020): score function, with a pair as control variate, the noise given the pair averaged out;
- "exact" (Binary z of few bits): sum_z q(z) f(z), over all z.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from paracond.distributions import Bernoulli, Distribution, Gaussian
from paracond.families import Binary, Family, Real

TEMPERATURE = 2 / 3  # of "gumbel": the choice of Maddison et al. for one bit

Scores = Callable[[Tensor], Tensor]
#: (q, f, generator) -> [batch]: an estimate of E_q f, whose gradient estimates that of E_q f. f takes z of every row
#: once, or of all rows several times, and returns one number for each.
Estimator = Callable[[Distribution, Scores, torch.Generator], Tensor]


def pathwise(q: Distribution, f: Scores, generator: torch.Generator) -> Tensor:
    assert isinstance(q, Gaussian)
    noise = torch.empty_like(q.mu).normal_(generator=generator)
    return f(q.mu + q.log_scale.exp() * noise)


def gumbel(q: Distribution, f: Scores, generator: torch.Generator) -> Tensor:
    assert isinstance(q, Bernoulli)
    u = torch.empty_like(q.logits).uniform_(generator=generator).clamp(1e-6, 1 - 1e-6)
    s = torch.sigmoid((q.logits + u.logit()) / TEMPERATURE)
    return f((s > 0.5).to(s.dtype) + s - s.detach())


def straight_through(q: Distribution, f: Scores, generator: torch.Generator) -> Tensor:
    return f(q.sample(generator) + q.mean - q.mean.detach())


def disarm(q: Distribution, f: Scores, generator: torch.Generator) -> Tensor:
    assert isinstance(q, Bernoulli)
    p = q.mean.detach()
    u = torch.empty_like(p).uniform_(generator=generator)
    z, other = (u < p).to(p.dtype), (1 - u < p).to(p.dtype)
    first, second = f(torch.cat([z, other])).chunk(2)
    gap = (first - second).detach().view(-1, *[1] * (p.ndim - 1))
    slope = 0.5 * gap * (z - other) * torch.sigmoid(q.logits.detach().abs())
    through = (slope * (q.logits - q.logits.detach())).flatten(1).sum(1)  # zero, with the wanted gradient
    return 0.5 * (first + second) + through


def enumerated(q: Distribution, f: Scores, generator: torch.Generator) -> Tensor:
    assert isinstance(q, Bernoulli)
    rows, *event = q.logits.shape
    values = Binary(tuple(event)).values().to(q.logits)
    each = values.repeat_interleave(rows, 0)  # all rows with the first value, then all with the second, ...
    scores = q.scores(values.unsqueeze(1)).reshape(len(values), rows, -1).sum(2)
    return (scores.exp() * f(each).view(len(values), rows)).sum(0)


ESTIMATORS: dict[type[Family], dict[str, Estimator]] = {
    Real: {"pathwise": pathwise},
    Binary: {"gumbel": gumbel, "straight-through": straight_through, "disarm": disarm, "exact": enumerated},
}


def estimators_of(family: Family) -> dict[str, Estimator]:
    """The estimators for a latent of this family. The first is the default (best measured ELBO)."""
    return next(found for kind, found in ESTIMATORS.items() if isinstance(family, kind))
