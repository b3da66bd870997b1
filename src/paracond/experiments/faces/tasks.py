"""Questions to one model of faces (section 5.4): images x, segmentations s, attributes c, and latents of any kind.

Each question is a run of the same chain with something clamped:

    generation        c            -> x, s          the last state after some sweeps, shown as the mean of p(x | rest)
    attribute switch  c with one attribute changed, from a state that had it otherwise (see `guidance`)
    reading           x_o          -> s, c, x_h     x_o is all of the image or its visible part; one chain for all three
    demixing          x            -> x', x'', m    two copies of the model; x = x' (1 - m) + x'' m, p(m) uniform
    super-resolution  means of blocks of x -> x     } a deterministic factor on which the Gaussian p(x | rest) is
    colourisation     grey values of x     -> x     } conditioned exactly

Discrete values are decided by maximum marginals, real ones by means. s is 18 binary masks, or a map of 19 labels with 0
for the background. Faces are asked in parts of `MAX_ROWS` rows; answers are on the CPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

import paracond as pc
from paracond.composition import Pinned, Rule, Summing
from paracond.data import State
from paracond.datasets.faces import LABELS
from paracond.experiments.common import images
from paracond.guidance import SWEEPS, WEIGHT

MAX_ROWS = {"cuda": 4096, "cpu": 128}  # rows of chains; a row of masks alone has 0.3 MB
PAIR = ("first", "second")
HOLD = 10  # sweeps with the init mask clamped
GREY = (0.299, 0.587, 0.114)
#: Rows and columns for the middle of a hidden square: squares of 24 x 24 pixels there are 93% face, at least 82% each,
#: averaged over all segmented faces.
DOWN, RIGHT = (28, 46), (27, 37)


# --- generation -------------------------------------------------------------------------------------------------


def generate(model: pc.JointModel, attributes: Tensor, sweeps: int = 100, seed: int = 0) -> State:
    """Draw all groups given attributes `[n, 40]`, on the model's device."""
    return pc.sample(model, {"c": attributes}, sweeps=sweeps, seed=seed, chunk=MAX_ROWS[model.device.type])


def shown(model: pc.JointModel, state: State) -> Tensor:
    """The images of a state, a part of the rows at a time."""
    return images.shown(model, state, MAX_ROWS[model.device.type])


@torch.no_grad()
def shown_masks(model: pc.JointModel, state: State) -> Tensor:
    """The segmentations of a state: decisions of p(s | rest) as 18 masks, without the noise of draws."""
    law = model.eval_copy()("s", {k: state[k] for k in model.reads("s")})
    return masks(model, model.variables["s"].decide(law.mean))


def portraits(model: pc.JointModel, attributes: Tensor, sweeps: int = 100, seed: int = 0) -> Tensor:
    """Images `[n, 3, 64, 64]` of any number of faces, without the other groups. Part k has the seed `seed + k`."""
    parts = attributes.split(MAX_ROWS[model.device.type])
    return torch.cat([shown(model, generate(model, part, sweeps, seed + k)) for k, part in enumerate(parts)])


def switched(
    model: pc.JointModel, attributes: Tensor, index: int, sweeps: int = 100, seed: int = 0, guidance: float = WEIGHT
) -> tuple[State, State]:
    """Edit one draw both ways: without the attribute `index`, and with it."""
    without = attributes.clone()
    without[:, index] = 0
    drawn, where = generate(model, without, sweeps, seed), torch.arange(without.shape[1]) == index
    options: dict = {"sweeps": min(sweeps, SWEEPS), "seed": seed, "chunk": MAX_ROWS[model.device.type]}

    def edited(value: float) -> State:
        change = pc.Observed(torch.full_like(without, value), where)
        return pc.edited(model, drawn, "c", change, weight=guidance, **options)

    return edited(0.0), edited(1.0)


# --- segmentations ----------------------------------------------------------------------------------------------


