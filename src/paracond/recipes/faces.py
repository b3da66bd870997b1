"""The experiments of section 5.4 on one model of faces: train once, on all that is known, then ask everything.

Training comes in time boxes (`--minutes`, `--resume`); what is measured needs it to be done. All measures are of
held-out test faces, but for the FID, which compares generated images with the training images.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

import paracond as pc
from paracond.datasets.faces import load, of_split
from paracond.metrics import FID, Extractor, accuracy
from paracond.recipes import faces_baselines as baselines
from paracond.recipes import faces_report as pictures
from paracond.recipes import faces_tasks as tasks
from paracond.recipes import images_report, timing, use
from paracond.recipes.faces_model import BEST, PAPER, Design, make_learner, small
from paracond.recipes.images import Milestones, train
from paracond.recipes.notebook import Notebook
from paracond.results import BoxedConfig, Outcome, choose_device
from paracond.state import InputError

PRESETS = {"best": BEST, "paper": PAPER}
PAPER_REPORTS = {"fid": 46.45}
GOALS = {
    "fid": 46.0,
    "f1_gap": -0.02,
    "f1_hidden_ratio": 0.85,
    "attribute_accuracy": 0.89,
    "inpainting_psnr_gain": 5.0,
    "inpainting_over_telea": 0.0,
    "demixing_psnr_gain": 5.0,
    "switch_success": 0.8,
    "update_ms": 6.0,
    "training_minutes": 60.0,
    "minutes_30k_images": 3.0,
    "union_gain_f1": 0.0,
    "union_gain_accuracy": 0.0,
    "union_gain_fid": 0.0,
}
TRIAL = 5000  # images for FIDs while training
LOOKS = (60, 180, 420, 900, 1800, 3600)  # seconds of training after which it is measured
SWITCHED = ("Eyeglasses", "Male", "Smiling")


@dataclass(frozen=True)
class Config(BoxedConfig):
    """Faces: images, segmentations, attributes and latents in one model (section 5.4)."""

    out: Path = Path("runs/faces")
    data: Path | None = None
    """folder with faces64.npz or CelebAMask-HQ (if not given: $PARACOND_DATA)"""
    preset: Literal["best", "paper"] = "best"
    model: Path | None = None
    """take this saved model instead of training one"""
    updates: int | None = None
    """instead of the preset's number"""
    compile: bool = False
    """fuse the networks with torch.compile (on CUDA only): takes minutes once"""
    generated: int = 20_000
    """images for the FID"""
    stopwatch: bool = True
    """also measure how long updates and generation take (on CUDA only)"""
    union: int = 20_000
    """updates of two more trainings, on all faces and on complete ones only (0: none)"""


@dataclass(kw_only=True)
class Session(Notebook):
    """One run: the data, and what has been found so far."""

    config: Config
    train: pc.Data
    test: pc.Data
    names: tuple[str, ...]
    fid: FID | None

    def most(self, count: int, quick: int = 4) -> int:
        """How many of something, which are few in a quick run."""
        return quick if self.config.quick else count

    @property
    def segmented(self) -> pc.Data:
        """Test faces with segmentations."""
        return self.test[self.test.mask["s"].flatten(1).all(1).nonzero().squeeze(1)[: self.most(400, 8)]]

    def attributes(self, count: int, seed: int = 0) -> Tensor:
        """Attributes of training faces, drawn at random."""
        known = self.train.state["c"][self.train.mask["c"].all(1)]
        rows = torch.randint(len(known), (count,), generator=torch.Generator().manual_seed(seed))
        return known[rows].to(self.device)


def main(config: Config) -> Outcome:
    design = chosen(config)
    session = open_session(config, design)
    if config.model is None:
        model, milestones = trained(session, design)
        keep(model, session)
        session.details["milestones"] = milestones.found
    else:
        model = saved(config, session.device)
    parts: dict[str, Callable[[], None]] = {part.__name__: partial(part, session, model) for part in DIRECTIONS}
    if session.device == "cuda" and not config.quick and config.stopwatch:
        parts["stopwatch"] = partial(stopwatch, session, design, model)
    if config.union:
        parts["union"] = partial(union, session, design)
    return session.go_through(parts)


