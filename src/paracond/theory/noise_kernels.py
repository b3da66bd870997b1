"""Kernels that only add noise: fixed q for denoising diffusion (Example 1; `known.diffusion`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paracond.data import InputError, State
from paracond.distributions import Gaussian
from paracond.theory.kernels import Kernel


class Flips(Kernel):
    """Noise for a binary group: every coordinate is flipped with probability `chance`. Its limit is uniform."""

    def __init__(self, name: str, chance: float):
        super().__init__()
        if not 0 < chance < 1:
            raise InputError(f"the chance of a flip must be between 0 and 1, found {chance}")
        self.name, self.chance = name, chance

    def sample(self, previous: State, generator: torch.Generator) -> State:
        value = previous[self.name]
        flip = torch.empty_like(value).uniform_(generator=generator) < self.chance
        return {self.name: torch.where(flip, 1 - value, value)}

    def log_prob(self, following: State, previous: State) -> Tensor:
        flipped = (following[self.name] != previous[self.name]).flatten(1)
        count = flipped.sum(1).double()
        return count * math.log(self.chance) + (flipped.shape[1] - count) * math.log1p(-self.chance)


class Fading(Kernel):
    """Noise for a real group, of which it keeps the variance 1: x' = sqrt(1 - rate) x + sqrt(rate) e, with e ~ N(0, I),
    which is also its limit (Example 1)."""

    def __init__(self, name: str, rate: float):
        super().__init__()
        if not 0 < rate < 1:
            raise InputError(f"the rate of fading must be between 0 and 1, found {rate}")
        self.name, self.rate = name, rate

    def _law(self, previous: State) -> Gaussian:
        value = previous[self.name]
        return Gaussian(math.sqrt(1 - self.rate) * value, value.new_tensor(0.5 * math.log(self.rate)))

    def sample(self, previous: State, generator: torch.Generator) -> State:
        return {self.name: self._law(previous).sample(generator)}

    def log_prob(self, following: State, previous: State) -> Tensor:
        return self._law(previous).log_prob(following[self.name])