def masks(model: pc.JointModel, s: Tensor) -> Tensor:
    """Segmentations, as the model stores them, as 18 masks, Bool `[n, 18, 64, 64]`."""
    if isinstance(model.variables["s"], pc.Categorical):
        return s.unsqueeze(1) == torch.arange(1, len(LABELS) + 1, device=s.device).view(-1, 1, 1)
    return s > 0.5


# --- reading an image, whole or in part -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reading:
    """Answers about images: 18 masks (Bool), the image with its hidden parts filled by mean marginals, and attributes
    `[n, 40]`."""

    masks: Tensor
    image: Tensor
    attributes: Tensor


def segment(
    model: pc.JointModel,
    images: Tensor,
    seen: Tensor | None = None,
    *,
    sweeps: int = 6,
    chains: int = 16,
    seed: int = 0,
) -> Reading:
    """Segmentation, hidden pixels and attributes from one chain. `seen` is Bool `[64, 64]` or `[n, 64, 64]`.

    Uses many chains with few sweeps and no warm-up: with hidden pixels chains move slowly, and begin near the answer.
    """
    known = {} if seen is None else {"x": seen.expand(len(images), *images.shape[-2:]).unsqueeze(1).expand_as(images)}
    found = _ask(model, {"x": images}, ["s", "x", "c"], known, sweeps=sweeps, warmup=0, chains=chains, seed=seed)
    return Reading(masks(model, found["s"]), found["x"].clamp(0, 1), found["c"])


def attributes_of(model: pc.JointModel, images: Tensor, *, sweeps: int = 20, chains: int = 4, seed: int = 0) -> Tensor:
    """Attributes `[n, 40]` from whole images."""
    return _ask(model, {"x": images}, ["c"], sweeps=sweeps, chains=chains, seed=seed)["c"]


def segmentation_of(
    model: pc.JointModel, images: Tensor, *, sweeps: int = 20, chains: int = 4, seed: int = 0
) -> Tensor:
    """18 masks, Bool, from whole images."""
    return masks(model, _ask(model, {"x": images}, ["s"], sweeps=sweeps, chains=chains, seed=seed)["s"])


def squares(count: int, size: int = 24, seed: int = 0) -> Tensor:
    """Hidden squares over the face, Bool `[count, 64, 64]`, true inside, with middles uniform over DOWN and RIGHT."""
    generator = torch.Generator().manual_seed(seed)
    inside = []
    for low, high in (DOWN, RIGHT):
        first = torch.randint(low, high + 1, (count, 1), generator=generator) - size // 2
        place = torch.arange(64)
        inside.append((place >= first) & (place < first + size))
    return inside[0].unsqueeze(2) & inside[1].unsqueeze(1)


# --- demixing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Demixed:
    """Both images `[n, 3, 64, 64]` by mean marginals, and the probability `[n, 64, 64]` that the second is visible."""

    first: Tensor
    second: Tensor
    mask: Tensor


