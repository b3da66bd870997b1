"""Algorithm 1: learning a joint distribution from examples with any pattern of missing values.

I.  Complete: unobserved values start at random; then `completion_steps` times every unobserved group of the example,
    in random order, is redrawn x_i ~ p_theta_i(x_i | x_-i) with the observed values clamped.
II. Learn: n times, choose a group i by the scan, update theta_i along grad log p_theta_i(x_i | x_-i), redraw x_i.

Step II comes in two forms.

- "literal": a batch of completed examples runs exactly n = `chain_length` steps, then the next batch comes.
- "running": one batch runs on for ever; before each update a fraction 1/n of its rows, chosen at random, is replaced
  by fresh completed examples. The chain length of a row is then random with mean n. This is the paper's
  implementation, steadier because every update sees all ages at once.

Three choices that the paper leaves open:

- `draw="before"` redraws with the parameters before the update (section 3: the sequence is sampled from q^(t), and one
  forward pass serves score and draw); `draw="after"` with those after it (Algorithm 1 as printed, one more pass).
- `skip_redrawn`: where x_i was itself the last thing redrawn, from p_theta_i(. | x_-i) with x_-i unchanged since, the
  expectation of its gradient is zero (exactly with the same theta_i, to first order in the learning rate after an
  update). Such coordinates only add noise and are left out of the loss. The mean is still over all rows, so the
  expected gradient is the same.

- `completion_ahead`: the running form completes the fresh examples of this many updates in one large batch, which is
  much cheaper than many small ones. Their draws are then up to that many updates old.

n = 1 on complete data is pseudo-likelihood.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paracond.chain import Scan, full_clamp, redraw
from paracond.joint import JointModel
from paracond.progress import track
from paracond.schedules import Schedule, as_schedule
from paracond.state import Data, InputError, Mask, State, merge, put, row_count, take

Optimiser = Callable[[str, Iterable[nn.Parameter]], torch.optim.Optimizer]


def adam(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The default optimiser of every conditional."""
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)


class NonFiniteError(ArithmeticError):
    """A loss, gradient or draw that is NaN or infinite. The model and the running batch are as before that step."""

    def __init__(self, variable: str, step: int, what: str):
        super().__init__(f"{what} of {variable!r} is not finite at step {step}; the last good state is kept")
        self.variable, self.step = variable, step


@dataclass(frozen=True, eq=False)
class Info:
    """One update: `loss` is the mean of -log p(x_i | x_-i) over the batch, a tensor (so reading it is your choice)."""

    step: int
    variable: str
    loss: Tensor
    chain_length: float


