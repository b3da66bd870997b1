"""Gradient steps on the conditionals of a joint model: what all its learners share.

Every conditional has an optimiser of its own, and moving averages of its parameters, for inference:

    theta_i <- optimiser_i(theta_i, grad_i),        mean_i <- mean_i + w (theta_i - mean_i).

The learner chooses the objective, and the states on which its gradient is taken (`learner`, `baselines.directed`).
Programs (see `runtime.engine`) hold on to the tensors here, so these stay where they are. A gradient that is not finite
changes nothing (see `runtime.nonfinite`), and a step to parameters that are not finite is taken back (see `former`).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from paracond.data import Data, InputError, as_count, as_float, named, seeded
from paracond.html_table import html_table
from paracond.memory import require_room, row_bytes
from paracond.model import JointModel
from paracond.runtime.engine import Engine, RoundedCopy
from paracond.runtime.nonfinite import NonFiniteError, NonFiniteGuard
from paracond.training import checkpoints
from paracond.training.completion import Completion, Source
from paracond.training.former import Former
from paracond.training.parts import Resources, copy_into, made_optimiser, weights
from paracond.training.schedules import Schedule, as_schedule, set_rate
from paracond.training.stepwise import Stepwise

Optimiser = Callable[[str, Iterable[nn.Parameter]], torch.optim.Optimizer]
Rate = float | Schedule
Info = TypeVar("Info")

#: Settings of optimisers that the engine chooses. A checkpoint does not override them.
OWN = ("params", "capturable", "fused", "foreach", "differentiable")


@contextmanager
def modes_kept(model: object) -> Iterator[None]:
    """Bring a model back into the modes that it was in, if its learner is refused."""
    former = [(module, module.training) for module in model.modules()] if isinstance(model, nn.Module) else []
    try:
        yield
    except BaseException:
        for module, training in former:
            module.training = training
        raise


def adam(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The default optimiser of every conditional."""
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)


