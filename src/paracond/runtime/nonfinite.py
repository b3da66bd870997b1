"""Losses, gradients and draws that are not finite: they are found where they arise, and nothing is learned from them.

Without recorded programs an error is raised at once. Within a recorded program the host cannot check values, so the
first one is stored on the device, with its step, and from then on neither the parameters nor the running batch
change. The host reads it some updates later, without waiting.

Completion in parallel (see `AsyncCompletion`) has a guard of its own, because two streams must not write to one place.
The learner adopts what it has stored before it uses any of its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paracond.runtime.engine import Engine

EVERY = 100  # steps from one look at the device to the next
RUNAWAY = "lower its learning rate, standardise real values, and give Real groups a ceiling and bounds"
#: What may be not finite, and what to do then.
REMEDIES = {
    "the loss": RUNAWAY,
    "the gradient": "lower its learning rate, raise the floor of a Real group, or clip gradients in its optimiser",
    "a draw": RUNAWAY,
    "a completion": RUNAWAY,
    "a parameter": "its learning rate is too large, or its optimiser divides by zero (eps=0): change these",
    "the state": "go on from an earlier checkpoint, with a lower learning rate",
}
SUSPECTS = ("the loss", "the gradient", "a draw", "a completion", "a parameter")  # as programs number them


class NonFiniteError(ArithmeticError):
    """A loss, gradient, draw or parameter is NaN or infinite. The model is as it was before that update.

    variable: the group whose update failed.
    step: the number of updates before it.
    what: "the loss", "the gradient", "a draw", "a completion", "a parameter" or "the state".
    """

    def __init__(self, variable: str, step: int, what: str):
        remedy = REMEDIES[what]
        found = f"{what} of {variable!r} is not finite at step {step}; the last good state is kept"
        super().__init__(f"{found}. {remedy[0].upper()}{remedy[1:]}.")
        self.variable, self.step, self.what = variable, step, what


def record_first(first: Tensor, clock: Tensor, numbers: list[Tensor], variable: int, suspect: int) -> Tensor:
    """Store in `first` the first of `numbers` that is not finite, unless one is stored there; true if none is."""
    bad = torch.stack([~number.isfinite() for number in numbers])
    which = bad.to(torch.uint8).argmax() + suspect
    found = torch.stack([clock, torch.full_like(clock, variable), which])
    first.copy_(torch.where(bad.any() & (first[0] < 0), found, first))
    return first[0] < 0


class NonFiniteGuard:
    """Keeps the first non-finite number of a learner's programs. `clock` counts updates, on the device."""

    def __init__(self, names: Sequence[str], engine: Engine):
        self.names, self.engine, device = tuple(names), engine, engine.device
        self.clock = torch.zeros((), dtype=torch.long, device=device)
        self.first = torch.full((3,), -1, dtype=torch.long, device=device)  # step, variable, suspect
        self.none = torch.ones((), dtype=torch.bool, device=device)
        self.seen = torch.full((), -1, dtype=torch.long, pin_memory=self.first.is_cuda)  # what the host knows of it
        self.record_first = engine.fused(record_first)

    @torch.no_grad()
    def check(self, name: str, numbers: Mapping[str, Tensor]) -> Tensor:
        """Check numbers, named as in `SUSPECTS`: a boolean on the device, true if these and all before are finite."""
        if self.engine.captures:
            place = self.names.index(name), SUSPECTS.index(next(iter(numbers)))
            return self.record_first(self.first, self.clock, list(numbers.values()), *place)
        for what, number in numbers.items():
            if not bool(number.isfinite()):
                raise NonFiniteError(name, int(self.clock), what)
        return self.none

    @torch.no_grad()
    def adopt(self, other: NonFiniteGuard) -> None:
        """Take over what `other` has stored, if nothing is stored here."""
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

    def raise_if_seen(self, step: int) -> None:
        """Raise `NonFiniteError` if the host knows of one. It asks the device every `EVERY` steps, without waiting."""
        if step % EVERY == 0:
            if int(self.seen) >= 0:
                self.raise_first()
            self.seen.copy_(self.first[0], non_blocking=True)

    def raise_first(self) -> None:
        """Wait for the programs so far, and raise `NonFiniteError` if one of their numbers was not finite."""
        step, variable, suspect = self.first.tolist()
        if step >= 0:
            raise NonFiniteError(self.names[variable], step, SUSPECTS[suspect])