def keep(model: pc.JointModel, session: Session) -> None:
    """The model, in files of at most 8 MiB, and what its attributes are called (see `use`)."""
    folder = session.config.out / "model"
    model.save(folder, dtype=torch.bfloat16, at_most=8 * 2**20)
    (folder / use.NAMES).write_text(json.dumps({"c": list(session.names)}))


def chosen(config: Config) -> Design:
    design = small(PRESETS[config.preset]) if config.quick else PRESETS[config.preset]
    return replace(design, updates=config.updates) if config.updates else design


def open_session(config: Config, design: Design) -> Session:
    device, began = choose_device(config.device), time.perf_counter()
    found = load(config.data)
    train_set, test_set = (of_split(found, split, design.segmentation) for split in ("train", "test"))
    if config.quick:
        train_set, test_set = few(train_set), few(test_set)
    session = Session(
        name="faces",
        title="Faces: five groups, three kinds of supervision, every direction (section 5.4)",
        about=f"p(x, s, c, y, z) of {len(train_set):,} faces, preset {config.preset}: {design}",
        settings=config,
        device=device,
        paper=PAPER_REPORTS,
        goals=GOALS,
        details={"design": asdict(design), "milestones": []},
        began=began,
        config=config,
        train=train_set,
        test=test_set,
        names=found.attribute_names,
        fid=None if config.quick else FID(Extractor.load(tf32=True), device, batch=1000 if device == "cuda" else 100),
    )
    if session.fid is not None:
        floors(session, session.fid)
        session.details["fid_protocol"] = session.fid.extractor.protocol
    return session


def few(data: pc.Data) -> pc.Data:
    """Some with segmentations, some without."""
    known = data.mask["s"].flatten(1).all(1)
    return data[torch.cat([known.nonzero()[:20, 0], (~known).nonzero()[:40, 0]])]


def floors(session: Session, fid: FID) -> None:
    """What real faces have: two halves of all of them; and test faces against training faces, with which it stays."""
    real = torch.cat([session.train.state["x"], session.test.state["x"]])
    order = torch.randperm(len(real), generator=torch.Generator().manual_seed(0))
    first, second = order.chunk(2)
    cache = session.config.out / "cache"
    halves = fid.real(real[first], cache=cache).score(real[second])
    session.add("fid_floor", halves.value, "lower", f"{len(second)} real faces against {len(first)} others")
    floor = fid.real(session.train.state["x"], cache=cache).floor(session.test.state["x"])
    session.add(
        "fid_floor_test", floor.value, "lower", f"{floor.generated_count} test faces against all training faces"
    )


def saved(config: Config, device: str) -> pc.JointModel:
    assert config.model is not None
    model = pc.JointModel.load(config.model).to(device)
    missing = [name for name in ("x", "s", "c") if name not in model.names]
    if missing or model.variables["x"].event_shape != (3, 64, 64):
        raise InputError(f"{config.model} is no model of faces: it has {', '.join(model.names)}")
    return model


# --- training ---------------------------------------------------------------------------------------------------


def trained(session: Session, design: Design) -> tuple[pc.JointModel, Milestones]:
    """The main model, measured while it learns."""
    path = session.config.out / "milestones.json"
    milestones = Milestones(lambda model: progress(session, model), path, seconds=LOOKS)
    milestones.start(session.config.resume)
    learner = make_learner(design, session.train, session.engine(), session.config.seed)
    train(learner, design.updates, session.config.out / "checkpoint", session, milestones)
    if not milestones.found or milestones.found[-1]["updates"] < learner.step_count:
        milestones.take(learner)
    session.add("training_minutes", milestones.trained / 60, "lower", f"{learner.step_count:,} updates")
    names = [name for name in milestones.found[-1] if name not in ("seconds", "updates")]
    curve = images_report.curve(milestones.found, PAPER_REPORTS, names)
    session.show("Learning", f"Test faces, and the FID of {TRIAL} images, along the training.", curve)
    return learner.averaged, milestones


def progress(session: Session, model: pc.JointModel) -> dict[str, float]:
    found = {"attribute_accuracy": attribute_accuracy(session, model), "f1": whole_f1(session, model)}
    if session.fid is not None:
        found["fid"] = session.fid.score(tasks.portraits(model, session.attributes(TRIAL))).value
    return found


