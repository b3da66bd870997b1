"""Step I of Algorithm 1: examples with missing values, completed.

Unobserved values start at random, or where the model's chains begin; then `steps` times every unobserved group of the
example, in random order, is redrawn x_i ~ p_theta_i(x_i | x_-i) with the observed values clamped.

Examples are completed a whole batch at a time, into a pool from which the next updates take their fresh rows: many
small batches would be much dearer. Their draws are then as old as the pool.

Groups that are kept `warm` do not start anew each time an example comes round: completion goes on from what it drew the
last time, so that few steps per pass add up to a long chain (the paper's idea of caching, appendix D).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from paracond.chain import full_clamp, redraw
from paracond.data import Data, InputError, Mask, State, merge, take
from paracond.model import JointModel, one_row
from paracond.runtime.engine import Engine, Working
from paracond.runtime.nonfinite import Faults

Augment = Callable[[State, torch.Generator], State]


class Completion:
    """The examples, and a pool of `size` completed ones, of which `left` are not used yet. `turns` are the groups that
    are still to be redrawn before the pool is ready.

    `redrawn` tells where the pool's values are fresh draws given all the rest of their row. Choices of the device's
    programs come from `generator`, those of the host from `host`.
    """

    def __init__(
        self,
        model: JointModel,
        data: Data,
        size: int,
        steps: int,
        augment: Augment | None,
        working: Working[JointModel],
        engine: Engine,
        faults: Faults,
        generator: torch.Generator,
        host: torch.Generator,
        warm: Iterable[str] = (),
    ):
        self.model, self.size, self.steps, self.augment, self.working = model, size, steps, augment, working
        self.engine, self.faults, self.generator, self.host = engine, faults, generator, host
        self.examples, self.observed = model.admit(data.state, data.mask)
        if not any(bool(mask.any()) for mask in self.observed.values()):
            raise InputError("everything is missing: no value of the data is observed")
        full_clamp(model, self.observed)
        self._require_whole(getattr(augment, "moves", ()))
        self.rows, self.left = len(data), 0
        self.turns: list[str] = []
        self.missing = [name for name in model.names if not bool(self.observed[name].all())]
        # Of groups of which anything is observed: one row of the mask if all are alike, else None.
        rows = {name: one_row(mask) for name, mask in self.observed.items() if bool(mask.any())}
        self.patterns = {name: row if len(row) < self.rows else None for name, row in rows.items()}
        self.order = torch.empty(0, dtype=torch.long, device=model.device)  # examples still to come in this pass
        self.index = torch.zeros(size, dtype=torch.long, device=model.device)  # examples in the pool
        self.pool = blank(model, size)
        self.mask, self.redrawn = flags(self.pool), flags(self.pool)
        self.kept = self._make_kept(warm)
        self.visited = torch.zeros(self.rows if self.kept else 0, dtype=torch.bool, device=model.device)
        self._start = engine.program(self._start_pool, generator)
        self._keep = engine.program(self._keep_pool, generator) if self.kept else None
        self._complete = {n: engine.program(self._complete_pool, generator, n) for n in self.missing}

    def fill(self) -> None:
        """Complete the next examples, from the first redraw to the last."""
        self.choose()
        self.begin()
        self.go_on(len(self.turns))

    def choose(self) -> None:
        """The next examples of an endless sequence of shuffled passes over the data."""
        while len(self.order) < self.size:
            again = torch.randperm(self.rows, generator=self.generator, device=self.model.device)
            self.order = torch.cat([self.order, again])
        self.index.copy_(self.order[: self.size])
        self.order = self.order[self.size :]

    def begin(self) -> None:
        """Put the chosen examples into the pool, and settle in which order their groups will be redrawn."""
        self._start()
        self.turns = list(self._turns())

    def go_on(self, count: int) -> None:
        """The next `count` redraws; with the last the pool is ready."""
        for name in self.turns[:count]:
            self._complete[name]()
            del self.turns[0]  # now: a redraw that was not finite is not counted
        if not self.turns:
            if self._keep is not None:
                self._keep()
            self.left = self.size

    def _make_kept(self, warm: Iterable[str]) -> State:
        """Room for the completed values of every example."""
        wrong = [name for name in warm if name not in self.missing]
        if wrong:
            whole = "is nowhere missing" if wrong[0] in self.model.names else "is no group of the model"
            raise InputError(f"{wrong[0]!r} cannot be kept warm: it {whole}")
        return {name: torch.zeros_like(self.examples[name]) for name in warm}

    def _require_whole(self, names: Iterable[str]) -> None:
        """A mask does not move with the image that it belongs to."""
        for name in names:
            rows = self.observed[name].flatten(1) if name in self.observed else torch.ones(1, 1, dtype=torch.bool)
            if bool((rows.any(1) & ~rows.all(1)).any()):
                raise InputError(f"{name!r} is moved by an augmentation, but some rows are observed only in part")

    def _turns(self) -> Iterator[str]:
        """`steps` times all groups with missing values, each time in random order."""
        for _ in range(self.steps):
            for k in torch.randperm(len(self.missing), generator=self.host).tolist():
                yield self.missing[k]

    def _started(self, index: Tensor) -> tuple[State, Mask]:
        known, mask = take(self.examples, index), take(self.observed, index)
        if self.augment is not None:
            known = self.augment(known, self.generator)
        state = merge(mask, known, known | self.model.start_groups(len(index), self.generator))
        seen = {name: mask[name] if whole is None else whole for name, whole in self.patterns.items()}
        self.model.begin(state, seen, self.missing, self.generator)
        for name, kept in self.kept.items():
            again = self.visited[index].view(-1, *[1] * (kept.ndim - 1)) & ~mask[name]
            state[name] = torch.where(again, kept[index], state[name])
        return state, mask

    @torch.no_grad()
    def _keep_pool(self) -> None:
        for name, kept in self.kept.items():
            kept.index_copy_(0, self.index, self.pool[name])
        self.visited.index_fill_(0, self.index, True)

    @torch.no_grad()
    def _start_pool(self) -> None:
        state, mask = self._started(self.index)
        for name in self.model.variables:
            self.pool[name].copy_(state[name])
            self.mask[name].copy_(mask[name])
            self.redrawn[name].fill_(False)

    @torch.no_grad()
    def _complete_pool(self, name: str) -> None:
        self.working.refresh(self.model.conditional(name))
        with self.engine.precision():
            move = redraw(self.working.model, name, self.pool, self.mask[name], self.generator)
        good = self.faults.check(name, {"a completion": move.value.sum() + move.distribution.mean.sum()})
        torch.where(good, move.value, self.pool[name], out=self.pool[name])
        kept = self.mask[name].reshape(self.size, -1).all(1)  # rows in which nothing was redrawn
        for other, fresh in self.redrawn.items():
            still = fresh & kept.view(-1, *[1] * (fresh.ndim - 1))
            fresh.copy_(~self.mask[name] if other == name else still)


def blank(model: JointModel, size: int) -> State:
    """A state of `size` rows, to be filled."""
    zeros = {n: torch.zeros(size, *f.event_shape, device=model.device) for n, f in model.variables.items()}
    return {name: model.variables[name].store(value, model.dtype) for name, value in zeros.items()}


def flags(state: State) -> Mask:
    """A mask of the same shapes, all false."""
    return {name: torch.zeros_like(value, dtype=torch.bool) for name, value in state.items()}
