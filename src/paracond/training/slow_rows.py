"""Chains that last: rows of the running batch that stay long.

Step II learns each conditional from states of chains that began at data n steps ago, on average, and the more steps,
the fewer fresh data. But answers come from chains of hundreds of steps. What goes wrong only then is never met, and
nothing calls it back: pictures of a model that was learned with n = 4 grow garish within a hundred sweeps.

So a `share` of the rows is replaced so many `times` less often than the others. The mean length of all chains stays n,
as it is the size of the batch over the fresh rows per update. Most rows stay near the data; the others show where
chains go, and as each group learns what it was before that, they are called back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.data import InputError


@dataclass(frozen=True)
class Lasting:
    """See above."""

    share: float
    times: float

    def __post_init__(self) -> None:
        if not (0 <= self.share < 1 and 1 <= self.times < math.inf):
            raise InputError(
                f"chains last with a share in [0, 1) and times from 1 on, found {self.share}, {self.times}"
            )

    def patience(self, rows: int, size: int, device: torch.device) -> Tensor:
        """How long each row of a batch of this size stays, compared with others: the share that lasts is one of the
        first `rows`, and the rest, after these, is never replaced."""
        place = torch.arange(size, device=device)
        found = torch.where(place < round(self.share * rows), self.times, 1.0)
        return torch.where(place < rows, found, torch.inf)