def attribute_accuracy(session: Session, model: pc.JointModel) -> float:
    rows = session.test.mask["c"].all(1)
    return accuracy(tasks.attributes_of(model, session.test.state["x"][rows]), session.test.state["c"][rows])


def whole_f1(session: Session, model: pc.JointModel) -> float:
    faces = session.segmented
    found = tasks.segmentation_of(model, faces.state["x"], sweeps=session.most(20, 2))
    return tasks.mean_f1(found, tasks.masks(model, faces.state["s"]))[0]


# --- every direction --------------------------------------------------------------------------------------------


def generation(session: Session, model: pc.JointModel) -> None:
    if session.fid is not None:
        count = session.config.generated
        score = session.fid.score(tasks.portraits(model, session.attributes(count)))
        about = f"{count} generated, attributes of training faces, 100 sweeps, against {score.real_count}"
        session.add("fid", score.value, "lower", about)
        reconstructions(session, model, session.fid)
    state = tasks.generate(model, session.attributes(session.most(36, 12), seed=1), session.most(100))
    figure = pictures.samples(tasks.shown(model, state), tasks.shown_masks(model, state))
    session.show("Generated", "Images and segmentations, given attributes of training faces; 100 sweeps.", figure)


def reconstructions(session: Session, model: pc.JointModel, fid: FID) -> None:
    """How good images of codes of real faces are bounds the rest; the chain that begins there adds its drift."""
    real = session.train.state["x"][:TRIAL].to(session.device)
    coded = pc.sample(model, {"x": real}, sweeps=3, chunk=1000)
    session.add("fid_reconstruction", fid.score(tasks.shown(model, coded)).value, "lower", f"{TRIAL} images")
    begin = {name: value for name, value in coded.items() if name != "c"}
    moved = pc.sample(model, {"c": coded["c"]}, sweeps=100, start=begin, chunk=1000)
    session.add("fid_from_data", fid.score(tasks.shown(model, moved)).value, "lower", f"{TRIAL} images, 100 sweeps on")


def reading(session: Session, model: pc.JointModel) -> None:
    """Segmentation, attributes and hidden pixels, of whole images and of images with a hidden square."""
    session.add("attribute_accuracy", attribute_accuracy(session, model), "higher", "whole test images, 40 attributes")
    faces = session.segmented
    images, truth = faces.state["x"], tasks.masks(model, faces.state["s"])
    hidden = tasks.squares(len(images))
    sweeps, chains = session.most(40, 2), session.most(8, 2)
    whole = tasks.segmentation_of(model, images, sweeps=session.most(20, 2))
    partial = tasks.segment(model, images, ~hidden, sweeps=sweeps, chains=chains)
    value, absent = tasks.mean_f1(whole, truth)
    about = f"{len(images)} test faces, maximum marginals" + (f"; none has {', '.join(absent)}" if absent else "")
    session.add("f1", value, "higher", about)
    ratio = tasks.f1_ratio(partial.masks, whole, truth, hidden)
    session.add("f1_hidden_ratio", ratio, "higher", "inside hidden 24 x 24 squares, as a share of that of whole images")
    known = faces.mask["c"].all(1)
    found = accuracy(partial.attributes[known], faces.state["c"][known])
    session.add("attribute_accuracy_hidden", found, "higher", "with the square hidden")
    inpainting(session, images, hidden, partial.image)
    some = slice(0, 12)
    shown = tasks.Reading(partial.masks[some], partial.image[some], partial.attributes[some])
    figure = pictures.incomplete(images[some], hidden[some], truth[some], shown)
    session.show("From incomplete images", "Maximum and mean marginals of one chain (fig:celeba_segming).", figure)


def inpainting(session: Session, images: Tensor, hidden: Tensor, found: Tensor) -> None:
    ours = tasks.psnr_inside(found, images, hidden)
    mean = tasks.psnr_inside(baselines.mean_filled(images, hidden, session.train.state["x"]), images, hidden)
    session.add("inpainting_psnr", ours, "higher", f"dB inside hidden 24 x 24 squares of {len(images)} test faces")
    session.add("inpainting_psnr_gain", ours - mean, "higher", f"dB ahead of the training mean ({mean:.2f} dB)")
    telea = baselines.telea_filled(images, hidden)
    if telea is None:
        print(f"  Telea's in-painting {baselines.TELEA}")
        return
    value = tasks.psnr_inside(telea, images, hidden)
    session.add("inpainting_psnr_telea", value, "higher", "OpenCV's Telea")
    session.add("inpainting_over_telea", ours - value, "higher", "dB ahead of it")


