"""What is measured of p(x, z | c), whichever way it was learned.

Two ways to generate. By a random code: z ~ p(z), the prior (ours has none). By the limit of the chain that
alternates p(x | z, c) and q(z | x, c): after `SWEEPS` sweeps from the fitted start, which is the same for all methods.
An image is shown as the mean of p(x | z, c) at its code z.

Consistency. `gap`: the nats per step by which a redrawn group scores more than what it replaced. In the limit it is
zero iff there is a joint that has both conditionals (theorem T1; see `diagnostics`); it is measured from the end of
those chains on, and where they still drift that counts too. `disagreement`: do clamped and unclamped chains agree?
Codes z ~ q(z | x, c) of real images (the chain with x clamped) against those of the unclamped chain, for the same c:
the Frechet distance of means and covariances, per coordinate, in units in which the former have covariance one. (z has
no units of its own, and without that one wide direction that agrees would hide all others.) With d coordinates,

    (|m|^2 + tr(1 + S - 2 S^1/2)) / d,      m, S being those of the latter in these units.

Finite samples have some of it: 10,000 codes of 128 coordinates have .007 where they agree. Directions in which hardly
any of the former differ would decide alone: they count as if one code in n did, and of bits one in a hundred.

Inference that none was trained for, from the visible upper half x_K of test images:

- *The class*, by Bayes' rule, where c was always given in learning:

      p(k | x_K) ~ p(k) p(x_K | k),      p(x_K | k) = E p(x_K | z, c)  over (c, z) of class k
                                                    ~ (1/N) sum_n p(x_K | z_n, c_n),

  where c_n are conditions of training images of class k and z_n ~ p(z | c_n) are codes of the model's own joint: of the
  limit of the chain, or of the prior. This is one estimator for all methods, which needs neither a prior in closed form
  (ours has none) nor an encoder that could read half an image, and all have the same N. The decision is the arg max
  over k. With independent pixels of one sigma, mu_n the mean of p(x | z_n, c_n),

      log p(x_K | z_n, c_n) = -|x_K - mu_nK|^2 / (2 sigma^2) + what is the same for all n and k,

  so that for so small an N it is nearly the class of the nearest mu_n. For scale it is therefore measured
  with real images in the place of mu_n too (smoother ones may do better), and by always deciding for the most frequent
  class.
- *The hidden half*, by chains with x_K and c clamped: the error of their mean, as a root mean square.

Bits: at most what the codes say of an image given c. Of bits, the sum over coordinates as if they were independent
(see `diagnostics.latent_usage`). Of numbers, with noise of variances v(x) around means of which c tells a part,

    1/2 log det(cov(mean - E[mean | c]) + diag E v) - 1/2 E log det diag v,

the entropy of codes being at most that of a Gaussian, and E[. | c] linear.
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
from paracond.metrics.fid import Statistics, accuracy, frechet_distance

SWEEPS = 100
LONGER = 4  # times as many
HALVES = 8  # chains for every hidden half


def conditions_of(pictures: Pictures, count: int, seed: int) -> Tensor:
    """c of `count` training images: each as often as the others, or once more."""
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
    """A state, its pictures on the host, and the seconds that they took."""
    engine = pc.Engine(model.device, "eager")
    engine.synchronise()  # what was asked for before is not counted
    began = time.perf_counter()
    state = make()
    images = shown(model, state).cpu()
    return state, images, time.perf_counter() - began


def gap(model: pc.JointModel, state: State, steps: int, chains: int = 512) -> Consistency:
    """From states of the limiting distribution on."""
    return consistency(model, state=take(state, slice(chains)), warmup=0, steps=steps)


def disagreement(family: pc.Family, clamped: Tensor, unclamped: Tensor) -> float:
    """Of codes `[n, *event]`."""
    real = statistics(clamped)
    values, vectors = torch.linalg.eigh(real.covariance)
    least = max(float(values.mean()) / int(real.count), 0.01 if isinstance(family, pc.Binary) else 0.0)
    units = vectors * values.clamp(min=least).rsqrt()
    a, b = (statistics((codes.flatten(1).double() - real.mean) @ units) for codes in (clamped, unclamped))
    return frechet_distance(a, b) / len(values)


def statistics(codes: Tensor) -> Statistics:
    flat = codes.flatten(1).double()
    return Statistics.of_sums(flat.sum(0), flat.T @ flat, torch.tensor(len(flat)))


@torch.no_grad()
def bits(model: pc.JointModel, data: pc.Data) -> float:
    if isinstance(model.variables["z"], pc.Binary):
        return float(latent_usage(model, data[:2000], "z").information.sum()) / math.log(2)
    with model.eval_mode():
        states = [data[i : i + 1000].state for i in range(0, len(data), 1000)]
        parts = [model("z", {n: v.to(model.device) for n, v in state.items()}) for state in states]
    means, noise = (torch.cat([getattr(q, of).flatten(1).double() for q in parts]) for of in ("mean", "variance"))
    family = model.variables["c"]
    told = family.encode(data.state["c"].to(model.device)).flatten(1).double()
    told = torch.cat([told, torch.ones_like(told[:, :1])], 1)
    apart = means - told @ (torch.linalg.pinv(told) @ means)
    total = statistics(apart).covariance + noise.mean(0).diag()
    return float(0.5 * (torch.logdet(total) - noise.log().sum(1).mean())) / math.log(2)


# --- from the upper half ----------------------------------------------------------------------------------------


def top_half(image: Sequence[int]) -> Tensor:
    """Where the visible half is, `[channels, height, width]`."""
    return (torch.arange(image[1]) < image[1] // 2).view(1, -1, 1).expand(*image)


def class_evidence(means: Tensor, sigma: float, of_class: Tensor, images: Tensor, classes: int) -> Tensor:
    """log p(x_K | k), `[images, classes]`, but for what is the same for all k, from means of known classes."""
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
    """The share of test images whose class is told from their upper half, by Bayes' rule on means given c."""
    test, of = pictures.test[:images], pictures.class_of
    seen = test.state["x"].to(means.device)
    evidence = class_evidence(means, sigma, of(c).to(means.device), seen, pictures.classes)
    frequency = torch.bincount(of(pictures.train.state["c"]), minlength=pictures.classes).to(means.device)
    decided = (evidence + frequency.clamp(min=1).log()).argmax(1)
    return accuracy(decided.cpu(), of(test.state["c"]))


