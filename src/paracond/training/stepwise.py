"""Work that goes on update by update: what all learners have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

from paracond.data import at_least, true_or_false
from paracond.runtime.progress import track

Info = TypeVar("Info")
Result = TypeVar("Result")


class Stepwise(ABC, Generic[Info, Result]):
    """`for info in learner.run(steps)`, or `learner.fit(steps)`."""

    @abstractmethod
    def step(self) -> Info:
        """One update."""

    @property
    @abstractmethod
    def result(self) -> Result:
        """What has been learned so far."""

    def finish(self) -> None:
        """Called when a run is over."""

    def run(self, steps: int, progress: bool | None = None) -> Iterator[Info]:
        """Do `steps` updates, yielding after each."""
        at_least({"steps": (steps, 0)})
        if progress is not None:
            true_or_false("progress", progress)
        for _ in track(range(steps), "learning", progress):
            yield self.step()
        self.finish()

    def fit(self, steps: int, progress: bool | None = None) -> Result:
        """Do `steps` updates; returns what has been learned."""
        for _ in self.run(steps, progress):
            pass
        return self.result
