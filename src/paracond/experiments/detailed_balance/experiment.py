"""Section 5.2 and appendix B: longer chains drive a kernel to detailed balance.

The target pi(z) on {0, 1}^64 is the latent marginal of a trained model of images: z ~ p(z | x, c) for its training
examples (fig:app_art1). Kernels p(z | z') learn it as their limiting distribution (`kernels`, q = the kernel itself):

1. log-linear (eq:art_mat): the final asymmetry |W - W^T| against the chain length n (fig:art3);
2. log-linear, symmetrised log-linear and MLP, each with n = 1 and n = 10: F (appendix B.1) over n and over training
   time (fig:app_art2). Without detailed balance F falls linearly with n. The slope is measured on the second half of
   the lengths, where the chain has forgotten the data;
3. a fixed q that only flips coordinates (denoising diffusion, Example 1): the gap between the likelihood and its bound
   grows linearly with n, exactly on a small space and by estimate here;
4. proposition P:zero on random small spaces: the omitted gradient falls like the kernel's second eigenvalue.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

import paracond as pc
from paracond import exact
from paracond.experiments.common.config import ExperimentConfig
from paracond.experiments.common.parallel import run_side_by_side
from paracond.experiments.common.results import Metric, Outcome
from paracond.experiments.common.runner import Runner
from paracond.experiments.detailed_balance import report as pictures
from paracond.experiments.detailed_balance.report import Diffusion, Findings, Surface
from paracond.experiments.digits import experiment as demo
from paracond.theory.kernels import FactorKernel, Kernel, KernelLearner, LogLinear, Objective, objective
from paracond.theory.noise_kernels import Flips

KINDS = ("log-linear", "symmetrised", "MLP")


@dataclass(frozen=True)
class Config(ExperimentConfig):
    """Chain length and detailed balance: asymmetry and the objective along n (section 5.2, appendix B)."""

    out: Path = Path("runs/chain-length")
    device: Literal["cpu"] = "cpu"
    """kernels are too small to gain from another device"""
    source: Literal["mnist", "digits"] = "mnist"
    """model of the target latents: a saved one of MNIST, or one of small digits that is trained first"""
    model: Path = Path("models/mnist")
    """the saved model of MNIST, with latents z"""
    data: Path | None = None
    """folder with the IDX files"""
    lengths: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    repeats: int = 5
    updates: int = 3000
    learning_rate: float = 5e-3
    batch_size: int = 256
    spread: float = 0.1
    """standard deviation of initial weights (twice that for the MLP)"""
    milestones: int = 16
    """number of times to measure F, at equal steps of the square root of the training time"""
    horizon: int = 64
    """largest n for F"""
    chains: int = 2000


def shortened(config: Config) -> Config:
    """A tiny version for smoke tests."""
    return replace(
        config, source="digits", lengths=(1, 8), repeats=2, updates=200, milestones=4, horizon=32, chains=200
    )


# --- the target -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Target:
    """Draws z ~ pi(z), [examples, coordinates], and the model whose latents they are."""

    model: pc.JointModel
    z: Tensor


def target(config: Config) -> Target:
    """z ~ p(z | x, c) for the training examples of a model."""
    digits = config.source == "digits"
    if digits:
        settings = demo.Config(latents=64, updates=3000, seed=config.seed)
        if config.quick:
            settings = replace(settings, updates=200, updates_class=50, copies=4, hidden=128, hidden_class=128)
        model, data = demo.train(settings, 0.0, "cpu"), pc.datasets.digits()
    else:
        model, data = pc.JointModel.load(config.model), pc.datasets.mnist("train", folder=config.data)
    known, _ = model.validate(data.state)
    generator, parts = model.generator(config.seed), []
    with torch.no_grad():
        for first in range(0, len(data), 2000):
            chunk = {name: value[first : first + 2000] for name, value in known.items()}
            parts += [model("z", chunk).sample(generator) for _ in range(20 if digits else 1)]
    return Target(model, torch.cat(parts))


@torch.no_grad()
def seen_codes(found: Target, count: int = 16, sweeps: int = 20) -> tuple[Tensor, Tensor]:
    """fig:app_art1: images from codes z ~ pi(z), and from uniform ones; x and c are redrawn in turn, z is clamped."""
    generator = torch.Generator().manual_seed(1)
    likely = found.z[torch.randperm(len(found.z), generator=generator)[:count]]
    uniform = torch.randint(2, likely.shape, generator=generator).to(likely.dtype)
    states = [pc.sample(found.model, {"z": z}, sweeps=sweeps) for z in (likely, uniform)]
    likely, uniform = (found.model("x", state).mean.clamp(0, 1) for state in states)
    side = math.isqrt(likely[0].numel())
    return likely.view(-1, 1, side, side), uniform.view(-1, 1, side, side)


# --- kernels ----------------------------------------------------------------------------------------------------


def make_kernel(kind: str, size: int, spread: float, seed: int) -> FactorKernel:
    """A kernel with random weights; a log-linear one has an asymmetric W."""
    torch.manual_seed(seed)
    network: pc.networks.Network
    if kind == "MLP":
        network = pc.networks.MLP({"z": size}, [size], hidden=128, depth=1, activation="tanh")
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.data.normal_(0, 2 * spread)
    else:
        network = LogLinear("z", size)
        network.weight.data.normal_(0, spread)
        if kind == "symmetrised":
            network.symmetrise()
    return FactorKernel("z", pc.Conditional(pc.Binary(size), network))


def make_learner(kernel: FactorKernel, z: Tensor, n: int, config: Config, seed: int, **options) -> KernelLearner:
    network = kernel.conditional.network
    if isinstance(network, LogLinear) and network.asymmetry() == 0:
        options["after_update"] = network.symmetrise
    return KernelLearner(
        kernel,
        {"z": z},
        chain_length=n,
        batch_size=config.batch_size,
        learning_rate=pc.schedules.cosine(config.learning_rate, config.learning_rate / 50, config.updates),
        seed=seed,
        **options,
    )


def asymmetry(z: Tensor, n: int, seed: int, config: Config) -> float:
    """|W - W^T| of a log-linear kernel trained with chains of length n."""
    kernel = make_kernel("log-linear", z.shape[1], config.spread, seed)
    make_learner(kernel, z, n, config, seed).fit(config.updates)
    network = kernel.conditional.network
    assert isinstance(network, LogLinear)
    return network.asymmetry()


def surface(z: Tensor, kind: str, n: int, config: Config) -> Surface:
    """F along n at several training times."""
    kernel = make_kernel(kind, z.shape[1], config.spread, config.seed)
    learner = make_learner(kernel, z, n, config, config.seed)
    steps, values, slopes, whole = [], [], [], []
    for milestone in range(config.milestones):
        goal = round(config.updates * (milestone / (config.milestones - 1)) ** 2)
        for _ in learner.run(goal - learner.step_count, progress=False):
            pass
        found = measured(kernel, kernel, z, config, seed=goal)
        steps.append(goal)
        values.append(found.f.mean(0))
        slopes.append(found.slope(config.horizon // 2 + 1))
        whole.append(found.slope())
    return Surface(kind, n, steps, torch.stack(values), slopes, whole)


def measured(p: Kernel, q: Kernel, z: Tensor, config: Config, seed: int) -> Objective:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(z), (config.chains,), generator=generator)
    return objective(p, q, {"z": z[rows]}, config.horizon, generator)


# --- denoising diffusion ----------------------------------------------------------------------------------------


def diffusion(z: Tensor, config: Config, chance: float = 0.05) -> Diffusion:
    """A kernel trained to undo flips: F-hat along n under that fixed q, and under q = the kernel."""
    kernel, q = make_kernel("MLP", z.shape[1], config.spread, config.seed), Flips("z", chance)
    make_learner(kernel, z, 10, config, config.seed, q=q).fit(config.updates)
    under_flips, under_itself = (measured(kernel, law, z, config, seed=0) for law in (q, kernel))
    slope, error = under_flips.slope(config.horizon // 2 + 1)
    predicted = limiting_loss(kernel, q, z.shape[1], 20 * config.chains)
    return Diffusion(under_flips.f_hat.mean(0), under_itself.f_hat.mean(0), (-slope, error), predicted)


@torch.no_grad()
def limiting_loss(kernel: Kernel, q: Flips, size: int, draws: int) -> tuple[float, float]:
    """The KL of eq:chain_kl in the limit of q, which is uniform, by sampling, and its standard error.

    There x is uniform and x' ~ q(x' | x) is too. So in the mean of log p^r(x' | x) = log p(x | x') + log p(x') -
    log p(x) only the first term is left, and the KL can be estimated without p(x).
    """
    generator = torch.Generator().manual_seed(1)
    x = {"z": torch.randint(2, (draws, size), generator=generator).to(torch.get_default_dtype())}
    after = q.sample(x, generator)
    gap = q.log_prob(after, x) - kernel.log_prob(x, after).double()
    return float(gap.mean()), float(gap.std()) / len(gap) ** 0.5


def exact_gaps(chance: float = 0.25, bits: int = 4, n: int = 60) -> tuple[Tensor, float]:
    """L - L_B for n = 1, ... on a small space, by enumeration, and its growth rate by eq:chain_kl."""
    generator = torch.Generator().manual_seed(0)
    states = pc.Binary(bits).values().double()
    logits = torch.randn(len(states), len(states), generator=generator, dtype=torch.float64)
    p = exact.MatrixKernel(torch.softmax(logits, 1))
    distance = (states[:, None] - states[None]).abs().sum(2)
    q = exact.MatrixKernel(chance**distance * (1 - chance) ** (bits - distance))
    data = torch.softmax(torch.randn(len(states), generator=generator, dtype=torch.float64), 0)
    likelihood = exact.likelihood(data, p)
    gaps = torch.stack([likelihood - exact.lower_bound(data, p, q, k) for k in range(1, n + 1)])
    reverse = exact.reverse(p).transition
    rate = (exact.limiting(q)[:, None] * torch.xlogy(q.transition, q.transition / reverse)).sum()
    return gaps, float(rate)


# --- proposition P:zero -----------------------------------------------------------------------------------------


def omitted_gradients(seed: int, size: int = 6, n: int = 40) -> tuple[Tensor, float]:
    """|grad sum_x q_k(x) log p_theta(x)|_1 for k = 1, ..., n with q = p, and the second eigenvalue's modulus."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(size, size, generator=generator, dtype=torch.float64, requires_grad=True)
    data = torch.softmax(3 * torch.randn(size, generator=generator, dtype=torch.float64), 0)
    transition = torch.softmax(logits, 1)
    system = torch.eye(size, dtype=torch.float64) - transition + 1
    log_p = torch.linalg.solve(system.T, torch.ones(size, dtype=torch.float64)).log()
    kernel = exact.MatrixKernel(transition.detach())
    norms = []
    for law in exact.trajectory(kernel, data, n)[:n]:
        (gradient,) = torch.autograd.grad((law * log_p).sum(), logits, retain_graph=True)
        norms.append(gradient.abs().sum())
    return torch.stack(norms), exact.mixing_rate(kernel)


def rate_error(norms: Tensor, rate: float, above: float = 1e-11) -> float:
    """Relative error of the fitted rate of decay against the eigenvalue, over the later half above rounding."""
    usable = int((norms > above).sum())
    first = usable // 2
    n = torch.arange(first, usable, dtype=torch.float64)
    centred = n - n.mean()
    fitted = float(torch.exp((norms[first:usable].log() @ centred) / centred.square().sum()))
    return abs(fitted / rate - 1)


# --- the whole ----------------------------------------------------------------------------------------------------


def main(config: Config) -> Outcome:
    config = shortened(config) if config.quick else config
    runner = Runner(
        name="chain-length",
        title="Chain length and detailed balance",
        about="Kernels learn a distribution as their limit (section 5.2 and appendix B). Longer chains in training "
        "bring them nearer to detailed balance.",
        config=config,
        device=config.device,
    )
    found_target = target(config)
    z = found_target.z
    runs = [(n, config.seed + r) for n in config.lengths for r in range(config.repeats)]
    jobs: list = [partial(asymmetry, z, n, seed, config) for n, seed in runs]
    jobs += [partial(surface, z, kind, n, config) for kind in KINDS for n in (1, 10)]
    jobs += [partial(diffusion, z, config)]
    title = "training kernels in parallel (a few minutes)"
    done = [job() for job in jobs] if config.quick else run_side_by_side(jobs, "cpu", title)
    found = Findings(
        seen_codes(found_target),
        {n: [a for (m, _), a in zip(runs, done, strict=False) if m == n] for n in config.lengths},
        done[len(runs) : -1],
        done[-1],
        exact_gaps(),
        [omitted_gradients(seed) for seed in range(12)],
    )
    seconds = time.perf_counter() - runner.began
    runner.metrics = [*metrics(found), Metric("seconds", seconds, "lower", goal=600, about="the whole run")]
    pictures.show(runner, found, config.horizon)
    return runner.write()


def metrics(found: Findings) -> list[Metric]:
    rows = []
    means = [torch.tensor(values, dtype=torch.float64) for values in found.asymmetry.values()]
    for place, (n, values) in enumerate(zip(found.asymmetry, means, strict=True)):
        goal = None if place == 0 else float(means[place - 1].mean())
        goal = goal if goal is None or n < 32 else min(goal, 0.5 * float(means[0].mean()))
        about = f"|W - W^T|, mean of {len(values)} seeds, after learning with n = {n}"
        mean, spread = float(values.mean()), float(values.std())
        rows.append(Metric(f"asymmetry_n{n}", mean, "lower", spread, goal=goal, about=about))
    rows += _slopes({(s.kind, s.n): s for s in found.surfaces})
    gaps, rate = found.exact_gaps
    growth = float(gaps[-1] - gaps[-11]) / 10
    rows.append(Metric("diffusion_gap_error", abs(growth / rate - 1), "lower", goal=1e-10, about="growth against KL"))
    (measured_growth, error), (predicted, other) = found.diffusion.growth, found.diffusion.predicted
    about = f"growth of the gap under flips: {measured_growth:.3f}, by eq:chain_kl {predicted:.3f} nats per step"
    sigmas = abs(measured_growth - predicted) / math.hypot(error, other)
    rows.append(Metric("diffusion_growth_sigmas", sigmas, "lower", goal=quantile(1), about=about))
    worst = max(rate_error(*pair) for pair in found.omitted)
    about = "decay against the eigenvalue, worst"
    return [*rows, Metric("omitted_rate_error", worst, "lower", goal=0.1, about=about)]


def _slopes(surfaces: dict[tuple[str, int], Surface]) -> list[Metric]:
    """Final slopes of F along n, relative to the initial ones."""

    def left(kind: str, n: int) -> float:
        slopes = surfaces[kind, n].slopes
        return abs(slopes[-1][0] / slopes[0][0])

    symmetrised = [surfaces["symmetrised", n] for n in (1, 10)]
    sigmas, from_the_first = (
        [abs(slope / error) for slopes in found for slope, error in slopes]
        for found in ([s.slopes for s in symmetrised], [s.whole for s in symmetrised])
    )
    about = "final slope of F along n, over the initial one"
    return [
        Metric("slope_loglinear_n1", left("log-linear", 1), "lower", about=about),
        Metric("slope_loglinear_n10", left("log-linear", 10), "lower", goal=0.1, about=about),
        Metric("slope_mlp_n1", left("MLP", 1), "lower", about=about),
        Metric("slope_mlp_n10", left("MLP", 10), "lower", goal=0.5 * left("MLP", 1), about=about),
        Metric(
            "slope_symmetric_sigmas", max(sigmas), "lower", goal=quantile(len(sigmas)), about="largest of all times"
        ),
        Metric("slope_symmetric_sigmas_all_n", max(from_the_first), "lower", about="the same with n from 1"),
    ]


def quantile(count: int, level: float = 0.99) -> float:
    """The quantile of the largest of this many independent standard normal sizes."""
    each = 1 - (1 - level ** (1 / count)) / 2
    return float(torch.special.ndtri(torch.tensor(each, dtype=torch.float64)))
