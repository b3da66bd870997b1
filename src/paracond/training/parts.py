"""What the parts of a learner share: how they run, where randomness comes from, and how they are saved and restored.

Every part has `state_dict()`, nested dictionaries of tensors and plain values, and `load_state_dict(state)`, which
copies tensors into those that exist: recorded programs hold on to these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paracond.data import InputError, Mask, State, called, shown
from paracond.model import JointModel
from paracond.runtime.engine import Engine
from paracond.runtime.nonfinite import NonFiniteGuard


@dataclass(frozen=True, eq=False)
class Resources:
    """An engine, the guard against numbers that are not finite, and random sources on the device and on the host."""

    engine: Engine
    guard: NonFiniteGuard
    generator: torch.Generator
    host: torch.Generator


def blank(model: JointModel, size: int) -> State:
    """A state of `size` rows, to be filled."""
    zeros = {n: torch.zeros(size, *f.event_shape, device=model.device) for n, f in model.variables.items()}
    return {name: model.variables[name].store(value, model.dtype) for name, value in zeros.items()}


def flags(state: State) -> Mask:
    """A mask of the same shapes, all false."""
    return {name: torch.zeros_like(value, dtype=torch.bool) for name, value in state.items()}


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, including buffers that a state_dict leaves out."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def made_optimiser(optimiser: Callable, *arguments: Any) -> torch.optim.Optimizer:
    """The optimiser that a function of the user makes, or refuse it."""
    if not callable(optimiser):
        raise InputError(f"optimiser must be a function that makes one, found {shown(optimiser)}")
    made = called("optimiser", optimiser, *arguments)
    if not isinstance(made, torch.optim.Optimizer):
        group = f" for {arguments[0]!r}" if isinstance(arguments[0], str) else ""
        raise InputError(f"optimiser must return a torch.optim.Optimizer, found {shown(made)}{group}")
    return made


@torch.no_grad()
def copy_into(tensors: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Fill tensors in place from those of the same names."""
    for name, tensor in tensors.items():
        tensor.copy_(found[name])
