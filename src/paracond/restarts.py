"""Rows that begin as questions do.

The chain of a question begins at p_0(x_i | what is known) (see `networks.starts`), where learning has never been: its
own chains begin at data. So a share of the fresh examples begins there too. A group x_i gives way to

    x_i' ~ p_0(x_i' | x_K, x_-i),       K being what a question may hold of it, or, where it would hold nothing,
    x_i' ~ p_0(x_i' | u, x_-i),         u ~ p_0(u | x_i, x_-i),

and all others stay as they are. These learn, and are redrawn, given x_i'. x_i learns its true value until it is redrawn
itself: in the terms of section 3, the chain has one more kernel at its beginning, whose reverse is learned. What comes
from a start is then called to the data it may stand for; and what x_i' does not show must be taken from what else is
known, such as attributes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.holds import Hold, wide
from paracond.joint import JointModel
from paracond.state import InputError, State


@dataclass(frozen=True)
class Restart:
    """A `share` of the fresh examples begins with group `name` from its start, given the part that `hold` keeps.

    Without one, u is given all of x_i, but `doubt` times as many coordinates count as one as in questions (see
    `redundancy` in `networks.starts`): the more, the less x_i' shows of x_i.
    """

    share: float
    name: str
    hold: Hold | None = None
    doubt: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.doubt < math.inf:
            raise InputError(f"doubt must be at least 1, found {self.doubt}")


class Restarts:
    """The pool's values of groups that restart, as chains begin with them: tensors that stay where they are."""

    def __init__(self, model: JointModel, wanted: Sequence[Restart], pool: State, generator: torch.Generator):
        shares = [each.share for each in wanted]
        if any(not share >= 0 for share in shares) or sum(shares) > 1 + 1e-9:
            raise InputError(f"the shares of restarts must be at least 0, and at most 1 together, found {shares}")
        for each in wanted:
            if each.name not in model.names or model.conditional(each.name).start is None:
                raise InputError(f"{each.name!r} cannot restart: it is no group of the model with a start")
        self.model, self.wanted, self.generator = model, tuple(wanted), generator
        self.begun = {each.name: torch.zeros_like(pool[each.name]) for each in wanted}
        size = len(next(iter(pool.values())))
        order = torch.randperm(size, generator=torch.Generator().manual_seed(0)).to(model.device)
        counts = [round(share * size) for share in shares]
        self.rows = order.split([*counts, size - sum(counts)])[:-1]  # spread, so that no kind comes all at once

    @torch.no_grad()
    def draw(self, pool: State) -> None:
        """For a new pool of examples."""
        for name, value in self.begun.items():
            value.copy_(pool[name])
        for each, rows in zip(self.wanted, self.rows, strict=True):
            state = {name: value[rows] for name, value in pool.items()}
            drawn = self.model.restart(each.name, state, self._mask(each, state), self.generator, each.doubt)
            self.begun[each.name].index_copy_(0, rows, drawn.to(pool[each.name].dtype))

    def _mask(self, each: Restart, state: State) -> Tensor | None:
        value = state[each.name]
        if each.hold is None:
            return None
        return wide(each.hold(len(value), self.generator, value.device), value).expand_as(value)
