"""Small models of several kinds, what a user would give them, and the exact answers where there are any."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from random import Random

import torch
from torch import Tensor, nn

import paracond as pc

REGENERATION = pc.Regeneration(0.2, 2)
ROWS = 130  # of data


@dataclass(frozen=True, eq=False)
class World:
    """A model, data for it, and what is known of its answers.

    name: how it is called in reproducers.
    data: values of every group, `ROWS` rows.
    latent: groups that data never have.
    exact: whether the model can be enumerated.
    image: the group that is an image.
    """

    name: str
    model: pc.JointModel
    data: dict[str, Tensor]
    latent: tuple[str, ...] = ()
    exact: bool = False
    image: str = ""
    finite: object = field(default=None)

    @property
    def families(self) -> dict[str, pc.Family]:
        return self.model.variables

    @property
    def needed(self) -> list[str]:
        """Context that must be given."""
        return [name for name, context in self.model.context.items() if context.default is None]

    def some(self, rng: Random, rows: int, *, all_groups: bool = False, most: int = 9) -> dict[str, Tensor]:
        """Values of some groups: what a user gives."""
        names = [name for name in self.model.variables if name not in self.latent and name not in self.needed]
        chosen = names if all_groups else rng.sample(names, rng.randint(0, min(most, len(names) - 1)))
        first = rng.randrange(ROWS - rows)
        return {name: self.data[name][first : first + rows].clone() for name in (*self.needed, *chosen)}

    def whole(self, rng: Random, rows: int) -> dict[str, Tensor]:
        """Values of all groups, latents too."""
        first = rng.randrange(ROWS - rows)
        return {name: self.data[name][first : first + rows].clone() for name in self.model.variables}


def _data(variables: Mapping[str, pc.Family], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, family in variables.items():
        shape = (ROWS, *family.event_shape)
        if isinstance(family, pc.Categorical):
            found[name] = torch.randint(family.classes, shape, generator=generator)
        elif isinstance(family, pc.Binary):
            found[name] = torch.randint(2, shape, generator=generator).float()
        else:  # exact in every format, so that all forms of a value mean the same
            found[name] = torch.randint(-8, 9, shape, generator=generator) / 8
    return found


def _noisy(model: pc.JointModel, seed: int, size: float = 1.5) -> pc.JointModel:
    """Weights that make groups depend on each other."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * size / parameter.shape[1] ** 0.5)
            elif parameter.ndim == 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return model.requires_grad_(True)


def _mlps(variables, seed, context=None, alpha=None, **options) -> pc.JointModel:
    every = {**variables, **{name: c.family for name, c in (context or {}).items()}}
    parts = {
        name: pc.Conditional(family, pc.networks.mlp(every, name, hidden=8, depth=1, **options))
        for name, family in variables.items()
    }
    return _noisy(pc.JointModel(parts, alpha, context, REGENERATION), seed)


def _finite() -> World:
    variables = {"smoker": pc.Binary(2), "city": pc.Categorical(3), "illness": pc.Binary(())}
    model = _mlps(variables, 1, alpha={"smoker": 2, "city": 1, "illness": 1})
    return World("finite", model, _data(variables, 2), exact=True)


def _double() -> World:
    variables = {"smoker": pc.Binary((1, 2)), "city": pc.Categorical(2, 2)}
    return World("double", _mlps(variables, 3).double(), _data(variables, 4), exact=True)


def _context() -> World:
    variables = {"smoker": pc.Binary(2), "city": pc.Categorical(3)}
    context = {"region": pc.Context(pc.Categorical(2), 1), "dose": pc.Context(pc.Real(1), None)}
    model = _mlps(variables, 5, context)
    return World("context", model, _data(model.variables, 6))


def _mixed() -> World:
    variables = {
        "smoker": pc.Binary(2),
        "city": pc.Categorical(3),
        "weight": pc.Real(2, scale="coordinate", initial_scale=0.5),
        "height": pc.Real((), initial_scale=0.5, ceiling=1.0, bounds=(-2.0, 2.0)),
    }
    return World("mixed", _mlps(variables, 7, noise=0.1), _data(variables, 8))


def _latent() -> World:
    variables = {
        "weight": pc.Real(3, scale="learned", initial_scale=0.4),
        "code": pc.Binary(3),
        "city": pc.Categorical(3),
    }
    init = pc.initializers.pca(variables, "weight", ["city"], rank=2)
    code = pc.initializers.pca(variables, "code", ["city"], rank=1)
    parts = {
        name: pc.Conditional(
            family, pc.networks.mlp(variables, name, hidden=8, depth=1), {"weight": init, "code": code}.get(name)
        )
        for name, family in variables.items()
    }
    model = pc.JointModel(parts, regeneration=REGENERATION)
    _noisy(model, 9, 0.7)
    return World("latent", model, _data(variables, 10), latent=("code",))


def _image() -> World:
    variables = {"picture": pc.Binary((1, 8, 8)), "kind": pc.Categorical(4), "code": pc.Binary(3)}
    torch.manual_seed(11)
    parts = {
        name: pc.Conditional(
            family,
            pc.networks.image_network(variables, name, "picture", width=4, **({"jitter": 1} if name == "kind" else {})),
            pc.initializers.pca(variables, "picture", ["kind"], rank=4) if name == "picture" else None,
        )
        for name, family in variables.items()
    }
    model = pc.JointModel(parts, regeneration=REGENERATION)
    return World("image", model, _data(variables, 12), latent=("code",), image="picture")


