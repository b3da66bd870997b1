"""Trials of designs for the model of faces: a short training each, measured on held-out training faces.

Use it to choose a design before the experiment runs in full. It does not use test faces. Each design is the preset
`best` with some changes:

    python research/faces_trial.py --out runs/trial --designs base '{}' without '{"init_rows": []}'

The script prints one line of JSON per design, appends it to OUT/trials.jsonl and writes pictures next to it. It skips a
trial that would end after `--seconds`. `--keep` saves the models in OUT/NAME.

    attributes, f1      from whole images
    psnr_K, ratio_K     hidden squares after K sweeps: dB inside, and F1 inside as a share of that of whole images
    switch_NAME         share of pairs that change as asked
    sigma, noise_bits   noise of images, and of y given images
    fid_*               of 5,000 images: reconstructions, 100 sweeps from there, 30 and 100 sweeps from the init
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro

import paracond as pc
from paracond.experiments.common.report import png
from paracond.experiments.common.results import commit, hardware
from paracond.experiments.faces import baselines, measures, tasks
from paracond.experiments.faces import report as pictures
from paracond.experiments.faces.directions import attribute_accuracy, whole_f1
from paracond.experiments.faces.model import BEST, Design, finished, make_learner, small
from paracond.experiments.faces.runner import Config as FacesConfig
from paracond.experiments.faces.runner import FacesRunner, open_runner
from paracond.metrics.scores import accuracy

SEVERAL = 5000  # images for a FID


@dataclass(frozen=True)
class Config:
    """Designs of the model of faces, each learned for a short while."""

    designs: tuple[str, ...] = ("base", "{}")
    """names and changes in JSON, in turn"""
    out: Path = Path("runs/trial")
    data: Path | None = None
    updates: int = 24_000
    seconds: float = 500.0
    """no trial begins that would end after so many"""
    keep: bool = False
    quick: bool = False
    """small networks, few images: to see whether all of this runs"""


def main(config: Config) -> None:
    began, longest = time.perf_counter(), 0.0
    faces = FacesConfig(out=config.out, data=config.data, quick=config.quick)
    runner = open_runner(faces, BEST)
    held_out = replace(runner, test=runner.held_out)
    judge = baselines.judge(runner.train, runner.device, judge_training(runner))
    rows = runner.held_out.mask["c"].all(1)
    found = judge.decide(runner.held_out.state["x"][rows], balanced=False).cpu().float()
    print(f"the judge is right in {accuracy(found, runner.held_out.state['c'][rows].cpu()):.4f}", flush=True)
    for name, changes in pairs(config.designs):
        since = time.perf_counter()
        if since - began + longest > config.seconds:
            print(f"no time for {name}")
            continue
        result = {"name": name, "changes": changes, "commit": commit(), "hardware": hardware(runner.device)}
        model = learned(runner, changed(runner, changes, config.updates), result)
        result |= read(held_out, model, config.out / name) | switched(held_out, model, judge) | drawn(runner, model)
        longest = max(longest, time.perf_counter() - since)
        line = json.dumps({key: round(v, 4) if isinstance(v, float) else v for key, v in result.items()})
        print(line, flush=True)
        with (config.out / "trials.jsonl").open("a") as file:
            file.write(line + "\n")
        if config.keep:
            model.save(config.out / name / "model", dtype=torch.bfloat16, max_bytes=15 * 2**20)


def pairs(designs: tuple[str, ...]) -> Iterator[tuple[str, dict]]:
    for name, text in zip(designs[::2], designs[1::2], strict=True):
        changes = json.loads(text)
        yield name, {key: tuple(value) if isinstance(value, list) else value for key, value in changes.items()}


def changed(runner: FacesRunner, changes: dict, updates: int) -> Design:
    design = small(BEST) if runner.config.quick else replace(BEST, updates=updates)
    return replace(design, **changes)


def judge_training(runner: FacesRunner) -> baselines.Training:
    return baselines.Training(updates=runner.count(6000, 5), batch_size=runner.count(128, 16), engine=runner.engine())


def learned(runner: FacesRunner, design: Design, result: dict) -> pc.JointModel:
    began = time.perf_counter()
    model = make_learner(design, runner.train, runner.engine(), 0).fit(design.updates)
    result |= {"updates": design.updates, "seconds": time.perf_counter() - began}
    return finished(design, model, runner.train, 0)


def read(held_out: FacesRunner, model: pc.JointModel, folder: Path) -> dict:
    """Whole images, and images with a hidden square."""
    folder.mkdir(parents=True, exist_ok=True)
    faces = held_out.segmented
    images, truth = faces.state["x"], tasks.masks(model, faces.state["s"])
    hidden, whole = tasks.squares(len(images)), tasks.segmentation_of(model, images)
    found = {"attributes": attribute_accuracy(held_out, model), "f1": whole_f1(held_out, model)}
    for sweeps in (1, 3):
        part = tasks.segment(model, images, ~hidden, sweeps=sweeps, chains=held_out.count(16, 2))
        found[f"psnr_{sweeps}"] = measures.psnr_inside(part.image, images, hidden)
        found[f"ratio_{sweeps}"] = measures.f1_ratio(part.masks, whole, truth, hidden)
    some = slice(0, 12)
    shown = tasks.Reading(part.masks[some], part.image[some], part.attributes[some])
    figure = pictures.incomplete(images[some], hidden[some], truth[some], shown)
    (folder / "hidden.png").write_bytes(png(figure))
    state = tasks.generate(model, held_out.attributes(held_out.count(36, 12), seed=1), held_out.count(100))
    figure = pictures.samples(tasks.shown(model, state), tasks.shown_masks(model, state))
    (folder / "generated.png").write_bytes(png(figure))
    return found | codes(model, images)


@torch.no_grad()
def codes(model: pc.JointModel, images: torch.Tensor) -> dict:
    """How noisy images are given the rest, and bits of y given the rest."""
    state = pc.sample(model, {"x": images.to(model.device)}, sweeps=3)
    asked = model.eval_copy()
    x, y = (asked(name, {key: state[key] for key in model.reads(name)}) for name in ("x", "y"))
    p = y.mean.double().clamp(1e-6, 1 - 1e-6)
    entropy = -(p * p.log2() + (1 - p) * (1 - p).log2()).flatten(1).sum(1).mean()
    return {"sigma": float(x.log_scale.exp().mean()), "noise_bits": float(entropy)}


def switched(held_out: FacesRunner, model: pc.JointModel, judge: baselines.Judge) -> dict:
    attributes, found = held_out.attributes(held_out.count(400, 4), seed=2), {}
    for name in ("Eyeglasses", "Smiling"):
        index = held_out.names.index(name)
        pair = tasks.switched(model, attributes, index, held_out.count(100, 1))
        images = [tasks.shown(model, state) for state in pair]
        found[f"switch_{name}"] = baselines.switch_success(judge, images[0], images[1], index)
    return found


def drawn(runner: FacesRunner, model: pc.JointModel) -> dict:
    """Distances from the training images."""
    if runner.fid is None:
        return {}
    coded = pc.sample(model, {"x": runner.train.state["x"][:SEVERAL].to(runner.device)}, sweeps=3, chunk=1000)
    init = {name: value for name, value in coded.items() if name != "c"}
    moved = pc.sample(model, {"c": coded["c"]}, sweeps=100, init=init, chunk=1000)
    found = {"fid_reconstruction": tasks.shown(model, coded), "fid_data_100": tasks.shown(model, moved)}
    for sweeps in (30, 100):
        found[f"fid_init_{sweeps}"] = tasks.portraits(model, runner.attributes(SEVERAL), sweeps)
    return {name: runner.fid.score(images).value for name, images in found.items()}


if __name__ == "__main__":
    main(tyro.cli(Config))
