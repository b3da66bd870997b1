"""Pictures and the page of the recipes for images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from paracond.experiments.common.report import Report
from paracond.experiments.common.results import Outcome
from paracond.experiments.images.model import TOP


def grid(rows: Sequence[Tensor], title: str = "", names: Sequence[str] = (), inches: float = 0.55) -> Figure:
    """Rows of images [n, 1 or 3, height, width] in [0, 1], side by side, so many inches each."""
    height = rows[0].shape[-2]
    canvas = torch.cat([row.permute(2, 0, 3, 1).flatten(1, 2) for row in rows])  # [height, width, channels]
    figure = Figure(figsize=(len(rows[0]) * inches, len(rows) * inches + 0.3), layout="constrained")
    axes = figure.subplots()
    axes.imshow(canvas.squeeze(-1).numpy(), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
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


def curve(
    points: Sequence[dict[str, float]],
    marks: Mapping[str, float],
    names: Sequence[str] = ("accuracy", "fid"),
    label: str = "paper",
) -> Figure:
    """What was reached after how many seconds of training; `marks` are drawn across, for the names that have one."""
    figure = Figure(figsize=(4 * len(names), 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        axes.plot([p["seconds"] for p in points], [p[name] for p in points], "o-", ms=3)
        if name in marks:
            axes.axhline(marks[name], color="grey", lw=1, ls="--", label=label)
            axes.legend(fontsize=8)
        axes.set_xlabel("seconds of training")
        axes.set_ylabel(name)
        axes.set_yscale("log" if name == "fid" else "linear")
    return figure


def page(title: str, about: str, outcome: Outcome, figures: Sequence[tuple[str, str, Figure | bytes]]) -> Report:
    """The report: results first, then figures under their headings."""
    report = Report(title, about)
    report.section("Results")
    report.outcome(outcome)
    for heading, caption, figure in figures:
        report.section(heading)
        report.figure(figure, caption)
    return report
