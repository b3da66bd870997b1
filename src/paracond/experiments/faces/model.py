"""Models of faces (section 5.4, appendix C): images, segmentations, attributes and latents in one joint model.

Groups: x, an image of 3 x 64 x 64; s, its segmentation (18 masks as in the paper, or one of 19 labels per pixel); c, 40
attributes; y, binary latents; z, real latents. Some faces have segmentations, most have attributes, few have both. The
model learns from all of them and completes missing groups (step I).

The preset `paper` has y in {0, 1}^256, z in R^16 and the networks of appendix C; each group reads all others. In the
preset `best`

- y is a map of 16 x 16 places, since flat codes learn local detail slowly;
- groups other than x read x and little else, so that attributes need one pass and completion few steps;
- half of all examples are mirrored, half move by a pixel or two; a context group tells which examples moved;
- c, and x given c, have initializers (`initializers.pca`);
- more than half of the rows that begin at data are slow (`slow_rows`), which keeps long chains near the data;
- some rows begin with a part of their image from the initializer (`init_rows`);
- networks are residual and work on patches (`networks.pyramid`).

research/faces.md has the trials behind these choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

import paracond as pc
from paracond.data import InputError
from paracond.datasets.faces import LABELS, MIRRORED, SIZE
from paracond.experiments.common.learning import adam, balanced, with_chosen_threads
from paracond.experiments.faces.held_squares import AroundASquare
from paracond.experiments.faces.init_rows import InitRows
from paracond.experiments.faces.rows import FacesForm
from paracond.experiments.faces.slow_rows import SlowRows
from paracond.training.augment import Moved

ATTRIBUTES = 40
SQUARE = AroundASquare(SIZE, SIZE // 6, SIZE // 2)  # hidden squares in init rows
#: Shares of the batch that begin with a hidden square from the initializer, and from which update on. After x, y and z
#: have settled, more of these rows cannot make codes noisy.
INIT_ROWS = ((0.1, 12_000), (0.2, 27_000))
#: The groups that each group reads in the best preset.
SPARSE = {"x": ("s", "c", "y", "z"), "s": ("x", "c"), "c": ("x",), "y": ("x", "s", "c"), "z": ("x", "c")}


@dataclass(frozen=True)
class Design:
    """The choices of a preset: groups, networks and training."""

    segmentation: str = "labels"
    """"labels" or "masks" """
    y: tuple[int, ...] = (8, 16, 16)
    z: int = 16
    scale: str = "learned"
    """standard deviation of x (see `Real`)"""
    kind: str = "residual"
    widths: Mapping[str, int] = field(default_factory=lambda: {"x": 64, "s": 32, "c": 40, "y": 32, "z": 16})
    most: Mapping[str, int] = field(default_factory=lambda: {"x": 224, "s": 160, "c": 128, "y": 128, "z": 64})
    """channels at the lowest resolutions"""
    blocks: int = 1
    hidden: int = 128
    sparse: bool = True
    """groups read only those in SPARSE"""
    init: int = 128
    """directions of the initializers of x and c (0: chains begin at random values)"""
    redundancy: float = 32.0
    """how many known pixels count as one (see `initializers.pca`)"""
    finer: tuple[int, int, float] | None = (600, 32, 4.0)
    """directions, band and redundancy of the initializer of x for questions, which replaces the first one after
    training"""
    alpha: Mapping[str, float] = field(default_factory=lambda: {"x": 0.26, "s": 0.18, "c": 0.26, "y": 0.22, "z": 0.08})
    """relative frequency of each group in training"""
    chain_length: tuple[float, float] = (2.5, 5.0)
    """at the first update, and when groups settle"""
    slow_rows: tuple[float, float] | None = (0.64, 150.0)
    """share of slow rows among those that begin at data, and how many times longer they stay (see `slow_rows`)"""
    init_rows: tuple[tuple[float, int], ...] = INIT_ROWS
    """shares of the batch that begin at the initializer, and from which update on (see `init_rows`)"""
    completion_steps: int = 2
    warm: tuple[str, ...] = ()
    """groups whose completion continues from the values drawn at the last use of the example"""
    parallel: bool = True
    """completion runs at the same time as training, on a stream of its own"""
    batch_size: int = 160
    learning_rate: float = 1e-3
    last_learning_rate: float = 1e-5
    settled: Mapping[str, int] = field(default_factory=lambda: {**dict.fromkeys("xyz", 27_000), "s": 45_000})
    """updates after which groups stop learning: long training helps attributes and segmentations, not images"""
    average: float = 0.9995
    decay: Mapping[str, float] = field(default_factory=lambda: {"c": 0.1, "s": 0.05})
    """decoupled weight decay, against overfitting of groups with few labels"""
    updates: int = 60_000
    segmented_share: float = 0.3
    """repeat faces with segmentations until they make up this share"""
    mirrored: bool = True
    """mirror half of the examples each time they are used"""
    shifts: int = 2
    """half of the examples move by up to this many pixels each way"""
    jitter: int = 2
    """images that train the network of c move by up to this many pixels (and are mirrored, with `mirrored`)"""


PAPER = Design(
    segmentation="masks",
    y=(256,),
    scale="element",
    kind="plain",
    widths=dict.fromkeys("xscyz", 24),
    hidden=512,
    sparse=False,
    init=0,
    finer=None,
    alpha=dict.fromkeys("xscyz", 1.0),
    chain_length=(16.0, 16.0),
    slow_rows=None,
    init_rows=(),
    completion_steps=10,
    parallel=False,
    batch_size=64,
    learning_rate=1e-4,
    last_learning_rate=1e-4,
    settled={},
    average=0.999,
    decay={},
    updates=470_000,
    segmented_share=0.0,
    mirrored=False,
    shifts=0,
    jitter=0,
)
BEST = Design()


# --- model and learner ------------------------------------------------------------------------------------------


def variables_of(design: Design) -> dict[str, pc.Family]:
    masks = pc.Binary((len(LABELS), SIZE, SIZE))
    labels = pc.Categorical(1 + len(LABELS), (SIZE, SIZE))
    return {
        "x": pc.Real((3, SIZE, SIZE), scale=design.scale, ceiling=0.3 if design.scale == "element" else None),
        "s": masks if design.segmentation == "masks" else labels,
        "c": pc.Binary(ATTRIBUTES),
        "y": pc.Binary(design.y),
        "z": pc.Real(design.z, scale="element", ceiling=1.0),
    }


def make_model(design: Design) -> pc.JointModel:
    groups, context = variables_of(design), Moved.context(design.shifts)
    variables = {**groups, **{name: group.family for name, group in context.items()}}
    conditionals = {}
    for name, family in groups.items():
        options: dict = {"kind": design.kind, "width": design.widths[name], "hidden": design.hidden}
        if design.kind == "residual":
            options |= {"blocks": design.blocks, "most": design.most[name]}
        if design.sparse:
            options["reads"] = SPARSE[name] if name == "c" else (*SPARSE[name], *context)
        if name == "c" and design.jitter:
            options |= {"jitter": design.jitter, "mirrored": design.mirrored}
        network = pc.networks.scene_network(variables, name, **options)
        conditionals[name] = pc.Conditional(family, network, make_init(design, variables, name))
    return pc.JointModel(conditionals, dict(design.alpha), context)


def make_init(design: Design, variables: Mapping[str, pc.Family], name: str) -> pc.initializers.PCA | None:
    """The initializer of c, or of x given c; other groups have none."""
    if not design.init or name not in ("x", "c"):
        return None
    reads, redundancy = (["c"], design.redundancy) if name == "x" else ([], 1.0)
    return pc.initializers.pca(variables, name, reads, design.init, learned=False, redundancy=redundancy)


def finished(design: Design, model: pc.JointModel, data: pc.Data, seed: int) -> pc.JointModel:
    """A copy of the model with the finer initializer of x."""
    if design.finer is None or not design.init:
        return model
    directions, band, redundancy = design.finer
    options: dict = {"learned": False, "band": band, "redundancy": redundancy}
    finer = pc.initializers.with_init(
        model, "x", pc.initializers.pca(model.variables, "x", ["c"], directions, **options)
    )
    pc.initializers.fit(finer, data, seed, ["x"])
    return finer


def make_learner(design: Design, data: pc.Data, engine: pc.Engine, seed: int) -> pc.Learner:
    if design.warm and (design.mirrored or design.shifts):
        raise InputError("warm needs mirrored=False and shifts=0: values drawn for a face do not fit it once it moves")
    torch.manual_seed(seed)
    model = make_model(design).to(engine.device)
    pc.initializers.fit(model, data, seed)
    known = [name for name in ("s", "c") if bool(data.mask[name].all())]
    learner = pc.Learner(
        model,
        balanced(data, design.segmented_share, "s"),
        chain_length=pc.schedules.linear(*design.chain_length, settled_after(design)),
        form=form_of(design),
        completion=pc.CompletionOptions(
            steps=design.completion_steps,
            warm=tuple(name for name in design.warm if name not in known),
            parallel=design.parallel,
        ),
        batch_size=design.batch_size,
        learning_rate={name: rate_of(design, name) for name in model.names},
        optimiser=lambda name, parameters: adam(name, parameters, design.decay.get(name, 0.0)),
        average=design.average,
        augment=augmentation(design, engine.device),
        engine=engine,
        seed=seed,
    )
    return with_chosen_threads(learner)


def rate_of(design: Design, name: str) -> pc.schedules.Schedule:
    """A cosine schedule, to zero for groups that settle before the end."""
    steps = min(design.settled.get(name, design.updates), design.updates)
    last = 0.0 if name in design.settled else design.last_learning_rate
    return pc.schedules.cosine(design.learning_rate, last, steps)


def settled_after(design: Design) -> int:
    """The update at which the first groups have settled."""
    return min([design.updates, *design.settled.values()])


def form_of(design: Design) -> FacesForm:
    """The running batch: slow rows, and rows that begin with a square of their image from the initializer."""
    slow = None if design.slow_rows is None else SlowRows(*design.slow_rows)
    hidden = tuple(InitRows(share, "x", SQUARE, after=after) for share, after in design.init_rows)
    return FacesForm(slow=slow, init_rows=hidden)


def augmentation(design: Design, device: torch.device | str) -> Moved | None:
    if not design.mirrored and not design.shifts:
        return None
    return Moved(design.shifts, design.mirrored, device, share=0.5, flag=design.shifts > 0, exchange=MIRRORED)


def small(design: Design) -> Design:
    """A tiny version for smoke tests."""
    tiny, finer = dict.fromkeys("xscyz", 8), None if design.finer is None else (4, 8, 16.0)
    soon = tuple((share, min(after, 2)) for share, after in design.init_rows)
    lengths: dict = {"updates": 10, "init_rows": soon, "completion_steps": 1}
    sizes: dict = {"widths": tiny, "most": tiny, "hidden": 16, "batch_size": 8, "init": min(design.init, 4)}
    return replace(design, finer=finer, **lengths, **sizes)
