"""The oracle computes the paper's quantities exactly, on a finite space, by enumeration.

Distributions are float64 tensors of shape (K_1, ..., K_m), one axis per group (one axis in all for a `MatrixKernel`).
Up to 2^16 states take seconds.

- `kernels`: kernels p(x | x') are applied to distributions and scored against each other: `Kernel`, `GibbsKernel`,
  `MatrixKernel`, `Composed`, `sweep`;
- `regenerative`: the kernel that begins anew, K = (1 - eps) G + eps b: `Regenerative`;
- `limits`: limiting distributions, reversal, the likelihood and its bounds: `limiting`, `mixing_rate`, `reverse`,
  `conditionals`, `detailed_balance_gap`, `consistency_gap`, `trajectory`, `kl`, `likelihood`, `lower_bound`, `f`,
  `f_hat`;
- `finite`: joint models, enumerated: `enumerate_model` makes a `Finite`; `clamped_gap`.

`help(pc.exact.Finite)` describes one class and its methods.
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
from paracond.short_help import names_of

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

__dir__ = names_of(__name__)
