"""The runner: runs the named parts of an experiment in order, and keeps what each part measured.

After each part it writes OUT/results.json and OUT/report.html, and the part's own record to OUT/parts. With --resume it
reuses the record of a part that measured the same model with the same settings. With --minutes it keeps a time box.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import paracond as pc
from paracond.experiments.common.config import plain
from paracond.experiments.common.report import Report, page, png
from paracond.experiments.common.results import Metric, Outcome, command, commit, hardware
from paracond.serialization import replace_file

#: Settings that change where files are or which parts run, but not what a part measures.
FREE = ("out", "data", "model", "resume", "minutes", "extras", "only")


class Unfinished(Exception):
    """The time box ended before the work was done."""


@dataclass(kw_only=True)
class Runner:
    """One run of an experiment: its settings, and the metrics and figures measured so far.

    name, title, about: the name in the results, the title and first paragraph of the report.
    config: the settings; `run` needs a `ResumableConfig`.
    paper, goals: values by metric, shown next to the measured ones.
    """

    name: str
    title: str
    about: str
    config: Any
    device: str
    paper: dict[str, float] = field(default_factory=dict)
    goals: dict[str, float] = field(default_factory=dict)
    details: dict = field(default_factory=dict)
    metrics: list[Metric] = field(default_factory=list)
    figures: list[tuple[str, str, bytes]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    # --- for the parts of an experiment ---

    def add(self, name: str, value: float, better: str, about: str = "", std: float | None = None) -> None:
        """Add a metric; `better` is "lower" or "higher"."""
        goal, paper = self.goals.get(name), self.paper.get(name)
        self.metrics.append(Metric(name, value, better, std, paper, goal, about))

    def show(self, heading: str, caption: str, figure: Figure | None = None) -> None:
        """Add a section to the report: a figure with its caption, or the caption alone."""
        self.figures.append((heading, caption, b"" if figure is None else png(figure)))

    def count(self, full: int, quick: int = 4) -> int:
        """`full`, or `quick` in a quick run."""
        return self.config.count(full, quick)

    def engine(self) -> pc.Engine:
        wanted = self.config.compile and self.device == "cuda" and not self.config.quick
        return pc.Engine(self.device, compile=wanted)

    @property
    def resume(self) -> bool:
        return self.config.resume

    @property
    def minutes(self) -> float | None:
        """Minutes left in the time box, which opened with the run; None without a time box."""
        if self.config.minutes is None:
            return None
        return max(0.0, self.config.minutes - (time.perf_counter() - self.began) / 60)

    # --- running them ---

    def run(self, parts: Mapping[str, Callable[[], Any]], timed: bool = False) -> Outcome:
        """Run the parts in order. With `timed`, no part starts after the end of the time box."""
        for name, part in parts.items():
            if self.resume and self.recall(name):
                print(f"  {name}: measured before")
                continue
            if timed and self.minutes == 0:
                raise Unfinished(f"the time is over before {name}; continue with --resume")
            since = time.perf_counter()
            self.measure(name, part)
            print(f"  {name}: {time.perf_counter() - since:.0f} s", flush=True)
            self.write()
        return self.write()

    def measure(self, name: str, part: Callable[[], Any]) -> None:
        """Run one part and save what it added in OUT/parts."""
        metrics, figures, details = len(self.metrics), len(self.figures), dict(self.details)
        part()
        record = {
            "stamp": self.stamp(),
            "origin": {"command": command(), "commit": commit(), "hardware": hardware(self.device)},
            "metrics": [asdict(metric) for metric in self.metrics[metrics:]],
            "details": {key: value for key, value in self.details.items() if details.get(key) != value},
            "figures": [(title, text, base64.b64encode(data).decode()) for title, text, data in self.figures[figures:]],
        }
        self.details["measured"] = {**details.get("measured", {}), name: record["origin"]}
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(record, indent=1).encode())

    def recall(self, name: str) -> bool:
        """Reuse the record of a part; False without a record of this model and these settings."""
        path = self._path(name)
        record = json.loads(path.read_text()) if path.exists() else {}
        if record.get("stamp") != self.stamp():
            if record:
                print(f"  {name}: measured before, but with {_difference(record['stamp'], self.stamp())}: once more")
            return False
        self.metrics += [Metric(**metric) for metric in record["metrics"]]
        self.details |= record["details"]
        self.details["measured"] = {**self.details.get("measured", {}), name: record["origin"]}
        self.figures += [(title, text, base64.b64decode(data)) for title, text, data in record["figures"]]
        return True

    def stamp(self) -> dict:
        """The model, whose files are named after their contents, and the settings that parts depend on."""
        folder = getattr(self.config, "model", None) or self.config.out / "model"
        files = sorted(path.name for path in folder.glob("*.safetensors"))
        settings = {key: value for key, value in plain(self.config).items() if key not in FREE}
        return json.loads(json.dumps({"model": files, "settings": settings}))

    def write(self) -> Outcome:
        """Write the results and the report of all parts so far."""
        seconds = time.perf_counter() - self.began
        outcome = Outcome(self.name, list(self.metrics), seconds, plain(self.config), self.device, self.details)
        outcome.write(self.config.out)
        self.page(outcome).write(self.config.out)
        return outcome

    def page(self, outcome: Outcome) -> Report:
        return page(self.title, self.about, outcome, self.figures)

    def _path(self, name: str) -> Path:
        return self.config.out / "parts" / f"{name.replace(' ', '_')}.json"


def _difference(before: dict, now: dict) -> str:
    """How two stamps differ, in words."""
    if before["model"] != now["model"]:
        return "another model"
    pairs = {key: (before["settings"].get(key), value) for key, value in now["settings"].items()}
    return ", ".join(f"{key} {old} instead of {new}" for key, (old, new) in pairs.items() if old != new)
