"""Pictures of the experiments on MNIST and Fashion-MNIST."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from paracond.experiments.common.pictures import grid
from paracond.experiments.images.model import TOP


def by_class(images: Tensor, classes: Tensor, each: int = 10) -> list[Tensor]:
    """Rows for `grid` whose columns are the classes (fig:fmnist)."""
    columns = [images[classes == k][:each] for k in range(10)]
    least = min(len(column) for column in columns)
    return [torch.stack([column[k] for column in columns]) for k in range(least)]


def completed(images: Tensor, means: Tensor) -> Figure:
    """Rows of given top halves, completed images and true images."""
    given = torch.where(TOP, images, torch.full_like(images, 0.5))
    return grid([given, means.clamp(0, 1), images], names=["given", "completed", "truth"])