def _shared() -> World:
    variables = {"left": pc.Binary(2), "right": pc.Binary(2)}
    model = _mlps(variables, 13)
    first, second = (model.conditional(name).network for name in ("left", "right"))
    second.layers[-1].weight = first.layers[-1].weight if hasattr(second, "layers") else None
    return World("shared", model, _data(variables, 14), exact=True)


class Half(nn.Module):
    """A network of the user's own."""

    def __init__(self, inputs: int, output: tuple[int, ...]):
        super().__init__()
        self.linear, self.output = nn.Linear(inputs, math.prod(output)), output

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        flat = torch.cat([value.flatten(1) for value in others.values()], 1)
        return self.linear(flat).view(len(flat), *self.output)


def _custom() -> World:
    variables = {"smoker": pc.Binary(2), "city": pc.Categorical(3)}
    sizes = {name: math.prod(family.encoding_shape) for name, family in variables.items()}
    parts = {
        name: pc.Conditional(family, Half(sum(sizes.values()) - sizes[name], family.output_shape))
        for name, family in variables.items()
    }
    return World(
        "custom", _noisy(pc.JointModel(parts, regeneration=REGENERATION), 15), _data(variables, 16), exact=True
    )


def _scenes() -> World:
    variables = {
        "picture": pc.Real((1, 16, 16), scale="learned"),
        "mask": pc.Categorical(3, (16, 16)),
        "kind": pc.Categorical(2),
    }
    torch.manual_seed(17)
    parts = {
        name: pc.Conditional(family, pc.networks.scene_network(variables, name, width=4, hidden=8))
        for name, family in variables.items()
    }
    return World(
        "scenes", pc.JointModel(parts, regeneration=pc.Regeneration(0.5, 1)), _data(variables, 18), image="picture"
    )


MAKERS: dict[str, Callable[[], World]] = {
    "finite": _finite,
    "double": _double,
    "context": _context,
    "mixed": _mixed,
    "latent": _latent,
    "image": _image,
    "shared": _shared,
    "custom": _custom,
    "scenes": _scenes,
}


@cache
def world(name: str) -> World:
    """The world of this name, made once."""
    state = torch.get_rng_state()
    torch.manual_seed(0)
    made = MAKERS[name]()
    torch.set_rng_state(state)
    finite = pc.exact.enumerate_model(made.model) if made.exact else None
    return World(made.name, made.model, made.data, made.latent, made.exact, made.image, finite)


# --- networks that misbehave ------------------------------------------------------------------------------------------


class Wrapped(nn.Module):
    """A network whose output, or whose inputs, are spoiled."""

    def __init__(self, inner: nn.Module, way: str):
        super().__init__()
        self.inner, self.way, self.calls = inner, way, 0

    def forward(self, others: Mapping[str, Tensor]) -> object:
        self.calls += 1
        if self.way == "edits inputs":
            copies = {name: value.clone() for name, value in others.items()}
            for value in others.values():
                value.zero_()
            return self.inner(copies)
        if self.way == "drops inputs":
            copies = dict(others)
            if isinstance(others, dict):
                others.clear()
            return self.inner(copies)
        return WAYS[self.way](self.inner(others))


def _mostly_nan(out: Tensor) -> Tensor:
    spoiled = out.clone()
    spoiled[: max(1, len(out) - 1)] = math.nan
    return spoiled


def _raise(_: Tensor) -> Tensor:
    raise RuntimeError("a network of the user raised this")


#: What becomes of a right output. The first word says what a call must do: refuse, or either.
WAYS: dict[str, Callable[[Tensor], object]] = {
    "twice the rows": lambda out: torch.cat([out, out]),
    "one row": lambda out: out[:1],
    "a row less": lambda out: out[:-1],
    "a row more": lambda out: torch.cat([out, out[:1]]),
    "no rows": lambda out: out[:0],
    "no batch axis": lambda out: out[0],
    "one more axis": lambda out: out.unsqueeze(-1),
    "one more axis in front": lambda out: out.unsqueeze(0),
    "flat": lambda out: out.flatten() if out.ndim > 1 else out.unsqueeze(0),
    "wider": lambda out: torch.cat([out, out], -1),
    "transposed": lambda out: out.transpose(0, -1) if out.shape[0] != out.shape[-1] else out[:1],
    "a number": lambda out: out.sum(),
    "whole numbers": lambda out: out.long(),
    "Bool": lambda out: out > 0,
    "complex": lambda out: out.to(torch.complex64),
    "NaN": lambda out: out * math.nan,
    "NaN in most rows": lambda out: _mostly_nan(out),
    "inf": lambda out: out * 0 + math.inf,
    "-inf": lambda out: out * 0 - math.inf,
    "None": lambda out: None,
    "a tuple": lambda out: (out, out),
    "a list": lambda out: out.tolist(),
    "numpy": lambda out: out.detach().numpy(),
    "a dictionary": lambda out: {"output": out},
    "a word": lambda out: "output",
    "a Python number": lambda out: 0.5,
    "meta": lambda out: out.to("meta"),
    "sparse": lambda out: out.detach().to_sparse(),
    "raises": _raise,
    # right, in other forms
    "double": lambda out: out.double(),
    "half": lambda out: out.half(),
    "strided": lambda out: out.repeat_interleave(2, 0)[::2],
    "detached": lambda out: out.detach(),
}
RIGHT = ("double", "half", "strided", "detached", "edits inputs", "drops inputs")
