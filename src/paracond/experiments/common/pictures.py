"""Pictures for experiments and the command line: grids of images, coloured label maps, learning curves.

Pixels of models are shown as they are given: 1 is white.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

#: Colours of the labels 0, 1, ...: the background of faces, then their 18 parts.
COLOURS = (
    *("#000000", "#f2c9a1", "#e07a3f", "#7f7fff", "#1fb6ff", "#0057d9", "#8a5a2b", "#5b3714", "#ffd75e", "#d9a400"),
    *("#7a0019", "#ff4d6d", "#d6002f", "#4b2e83", "#2fd36b", "#ffffff", "#9aa0a6", "#c98b6b", "#2b8a3e"),
)


def grid(rows: Sequence[Tensor], title: str = "", names: Sequence[str] = (), inches: float = 0.55) -> Figure:
    """Rows of images `[n, 1 or 3, height, width]` in [0, 1] in one picture.

    names: of the rows. inches: the size of one image.
    """
    height = rows[0].shape[-2]
    canvas = torch.cat([row.permute(2, 0, 3, 1).flatten(1, 2) for row in rows])  # [height, width, channels]
    figure = Figure(figsize=(len(rows[0]) * inches, len(rows) * inches + 0.3), layout="constrained")
    axes = figure.subplots()
    axes.imshow(canvas.squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([(k + 0.5) * height for k in range(len(names))], names, fontsize=8)
    axes.tick_params(length=0)
    axes.set_title(title, fontsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def label_map(masks: Tensor) -> Tensor:
    """Masks `[n, labels, height, width]` as one label per pixel; later masks cover earlier ones, 0 is none."""
    ranks = torch.arange(1, masks.shape[1] + 1, device=masks.device).view(-1, 1, 1)
    return (masks.bool() * ranks).amax(1)


def coloured_labels(labels: Tensor) -> Tensor:
    """Labels `[n, height, width]` as images `[n, 3, height, width]`."""
    palette = torch.tensor([[int(c[k : k + 2], 16) / 255 for k in (1, 3, 5)] for c in COLOURS])
    return palette[labels].permute(0, 3, 1, 2)


def curve(points: Sequence[dict[str, float]], marks: Mapping[str, float], names: Sequence[str]) -> Figure:
    """Milestones against seconds of training, one plot per name. `marks`: values of the paper, as lines."""
    figure = Figure(figsize=(4 * len(names), 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        axes.plot([p["seconds"] for p in points], [p[name] for p in points], "o-", ms=3)
        if name in marks:
            axes.axhline(marks[name], color="grey", lw=1, ls="--", label="paper")
            axes.legend(fontsize=8)
        axes.set_xlabel("seconds of training")
        axes.set_ylabel(name)
        axes.set_yscale("log" if name == "fid" else "linear")
    return figure
