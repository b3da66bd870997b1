"""A kernel that only adds noise: a fixed q for denoising diffusion (Example 1; `special_cases.diffusion`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paracond.data import InputError, State, as_float, require_a
from paracond.theory.kernels import Kernel


class Flips(Kernel):
    """Flips every coordinate of a binary group with probability `chance`. Its limiting distribution is uniform."""

    def __init__(self, name: str, chance: float):
        super().__init__()
        require_a(str, name=name)
        self.name, self.chance = name, as_float("chance", chance)
        if not 0 < self.chance < 1:
            raise InputError(f"the chance of a flip must be between 0 and 1, found {self.chance:g}")

    def sample(self, previous: State, generator: torch.Generator) -> State:
        value = previous[self.name]
        flip = torch.empty_like(value).uniform_(generator=generator) < self.chance
        return {self.name: torch.where(flip, 1 - value, value)}

    def log_prob(self, following: State, previous: State) -> Tensor:
        flipped = (following[self.name] != previous[self.name]).flatten(1)
        count = flipped.sum(1).double()
        return count * math.log(self.chance) + (flipped.shape[1] - count) * math.log1p(-self.chance)
