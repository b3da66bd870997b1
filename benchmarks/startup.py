"""How long it takes to start: CPU seconds of `import paracond` and `paracond --help` beside `import torch`.

    python benchmarks/startup.py [--repeats 5] [--out results]

Every program runs in a fresh process, in turn with the others so that a busy moment does not fall on one of them. CPU
seconds are user and system time of the process, after one run that fills the file cache; the median is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from paracond.experiments.common.results import Metric, Outcome

TOUCHED = "import paracond as pc\nfor name in pc.__all__: getattr(pc, name)"
PROGRAMS = {
    "import torch": ["-c", "import torch"],
    "import paracond, all names": ["-c", TOUCHED],
    "import paracond": ["-c", "import paracond"],
    "paracond --help": ["-m", "paracond", "--help"],
    "paracond list": ["-m", "paracond", "list"],
}


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of one process."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed with exit status {process.returncode}")
    return used.ru_utime + used.ru_stime


def measured(repeats: int) -> dict[str, list[float]]:
    """CPU seconds of every program, `repeats` times."""
    for arguments in PROGRAMS.values():
        cpu_seconds(arguments)
    rounds = [{name: cpu_seconds(arguments) for name, arguments in PROGRAMS.items()} for _ in range(repeats)]
    return {name: [each[name] for each in rounds] for name in PROGRAMS}


def outcome(found: dict[str, list[float]], seconds: float) -> Outcome:
    middle = {name: round(median(times), 4) for name, times in found.items()}
    torch, touched = middle["import torch"], middle["import paracond, all names"]
    about = "CPU seconds, user and system"
    metrics = [
        Metric("import_torch", torch, "lower", about=about),
        Metric("import_paracond", touched, "lower", about=f"{about}; all public names touched, torch included"),
        Metric("import_paracond_over_torch", round(touched - torch, 4), "lower", goal=0.3, about=about),
        Metric("help", middle["paracond --help"], "lower", goal=0.8, about=f"{about}; torch is not imported"),
        Metric("ratio_import_paracond", round(touched / torch, 3), "lower", about="to import torch"),
        Metric("ratio_help", round(middle["paracond --help"] / torch, 3), "lower", about="to import torch"),
    ]
    times = {name: [round(t, 4) for t in each] for name, each in found.items()}
    return Outcome("startup", metrics, seconds, {"repeats": len(next(iter(found.values())))}, "cpu", {"times": times})


def show(found: dict[str, list[float]]) -> None:
    table = Table(title="CPU seconds, median of fresh processes")
    for column in ("program", "seconds", "ratio to import torch"):
        table.add_column(column)
    torch = median(found["import torch"])
    for name, times in found.items():
        table.add_row(name, f"{median(times):.3f}", f"{median(times) / torch:.2f}")
    Console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of startup.json")
    options = parser.parse_args()
    began = time.perf_counter()
    found = measured(options.repeats)
    show(found)
    result = outcome(found, time.perf_counter() - began)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "startup.json"
    record = result.record() | {"command": f"python benchmarks/startup.py --repeats {options.repeats}"}
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"results: {path}")


if __name__ == "__main__":
    main()
