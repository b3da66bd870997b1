"""What is measured of p(x, z | c), whichever way it was learned.

Two ways to generate. By a random code: z ~ p(z), the fixed prior (ours has none). By the limit of the chain that
alternates p(x | z, c) and q(z | x, c): after `SWEEPS` sweeps from the fitted start, which is the same for all methods.
An image is shown as the mean of p(x | z, c) at its code z.

Consistency. `gap`: the nats per step by which a redrawn group scores more than what it replaced, zero iff there is a
joint that has both conditionals (theorem T1; see `diagnostics`). `disagreement`: do clamped and unclamped chains agree?
Codes z ~ q(z | x, c) of real images (the chain with x clamped) against those of the unclamped chain, for the same c, as
the Frechet distance of their means and covariances, over the variance of the former:

    (|m - m'|^2 + tr(S + S' - 2 (S S')^1/2)) / tr S.

The class of a half-hidden image, for which none was trained: c was always given. With x_K the visible half and k a
class, Bayes' rule has

    p(k | x_K) ~ p(k) p(x_K | k),      p(x_K | k) = E p(x_K | z, c)  over (c, z) of class k
                                                  ~ (1/N) sum_n p(x_K | z_n, c_n),

where c_n are conditions of training images of class k and z_n ~ p(z | c_n) are codes of the model's own joint: of the
limit of the chain, or of the prior. This is one estimator for all methods, which needs neither a prior in closed form
(ours has none) nor an encoder that could read half an image; it is consistent for N -> infinity, and all have the same
N. The decision is the arg max over k. With independent pixels of one sigma, mu_n the mean of p(x | z_n, c_n),

    log p(x_K | z_n, c_n) = -|x_K - mu_nK|^2 / (2 sigma^2) + what is the same for all n and k.

Bits: what the codes say of an image given its class (see `diagnostics.latent_usage`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

import paracond as pc
from paracond import directed
from paracond.diagnostics import consistency, latent_usage
from paracond.families import Gaussian
from paracond.metrics import Statistics, accuracy, frechet_distance
from paracond.recipes.compare_model import Pictures
from paracond.recipes.images import shown
from paracond.state import take

SWEEPS = 100


def conditions_of(pictures: Pictures, count: int, seed: int) -> Tensor:
    """c of `count` training images: each as often as the others, or once more."""
    rows = len(pictures.train)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    return pictures.train.state["c"][order[torch.arange(count) % rows]]


def random_codes(model: pc.JointModel, c: Tensor, seed: int) -> pc.State:
    return directed.random_code(model, "z", {"c": c}, seed=seed)


def limiting(model: pc.JointModel, c: Tensor, seed: int, sweeps: int = SWEEPS, **options) -> pc.State:
    return pc.sample(model, {"c": c}, sweeps=sweeps, seed=seed, **options)


def coded(model: pc.JointModel, data: pc.Data, seed: int) -> pc.State:
    """Real images with their codes."""
    return pc.sample(model, data.state, sweeps=1, seed=seed)


def timed(model: pc.JointModel, make: Callable[[], pc.State]) -> tuple[pc.State, Tensor, float]:
    """A state, its pictures on the host, and the seconds that they took."""
    began = time.perf_counter()
    state = make()
    images = shown(model, state).cpu()
    return state, images, time.perf_counter() - began


def gap(model: pc.JointModel, state: pc.State, steps: int, chains: int = 512) -> float:
    """From states of the limiting distribution on."""
    return consistency(model, state=take(state, slice(chains)), warmup=0, steps=steps).gap


def disagreement(clamped: Tensor, unclamped: Tensor) -> float:
    """Of codes `[n, *event]`."""
    a, b = statistics(clamped), statistics(unclamped)
    return frechet_distance(a, b) / float(a.covariance.trace())


def statistics(codes: Tensor) -> Statistics:
    flat = codes.flatten(1).double()
    return Statistics.of_sums(flat.sum(0), flat.T @ flat, torch.tensor(len(flat)))


def bits(model: pc.JointModel, data: pc.Data) -> float:
    return float(latent_usage(model, data, "z").information.sum()) / math.log(2)


def top_half(image: tuple[int, int, int]) -> Tensor:
    """Where the visible half is, `[channels, height, width]`."""
    return (torch.arange(image[1]) < image[1] // 2).view(1, -1, 1).expand(image)


@torch.no_grad()
def class_evidence(
    model: pc.JointModel, codes: pc.State, of_class: Tensor, images: Tensor, visible: Tensor, classes: int
) -> Tensor:
    """log p(x_K | k), `[images, classes]`, but for what is the same for all k, from codes (c, z) of known classes."""
    with model.asked():
        p = model("x", codes)
    if not isinstance(p, Gaussian) or p.log_scale.numel() != 1:
        raise pc.InputError("the class of a half-hidden image needs a Real x with one sigma for all")
    means, seen = p.mean[:, visible], images.to(p.mean)[:, visible]
    members = [of_class == k for k in range(classes)]
    found = []
    for part in seen.split(1000):
        distances = part.square().sum(1, keepdim=True) - 2 * part @ means.T + means.square().sum(1)
        scores = -0.5 * distances * torch.exp(-2 * p.log_scale)
        each = [scores[:, mine].logsumexp(1) - math.log(max(1, int(mine.sum()))) for mine in members]
        found.append(torch.stack(each, 1))
    return torch.cat(found)


def half_accuracy(model: pc.JointModel, pictures: Pictures, codes: pc.State, images: int) -> float:
    """The share of test images whose class is told from their upper half, by Bayes' rule on these codes."""
    test, device = pictures.test[:images], model.device
    of_class = pictures.class_of(codes["c"]).to(device)
    visible = top_half(model.variables["x"].event_shape).to(device)  # type: ignore[arg-type]
    evidence = class_evidence(model, codes, of_class, test.state["x"].to(device), visible, pictures.classes)
    frequency = torch.bincount(pictures.class_of(pictures.train.state["c"]), minlength=pictures.classes).to(device)
    decided = (evidence + frequency.clamp(min=1).log()).argmax(1)
    return accuracy(decided.cpu(), pictures.class_of(test.state["c"]))
