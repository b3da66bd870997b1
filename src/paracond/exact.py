"""The oracle computes the paper's quantities exactly, on a finite space, by enumeration.

Kernels (section 3). A kernel p(x | x') is applied to distributions and scored against another, q:

    push(r)(x)           = sum_x' p(x | x') r(x')
    forward_score(Q)     = sum_x,x' Q(x) q(x' | x) log q(x' | x)
    backward_score(Q, p) = sum_x,x' Q(x) q(x' | x) log p(x | x')

and these give the likelihood L, its bound L_B (eq:chain) and the approximations F-hat and F (appendix B.1).
`MatrixKernel` is any kernel as a dense matrix. `GibbsKernel` is eq:gibbs_transition as tables over the groups: the sum
over x' is a sum over one group at a time, and a move in group i has the score alpha_i p_i(x_i | x_-i) whatever the new
value is. So all three take O(groups * states) and need no matrix: 2^16 states take seconds.

Distributions are float64 tensors of shape (K_1, ..., K_m), one axis per group (one axis in all for a `MatrixKernel`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from paracond.data import InputError, Observed, State
from paracond.model import JointModel

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

DENSE = 1024  # up to this many states, linear algebra is dense
CHUNK = 16384  # states per forward pass when tables are made
MOST = 2**16
REDUCIBLE = "the chain cannot reach every state from every other; give each state a positive probability"


class Kernel(Protocol):
    """A transition kernel on a finite space."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def push(self, r: Tensor) -> Tensor: ...
    def forward_score(self, weights: Tensor) -> Tensor: ...
    def backward_score(self, weights: Tensor, p) -> Tensor: ...
    def matrix(self) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class MatrixKernel:
    """Any kernel as a dense matrix, `transition[a, b]` = p(b | a), float64."""

    transition: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.transition),)

    def push(self, r: Tensor) -> Tensor:
        return r @ self.transition

    def forward_score(self, weights: Tensor) -> Tensor:
        return (weights[:, None] * torch.xlogy(self.transition, self.transition)).sum()

    def backward_score(self, weights: Tensor, p: MatrixKernel) -> Tensor:
        return torch.xlogy(weights[:, None] * self.transition, p.transition.T).sum()

    def matrix(self) -> Tensor:
        return self.transition


@dataclass(frozen=True, eq=False)
class GibbsKernel:
    """The kernel of eq:gibbs_transition, as tables p_i(x_i | x_-i) at every x, which sum to one along axis i."""

    tables: Sequence[Tensor]
    alpha: Sequence[float]

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

    def push(self, r: Tensor) -> Tensor:
        total = torch.zeros_like(r)
        for i, a, t in self._groups():
            total.addcmul_(t, r.sum(i, keepdim=True), value=a)
        return total

    def forward_score(self, weights: Tensor) -> Tensor:
        total = torch.xlogy(weights * self.stay, self.stay).sum()
        for i, a, t in self._groups():
            elsewhere = weights.sum(i, keepdim=True) - weights  # mass of the states that differ only in group i
            total = total + torch.xlogy(elsewhere * a * t, a * t).sum()
        return total

    def backward_score(self, weights: Tensor, p: GibbsKernel) -> Tensor:
        total = torch.xlogy(weights * self.stay, p.stay).sum()
        for a, t, pa, pt in zip(self.alpha, self.tables, p.alpha, p.tables, strict=True):
            total = total + torch.xlogy(weights * a * (1 - t), pa * pt).sum()
        return total

    def matrix(self) -> Tensor:
        """Return the dense kernel [from, to] over flattened states."""
        size = math.prod(self.shape)
        if size > 8 * DENSE:
            raise InputError(f"a dense kernel of {size} x {size} would not fit; use push")
        unit = torch.eye(size, dtype=torch.float64)
        return torch.stack([self.push(row.view(self.shape)).flatten() for row in unit])

    def restrict(self, keep: Sequence[Tensor]) -> GibbsKernel:
        """Return the kernel of the clamped chain: group i takes only the values `keep[i]` (indices)."""
        tables, alpha = [], []
        for i, a, t in self._groups():
            for axis, index in enumerate(keep):
                t = t.index_select(axis, index)
            tables.append(t / t.sum(i, keepdim=True))
            alpha.append(a if len(keep[i]) > 1 else 0.0)
        return GibbsKernel(tables, [a / sum(alpha) for a in alpha] if sum(alpha) > 0 else list(self.alpha))


# --- limiting distributions and reversal ------------------------------------------------------------------------


