"""The oracle computes the paper's quantities exactly, on a finite space, by enumeration.

Distributions are float64 tensors of shape (K_1, ..., K_m), one axis per group (one axis in all for a `MatrixKernel`).
Up to 2^16 states take seconds.

- `kernels`: kernels p(x | x') are applied to distributions and scored against each other;
- `regenerative`: the kernel that begins anew, K = (1 - eps) G + eps b;
- `limits`: limiting distributions, reversal, the likelihood and its bounds;
- `finite`: joint models, enumerated.
"""

from paracond.exact.finite import Finite, clamped_gap, enumerate_model
from paracond.exact.kernels import Composed, GibbsKernel, Kernel, MatrixKernel, sweep
from paracond.exact.limits import (
    conditionals,
    consistency_gap,
    detailed_balance_gap,
    f,
    f_hat,
    kl,
    likelihood,
    limiting,
    lower_bound,
    mixing_rate,
    reverse,
    trajectory,
)
from paracond.exact.regenerative import Regenerative

__all__ = [
    "Composed",
    "Finite",
    "GibbsKernel",
    "Kernel",
    "MatrixKernel",
    "Regenerative",
    "clamped_gap",
    "conditionals",
    "consistency_gap",
    "detailed_balance_gap",
    "enumerate_model",
    "f",
    "f_hat",
    "kl",
    "likelihood",
    "limiting",
    "lower_bound",
    "mixing_rate",
    "reverse",
    "sweep",
    "trajectory",
]
