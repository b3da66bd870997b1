"""Algorithm 1: learning a joint distribution from examples with any pattern of missing values.

I.  Complete the example (see `completion`): its missing values are drawn by the model, the observed ones clamped.
II. Learn: n times, choose a group i by the scan, update theta_i along grad log p_theta_i(x_i | x_-i), redraw x_i.

Step II comes in two forms.

- "literal": a batch of completed examples runs exactly n = `chain_length` steps, then the next batch comes.
- "running": one batch runs on for ever; before each update a share 1/n of its rows, chosen at random, is replaced
  by fresh completed examples. The chain length of a row is then random with mean n. This is the paper's
  implementation, steadier because every update sees all ages at once. Some of the chains may last (see
  `lasting`), and some begin where those of questions do (see `restarts`).

Two choices that the paper leaves open:

- `draw="before"` redraws with the parameters before the update (section 3: the sequence is sampled from q^(t), and one
  forward pass serves score and draw); `draw="after"` with those after it (Algorithm 1 as printed, one more pass).
- `skip_redrawn`: where x_i was itself the last thing redrawn, from p_theta_i(. | x_-i) with x_-i unchanged since, the
  expectation of its gradient is zero with the same theta_i, and of the order of the learning rate after an update.
  Such coordinates only add noise and are left out of the loss. The mean is still over all rows, so the expected
  gradient is the same (for networks without randomness of their own: one that drew under other noise than it scores
  with has a gradient there too, which is then left out).

n = 1 on complete data is pseudo-likelihood.

Steps I and II take turns, or run at the same time (`beside`).

A start p_0(x_i | .) (see `networks.starts`) learns beside its conditional, from the same values of the running batch.
It takes no part in the chain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paracond.chain import Scan
from paracond.data import Data, InputError, at_least, one_of, wide
from paracond.distributions import Distribution
from paracond.model import JointModel
from paracond.runtime.engine import Engine
from paracond.training.async_completion import Beside
from paracond.training.completion import Augment, Completion, blank, flags
from paracond.training.restarts import Restart, Restarts
from paracond.training.schedules import Schedule, as_schedule
from paracond.training.slow_rows import Lasting
from paracond.training.trainer import Descent, Optimiser, Rate, adam

SHUFFLES = 64


@dataclass(frozen=True, eq=False)
class Info:
    """One update: `loss` is the mean of -log p(x_i | x_-i) over the batch, a tensor (so reading it is your choice)."""

    step: int
    variable: str
    loss: Tensor
    chain_length: float


class Learner(Descent[Info]):
    """Owns optimisers, running batch and random state. `for info in learner.run(steps)`, or `learner.fit(steps)`.

    `learner.averaged` is the model with moving-average weights, for inference. `optimiser(name, parameters)` makes the
    optimiser of each conditional; `learning_rate`, a number or a function of the step, overrides theirs, or a mapping
    from names to such rates, that of those it names. Conditionals without trainable parameters are redrawn and not
    learned. Layers with a randomness of their own (dropout, noise, jitter) draw from torch's generator, which
    `torch.manual_seed` seeds; all else follows `seed`. Completion of the groups named in `warm` goes on where it
    stopped when the example was last used. `completed_by` says by which parameters: those of the "model" as it is, or
    their "average", which moves slowly (real latents that are never observed run away less so). With `beside`, the next
    examples are completed while the former are learned from (see `beside`), on CUDA at the same time; what they are
    completed with is then older by one pool. `augment(state, generator)` may change examples (their observed values)
    each time they are used. `engine` says how updates run (see `engine`).
    """

    def __init__(
        self,
        model: JointModel,
        data: Data,
        *,
        chain_length: float | Schedule = 4,
        completion_steps: int = 1,
        warm: Iterable[str] = (),
        completed_by: str = "model",
        beside: bool = False,
        batch_size: int = 256,
        form: str = "running",
        lasting: Lasting | None = None,
        restarts: Sequence[Restart] = (),
        scan: str = "no-repeat",
        draw: str = "before",
        skip_redrawn: bool = True,
        learning_rate: Rate | Mapping[str, Rate] | None = None,
        optimiser: Optimiser = adam,
        clip: float | None = None,
        average: float = 0.999,
        augment: Augment | None = None,
        engine: str | Engine = "auto",
        seed: int = 0,
    ):
        one_of("form", form, ("running", "literal"))
        one_of("draw", draw, ("before", "after"))
        if (lasting is not None or restarts) and form != "running":
            raise InputError(f"chains last, and restart, where form='running', found form={form!r}")
        at_least({"completion_steps": (completion_steps, 0)})
        super().__init__(
            model,
            data,
            batch_size=batch_size,
            learning_rate=learning_rate,
            optimiser=optimiser,
            clip=clip,
            average=average,
            engine=engine,
            seed=seed,
        )
        self.chain_length = as_schedule("chain_length", chain_length)
        self.form, self.draw, self.skip_redrawn = form, draw, skip_redrawn
        self.scan = Scan(model.names, model.alpha, scan, self.host)
        self.age = 0
        by = self._completing(completed_by)
        self._make_source(by, data, completion_steps, augment, beside, tuple(warm))
        self._make_buffers(lasting, restarts)

    def _make_source(
        self, by: JointModel, data: Data, steps: int, augment: Augment | None, beside: bool, warm: tuple[str, ...]
    ) -> None:
        """`source` is what fresh rows come from, `completion` what makes them, `by` this model."""
        what = data, self.batch_size, steps, augment
        how = self.engine, self.faults, self.generator, self.host
        self.source: Completion | Beside
        if beside:
            self.source = self.beside = Beside(by, *what, *how, warm=warm)
            self.completion = self.beside.completion
        else:
            working = self._working_of(by)
            self.source = self.completion = Completion(by, *what, working, *how, warm=warm)

    def _make_buffers(self, lasting: Lasting | None, restarts: Sequence[Restart]) -> None:
        """Tensors that stay where they are, for the programs that work on them."""
        model, size, device = self.model, self.batch_size, self.model.device
        self.batch = blank(model, size)
        self.redrawn = flags(self.batch)
        self.restarts = Restarts(model, restarts, self.batch, self.generator)
        self.rows = self.restarts.first  # that begin at data
        self.alike = lasting is None and self.rows == size
        self.patience = (lasting or Lasting(0.0, 1.0)).patience(self.rows, size, device)
        self.due = float(self.rows)  # those of them that are to be replaced
        self.ranks = torch.zeros(SHUFFLES, size, dtype=torch.long, device=device)  # orders of rows, for replacements
        self.replacements, self.turn = 0, torch.zeros(1, dtype=torch.long, device=device)
        self.first, self.count = torch.zeros(2, dtype=torch.long, device=device)  # which rows of the pool come next
        program, fused, generator = self.engine.program, self.engine.fused, self.generator
        self.evaluate, self.keep, self.put = fused(self._evaluate), fused(self._keep), fused(self._put)
        self.shuffle = program(self._shuffle, generator)
        self.restart, self.restart_all = (program(self._restart, generator, all_rows) for all_rows in (False, True))
        self.replace_rows = program(self._replace_rows, generator)
        self.update = {n: program(self._update, generator, n) for n in model.names}

    # --- the loop -----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        super().finish()
        if self.beside is not None:
            self.beside.finish()

    def step(self) -> Info:
        """One update of one conditional, and one redraw of its group."""
        length = self.chain_length(self.step_count)
        if not 1 <= length < math.inf:
            raise InputError(f"chain_length must be at least 1, found {length} at step {self.step_count}")
        self.faults.look()
        self.restarts.look(self.step_count)
        self._replace_due(length)
        if self.beside is not None:
            self.beside.go_on(self.rows / self.batch_size / length)  # the share of a pool that an update takes
        name = self.scan.next()
        self._set_rates(name)
        self.update[name]()
        self.updates[name] += 1
        self.step_count += 1
        self.age += 1
        return Info(self.step_count, name, self.losses[name].clone(), length)

    def kept(self) -> dict[str, Tensor]:
        parts = {
            "batch": self.batch,
            "redrawn": self.redrawn,
            "truth": self.restarts.truth,
            "known": self.restarts.known,
        }
        parts["learner"] = {"ranks": self.ranks}
        parts["restarts"] = {name: getattr(self.restarts, name) for name in ("turn", "away", "open")}
        return {f"{part}/{name}": tensor for part, named in parts.items() for name, tensor in named.items()}

    def counts(self) -> dict[str, Any]:
        return {"age": self.age, "due": self.due, "replacements": self.replacements, "last": self.scan.last}

    def set_counts(self, found: Mapping[str, Any]) -> None:
        self.age, self.due, self.replacements = found["age"], found["due"], found["replacements"]
        self.scan.last = found["last"]

    # --- replacement --------------------------------------------------------------------------------------------

    def _replace_due(self, length: float) -> None:
        """Put fresh rows in place of those that are due: all of them at a time, or 1/n of them (what does not come
        out even, or is not in the pool any more, is due at the next update)."""
        size, source = self.batch_size, self.source
        if self.step_count > 0:
            self.due += self.rows / length if self.form == "running" else size * (self.age >= round(length))
        if self.due < 1:
            return
        if source.left == 0:
            source.fill()
            if self.restarts.wanted:
                (self.restart if self.step_count else self.restart_all)()
        if self.form == "literal" and self.step_count > 0:
            self.scan.restart()  # or, with some lengths, the same group would always meet the data first
        count = min(int(self.due), source.left)
        if self.replacements % SHUFFLES == 0:
            self.shuffle()
        self.turn.fill_(self.replacements % SHUFFLES)
        self.replacements += 1
        self.first.fill_(size - source.left)
        self.count.fill_(count)
        self.replace_rows()
        self.due, source.left, self.age = self.due - count, source.left - count, 0

    @torch.no_grad()
    def _shuffle(self) -> None:
        """Many random orders at once: one sort of many short rows costs hardly more than a sort of one. Rows come in
        the order of exponential waiting times, with their patience as means; if all are alike, any order will do."""
        uniform = torch.rand(self.ranks.shape, generator=self.generator, device=self.model.device)
        waits = -torch.log1p(-uniform).clamp(max=-1e-12) * self.patience
        order = waits.argsort(1)
        self.ranks.copy_(order if self.alike else order.argsort(1))

    def _restart(self, all_rows: bool) -> None:
        self.restarts.renew(self.source.pool, all_rows=all_rows)

    @torch.no_grad()
    def _replace_rows(self) -> None:
        rank = self.ranks.index_select(0, self.turn).squeeze(0)
        chosen = (rank < self.count) & (self.faults.first[0] < 0)
        self.put(chosen, (self.first + rank).clamp(max=self.batch_size - 1))

    @torch.no_grad()
    def _put(self, chosen: Tensor, source: Tensor) -> None:
        """Rows `source` of the pool in place of those that were chosen."""
        pool = self.source.pool
        for buffers, fresh in ((self.batch, pool), (self.redrawn, self.source.redrawn)):
            for name, buffer in buffers.items():
                buffer.copy_(torch.where(wide(chosen, buffer), fresh[name][source], buffer))

    # --- step II ------------------------------------------------------------------------------------------------

    def _update(self, name: str) -> None:
        """One gradient step on the conditional of `name`, and the new draw of its group."""
        self.working.refresh(self.model.conditional(name))
        distribution, objective, loss = self.evaluate(name)
        norm = self._gradients(objective, [name])[name]
        value = distribution.sample(self.generator)
        good = self.faults.check(name, {"the loss": loss, "the gradient": norm, "a draw": value.sum()})
        if self.draw == "after":
            value, good = self._draw_after(name, good)
        else:
            self._descend(name, good)
        self.keep(name, value, good, loss)

    def _evaluate(self, name: str) -> tuple[Distribution, Tensor, Tensor]:
        """p(x_i | x_-i), what to descend, and minus the mean of log p(x_i | x_-i) over the batch, to show."""
        model, restarts = self.working.model, self.restarts
        with self.engine.precision():
            distribution = model(name, self.batch)
        scores = distribution.scores(restarts.target(name))
        kept = scores
        for left_out in (self.redrawn[name] if self.skip_redrawn else None, restarts.unlearned(name)):
            kept = kept if left_out is None else torch.where(_like(left_out, scores), 0, kept)
        objective = -kept.sum() / self.batch_size
        start = model.start_score(name, restarts.targets()) if self.learns_start[name] else None
        if start is not None:
            objective = objective - start.sum() / self.batch_size
        return distribution, objective, -scores.detach().sum() / self.batch_size

    @torch.no_grad()
    def _keep(self, name: str, value: Tensor, good: Tensor, loss: Tensor) -> None:
        """The group's new draw, if all is well, where it is not known, and that it is new."""
        former, held = self.batch[name], self.restarts.held(name)
        former.copy_(torch.where(good if held is None else good & ~held, value, former))
        self.losses[name].copy_(loss)
        self.faults.clock.add_(1)
        for other, redrawn in self.redrawn.items():
            redrawn[: self.rows].fill_(other == name)
            self.restarts.mark(redrawn, other == name)

    @torch.no_grad()
    def _draw_after(self, name: str, good: Tensor) -> tuple[Tensor, Tensor]:
        """Update, then draw; a draw that is not finite takes parameters and averages back (not Adam's moments)."""
        changing = [*self.parameters[name], *self.averages[name]]
        former = [value.clone() for value in changing]
        with torch.enable_grad():
            self._descend(name, good)
        self.working.refresh(self.model.conditional(name))
        with self.engine.precision():
            drawn = self.working.model(name, self.batch).sample(self.generator)
        fine = torch.zeros_like(good)
        try:
            fine = self.faults.check(name, {"a draw": drawn.sum()})
        finally:
            for value, old in zip(changing, former, strict=True):
                torch.where(fine, value, old, out=value)
        return drawn, fine


def _like(redrawn: Tensor, scores: Tensor) -> Tensor:
    """Flags per coordinate, or per row (all of it) for a family that scores its coordinates together."""
    return redrawn if redrawn.shape == scores.shape else redrawn.reshape(len(scores), -1).all(1)
