"""Changes that are made to examples each time they are learned from, without leaking into what is generated.

Shifts move an image by whole pixels; what comes in is empty. They enlarge the training set of a classifier. A context
group distinguishes shifted images from others, so that generated ones stay in their place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paracond.data import State
from paracond.families import Categorical
from paracond.model import Context
from paracond.networks.conv import jittered


@dataclass(frozen=True)
class Shifts:
    """Moves images `[rows, channels, height, width]` at random.

    name: the group that is moved.
    pixels: the largest distance, each way.
    moved: the share of examples that is moved.
    mirrored: whether half of the moved ones are mirrored too.
    flag: the context group that is 1 where an image was moved, else 0.
    """

    name: str
    pixels: int = 2
    moved: float = 0.5
    mirrored: bool = False
    flag: str = "moved"

    @property
    def context(self) -> dict[str, Context]:
        """The context that a model needs to learn with it."""
        return {self.flag: Context(Categorical(2), 0)}

    @property
    def moves(self) -> tuple[str, ...]:
        """Groups whose coordinates change places: they must be observed whole or not at all."""
        return (self.name,)

    def __call__(self, state: State, generator: torch.Generator) -> State:
        value = state[self.name]
        chance = torch.rand(4, len(value), generator=generator, device=value.device)
        moved = chance[3] < self.moved
        image = jittered(value, chance[:3], self.pixels, self.mirrored)
        kept = torch.where(moved.view(-1, 1, 1, 1), image, value)
        return {**state, self.name: kept, self.flag: moved.long()}
