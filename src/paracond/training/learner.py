"""Algorithm 1: learning a joint distribution from examples with any pattern of missing values.

I.  Complete the example (see `completion`): draw its missing values by the model, with the observed ones clamped.
II. Learn: n times, choose a group i by the scan, update theta_i along grad log p_theta_i(x_i | x_-i), redraw x_i.

`running_batch` holds the chains of step II, and says when fresh examples replace them. Each update redraws with the
parameters before it (section 3: the sequence is sampled from q^(t)), so that one forward pass serves score and draw;
`literal` has the order that Algorithm 1 prints.

n = 1 on complete data is pseudo-likelihood.

An initializer p_0(x_i | .) that was not fitted learns with its conditional, from the same values. It takes no part in
the chain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paracond import initializers
from paracond.chain import Model, Move, Scan, transition
from paracond.data import Data, InputError, shown
from paracond.distributions import Distribution
from paracond.model import JointModel
from paracond.regeneration import choose_regeneration
from paracond.runtime.engine import Engine
from paracond.training.async_completion import AsyncCompletion
from paracond.training.completion import Augment, Completion, CompletionOptions
from paracond.training.running_batch import FORMS, RunningForm
from paracond.training.schedules import Schedule, as_schedule
from paracond.training.trainer import Optimiser, Rate, Trainer, adam, modes_kept


@dataclass(frozen=True, eq=False)
class Info:
    """One update. `loss` is the mean of -log p(x_i | x_-i) over the batch, a tensor (reading it waits for the
    device)."""

    step: int
    variable: str
    loss: Tensor
    chain_length: float


class Scored:
    """Evaluates and scores a conditional in one pass, which is one compiled function where the engine compiles."""

    objective: Tensor
    loss: Tensor

    def __init__(self, evaluate: Callable[[str, Mapping[str, Tensor]], tuple[Distribution, Tensor, Tensor]]):
        self.evaluate = evaluate

    def __call__(self, name: str, state: Mapping[str, Tensor]) -> Distribution:
        distribution, self.objective, self.loss = self.evaluate(name, state)
        return distribution


class Learner(Trainer[Info]):
    """Learns a joint model from data with any pattern of missing values: `model = Learner(model, data).fit(steps)`.

    `for info in learner.run(steps)` yields an `Info` per update. `learner.averaged` is the model with moving-average
    weights, which `fit` returns. `learner.save(folder)` and `learner.resume(folder)` write and read checkpoints.

    Main arguments:

    model: the `JointModel` to train; it is changed in place.
    data: the examples, `Data(values, mask)`.
    chain_length: n, the expected number of updates between data and replacement; a number or a function of the step.
    batch_size: the number of chains.
    learning_rate: a number or a function of the step, or a mapping from groups to these; None leaves it to the
        optimiser (1e-3 by default).
    augment: `augment(state, generator)` changes examples each time they are used.
    seed: fixes all randomness but that of layers such as dropout, which `torch.manual_seed` fixes.

    Other arguments:

    completion: how missing values are completed, `CompletionOptions`.
    form: "running" or "literal", or an object of `training.running_batch` for other choices.
    optimiser: `optimiser(name, parameters)` makes the optimiser of each conditional (default: Adam).
    average: the decay of the moving averages.
    engine: how updates run, "auto", "eager", "rounded" or "graphs", or an `Engine`.
    """

    def __init__(
        self,
        model: JointModel,
        data: Data,
        *,
        chain_length: float | Schedule = 4,
        batch_size: int = 256,
        learning_rate: Rate | Mapping[str, Rate] | None = None,
        augment: Augment | None = None,
        completion: CompletionOptions | None = None,
        form: str | RunningForm = "running",
        optimiser: Optimiser = adam,
        average: float = 0.999,
        engine: str | Engine = "auto",
        seed: int = 0,
    ):
        options = CompletionOptions() if completion is None else completion
        if not isinstance(options, CompletionOptions):
            raise InputError(f"completion must be CompletionOptions(...), found {shown(completion)}")
        if augment is not None and not callable(augment):
            raise InputError(f"augment must be a function of a state and a generator, found {shown(augment)}")
        self.form = _form(form)
        self.chain_length = as_schedule("chain_length", chain_length, least=1)
        with modes_kept(model):
            super().__init__(
                model,
                data,
                batch_size=batch_size,
                learning_rate=learning_rate,
                optimiser=optimiser,
                average=average,
                engine=engine,
                seed=seed,
            )
            self.scan = Scan(model.names, model.alpha, self.form.scan, self.host)
            self._make_source(data, options, augment)
        self.batch = self.form.make_batch(model, self.batch_size, self.source, self.resources)
        self.evaluate = self.engine.fused(self._evaluate)
        self.update = {n: self.engine.program(self._update, self.generator, n) for n in model.names}

    def _summary(self) -> dict[str, str]:
        length = self.chain_length(max(0, self.step_count - 1))  # of the last update
        shown = f"{length:g}" if isinstance(length, (int, float)) else repr(length)
        return super()._summary() | {"chain length": shown}

    def fit(self, steps: int, progress: bool | None = None, held_out: Data | None = None) -> JointModel:
        """Do `steps` updates; returns the averaged model.

        held_out: examples that the data lack. How the model begins anew when it is asked (`model.regeneration`) is
            then chosen on them, by `choose_regeneration`.
        """
        model = super().fit(steps, progress)
        if held_out is not None:
            self.model.regeneration = model.regeneration = choose_regeneration(model, held_out)
        return model

    def _make_source(self, data: Data, options: CompletionOptions, augment: Augment | None) -> None:
        by = self.model if options.by == "model" else self.averaged
        if options.parallel:
            parallel = AsyncCompletion(by, data, self.batch_size, options, augment, self.resources)
            self.source, self.completion = parallel, parallel.completion
        else:
            rounded = self._rounded_of(by)
            self.completion = Completion(by, data, self.batch_size, options, augment, rounded, self.resources)
            self.source = self.completion

    def step(self) -> Info:
        """One update of one conditional, and one redraw of its group."""
        length = self.chain_length(self.step_count)
        if not 1 <= length < math.inf:
            raise InputError(f"chain_length must be at least 1, found {length} at step {self.step_count}")
        rates = self._rates_now()
        self.guard.raise_if_seen(self.step_count)
        replaced = self.batch.replace_due(length, self.step_count)  # by examples that step I has completed
        if replaced and self.batch.resets_scan and self.step_count > 0:
            self.scan.reset()
        self.source.advance(self.batch.rows / self.batch_size / length)
        name = self.scan.next()
        self._set_rates(name, rates)
        self.update[name]()
        self.updates[name] += 1
        self.step_count += 1
        return Info(self.step_count, name, self.losses[name].clone(), length)

    def _update(self, name: str) -> None:
        """Step II: ascend log p_theta_i(x_i | x_-i), and redraw x_i."""
        scored = Scored(self.evaluate)
        move = self._transition(scored, name)
        good = self._check(move, scored.objective, scored.loss)
        good = self._descend([name], good)
        self._record(move, good, scored.loss)

    def _transition(self, model: Model, name: str) -> Move:
        self.rounded.refresh(self.model.conditional(name))
        return transition(model, name, self.batch.state, self.batch.clamp(name), self.generator)

    def _evaluate(self, name: str, state: Mapping[str, Tensor]) -> tuple[Distribution, Tensor, Tensor]:
        """p(x_i | x_-i), the objective to descend, and the mean of -log p(x_i | x_-i) over the batch, to show."""
        with self.engine.precision():
            distribution = self.rounded.model(name, state)
        scores, ignored = distribution.scores(self.batch.target(name)), self.batch.ignored(name)
        learned = scores if ignored is None else torch.where(_like(ignored, scores), 0, scores)
        objective = -learned.sum() / self.batch_size
        if self.learns_init[name]:
            init = initializers.score(self.rounded.model, name, self.batch.targets())
            objective = objective - init.sum() / self.batch_size
        return distribution, objective, -scores.detach().sum() / self.batch_size

    def _check(self, move: Move, objective: Tensor, loss: Tensor) -> Tensor:
        """Take the gradient; whether loss, gradient and draw are finite."""
        norm = self._gradients(objective, [move.name])[move.name]
        return self.guard.check(move.name, {"the loss": loss, "the gradient": norm, "a draw": move.value.sum()})

    @torch.no_grad()
    def _record(self, move: Move, good: Tensor, loss: Tensor) -> None:
        self.batch.store(move, good)
        self.losses[move.name].copy_(loss)
        self.guard.tick()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"batch": self.batch.state_dict(), "scan": self.scan.state_dict()}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        super()._load_state(state)
        self.batch.load_state_dict(state["batch"])
        self.scan.load_state_dict(state["scan"])

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"form": type(self.form).__name__}


def _form(form: str | RunningForm) -> RunningForm:
    found = FORMS.get(form) if isinstance(form, str) else form
    if not isinstance(found, RunningForm):
        raise InputError(f"form must be one of {', '.join(FORMS)}, or a RunningForm, found {shown(form)}")
    return found


def _like(flags: Tensor, scores: Tensor) -> Tensor:
    """Flags per coordinate, or per row (all of it) for a family that scores its coordinates together."""
    return flags if flags.shape == scores.shape else flags.reshape(len(scores), -1).all(1)
