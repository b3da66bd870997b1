"""Training with checkpoints, and measures taken while a model learns."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import paracond as pc
from paracond.experiments.common.runner import Unfinished
from paracond.serialization import replace_file
from paracond.training import checkpoints
from paracond.training.trainer import Trainer

MILESTONES = (15, 20, 25, 30, 45, 60, 90, 120, 180, 240, 300, 420, 600, 900, 1200, 1800)  # seconds of training


@dataclass
class Milestones:
    """Measures a model at growing training times. The training clock stops while it measures.

    The points and the time are saved in the file `path`, so that a later time box can continue them. The clock starts
    when the object is made.

    measure: returns numbers by name for a model.
    seconds: training times at which to measure; none: keep the time only.
    resume: continue the points saved in `path`.
    """

    measure: Callable[[pc.JointModel], dict[str, float]]
    path: Path
    seconds: tuple[float, ...] = MILESTONES
    resume: bool = False
    points: list[dict[str, float]] = field(default_factory=list)
    trained: float = 0.0

    def __post_init__(self) -> None:
        if self.resume and self.path.is_file():
            saved = json.loads(self.path.read_text())
            self.points, self.trained = saved["found"], saved["trained"]
        self.began = self.saved = time.perf_counter()

    def __call__(self, learner: Trainer) -> None:
        """Measure if the next milestone is due. Call it after each update."""
        if learner.step_count % 20:
            return
        now = time.perf_counter()
        last = self.points[-1]["seconds"] if self.points else 0.0
        due = next((t for t in self.seconds if t > last), math.inf)
        if self.trained + now - self.began >= due:
            self.take(learner)
        elif now - self.saved > 30:  # so that a crash loses little
            self.pause(learner)

    def take(self, learner: Trainer) -> None:
        """Measure now."""
        self.pause(learner)
        losses = {f"loss_{name}": float(loss) for name, loss in learner.losses.items()}
        numbers = {"seconds": self.trained, "updates": learner.step_count, **self.measure(learner.averaged)}
        self.points.append(numbers | losses)
        print("  " + ", ".join(f"{name} {value:.5g}" for name, value in self.points[-1].items()), flush=True)
        self.began = time.perf_counter()
        self._write()

    def finish(self, learner: Trainer) -> None:
        """Measure the last update, if no milestone has."""
        if not self.points or self.points[-1]["updates"] < learner.step_count:
            self.take(learner)

    def pause(self, learner: Trainer) -> None:
        """Stop the clock and save."""
        learner.engine.synchronise()
        now = time.perf_counter()
        self.trained, self.began = self.trained + now - self.began, now
        self._write()

    def _write(self) -> None:
        self.saved = time.perf_counter()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, json.dumps({"found": self.points, "trained": self.trained}).encode())


class TimeBox(Protocol):
    """Whether a training continues from its checkpoint, and how many minutes it has."""

    @property
    def resume(self) -> bool: ...

    @property
    def minutes(self) -> float | None: ...


def train(learner: Trainer, updates: int, folder: Path, box: TimeBox, milestones: Milestones | None = None) -> None:
    """Train with checkpoints in `folder`, and measure the end; raises `Unfinished` at the end of the time box."""
    learned = False

    def note(info) -> None:
        nonlocal learned
        learned = True
        if milestones is not None:
            milestones(learner)

    try:
        done = checkpoints.fit(learner, updates, folder, resume=box.resume, minutes=box.minutes, on_step=note)
    finally:
        learner.engine.synchronise()
        if milestones is not None and learned:  # a refused or finished run leaves the file alone
            milestones.pause(learner)
    if not done:
        raise Unfinished(f"stopped at update {learner.step_count} of {updates}; continue with --resume")
    if milestones is not None and milestones.seconds:
        milestones.finish(learner)
