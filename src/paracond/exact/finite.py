"""Joint models of finite groups, enumerated, and what clamping does to them.

A clamped chain has its own limiting distribution pi_o. If the conditionals are consistent, it is the conditional of the
joint. For tours (`Regenerative`), whose limit is pi, `clamped_gap` says how far the two are apart,

    E TV(pi_o, pi(. | x_o)),     x_o ~ pi.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paracond.data import InputError, Observed, State, as_mask, as_numbers, named, shown
from paracond.exact.kernels import GibbsKernel, as_law, as_weights, select, sweep
from paracond.exact.limits import limiting
from paracond.exact.regenerative import Regenerative
from paracond.model import JointModel, Regeneration, require_model

CHUNK = 16384  # states per forward pass when tables are made
MOST = 2**16

Given = Mapping[str, Tensor | Observed]


@dataclass(frozen=True, eq=False)
class Finite:
    """A joint model of finite groups, enumerated: every value of each group, and every joint state, in the order of the
    flattened axes. What is `given` to its methods has no batch axis."""

    names: tuple[str, ...]
    values: dict[str, Tensor]
    kernel: GibbsKernel
    states: State = field(repr=False)
    regeneration: Regeneration = field(default_factory=Regeneration)

    def limiting(self) -> Tensor:
        """Return the joint distribution, `[K_1, ..., K_m]`."""
        return limiting(self.kernel)

    def clamped(self, given: Given) -> tuple[GibbsKernel, dict[str, Tensor]]:
        """Return the kernel of the clamped chain, and the values left to each group."""
        keep = self._keep(given)
        left = {name: self.values[name][index] for name, index in zip(self.names, keep, strict=True)}
        return self.kernel.restrict(keep), left

    def tours(
        self,
        given: Given | None = None,
        regeneration: Regeneration | None = None,
        scan: str = "systematic",
        begin: Tensor | None = None,
    ) -> Regenerative:
        """Return the kernel of tours of the clamped chain, over the values left to each group.

        given: what is clamped.
        regeneration: the rate and the warm-up; the model's own by default.
        scan: how a sweep chooses its groups, "systematic" or "random".
        begin: p_0 over all states up to a factor, `[K_1, ..., K_m]`; tours begin at p_0(x | given). Uniform by default,
            which is where models without initializers begin.
        """
        keep = self._keep({} if given is None else given)
        uniform = torch.full(self.kernel.shape, 1 / math.prod(self.kernel.shape), dtype=torch.float64)
        p = uniform if begin is None else as_weights("begin", begin, self.kernel.shape)
        p = _normalised("begin", select(p, keep))
        kernel = sweep(self.kernel.restrict(keep), scan)
        return Regenerative(kernel, p, self.regeneration if regeneration is None else regeneration)

    def posterior(self, given: Given) -> Tensor:
        """Return p(x | given) over all states; it is zero where they contradict the given values."""
        p = self.limiting()
        for axis, index in enumerate(self._keep(given)):
            fits = torch.zeros(p.shape[axis], dtype=p.dtype)
            fits[index] = 1
            p = p * fits.view([-1 if a == axis else 1 for a in range(p.ndim)])
        return _normalised("the joint", p)

    def marginal(self, p: Tensor, name: str) -> Tensor:
        """Return the marginal p(x_name), `[K_name]`."""
        self.check_names([name])
        p = as_law("p", p, self.kernel.shape)
        axis = self.names.index(name)
        return p.sum([a for a in range(p.ndim) if a != axis]) if p.ndim > 1 else p

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse names that are no group of the enumerated model."""
        if not isinstance(names, Sequence) or isinstance(names, str):
            raise InputError(f"names must be a list of groups, found {shown(names)}")
        for name in [name for name in names if not isinstance(name, str) or name not in self.names]:
            raise InputError(f"unknown variable {shown(name)} (the enumerated groups are {', '.join(self.names)})")

    def _keep(self, given: Given) -> list[Tensor]:
        """Return, for every group, the indices of the values that agree with what is given."""
        given = named("given", given)
        self.check_names(list(given))
        everything = {name: torch.arange(len(values)) for name, values in self.values.items()}
        return [self._compatible(name, given[name]) if name in given else everything[name] for name in self.names]

    def _compatible(self, name: str, known: Tensor | Observed) -> Tensor:
        values = self.values[name].double()
        observed = known if isinstance(known, Observed) else Observed(known)
        value = as_numbers(name, observed.value).double()
        if value.shape != values.shape[1:]:
            raise InputError(
                f"{name!r} must be given as one value, {list(values.shape[1:])}, found {list(value.shape)}"
            )
        same = values == value
        if observed.mask is not None:
            mask = as_mask(name, observed.mask)
            if mask.shape not in ((), value.shape):
                raise InputError(f"mask of {name!r} must be boolean, {list(value.shape)}, found {list(mask.shape)}")
            same = same | ~mask
        index = same.reshape(len(values), -1).all(1).nonzero().squeeze(1)
        if not len(index):
            raise InputError(f"{name!r} has no value that agrees with what is given, {value.tolist()}")
        return index


