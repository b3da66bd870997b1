"""The kernel that begins anew: with probability eps after every sweep G, and then with w sweeps that do not count.

    K(x | x') = (1 - eps) G(x | x') + eps b(x),     b = p_0 G^w

K has one limiting distribution for any conditionals, also where G has several,

    pi = sum_k eps (1 - eps)^k b G^k = eps b (I - (1 - eps) G)^-1,     |K^n(x', .) - pi|_TV <= (1 - eps)^n.

`tours` draws from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from paracond.data import InputError, shown
from paracond.exact.kernels import Kernel, Steps, as_law, require_kernel
from paracond.model import Regeneration


@dataclass(frozen=True, eq=False)
class Regenerative(Kernel):
    """K, of a sweep, a beginning and a rate.

    kernel: G, any kernel. The scores need no matrix if it is a `GibbsKernel`.
    begin: p_0, of the kernel's shape, float64.
    regeneration: the rate eps and the number w of sweeps to warm up.
    """

    kernel: Kernel
    begin: Tensor
    regeneration: Regeneration

    def __post_init__(self) -> None:
        require_kernel("kernel", self.kernel)
        object.__setattr__(self, "begin", as_law("begin", self.begin, self.kernel.shape))
        if not isinstance(self.regeneration, Regeneration):
            raise InputError(f"regeneration must be Regeneration(rate, warmup), found {shown(self.regeneration)}")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.kernel.shape

    @property
    def rate(self) -> float:
        """eps."""
        return self.regeneration.rate

    @cached_property
    def warmed(self) -> Tensor:
        """b = p_0 G^w, the distribution of a tour's first state that counts."""
        law = self.begin
        for _ in range(self.regeneration.warmup):
            law = self.kernel.push(law)
        return law

    def push(self, r: Tensor) -> Tensor:
        return (1 - self.rate) * self.kernel.push(r) + self.rate * r.sum() * self.warmed

    def matrix(self) -> Tensor:
        return (1 - self.rate) * self.kernel.matrix() + self.rate * self.warmed.flatten()

    def steps(self) -> Steps | None:
        within, anew = self.kernel.steps(), self.rate * self.warmed
        if within is None:
            return None
        stay, *moved = ((1 - self.rate) * each + anew for each in (within.stay, *within.moved))
        return Steps(stay, moved, anew if within.jumped is None else (1 - self.rate) * within.jumped + anew)
