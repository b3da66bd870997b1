"""Schedules say how numbers change while a model learns: chain length (appendix D), learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from paracond.data import InputError

Schedule = Callable[[int], float]


def linear(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` in equal parts over `steps`, then `end`."""
    return lambda step: start + (end - start) * min(1.0, step / max(1, steps))


def cosine(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` along half a cosine over `steps`, then `end`."""
    return lambda step: end + (start - end) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(1, steps))))


def as_schedule(what: str, value: float | Schedule) -> Schedule:
    """A number or a schedule as a schedule; `what` is the name of the argument."""
    if not callable(value) and (not isinstance(value, (int, float)) or isinstance(value, bool)):
        raise InputError(f"{what} must be a number or a function of the step, found {value!r}")
    return value if callable(value) else lambda step: value


def as_rate(what: str, value: float | Schedule) -> Schedule:
    """A learning rate as a schedule, which refuses rates that are not finite or negative when it meets them."""
    schedule = as_schedule(what, value)

    def checked(step: int) -> float:
        rate = schedule(step)
        if not _usable(rate):
            raise InputError(f"{what} must be a number, 0 or more, found {rate!r} at step {step}")
        return rate

    if callable(value):
        return checked
    if not _usable(value):
        raise InputError(f"{what} must be a number, 0 or more, found {value}")
    return schedule


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all groups of an optimiser, in place where it is a tensor."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _usable(rate: float) -> bool:
    try:
        return 0 <= float(rate) < math.inf
    except (TypeError, ValueError):
        return False
