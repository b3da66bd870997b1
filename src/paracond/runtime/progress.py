"""A progress bar with rate and time left, shown on a terminal when the work takes long.

`rich`, which draws it, is imported when a bar may be needed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar

from paracond.data import true_or_false

T = TypeVar("T")
PATIENCE = 2.0  # seconds before a bar appears
LINES = 60.0  # seconds between lines, where there is no terminal
quiet = False  # set in worker processes, which must not draw on their parent's terminal


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Show a spinner with the seconds passed, for work whose parts cannot be counted; without a terminal, one line."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(title, highlight=False)
        yield
        return
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
    ) as bar:
        bar.add_task(title, total=None)
        yield


def check_progress(progress: object) -> None:
    """Refuse what is not True, False or None."""
    if progress is not None:
        true_or_false("progress", progress)


def track(work: Iterable[T], title: str, show: bool | None = None, start: int = 0) -> Iterator[T]:
    """Iterate over `work` and show its progress; `start` items were done before.

    By default a bar appears on a terminal once the work has taken longer than `PATIENCE`, and a line every `LINES`
    seconds elsewhere.
    """
    total = start + len(work) if isinstance(work, Sized) else None
    if show is None and not sys.stderr.isatty() and not quiet:
        yield from _lines(work, title, start, total)
        return
    if show is False or quiet:
        yield from work
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    began = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(title, total=total, completed=start, rate="")
    try:
        for done, item in enumerate(work):
            elapsed = time.monotonic() - began
            if elapsed > PATIENCE:
                bar.start()
                bar.update(task, completed=start + done, rate=f"{done / elapsed:.0f}/s")
            yield item
    finally:
        bar.stop()


def _lines(work: Iterable[T], title: str, start: int, total: int | None) -> Iterator[T]:
    """Print one line every `LINES` seconds, for a log."""
    began = last = time.monotonic()
    for done, item in enumerate(work):
        now = time.monotonic()
        if now - last >= LINES:
            last, rate = now, done / (now - began)
            left = "" if total is None else f" of {total}, {(total - start - done) / max(rate, 1e-9) / 60:.0f} min left"
            print(f"{title}: {start + done}{left}, {rate:.3g}/s", file=sys.stderr, flush=True)
        yield item
