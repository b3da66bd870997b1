"""Known algorithms, by name: special cases of Algorithm 1 (`learner`) and of section 3 (`kernels`).

- Pseudo-likelihood (Besag 1975): complete data and n = 1. No value is redrawn before it is learned from, so the
  objective is the mean over groups of log p_i(x_i | x_-i).
- Symmetric equilibrium learning (Flach et al. 2024): a decoder p(x | z) and an encoder p(z | x) play a game, in which
  each ascends its own utility, given examples of x and a prior of z,

      decoder: E_data(x) E_p(z | x) log p(x | z),        encoder: E_prior(z) E_p(x | z) log p(z | x).

  This is n = 1 on two kinds of examples. An example of the data lacks z: step I draws z ~ p(z | x), and p(x | z)
  learns. An example of the prior lacks x: step I draws x ~ p(x | z), and p(z | x) learns. A conditional's own draws,
  whose gradient has mean zero, are left out of the loss (`skip_redrawn`). Where the data have z, both learn from the
  pair.
- Wake-sleep (Hinton et al. 1995): the same where the data never have z. (The prior is given, and does not learn.)
- Denoising diffusion (Ho et al. 2020), with a homogeneous chain: section 3 with a fixed q that only adds noise.
- Contrastive divergence is in `harmonium`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from paracond.data import Data, InputError, Mask, State, as_numbers, at_least, require_a
from paracond.model import JointModel, require_model
from paracond.theory.kernels import Kernel, KernelLearner
from paracond.training.completion import CompletionOptions
from paracond.training.learner import Learner

ONE_STEP = {"chain_length": 1, "form": "literal"}  # whose form skips values that were just redrawn


def pseudo_likelihood(model: JointModel, data: Data, **options) -> Learner:
    """Learns every p(x_i | x_-i) from complete data. Options are those of `Learner`."""
    _, mask = _validated("pseudo-likelihood", model, data)
    missing = [name for name, known in mask.items() if not bool(known.all())]
    if missing:
        raise InputError(f"pseudo-likelihood needs complete data; {', '.join(missing)} is missing in places")
    return Learner(model, data, **_with("pseudo-likelihood", options, ONE_STEP))


def symmetric_equilibrium(model: JointModel, data: Data, prior: Tensor, **options) -> Learner:
    """Learns p(x | z) from data that p(z | x) completes, and p(z | x) from draws `[rows, *event]` of the prior that
    p(x | z) completes; as many examples of either kind are used. z is the group that the data lack, in all rows or in
    some. Options are those of `Learner`."""
    return _game("symmetric equilibrium learning", model, data, prior, options)


def wake_sleep(model: JointModel, data: Data, prior: Tensor, **options) -> Learner:
    """`symmetric_equilibrium` of data that lack z in all rows: p(x | z) learns in the wake phase, from data, and
    p(z | x) in the sleep phase, from the prior."""
    _, mask = _validated("wake-sleep", model, data)
    partly = [name for name in model.names if bool(mask[name].any()) and not bool(mask[name].all())]
    if partly:
        raise InputError(
            f"{partly[0]!r} is observed in places: wake-sleep has no use for that, symmetric_equilibrium has"
        )
    return _game("wake-sleep", model, data, prior, options)


def diffusion(kernel: Kernel, data: Data | Mapping[str, Tensor], noise: Kernel, **options) -> KernelLearner:
    """Learns to undo `noise`. Options are those of `KernelLearner`."""
    require_a(Kernel, noise=noise)
    return KernelLearner(kernel, data, **_with("diffusion", options, {"q": noise}))


def _game(method: str, model: JointModel, data: Data, prior: Tensor, options: Mapping[str, Any]) -> Learner:
    values, known = _validated(method, model, data)
    observed = [name for name in model.names if bool(known[name].all())]
    latent = [name for name in model.names if name not in observed]
    if len(model.variables) != 2 or len(observed) != 1:
        raise InputError(f"{method} needs one group observed and one not, found {observed} and {latent}")
    completion = options.get("completion")
    if isinstance(completion, CompletionOptions):  # `Learner` refuses other kinds
        at_least({"completion steps": (completion.steps, 1)})
    (x,), (z,) = observed, latent
    draws = _draws(model, z, prior)
    rows = max(len(data), len(draws))
    seen, drawn = _repeated(values[x], rows), _repeated(draws, rows)
    state = {x: torch.cat([seen, torch.zeros_like(seen)]), z: torch.cat([_repeated(values[z], rows), drawn])}
    awake = torch.arange(2 * rows, device=model.device) < rows
    pairs = torch.cat([_repeated(known[z], rows), torch.ones_like(drawn, dtype=torch.bool)])
    return Learner(model, Data(state, {x: awake, z: pairs}), **_with(method, options, ONE_STEP))


def _draws(model: JointModel, name: str, prior: Tensor) -> Tensor:
    prior = as_numbers("prior", prior)
    if prior.ndim == 0 or len(prior) == 0:
        raise InputError(f"the prior of {name!r} must be draws, [rows, *event], found shape {list(prior.shape)}")
    return model.validate({name: prior})[0][name]


def _validated(method: str, model: JointModel, data: Data) -> tuple[State, Mask]:
    require_model(model)
    if not isinstance(data, Data):
        raise InputError(f"{method} takes Data(values), found {type(data).__name__}")
    return model.validate(data.state, data.mask)


def _with(method: str, options: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The options, and those that make the method what it is."""
    twice = [name for name in fixed if name in options]
    if twice:
        raise InputError(f"{twice[0]} is no option of {method}: it is {fixed[twice[0]]!r}")
    return {**options, **fixed}


def _repeated(values: Tensor, rows: int) -> Tensor:
    """So many rows, each as often as the others or once more."""
    return values[torch.arange(rows, device=values.device) % len(values)]
