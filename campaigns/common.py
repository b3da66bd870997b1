"""What all campaigns share: a bound in count and time, outcomes with their reproducers, and results/trust.json."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paracond.experiments.common.results import Metric, Outcome

ROOT = Path(__file__).parents[1]
NAME = "trust"


def parser(about: str | None, count: int, seconds: float) -> argparse.ArgumentParser:
    """The arguments that every campaign takes.

    about: the documentation of the script.
    count, seconds: the defaults of --count and --seconds.
    """
    found = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--count", type=int, default=count, help=f"the most trials (default: {count:,})")
    found.add_argument("--seconds", type=float, default=seconds, help=f"the most seconds (default: {seconds:g})")
    found.add_argument("--seed", type=int, default=0, help="the same seed makes the same trials")
    found.add_argument("--out", type=Path, default=ROOT / "results", help=f"the folder of {NAME}.json")
    return found


def trials(count: int, seconds: float = math.inf) -> Iterator[int]:
    """Number the trials from 0 until there were `count`, or until `seconds` are over."""
    end = time.monotonic() + seconds
    for number in range(count):
        if time.monotonic() > end:
            print(f"stopped after {number} of {count} trials: the time was over", flush=True)
            return
        yield number


@dataclass
class Tally:
    """Counts trials by outcome, and prints how to repeat every bad one.

    title: what is tried.
    bad: the outcomes that must not happen.
    shown: how many reproducers of each bad outcome are printed; all are kept in `found`.
    """

    title: str
    bad: Sequence[str] = ()
    shown: int = 20
    counts: Counter[str] = field(default_factory=Counter)
    found: dict[str, list[str]] = field(default_factory=dict)

    def add(self, outcome: str, reproducer: str = "") -> None:
        """Count one trial. `reproducer` is a line that repeats it."""
        self.counts[outcome] += 1
        if outcome in self.bad:
            self.found.setdefault(outcome, []).append(reproducer)
            if self.counts[outcome] <= self.shown:
                print(f"{self.title}: {outcome.upper()}: {reproducer}", flush=True)

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def failures(self) -> int:
        return sum(self.counts[outcome] for outcome in self.bad)

    def __str__(self) -> str:
        listed = ", ".join(f"{outcome} {count:,}" for outcome, count in self.counts.most_common())
        return f"{self.title}: {self.total:,} trials: {listed or 'none'}"


def write(part: str, metrics: list[Metric], seconds: float, config: dict, folder: Path = ROOT / "results") -> Path:
    """Write metrics into trust.json. Metrics and runs of campaigns that were not run now stay as they are.

    part: the name of the campaign.
    config: its arguments.
    """
    outcome = Outcome(NAME, metrics, seconds, config)
    path = folder / f"{NAME}.json"
    former = json.loads(path.read_text()) if path.exists() else {}
    record = outcome.record()
    own = {key: record.pop(key) for key in ("command", "commit", "hardware", "torch", "date", "seconds", "config")}
    kept = [each for each in former.get("metrics", []) if each["name"] not in {metric.name for metric in metrics}]
    record["metrics"] = kept + record["metrics"]
    record["runs"] = {**former.get("runs", {}), part: own}
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    outcome.show()
    return path
