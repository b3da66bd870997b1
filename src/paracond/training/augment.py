"""Changes that are made to examples each time they are learned from, without leaking into what is generated.

Noise levels. The encoders of a chain x -> z -> x' -> ... only meet images near the data, so a chain that starts at
random can be caught far from them. A condition t chooses a level; at level t the examples are

    Real:    x + scale_t * e,  e ~ N(0, 1)          Binary:  every coordinate flipped with probability scale_t,

and the model learns p(. | t) for all of them. Wide noise lets every conditional see states far from the data, and
teaches it the way back. Level 0 has no noise: with t = 0, the default of the condition, the joint is the data's.

Shifts move an image by whole pixels; what comes in is empty. They enlarge the training set of a classifier, and a
condition tells shifted images from those as they were, so that generated ones stay in their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.data import InputError, State
from paracond.families import Binary, Categorical, Family, Real
from paracond.model import Condition
from paracond.networks.conv import jittered
from paracond.training.completion import Augment


@dataclass(frozen=True)
class NoiseLevels:
    """Adds noise of a random level to the group `name`, and says which in the condition `level`.

    A share `clean` of the examples stays at level 0; the others are spread evenly over `scales`.
    """

    name: str
    family: Family
    scales: Sequence[float]
    clean: float = 0.5
    level: str = "t"

    def __post_init__(self) -> None:
        if not isinstance(self.family, (Real, Binary)):
            raise InputError(f"noise is for Real and Binary groups; {self.name!r} is {self.family}")
        if not self.scales or min(self.scales) <= 0 or not 0 <= self.clean <= 1:
            raise InputError(f"noise needs positive scales and a clean share in [0, 1], found {self}")

    @property
    def condition(self) -> Condition:
        return Condition(Categorical(1 + len(self.scales)), 0)

    def __call__(self, state: State, generator: torch.Generator) -> State:
        value = state[self.name]
        level = self._levels(len(value), generator)
        scale = torch.zeros(len(value), device=value.device, dtype=value.dtype)
        for k, size in enumerate(self.scales):  # no table: copying one from the host cannot be recorded
            scale = torch.where(level == k + 1, size, scale)
        scale = scale.view(-1, *[1] * (value.ndim - 1))
        return {**state, self.name: self._noisy(value, scale, generator), self.level: level}

    def _levels(self, rows: int, generator: torch.Generator) -> Tensor:
        u = torch.rand(rows, generator=generator, device=generator.device)
        spread = (u - self.clean) / max(1 - self.clean, 1e-9) * len(self.scales)
        return torch.where(u < self.clean, 0, 1 + spread.long().clamp(0, len(self.scales) - 1))

    def _noisy(self, value: Tensor, scale: Tensor, generator: torch.Generator) -> Tensor:
        if isinstance(self.family, Real):
            return value + scale * torch.empty_like(value).normal_(generator=generator)
        flip = torch.empty_like(value).uniform_(generator=generator) < scale
        return torch.where(flip, 1 - value, value)


@dataclass(frozen=True)
class Shifts:
    """Moves images `[rows, channels, height, width]` by up to `pixels` each way, a share `moved` of them, and says so
    in the condition `flag` (0: as it was). With `mirrored`, half of the moved ones are mirrored too."""

    name: str
    pixels: int = 2
    moved: float = 0.5
    mirrored: bool = False
    flag: str = "moved"

    @property
    def condition(self) -> Condition:
        return Condition(Categorical(2), 0)

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


def in_turn(steps: Sequence[Augment]) -> Augment | None:
    """One augmentation after the other."""
    if not steps:
        return None

    def augment(state: State, generator: torch.Generator) -> State:
        for step in steps:
            state = step(state, generator)
        return state

    augment.moves = [name for step in steps for name in getattr(step, "moves", ())]  # type: ignore[attr-defined]
    return augment


def conditions(steps: Sequence[NoiseLevels | Shifts]) -> Mapping[str, Condition]:
    """The conditions that a model needs to learn with these augmentations."""
    return {step.level if isinstance(step, NoiseLevels) else step.flag: step.condition for step in steps}
