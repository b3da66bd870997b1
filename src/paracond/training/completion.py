"""Step I of Algorithm 1: examples with missing values, completed.

Unobserved values begin at the first state of a chain (see `initializers`); then `steps` times every unobserved group of
the example, in random order, is redrawn x_i ~ p_theta_i(x_i | x_-i) with the observed values clamped.

Examples are completed a whole batch at a time, into a pool from which the next updates take their fresh rows: many
small batches would cost much more. Their draws are then as old as the pool.

A `Source` is what a learner takes fresh rows from. `Completion` completes a pool when it is needed; `AsyncCompletion`
(see `async_completion`) completes the next pool while the learner uses the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from paracond.chain import full_clamp, transition
from paracond.data import Data, InputError, Mask, State, at_least, called, merge, one_of, shown, take, true_or_false
from paracond.initializers.initial_state import draw_groups, one_row, random_state
from paracond.model import JointModel
from paracond.runtime.engine import RoundedCopy
from paracond.training.parts import Resources, blank, copy_into, flags

Augment = Callable[[State, torch.Generator], State]


@dataclass(frozen=True)
class CompletionOptions:
    """Says how a learner completes examples with missing values (step I of Algorithm 1).

    steps: how often every missing group of an example is redrawn.
    by: "model" or "average": whose parameters complete missing values. The average changes more slowly and keeps
        real-valued latents from diverging.
    warm: groups whose completion continues from the values drawn when the example was last used (appendix D: caching).
    parallel: complete the next examples while the last are learned from, on CUDA at the same time. Completed values are
        then older by one pool.
    """

    steps: int = 1
    by: str = "model"
    warm: tuple[str, ...] = ()
    parallel: bool = False

    def __post_init__(self) -> None:
        at_least({"completion steps": (self.steps, 0)})
        one_of("completion by", self.by, ("model", "average"))
        true_or_false("completion parallel", self.parallel)
        if isinstance(self.warm, str):
            raise InputError(f"warm must be a tuple of names, found {self.warm!r}: write ({self.warm!r},)")
        if not isinstance(self.warm, (tuple, list)) or not all(isinstance(name, str) for name in self.warm):
            raise InputError(f"warm must be a tuple of names, found {shown(self.warm)}")


class Source(Protocol):
    """A pool of completed examples, of which the last `left` are not used yet.

    `redrawn` is true where a value of the pool was drawn given all the rest of its row.
    """

    pool: State
    redrawn: Mask
    left: int

    def fill(self) -> None:
        """Replace the pool by the next completed examples."""

    def advance(self, share: float) -> None:
        """Called before every update, which uses this share of a pool."""

    def finish(self) -> None:
        """Called when a run is over: waits for work in progress, and raises its first error."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Completion:
    """The examples, and a pool of `size` completed ones (see `Source`). `turns` are the groups that are still to be
    redrawn before the pool is complete."""

    def __init__(
        self,
        model: JointModel,
        data: Data,
        size: int,
        options: CompletionOptions,
        augment: Augment | None,
        rounded: RoundedCopy[JointModel],
        resources: Resources,
    ):
        self.model, self.size, self.steps, self.augment, self.rounded = model, size, options.steps, augment, rounded
        self.resources, self.generator = resources, resources.generator
        self.examples, self.observed = model.validate(data.state, data.mask)
        if not any(bool(mask.any()) for mask in self.observed.values()):
            raise InputError("everything is missing: no value of the data is observed")
        full_clamp(model, self.observed)
        self.augmented = False  # whether `augment` has returned values that the groups can take
        self._require_whole(getattr(augment, "moves", ()))
        self.rows, self.left = len(data), 0
        self.turns: list[str] = []
        self.missing = [name for name in model.names if not bool(self.observed[name].all())]
        # For each group with observed values: its mask as one row if all rows agree, else None.
        rows = {name: one_row(mask) for name, mask in self.observed.items() if bool(mask.any())}
        self.patterns = {name: row if len(row) < self.rows else None for name, row in rows.items()}
        self.order = torch.empty(0, dtype=torch.long, device=model.device)  # examples still to come in this pass
        self.index = torch.zeros(size, dtype=torch.long, device=model.device)  # examples in the pool
        self.pool = blank(model, size)
        self.mask, self.redrawn = flags(self.pool), flags(self.pool)
        self.kept = self._make_kept(options.warm)
        self.visited = torch.zeros(self.rows if self.kept else 0, dtype=torch.bool, device=model.device)
        program = resources.engine.program
        self._load = program(self._load_pool, self.generator)
        self._keep = program(self._keep_pool, self.generator) if self.kept else None
        self._complete = {n: program(self._complete_pool, self.generator, n) for n in self.missing}

    def fill(self) -> None:
        self.choose()
        self.load()
        self.redraw(len(self.turns))

    def advance(self, share: float) -> None:
        """Nothing: a pool is completed at once, when it is needed."""

    def finish(self) -> None:
        """Nothing is in progress between updates."""

    def choose(self) -> None:
        """Choose the next examples of an endless sequence of shuffled passes over the data."""
        while len(self.order) < self.size:
            again = torch.randperm(self.rows, generator=self.generator, device=self.model.device)
            self.order = torch.cat([self.order, again])
        self.index.copy_(self.order[: self.size])
        self.order = self.order[self.size :]

    def load(self) -> None:
        """Put the chosen examples into the pool, and choose the order in which their groups will be redrawn."""
        self._load()
        self.turns = list(self._turns())

    def redraw(self, count: int) -> None:
        """Do the next `count` transitions; with the last one the pool is complete."""
        for name in self.turns[:count]:
            self._complete[name]()
            del self.turns[0]  # now: a redraw that was not finite does not count
        if not self.turns:
            if self._keep is not None:
                self._keep()
            self.left = self.size

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": self._tensors(), "order": self.order, "left": self.left, "turns": list(self.turns)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for part, tensors in self._tensors().items():
            copy_into(tensors, state["tensors"][part])
        self.order = state["order"].to(self.model.device)
        self.left, self.turns = state["left"], list(state["turns"])

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        """Tensors that stay where they are."""
        own = {"index": self.index, "visited": self.visited}
        return {"pool": self.pool, "mask": self.mask, "redrawn": self.redrawn, "kept": self.kept, "own": own}

    def _make_kept(self, warm: Iterable[str]) -> State:
        """Room for the completed values of every example."""
        wrong = [name for name in warm if name not in self.missing]
        if wrong:
            whole = "is missing nowhere" if wrong[0] in self.model.names else "is no group of the model"
            raise InputError(f"warm: {wrong[0]!r} has no completed values to keep: it {whole}")
        return {name: torch.zeros_like(self.examples[name]) for name in warm}

    def _require_whole(self, names: Iterable[str]) -> None:
        """A mask does not move with the image that it belongs to."""
        for name in names:
            rows = self.observed[name].flatten(1) if name in self.observed else torch.ones(1, 1, dtype=torch.bool)
            if bool((rows.any(1) & ~rows.all(1)).any()):
                raise InputError(
                    f"{name!r} is moved by an augmentation, but some rows are observed only in part: observe all or "
                    "nothing of it in every row"
                )

    def _turns(self) -> Iterator[str]:
        """`steps` times all groups with missing values, each time in random order."""
        for _ in range(self.steps):
            for k in torch.randperm(len(self.missing), generator=self.resources.host).tolist():
                yield self.missing[k]

    def _first_state(self, index: Tensor) -> tuple[State, Mask]:
        """Examples, with their missing values as chains begin."""
        known, mask = take(self.examples, index), take(self.observed, index)
        if self.augment is not None:
            known = self._augmented(known, mask)
        state = merge(mask, known, known | random_state(self.model, len(index), self.generator))
        seen = {name: mask[name] if whole is None else whole for name, whole in self.patterns.items()}
        draw_groups(self.model, state, seen, self.missing, self.generator)
        for name, kept in self.kept.items():
            again = self.visited[index].view(-1, *[1] * (kept.ndim - 1)) & ~mask[name]
            state[name] = torch.where(again, kept[index], state[name])
        return state, mask

    def _augmented(self, known: State, mask: Mask) -> State:
        """Examples as `augment` changes them. Their values are checked once, for it would take long every time."""
        assert self.augment is not None
        found = called("augment", self.augment, dict(known), self.generator)
        kind = {name: (value.shape, value.dtype, value.device) for name, value in known.items()}
        if not isinstance(found, Mapping) or found.keys() != known.keys():
            groups = shown(list(found)) if isinstance(found, Mapping) else type(found).__name__
            raise InputError(f"augment must return a dictionary of all groups ({', '.join(known)}), found {groups}")
        for name, value in found.items():
            if not isinstance(value, Tensor) or (value.shape, value.dtype, value.device) != kind[name]:
                shape, dtype, _ = kind[name]
                raise InputError(f"augment must return {dtype} {list(shape)} for {name!r}, found {shown(value)}")
            if not self.augmented:
                self.model.variables[name].check_known(f"{name} after augment", value[mask[name]])
        self.augmented = True
        return dict(found)

    @torch.no_grad()
    def _keep_pool(self) -> None:
        for name, kept in self.kept.items():
            kept.index_copy_(0, self.index, self.pool[name])
        self.visited.index_fill_(0, self.index, True)

    @torch.no_grad()
    def _load_pool(self) -> None:
        state, mask = self._first_state(self.index)
        for name in self.model.variables:
            self.pool[name].copy_(state[name])
            self.mask[name].copy_(mask[name])
            self.redrawn[name].fill_(False)

    @torch.no_grad()
    def _complete_pool(self, name: str) -> None:
        """One transition of the pool, with the observed values clamped."""
        self.rounded.refresh(self.model.conditional(name))
        with self.resources.engine.precision():
            move = transition(self.rounded.model, name, self.pool, self.mask[name], self.generator)
        good = self.resources.guard.check(name, {"a completion": move.value.sum() + move.distribution.mean.sum()})
        torch.where(good, move.value, self.pool[name], out=self.pool[name])
        kept = self.mask[name].reshape(self.size, -1).all(1)  # rows in which nothing was redrawn
        for other, fresh in self.redrawn.items():
            still = fresh & kept.view(-1, *[1] * (fresh.ndim - 1))
            fresh.copy_(~self.mask[name] if other == name else still)