def mix(first: Tensor, second: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Mix pairs of images pixel by pixel with equal chances: the mixed images, and m, Bool `[n, 1, 64, 64]`, true where
    the second is visible."""
    chance = torch.rand(len(first), 1, *first.shape[-2:], generator=torch.Generator().manual_seed(seed))
    m = (chance < 0.5).to(first.device)
    return torch.where(m, second, first), m


def demixing(model: pc.JointModel) -> pc.JointModel:
    """The joint model of two copies of the model and the mask m, given the mixed image x."""

    def mask(law, others):
        first, second = (law(f"{each}.x").scores(others["x"]).sum(1, keepdim=True) for each in PAIR)
        return pc.Binary().distribution(second - first)

    def image(name: str, value: int) -> Rule:
        return lambda law, others: Pinned(law(name), others["x"], others["m"] == value)

    return pc.compose(
        dict.fromkeys(PAIR, _image_first(model)),
        groups={"m": pc.Binary((1, *model.variables["x"].event_shape[1:]))},
        given={"x": model.variables["x"]},
        rules={"m": mask, "first.x": image("first.x", 0), "second.x": image("second.x", 1)},
    )


def demix(
    model: pc.JointModel,
    mixed: Tensor,
    segmentations: tuple[Tensor, Tensor] | None = None,
    *,
    mask: Tensor | None = None,
    init_mask: Tensor | None = None,
    sweeps: int = 100,
    chains: int = 4,
    seed: int = 0,
) -> Demixed:
    """Both images from their mixture.

    segmentations: of both, as the model stores them (the paper's figure).
    mask: m `[n, 1, 64, 64]`, if known (not in the paper).
    init_mask: probabilities `[n, 1, 64, 64]` of m. Chains begin with masks drawn from them, clamped for `HOLD` sweeps.

    With the mixture alone, each chain has its own order of the two images: chains are swapped to agree with the first
    chain of their image.
    """
    given = {"x": mixed} if mask is None else {"x": mixed, "m": mask.float()}
    if segmentations is not None:
        given |= {f"{each}.s": value for each, value in zip(PAIR, segmentations, strict=True)}
    tiled, joint = {name: value.repeat_interleave(chains, 0) for name, value in given.items()}, demixing(model)
    init: State = {}
    if mask is not None:
        init = _held(model, joint, tiled, seed)
    elif init_mask is not None:
        m = _drawn(init_mask.repeat_interleave(chains, 0), seed)
        init = {"m": m, **_held(model, joint, {**tiled, "m": m}, seed)}
    found = marginals(joint, tiled, ["first.x", "second.x", "m"], sweeps=sweeps, seed=seed, init=init)
    each = [found[name].unflatten(0, (-1, chains)) for name in ("first.x", "second.x", "m")]
    if len(given) == 1:
        each = _in_order(*each)
    first, second, m = (value.mean(1) for value in each)
    return Demixed(first.clamp(0, 1), second.clamp(0, 1), m.squeeze(1))


def _drawn(chance: Tensor, seed: int) -> Tensor:
    """Draw masks with these probabilities."""
    return torch.bernoulli(chance.cpu(), generator=torch.Generator().manual_seed(seed)).to(chance.device)


def _held(model: pc.JointModel, joint: pc.JointModel, given: dict[str, Tensor], seed: int) -> State:
    """States of all groups that are not given, after `HOLD` sweeps with the mask clamped. Each image begins at the init
    of the model alone, given the pixels that the mask shows."""
    chunk = MAX_ROWS[joint.device.type]
    init: State = {}
    for value, each in enumerate(PAIR):
        seen = (given["m"] == value).expand_as(given["x"])
        own = {name.removeprefix(f"{each}."): found for name, found in given.items() if name.startswith(f"{each}.")}
        alone = pc.sample(model, {"x": pc.Observed(given["x"], seen), **own}, sweeps=0, seed=seed + value, chunk=chunk)
        init |= {f"{each}.{name}": alone[name] for name in model.names if name not in own}
    state = pc.sample(joint, given, sweeps=HOLD, seed=seed, init=init, chunk=chunk)
    return {name: value for name, value in state.items() if name not in given}


def _in_order(first: Tensor, second: Tensor, m: Tensor) -> list[Tensor]:
    """Swap the images of chains `[n, chains, ...]` where that brings them nearer to the first chain."""

    def gap(a: Tensor, b: Tensor) -> Tensor:
        return (a - first[:, :1]).square().sum((2, 3, 4)) + (b - second[:, :1]).square().sum((2, 3, 4))

    turn = (gap(second, first) < gap(first, second)).view(*first.shape[:2], 1, 1, 1)
    return [torch.where(turn, second, first), torch.where(turn, first, second), torch.where(turn, 1 - m, m)]


def _image_first(model: pc.JointModel) -> pc.JointModel:
    """The model with x as its first group: after a new mask, both images are redrawn first (see `compose`)."""
    names = ["x", *(name for name in model.names if name != "x")]
    return pc.JointModel({n: model.conditional(n) for n in names}, model.alpha, model.context)


# --- two deterministic factors ----------------------------------------------------------------------------------


def super_resolved(model: pc.JointModel, small: Tensor, **options) -> Tensor:
    """Images `[n, 3, 64, 64]` whose blocks have the means `small`, `[n, 3, 16, 16]` for example."""
    size = model.variables["x"].event_shape[-1] // small.shape[-1]

    def rule(law, others):
        weight = others["small"].new_full((), 1 / size**2)
        return Summing(law("face.x"), others["small"], weight, size)

    return _under(model, {"small": small}, rule, enlarged(small, size), **options)


def colourised(model: pc.JointModel, grey: Tensor, **options) -> Tensor:
    """Images `[n, 3, 64, 64]` whose grey values are `grey`, `[n, 1, 64, 64]`."""
    weights = torch.tensor(GREY, dtype=model.dtype, device=model.device).view(3, 1, 1)

    def rule(law, others):
        return Summing(law("face.x"), others["grey"], weights, channels=True)

    return _under(model, {"grey": grey}, rule, **options)


def shrunk(images: Tensor, size: int = 4) -> Tensor:
    """The means of blocks, the input of `super_resolved`."""
    return torch.nn.functional.avg_pool2d(images, size)


def enlarged(small: Tensor, size: int = 4) -> Tensor:
    """Bicubic enlargements."""
    return torch.nn.functional.interpolate(small, scale_factor=size, mode="bicubic").clamp(0, 1)


def greyed(images: Tensor) -> Tensor:
    """Grey values `[n, 1, 64, 64]`, the input of `colourised`."""
    return (images * images.new_tensor(GREY).view(3, 1, 1)).sum(1, keepdim=True)


def _under(
    model: pc.JointModel,
    given: dict[str, Tensor],
    rule: Rule,
    first: Tensor | None = None,
    *,
    sweeps: int = 5,
    chains: int = 8,
    seed: int = 0,
) -> Tensor:
    """The mean marginal of x under a deterministic `rule`, by many short chains, since chains drift. They begin at the
    images `first`, or at the model's initializer."""
    families = {name: pc.Real(tuple(value.shape[1:])) for name, value in given.items()}
    joint = pc.compose({"face": model}, given=families, rules={"face.x": rule})
    options: dict = {"sweeps": sweeps, "chains": chains, "seed": seed}
    found = _ask(joint, given, ["face.x"], init={} if first is None else {"face.x": first}, **options)["face.x"]
    return found.clamp(0, 1)


# --- queries -----------------------------------------------------------------------------------------------------


def marginals(model: pc.JointModel, given: Mapping[str, Tensor], want: list[str], **options) -> dict[str, Tensor]:
    """Means of the wanted groups (probabilities of binary ones), on the CPU."""
    return _ask(model, given, want, means=True, **options)


def _ask(
    model: pc.JointModel,
    given: Mapping[str, Tensor],
    want: list[str],
    known: Mapping[str, Tensor] | None = None,
    *,
    sweeps: int = 20,
    warmup: int | None = None,
    seed: int = 0,
    chains: int = 1,
    init: Mapping[str, Tensor] | None = None,
    means: bool = False,
) -> dict[str, Tensor]:
    """Decisions or means of the wanted groups, on the CPU, from `sweeps` sweeps after `warmup` (default: as many).
    `known`: masks of groups that are given in part."""
    known = known or {}
    rows, size = len(next(iter(given.values()))), max(1, MAX_ROWS[model.device.type] // chains)
    parts = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pc.NotMixedWarning)  # some of many faces; the measures show it
        for k, first in enumerate(range(0, rows, size)):
            part = slice(first, first + size)
            some = {n: pc.Observed(v[part], known[n][part]) if n in known else v[part] for n, v in given.items()}
            options: dict = {"init": {n: v[part] for n, v in (init or {}).items()}, "seed": seed + k}
            answer = pc.query(model, some, want, chains=chains, stop=pc.Sweeps(sweeps, warmup), **options)
            found = answer.mean if means else answer.decisions
            parts.append({name: found[name].cpu() for name in want})
    return {name: torch.cat([part[name] for part in parts]) for name in want}
