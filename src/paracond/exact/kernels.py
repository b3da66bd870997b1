"""Kernels on a finite space (section 3): applied to distributions, and scored against another kernel q.

    push(r)(x)           = sum_x' p(x | x') r(x')
    forward_score(Q)     = sum_x,x' Q(x) q(x' | x) log q(x' | x)
    backward_score(Q, p) = sum_x,x' Q(x) q(x' | x) log p(x | x')

`MatrixKernel` is any kernel as a dense matrix, `Composed` several kernels in turn. `GibbsKernel` is eq:gibbs_transition
as tables over the groups. The sum over x' is a sum over one group at a time, and a move in group i has the score
alpha_i p_i(x_i | x_-i) whatever the old value was. So push and both scores take O(groups * states) and need no matrix.
The same holds for every kernel with `Steps`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from paracond.data import InputError, as_numbers, one_of, shown

ROUNDING = 1e-12  # of the sum of probabilities
DENSE = 1024  # up to this many states, linear algebra is dense
SCANS = ("systematic", "random")


@dataclass(frozen=True, eq=False)
class Steps:
    """The probabilities K(x | x') of a kernel where they depend only on x, and on the groups in which x' differs.

    stay: x' is x.
    moved: x' differs in group i alone, one tensor for every i.
    jumped: x' differs in several groups; None where that is impossible.
    """

    stay: Tensor
    moved: Sequence[Tensor]
    jumped: Tensor | None = None


class Kernel(ABC):
    """A transition kernel on a finite space. The base class of kernels."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The number of values of every group."""

    @abstractmethod
    def push(self, r: Tensor) -> Tensor:
        """Return the distribution after one step from `r`."""

    def steps(self) -> Steps | None:
        """Return the probabilities of steps by the groups that differ, or None where the kernel has no such form."""
        return None

    def matrix(self) -> Tensor:
        """Return the dense kernel [from, to] over flattened states."""
        size = math.prod(self.shape)
        if size > 8 * DENSE:
            raise InputError(f"a dense kernel of {size} x {size} would not fit; use push, or score a GibbsKernel")
        unit = torch.eye(size, dtype=torch.float64)
        return torch.stack([self.push(row.view(self.shape)).flatten() for row in unit])

    def forward_score(self, weights: Tensor) -> Tensor:
        """Return sum_x,x' weights(x) q(x' | x) log q(x' | x), where q is this kernel."""
        q = self.steps()
        if q is None:
            dense = self.matrix()
            return (weights.flatten()[:, None] * torch.xlogy(dense, dense)).sum()
        total = torch.xlogy(weights * q.stay, q.stay).sum()
        for i, moved in enumerate(q.moved):
            total = total + torch.xlogy(_beside(weights, i) * moved, moved).sum()
        if q.jumped is not None:
            total = total + torch.xlogy(_beyond(weights) * q.jumped, q.jumped).sum()
        return total

    def backward_score(self, weights: Tensor, p: Kernel) -> Tensor:
        """Return sum_x,x' weights(x) q(x' | x) log p(x | x'), where q is this kernel."""
        mine, theirs = self.steps(), p.steps()
        if mine is None or theirs is None:
            return torch.xlogy(weights.flatten()[:, None] * self.matrix(), p.matrix().T).sum()
        total = torch.xlogy(weights * mine.stay, theirs.stay).sum()
        for i, (moved, back) in enumerate(zip(mine.moved, theirs.moved, strict=True)):
            total = total + torch.xlogy(weights * _beside(moved, i), back).sum()
        if mine.jumped is not None:
            back = torch.zeros_like(weights) if theirs.jumped is None else theirs.jumped
            total = total + torch.xlogy(weights * _beyond(mine.jumped), back).sum()
        return total


def _sums_to_one(p: Tensor, axis: int) -> bool:
    return bool((p >= 0).all()) and bool((p.sum(axis) - 1).abs().max() < 1e-6)


def _beside(r: Tensor, i: int) -> Tensor:
    """Sum `r` over the states that differ from each state in group i alone."""
    return (r.sum(i, keepdim=True) - r).clamp(min=0)


def _beyond(r: Tensor) -> Tensor:
    """Sum `r` over the states that differ from each state in several groups, axis by axis.

    Not the total minus all else: the sum is zero exactly where all its terms are.
    """
    one, several = torch.zeros_like(r), torch.zeros_like(r)
    for i in range(r.ndim):
        several = several.sum(i, keepdim=True) + _beside(one, i)
        one = one + _beside(r, i)
    return several


@dataclass(frozen=True, eq=False)
class MatrixKernel(Kernel):
    """Any kernel as a dense matrix, `transition[a, b]` = p(b | a), float64."""

    transition: Tensor

    def __post_init__(self) -> None:
        found = as_table("transition", self.transition)
        if found.ndim != 2 or found.shape[0] != found.shape[1] or not found.numel():
            raise InputError(f"transition must be a square matrix, found {list(found.shape)}")
        if not _sums_to_one(found, 1):
            raise InputError("transition must have rows of probabilities that sum to one")
        object.__setattr__(self, "transition", found)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.transition),)

    def push(self, r: Tensor) -> Tensor:
        return r @ self.transition

    def matrix(self) -> Tensor:
        return self.transition


