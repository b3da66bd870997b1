"""Images, classes and latents (section 5.3): one model of p(x, c, z), asked in every direction.

Groups: x, an image; c, its class; z, flat binary latents; y, binary latents that keep their place in the image (a map
of a quarter of its resolution). The `paper` preset has x, c and z with eq:mnist's networks. The `best` preset has

- y instead of z for grey images: detail is local, and flat codes are slow to learn it; reconstructions bound what can
  be generated;
- a start for x given c (`networks.starts`), fitted where nothing is missing: the more the latents say, the longer a
  chain from random ones is caught far from the data. Chains that grow longer while the model learns help too;
- a class network that reads the image alone (z, drawn with the true class in hand, would whisper it), also moved;
- residual networks.

What is measured of a model, always: reconstructions (z drawn for real images, decoded), the chain from data after 10
and 100 sweeps, from the start after 100 and 400, and from random values after 100. A generated image is, as in the
paper, the mean of p(x | c, z) at the last z (thresholded at one half where pixels are binary).
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

import paracond as pc
from paracond.chain import max_rows
from paracond.data import State, take
from paracond.diagnostics import LatentUsage, latent_usage
from paracond.experiments.common.results import PresetConfig
from paracond.metrics.fid import FID, accuracy
from paracond.serialization import replace_file
from paracond.training import checkpoints
from paracond.training.augment import Shifts
from paracond.training.trainer import Trainer

TOP = torch.arange(28).view(1, 28, 1).expand(1, 28, 28) < 14
SHAPE = (1, 28, 28)


@dataclass(frozen=True)
class Design:
    """What a preset fixes: the groups, their networks, and how they learn."""

    latents: int = 64
    maps: int = 0
    """channels of y, which is a quarter of the image in height and width"""
    kind: str = "residual"
    width: int = 64
    width_class: int = 64
    blocks: int = 1
    class_reads_latents: bool = False
    chain_length: tuple[float, float] = (4.0, 4.0)
    """at the start and at the end of training"""
    completion_steps: int = 1
    batch_size: int = 512
    learning_rate: float = 1e-3
    last_learning_rate: float = 1e-5
    average: float = 0.999
    updates: int = 60_000
    shifts: int = 0
    """pixels by which half of the training images are moved, each way"""
    jitter: int = 0
    """pixels by which the class network sees its images moved while it learns"""
    mirrored: bool = False
    """whether it also sees them mirrored"""
    init: int = 64
    """directions of the initializer of x given c (0: chains begin at random values)"""
    labelled_share: float = 0.25
    """where labels are missing, labelled examples are repeated until they make up this share"""


@dataclass(frozen=True)
class Config(PresetConfig):
    """What the recipes for images have in common."""

    out: Path = Path("runs/images")
    data: Path | None = None
    """folder with the IDX files (if not given: $PARACOND_DATA, the system's, a download)"""
    generated: int = 60_000
    """images for the FID"""
    extras: bool = True
    """also learn from few labels, and MNIST from images with missing pixels"""


class Unfinished(Exception):
    """The time box ended before the training did."""


# --- model and learner ------------------------------------------------------------------------------------------


def variables_of(design: Design, binary: bool) -> dict[str, pc.Family]:
    """The groups of the model, without its context."""
    groups: dict[str, pc.Family] = {"x": pc.Binary(SHAPE) if binary else pc.Real(SHAPE, scale="learned")}
    groups["c"] = pc.Categorical(10)
    if design.latents:
        groups["z"] = pc.Binary(design.latents)
    if design.maps:
        groups["y"] = pc.Binary((design.maps, 7, 7))
    return groups


def shifts_of(design: Design) -> Shifts | None:
    return Shifts("x", design.shifts) if design.shifts else None


def make_model(design: Design, binary: bool) -> pc.JointModel:
    groups, shifts = variables_of(design, binary), shifts_of(design)
    context = {} if shifts is None else shifts.context
    variables = groups | {name: group.family for name, group in context.items()}
    networks = {}
    for name in groups:
        options: dict = {"kind": design.kind, "blocks": design.blocks, "width": design.width}
        if name == "c":
            options["width"] = design.width_class
            options["reads"] = None if design.class_reads_latents else ["x", *context]
            options |= {"jitter": design.jitter, "mirrored": design.mirrored}
        elif name in ("z", "y"):  # given the image, the latents do not need each other
            options["reads"] = ["x", "c", *context]
        networks[name] = pc.networks.image_network(variables, name, **options)
    inits = {"x": pc.initializers.pca(variables, "x", ["c"], design.init)} if design.init else {}
    conditionals = {n: pc.Conditional(groups[n], network, inits.get(n)) for n, network in networks.items()}
    return pc.JointModel(conditionals, context=context)


def make_learner(design: Design, data: pc.Data, engine: pc.Engine, seed: int) -> pc.Learner:
    torch.manual_seed(seed)
    binary = bool(((data.state["x"] == 0) | (data.state["x"] == 1)).all())
    model = make_model(design, binary).to(engine.device)
    if len(data) > design.init > 0 and all(bool(mask.all()) for mask in data.mask.values()):
        pc.initializers.fit(model, data, seed)  # where something is missing, it learns from what is completed
    learner = pc.Learner(
        model,
        balanced(data, design.labelled_share),
        chain_length=pc.schedules.linear(*design.chain_length, design.updates),
        completion=pc.CompletionOptions(steps=design.completion_steps),
        batch_size=design.batch_size,
        learning_rate=pc.schedules.cosine(design.learning_rate, design.last_learning_rate, design.updates),
        optimiser=adam,
        average=design.average,
        augment=shifts_of(design),
        engine=engine,
        seed=seed,
    )
    with model.eval_mode():
        some = {name: value[:64] for name, value in learner.batch.state.items()}
        engine.settle(lambda: [model(name, some).mean for name in model.names])
    return learner


def adam(name: str, parameters, decay: float = 0.0) -> torch.optim.Optimizer:
    # A shorter memory of squared gradients: the states that a conditional learns from move while it learns.
    return torch.optim.AdamW(parameters, betas=(0.9, 0.99), weight_decay=decay, fused=True)


def balanced(data: pc.Data, share: float, name: str = "c") -> pc.Data:
    """The data, with examples of which `name` is known repeated until they make up `share` of it."""
    known, rows = data.mask[name].reshape(len(data), -1).all(1).nonzero().squeeze(1), len(data)
    if not 0 < len(known) < share * rows:
        return data
    wanted = round(share / (1 - share) * (rows - len(known)))
    extra = known.repeat(-(-wanted // len(known)))[: wanted - len(known)]
    return data[torch.cat([torch.arange(rows), extra])]


# --- training ---------------------------------------------------------------------------------------------------


@dataclass
class Milestones:
    """Measures a model while it learns, at growing times of training, with the training's clock stopped.

    What was found and the time are kept in the file `path`, for a training that goes on in another time box.
    """

    measure: Callable[[pc.JointModel], dict[str, float]]
    path: Path
    seconds: tuple[float, ...] = (15, 20, 25, 30, 45, 60, 90, 120, 180, 240, 300, 420, 600, 900, 1200, 1800)
    found: list[dict[str, float]] = field(default_factory=list)
    trained: float = 0.0

    def start(self, resume: bool) -> None:
        if resume and self.path.is_file():
            kept = json.loads(self.path.read_text())
            self.found, self.trained = kept["found"], kept["trained"]
        self.began = self.kept = time.perf_counter()

    def __call__(self, learner: Trainer) -> None:
        if learner.step_count % 20:
            return
        now = time.perf_counter()
        last = self.found[-1]["seconds"] if self.found else 0.0
        due = next((t for t in self.seconds if t > last), math.inf)
        if self.trained + now - self.began >= due:
            self.take(learner)
        elif now - self.kept > 30:  # as a crash would lose it
            self.pause(learner)

    def take(self, learner: Trainer) -> None:
        self.pause(learner)
        losses = {f"loss_{name}": float(loss) for name, loss in learner.losses.items()}
        numbers = {"seconds": self.trained, "updates": learner.step_count, **self.measure(learner.averaged)}
        self.found.append(numbers | losses)
        print("  " + ", ".join(f"{name} {value:.5g}" for name, value in self.found[-1].items()), flush=True)
        self.began = time.perf_counter()
        self._write()

    def pause(self, learner: Trainer) -> None:
        """Stop the clock, and keep what there is."""
        learner.engine.synchronise()
        now = time.perf_counter()
        self.trained, self.began = self.trained + now - self.began, now
        self._write()

    def _write(self) -> None:
        self.kept = time.perf_counter()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, json.dumps({"found": self.found, "trained": self.trained}).encode())


class Boxed(Protocol):
    """Settings of a training that comes in time boxes."""

    @property
    def resume(self) -> bool: ...

    @property
    def minutes(self) -> float | None: ...


def train(learner: Trainer, updates: int, folder: Path, config: Boxed, milestones: Milestones | None) -> None:
    """Learn, with checkpoints; raises `Unfinished` at the end of the time box."""

    learned = False

    def look(info) -> None:
        nonlocal learned
        learned = True
        if milestones is not None:
            milestones(learner)

    try:
        done = checkpoints.fit(learner, updates, folder, resume=config.resume, minutes=config.minutes, on_step=look)
    finally:
        learner.engine.synchronise()
        if milestones is not None and learned:  # a run that was refused, or done before, leaves them as they were
            milestones.pause(learner)
    if not done:
        raise Unfinished(f"stopped at update {learner.step_count} of {updates}; continue with --resume")


# --- asking -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def shown(model: pc.JointModel, state: State) -> Tensor:
    """The picture of a state: the mean of p(x | rest), thresholded where pixels are binary."""
    rows = max_rows(model, 16_384)
    means = [model("x", take(state, slice(i, i + rows))).mean for i in range(0, len(state["x"]), rows)]
    mean = torch.cat(means).float()
    return (mean > 0.5).float() if isinstance(model.variables["x"], pc.Binary) else mean.clamp(0, 1)


def generate(model: pc.JointModel, classes: Tensor, sweeps: int = 100, seed: int = 0, **options) -> State:
    """Draws of everything given the class."""
    return pc.sample(model, {"c": classes}, sweeps=sweeps, seed=seed, **options)


def classify(model: pc.JointModel, images: Tensor, seed: int = 0) -> Tensor:
    """Maximum marginal over the latents: arg max_c sum_z p(c, z | x), averaging p(c | x, z) along the chain."""
    parts = [
        pc.query(model, {"x": part}, ["c"], chains=1, stop=pc.Sweeps(20, 5), seed=seed) for part in images.split(10_000)
    ]
    return torch.cat([part.decisions["c"].cpu() for part in parts])


def from_top_half(model: pc.JointModel, images: Tensor, sweeps: int = 50, seed: int = 0) -> pc.Answer:
    """Class and image from the top half."""
    given = {"x": pc.Observed(images, TOP)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pc.NotMixedWarning)  # of many images some have not; the accuracy tells
        return pc.query(model, given, ["c", "x"], chains=4, stop=pc.Sweeps(sweeps), seed=seed)


def quality(model: pc.JointModel, data: pc.Data, fid: FID, count: int, seed: int = 0) -> dict[str, float]:
    """FIDs of `count` images with the classes of the data: how good reconstructions are bounds the rest; drift from the
    data, and mixing from elsewhere, add to it. And the mean square error of reconstructions."""
    rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:count]
    real = {name: value[rows].to(model.device) for name, value in data.state.items()}
    coded, classes = pc.sample(model, real, sweeps=1, seed=seed), real["c"]
    states = {
        "reconstruction": lambda: coded,
        "from_data_10": lambda: generate(model, classes, 10, seed, init=coded),
        "from_data_100": lambda: generate(model, classes, 100, seed, init=coded),
        "from_start_100": lambda: generate(model, classes, 100, seed),
        "from_start_400": lambda: generate(model, classes, 400, seed),
        "from_random_100": lambda: generate(model, classes, 100, seed, init="random"),
    }
    found = {f"fid_{name}": score(fid, shown(model, make())) for name, make in states.items()}
    error = (model("x", coded).mean - real["x"]).square().mean()
    return found | {"mean_square_error": float(error.detach())}


def score(fid: FID, images: Tensor) -> float:
    return fid.score(images).value


def usage(model: pc.JointModel, data: pc.Data, rows: int = 2000) -> dict[str, LatentUsage]:
    part = pc.Data({name: value[:rows] for name, value in data.state.items()})
    return {name: latent_usage(model, part, name) for name in model.names if name not in ("x", "c")}


def bits(found: Mapping[str, LatentUsage]) -> float:
    """What all latents say of an image, in bits."""
    return sum(float(u.information.sum()) for u in found.values()) / math.log(2)


def test_accuracy(model: pc.JointModel, test: pc.Data) -> float:
    return accuracy(classify(model, test.state["x"]), test.state["c"])


def small(design: Design) -> Design:
    """A design that learns nothing worth having, in seconds."""
    tiny = replace(design, width=8, width_class=8, batch_size=64, updates=30)
    return replace(tiny, latents=min(design.latents, 16), maps=min(design.maps, 2))
