"""What an optimiser's step changes, as it was before: a step to parameters that are not finite is taken back.

A finite gradient does not make a finite step: the learning rate may be too large, or the optimiser may divide by zero.
torch's own optimisers cannot get there with rates and decays up to one, if `eps` is not zero. Gradients are finite only
if their norm is, so they are below 2e19 in float32, and no step is more than some thousand times as large. Then nothing
needs to be copied or looked at. All others are watched.

Within a recorded program the host cannot look (see `runtime.nonfinite`). There the former numbers are always written,
or not, by a flag on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paracond.data import InputError

#: The largest learning rate and decay of an optimiser that is not watched, and the smallest `eps` that it divides by.
SAFE, LEAST = 1.0, 1e-30
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Former:
    """The parameters of one conditional and the state of its optimiser, before the last step.

    Call `keep` before each step that `is_risky`. The copies stay where they are, for recorded programs.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], optimiser: torch.optim.Optimizer):
        self.parameters, self.optimiser = [p.detach() for p in parameters if p.numel()], optimiser
        ours = type(optimiser).__module__.startswith("torch.optim.")
        self.bounded = ours and all(p.dtype != torch.float16 for p in parameters)
        self.recorded = self.is_risky()  # a recorded program cannot change its mind
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.changing: list[Tensor] = []
        self.copies: list[Tensor] = []

    def is_risky(self) -> bool:
        """Whether the next step may lead to parameters that are not finite."""
        if not self.bounded:
            return True
        groups = self.optimiser.param_groups
        safe = (g["lr"] <= SAFE and g.get("weight_decay", 0) <= SAFE and g.get("eps", 1) >= LEAST for g in groups)
        return not all(safe)

    def require_safe(self, what: str, rate: float) -> None:
        """Refuse a rate for which a program is recorded that does not look at parameters."""
        if rate > SAFE and not self.recorded:
            raise InputError(f'{what} above {SAFE:g} needs engine="eager", which looks at parameters, found {rate}')

    @torch.no_grad()
    def keep(self) -> None:
        """Copy all that the next step changes."""
        self.state = {parameter: dict(entry) for parameter, entry in self.optimiser.state.items()}
        self.changing = [*self.parameters, *_tensors(self.state)]
        if len(self.copies) != len(self.changing):  # optimisers make their state in their first step
            self.copies = [torch.empty_like(tensor) for tensor in self.changing]
        torch._foreach_copy_(self.copies, self.changing)

    @torch.no_grad()
    def size(self) -> Tensor:
        """The sum of all parameters without their signs: not finite if one of them is not."""
        return torch.stack(torch._foreach_norm(self.parameters, 1)).sum()

    def step(self) -> bool:
        """Do a step of the optimiser. Returns false if it was taken back. For learners without recorded programs."""
        if not self.is_risky():
            self.optimiser.step()
            return True
        self.keep()
        self.optimiser.step()
        finite = bool(self.size().isfinite())
        if not finite:
            self.put_back()
        return finite

    @torch.no_grad()
    def put_back(self) -> None:
        """Make all as it was."""
        torch._foreach_copy_(self.changing, self.copies)
        self.optimiser.state.clear()
        self.optimiser.state.update(self.state)

    @torch.no_grad()
    def put_back_unless(self, good: Tensor) -> None:
        """Make all as it was where `good`, on the device, is false."""
        kept = {id(tensor) for tensor in self.changing}
        for tensor in _tensors(self.optimiser.state):
            if id(tensor) not in kept:  # made in this step, from zero
                tensor.copy_(torch.where(good, tensor, 0))
        # NaN times zero is NaN, so bits are computed with: new + (old - new) * (0 or 1), as whole numbers.
        new = [_bits(tensor) for tensor in self.changing]
        gaps = torch._foreach_sub([_bits(copy) for copy in self.copies], new)
        torch._foreach_mul_(gaps, (~good).to(torch.int8))
        torch._foreach_add_(new, gaps)


def _tensors(state: Mapping[Any, dict[str, Any]]) -> Iterator[Tensor]:
    return (value for entry in state.values() for value in entry.values() if isinstance(value, Tensor))


def _bits(tensor: Tensor) -> Tensor:
    """The same memory, as whole numbers."""
    return tensor.detach().view(BITS[tensor.element_size()])
