"""Chains that last: rows of the running batch that stay long, some of them under the clamps of questions.

Step II learns each conditional from states of chains that began at data n steps ago, on average, and the more steps,
the fewer fresh data. But answers come from chains of hundreds of steps. What goes wrong only then is never met, and
nothing calls it back: pictures of a model that was learned with n = 4 grow garish within a hundred sweeps.

So a `share` of the rows is replaced so many `times` less often than the others. The mean length of all chains stays n,
as it is the size of the batch over the fresh rows per update. Most rows stay near the data; the others show where
chains go, and as each group learns what it was before that, they are called back.

A question clamps what is known. Conditionals that are not quite consistent have other limits under a clamp than the
free chain has given the same; what latents keep to themselves is then not changed by an attribute that is held. With
`holds`, rows that last are chains of questions: each draws one when it begins, by the weights given, and does not
redraw what that one holds (with what is left of 1, nothing is held). They begin at data, where all of it agrees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.holds import Hold, wide
from paracond.state import InputError, State


@dataclass(frozen=True)
class Lasting:
    """See above. `holds` are pairs of a weight and the parts of groups, by name, that one question holds."""

    share: float
    times: float
    holds: Sequence[tuple[float, Mapping[str, Hold]]] = ()

    def __post_init__(self) -> None:
        if not (0 <= self.share < 1 and 1 <= self.times < math.inf):
            raise InputError(
                f"chains last with a share in [0, 1) and times from 1 on, found {self.share}, {self.times}"
            )
        weights = [weight for weight, _ in self.holds]
        if any(not weight >= 0 for weight in weights) or sum(weights) > 1 + 1e-9:
            raise InputError(f"the weights of what is held must be at least 0, and at most 1 together, found {weights}")


class Held:
    """What the rows of a running batch hold, and how long they stay: tensors that stay where they are. The `share` that
    lasts is one of the first `rows`."""

    def __init__(self, lasting: Lasting | None, batch: State, rows: int, generator: torch.Generator):
        self.lasting = lasting or Lasting(0.0, 1.0)
        self.size, device = next((len(value), value.device) for value in batch.values())
        self.stays = torch.arange(self.size, device=device) < round(self.lasting.share * rows)
        self.patience = torch.where(self.stays, self.lasting.times, 1.0)
        self.generator, self.device = generator, device
        names = {name for _, parts in self.lasting.holds for name in parts}
        unknown = sorted(names - set(batch))
        if unknown:
            raise InputError(f"{unknown[0]!r} cannot be held: it is no group of the model")
        self.masks = {name: torch.zeros_like(batch[name], dtype=torch.bool) for name in batch if name in names}

    @torch.no_grad()
    def renew(self, fresh: Tensor) -> None:
        """The rows `fresh` `[rows]` begin; those that stay draw what they hold."""
        if not self.masks:
            return
        bounds = list(itertools.accumulate((weight for weight, _ in self.lasting.holds), initial=0.0))
        chance = torch.rand(self.size, generator=self.generator, device=self.device)
        found = {name: torch.zeros_like(mask) for name, mask in self.masks.items()}
        for (before, bound), (_, parts) in zip(itertools.pairwise(bounds), self.lasting.holds, strict=True):
            chosen = self.stays & (chance >= before) & (chance < bound)
            for name, hold in parts.items():
                part = hold(self.size, self.generator, self.device)
                found[name] |= wide(chosen, found[name]) & wide(part, found[name])
        for name, mask in self.masks.items():
            mask.copy_(torch.where(wide(fresh, mask), found[name], mask))

    def keep(self, name: str, drawn: Tensor, former: Tensor) -> Tensor:
        """What was drawn, where it is not held."""
        return torch.where(self.masks[name], former, drawn) if name in self.masks else drawn
