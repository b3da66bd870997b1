"""Limiting distributions of kernels and their reversal; the likelihood L of data, its bound L_B (eq:chain), and the
approximations F-hat and F of the bound (appendix B.1).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from paracond.data import InputError
from paracond.exact.kernels import DENSE, GibbsKernel, Kernel, MatrixKernel
from paracond.exact.regenerative import Regenerative

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

REDUCIBLE = "the chain cannot reach every state from every other; give each state a positive probability"


def limiting(kernel: Kernel) -> Tensor:
    """Return the limiting distribution: the unique p with p = push(p)."""
    size = math.prod(kernel.shape)
    if isinstance(kernel, Regenerative):
        p = kernel.limit()
    else:
        p = _solve(kernel.matrix()) if size <= DENSE else _krylov(kernel, size)
    p = p.clamp(min=0).view(kernel.shape)
    p = kernel.push(p / p.sum())  # what rounding left at zero is positive again
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
    return float(moduli.sort(descending=True).values[1]) if size > 1 else 0.0


def reverse(kernel: Kernel) -> MatrixKernel:
    """Return the reverse kernel p^r(x' | x) = p(x | x') p(x') / p(x), as a matrix."""
    p = limiting(kernel).flatten()
    if not bool((p > 0).all()):
        raise InputError("states of probability zero have no reverse; give each state a positive probability")
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
