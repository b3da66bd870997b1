"""Masks of images with a hidden square, drawn anew for every row on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

#: A function of the number of rows, a generator and its device. It returns Bool `[rows, ...]`, true where a group is
#: held; missing axes at the end are those of the group.
Hold = Callable[[int, torch.Generator, torch.device], Tensor]


@dataclass(frozen=True)
class AroundASquare:
    """All of an image `[channels, side, side]` but a square at a random place, with sides between `least` and
    `most`."""

    side: int
    least: int
    most: int

    def __call__(self, rows: int, generator: torch.Generator, device: torch.device) -> Tensor:
        chance = torch.rand(3, rows, 1, generator=generator, device=device)
        size = self.least + (chance[0] * (self.most + 1 - self.least)).floor()
        place = torch.arange(self.side, device=device)
        inside = []
        for each in chance[1:]:
            first = (each * (self.side + 1 - size)).floor()
            inside.append((place >= first) & (place < first + size))
        return ~(inside[0].unsqueeze(2) & inside[1].unsqueeze(1)).unsqueeze(1)
