"""Schedules say how numbers change while a model learns: chain length (appendix D), learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable

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