@torch.no_grad()
def half_accuracy(model: pc.JointModel, pictures: Pictures, codes: State, images: int) -> float:
    with model.eval_mode():
        parts = [model("x", take(codes, slice(i, i + 1000))) for i in range(0, len(codes["x"]), 1000)]
    first = parts[0]
    if not isinstance(first, Gaussian) or first.log_scale.numel() != 1:
        raise pc.InputError("the class of a half-hidden image needs a Real x with one sigma for all")
    means = torch.cat([p.mean for p in parts])
    return bayes_accuracy(means, codes["c"], float(first.log_scale.exp()), pictures, images)


@torch.no_grad()
def half_error(
    model: pc.JointModel, pictures: Pictures, images: int, sweeps: int, seed: int, chains: int = HALVES
) -> float:
    """Of the mean over chains, at hidden pixels of test images."""
    test = pictures.test[:images]
    x, c = (test.state[name].to(model.device).repeat_interleave(chains, 0) for name in ("x", "c"))
    visible = top_half(x.shape[1:]).to(model.device)
    state = pc.sample(model, {"c": c, "x": pc.Observed(x, visible)}, sweeps=sweeps, seed=seed)
    drawn = shown(model, state).unflatten(0, (-1, chains)).mean(1)
    return float((drawn - x[::chains])[:, ~visible].square().mean().sqrt())


def majority(pictures: Pictures) -> float:
    """The share of test images that are of the class most frequent in training."""
    most = torch.bincount(pictures.class_of(pictures.train.state["c"])).argmax()
    return float((pictures.class_of(pictures.test.state["c"]) == most).float().mean())