@dataclass(frozen=True, eq=False)
class Composed(Kernel):
    """Several kernels in turn: p(x | x') = sum over all between of p_1(x_1 | x') p_2(x_2 | x_1) ... p_n(x | x_n-1)."""

    kernels: Sequence[Kernel]

    def __post_init__(self) -> None:
        if not isinstance(self.kernels, Sequence) or not self.kernels:
            raise InputError(f"kernels must be a list of kernels, found {shown(self.kernels)}")
        for kernel in self.kernels:
            require_kernel("each of the kernels", kernel)
        if len({kernel.shape for kernel in self.kernels}) != 1:
            raise InputError(f"kernels to compose need one space, found {[list(k.shape) for k in self.kernels]}")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.kernels[0].shape

    def push(self, r: Tensor) -> Tensor:
        for kernel in self.kernels:
            r = kernel.push(r)
        return r


@dataclass(frozen=True, eq=False)
class GibbsKernel(Kernel):
    """The kernel of eq:gibbs_transition, as tables p_i(x_i | x_-i) at every x, which sum to one along axis i."""

    tables: Sequence[Tensor]
    alpha: Sequence[float]

    def __post_init__(self) -> None:
        if not isinstance(self.tables, (list, tuple)) or not self.tables:
            raise InputError(f"tables must be a list with a table for every group, found {shown(self.tables)}")
        tables = [as_table(f"table {i}", table) for i, table in enumerate(self.tables)]
        alpha = as_table("alpha", self.alpha)
        shape = tables[0].shape
        if len(shape) != len(tables) or any(table.shape != shape for table in tables):
            found = [list(table.shape) for table in tables]
            raise InputError(f"tables must be as many as their axes, of one shape, found {found}")
        for i, table in enumerate(tables):
            if not _sums_to_one(table, i):
                raise InputError(f"table {i} must be probabilities that sum to one along axis {i}")
        if alpha.shape != (len(tables),) or not bool((alpha >= 0).all()) or not abs(float(alpha.sum()) - 1) < 1e-6:
            raise InputError(f"alpha must be a probability for each of {len(tables)} groups, found {shown(self.alpha)}")
        object.__setattr__(self, "tables", tables)
        object.__setattr__(self, "alpha", alpha.tolist())

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tables[0].shape)

    def _groups(self) -> list[tuple[int, float, Tensor]]:
        return [(i, a, t) for i, (a, t) in enumerate(zip(self.alpha, self.tables, strict=True))]

    @cached_property
    def stay(self) -> Tensor:
        """p(x | x), the probability that the redrawn group keeps its value."""
        total = torch.zeros_like(self.tables[0])
        for _, a, t in self._groups():
            total.add_(t, alpha=a)
        return total

    def steps(self) -> Steps:
        return Steps(self.stay, [a * t for _, a, t in self._groups()])

    def push(self, r: Tensor) -> Tensor:
        total = torch.zeros_like(r)
        for i, a, t in self._groups():
            if a > 0:
                total.addcmul_(t, r.sum(i, keepdim=True), value=a)
        return total

    def only(self, i: int) -> GibbsKernel:
        """Return the kernel that redraws group i."""
        return GibbsKernel(self.tables, [float(i == j) for j in range(len(self.tables))])

    def restrict(self, keep: Sequence[Tensor]) -> GibbsKernel:
        """Return the kernel of the clamped chain: group i takes only the values `keep[i]` (indices)."""
        tables, alpha = [], []
        for i, a, t in self._groups():
            left = select(t, keep)
            total = left.sum(i, keepdim=True)
            if len(keep[i]) == 1:
                left = total = torch.ones_like(left)  # clamped, whatever its probability
            if not bool((total > 0).all()):
                raise InputError(f"the values left to group {i} have probability zero given some of the others")
            tables.append(left / total)
            alpha.append(a if len(keep[i]) > 1 else 0.0)
        return GibbsKernel(tables, [a / sum(alpha) for a in alpha] if sum(alpha) > 0 else list(self.alpha))


