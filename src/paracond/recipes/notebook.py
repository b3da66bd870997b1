"""What a run has found so far: metrics and figures, written down after each part; and how much time it has left.

Later parts take long, and may be cut off: what was measured before is then in OUT already.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from matplotlib.figure import Figure

import paracond as pc
from paracond.recipes import images_report
from paracond.results import BoxedConfig, Metric, Outcome, plain


@dataclass(kw_only=True)
class Notebook:
    """`paper` and `goals` stand beside the metrics that have one."""

    name: str
    title: str
    about: str
    settings: BoxedConfig
    device: str
    paper: dict[str, float]
    goals: dict[str, float]
    details: dict = field(default_factory=dict)
    metrics: list[Metric] = field(default_factory=list)
    figures: list[tuple[str, str, Figure]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def add(self, name: str, value: float, better: str, about: str = "") -> None:
        goal, paper = self.goals.get(name), self.paper.get(name)
        self.metrics.append(Metric(name, value, better, paper=paper, goal=goal, about=about))

    def show(self, heading: str, caption: str, figure: Figure) -> None:
        self.figures.append((heading, caption, figure))

    def engine(self) -> pc.Engine:
        wanted = self.settings.compile and self.device == "cuda" and not self.settings.quick
        return pc.Engine(self.device, compile=wanted)

    @property
    def resume(self) -> bool:
        return self.settings.resume

    @property
    def minutes(self) -> float | None:
        """What is left of the time box, which began with the run; None without one."""
        if self.settings.minutes is None or self.settings.minutes < 0:
            return self.settings.minutes  # refused where it is used
        return max(0.0, self.settings.minutes - (time.perf_counter() - self.began) / 60)

    def go_through(self, parts: dict[str, Callable[[], None]]) -> Outcome:
        """One part after the other, by name, each written down."""
        for name, part in parts.items():
            since = time.perf_counter()
            part()
            print(f"  {name}: {time.perf_counter() - since:.0f} s", flush=True)
            outcome = self.write()
        return outcome

    def write(self) -> Outcome:
        """The results and the report of what there is so far."""
        seconds = time.perf_counter() - self.began
        outcome = Outcome(self.name, list(self.metrics), seconds, plain(self.settings), self.device, self.details)
        outcome.write(self.settings.out)
        images_report.page(self.title, self.about, outcome, self.figures).write(self.settings.out)
        return outcome
