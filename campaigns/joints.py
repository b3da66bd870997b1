"""Joints that are known exactly, with the conditionals that belong to them: what answers are compared with.

`Cells`: finite groups have a table of probabilities, and given their cell, groups of any family are emitted,

    p(cell) prod_i p_i(x_i | cell),        p(cell | x) ~ p(cell) prod_i p_i(x_i | cell).

So every family of the library can be emitted, and marginals given any values and coordinates are mixtures over cells.

`Gaussians`: two groups of numbers with one multivariate normal law.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import paracond as pc
from paracond.families import Family

Moments = dict[str, tuple[Tensor, Tensor]]  # exact means and standard deviations of encode(x), by group


@dataclass(frozen=True, eq=False)
class Emitted:
    """A group whose law depends on the cell.

    family: its family.
    outputs: what its network returns in every cell, `[*cells, *output]`.
    shared: the parameters that do not depend on the cell.
    """

    family: Family
    outputs: Tensor
    shared: dict[str, Tensor] = field(default_factory=dict)

    def law(self, output: Tensor):
        """The distribution for each of these outputs."""
        return self.family.distribution(output, **self.shared)

    def values(self, encoded: Tensor) -> Tensor:
        """The values behind their codes."""
        return encoded if self.family.encoding_shape == self.family.event_shape else encoded.argmax(-1)


class Cells:
    """A joint of finite groups and of what they emit.

    finite: the finite groups, each one value per row, by name.
    log_p: the logarithms of the probabilities of all cells, `[*cells]`.
    emitted: the other groups, by name.
    """

    def __init__(self, finite: Mapping[str, Family], log_p: Tensor, emitted: Mapping[str, Emitted]):
        self.finite, self.emitted = dict(finite), dict(emitted)
        self.sizes = tuple(log_p.shape)
        self.log_p = log_p.double().flatten().log_softmax(0)
        self.outputs = {n: e.outputs.double().reshape(-1, *e.family.output_shape) for n, e in emitted.items()}
        families = self.finite | {name: each.family for name, each in emitted.items()}
        self.model = pc.JointModel({n: pc.Conditional(f, CellRule(self, n)) for n, f in families.items()}).double()
        with torch.no_grad():
            for name, each in emitted.items():
                for key, value in each.shared.items():
                    self.model.conditional(name).shared[key].copy_(value)

    def draw(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Exact draws."""
        cell = torch.multinomial(self.log_p.exp(), rows, replacement=True, generator=generator)
        indices = torch.unravel_index(cell, self.sizes)
        state = {n: f.store(i, torch.float64) for (n, f), i in zip(self.finite.items(), indices, strict=True)}
        for name, each in self.emitted.items():
            state[name] = each.law(self.outputs[name][cell]).sample(generator)
        return state

    def scores(self, name: str, value: Tensor) -> Tensor:
        """log p(x_name | cell) of every coordinate, `[rows, cells, coordinates]`."""
        each, rows, cells = self.emitted[name], len(value), len(self.log_p)
        output = self.outputs[name].expand(rows, *self.outputs[name].shape).flatten(0, 1)
        return each.law(output).scores(value.repeat_interleave(cells, 0)).view(rows, cells, -1)

    def posterior(self, state: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> Moments:
        """Exact moments of every group, where `known` marks the coordinates that are given."""
        rows = len(next(iter(state.values())))
        log_p = self.log_p.expand(rows, -1)
        index = torch.unravel_index(torch.arange(len(self.log_p)), self.sizes)
        for name, own in zip(self.finite, index, strict=True):
            wrong = known[name][:, None] & (own != state[name].long()[:, None])
            log_p = log_p.masked_fill(wrong, -math.inf)
        for name in self.emitted:
            mask = known[name].reshape(rows, 1, -1)
            scores = self.scores(name, state[name])
            log_p = log_p + torch.where(mask, scores, 0).sum(2)
        p = log_p.softmax(1)
        found: Moments = {}
        for (name, family), own in zip(self.finite.items(), index, strict=True):
            codes = family.encode(family.store(own, torch.float64)).double()
            mean = p @ codes
            found[name] = mean, (mean * (1 - mean)).clamp(min=0).sqrt()
        for name, each in self.emitted.items():
            law = each.law(self.outputs[name])
            shape = law.mean.shape[1:]
            first, second = (
                p @ part.reshape(len(self.log_p), -1) for part in (law.mean, law.variance + law.mean.square())
            )
            mean, std = first.view(-1, *shape), (second - first.square()).clamp(min=0).sqrt().view(-1, *shape)
            mask = each.family.expand(known[name])
            found[name] = torch.where(mask, each.family.encode(state[name]).double(), mean), torch.where(mask, 0, std)
        return found


class CellRule(nn.Module):
    """The exact conditional of one group of `Cells`."""

    def __init__(self, joint: Cells, name: str):
        super().__init__()
        self.joint, self.name = joint, name
        self.probe = nn.Parameter(torch.zeros(()))  # gives the model its type
        self.reads = tuple(joint.finite) if name in joint.emitted else self._others()

    def _others(self) -> tuple[str, ...]:
        return tuple(name for name in (*self.joint.finite, *self.joint.emitted) if name != self.name)

    def forward(self, others: dict[str, Tensor]) -> Tensor:
        joint, rows = self.joint, len(next(iter(others.values())))
        codes = {n: c.argmax(-1) if c.ndim == 2 else c.long() for n, c in others.items() if n in joint.finite}
        if self.name in joint.emitted:
            return joint.outputs[self.name][self._cell(codes)]
        log_p = joint.log_p.expand(rows, -1)
        for name, each in joint.emitted.items():
            log_p = log_p + joint.scores(name, each.values(others[name])).sum(2)
        size = joint.sizes[list(joint.finite).index(self.name)]
        cells = [self._cell(codes | {self.name: torch.full((rows,), k)}) for k in range(size)]
        logits = log_p.gather(1, torch.stack(cells, 1))
        return logits if joint.finite[self.name].encoding_shape else logits[:, 1] - logits[:, 0]

    def _cell(self, codes: Mapping[str, Tensor]) -> Tensor:
        """The flat index of the cell of every row."""
        cell = torch.zeros_like(next(iter(codes.values())))
        for name, size in zip(self.joint.finite, self.joint.sizes, strict=True):
            cell = cell * size + codes[name]
        return cell


class Gaussians:
    """x and y of n numbers each, with E x = E y = mean, standard deviation `scale`, and correlations of x_i and y_i.

    correlation: those, `[n]`. A sweep forgets all but their squares.
    """

    def __init__(self, correlation: Tensor, mean: Tensor, scale: float = 1.0):
        self.correlation, self.mean, self.scale = correlation.double(), mean.double(), scale
        own = scale * (1 - self.correlation.square()).sqrt()
        family = pc.Real(len(mean), scale="coordinate", initial_scale=0.1, floor=1e-6)
        parts = {n: pc.Conditional(family, Regression(self, o)) for n, o in ("xy", "yx")}
        self.model = pc.JointModel(parts).double()
        low = math.log(family.floor)  # the inverse of `Real._bounded`
        shift = math.log(math.expm1(math.log(family.initial_scale) - low))
        with torch.no_grad():
            for name in "xy":
                self.model.conditional(name).shared["log_scale"].copy_(((own.log() - low).expm1().log() - shift) / 10)

    def draw(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Exact draws."""
        options: dict = {"generator": generator, "dtype": torch.float64}
        x, noise = (torch.randn(rows, len(self.mean), **options) for _ in range(2))
        y = self.correlation * x + (1 - self.correlation.square()).sqrt() * noise
        return {"x": self.mean + self.scale * x, "y": self.mean + self.scale * y}

    def posterior(self, state: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> Moments:
        """Exact moments of both groups, where `known` marks the coordinates that are given."""
        found: Moments = {}
        for name, other in ("xy", "yx"):
            given = self.mean + self.correlation * (state[other] - self.mean)
            mean = torch.where(known[other], given, self.mean)
            std = self.scale * torch.where(known[other], (1 - self.correlation.square()).sqrt(), 1)
            found[name] = torch.where(known[name], state[name], mean), torch.where(known[name], 0, std)
        return found


class Regression(nn.Module):
    """E[x | y] of `Gaussians`."""

    def __init__(self, joint: Gaussians, other: str):
        super().__init__()
        self.joint, self.other = joint, other
        self.probe = nn.Parameter(torch.zeros(()))  # gives the model its type

    def forward(self, others: dict[str, Tensor]) -> Tensor:
        return self.joint.mean + self.joint.correlation * (others[self.other] - self.joint.mean)


def real_output(mean: Tensor, scale: Tensor, family: pc.Real) -> Tensor:
    """What the network of a Real group with scale="element" returns for these means and standard deviations."""
    low = math.log(family.floor)  # the inverse of `Real._bounded`
    raw = (scale.log() - low).expm1().log() - math.log(math.expm1(math.log(family.initial_scale) - low))
    return torch.stack([mean, raw], mean.ndim - len(family.event_shape))


def mixed(generator: torch.Generator, gap: float = 1.0) -> Cells:
    """A binary a, a ternary b, a binary d, and a number g whose mean and scale depend on all three.

    gap: how far the means are apart.
    """
    options: dict = {"generator": generator, "dtype": torch.float64}
    g = pc.Real((), initial_scale=1.0)
    log_p = torch.randn(2, 3, 2, **options)
    outputs = real_output(gap * torch.randn(2, 3, 2, **options), (0.5 * torch.randn(2, 3, 2, **options)).exp(), g)
    return Cells({"a": pc.Binary(()), "b": pc.Categorical(3), "d": pc.Binary(())}, log_p, {"g": Emitted(g, outputs)})


def scale_mixture(generator: torch.Generator, ratio: float = 8.0, size: int = 1) -> Cells:
    """x ~ N(0, 1) or N(0, ratio^2), by a bit s; all numbers of x share s, which then moves rarely."""
    x = pc.Real(size, initial_scale=1.0)
    scale = torch.tensor([1.0, ratio], dtype=torch.float64)[:, None].expand(2, size)
    return Cells(
        {"s": pc.Binary(())}, _bit(generator), {"x": Emitted(x, real_output(torch.zeros_like(scale), scale, x))}
    )


def stuck(
    generator: torch.Generator, size: int = 120, gap: float = 2.5, numbers: bool = True, others: float = 0.0
) -> Cells:
    """Many coordinates, of which the last has two modes, by a bit t, and moves rarely between them.

    gap: half the distance of the modes, in standard deviations; for bits, their log-odds.
    numbers: whether coordinates are numbers, or bits.
    others: how much the other coordinates depend on t.
    """
    options: dict = {"generator": generator, "dtype": torch.float64}
    level = torch.randn(size, **options).expand(2, size).clone()
    level[:, -1] = torch.tensor([-gap, gap])
    log_p = _bit(generator)
    if others:
        level[1, :-1] += others * torch.randn(size - 1, **options)
    family: Family = pc.Real(size, initial_scale=1.0) if numbers else pc.Binary(size)
    outputs = real_output(level, torch.ones_like(level), family) if isinstance(family, pc.Real) else level
    return Cells({"t": pc.Binary(())}, log_p, {"x": Emitted(family, outputs)})


def slow_start(generator: torch.Generator, size: int = 2, least: float = 0.6, most: float = 0.9) -> Gaussians:
    """Pairs of numbers with means far from zero, where chains begin, and correlations between these bounds."""
    options: dict = {"generator": generator, "dtype": torch.float64}
    correlation = least + (most - least) * torch.rand(size, **options)
    return Gaussians(correlation, 2 * torch.randn(size, **options))


def emitting(generator: torch.Generator, family: Family, cells: int = 3) -> Cells:
    """A class c, and a group x of any family whose law depends on it, not so much that c moves slowly."""
    options: dict = {"generator": generator, "dtype": torch.float64}
    outputs = (0.7 if family.finite else 0.25) * torch.randn(cells, *family.output_shape, **options)
    shared = {name: 0.03 * torch.randn(v.shape, **options) for name, v in family.shared_parameters().items()}
    return Cells({"c": pc.Categorical(cells)}, torch.randn(cells, **options), {"x": Emitted(family, outputs, shared)})


def _bit(generator: torch.Generator) -> Tensor:
    """Logarithms of the probabilities of a bit that is not too rare."""
    chance = 0.3 + 0.4 * torch.rand((), generator=generator, dtype=torch.float64)
    return torch.stack([1 - chance, chance]).log()
