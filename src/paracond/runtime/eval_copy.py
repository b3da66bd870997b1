"""A module in evaluation mode (no dropout, no noise) that shares all tensors with the original.

Evaluation mode is a flag of every module, and a module may be in use elsewhere: a learner may train it, another thread
may ask it. So a question does not switch the flags. It copies the modules, with all that they hold but tensors.
"""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import Tensor, nn

from paracond.errors import InputError

Module = TypeVar("Module", bound=nn.Module)


def eval_copy(module: Module) -> Module:
    """The module in evaluation mode; the original stays as it is. What was compiled is evaluated as it is written.

    A function that a module holds and that reads `module.training` by itself, such as a lambda, reads the original's.
    """
    shared = {id(tensor): tensor for tensor in [*module.parameters(), *module.buffers()]}
    for part in module.modules():
        shared |= {id(value): value for value in vars(part).values() if isinstance(value, Tensor)}
    try:
        return copy.deepcopy(module, shared).eval()
    except (TypeError, RuntimeError, AttributeError) as error:
        why = f"{error}".splitlines()[0]
        raise InputError(f"the model has a network that cannot be copied, as questions do: {why:.120}") from None