class Trainer(Stepwise[Info, JointModel]):
    """Owns the model, its averages, optimisers and random state. A subclass makes `source`, which completes examples,
    `completion`, which holds them, and its programs."""

    source: Source
    completion: Completion

    def __init__(
        self,
        model: JointModel,
        data: Data,
        *,
        batch_size: int = 256,
        learning_rate: Rate | Mapping[str, Rate] | None = None,
        optimiser: Optimiser = adam,
        average: float = 0.999,
        engine: str | Engine = "auto",
        seed: int = 0,
    ):
        self.batch_size, decay = as_count("batch_size", batch_size), as_float("average", average)
        if not 0 <= decay < 1:
            raise InputError(f"average must be a number in [0, 1), found {decay:g}")
        if not isinstance(model, JointModel):
            raise InputError(f"a {type(self).__name__} takes a JointModel, found {type(model).__name__}")
        require_room(f"batch_size={batch_size}", 4 * self.batch_size * row_bytes(model), model.device)  # pool and batch
        if not isinstance(data, Data):
            raise InputError(f"a {type(self).__name__} takes Data(values, mask), found {type(data).__name__}")
        for name in model.names:
            if name in data.state:
                limited = getattr(model.conditional(name).network, "limits", None) is not None
                model.variables[name].check_examples(name, data.state[name][data.mask[name]], limited)
        self.model = model
        self.engine = Engine.of(model.device, engine)
        self.rates = _rates(model, learning_rate)
        self.decay = decay
        self.generator = model.generator(seed)
        self.host = seeded(seed)  # choices that are made on the host
        self.step_count = 0
        self.guard = NonFiniteGuard(model.names, self.engine)
        self.resources = Resources(self.engine, self.guard, self.generator, self.host)
        self._make_optimisers(optimiser)
        device = model.device
        self.weight = torch.ones((), device=device)  # of the new parameters in their moving average
        self.losses = {n: torch.zeros((), device=device, dtype=model.dtype) for n in model.names}

    def _make_optimisers(self, optimiser: Optimiser) -> None:
        model, engine = self.model, self.engine
        model.train()
        self.averaged = copy.deepcopy(model).requires_grad_(False).eval()
        self.parameters = {n: [p for p in model.conditional(n).parameters() if p.requires_grad] for n in model.names}
        if not any(self.parameters.values()):
            raise InputError("no parameter of the model requires a gradient; call model.requires_grad_(True) first")
        self.learns_init = {n: _init_learns(model, n) for n in model.names}  # one that was fitted does not
        self.optimisers = {name: made_optimiser(optimiser, name, own) for name, own in self.parameters.items() if own}
        for name, made in self.optimisers.items():
            engine.capturable(name, made)
        self.former = {name: Former(self.parameters[name], made) for name, made in self.optimisers.items()}
        self.rounded = engine.rounded_copy(model)
        for name in model.names:
            engine.fused(self.rounded.model.conditional(name).network)
        pairs = {n: (self.averaged.conditional(n), model.conditional(n)) for n in model.names}
        self.averages: dict[str, list[Tensor]] = {
            n: [a for a, p in zip(mean.parameters(), now.parameters(), strict=True) if p.requires_grad]
            for n, (mean, now) in pairs.items()
        }
        self.buffers = {n: list(zip(mean.buffers(), now.buffers(), strict=True)) for n, (mean, now) in pairs.items()}
        self.updates = dict.fromkeys(model.names, 0)

    def __repr__(self) -> str:
        said = ", ".join(f"{what} {value}" for what, value in self._summary().items())
        losses = [f"{name} {loss}" for name, _, loss in self._losses()]
        return f"<{type(self).__name__}: {said}; last losses: {', '.join(losses)}>"

    def _repr_html_(self) -> str:
        said = ", ".join(f"{what} {value}" for what, value in self._summary().items())
        return html_table(f"{type(self).__name__}: {said}", ("group", "updates", "last loss"), self._losses())

    def _summary(self) -> dict[str, str]:
        """What `repr` says of the learner."""
        return {
            "step": f"{self.step_count:,}",
            "rows": f"{self.completion.rows:,}",
            "batch size": f"{self.batch_size:,}",
            "device": str(self.model.device),
        }

    def _losses(self) -> list[tuple[str, str, str]]:
        """Updates and last loss of every group. Reading losses waits for the device."""
        last = {name: f"{float(loss):.4g}" if self.updates[name] else "none" for name, loss in self.losses.items()}
        return [(name, f"{self.updates[name]:,}", loss) for name, loss in last.items()]

    def _rounded_of(self, model: JointModel) -> RoundedCopy[JointModel]:
        """The model or its average, as programs evaluate it."""
        return self.rounded if model is self.model else self.engine.rounded_copy(model)

    @property
    def result(self) -> JointModel:
        """The averaged model."""
        return self.averaged

    def finish(self) -> None:
        """Raise the first `NonFiniteError` of all updates so far, if there was one."""
        self.guard.raise_first()
        self.source.finish()

    # --- saving -------------------------------------------------------------------------------------------------

    def __reduce__(self):
        kind = type(self).__name__
        raise InputError(
            f"a {kind} holds running programs and cannot be pickled: write it with learner.save(folder), and continue "
            f"in a new {kind} with learner.resume(folder)"
        )

    def __deepcopy__(self, memo: dict) -> Self:
        copied = object.__new__(type(self))
        memo[id(self)] = copied  # programs find their owner there
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint: all that the next update depends on. Raises a pending `NonFiniteError` instead."""
        checkpoints.save(self, folder)

    def resume(self, folder: str | Path) -> None:
        """Continue from a checkpoint, as if the run had not stopped.

        The learner must be new. With other data, groups or optimisers it is refused; schedules may differ.
        """
        checkpoints.restore(self, folder)

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on: nested dictionaries of tensors and plain values."""
        return {
            "step_count": self.step_count,
            "updates": dict(self.updates),
            "threads": torch.get_num_threads(),  # sums depend on it in their last digits
            "model": weights(self.model),
            "averaged": weights(self.averaged),
            "optimisers": {name: optimiser.state_dict() for name, optimiser in self.optimisers.items()},
            "source": self.source.state_dict(),
            "guard": self.guard.state_dict(),
            "random": self._random(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`; tensors are filled where they are. A state that does not fit changes nothing."""
        checkpoints.load_state(self, state)

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self.source.load_state_dict(state["source"])
        copy_into(weights(self.model), state["model"])
        copy_into(weights(self.averaged), state["averaged"])
        for name, found in state["optimisers"].items():
            self.optimisers[name].load_state_dict(_adapted(self.optimisers[name], found))
        self.guard.load_state_dict(state["guard"])
        self.step_count = state["step_count"]
        self.updates.update(state["updates"])
        torch.set_num_threads(state["threads"])
        random = state["random"]
        self.generator.set_state(random["learner"])
        self.host.set_state(random["host"])
        torch.set_rng_state(random["torch"])
        if self.model.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], self.model.device)

    def _random(self) -> dict[str, Tensor]:
        """All random states; networks (dropout) draw from torch's own."""
        found = {
            "learner": self.generator.get_state(),
            "host": self.host.get_state(),
            "torch": torch.get_rng_state(),
        }
        if self.model.device.type == "cuda":
            found["cuda"] = torch.cuda.get_rng_state(self.model.device)
        return found

    def identity(self) -> dict[str, Any]:
        """Settings that must match in the learner that continues from a checkpoint, `{description: value}`."""
        model = self.model
        found: dict[str, Any] = {
            "device": model.device.type,
            "batch size": self.batch_size,
            "number of examples": self.completion.rows,
            **{f"variable {name!r}": family.describe() for name, family in model.variables.items()},
            "completion": type(self.source).__name__,
        }
        for name, optimiser in self.optimisers.items():
            sizes = [len(group["params"]) for group in optimiser.param_groups]
            found[f"optimiser of {name!r}"] = f"{type(optimiser).__name__} of {sizes} parameters"
        found["digest of the examples"] = fingerprint(self.completion.examples, self.completion.observed)
        return found

    # --- one gradient step --------------------------------------------------------------------------------------

    def _rates_now(self) -> dict[str, float]:
        """The learning rates of this step. Ask before anything is changed: a schedule may be refused."""
        now = {schedule: schedule(self.step_count) for schedule in dict.fromkeys(self.rates.values())}
        rates = {name: now[schedule] for name, schedule in self.rates.items()}
        if self.engine.captures:
            for name in rates.keys() & self.former.keys():
                self.former[name].require_safe(f"learning_rate of {name!r}", rates[name])
        return rates

    def _set_rates(self, name: str, rates: Mapping[str, float]) -> None:
        """The learning rate, and the weight in the moving average: larger at first, to forget the initial weights."""
        self.weight.fill_(max(1 - self.decay, 10 / (self.updates[name] + 11)))
        if name not in rates or name not in self.optimisers:
            return
        set_rate(self.optimisers[name], rates[name])

    def _gradients(self, objective: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Backpropagate to the conditionals of `names`; returns the norms of their gradients."""
        learned = [name for name in names if name in self.optimisers]
        for name in learned:
            self.optimisers[name].zero_grad()
        if learned and not objective.requires_grad:
            raise InputError(f"what networks return of {', '.join(learned)} has no gradient: do not detach it")
        if learned:
            objective.backward()
        return {name: self._norm(name) if name in learned else torch.zeros_like(objective) for name in names}

    def _norm(self, name: str) -> Tensor:
        self.rounded.return_gradients(self.model.conditional(name))
        return nn.utils.get_total_norm([p.grad for p in self.parameters[name] if p.grad is not None])

    def _descend(self, names: Sequence[str], good: Tensor, keep: bool = False) -> Tensor:
        """One step of the conditionals of `names`, all or none: true if it was `good` before and is finite after.

        keep: keep what was before in any case, for `_taken_back_unless_finite`.
        """
        learned = [name for name in names if name in self.optimisers]
        risky = any(self._is_risky(name) for name in learned)
        for name in learned:
            if risky or keep:
                self.former[name].keep()
            self._step(name, good)
        if risky:
            good = self._taken_back_unless_finite({n: {"a parameter": self.former[n].size()} for n in learned})
        for name in learned:
            self._average(name, good)
        return good

    def _is_risky(self, name: str) -> bool:
        former = self.former[name]
        return former.recorded if self.engine.captures else former.is_risky()

    def _step(self, name: str, good: Tensor) -> None:
        optimiser = self.optimisers[name]
        if self.engine.captures:  # a fused optimiser changes nothing where this is not zero
            optimiser.found_inf = (~good).float()  # type: ignore[attr-defined]
        optimiser.step()

    def _taken_back_unless_finite(self, numbers: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
        """Take the last step of some conditionals back unless their `numbers` are finite; returns whether all is good.

        numbers: by conditional, and by what they are (see `NonFiniteGuard.check`).
        """
        stepped = [self.former[name] for name in numbers if name in self.former]
        try:
            good = [self.guard.check(name, of) for name, of in numbers.items()][-1]
        except NonFiniteError:
            for former in stepped:
                former.put_back()
            raise
        if self.engine.captures:  # the host does not know
            for former in stepped:
                former.put_back_unless(good)
        return good

    @torch.no_grad()
    def _average(self, name: str, good: Tensor) -> None:
        now = [p.detach() for p in self.parameters[name]]
        weight = self.weight * good if self.engine.captures else float(self.weight)
        self.engine.move_towards(self.averages[name], now, weight)
        for average, value in self.buffers[name]:
            average.copy_(value)


def _init_learns(model: JointModel, name: str) -> bool:
    named = model.conditional(name).named_parameters()
    return any(parameter.requires_grad for key, parameter in named if key.startswith("init."))


def _rates(model: JointModel, learning_rate: Rate | Mapping[str, Rate] | None) -> dict[str, Schedule]:
    """The learning rates that override those of optimisers, by name."""
    if learning_rate is None:
        return {}
    if not isinstance(learning_rate, Mapping):
        return dict.fromkeys(model.names, as_schedule("learning_rate", learning_rate))
    rates = named("learning_rate", learning_rate)
    for name in rates:
        model.conditional(name)  # refuses unknown names, and context
    return {name: as_schedule(f"learning_rate of {name!r}", rate) for name, rate in rates.items()}


def fingerprint(examples: Mapping[str, Tensor], observed: Mapping[str, Tensor]) -> str:
    """A digest of which values are observed, and of those values; of large groups, of some thousand rows."""
    digest = hashlib.sha256()
    for name in sorted(examples):
        rows = max(1, 1_000_000 // max(1, examples[name][0].numel()))
        step = max(1, len(examples[name]) // rows)
        mask = observed[name][::step].contiguous()
        for part in (mask, torch.where(mask, examples[name][::step], 0)):
            digest.update(part.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _adapted(optimiser: torch.optim.Optimizer, found: Mapping[str, Any]) -> dict:
    """A state_dict in this optimiser's own form: how it computes, rates as tensors or numbers, memory layout."""
    groups = []
    for mine, theirs in zip(optimiser.state_dict()["param_groups"], found["param_groups"], strict=True):
        group = {**theirs, **{key: mine[key] for key in OWN if key in mine}}
        rate = float(theirs["lr"])
        groups.append(group | {"lr": torch.full_like(mine["lr"], rate) if isinstance(mine["lr"], Tensor) else rate})
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state = {k: {key: _laid_out(v, parameters[k]) for key, v in entry.items()} for k, entry in found["state"].items()}
    return {"state": state, "param_groups": groups}


def _laid_out(value: Any, parameter: Tensor) -> Any:
    """A fused optimiser needs moments with the strides of their parameter (channels last, say); files have none."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape or value.ndim == 0:
        return value
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