def _normalised(what: str, p: Tensor) -> Tensor:
    total = p.sum()
    if not bool(total > 0):
        raise InputError(f"{what} gives probability zero to all states that agree with what is given")
    return p / total


def clamped_gap(
    finite: Finite,
    names: Sequence[str],
    regeneration: Regeneration | None = None,
    scan: str = "systematic",
    begin: Tensor | None = None,
) -> float:
    """Return E TV(pi_o, pi(. | x_o)), x_o ~ pi: how far limits of clamped tours are from conditionals of the limit pi.

    finite: the enumerated model.
    names: the groups o, which are clamped.
    regeneration, scan, begin: of all these tours; the clamped ones begin at p_0(x_-o | x_o) (see `Finite.tours`).
    """
    if not isinstance(finite, Finite):
        raise InputError(f"finite must be what enumerate_model returns, found {shown(finite)}")
    finite.check_names(names)
    pi = limiting(finite.tours(None, regeneration, scan, begin))
    total = 0.0
    for chosen in itertools.product(*[finite.values[name] for name in names]):
        given = dict(zip(names, chosen, strict=True))
        part = select(pi, finite._keep(given))
        if bool(part.sum() > 0):
            clamped = limiting(finite.tours(given, regeneration, scan, begin))
            total += 0.5 * float((part.sum() * clamped - part).abs().sum())
    return total


@torch.no_grad()
def enumerate_model(model: JointModel) -> Finite:
    """Enumerate a joint model of at most 2^16 states, in float64. Context groups take their defaults."""
    require_model(model)
    values = {name: model.variables[name].values() for name in model.names}
    sizes = [len(v) for v in values.values()]
    if math.prod(sizes) > MOST:
        raise InputError(f"{math.prod(sizes)} states are too many to enumerate (at most {MOST})")
    axes = torch.meshgrid(*[torch.arange(k) for k in sizes], indexing="ij")
    states = {name: v[index.flatten()] for (name, v), index in zip(values.items(), axes, strict=True)}
    double = copy.deepcopy(model.eval_copy()).to("cpu", torch.float64)
    stored = {name: model.variables[name].store(v, torch.float64) for name, v in states.items()}
    for name, group in model.context.items():
        stored[name] = group.values(name, math.prod(sizes), torch.float64, torch.device("cpu"))
    tables = []
    for axis, name in enumerate(model.names):
        table = torch.cat([_probabilities(double, name, stored, first) for first in range(0, math.prod(sizes), CHUNK)])
        if not bool(table.isfinite().all()):
            raise InputError(f"p({name} | rest) is NaN or infinite in some states: the model cannot be enumerated")
        table = table.view(sizes)
        tables.append(table / table.sum(axis, keepdim=True))
    kernel = GibbsKernel(tables, [model.alpha[n] for n in model.names])
    return Finite(model.names, values, kernel, states, model.regeneration)


def _probabilities(model: JointModel, name: str, states: State, first: int) -> Tensor:
    chunk = {k: v[first : first + CHUNK] for k, v in states.items()}
    return model(name, chunk).log_prob(chunk[name]).double().exp()  # of half precision, they would not sum to one