def limiting(kernel: Kernel) -> Tensor:
    """Return the limiting distribution: the unique p with p = push(p)."""
    size = math.prod(kernel.shape)
    p = _solve(kernel.matrix()) if size <= DENSE else _krylov(kernel, size)
    p = p.clamp(min=0) / p.clamp(min=0).sum()
    p = p.view(kernel.shape)
    gap = float((kernel.push(p) - p).abs().sum())
    if not gap < 1e-9:
        raise InputError(f"no unique limiting distribution was found (|pK - p| = {gap:.1e}): {REDUCIBLE}")
    return p


def _solve(matrix: Tensor) -> Tensor:
    """Solve p (K - I) = 0 and p 1 = 1 as one regular system: p (I - K + 1 1^T) = 1^T."""
    size = len(matrix)
    system = torch.eye(size, dtype=torch.float64) - matrix + 1
    solution, info = torch.linalg.solve_ex(system.T, torch.ones(size, dtype=torch.float64))
    if int(info) or float(torch.linalg.cond(system)) > 1e13:
        raise InputError(f"the limiting distribution is not unique: {REDUCIBLE}")
    return solution


def _krylov(kernel: Kernel, size: int) -> Tensor:
    """Find the leading eigenvector by Arnoldi iteration."""
    from scipy.sparse.linalg import ArpackNoConvergence, eigs  # here: slow to import

    uniform = np.full(size, 1 / size)
    try:
        values, vectors = eigs(_operator(kernel), k=2, which="LR", v0=uniform, tol=1e-12)
    except ArpackNoConvergence:
        raise InputError("the limiting distribution was not found: the chain mixes too slowly") from None
    order = np.argsort(-values.real)
    if values[order[1]].real > 1 - 1e-10:
        raise InputError(f"the limiting distribution is not unique: {REDUCIBLE}")
    vector = torch.as_tensor(vectors[:, order[0]].real.copy())
    return vector / vector.sum()


def _operator(kernel: Kernel) -> LinearOperator:
    from scipy.sparse.linalg import LinearOperator

    def push(vector: np.ndarray) -> np.ndarray:
        return kernel.push(torch.as_tensor(vector).view(kernel.shape)).flatten().numpy()

    size = math.prod(kernel.shape)
    return LinearOperator((size, size), matvec=push, dtype=float)


def mixing_rate(kernel: Kernel) -> float:
    """Return the second largest modulus of the eigenvalues: distances to the limit fall like rate^n."""
    size = math.prod(kernel.shape)
    if size <= DENSE:
        moduli = torch.linalg.eigvals(kernel.matrix()).abs()
    else:
        from scipy.sparse.linalg import eigs

        moduli = torch.as_tensor(np.abs(eigs(_operator(kernel), k=2, return_eigenvectors=False)))
    return float(moduli.sort(descending=True).values[1])


def reverse(kernel: Kernel) -> MatrixKernel:
    """Return the reverse kernel p^r(x' | x) = p(x | x') p(x') / p(x), as a matrix."""
    p = limiting(kernel).flatten()
    return MatrixKernel(kernel.matrix().T * p / p[:, None])


def conditionals(p: Tensor) -> list[Tensor]:
    """Return the conditionals p(x_i | x_-i) of a joint distribution, in the form of `GibbsKernel.tables`."""
    return [p / p.sum(i, keepdim=True) for i in range(p.ndim)]


def detailed_balance_gap(kernel: Kernel) -> float:
    """Return sum_x p(x) KL(p(x' | x) || p^r(x' | x)) in nats per step, which is zero iff detailed balance holds.

    It is the loss per step of eq:chain_kl at the limit. The terms in log p(x) cancel by stationarity.
    """
    p = limiting(kernel)
    return float(kernel.forward_score(p) - kernel.backward_score(p, kernel))


def consistency_gap(kernel: GibbsKernel) -> float:
    """Return max |p_i(x_i | x_-i) - p(x_i | x_-i)|, which is zero iff the conditionals are consistent (T1)."""
    implied = conditionals(limiting(kernel))
    return max(float((a - b).abs().max()) for a, b in zip(kernel.tables, implied, strict=True))


# --- likelihood and bounds --------------------------------------------------------------------------------------


def trajectory(q: Kernel, data: Tensor, n: int) -> list[Tensor]:
    """Return the distributions q_1 = data, q_k = push(q_k-1), ..., q_n+1."""
    laws = [data]
    for _ in range(n):
        laws.append(q.push(laws[-1]))
    return laws


def kl(p: Tensor, q: Tensor) -> float:
    """Return KL(p || q) in nats."""
    return float((torch.xlogy(p, p) - torch.xlogy(p, q)).sum())


def likelihood(data: Tensor, kernel: Kernel) -> Tensor:
    """Return L = sum_x data(x) log p(x), with p the limiting distribution."""
    return torch.xlogy(data, limiting(kernel)).sum()


