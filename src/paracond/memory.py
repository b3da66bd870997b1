"""Whether an answer fits into memory: what surely does not is refused before any of it is made.

Estimates are of the least that an answer takes, so what passes may still be too much.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress

import torch

from paracond.errors import InputError
from paracond.model import JointModel


def require_room(what: str, needed: float, device: torch.device) -> None:
    """Refuse what takes more memory than there is.

    what: what is asked for, with the argument that says how much of it.
    needed: its size in bytes.
    device: where it will be.
    """
    room = _room(device)
    if needed > room:
        sizes = f"{needed / 2**30:,.1f} GiB, and there are {room / 2**30:,.1f} GiB on {device}"
        raise InputError(f"{what} would take at least {sizes}: ask for less at a time")


def row_bytes(model: JointModel) -> int:
    """The bytes of one row of a state with its mask."""
    total = 0
    for family in model.variables.values():
        one = family.store(torch.zeros((), dtype=model.dtype), model.dtype)
        total += math.prod(family.event_shape) * (one.element_size() + 1)
    return total


def _room(device: torch.device) -> float:
    """All memory of a device; on a CPU, all that this process may have."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    found = [math.inf]
    with suppress(AttributeError, ValueError, OSError):  # elsewhere than on POSIX
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(ImportError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        found.append(math.inf if limit == resource.RLIM_INFINITY else limit)
    return min(found)