def segmentation_control(session: Session, model: pc.JointModel) -> None:
    """A network like the model's own for s, that learned nothing else."""
    training = baselines.Training(
        updates=session.most(12_000, 20), batch_size=session.most(128, 16), engine=session.engine()
    )
    control = baselines.control(model, session.train, training)
    value = whole_f1(session, control)
    ours = next(m.value for m in session.metrics if m.name == "f1")
    session.add(
        "f1_control", value, "higher", f"a network of that size for segmentation alone, {training.updates} updates"
    )
    session.add("f1_gap", ours - value, "higher", "ours ahead of it")


def demixing(session: Session, model: pc.JointModel) -> None:
    """Pairs of test faces, each pixel from one of them."""
    faces = session.segmented
    half = len(faces) // 2
    first, second = faces[:half], faces[half : 2 * half]
    mixed, m = tasks.mix(first.state["x"], second.state["x"])
    told, blind = baselines.neighbours_demixed(mixed, m), baselines.smoothed_demixed(mixed)
    pair = first.state["x"], second.state["x"]
    filled, smoothed = (tasks.demixing_psnr(each, *pair, m) for each in (told, blind))
    segmentations = first.state["s"], second.state["s"]
    ask = partial(tasks.demix, model, mixed, sweeps=session.most(100, 2), chains=session.most(4, 1))
    known = ask(segmentations)
    value = tasks.demixing_psnr(known, *pair, m)
    session.add("demixing_psnr", value, "higher", f"dB where the other was seen, {half} pairs, known segmentations")
    about = f"dB ahead of the mean of visible neighbours ({filled:.2f} dB), which is told the mask"
    session.add("demixing_psnr_gain", value - filled, "higher", about)
    about = f"dB ahead of the mean of all neighbours ({smoothed:.2f} dB), which is not told it either"
    session.add("demixing_psnr_gain_blind", value - smoothed, "higher", about)
    unknown = ask()
    value = tasks.demixing_psnr(unknown, *pair, m, ordered=False)
    session.add("demixing_psnr_unknown", value, "higher", "dB, unknown segmentations")
    value = tasks.demixing_psnr(ask(segmentations, mask=m), *pair, m)
    session.add("demixing_psnr_gain_told", value - filled, "higher", "dB ahead, where ours is told the mask too")
    some = slice(0, 10)
    rows = [
        (name, tasks.Demixed(each.first[some], each.second[some], each.mask[some]))
        for name, each in (("known s", known), ("unknown s", unknown))
    ]
    figure = pictures.demixed(first.state["x"][some], second.state["x"][some], mixed[some], rows)
    session.show("Demixing", "Two copies of the model and a mask in one chain (fig:celeba_demix).", figure)


def switching(session: Session, model: pc.JointModel) -> None:
    """Pairs that differ in one attribute, judged by a classifier that learned from real images alone."""
    training = baselines.Training(
        updates=session.most(12_000, 20), batch_size=session.most(128, 16), engine=session.engine()
    )
    judge = baselines.judge(session.train, session.device, training)
    rows = session.test.mask["c"].all(1)
    decided = judge.decide(session.test.state["x"][rows]).cpu()
    attributes = session.attributes(session.most(1000, 8), seed=2)
    for name in [n for n in SWITCHED if n in session.names]:
        index = session.names.index(name)
        pair = tasks.switched(model, attributes, index, session.most(100, 2))
        images = [tasks.shown(model, state) for state in pair]
        value = baselines.switch_success(judge, images[0], images[1], index)
        right = baselines.balanced_accuracy(decided[:, index], session.test.state["c"][rows][:, index])
        key = "switch_success" if name == SWITCHED[0] else f"switch_success_{name.lower()}"
        session.add(
            key, value, "higher", f"{name} off and on, {len(attributes)} pairs; the judge is right in {right:.1%}"
        )
        some = slice(0, 12)
        seen = [{k: v[some] for k, v in state.items()} for state in pair]
        shown = [(image[some].cpu(), tasks.shown_masks(model, s)) for image, s in zip(images, seen, strict=True)]
        session.show(
            f"{name} off and on", "All else equal (fig:celeba_cond).", pictures.switch(shown[0], shown[1], name)
        )