class Learner:
    """Owns optimisers, running batch and random state. `for info in learner.run(steps)`, or `learner.fit(steps)`.

    `learner.averaged` is the model with moving-average weights, for inference. `optimiser(name, parameters)` makes the
    optimiser of each conditional; `learning_rate`, a number or a function of the step, overrides theirs. Conditionals
    without trainable parameters are redrawn and not learned.
    """

    def __init__(
        self,
        model: JointModel,
        data: Data,
        *,
        chain_length: float | Schedule = 4,
        completion_steps: int = 1,
        completion_ahead: int = 1,
        batch_size: int = 256,
        form: str = "running",
        scan: str = "no-repeat",
        draw: str = "before",
        skip_redrawn: bool = True,
        learning_rate: float | Schedule | None = None,
        optimiser: Optimiser = adam,
        clip: float | None = None,
        average: float = 0.999,
        seed: int = 0,
    ):
        _one_of("form", form, ("running", "literal"))
        _one_of("draw", draw, ("before", "after"))
        _at_least("batch_size", batch_size, 1)
        _at_least("completion_ahead", completion_ahead, 1)
        _at_least("completion_steps", completion_steps, 0)
        if not 0 <= average < 1 or (clip is not None and not clip > 0):
            raise InputError(f"average must be in [0, 1) and clip positive, found {average} and {clip}")
        if not isinstance(data, Data):
            raise InputError(f"a Learner takes Data(values, mask), found {type(data).__name__}")
        self.model = model
        self.examples, self.observed = model.admit(data.state, data.mask)
        if not any(bool(mask.any()) for mask in self.observed.values()):
            raise InputError("everything is missing: no value of the data is observed")
        self.rows = len(data)
        full_clamp(model, self.observed)
        self.missing = [name for name in model.names if not bool(self.observed[name].all())]
        self.chain_length = as_schedule(chain_length)
        self.learning_rate = None if learning_rate is None else as_schedule(learning_rate)
        self.completion_steps, self.completion_ahead = completion_steps, completion_ahead
        self.batch_size = batch_size
        self.form, self.draw, self.skip_redrawn, self.clip = form, draw, skip_redrawn, clip
        self.generator = model.generator(seed)
        self.host = torch.Generator().manual_seed(seed)  # choices that are made on the host
        self.scan = Scan(model.names, model.alpha, scan, self.host)
        self.parameters = {n: [p for p in model.conditional(n).parameters() if p.requires_grad] for n in model.names}
        self.optimisers = {name: optimiser(name, learned) for name, learned in self.parameters.items() if learned}
        self.averaged = copy.deepcopy(model).requires_grad_(False).eval()
        pairs = {n: (self.averaged.conditional(n), model.conditional(n)) for n in model.names}
        self.averages: dict[str, list[Tensor]] = {
            n: [a for a, p in zip(mean.parameters(), now.parameters(), strict=True) if p.requires_grad]
            for n, (mean, now) in pairs.items()
        }
        self.buffers = {n: list(zip(mean.buffers(), now.buffers(), strict=True)) for n, (mean, now) in pairs.items()}
        self.decay, self.updates = average, dict.fromkeys(model.names, 0)
        self.step_count = self.age = 0
        self.queue = torch.empty(0, dtype=torch.long)
        self.batch: State = {}
        self.redrawn: Mask = {}
        self.ready: tuple[State, Mask] = ({}, {})  # completed examples for the next updates

    # --- the loop -----------------------------------------------------------------------------------------------

    def run(self, steps: int, progress: bool | None = None) -> Iterator[Info]:
        """Do `steps` updates, yielding after each."""
        for _ in track(range(steps), "learning", progress):
            yield self.step()

    def fit(self, steps: int, progress: bool | None = None) -> JointModel:
        """Do `steps` updates; returns the averaged model."""
        for _ in self.run(steps, progress):
            pass
        return self.averaged

    def step(self) -> Info:
        """One update of one conditional, and one redraw of its group."""
        length = self.chain_length(self.step_count)
        if not length >= 1:
            raise InputError(f"chain_length must be at least 1, found {length} at step {self.step_count}")
        batch, redrawn = self._refreshed(length)
        name = self.scan.next()
        loss, value = self._update(name, batch, redrawn)
        self.batch = {**batch, name: value}
        self.redrawn = {k: torch.full_like(v, k == name) for k, v in redrawn.items()}
        self.step_count += 1
        self.age += 1
        return Info(self.step_count, name, loss, length)

    # --- step I -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def complete(self, index: Tensor) -> tuple[State, Mask]:
        """Step I for these examples. Also returns where values are fresh draws given all the rest."""
        known, mask = take(self.examples, index), take(self.observed, index)
        state = merge(mask, known, self.model.start(len(index), self.generator))
        last = None
        for _ in range(self.completion_steps):
            for k in torch.randperm(len(self.missing), generator=self.host).tolist():
                last = self.missing[k]
                state[last] = redraw(self.model, last, state, mask[last], self.generator).value
        self._require_finite(
            last or "", {"a completion": torch.stack([v.double().sum() for v in state.values()]).sum()}
        )
        return state, {name: ~m if name == last else torch.zeros_like(m) for name, m in mask.items()}

    def _refreshed(self, length: float) -> tuple[State, Mask]:
        """The batch to learn from: what of it is due is replaced by fresh completed examples."""
        if not self.batch or (self.form == "literal" and self.age >= round(length)):
            self.age = 0
            if self.batch:  # or, with some lengths, the same group would always meet the data first
                self.scan.restart()
            return self.complete(self._next_examples(self.batch_size))
        if self.form == "literal":
            return self.batch, self.redrawn
        share = self.batch_size / length + float(torch.rand((), generator=self.host))
        count = min(int(share), self.batch_size)  # rounded at random: its mean is batch_size / length
        if count == 0:
            return self.batch, self.redrawn
        fresh, flags = self._next_completed(count)
        rows = torch.randperm(self.batch_size, generator=self.host)[:count].to(self.model.device)
        return put(self.batch, rows, fresh), put(self.redrawn, rows, flags)

    def _next_completed(self, count: int) -> tuple[State, Mask]:
        """Fresh completed examples. One large batch completes those of `completion_ahead` updates."""
        state, flags = self.ready
        held = row_count(state) if state else 0
        if held < count:
            more, more_flags = self.complete(self._next_examples(count * self.completion_ahead - held))
            state = {k: torch.cat([state[k], v]) for k, v in more.items()} if held else more
            flags = {k: torch.cat([flags[k], v]) for k, v in more_flags.items()} if held else more_flags
        first, rest = slice(count), slice(count, None)
        self.ready = take(state, rest), take(flags, rest)
        return take(state, first), take(flags, first)

    def _next_examples(self, count: int) -> Tensor:
        """The next indices of an endless sequence of shuffled passes over the data."""
        while len(self.queue) < count:
            self.queue = torch.cat([self.queue, torch.randperm(self.rows, generator=self.host)])
        index, self.queue = self.queue[:count], self.queue[count:]
        return index.to(self.model.device)

    # --- step II ------------------------------------------------------------------------------------------------

    def _update(self, name: str, batch: State, redrawn: Mask) -> tuple[Tensor, Tensor]:
        """One gradient step on the conditional of `name`; returns the loss and the new draw of its group."""
        distribution = self.model(name, batch)
        scores = distribution.scores(batch[name])
        loss = -scores.detach().sum() / self.batch_size
        kept = torch.where(_like(redrawn[name], scores), 0, scores) if self.skip_redrawn else scores
        norm = self._gradient(name, -kept.sum() / self.batch_size)
        self._require_finite(name, {"the loss": loss, "the gradient": norm})
        if self.draw == "before":
            value = distribution.sample(self.generator)
            self._require_finite(name, {"a draw": value.sum()})
            self._descend(name)
            return loss, value
        return loss, self._draw_after(name, batch)

    @torch.no_grad()
    def _draw_after(self, name: str, batch: State) -> Tensor:
        """Update, then draw; a draw that is not finite takes the update back."""
        former = [p.clone() for p in self.parameters[name]]
        with torch.enable_grad():
            self._descend(name)
        value = self.model(name, batch).sample(self.generator)
        try:
            self._require_finite(name, {"a draw": value.sum()})
        except NonFiniteError:
            for parameter, old in zip(self.parameters[name], former, strict=True):
                parameter.copy_(old)
            raise
        return value

    def _gradient(self, name: str, objective: Tensor) -> Tensor:
        """Backpropagate; returns the gradient's norm, before clipping."""
        if name not in self.optimisers:
            return torch.zeros_like(objective)
        self.optimisers[name].zero_grad()
        objective.backward()
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters[name] if p.grad is not None])
        if self.clip is not None:
            nn.utils.clip_grads_with_norm_(self.parameters[name], self.clip, norm)
        return norm

    def _descend(self, name: str) -> None:
        optimiser = self.optimisers.get(name)
        if optimiser is None:
            return
        if self.learning_rate is not None:
            for group in optimiser.param_groups:
                group["lr"] = self.learning_rate(self.step_count)
        optimiser.step()
        self._average(name)

    def _require_finite(self, name: str, numbers: dict[str, Tensor]) -> None:
        finite = torch.stack([number.double() for number in numbers.values()]).isfinite().tolist()
        for what, fine in zip(numbers, finite, strict=True):
            if not fine:
                raise NonFiniteError(name, self.step_count, what)

    @torch.no_grad()
    def _average(self, name: str) -> None:
        """Moving average, shorter at first so that it does not remember the random start."""
        self.updates[name] += 1
        decay = min(self.decay, self.updates[name] / (self.updates[name] + 10))
        now: list[Tensor] = [p.detach() for p in self.parameters[name]]
        torch._foreach_lerp_(self.averages[name], now, 1 - decay)
        for average, value in self.buffers[name]:
            average.copy_(value)


def _like(redrawn: Tensor, scores: Tensor) -> Tensor:
    """Flags per coordinate, or per row for a family that scores its coordinates together."""
    return redrawn if redrawn.shape == scores.shape else redrawn.reshape(len(scores), -1).all(1)


def _at_least(what: str, found: int, least: int) -> None:
    if not isinstance(found, int) or found < least:
        raise InputError(f"{what} must be a whole number, at least {least}, found {found!r}")


def _one_of(what: str, found: str, allowed: tuple[str, ...]) -> None:
    if found not in allowed:
        raise InputError(f"{what} must be one of {', '.join(allowed)}, found {found!r}")
