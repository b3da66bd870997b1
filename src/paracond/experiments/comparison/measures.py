"""Measures of a model p(x, z | c), for any method of learning.

Generation. A random code is z ~ p(z), the prior (ours has none). The limit is the chain that alternates p(x | z, c) and
q(z | x, c), after `SWEEPS` sweeps from the fitted init, which is the same for all methods. An image is the mean of
p(x | z, c) at its code z.

Consistency. `gap`: the nats per step by which a redrawn group scores more than the value it replaced. In the limit it
is zero iff a joint has both conditionals (theorem T1, `diagnostics`). `disagreement`: the distance between codes
z ~ q(z | x, c) of real images and codes of the free chain for the same c. In units in which the former have covariance
one, with mean m and covariance S of the latter in d coordinates, it is the Frechet distance per coordinate,

    (|m|^2 + tr(1 + S - 2 S^1/2)) / d.

Equal laws have .007 with 10,000 codes of 128 coordinates. Variances have a floor, since directions in which codes of
real images hardly differ would dominate: that of one code in n, and .01 for bits.

The class k from the upper half x_K of a test image, by Bayes' rule with codes z_n ~ p(z | c_n) of the model itself:

    p(k | x_K) ~ p(k) p(x_K | k),    p(x_K | k) ~ (1/N) sum_n p(x_K | z_n, c_n),    c_n of training images of class k.

All methods use this estimator and the same N; it needs neither a prior in closed form nor an encoder of half an image.
With independent pixels of one sigma, and mu_n the mean of p(x | z_n, c_n),

    log p(x_K | z_n, c_n) = -|x_K - mu_nK|^2 / (2 sigma^2) + constant.

For scale, real images as mu_n and the most frequent class are measured too. The hidden half, given x_K and c, is the
mean of chains, measured by its root mean square error.

Bits: an upper bound of the information of codes about an image given c. For binary codes it is a sum over coordinates
(`diagnostics.latent_usage`). For real codes with noise variances v(x),

    1/2 log det(cov(mean - E[mean | c]) + diag E v) - 1/2 E log det diag v,      E[. | c] linear.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import paracond as pc
from paracond.baselines import directed
from paracond.data import State, take
from paracond.diagnostics import Consistency, consistency, latent_usage
from paracond.distributions import Gaussian
from paracond.experiments.common.images import shown
from paracond.experiments.comparison.model import Pictures
from paracond.metrics.fid import Statistics, frechet_distance
from paracond.metrics.scores import accuracy

SWEEPS = 100
LONGER = 4  # factor for longer chains
HALVES = 8  # chains for every hidden half


def contexts_of(pictures: Pictures, count: int, seed: int) -> Tensor:
    """c of `count` training images, each used equally often (or once more)."""
    rows = len(pictures.train)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    return pictures.train.state["c"][order[torch.arange(count) % rows]]


def random_codes(model: pc.JointModel, c: Tensor, seed: int, prior: pc.Data | None = None) -> State:
    return directed.random_code(model, "z", {"c": c}, prior=prior, seed=seed)


def limiting(model: pc.JointModel, c: Tensor, seed: int, sweeps: int = SWEEPS, **options) -> State:
    return pc.sample(model, {"c": c}, sweeps=sweeps, seed=seed, **options)


def coded(model: pc.JointModel, data: pc.Data, seed: int) -> State:
    """Real images with their codes."""
    return pc.sample(model, data.state, sweeps=1, seed=seed)


def timed(model: pc.JointModel, make: Callable[[], State]) -> tuple[State, Tensor, float]:
    """A state, its images on the host, and the seconds for both."""
    engine = pc.Engine(model.device, "eager")
    engine.synchronise()  # earlier work does not count
    began = time.perf_counter()
    state = make()
    images = shown(model, state).cpu()
    return state, images, time.perf_counter() - began


def gap(model: pc.JointModel, state: State, steps: int, chains: int = 512) -> Consistency:
    """Inconsistency from these states on."""
    return consistency(model, state=take(state, slice(chains)), warmup=0, steps=steps)


def disagreement(family: pc.Family, clamped: Tensor, unclamped: Tensor) -> float:
    """The distance of codes `[n, *event]` of the free chain from codes of real images."""
    real = statistics(clamped)
    values, vectors = torch.linalg.eigh(real.covariance)
    least = max(float(values.mean()) / int(real.count), 0.01 if isinstance(family, pc.Binary) else 0.0)
    units = vectors * values.clamp(min=least).rsqrt()
    a, b = (statistics((codes.flatten(1).double() - real.mean) @ units) for codes in (clamped, unclamped))
    return frechet_distance(a, b) / len(values)


def statistics(codes: Tensor) -> Statistics:
    flat = codes.flatten(1).double()
    return Statistics.of([flat])


@torch.no_grad()
def bits(model: pc.JointModel, data: pc.Data) -> float:
    if isinstance(model.variables["z"], pc.Binary):
        return float(latent_usage(model, data[:2000], "z").information.sum()) / math.log(2)
    asked, states = model.eval_copy(), [data[i : i + 1000].state for i in range(0, len(data), 1000)]
    parts = [asked("z", {n: v.to(model.device) for n, v in state.items()}) for state in states]
    means, noise = (torch.cat([getattr(q, of).flatten(1).double() for q in parts]) for of in ("mean", "variance"))
    family = model.variables["c"]
    c = family.encode(data.state["c"].to(model.device)).flatten(1).double()
    c = torch.cat([c, torch.ones_like(c[:, :1])], 1)
    residual = means - c @ (torch.linalg.pinv(c) @ means)
    total = statistics(residual).covariance + noise.mean(0).diag()
    return float(0.5 * (torch.logdet(total) - noise.log().sum(1).mean())) / math.log(2)


# --- from the upper half ----------------------------------------------------------------------------------------


def top_half(image: Sequence[int]) -> Tensor:
    """The visible half, Bool `[channels, height, width]`."""
    return (torch.arange(image[1]) < image[1] // 2).view(1, -1, 1).expand(*image)


def class_evidence(means: Tensor, sigma: float, of_class: Tensor, images: Tensor, classes: int) -> Tensor:
    """log p(x_K | k) up to a constant, `[images, classes]`, from means of known classes."""
    visible = top_half(images.shape[1:]).to(images.device)
    means, seen = means[:, visible], images.to(means)[:, visible]
    members = [of_class == k for k in range(classes)]
    found = []
    for part in seen.split(1000):
        distances = part.square().sum(1, keepdim=True) - 2 * part @ means.T + means.square().sum(1)
        scores = -0.5 * distances / sigma**2
        each = [scores[:, mine].logsumexp(1) - math.log(max(1, int(mine.sum()))) for mine in members]
        found.append(torch.stack(each, 1))
    return torch.cat(found)


def bayes_accuracy(means: Tensor, c: Tensor, sigma: float, pictures: Pictures, images: int) -> float:
    """Accuracy of the class of test images from their upper half, by Bayes' rule on means given c."""
    test, of = pictures.test[:images], pictures.class_of
    seen = test.state["x"].to(means.device)
    evidence = class_evidence(means, sigma, of(c).to(means.device), seen, pictures.classes)
    frequency = torch.bincount(of(pictures.train.state["c"]), minlength=pictures.classes).to(means.device)
    decided = (evidence + frequency.clamp(min=1).log()).argmax(1)
    return accuracy(decided.cpu(), of(test.state["c"]))