def f_hat(data: Tensor, p: Kernel, q: Kernel, n: int) -> Tensor:
    """Return F-hat = n sum Q_n(x) q(x' | x) [log p(x | x') - log q(x' | x)], the second term of eq:chain."""
    weights = torch.stack(trajectory(q, data, n)[:n]).sum(0)
    return q.backward_score(weights, p) - q.forward_score(weights)


def f(data: Tensor, p: Kernel, q: Kernel, n: int) -> Tensor:
    """Return F = F-hat + sum q_n(x) q(x' | x) log q(x' | x), eq. hatF."""
    return q.forward_score(trajectory(q, data, n)[n - 1]) + f_hat(data, p, q, n)


def lower_bound(data: Tensor, p: Kernel, q: Kernel, n: int) -> Tensor:
    """Return L_B of eq:chain."""
    return torch.xlogy(trajectory(q, data, n)[n], limiting(p)).sum() + f_hat(data, p, q, n)


# --- finite joint models ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Finite:
    """A joint model of finite groups, enumerated: every value of each group, and every joint state, in the order of the
    flattened axes."""

    names: tuple[str, ...]
    values: dict[str, Tensor]
    kernel: GibbsKernel
    states: State = field(repr=False)

    def limiting(self) -> Tensor:
        """Return the joint distribution, `[K_1, ..., K_m]`."""
        return limiting(self.kernel)

    def clamped(self, given: Mapping[str, Tensor | Observed]) -> tuple[GibbsKernel, dict[str, Tensor]]:
        """Return the kernel of the clamped chain, and the values left to each group. `given` has no batch axis."""
        keep = [self._compatible(name, given.get(name)) for name in self.names]
        left = {name: self.values[name][index] for name, index in zip(self.names, keep, strict=True)}
        return self.kernel.restrict(keep), left

    def posterior(self, given: Mapping[str, Tensor | Observed]) -> Tensor:
        """Return p(x | given) over all states; it is zero where they contradict the given values."""
        p = self.limiting()
        for axis, name in enumerate(self.names):
            fits = torch.zeros(p.shape[axis], dtype=p.dtype)
            fits[self._compatible(name, given.get(name))] = 1
            p = p * fits.view([-1 if a == axis else 1 for a in range(p.ndim)])
        return p / p.sum()

    def marginal(self, p: Tensor, name: str) -> Tensor:
        """Return the marginal p(x_name), `[K_name]`."""
        axis = self.names.index(name)
        return p.sum([a for a in range(p.ndim) if a != axis]) if p.ndim > 1 else p

    def _compatible(self, name: str, known: Tensor | Observed | None) -> Tensor:
        """Return the indices of the values of a group that agree with its known coordinates."""
        values = self.values[name]
        if known is None:
            return torch.arange(len(values))
        observed = known if isinstance(known, Observed) else Observed(known)
        same = values == torch.as_tensor(observed.value).to(values.dtype)
        if observed.mask is not None:
            same = same | ~observed.mask
        return same.reshape(len(values), -1).all(1).nonzero().squeeze(1)


@torch.no_grad()
def enumerate_model(model: JointModel) -> Finite:
    """Enumerate a joint model of at most 2^16 states, in float64. Context groups take their defaults."""
    values = {name: model.variables[name].values() for name in model.names}
    sizes = [len(v) for v in values.values()]
    if math.prod(sizes) > MOST:
        raise InputError(f"{math.prod(sizes)} states are too many to enumerate (at most {MOST})")
    axes = torch.meshgrid(*[torch.arange(k) for k in sizes], indexing="ij")
    states = {name: v[index.flatten()] for (name, v), index in zip(values.items(), axes, strict=True)}
    double = copy.deepcopy(model).to("cpu", torch.float64)
    stored = {name: model.variables[name].store(v, torch.float64) for name, v in states.items()}
    for name, group in model.context.items():
        stored[name] = group.values(name, math.prod(sizes), torch.float64, torch.device("cpu"))
    tables = []
    for axis, name in enumerate(model.names):
        table = torch.cat([_probabilities(double, name, stored, first) for first in range(0, math.prod(sizes), CHUNK)])
        table = table.view(sizes)
        tables.append(table / table.sum(axis, keepdim=True))
    return Finite(model.names, values, GibbsKernel(tables, [model.alpha[n] for n in model.names]), states)


def _probabilities(model: JointModel, name: str, states: State, first: int) -> Tensor:
    chunk = {k: v[first : first + CHUNK] for k, v in states.items()}
    return model(name, chunk).log_prob(chunk[name]).exp()
