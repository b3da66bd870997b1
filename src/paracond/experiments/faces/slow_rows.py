"""Slow rows: rows of the running batch that stay long.

Step II learns each conditional from states of chains that began at data n steps ago, on average. A larger n means
fewer fresh data. But answers come from chains of hundreds of steps, and training never sees errors that appear only
then: pictures of a model trained with n = 4 grow garish within a hundred sweeps.

So a share of the rows is replaced less often than the others. The mean length of all chains stays n, since it is the
size of the batch over the fresh rows per update. Most rows stay near the data. The slow rows show where chains go, and
each group learns its value before a redraw, which pulls them back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.data import InputError


@dataclass(frozen=True)
class SlowRows:
    """A `share` of the rows stays `times` as long as the others."""

    share: float
    times: float

    def __post_init__(self) -> None:
        if not (0 <= self.share < 1 and 1 <= self.times < math.inf):
            raise InputError(
                f"slow rows need a share in [0, 1) and times of at least 1, found {self.share} and {self.times}"
            )

    def patience(self, rows: int, size: int, device: torch.device) -> Tensor:
        """How long each of `size` rows stays, relative to others. The slow ones are among the first `rows`; the rest,
        after these, is never replaced."""
        place = torch.arange(size, device=device)
        found = torch.where(place < round(self.share * rows), self.times, 1.0)
        return torch.where(place < rows, found, torch.inf)
