"""Figures and report of the chain-length experiment."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from torch import Tensor

from paracond.experiments.common.pictures import grid
from paracond.experiments.common.runner import Runner


@dataclass(frozen=True, eq=False)
class Surface:
    """F over n = 1, ..., N, `[milestones, N]`, at the updates `steps`, of a kernel trained with chains of length n; its
    slopes along the second half of the lengths and along all of them, with standard errors."""

    kind: str
    n: int
    steps: list[int]
    values: Tensor
    slopes: list[tuple[float, float]]
    whole: list[tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Diffusion:
    """F-hat along n under a fixed q and under q = the kernel itself; the growth of the gap per step under the fixed q
    and the KL of eq:chain_kl, with standard errors."""

    fixed: Tensor
    itself: Tensor
    growth: tuple[float, float]
    predicted: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Findings:
    """All results of the experiment."""

    codes: tuple[Tensor, Tensor]
    asymmetry: dict[int, list[float]]
    surfaces: list[Surface]
    diffusion: Diffusion
    exact_gaps: tuple[Tensor, float]
    omitted: list[tuple[Tensor, float]]


def asymmetry(values: dict[int, list[float]]) -> Figure:
    """fig:art3."""
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    table = {n: torch.tensor(v) for n, v in values.items()}
    means, errors = [float(v.mean()) for v in table.values()], [float(v.std()) for v in table.values()]
    axes.errorbar(list(table), means, errors, fmt="o-", capsize=3)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("chain length n")
    axes.set_ylabel("|W - W^T|")
    axes.set_ylim(0)
    return figure


def surfaces(found: list[Surface], horizon: int) -> Figure:
    """fig:app_art2 as heat maps: F less its value at n = 1, over n and training time."""
    figure = Figure(figsize=(9, 8), layout="constrained")
    grid = figure.subplots(3, 2, sharex=True, sharey=True)
    rises = [surface.values - surface.values[:, :1] for surface in found]
    norm = SymLogNorm(1.0, vmin=min(float(rise.min()) for rise in rises), vmax=1.0)
    for axes, surface, rise in zip(grid.flat, found, rises, strict=True):
        extent = (0, len(rise), 0.5, horizon + 0.5)
        image = axes.imshow(rise.T.numpy(), origin="lower", aspect="auto", cmap="viridis", norm=norm, extent=extent)
        ticks = range(0, len(surface.steps), max(1, len(surface.steps) // 5))
        axes.set_xticks([t + 0.5 for t in ticks], [str(surface.steps[t]) for t in ticks])
        axes.set_title(f"{surface.kind}, learned with n = {surface.n}", fontsize=9)
    figure.colorbar(image, ax=grid, shrink=0.6, label="F(n) - F(1), nats")
    figure.supxlabel("updates", fontsize=9)
    figure.supylabel("n", fontsize=9)
    return figure


def slopes(found: list[Surface]) -> Figure:
    """The slope of F along n while the kernels learn."""
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for surface in found:
        style = "-" if surface.n > 1 else "--"
        values, errors = zip(*surface.slopes, strict=True)
        axes.errorbar(surface.steps, values, errors, fmt=f"o{style}", ms=3, label=f"{surface.kind}, n = {surface.n}")
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xlabel("updates")
    axes.set_ylabel("slope of F along n (nats per step)")
    axes.legend(fontsize=7)
    return figure


def diffusion(exact: tuple[Tensor, float], estimated: Diffusion) -> Figure:
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    gaps, rate = exact
    n = range(1, len(gaps) + 1)
    left.plot(n, gaps.tolist(), label="L - L_B, by enumeration")
    left.plot(n, [float(gaps[-1]) + rate * (k - len(gaps)) for k in n], "k:", label="slope by eq:chain_kl")
    left.set_title("16 states", fontsize=9)
    n = range(1, len(estimated.fixed) + 1)
    right.plot(n, estimated.fixed.tolist(), label="q: only flips")
    end, rate = float(estimated.fixed[-1]), -estimated.predicted[0]
    right.plot(n, [end + rate * (k - len(n)) for k in n], "k:", label="slope by eq:chain_kl")
    right.plot(n, estimated.itself.tolist(), label="q: the kernel itself")
    right.set_title("F-hat of a kernel that learned to undo flips", fontsize=9)
    for axes in (left, right):
        axes.set_xlabel("n")
        axes.legend(fontsize=8)
    return figure


def omitted(found: list[tuple[Tensor, float]]) -> Figure:
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    for k, (norms, rate) in enumerate(found[:5]):
        n = range(1, len(norms) + 1)
        axes.plot(n, norms.clamp(min=1e-16).tolist(), "o", ms=3, color=f"C{k}")
        axes.plot(n, [float(norms[9]) * rate ** (i - 10) for i in n], color=f"C{k}", lw=1)
    axes.set_yscale("log")
    axes.set_ylim(1e-14)
    axes.set_xlabel("n")
    axes.set_ylabel("size of the omitted gradient")
    return figure


def show(runner: Runner, found: Findings, horizon: int) -> None:
    """The sections of the report."""
    codes = grid(list(found.codes), names=["z from the target", "z uniform"])
    runner.show("The target", "Images given a code: x and c redrawn in turn, z clamped.", codes)
    caption = "Log-linear kernels: |W - W^T| after learning, mean and spread of seeds."
    runner.show("Asymmetry", caption, asymmetry(found.asymmetry))
    caption = "F less its value at n = 1, over n and training time."
    runner.show("The objective along n", caption, surfaces(found.surfaces, horizon))
    caption = "The slope over the second half of the lengths: zero at detailed balance."
    runner.show("Its slope", caption, slopes(found.surfaces))
    caption = "The gap grows linearly, at the rate of eq:chain_kl."
    runner.show("A fixed q: denoising diffusion", caption, diffusion(found.exact_gaps, found.diffusion))
    caption = "Random kernels: points, the gradient; lines, the second eigenvalue's decay."
    runner.show("The omitted gradient", caption, omitted(found.omitted))
