"""Section 5.1: three conditionals learn an Ising model on three nodes, from complete and from incomplete data.

The truth is p*(z) ~ exp(a sum_i z_i + b sum_i<j z_i z_j) on {0,1}^3. The model is three MLPs p(z_i | z_-i); its joint
is the limiting distribution of their chain, computed exactly from the 8 x 8 kernel. The measure is KL(limiting || p*),
mean and standard deviation over 100 repeats, each with its own data. The paper does not give a, b and the sample size.

The reference is the KL of the exact solution on the same data: the maximum-likelihood table for complete data, the EM
solution if a third of the entries is missing. MLPs can represent all conditionals, so both models are the same.

All repeats learn together: the groups z_0, z_1, z_2 have one coordinate per repeat, and coordinate r of a conditional
reads coordinate r of the others through weights of its own (`StackedMLP`). Each repeat runs Algorithm 1 exactly.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import paracond as pc
from paracond import exact
from paracond.experiments.common.config import ExperimentConfig
from paracond.experiments.common.parallel import run_side_by_side
from paracond.experiments.common.results import Metric, Outcome, choose_device
from paracond.experiments.common.runner import Runner

NAMES = ("z0", "z1", "z2")
STATES = pc.Binary(3).values()  # [8, 3]
PAPER = {"complete": (0.0007, 0.0004), "missing": (0.0018, 0.0013)}
FACTOR = {"complete": 1.3, "missing": 1.5}  # goals, relative to the exact solution


@dataclass(frozen=True)
class Config(ExperimentConfig):
    """Three nodes: KL of the learned joint, from complete and from incomplete data (section 5.1)."""

    out: Path = Path("runs/ising")
    a: float = -1.0
    b: float = 1.0
    repeats: int = 100
    examples: int = 10_000
    """size of each data set, for the metrics"""
    more_sizes: tuple[int, ...] = (1_000, 3_000)
    """further sizes for the figure"""
    missing: float = 1 / 3
    chain_length: float = 4.0
    completion_steps: int = 4
    batch_size: int = 500
    updates: int = 4_000
    hidden: int = 8
    learning_rate: float = 0.02


def truth(a: float, b: float) -> Tensor:
    """p* over the eight states, in the order of `STATES`."""
    total = STATES.double().sum(1)
    return torch.softmax(a * total + b * total * (total - 1) / 2, 0)


def draw(p: Tensor, repeats: int, examples: int, generator: torch.Generator) -> Tensor:
    """Independent data sets, [examples, repeats, 3]."""
    index = torch.multinomial(p, repeats * examples, replacement=True, generator=generator)
    return STATES[index].view(examples, repeats, 3)


def learn(z: Tensor, known: Tensor, config: Config, device: str) -> Tensor:
    """Limiting distributions of the learned models, [repeats, 8]."""
    repeats = z.shape[1]
    conditionals = {
        name: pc.Conditional(
            pc.Binary(repeats),
            pc.networks.StackedMLP([n for n in NAMES if n != name], repeats, config.hidden, seed=config.seed + i),
        )
        for i, name in enumerate(NAMES)
    }
    model = pc.JointModel(conditionals).to(device)
    data = pc.Data({n: z[..., i] for i, n in enumerate(NAMES)}, {n: known[..., i] for i, n in enumerate(NAMES)})
    learner = pc.Learner(
        model,
        data,
        chain_length=config.chain_length,
        completion=pc.CompletionOptions(steps=config.completion_steps),
        batch_size=config.batch_size,
        learning_rate=pc.schedules.cosine(config.learning_rate, 0.0, config.updates),
        average=0.995,
        seed=config.seed,
    )
    return limiting_of_members(learner.fit(config.updates))


@torch.no_grad()
def limiting_of_members(model: pc.JointModel) -> Tensor:
    """The limiting distribution of each stacked model, exactly, [members, 8]."""
    members = model.variables[NAMES[0]].event_shape[0]
    state = {n: STATES[:, i : i + 1].expand(8, members).to(model.device) for i, n in enumerate(NAMES)}
    tables = torch.stack([model(n, state).scores(state[n]).exp().double().cpu() for n in NAMES])
    alpha = [model.alpha[n] for n in NAMES]
    kernels = [
        exact.GibbsKernel([t / t.sum(i, keepdim=True) for i, t in enumerate(each)], alpha)
        for each in tables.view(len(NAMES), 2, 2, 2, members).unbind(-1)
    ]
    return torch.stack([exact.limiting(kernel).flatten() for kernel in kernels])


def exact_solution(z: Tensor, known: Tensor, iterations: int = 2000) -> Tensor:
    """Maximum likelihood over all tables by EM, [repeats, 8]."""
    pattern = torch.where(known, z, 2).long()  # 0, 1, or 2 for missing
    code = (pattern * torch.tensor([9, 3, 1])).sum(-1)  # [examples, repeats]
    counts = torch.stack([torch.bincount(column, minlength=27) for column in code.T]).double()
    digits = torch.cartesian_prod(*[torch.arange(3)] * 3)
    fits = ((digits[:, None] == STATES[None]) | (digits[:, None] == 2)).all(-1).double()  # [27, 8]
    p = torch.full((len(counts), 8), 1 / 8, dtype=torch.float64)
    for _ in range(iterations):
        joint = p[:, None] * fits
        new = torch.einsum("rk,rkx->rx", counts, joint / joint.sum(-1, keepdim=True)) / counts.sum(1, keepdim=True)
        done = float((new - p).abs().max()) < 1e-13
        p = new
        if done:
            break
    return p


def experiment(kind: str, examples: int, config: Config, device: str) -> dict[str, list[float]]:
    """KL(learned || p*) and KL(exact solution || p*), of every repeat."""
    generator = torch.Generator().manual_seed(config.seed + (1 if kind == "missing" else 0))
    p = truth(config.a, config.b)
    z = draw(p, config.repeats, examples, generator)
    rate = config.missing if kind == "missing" else 0.0
    known = torch.rand(z.shape, generator=generator) >= rate
    learned, best = learn(z, known, config, device), exact_solution(z, known)
    return {"learned": [exact.kl(q, p) for q in learned], "exact": [exact.kl(q, p) for q in best]}


def main(config: Config) -> Outcome:
    if config.quick:
        config = replace(config, repeats=10, examples=2_000, more_sizes=(), updates=600)
    runner = Runner(
        name="ising",
        title="Three nodes: learning consistency (section 5.1)",
        about=f"Three MLP conditionals learn p*(z) ~ exp(a sum z + b sum z z'), a = {config.a}, b = {config.b}. "
        f"{config.repeats} repeats; the joint is the limiting distribution of the learned chain, computed exactly.",
        config=config,
        device=choose_device(config.device),
    )
    found = _both(config.examples, config, runner.device)
    seconds = time.perf_counter() - runner.began
    for size in config.more_sizes:
        found |= _both(size, config, runner.device)
    metrics = [m for kind in PAPER for m in _metrics(kind, found[kind, config.examples])]
    about = f"{2 * config.repeats} trainings, with set-up"
    metrics.append(Metric("seconds_both", seconds, "lower", goal=180, about=about))
    for kind, size in [(kind, size) for size in config.more_sizes for kind in PAPER]:
        more = _metrics(kind, found[kind, size])
        metrics += [replace(m, name=f"{m.name}_{size}", goal=None, paper=None) for m in more]
    runner.metrics = metrics
    runner.show(
        "Learned and exact solutions",
        "KL from the truth: the learned joint against the exact solution on the same data. Each dot is one repeat; on "
        "the diagonal both are equally good.",
        _figure(found),
    )
    return runner.write()


def _both(examples: int, config: Config, device: str) -> dict[tuple[str, int], dict]:
    jobs = [partial(experiment, kind, examples, config, device) for kind in PAPER]
    title = f"{config.repeats} trainings each on {examples:,} complete and on {examples:,} incomplete examples"
    return {(kind, examples): r for kind, r in zip(PAPER, run_side_by_side(jobs, device, title), strict=True)}


def _metrics(kind: str, found: dict[str, list[float]]) -> list[Metric]:
    learned, best = torch.tensor(found["learned"]), torch.tensor(found["exact"])
    paper = PAPER[kind][0]
    solution = "maximum-likelihood table" if kind == "complete" else "exact EM solution"
    goal = min(paper, FACTOR[kind] * float(best.mean()))
    about = f"KL(limiting || p*); goal: the paper's, and {FACTOR[kind]} x the exact solution's"
    return [
        Metric(f"kl_{kind}", float(learned.mean()), "lower", float(learned.std()), paper, goal, about),
        Metric(f"kl_{kind}_exact", float(best.mean()), "lower", float(best.std()), about=f"the {solution}, same data"),
    ]


def _figure(found: dict) -> Figure:
    sizes = sorted({size for _, size in found})
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2), PAPER, strict=True):
        for size in sizes:
            r = found[kind, size]
            ratio = sum(r["learned"]) / sum(r["exact"])
            axes.loglog(r["exact"], r["learned"], ".", label=f"{size:,} examples (ratio of means {ratio:.2f})")
        low, high = axes.get_xlim()
        axes.plot([low, high], [low, high], color="grey", lw=1)
        axes.set_title(f"{kind} data")
        axes.set_xlabel("KL of the exact solution")
        axes.set_ylabel("KL of the learned joint")
        axes.legend(fontsize=8)
    return figure
