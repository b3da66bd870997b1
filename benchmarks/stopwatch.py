"""Time on a GPU, by events."""

from __future__ import annotations

from collections.abc import Callable

import torch


def milliseconds(work: Callable[[], object], repeats: int, warm: int = 0) -> float:
    """Mean time of a call, after `warm` calls that do not count."""
    for _ in range(warm):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats
