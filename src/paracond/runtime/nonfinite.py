"""What is not finite: found where it arises, and nothing is learned from it.

Where looking costs nothing (no recorded programs) a fault is raised at once. In a recorded program the host cannot
look; the first fault is written down on the device, with its step, and from then on neither the parameters nor the
running batch change. The host looks some updates later, without waiting.

What runs beside the updates (see `beside`) writes its faults down for itself: two streams must not write into one
place. They count from the moment at which its results would be used, before any of them is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paracond.runtime.engine import Engine, Watch

SUSPECTS = ("the loss", "the gradient", "a draw", "a completion")


class NonFiniteError(ArithmeticError):
    """A loss, gradient or draw that is NaN or infinite. The model is as before that update."""

    def __init__(self, variable: str, step: int, what: str):
        super().__init__(f"{what} of {variable!r} is not finite at step {step}; the last good state is kept")
        self.variable, self.step = variable, step


def note(first: Tensor, clock: Tensor, numbers: list[Tensor], variable: int, suspect: int) -> Tensor:
    """Write down in `first` the first of `numbers` that is not finite, if nothing is written there; true if so still.
    `suspect` is the place of the first of them in `SUSPECTS`."""
    bad = torch.stack([~number.isfinite() for number in numbers])
    which = bad.to(torch.uint8).argmax() + suspect
    found = torch.stack([clock, torch.full_like(clock, variable), which])
    first.copy_(torch.where(bad.any() & (first[0] < 0), found, first))
    return first[0] < 0


class NonFiniteGuard:
    """The first fault of a learner's programs. `clock` counts its updates, on the device."""

    def __init__(self, names: Sequence[str], engine: Engine):
        self.names, self.engine, device = tuple(names), engine, engine.device
        self.clock = torch.zeros((), dtype=torch.long, device=device)
        self.first = torch.full((3,), -1, dtype=torch.long, device=device)  # step, variable, suspect
        self.none = torch.ones((), dtype=torch.bool, device=device)
        self.watch = Watch(self.first[0])
        self.note = engine.fused(note)

    @torch.no_grad()
    def check(self, name: str, numbers: Mapping[str, Tensor]) -> Tensor:
        """Whether these numbers, named as in `SUSPECTS`, and all before them are finite: a boolean on the device."""
        if self.engine.captures:
            place = self.names.index(name), SUSPECTS.index(next(iter(numbers)))
            return self.note(self.first, self.clock, list(numbers.values()), *place)
        for what, number in numbers.items():
            if not bool(number.isfinite()):
                raise NonFiniteError(name, int(self.clock), what)
        return self.none

    @torch.no_grad()
    def adopt(self, other: NonFiniteGuard) -> None:
        """The first fault of `other` is the first here too, if there was none."""
        self.first.copy_(torch.where(self.first[0] < 0, other.first, self.first))

    def tick(self) -> None:
        """Count one update."""
        self.clock.add_(1)

    def state_dict(self) -> dict[str, Tensor]:
        return {"clock": self.clock, "first": self.first}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.clock.copy_(state["clock"])
        self.first.copy_(state["first"])

    def look(self) -> None:
        """Raise the first fault if it has been seen; never waits."""
        if self.watch.raised():
            self.raise_first()

    def raise_first(self) -> None:
        """Raise the first fault of the programs so far, if there was one; waits for them."""
        step, variable, suspect = self.first.tolist()
        if step >= 0:
            raise NonFiniteError(self.names[variable], step, SUSPECTS[suspect])