@torch.no_grad()
def half_accuracy(model: pc.JointModel, pictures: Pictures, codes: State, images: int) -> float:
    asked = model.eval_copy()
    parts = [asked("x", take(codes, slice(i, i + 1000))) for i in range(0, len(codes["x"]), 1000)]
    first = parts[0]
    if not isinstance(first, Gaussian) or first.log_scale.numel() != 1:
        raise pc.InputError(
            "half_accuracy needs a Real x with one sigma for all pixels: use scale='learned' or a number"
        )
    means = torch.cat([p.mean for p in parts])
    return bayes_accuracy(means, codes["c"], float(first.log_scale.exp()), pictures, images)


@torch.no_grad()
def half_error(
    model: pc.JointModel, pictures: Pictures, images: int, sweeps: int, seed: int, chains: int = HALVES
) -> float:
    """Root mean square error of the mean over chains, at hidden pixels of test images."""
    test = pictures.test[:images]
    x, c = (test.state[name].to(model.device).repeat_interleave(chains, 0) for name in ("x", "c"))
    visible = top_half(x.shape[1:]).to(model.device)
    state = pc.sample(model, {"c": c, "x": pc.Observed(x, visible)}, sweeps=sweeps, seed=seed)
    drawn = shown(model, state).unflatten(0, (-1, chains)).mean(1)
    return float((drawn - x[::chains])[:, ~visible].square().mean().sqrt())


def majority(pictures: Pictures) -> float:
    """The share of test images with the most frequent class of the training images."""
    frequent = torch.bincount(pictures.class_of(pictures.train.state["c"])).argmax()
    return float((pictures.class_of(pictures.test.state["c"]) == frequent).float().mean())
