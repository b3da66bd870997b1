"""Limiting distributions of kernels and their reversal; the likelihood L of data, its bound L_B (eq:chain), and the
approximations F-hat and F of the bound (appendix B.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from paracond.data import InputError, at_least, shown
from paracond.exact.kernels import DENSE, GibbsKernel, Kernel, MatrixKernel, as_law, require_kernel
from paracond.exact.regenerative import Regenerative

REDUCIBLE = (
    "the chain cannot, or hardly ever, reach every state from every other; give each state a positive probability"
)
EXACT = 1e-12  # |pK - p|, summed over states, that counts as rounding
ROUNDS = 40  # of refinement
NEAR = 1e-7  # what a round leaves, at best
KRYLOV = 100  # steps of a round
MOST_STEPS = 100_000  # of a trajectory, all of which is kept


def limiting(kernel: Kernel) -> Tensor:
    """Return the limiting distribution: the unique p with p = push(p). States that it never visits have exactly zero.

    The error is about the rounding, 1e-15, over the gap between 1 and the second eigenvalue (for `Regenerative`, over
    eps or more). Where that is too much to know p, the kernel is refused.
    """
    require_kernel("kernel", kernel)
    size = math.prod(kernel.shape)
    p = _solve(kernel.matrix()) if size <= DENSE else _krylov(kernel)
    p = p.clamp(min=0).view(kernel.shape)
    p = kernel.push(p / p.sum())  # what rounding left at zero is positive again
    gap = float((kernel.push(p) - p).abs().sum())
    if not gap < EXACT:
        raise InputError(f"no unique limiting distribution was found (|pK - p| = {gap:.1e}): {REDUCIBLE}")
    p = torch.where(_visited(kernel, p), p, 0)
    return p / p.sum()


def _solve(matrix: Tensor) -> Tensor:
    """Solve p (K - I) = 0 and p 1 = 1 as one regular system: p (I - K + 1 1^T / N) = 1^T / N."""
    size = len(matrix)
    system = torch.eye(size, dtype=torch.float64) - matrix + 1 / size
    solution, info = torch.linalg.solve_ex(system.T, torch.full((size,), 1 / size, dtype=torch.float64))
    if int(info) or not float(torch.linalg.cond(system, 1)) < 1e10:
        raise InputError(f"the limiting distribution is not unique: {REDUCIBLE}")
    return solution


def _krylov(kernel: Kernel) -> Tensor:
    """Find the limit, from two beginnings: they lead to the same only if it is unique. That of `Regenerative` is."""
    uniform = torch.ones(kernel.shape, dtype=torch.float64)
    p = _fixed_point(kernel, uniform / uniform.sum())
    if not isinstance(kernel, Regenerative):
        other = torch.empty_like(uniform).exponential_(generator=torch.Generator().manual_seed(0))
        gap = float((_fixed_point(kernel, other / other.sum()) - p).abs().sum())
        if not gap < 1e-6:
            raise InputError(
                f"the limiting distribution is not unique (two beginnings, limits {gap:.1e} apart): {REDUCIBLE}"
            )
    return p


def _fixed_point(kernel: Kernel, p: Tensor) -> Tensor:
    """Move a distribution to a fixed point of push: p + d with d - push(d) = push(p) - p.

    All this sums to zero, so the eigenvalue 1 does not slow it down; without `_centred`, rounding would bring it back.
    Refined, since rounding hides what is small beside the first change.
    """

    def system(d: Tensor) -> Tensor:
        d = d.view(kernel.shape)
        return _centred(d - kernel.push(d)).flatten()

    change = kernel.push(p) - p
    for _ in range(ROUNDS):
        if float(change.abs().sum()) < EXACT / 10:
            break
        moved = p + _gmres(system, _centred(change).flatten()).view(kernel.shape)
        left = kernel.push(moved) - moved
        if not bool(left.abs().sum() < change.abs().sum() / 2):
            break
        p, change = moved, left
    return p


def _gmres(system: Callable[[Tensor], Tensor], target: Tensor) -> Tensor:
    """Return the vector of a Krylov space whose image is nearest to `target` (Saad and Schultz 1986).

    SciPy's makes a hundred small calls per step, which is slow on a machine that is busy.
    """
    size = target.norm()
    basis = torch.zeros(KRYLOV + 1, len(target), dtype=torch.float64)
    images = torch.zeros(KRYLOV + 1, KRYLOV, dtype=torch.float64)  # of the basis, in the basis
    basis[0] = target / size
    for n in range(1, KRYLOV + 1):
        found, image = basis[:n], system(basis[n - 1])
        for _ in range(2):  # twice, so that the basis stays orthogonal
            part = found @ image
            image -= part @ found
            images[:n, n - 1] += part
        images[n, n - 1] = image.norm()
        basis[n] = image / image.norm()
        goal = torch.zeros(n + 1, 1, dtype=torch.float64)
        goal[0] = size
        solution = torch.linalg.lstsq(images[: n + 1, :n], goal, driver="gelsd").solution
        left = (images[: n + 1, :n] @ solution - goal).norm()
        if bool(left < NEAR * size) or not bool(image.norm() > 1e-14):
            break
    return solution[:, 0] @ found


def _centred(r: Tensor) -> Tensor:
    return r - r.mean()


def _visited(kernel: Kernel, p: Tensor) -> Tensor:
    """Return which states the limiting distribution p visits: those that can be reached from its most probable one."""
    reached = torch.zeros(p.numel(), dtype=torch.bool)
    reached[p.argmax()] = True
    while True:
        law = reached.double() / reached.sum()
        more = reached | (kernel.push(law.view(kernel.shape)).flatten() > 0)
        if torch.equal(more, reached):
            return reached.view(kernel.shape)
        reached = more


def mixing_rate(kernel: Kernel) -> float:
    """Return the second largest modulus of the eigenvalues: distances to the limit fall like rate^n."""
    require_kernel("kernel", kernel)
    size = math.prod(kernel.shape)
    if size <= DENSE:
        moduli = torch.linalg.eigvals(kernel.matrix()).abs()
        return float(moduli.sort(descending=True).values[1]) if size > 1 else 0.0
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs  # here: slow to import

    def push(vector: np.ndarray) -> np.ndarray:
        """K on differences of distributions, which sum to zero; constants go to zero."""
        law = torch.as_tensor(vector).view(kernel.shape)
        return kernel.push(_centred(law)).flatten().numpy()

    first = np.random.default_rng(0).standard_normal(size)
    try:
        (value,) = eigs(
            LinearOperator((size, size), matvec=push, dtype=float),
            k=1,
            v0=first,
            ncv=60,
            tol=1e-8,
            return_eigenvectors=False,
        )
    except ArpackNoConvergence:
        raise InputError("the second eigenvalue was not found") from None
    return float(abs(value))


def reverse(kernel: Kernel) -> MatrixKernel:
    """Return the reverse kernel p^r(x' | x) = p(x | x') p(x') / p(x), as a matrix."""
    p = limiting(kernel).flatten()
    if not bool((p > 0).all()):
        raise InputError("states of probability zero have no reverse; give each state a positive probability")
    return MatrixKernel(kernel.matrix().T * p / p[:, None])


def conditionals(p: Tensor) -> list[Tensor]:
    """Return the conditionals p(x_i | x_-i) of a joint distribution, in the form of `GibbsKernel.tables`."""
    p = as_law("p", p)
    return [p / p.sum(i, keepdim=True) for i in range(p.ndim)]


def detailed_balance_gap(kernel: Kernel) -> float:
    """Return sum_x p(x) KL(p(x' | x) || p^r(x' | x)) in nats per step, which is zero iff detailed balance holds.

    It is the loss per step of eq:chain_kl at the limit. The terms in log p(x) cancel by stationarity.
    """
    p = limiting(kernel)
    return float(kernel.forward_score(p) - kernel.backward_score(p, kernel))


def consistency_gap(kernel: GibbsKernel) -> float:
    """Return max |p_i(x_i | x_-i) - p(x_i | x_-i)|, which is zero iff the conditionals are consistent (T1). Where
    p(x_-i) is zero there is nothing to compare."""
    if not isinstance(kernel, GibbsKernel):
        raise InputError(f"kernel must be a GibbsKernel, found {shown(kernel)}")
    p = limiting(kernel)
    gaps = [(a - b).abs() for a, b in zip(kernel.tables, conditionals(p), strict=True)]
    return max(float(gap.nan_to_num(0).max()) for gap in gaps)


# --- likelihood and bounds --------------------------------------------------------------------------------------


def trajectory(q: Kernel, data: Tensor, n: int) -> list[Tensor]:
    """Return the distributions q_1 = data, q_k = push(q_k-1), ..., q_n+1."""
    require_kernel("q", q)
    at_least({"n": (n, 1)}, MOST_STEPS)
    laws = [as_law("data", data, q.shape)]
    for _ in range(n):
        laws.append(q.push(laws[-1]))
    return laws


def kl(p: Tensor, q: Tensor) -> float:
    """Return KL(p || q) in nats."""
    p = as_law("p", p)
    q = as_law("q", q, p.shape)
    return float((torch.xlogy(p, p) - torch.xlogy(p, q)).sum())


def likelihood(data: Tensor, kernel: Kernel) -> Tensor:
    """Return L = sum_x data(x) log p(x), with p the limiting distribution."""
    p = limiting(kernel)
    return torch.xlogy(as_law("data", data, p.shape), p).sum()


def f_hat(data: Tensor, p: Kernel, q: Kernel, n: int) -> Tensor:
    """Return F-hat = n sum Q_n(x) q(x' | x) [log p(x | x') - log q(x' | x)], the second term of eq:chain."""
    require_kernel("p", p)
    weights = torch.stack(trajectory(q, data, n)[:n]).sum(0)
    return q.backward_score(weights, p) - q.forward_score(weights)


def f(data: Tensor, p: Kernel, q: Kernel, n: int) -> Tensor:
    """Return F = F-hat + sum q_n(x) q(x' | x) log q(x' | x), eq. hatF."""
    require_kernel("q", q)
    return q.forward_score(trajectory(q, data, n)[n - 1]) + f_hat(data, p, q, n)


def lower_bound(data: Tensor, p: Kernel, q: Kernel, n: int) -> Tensor:
    """Return L_B of eq:chain."""
    return torch.xlogy(trajectory(q, data, n)[n], limiting(p)).sum() + f_hat(data, p, q, n)
