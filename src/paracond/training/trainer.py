"""Gradient steps on the conditionals of a joint model: what its learners have in common.

Every conditional has an optimiser of its own, and moving averages of its parameters, for inference:

    theta_i <- optimiser_i(theta_i, grad_i),        mean_i <- mean_i + w (theta_i - mean_i).

Which objective the gradient is of, and on which states it is taken, is the learner's choice (`learner`, `directed`).
Programs (see `engine`) hold on to the tensors here, so they stay where they are. A gradient that is not finite changes
nothing (see `faults`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from paracond.data import Data, InputError, at_least, one_of
from paracond.model import JointModel
from paracond.runtime.engine import Engine, Working
from paracond.runtime.nonfinite import Faults
from paracond.training.async_completion import Beside
from paracond.training.completion import Completion
from paracond.training.schedules import Schedule, as_schedule
from paracond.training.stepwise import Stepwise

Optimiser = Callable[[str, Iterable[nn.Parameter]], torch.optim.Optimizer]
Rate = float | Schedule
Info = TypeVar("Info")


def adam(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The default optimiser of every conditional."""
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)


class Descent(Stepwise[Info, JointModel]):
    """Owns the model, its averages, optimisers, random state and faults. The subclass makes `completion`, from which
    its examples come, and its programs."""

    completion: Completion
    beside: Beside | None = None

    def __init__(
        self,
        model: JointModel,
        data: Data,
        *,
        batch_size: int,
        learning_rate: Rate | Mapping[str, Rate] | None,
        optimiser: Optimiser,
        clip: float | None,
        average: float,
        engine: str | Engine,
        seed: int,
    ):
        at_least({"batch_size": (batch_size, 1)})
        numbers = all(isinstance(number, (int, float)) for number in (average, clip or 1.0))
        if not numbers or not 0 <= average < 1 or (clip is not None and not clip > 0):
            raise InputError(f"average must be in [0, 1) and clip positive, found {average} and {clip}")
        if not isinstance(model, JointModel):
            raise InputError(f"a {type(self).__name__} takes a JointModel, found {type(model).__name__}")
        if not isinstance(data, Data):
            raise InputError(f"a {type(self).__name__} takes Data(values, mask), found {type(data).__name__}")
        self.model = model
        self.engine = engine if isinstance(engine, Engine) else Engine(model.device, engine)
        self.rates = _rates(model, learning_rate)
        self.batch_size, self.clip, self.decay = batch_size, clip, average
        self.generator = model.generator(seed)
        self.host = torch.Generator().manual_seed(seed)  # choices that are made on the host
        self.step_count = 0
        self.faults = Faults(model.names, self.engine)
        self._make_optimisers(optimiser)
        device = model.device
        self.weight = torch.ones((), device=device)  # of the new parameters in their moving average
        self.losses = {n: torch.zeros((), device=device, dtype=model.dtype) for n in model.names}

    def _make_optimisers(self, optimiser: Optimiser) -> None:
        model, engine = self.model, self.engine
        engine.prepare(model.train())
        self.averaged = copy.deepcopy(model).requires_grad_(False).eval()
        self.parameters = {n: [p for p in model.conditional(n).parameters() if p.requires_grad] for n in model.names}
        if not any(self.parameters.values()):
            raise InputError("no conditional has a parameter to learn; model.requires_grad_(True) lets them learn (on)")
        self.learns_start = {n: _start_learns(model, n) for n in model.names}  # one that was fitted does not
        self.optimisers = {name: optimiser(name, learned) for name, learned in self.parameters.items() if learned}
        for name, made in self.optimisers.items():
            engine.capturable(name, made)
        self.working = engine.working(model)
        for name in model.names:
            engine.fused(self.working.model.conditional(name).network)
        pairs = {n: (self.averaged.conditional(n), model.conditional(n)) for n in model.names}
        self.averages: dict[str, list[Tensor]] = {
            n: [a for a, p in zip(mean.parameters(), now.parameters(), strict=True) if p.requires_grad]
            for n, (mean, now) in pairs.items()
        }
        self.buffers = {n: list(zip(mean.buffers(), now.buffers(), strict=True)) for n, (mean, now) in pairs.items()}
        self.updates = dict.fromkeys(model.names, 0)

    def _completing(self, completed_by: str) -> JointModel:
        """The model that completes examples: as it is, or its average, which moves slowly."""
        one_of("completed_by", completed_by, ("model", "average"))
        return self.model if completed_by == "model" else self.averaged

    def _working_of(self, model: JointModel) -> Working[JointModel]:
        """The model or its average, as programs evaluate it."""
        return self.working if model is self.model else self.engine.working(model)

    @property
    def result(self) -> JointModel:
        """The averaged model."""
        return self.averaged

    def finish(self) -> None:
        self.faults.raise_first()

    # --- for checkpoints ----------------------------------------------------------------------------------------

    def kept(self) -> dict[str, Tensor]:
        """Tensors of its own, besides those of `Descent` and its completion, that the next update depends on."""
        return {}

    def counts(self) -> dict[str, Any]:
        """Numbers of its own that the next update depends on."""
        return {}

    def set_counts(self, found: Mapping[str, Any]) -> None:
        """The inverse of `counts`."""

    def identity(self) -> dict[str, str]:
        """What else must be the same in the learner that goes on from a checkpoint."""
        return {}

    # --- one gradient step --------------------------------------------------------------------------------------

    def _set_rates(self, name: str) -> None:
        """The learning rate, and the weight in the moving average: larger at first, to forget the random start."""
        self.weight.fill_(max(1 - self.decay, 10 / (self.updates[name] + 11)))
        if name not in self.rates or name not in self.optimisers:
            return
        rate = self.rates[name](self.step_count)
        for group in self.optimisers[name].param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _gradients(self, objective: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Backpropagate to the conditionals of `names`; returns the norms of their gradients, before clipping."""
        learned = [name for name in names if name in self.optimisers]
        for name in learned:
            self.optimisers[name].zero_grad()
        if learned:
            objective.backward()
        return {name: self._norm(name) if name in learned else torch.zeros_like(objective) for name in names}

    def _norm(self, name: str) -> Tensor:
        self.working.return_gradients(self.model.conditional(name))
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters[name] if p.grad is not None])
        if self.clip is not None:
            nn.utils.clip_grads_with_norm_(self.parameters[name], self.clip, norm)
        return norm

    def _descend(self, name: str, good: Tensor) -> None:
        optimiser = self.optimisers.get(name)
        if optimiser is None:
            return
        if self.engine.captures:  # a fused optimiser leaves everything as it is where this is not zero
            optimiser.found_inf = (~good).float()  # type: ignore[attr-defined]
        optimiser.step()
        with torch.no_grad():
            now = [p.detach() for p in self.parameters[name]]
            weight = self.weight * good if self.engine.captures else float(self.weight)
            self.engine.move_towards(self.averages[name], now, weight)
            for average, value in self.buffers[name]:
                average.copy_(value)


def _start_learns(model: JointModel, name: str) -> bool:
    named = model.conditional(name).named_parameters()
    return any(parameter.requires_grad for key, parameter in named if key.startswith("start."))


def _rates(model: JointModel, learning_rate: Rate | Mapping[str, Rate] | None) -> dict[str, Schedule]:
    """The learning rates that override those of optimisers, by name."""
    if learning_rate is None:
        return {}
    if not isinstance(learning_rate, Mapping):
        return dict.fromkeys(model.names, as_schedule("learning_rate", learning_rate))
    for name in learning_rate:
        model.conditional(name)  # refuses unknown names, and conditions
    return {name: as_schedule(f"learning_rate of {name!r}", rate) for name, rate in learning_rate.items()}
