"""Independent jobs in parallel processes, one CPU thread each: small networks gain little from more threads."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

import torch

from paracond.runtime import progress
from paracond.runtime.progress import waiting

T = TypeVar("T")


def run_side_by_side(jobs: Sequence[Callable[[], T]], device: str, title: str) -> list[T]:
    """The results of all jobs, in order. On an accelerator they run one after the other in this process."""
    workers = min(len(jobs), os.cpu_count() or 1)
    if device != "cpu" or workers == 1:
        return [job() for job in jobs]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_become_worker) as pool, waiting(title):
        futures = [pool.submit(job) for job in jobs]
        return [future.result() for future in futures]


def _become_worker() -> None:
    """Use one thread and no progress bar, since bars of several processes would overlap."""
    torch.set_num_threads(1)
    progress.quiet = True
