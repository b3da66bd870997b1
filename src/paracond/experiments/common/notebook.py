"""What a run has found so far: metrics and figures, written down after each part; and how much time it has left.

Later parts take long, and may be cut off: what was measured before is then in OUT already. With --resume a part that
was measured on this same model with the same settings is taken from there.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

import paracond as pc
from paracond.experiments.common.report import png
from paracond.experiments.common.results import Metric, Outcome, PresetConfig, command, commit, hardware, plain
from paracond.experiments.images import report as images_report
from paracond.serialization import replace_file

#: Settings that say where things are and which parts there are, not how one is measured.
FREE = ("out", "data", "model", "resume", "minutes", "stopwatch", "extras", "variants", "variant_updates")


@dataclass(kw_only=True)
class Notebook:
    """`paper` and `goals` stand beside the metrics that have one."""

    name: str
    title: str
    about: str
    settings: PresetConfig
    device: str
    paper: dict[str, float]
    goals: dict[str, float]
    details: dict = field(default_factory=dict)
    metrics: list[Metric] = field(default_factory=list)
    figures: list[tuple[str, str, bytes]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def add(self, name: str, value: float, better: str, about: str = "") -> None:
        goal, paper = self.goals.get(name), self.paper.get(name)
        self.metrics.append(Metric(name, value, better, paper=paper, goal=goal, about=about))

    def show(self, heading: str, caption: str, figure: Figure) -> None:
        self.figures.append((heading, caption, png(figure)))

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
            if self.resume and self.recall(name):
                print(f"  {name}: measured before")
                continue
            self.measure(name, part)
            print(f"  {name}: {time.perf_counter() - since:.0f} s", flush=True)
            self.write()
        return self.write()

    def measure(self, name: str, part: Callable[[], None]) -> None:
        """Go through one part, and keep what it adds in OUT/parts."""
        metrics, figures, details = len(self.metrics), len(self.figures), dict(self.details)
        part()
        found = {
            "stamp": self.stamp(),
            "origin": {"command": command(), "commit": commit(), "hardware": hardware(self.device)},
            "metrics": [asdict(metric) for metric in self.metrics[metrics:]],
            "details": {key: value for key, value in self.details.items() if details.get(key) != value},
            "figures": [(title, text, base64.b64encode(data).decode()) for title, text, data in self.figures[figures:]],
        }
        self.details["measured"] = {**details.get("measured", {}), name: found["origin"]}
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(found, indent=1).encode())

    def recall(self, name: str) -> bool:
        """Take over what an earlier run found in a part; False if there is none, or it was about something else."""
        path = self._path(name)
        found = json.loads(path.read_text()) if path.exists() else {}
        if found.get("stamp") != self.stamp():
            if found:
                print(f"  {name}: measured before, but with {_difference(found['stamp'], self.stamp())}: once more")
            return False
        self.metrics += [Metric(**metric) for metric in found["metrics"]]
        self.details |= found["details"]
        self.details["measured"] = {**self.details.get("measured", {}), name: found["origin"]}
        self.figures += [(title, text, base64.b64decode(data)) for title, text, data in found["figures"]]
        return True

    def stamp(self) -> dict:
        """What parts are about: the model, whose files are named by what is in them, and the settings."""
        files = sorted(path.name for path in (self.settings.model or self.settings.out / "model").glob("*.safetensors"))
        settings = {key: value for key, value in plain(self.settings).items() if key not in FREE}
        return json.loads(json.dumps({"model": files, "settings": settings}))

    def _path(self, name: str) -> Path:
        return self.settings.out / "parts" / f"{name.replace(' ', '_')}.json"

    def write(self) -> Outcome:
        """The results and the report of what there is so far."""
        seconds = time.perf_counter() - self.began
        outcome = Outcome(self.name, list(self.metrics), seconds, plain(self.settings), self.device, self.details)
        outcome.write(self.settings.out)
        images_report.page(self.title, self.about, outcome, self.figures).write(self.settings.out)
        return outcome


def _difference(before: dict, now: dict) -> str:
    """In words."""
    if before["model"] != now["model"]:
        return "another model"
    pairs = {key: (before["settings"].get(key), value) for key, value in now["settings"].items()}
    return ", ".join(f"{key} {old} instead of {new}" for key, (old, new) in pairs.items() if old != new)
