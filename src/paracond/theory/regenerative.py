"""The kernel that begins anew, for learning,

    K(x | x') = (1 - eps) G(x | x') + eps b(x),

which has one limiting distribution whatever the kernel G is, and forgets its beginning like (1 - eps)^n. `exact` has it
as tables, `tours` draws from its limit. `Regenerative` mixes any two kernels. `RandomValues` is a kernel for b: the
random values at which chains begin where no group has an initializer. A warm-up, b = p_0 G^w, can be drawn from but
not scored, so there is none here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from paracond.composition import each_a
from paracond.data import InputError, State, require_a, row_count, wide
from paracond.distributions import Distribution, Gaussian
from paracond.families import Family, Real
from paracond.model import Regeneration
from paracond.theory.kernels import Kernel


class Regenerative(Kernel):
    """The kernel K, of a kernel G and a kernel that ignores the last state.

    kernel: G.
    begin: b.
    rate: eps, more than 0 and at most 1.
    """

    def __init__(self, kernel: Kernel, begin: Kernel, rate: float):
        super().__init__()
        require_a(Kernel, kernel=kernel, begin=begin)
        self.kernel, self.begin, self.rate = kernel, begin, Regeneration(rate, 0).rate

    def validate(self, state: State) -> State:
        return self.begin.validate(self.kernel.validate(state))

    def sample(self, previous: State, generator: torch.Generator) -> State:
        after, first = self.kernel.sample(previous, generator), self.begin.sample(previous, generator)
        anew = torch.rand(row_count(previous), generator=generator, device=generator.device) < self.rate
        return {name: torch.where(wide(anew, value), first[name], value) for name, value in after.items()}

    def log_prob(self, following: State, previous: State) -> Tensor:
        anew = self.begin.log_prob(following, previous) + math.log(self.rate)
        if self.rate == 1:
            return anew
        return torch.logaddexp(self.kernel.log_prob(following, previous) + math.log1p(-self.rate), anew)


class RandomValues(Kernel):
    """Random values of every group, whatever the last state was: uniform for Binary and Categorical groups, standard
    normal for Real ones. Other groups, such as context, keep their values.

    A Real group is drawn to its old value with probability zero. There `log_prob` is minus infinity, as the density of
    a `JointKernel` is then one over the other groups alone.

    families: the family of every group, by name.
    """

    def __init__(self, families: Mapping[str, Family]):
        super().__init__()
        families = each_a("families", families, Family)
        if not families:
            raise InputError("families must have at least one group, found none")
        for name, family in families.items():
            if not (family.finite or isinstance(family, Real)):
                raise InputError(f"the density of random values of {name!r}, a {type(family).__name__}, is not known")
        self.families = families

    def validate(self, state: State) -> State:
        for name, family in self.families.items():
            if name not in state:
                raise InputError(f"{name!r} is missing: random values need every group that they replace")
            family.check_shape(name, state[name])
            family.check_known(name, state[name].flatten())
        return state

    @torch.no_grad()
    def sample(self, previous: State, generator: torch.Generator) -> State:
        rows = row_count(previous)
        return {**previous, **{n: f.random(rows, generator, previous[n].dtype) for n, f in self.families.items()}}

    def log_prob(self, following: State, previous: State) -> Tensor:
        total = torch.zeros(row_count(previous), dtype=torch.float64, device=next(iter(following.values())).device)
        for name, family in self.families.items():
            total = total + _law(family, following[name]).log_prob(following[name])
            if not family.finite:
                same = (following[name] == previous[name]).reshape(len(total), -1).all(1)
                total = total.masked_fill(same, -torch.inf)
        return total


def _law(family: Family, value: Tensor) -> Distribution:
    """The distribution of `family.random`, for every row of `value`."""
    if isinstance(family, Real):
        return Gaussian(torch.zeros_like(value), value.new_zeros(()))
    return family.distribution(torch.zeros(len(value), *family.output_shape, dtype=torch.float64, device=value.device))
