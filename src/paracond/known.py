"""Known algorithms, by name: special cases of Algorithm 1 (`learner`) and of section 3 (`kernels`).

- Pseudo-likelihood (Besag 1975): complete data and n = 1. No value is redrawn before it is learned from, so the
  objective is the mean over groups of log p_i(x_i | x_-i).
- Wake-sleep (Hinton et al. 1995), and symmetric equilibrium learning (Flach et al. 2024), which has the same updates:
  n = 1 on two kinds of examples. In those of the data z is missing: step I draws z ~ p(z | x), and p(x | z) learns.
  In those of the prior x is missing: step I draws x ~ p(x | z), and p(z | x) learns. What was just drawn is left out of
  the loss (`skip_redrawn`), so no conditional learns from its own draws.
- Denoising diffusion (Ho et al. 2020), with a homogeneous chain: section 3 with a fixed q that only adds noise.
- Contrastive divergence is in `harmoniums`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paracond.joint import JointModel
from paracond.kernels import Kernel, KernelLearner
from paracond.learner import Learner
from paracond.state import Data, InputError, State


def pseudo_likelihood(model: JointModel, data: Data, **options) -> Learner:
    """Learns every p(x_i | x_-i) from complete data. Options are those of `Learner`."""
    _, mask = model.admit(data.state, data.mask)
    missing = [name for name, known in mask.items() if not bool(known.all())]
    if missing:
        raise InputError(f"pseudo-likelihood needs complete data; {', '.join(missing)} is missing in places")
    return Learner(model, data, chain_length=1, form="literal", **options)


def wake_sleep(model: JointModel, data: Data, prior: Tensor, **options) -> Learner:
    """Learns p(x | z) from data and p(z | x) from the prior, given as draws `[rows, *event]` of the group that the data
    lack; as many examples of either kind are used. Options are those of `Learner`."""
    observed = [name for name in model.names if name in data.state]
    latent = [name for name in model.names if name not in data.state]
    if len(observed) != 1 or len(latent) != 1 or not bool(data.mask[observed[0]].all()):
        raise InputError(f"wake-sleep needs one group observed and one not, found {observed} and {latent}")
    (x,), (z,) = observed, latent
    rows = max(len(data), len(prior))
    seen, dreamt = _repeated(data.state[x], rows), _repeated(prior, rows)
    state = {x: torch.cat([seen, torch.zeros_like(seen)]), z: torch.cat([torch.zeros_like(dreamt), dreamt])}
    awake = torch.arange(2 * rows) < rows
    return Learner(model, Data(state, {x: awake, z: ~awake}), chain_length=1, form="literal", **options)


def diffusion(kernel: Kernel, data: State, noise: Kernel, **options) -> KernelLearner:
    """Learns to undo `noise`. Options are those of `KernelLearner`."""
    return KernelLearner(kernel, data, q=noise, **options)


def _repeated(values: Tensor, rows: int) -> Tensor:
    """So many rows, each as often as the others or once more."""
    return values[torch.arange(rows) % len(values)]
