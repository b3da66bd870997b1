"""Schedules say how numbers change while a model learns: chain length (appendix D), learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paracond.data import InputError, as_float, at_least, called, shown

MOST = 1e30  # numbers of 32 bits have it, and ten times as much
Schedule = Callable[[int], float]


def linear(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` in equal parts over `steps`, then `end`."""
    _check(start, end, steps)
    return lambda step: start + (end - start) * min(1.0, step / max(1, steps))


def cosine(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` along half a cosine over `steps`, then `end`."""
    _check(start, end, steps)
    return lambda step: end + (start - end) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(1, steps))))


def as_schedule(what: str, value: float | Schedule, least: float = 0) -> Schedule:
    """A number or a schedule as a schedule, which refuses numbers under `least`; `what` is the name of the argument."""
    if callable(value):
        return lambda step: _checked(f"{what} at step {step}", called(what, value, step), least)
    fixed = _checked(what, value, least, "a number or a function of the step")
    return lambda step: fixed


def _checked(what: str, value: Any, least: float, kind: str = "a number") -> float:
    number = as_float(what, value, kind)
    if number < least:
        raise InputError(f"{what} must be a number, {least:g} or more, found {shown(value)}")
    if number > MOST:
        raise InputError(f"{what} must be a number, at most {MOST:g}, found {shown(value)}")
    return value if isinstance(value, (int, float)) else number


def _check(start: float, end: float, steps: int) -> None:
    as_float("start of a schedule", start)
    as_float("end of a schedule", end)
    at_least({"steps of a schedule": (steps, 0)})


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all groups of an optimiser, in place where it is a tensor."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
