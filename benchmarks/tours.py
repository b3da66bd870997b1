"""Are the answers by tours right, fast, and good for anomalies?

    python benchmarks/tours.py coverage auroc speed --data DIR [--out results]

    coverage             share of 95% intervals that hold the exact value: probabilities, means and standard deviations
                         of clamped questions to known joints (two binary groups, a ternary one, and a number whose mean
                         and scale depend on them), for the tours that `choose_regeneration` finds
    auroc_fashion_mnist  how well `anomaly_score` of models/fashion tells test images of MNIST from Fashion-MNIST's
    query_speedup        rows per second of class and image from the top half of MNIST test images, to the standard
                         error .02, over the same by chains that never begin anew (R-hat 1.05, effective size 625)

DIR has the folders mnist and fashion, with the IDX files. Parts that are not named keep their former numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

import paracond as pc
from paracond.experiments.common.results import Metric, Outcome

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "campaigns"))  # scripts, as these are

import joints  # noqa: E402
from calibration import KINDS, Share, ask  # noqa: E402

SEEDS = 80


# --- a known joint ----------------------------------------------------------------------------------------------------


def coverage() -> list[Metric]:
    """Twenty questions to each of many joints; what is clamped differs from row to row."""
    shares = {kind: Share() for kind in KINDS}
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        joint = joints.mixed(generator, gap=1.5)
        joint.model.regeneration = pc.choose_regeneration(joint.model, joint.draw(2000, generator), seed=seed)
        ask(joint, 20, generator, shares, stop=pc.Tours(200), seed=seed)
    for kind, share in shares.items():
        print(f"coverage of {kind}: {share.value:.3f} +- {share.error:.3f} of {share.number}")
    every = sum(share.value * share.number for share in shares.values()) / sum(s.number for s in shares.values())
    about = ", ".join(f"{kind} {share.value:.3f}" for kind, share in shares.items())
    return [Metric("coverage", round(every, 4), "higher", goal=0.93, about=f"at most .97; {about}")]


# --- images -----------------------------------------------------------------------------------------------------------


def auroc(data: Path | None, rows: int = 10_000, few: int = 500) -> list[Metric]:
    model = pc.JointModel.load(ROOT / "models/fashion").to(_device())
    found = {}
    for by, count in (("evidence", rows), ("surprise", few)):
        images = {name: getattr(pc.datasets, name)("test", folder=_folder(data, name)) for name in ("fashion", "mnist")}
        scores = {
            name: pc.anomaly_score(
                model, {"x": test[:count].state["x"].to(model.device)}, by=by, draws=_draws(by)
            ).cpu()
            for name, test in images.items()
        }
        above = scores["mnist"][:, None] > scores["fashion"].sort().values
        found[by] = float(above.double().mean())
        print(f"AUROC by {by}, {count} images of each: {found[by]:.4f}", flush=True)
    about = f"by evidence, {rows:,} images each; by surprise, {few}: {found['surprise']:.4f}"
    return [Metric("auroc_fashion_mnist", round(found["evidence"], 4), "higher", about=about)]


def _draws(by: str) -> int:
    return 256 if by == "evidence" else 1


def speed(data: Path | None, rows: int, error: float = 0.02) -> list[Metric]:
    """Both after a first question, which compiles and records."""
    model = pc.JointModel.load(ROOT / "models/mnist").to(_device())
    images = pc.datasets.mnist("test", folder=_folder(data, "mnist")).state["x"].to(model.device)
    top = torch.zeros(1, 28, 28, dtype=torch.bool)
    top[:, :14] = True
    ways: dict[str, dict] = {
        "tours": {"stop": pc.Precise(error, most=100_000)},
        "chains": {"stop": pc.Converged(ess=0.25 / error**2, limit=16_000), "regeneration": 0},
    }
    rates = {}
    for name, options in ways.items():
        for part in (images[: min(rows, 64)], images[64 : 64 + rows]):
            began = time.perf_counter()
            answer = pc.query(model, {"x": pc.Observed(part, top)}, ["c", "x"], **options)
            rates[name] = len(part) / (time.perf_counter() - began)
        print(f"{name}: {rates[name]:.3g} rows per second, {answer.diagnostics!r}", flush=True)
    about = f"{rows} rows; {rates['tours']:.3g} and {rates['chains']:.3g} rows per second"
    return [Metric("query_speedup", round(rates["tours"] / rates["chains"], 3), "higher", goal=2.0, about=about)]


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _folder(data: Path | None, name: str) -> Path | None:
    return None if data is None else data / name


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["coverage", "auroc", "speed"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", type=int, default=1000, help="of the speed")
    parser.add_argument("--images", type=int, default=10_000, help="of each data set, for the AUROC")
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args(arguments)
    began, metrics = time.perf_counter(), []
    for part in options.parts:
        calls = {
            "coverage": coverage,
            "auroc": lambda: auroc(options.data, options.images, min(500, options.images)),
            "speed": lambda: speed(options.data, options.rows),
        }
        metrics += calls[part]()
    outcome = Outcome("tours", metrics, time.perf_counter() - began, {"parts": options.parts}, _device())
    record = outcome.record() | {"command": f"python benchmarks/tours.py {' '.join(options.parts)}"}
    path = options.out / "tours.json"
    former = json.loads(path.read_text()) if path.exists() else {"metrics": []}
    kept = [each for each in former["metrics"] if each["name"] not in {metric.name for metric in metrics}]
    record["metrics"] = kept + record["metrics"]
    options.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    outcome.show()


if __name__ == "__main__":
    main()