def require_kernel(what: str, kernel: object) -> None:
    """Refuse what is no kernel; `what` is the name of the argument."""
    if not isinstance(kernel, Kernel):
        found = f"the class {kernel.__name__}" if isinstance(kernel, type) else shown(kernel)
        raise InputError(f"{what} must be a kernel, such as GibbsKernel(tables, alpha), found {found}")


def as_table(what: str, found: object) -> Tensor:
    """Numbers as a float64 tensor, with their gradient if they have one."""
    plain = (
        isinstance(found, Tensor) and found.is_floating_point() and found.layout == torch.strided and not found.is_meta
    )
    return found.double() if isinstance(found, Tensor) and plain else as_numbers(what, found).double()


def as_law(what: str, found: object, shape: Sequence[int] | None = None) -> Tensor:
    """Probabilities as a float64 tensor, or refuse them.

    what: the name of the argument.
    shape: the shape that they must have.
    """
    p = as_weights(what, found, shape)
    if not abs(float(p.sum()) - 1) < 1e-6:
        raise InputError(f"{what} must be probabilities that sum to one, found {_extremes(p)}")
    return p if abs(float(p.sum()) - 1) < ROUNDING else p / p.sum()  # those of float32 sum to one only nearly


def as_weights(what: str, found: object, shape: Sequence[int] | None = None) -> Tensor:
    """Probabilities up to a factor as a float64 tensor, or refuse them."""
    p = as_table(what, found)
    if shape is not None and tuple(p.shape) != tuple(shape):
        raise InputError(f"{what} must have shape {list(shape)}, found {list(p.shape)}")
    if p.ndim == 0 or not bool(((p >= 0) & p.isfinite()).all()):
        raise InputError(f"{what} must be probabilities that sum to one, found {_extremes(p)}")
    return p


def _extremes(p: Tensor) -> str:
    least, total = (float(p.min()), float(p.sum())) if p.numel() else (0.0, 0.0)
    return f"the least {least:g} and the sum {total:g}"


def select(r: Tensor, keep: Sequence[Tensor]) -> Tensor:
    """Return the part of a table at the values `keep[i]` (indices) of every group i."""
    for axis, index in enumerate(keep):
        r = r.index_select(axis, index)
    return r


def sweep(kernel: GibbsKernel, scan: str = "systematic") -> Kernel:
    """Return one sweep over the free groups, those with more than one value.

    kernel: the Gibbs kernel.
    scan: "systematic" (each free group once, in turn) or "random" (as many steps of the kernel as free groups).
    """
    one_of("scan", scan, SCANS)
    if not isinstance(kernel, GibbsKernel):
        raise InputError(f"kernel must be a GibbsKernel, found {shown(kernel)}")
    free = [i for i, size in enumerate(kernel.shape) if size > 1]
    parts = [kernel.only(i) if scan == "systematic" else kernel for i in free] or [kernel]
    return parts[0] if len(parts) == 1 else Composed(parts)
