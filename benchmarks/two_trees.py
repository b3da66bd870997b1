"""Is a change slower? Updates and sampling of two source trees, in turn, on one GPU.

    git archive COMMIT src | tar x -C carry/old
    python benchmarks/two_trees.py carry/old/src src [--out results]

Every measurement is a process of its own, old and new in turn, twice. Data are random: they do not change the time. An
update includes its share of completion and replacement. The smaller of two times counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

KINDS = {
    "update_images": "an update of Fashion-MNIST's preset, recorded",
    "update_images_compiled": "the same, compiled",
    "update_faces": "an update of the faces preset, recorded",
    "sample_images": "60 sweeps of 8,192 images",
    "sample_faces": "40 sweeps of 1,024 faces",
}
GOAL = 1.03


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    options = parser.parse_args()
    began = time.perf_counter()
    found = {kind: alternate(kind, options.old, options.new) for kind in options.kinds}
    sys.path.insert(0, str(options.new))
    from paracond.experiments.common.results import Metric, Outcome

    metrics = []
    for kind, (old, new) in found.items():
        about = f"{KINDS[kind]}: {new:.4g} ms, before {old:.4g} ms"
        metrics.append(Metric(f"ratio_{kind}", round(new / old, 4), "lower", goal=GOAL, about=about))
    outcome = Outcome("before_after", metrics, time.perf_counter() - began, {"kinds": options.kinds}, "cuda")
    record = outcome.record() | {"command": "python benchmarks/two_trees.py carry/old/src src"}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "before_after.json").write_text(json.dumps(record, indent=1) + "\n")
    outcome.show()


def alternate(kind: str, old: Path, new: Path) -> tuple[float, float]:
    """The shortest times of both trees, each measured twice."""
    times = [[child(kind, tree) for tree in (old, new)] for _ in range(2)]
    return min(pair[0] for pair in times), min(pair[1] for pair in times)


def child(kind: str, tree: Path) -> float:
    """Milliseconds of one kind of work in a process that imports this tree."""
    command = [sys.executable, __file__, "--child", kind]
    paths = [str(tree.resolve()), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{kind} failed:\n{done.stderr[-2000:]}")
    print(f"{kind}: {float(done.stdout.splitlines()[-1]):.4g} ms", flush=True)
    return float(done.stdout.splitlines()[-1])


# --- in a child process -----------------------------------------------------------------------------------------


def measure(kind: str) -> float:
    import torch
    from stopwatch import milliseconds

    import paracond as pc

    torch.set_float32_matmul_precision("high")
    make, given = setting("faces" if "faces" in kind else "images")
    engine = pc.Engine("cuda", "graphs", compile=kind.endswith("compiled"))
    if kind.startswith("sample"):
        model, sweeps = make(engine).averaged, 60 if "images" in kind else 40
        pc.sample(model, given, sweeps=2)
        return min(milliseconds(lambda: pc.sample(model, given, sweeps=sweeps), 1) for _ in range(3))
    learner = make(engine)
    for _ in range(14 * len(learner.model.names)):  # until every program is recorded
        learner.step()
    return min(milliseconds(learner.step, 500) for _ in range(4))


def setting(name: str) -> tuple[Callable, dict]:
    """How to make a learner of the preset, and what its samples are given."""
    import torch

    import paracond as pc

    if name == "images":
        from paracond.experiments.images import fashion, model

        data = pc.Data({"x": torch.rand(20_000, 1, 28, 28), "c": torch.randint(10, (20_000,))})
        given = {"c": (torch.arange(8192) % 10).cuda()}
        return lambda engine: model.make_learner(fashion.BEST, data, engine, 0), given
    from paracond.experiments.faces import model

    rows = torch.arange(2000)
    state = {
        "x": torch.rand(2000, 3, 64, 64),
        "s": torch.randint(19, (2000, 64, 64)),
        "c": (torch.rand(2000, 40) < 0.5).float(),
    }
    data = pc.Data(state, {"s": rows < 800, "c": rows >= 300})
    return lambda engine: model.make_learner(model.BEST, data, engine, 0), {"c": torch.ones(1024, 40).cuda()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(measure(sys.argv[2]))
    else:
        main()
