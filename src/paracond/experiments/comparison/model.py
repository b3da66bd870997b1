"""Two groups given c (section 5.5): an encoder q(z | x, c) and a decoder p(x | z, c), learned by several methods.

- "vae": the ELBO with a fixed prior p(z) (`directed.VAE`);
- "symmetric": the two-player game with the same prior (`directed.Symmetric`);
- "ours": Algorithm 1, without a prior (`Learner`);
- "vamp", on request: a VAE whose prior is made of the codes of some training images (`priors.Vamp`).

All else is equal: networks and initial weights, optimiser, learning rate, batch, initializer, and the number of updates
of each conditional. The `Learner` updates one conditional at a time, so it makes twice as many steps, and with chain
length n it sees 2/n as many examples.

Codes are maps with places in the image: for Fashion-MNIST 147 bits (3 x 7 x 7, uniform prior), for faces 128 numbers
(2 x 8 x 8, standard normal prior). `whiten` lets the codes of the untrained encoder spread, and the encoder's learning
rate grows from zero, so that the decoder first learns to read them. Symmetric and ours complete examples with averaged
parameters. Pixels of faces have bounded means. research/comparison.md has the trials behind these choices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import paracond as pc
from paracond import datasets
from paracond.baselines.directed import VAE, Symmetric
from paracond.data import one_of
from paracond.datasets.faces import SIZE, load, of_split
from paracond.distributions import Bernoulli, Gaussian
from paracond.experiments.common.learning import adam
from paracond.training.augment import Moved
from paracond.training.trainer import Trainer

METHODS = ("vae", "symmetric", "ours")  # in the paper's table
MORE = ("vamp",)
#: Fields of a design that only some methods use.
OWN = {
    "vae": {"estimator"},
    "symmetric": {"completed_by"},
    "ours": {"completed_by", "chain_length"},
    "vamp": {"estimator", "pseudo"},
}
CLASS = "Male"  # the attribute to classify


@dataclass(frozen=True)
class Design:
    """Settings of all methods, and some of one method alone."""

    image: tuple[int, int, int]
    latent: pc.Family
    scale: str | float = "learned"
    """sigma of x: "learned", or a fixed number"""
    initial_scale: float = 0.03
    """first value of a learned sigma of x"""
    bounds: tuple[float, float] | None = None
    """bounds of the means of pixels (see `Real`)"""
    kind: str = "residual"
    """networks: "residual", or "plain" for the paper's (grey images)"""
    width: int = 64
    most: int = 128
    """channels at the lowest resolutions (faces)"""
    hidden: int = 128
    """units between the code and the image (faces)"""
    blocks: int = 1
    init: int = 64
    """directions of the initializer of x given c"""
    batch_size: int = 256
    learning_rate: float = 1e-3
    last_learning_rate: float = 1e-5
    average: float = 0.999
    updates: int = 20_000
    """updates of each conditional"""
    mirrored: bool = False
    """mirror half of the examples each time they are used"""
    estimator: str | None = None
    """gradient estimator of the VAE (see `estimators`)"""
    spread: float = 1.0
    """first standard deviation over real images of the means of real codes, or of the logits of bits"""
    encoder_warm_up: float = 0.0
    """share of the updates in which the encoder's learning rate grows from zero"""
    chain_length: float = 2.0
    """mean chain length of ours"""
    completed_by: str = "average"
    """whose parameters complete examples in ours and Symmetric: "model" or "average" """
    pseudo: int = 500
    """number of training images whose codes are the prior of vamp"""


FASHION = Design((1, 28, 28), pc.Binary((3, 7, 7)), scale=0.12, width=96, blocks=2, spread=4.0, encoder_warm_up=0.05)
FACES = Design(
    (3, SIZE, SIZE),
    pc.Real((2, 8, 8), scale="element", initial_scale=0.1, ceiling=1.0),
    scale=0.35,
    bounds=(0.0, 1.0),
    most=256,
    hidden=256,
    batch_size=128,
    updates=12_000,
    mirrored=True,
    encoder_warm_up=0.25,
    chain_length=4.0,
)
DESIGNS = {"fashion": FASHION, "faces": FACES}


@dataclass(frozen=True)
class Pictures:
    """A data set: images x, their context c, and the classes to recognise."""

    train: pc.Data
    test: pc.Data
    context: pc.Family
    class_of: Callable[[torch.Tensor], torch.Tensor]
    """maps c to classes `[rows]`"""
    classes: int


def fashion(folder: Path | None) -> Pictures:
    train, test = (datasets.fashion(split, folder=folder) for split in ("train", "test"))
    return Pictures(train, test, pc.Categorical(10), lambda c: c, 10)


def faces(folder: Path | None) -> Pictures:
    found = load(folder)
    train, test = (_attributed(of_split(found, split, "labels")) for split in ("train", "test"))
    names = found.attribute_names
    index = names.index(CLASS) if CLASS in names else 0
    return Pictures(train, test, pc.Binary(len(names)), lambda c: c[:, index].long(), 2)


LOADERS = {"fashion": fashion, "faces": faces}


