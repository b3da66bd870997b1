"""A module in evaluation mode (no dropout, no noise) that shares all tensors with the original.

Evaluation mode is a flag of every module, and a module may be in use elsewhere: a learner may train it, another thread
may ask it. So a question does not switch the flags. It makes new modules, with flags of their own, around the same
parameters and buffers. That copies no numbers, and takes microseconds per module.
"""

from __future__ import annotations

import copy
from types import MethodType
from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def eval_copy(module: Module) -> Module:
    """The module in evaluation mode; the original stays as it is. What was compiled is evaluated as it is written."""
    return _copied(module, {})


def _copied(module: Module, made: dict[int, nn.Module]) -> Module:
    """`made` has the copies by the identity of the original: a module that is used twice is copied once."""
    found = made.get(id(module))
    if found is None:
        if isinstance(module, torch.jit.ScriptModule):
            found = made[id(module)] = copy.deepcopy(module).eval()
        else:
            found = made[id(module)] = object.__new__(type(module))
            found.__dict__.update({key: _own(value, module, found) for key, value in module.__dict__.items()})
            parts = module._modules.items()
            found._modules = {key: None if part is None else _copied(part, made) for key, part in parts}
            found.training, found._compiled_call_impl = False, None
    return found  # type: ignore[return-value]


def _own(value: object, original: nn.Module, copied: nn.Module) -> object:
    """An attribute of the copy: a dictionary or list of its own, and methods of the copy."""
    if isinstance(value, (dict, list)):
        return copy.copy(value)
    if isinstance(value, MethodType) and value.__self__ is original:
        return MethodType(value.__func__, copied)
    return value
