"""Pictures and the page of the recipes for images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from paracond.recipes.images import TOP
from paracond.report import Report
from paracond.results import Outcome


def grid(rows: Sequence[Tensor], title: str = "", names: Sequence[str] = ()) -> Figure:
    """Rows of images [n, 1, height, width] in [0, 1], side by side."""
    height = rows[0].shape[-2]
    canvas = torch.cat([row.squeeze(1).permute(1, 0, 2).reshape(height, -1) for row in rows])
    figure = Figure(figsize=(len(rows[0]) * 0.55, len(rows) * 0.55 + 0.3), layout="constrained")
    axes = figure.subplots()
    axes.imshow(canvas.numpy(), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([(k + 0.5) * height for k in range(len(names))], names, fontsize=8)
    axes.tick_params(length=0)
    axes.set_title(title, fontsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def by_class(images: Tensor, classes: Tensor, each: int = 10) -> list[Tensor]:
    """Rows for `grid` whose columns are the classes (fig:fmnist)."""
    columns = [images[classes == k][:each] for k in range(10)]
    least = min(len(column) for column in columns)
    return [torch.stack([column[k] for column in columns]) for k in range(least)]


def completed(images: Tensor, means: Tensor) -> Figure:
    """Top halves as they were given, what the model makes of them, and the truth."""
    seen = torch.where(TOP, images, torch.full_like(images, 0.5))
    return grid([seen, means.clamp(0, 1), images], names=["given", "completed", "truth"])


def curve(points: Sequence[dict[str, float]], paper: dict[str, float]) -> Figure:
    """What was reached after how many seconds of training."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("accuracy", "fid"), strict=True):
        axes.plot([p["seconds"] for p in points], [p[name] for p in points], "o-", ms=3)
        axes.axhline(paper[name], color="grey", lw=1, ls="--", label="paper")
        axes.set_xlabel("seconds of training")
        axes.set_ylabel(name)
        axes.set_yscale("log" if name == "fid" else "linear")
        axes.legend(fontsize=8)
    return figure


def page(title: str, about: str, outcome: Outcome, figures: Sequence[tuple[str, str, Figure]]) -> Report:
    """The report: results first, then figures under their headings."""
    report = Report(title, about)
    report.section("Results")
    report.outcome(outcome)
    for heading, caption, figure in figures:
        report.section(heading)
        report.figure(figure, caption)
    return report