def _attributed(data: pc.Data) -> pc.Data:
    """Images and attributes of the faces that have attributes."""
    known = data.mask["c"].all(1)
    return pc.Data({name: data.state[name][known] for name in ("x", "c")})


def make_model(design: Design, context: pc.Family) -> pc.JointModel:
    groups: dict[str, pc.Family] = {
        "x": pc.Real(design.image, scale=design.scale, initial_scale=design.initial_scale, bounds=design.bounds),
        "z": design.latent,
    }
    variables = {**groups, "c": context}
    grey = design.image[0] == 1
    make = pc.networks.image_network if grey else pc.networks.scene_network
    options: dict = {"kind": design.kind, "width": design.width, "blocks": design.blocks}
    options |= {} if grey else {"most": design.most, "hidden": design.hidden}
    init = pc.initializers.pca(variables, "x", ["c"], design.init)
    nets = {name: make(variables, name, **options) for name in groups}
    conditionals = {n: pc.Conditional(f, nets[n], init if n == "x" else None) for n, f in groups.items()}
    return pc.JointModel(conditionals, context={"c": pc.Context(context, None)})


@torch.no_grad()
def whiten(model: pc.JointModel, data: pc.Data, spread: float = 1.0, rows: int = 2000, floor: float = 1e-3) -> None:
    """Change the encoder's last layers so that the means mu of codes of real images, or the logits of bits, have mean
    zero and covariance spread^2: mu -> A (mu - m), A = spread (S + floor |S|)^(-1/2), for mean m and covariance S (in
    maps, of the channels over all places)."""
    channels = model.variables["z"].event_shape[0]
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:rows]
    q = model.eval_copy()("z", {name: value[chosen].to(model.device) for name, value in data.state.items()})
    assert isinstance(q, (Gaussian, Bernoulli))
    mu = (q.mu if isinstance(q, Gaussian) else q.logits).double()
    mu = mu.reshape(len(chosen), channels, -1).transpose(1, 2).flatten(0, 1)
    values, vectors = torch.linalg.eigh(torch.cov(mu.T).view(channels, channels))
    whitening = spread * vectors @ torch.diag((values.clamp(min=0) + floor * values[-1]).rsqrt()) @ vectors.T
    network = model.conditional("z").network
    assert isinstance(network, (pc.networks.ImageEncoder, pc.networks.Pyramid))
    first, *more = network.heads
    bias = first.bias[:channels]
    bias.copy_(whitening @ (bias.double() - mu.mean(0)))
    for weight in [first.weight[:channels], *(layer.weight for layer in more)]:
        weight.copy_((whitening @ weight.double().reshape(channels, -1)).view_as(weight))


def make_learner(design: Design, pictures: Pictures, method: str, engine: pc.Engine, seed: int) -> Trainer:
    one_of("a method", method, (*METHODS, *MORE))
    torch.manual_seed(seed)
    model = make_model(design, pictures.context).to(engine.device)
    pc.initializers.fit(model, pictures.train, seed=0)
    whiten(model, pictures.train, design.spread)
    options: dict = {
        "batch_size": design.batch_size,
        "learning_rate": rates_of(design, method),
        "optimiser": adam,
        "average": design.average,
        "augment": Moved(0, True, engine.device) if design.mirrored else None,
        "engine": engine,
        "seed": seed,
    }
    if method in ("vae", "vamp"):
        prior = prior_of(design, pictures, method, seed)
        return VAE(model, pictures.train, estimator=design.estimator, prior=prior, **options)
    if method == "symmetric":
        return Symmetric(model, pictures.train, completed_by=design.completed_by, **options)
    completion = pc.CompletionOptions(by=design.completed_by)
    return pc.Learner(model, pictures.train, chain_length=design.chain_length, completion=completion, **options)


def prior_of(design: Design, pictures: Pictures, method: str, seed: int) -> pc.Data | None:
    """The examples whose codes are the prior; None for a fixed prior."""
    if method != "vamp":
        return None
    order = torch.randperm(len(pictures.train), generator=torch.Generator().manual_seed(seed))
    return pictures.train[order[-design.pseudo :]]  # the first ones are measured and shown


def rates_of(design: Design, method: str) -> dict[str, pc.schedules.Schedule]:
    """The learning rate of each conditional."""
    steps = steps_of(design, method)
    rate = pc.schedules.cosine(design.learning_rate, design.last_learning_rate, steps)
    warm = design.encoder_warm_up * steps

    def encoder(step: int) -> float:
        return rate(step) * (min(1.0, step / warm) ** 2 if warm else 1.0)

    return {"x": rate, "z": encoder}


def steps_of(design: Design, method: str) -> int:
    """Steps of the learner for `design.updates` updates of each conditional."""
    return design.updates * steps_per_update(method)


def steps_per_update(method: str) -> int:
    return 2 if method == "ours" else 1


def small(design: Design) -> Design:
    """A tiny version for smoke tests."""
    latent = replace(design.latent, shape=(2, *design.latent.event_shape[1:]))
    return replace(design, latent=latent, width=8, most=8, init=8, batch_size=16, updates=10, pseudo=12)