def other_factors(session: Session, model: pc.JointModel) -> None:
    """Super-resolution and colourisation, which are not in the paper."""
    truth = session.segmented.state["x"][: session.most(200, 4)]
    small, grey = tasks.shrunk(truth), tasks.greyed(truth)
    options = {"sweeps": session.most(50, 2), "chains": session.most(4, 1)}
    large, colours = tasks.super_resolved(model, small, **options), tasks.colourised(model, grey, **options)
    everywhere = torch.ones(len(truth), 64, 64, dtype=torch.bool)
    bicubic = torch.nn.functional.interpolate(small, scale_factor=4, mode="bicubic").clamp(0, 1)
    gain = tasks.psnr_inside(large, truth, everywhere) - tasks.psnr_inside(bicubic, truth, everywhere)
    session.add("super_resolution_psnr_gain", gain, "higher", "dB ahead of bicubic, 16 x 16 to 64 x 64")
    gain = tasks.psnr_inside(colours, truth, everywhere) - tasks.psnr_inside(grey.expand_as(truth), truth, everywhere)
    session.add("colourisation_psnr_gain", gain, "higher", "dB ahead of grey")
    some = slice(0, 12)
    figure = pictures.restored(small[some], large[some], grey[some], colours[some], truth[some])
    session.show("Super-resolution, colourisation", "One deterministic factor each, by `compose`.", figure)


DIRECTIONS = (generation, reading, segmentation_control, demixing, switching, other_factors)


# --- time -------------------------------------------------------------------------------------------------------


def stopwatch(session: Session, design: Design, model: pc.JointModel) -> None:
    """An update at batch 64 with the paper's chain and completion, and what the two ideas of appendix D save."""
    asked = replace(design, batch_size=64, chain_length=(16.0, 16.0), completion_steps=10, beside=True, warm=False)

    def maker(d: Design) -> Callable[[pc.Engine], pc.Learner]:
        return lambda engine: make_learner(d, session.train, engine, 0)

    def milliseconds(d: Design) -> float:
        return timing.fast_update(maker(d), session.config.compile)[0]

    times = timing.update_times(maker(asked), session.config.compile)
    session.add("update_ms", times.fast, "lower", "batch 64, expected chain length 16, 10 completion steps")
    session.add("update_ms_eager", times.eager, "lower", "the same in plain eager float32, same run")
    session.add("update_ms_floor", times.floor, "lower", "arithmetic and bandwidth, counted and at measured rates")
    before = milliseconds(replace(asked, beside=False))
    session.add("update_ms_before", before, "lower", "completion before training instead of beside it")
    warm = milliseconds(replace(asked, completion_steps=2))
    session.add("update_ms_warm", warm, "lower", "2 completion steps instead of 10: those go on from cached latents")
    own = milliseconds(design)
    session.add("update_ms_own", own, "lower", f"batch {design.batch_size}, as this model was trained")
    began = time.perf_counter()
    tasks.portraits(model, session.attributes(30_000)).cpu()
    session.add(
        "minutes_30k_images", (time.perf_counter() - began) / 60, "lower", "100 sweeps, images back on the host"
    )


# --- the union of all data against complete examples only -----------------------------------------------------------


def union(session: Session, design: Design) -> None:
    """The same design and updates, from all faces and from those of which everything is known."""
    rows = session.train.mask["s"].flatten(1).all(1) & session.train.mask["c"].all(1)
    sets = {"union": session.train, "complete": session.train[rows.nonzero().squeeze(1)]}
    updates = session.most(session.config.union, 20)
    found = {}
    for name, data in sets.items():
        learner = make_learner(replace(design, updates=updates), data, session.engine(), session.config.seed)
        train(learner, updates, session.config.out / f"checkpoint_{name}", session, None)
        found[name] = progress(session, learner.averaged)
    about = f"all {len(session.train)} faces against the {int(rows.sum())} complete ones, {updates} updates each"
    for name, value in found["union"].items():
        gain = value - found["complete"][name] if name != "fid" else found["complete"][name] - value
        short = "accuracy" if name == "attribute_accuracy" else name
        session.add(f"union_gain_{short}", gain, "higher", f"{about}: {value:.4g} and {found['complete'][name]:.4g}")
