"""Models of images, classes and latents (section 5.3): p(x, c, z), and the questions that the experiments ask.

Groups: x, an image; c, its class; z, flat binary latents; y, a map of binary latents with a quarter of the image's
resolution. The preset `paper` has x, c and z with the networks of eq:mnist. The preset `best` differs:

- Grey images have y instead of z. Flat codes learn local detail slowly, and reconstructions bound generation.
- x has an initializer given c, fitted where no pixel is missing, so that chains begin near the data.
- Chains may grow longer while the model learns.
- The class network reads the image alone, because z, drawn given the true class, would reveal it.
- Networks are residual.

`quality` measures reconstructions (codes of real images, decoded) and chains of several lengths that begin at data, at
the initializer and at random values. As in the paper, a generated image is the mean of p(x | c, z) at the last z,
thresholded at one half where pixels are binary. research/images.md has the trials.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

import paracond as pc
from paracond.data import State
from paracond.diagnostics import LatentUsage, latent_usage
from paracond.experiments.common.config import PresetConfig
from paracond.experiments.common.images import shown
from paracond.experiments.common.learning import adam, balanced, with_chosen_threads
from paracond.metrics.fid import FID
from paracond.metrics.scores import accuracy
from paracond.training.augment import Moved

TOP = torch.arange(28).view(1, 28, 1).expand(1, 28, 28) < 14
SHAPE = (1, 28, 28)


@dataclass(frozen=True)
class Design:
    """The choices of a preset: groups, networks and training."""

    latents: int = 64
    maps: int = 0
    """channels of y"""
    kind: str = "residual"
    width: int = 64
    width_class: int = 64
    blocks: int = 1
    class_reads_latents: bool = False
    chain_length: tuple[float, float] = (4.0, 4.0)
    """at the first and at the last update"""
    completion_steps: int = 1
    batch_size: int = 512
    learning_rate: float = 1e-3
    last_learning_rate: float = 1e-5
    average: float = 0.999
    updates: int = 60_000
    shifts: int = 0
    """half of the training images move by up to this many pixels each way"""
    jitter: int = 0
    """the images that train the class network move by up to this many pixels each way"""
    mirrored: bool = False
    """half of the images that train the class network are mirrored"""
    init: int = 64
    """directions of the initializer of x given c (0: chains begin at random values)"""
    labelled_share: float = 0.25
    """if labels are missing, repeat labelled examples until they make up this share"""


#: The paper's networks and training.
PAPER = Design(
    kind="plain",
    width=32,
    width_class=32,
    class_reads_latents=True,
    init=0,
    learning_rate=1e-4,
    last_learning_rate=1e-4,
    updates=80_000,
)


@dataclass(frozen=True)
class Config(PresetConfig):
    """Settings of the experiments on MNIST and Fashion-MNIST."""

    out: Path = Path("runs/images")
    data: Path | None = None
    """folder with the IDX files (default: $PARACOND_DATA, a system folder, or a download)"""
    generated: int = 60_000
    """number of images for the FID"""
    extras: bool = True
    """also train with few labels, and on MNIST with missing pixels"""


# --- model and learner ------------------------------------------------------------------------------------------


def variables_of(design: Design, binary: bool) -> dict[str, pc.Family]:
    """The groups of the model, without context."""
    groups: dict[str, pc.Family] = {"x": pc.Binary(SHAPE) if binary else pc.Real(SHAPE, scale="learned")}
    groups["c"] = pc.Categorical(10)
    if design.latents:
        groups["z"] = pc.Binary(design.latents)
    if design.maps:
        groups["y"] = pc.Binary((design.maps, 7, 7))
    return groups


def make_model(design: Design, binary: bool) -> pc.JointModel:
    groups, context = variables_of(design, binary), Moved.context(design.shifts)
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
        pc.initializers.fit(model, data, seed)  # otherwise it learns from completed examples
    learner = pc.Learner(
        model,
        balanced(data, design.labelled_share),
        chain_length=pc.schedules.linear(*design.chain_length, design.updates),
        completion=pc.CompletionOptions(steps=design.completion_steps),
        batch_size=design.batch_size,
        learning_rate=pc.schedules.cosine(design.learning_rate, design.last_learning_rate, design.updates),
        optimiser=adam,
        average=design.average,
        augment=Moved(design.shifts, False, engine.device, share=0.5, flag=True) if design.shifts else None,
        engine=engine,
        seed=seed,
    )
    return with_chosen_threads(learner)


# --- questions ----------------------------------------------------------------------------------------------------


def generate(model: pc.JointModel, classes: Tensor, sweeps: int = 100, seed: int = 0, **options) -> State:
    """Draw all groups given the class."""
    return pc.sample(model, {"c": classes}, sweeps=sweeps, seed=seed, **options)


def classify(model: pc.JointModel, images: Tensor, seed: int = 0) -> Tensor:
    """arg max_c sum_z p(c, z | x), by averaging p(c | x, z) along the chain."""
    parts = [
        pc.query(model, {"x": part}, ["c"], chains=1, stop=pc.Sweeps(20, 5), seed=seed) for part in images.split(10_000)
    ]
    return torch.cat([part.decisions["c"].cpu() for part in parts])


def from_top_half(model: pc.JointModel, images: Tensor, sweeps: int = 50, seed: int = 0) -> pc.Answer:
    """Class and image from the top half."""
    given = {"x": pc.Observed(images, TOP)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pc.NotMixedWarning)  # some of many images; the accuracy shows it
        return pc.query(model, given, ["c", "x"], chains=4, stop=pc.Sweeps(sweeps), seed=seed)


def quality(model: pc.JointModel, data: pc.Data, fid: FID, count: int, seed: int = 0) -> dict[str, float]:
    """FIDs of `count` images with the classes of the data, and the mean square error of reconstructions.

    Reconstructions bound the other FIDs. Chains that begin at data add drift, other chains add slow mixing.
    """
    rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:count]
    real = {name: value[rows].to(model.device) for name, value in data.state.items()}
    coded, classes = pc.sample(model, real, sweeps=1, seed=seed), real["c"]
    states = {
        "reconstruction": lambda: coded,
        "from_data_10": lambda: generate(model, classes, 10, seed, init=coded),
        "from_data_100": lambda: generate(model, classes, 100, seed, init=coded),
        "from_init_100": lambda: generate(model, classes, 100, seed),
        "from_init_400": lambda: generate(model, classes, 400, seed),
        "from_random_100": lambda: generate(model, classes, 100, seed, init="random"),
    }
    values = {f"fid_{name}": fid.score(shown(model, make())).value for name, make in states.items()}
    error = (model("x", coded).mean - real["x"]).square().mean()
    return values | {"mean_square_error": float(error.detach())}


def usage(model: pc.JointModel, data: pc.Data, rows: int = 2000) -> dict[str, LatentUsage]:
    part = pc.Data({name: value[:rows] for name, value in data.state.items()})
    return {name: latent_usage(model, part, name) for name in model.names if name not in ("x", "c")}


def bits(latents: Mapping[str, LatentUsage]) -> float:
    """Information of all latents about an image, in bits."""
    return sum(float(u.information.sum()) for u in latents.values()) / math.log(2)


def test_accuracy(model: pc.JointModel, test: pc.Data) -> float:
    return accuracy(classify(model, test.state["x"]), test.state["c"])


def small(design: Design) -> Design:
    """A tiny version for smoke tests."""
    tiny = replace(design, width=8, width_class=8, batch_size=64, updates=30)
    return replace(tiny, latents=min(design.latents, 16), maps=min(design.maps, 2))
