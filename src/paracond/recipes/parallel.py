"""Independent jobs side by side, one CPU thread each.

Tiny networks run several times faster on one thread than on two, so two cores are best used by two jobs.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def run_side_by_side(jobs: Sequence[Callable[[], T]], device: str) -> list[T]:
    """The results of all jobs, in order. On an accelerator they run one after the other, in this process."""
    workers = min(len(jobs), os.cpu_count() or 1)
    if device != "cpu" or workers == 1:
        return [job() for job in jobs]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = [pool.submit(job) for job in jobs]
        return [future.result() for future in futures]
