"""Trials of designs for the comparison (section 5.5): one method, one seed, the measures of the experiment.

Use it to choose a design before the experiment runs with all seeds. Each trial is the preset of its data set with
some changes. `bits` and `codes` are shapes; they stand for a Binary and a Real z:

    python research/compare_trial.py --dataset fashion --out runs/trial --trials flat vae '{"bits": 256}' maps ours '{}'

The script prints one line of JSON per trial, appends it to OUT/trials.jsonl and writes pictures next to it. It skips a
trial that would end after `--seconds`. Several of these commands may share a device: each takes a trial that no other
has claimed (by creating OUT/NAME). It adds three measures to those of the experiment:

    sigma        of the pixels
    code_mean    mean size of the means of codes of real images (0 under the prior)
    code_top     largest eigenvalue of the covariance of these codes (1 under the prior; large where codes diverge)
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import torch
import tyro

import paracond as pc
from paracond.data import take
from paracond.experiments.common.pictures import grid
from paracond.experiments.common.report import png
from paracond.experiments.common.results import origin
from paracond.experiments.comparison import experiment as compare
from paracond.experiments.comparison import measures
from paracond.experiments.comparison.evaluation import evaluate, examples
from paracond.experiments.comparison.model import FACES, Design
from paracond.experiments.comparison.setup import Setup, load_setup
from paracond.experiments.comparison.table import Run


@dataclass(frozen=True)
class Config:
    """Designs of the comparison, each learned by one method."""

    dataset: Literal["fashion", "faces"]
    trials: tuple[str, ...]
    """names, methods and changes in JSON, in turn"""
    out: Path = Path("runs/trial")
    data: Path | None = None
    seed: int = 0
    seconds: float = 500.0
    """no trial begins that would end after so many, by the longest so far"""
    guess: float = 60.0
    """how long the first will take"""
    compile: bool = False
    """fuse the networks with torch.compile (on CUDA only)"""
    quick: bool = False
    """small networks, few images: to see whether all of this runs"""


def main(config: Config) -> None:
    began, longest = time.perf_counter(), config.guess
    chosen = {"only": config.dataset, "quick": config.quick, "compile": config.compile}
    setup = load_setup(compare.Config(out=config.out, data=config.data, extras=False, **chosen), config.dataset)
    preset = setup.design
    for name, method, changes in trials_of(config.trials):
        since = time.perf_counter()
        if since - began + longest > config.seconds:
            print(f"no time for {name}", flush=True)
            continue
        setup.design = changed(preset, changes)  # before the trial is taken: it may be refused
        if not begun(config.out / name):
            taken = "was begun before, or by another command"
            print(f"{name} {taken}: remove {config.out / name} to try again", flush=True)
            continue
        found = tried(setup, Run(config.dataset, method, config.seed), config.out / name)
        keep(config, {"name": name, "method": method, "changes": changes} | found | origin(setup.device))
        longest = max(longest, time.perf_counter() - since)


def keep(config: Config, found: dict) -> None:
    line = {"dataset": config.dataset, "seed": config.seed} | found
    text = json.dumps({key: round(v, 4) if isinstance(v, float) else v for key, v in line.items()})
    print(text, flush=True)
    with (config.out / "trials.jsonl").open("a") as file:
        file.write(text + "\n")


def trials_of(trials: tuple[str, ...]) -> Iterator[tuple[str, str, dict]]:
    for name, method, text in zip(trials[::3], trials[1::3], trials[2::3], strict=True):
        yield name, method, json.loads(text)


def begun(folder: Path) -> bool:
    """Take this trial, unless it was taken."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def changed(design: Design, changes: dict) -> Design:
    changes = {key: tuple(value) if isinstance(value, list) else value for key, value in changes.items()}
    if "bits" in changes:
        changes["latent"] = pc.Binary(changes.pop("bits"))
    if "codes" in changes:
        changes["latent"] = replace(FACES.latent, shape=changes.pop("codes"))
    unknown = set(changes) - {field.name for field in fields(design)}
    if unknown:
        raise SystemExit(f"a design has no {', '.join(sorted(unknown))}")
    return replace(design, **changes)


def tried(setup: Setup, run: Run, folder: Path) -> dict:
    model, milestones = compare.trained(setup, run, folder, setup.config)
    shutil.rmtree(folder / "checkpoint")
    numbers, pictures = evaluate(setup, run, model)
    rows = {how: images[:16] for how, images in pictures.items()}
    (folder / "images.png").write_bytes(png(grid(list(rows.values()), names=list(rows), inches=0.6)))
    real = measures.coded(model, examples(setup, 10_000, run.seed), run.seed)
    with torch.no_grad():
        sigma = float(model("x", take(real, slice(2))).log_scale.exp().mean())
    codes = measures.statistics(real["z"])
    found = {"code_mean": codes.mean.abs().mean(), "code_top": torch.linalg.eigvalsh(codes.covariance)[-1]}
    numbers |= {name: float(value) for name, value in found.items()}
    return numbers | {"seconds_train": milestones.trained, "sigma": sigma}


if __name__ == "__main__":
    main(tyro.cli(Config))
