"""Pictures of the faces experiment: the paper's three figures, and the other questions.

Images are `[n, 3, 64, 64]` in [0, 1], segmentations 18 masks `[n, 18, 64, 64]`; columns are faces.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor
from torch.nn.functional import interpolate

from paracond.datasets.faces import LABELS
from paracond.experiments.common.pictures import COLOURS, coloured_labels, grid, label_map
from paracond.experiments.faces.tasks import Demixed, Reading

INCHES = 0.8


def coloured(masks: Tensor) -> Tensor:
    """Segmentations as images; later masks cover earlier ones."""
    return coloured_labels(label_map(masks.cpu()))


def pictures(rows: Sequence[tuple[str, Tensor]], legend: bool = False, title: str = "") -> Figure:
    """Rows with their names, and a legend of the labels on request."""
    figure = grid([row.cpu().clamp(0, 1) for _, row in rows], title, [name for name, _ in rows], INCHES)
    if legend:
        pairs = zip(("background", *LABELS), COLOURS, strict=True)
        patches = [Patch(facecolor=colour, edgecolor="grey", label=name) for name, colour in pairs]
        figure.legend(handles=patches, loc="outside lower center", ncols=10, fontsize=6, frameon=False)
    return figure


def samples(images: Tensor, masks: Tensor, each: int = 12) -> Figure:
    """Generated faces with their segmentations."""
    rows = []
    for start in range(0, len(images) - each + 1, each):
        part = slice(start, start + each)
        rows += [("image", images[part]), ("segmentation", coloured(masks[part]))]
    return pictures(rows, legend=True)


def switch(without: tuple[Tensor, Tensor], with_it: tuple[Tensor, Tensor], name: str) -> Figure:
    """fig:celeba_cond. Images and masks with the attribute off (first two rows) and on (last two rows)."""
    rows = []
    for (images, masks), state in ((without, "off"), (with_it, "on")):
        rows += [(f"{name} {state}", images), ("segmentation", coloured(masks))]
    return pictures(rows, legend=True)


def incomplete(images: Tensor, hidden: Tensor, truth: Tensor, found: Reading) -> Figure:
    """fig:celeba_segming. `hidden` `[n, 64, 64]` is black; `truth` are the true masks."""
    visible = torch.where(hidden.cpu().unsqueeze(1), 0.0, images.cpu())
    rows = [
        ("visible", visible),
        ("true labels", coloured(truth)),
        ("decided labels", coloured(found.masks)),
        ("in-painted", found.image),
        ("truth", images),
    ]
    return pictures(rows, legend=True)


def demixed(first: Tensor, second: Tensor, mixed: Tensor, found: Sequence[tuple[str, Demixed]]) -> Figure:
    """fig:celeba_demix. `found`: recovered images, under the name of what was given."""
    rows = [("first", first), ("second", second), ("mixed", mixed)]
    for name, each in found:
        rows += [(f"first, {name}", each.first), (f"second, {name}", each.second)]
    return pictures(rows)


def restored(small: Tensor, large: Tensor, grey: Tensor, colours: Tensor, truth: Tensor) -> Figure:
    """Super-resolution and colourisation: given, recovered and true images."""
    side = truth.shape[-1]
    rows = [
        ("given", interpolate(small.cpu(), size=(side, side), mode="nearest")),
        ("super-resolved", large),
        ("given", grey.expand(-1, 3, -1, -1)),
        ("colourised", colours),
        ("truth", truth),
    ]
    return pictures(rows)
