"""The Markov chain whose limiting distribution is the joint (eq:gibbs_transition).

The library is about one step, `transition`: it redraws one group, x_i ~ p_theta_i(x_i | x_-i), and leaves the rest.
`Chain` runs it for inference, `training.completion` (step I of Algorithm 1) completes examples with it, and
`training.learner` (step II) learns from it. A `Scan` chooses which group is redrawn next:

- "random": i with probability alpha_i, the paper's kernel;
- "no-repeat": i != last with probability alpha_i / (1 - alpha_last). Redrawing the same group twice in a row wastes a
  step. For consistent models the limit is the same;
- "systematic": the groups in turn, in the model's order. For consistent models the limit is the same.

Observed values are clamped: a step never changes them. A clamp may cover whole groups, rows or single coordinates, with
another pattern in every row. Groups that are clamped everywhere are left out of the scan.

With `per_row` every row chooses among its own free groups, at random; otherwise all rows share the choice, which is
faster. Each row follows the same law either way, up to steps in which a shared choice falls on a group that the row has
clamped; but only `per_row` makes the rows independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paracond.data import (
    InputError,
    Mask,
    State,
    as_count,
    as_mask,
    at_least,
    called,
    expand_mask,
    named,
    one_of,
    row_count,
    shown,
    take,
    true_or_false,
)
from paracond.distributions import Distribution
from paracond.model import JointModel, require_model
from paracond.runtime.engine import Engine, WeakCall
from paracond.runtime.eval_copy import eval_copy
from paracond.runtime.progress import check_progress, track
from paracond.streams import Generator

SCANS = ("random", "no-repeat", "systematic")
#: The most values of one group in the rows that run at a time. Networks need up to a hundred times this memory.
VALUES = 2**25
#: Up to this many channels per value cost no more than one, because networks widen every value.
CHANNELS = 8


@dataclass(frozen=True, eq=False)
class Move:
    """One transition: `value`, drawn from `distribution`, replaces `previous` in `rows` (None: in all rows)."""

    name: str
    distribution: Distribution
    previous: Tensor
    value: Tensor
    clamp: Tensor | None
    rows: Tensor | None = None
    batch: int = 0  # the number of rows in all, where only some were redrawn


Model = Callable[[str, Mapping[str, Tensor]], Distribution]
Observer = Callable[[Move], None]


def transition(
    model: Model, name: str, state: Mapping[str, Tensor], clamp: Tensor | None, generator: Generator
) -> Move:
    """Redraw one group, x_name ~ p(x_name | x_-name), at the coordinates that are not clamped.

    model: a `JointModel`, or another function of a name and a state that returns a distribution.
    state: values of all groups; it is not changed.
    clamp: Bool `[batch, *event]`, true where x_name keeps its value; None redraws all of it.
    """
    distribution = model(name, state)
    value = distribution.redraw(state[name], clamp, generator)
    return Move(name, distribution, state[name], value, clamp)


class Undefined:
    """Remembers in which rows a conditional was not finite, and of which group: draws do not show it."""

    def __init__(self, model: JointModel, batch: int):
        self.model = model
        self.traces = torch.zeros(len(model.names), batch, device=model.device)  # once not finite, always not finite

    def see(self, move: Move, rows: Tensor | None = None) -> None:
        """Look at a transition of all rows, or where `rows` (Bool) is true. Nothing waits for the host."""
        witness = move.distribution.witness()
        trace = self.traces[self.model.index(move.name)]
        trace.add_(witness if rows is None else torch.where(rows, witness, 0), alpha=0)

    def see_some(self, move: Move, rows: Tensor) -> None:
        """Look at a transition of these rows (indices) alone."""
        trace = self.traces[self.model.index(move.name)]
        trace.index_add_(0, rows, move.distribution.witness().to(trace.dtype), alpha=0)

    @property
    def first(self) -> Tensor:
        """The place of the first such group among the names of the model, int64 `[batch]`; -1 where there is none."""
        bad = ~self.traces.isfinite()
        return torch.where(bad.any(0), bad.int().argmax(0), -1)

    def forget(self, rows: Tensor) -> None:
        """Begin anew in these rows (indices)."""
        self.traces.index_fill_(1, rows, 0)

    def refuse(self) -> None:
        """Refuse rows whose chains have left all that is finite."""
        require_defined(self.model, self.first)


class Scan:
    """A sequence of choices among `names` by the weights `alpha`, shared by all rows of a batch."""

    def __init__(self, names: Iterable[str], alpha: Mapping[str, float], order: str, generator: torch.Generator):
        one_of("scan", order, SCANS)
        self.names = tuple(names)
        self.order = order
        self.weights = torch.tensor([alpha[name] for name in self.names], dtype=torch.float64)
        self.last: int | None = None
        self.generator = generator

    def reset(self) -> None:
        """Forget the last choice; a systematic scan goes on from a random group."""
        count = len(self.names)
        again = int(torch.randint(count, (), generator=self.generator)) if self.order == "systematic" else None
        self.last = again

    def state_dict(self) -> dict[str, int | None]:
        return {"last": self.last}

    def load_state_dict(self, state: Mapping[str, int | None]) -> None:
        self.last = state["last"]

    def next(self) -> str:
        if self.order == "systematic":
            index = 0 if self.last is None else (self.last + 1) % len(self.names)
        else:
            weights = self.weights.clone()
            if self.order == "no-repeat" and self.last is not None and len(self.names) > 1:
                weights[self.last] = 0
            index = int(torch.multinomial(weights, 1, generator=self.generator))
        self.last = index
        return self.names[index]


class RowScan:
    """A random scan for each row. `free` is `[batch, names]`, true where a row may be redrawn."""

    def __init__(self, names: Iterable[str], alpha: Mapping[str, float], free: Tensor, generator: torch.Generator):
        self.names = tuple(names)
        weights = torch.tensor([alpha[name] for name in self.names], dtype=torch.float64, device=free.device)
        self.weights = weights * free
        self.generator = generator

    def next(self) -> Tensor:
        """The index of the chosen group in every row; -1 in rows where nothing is free."""
        clocks = torch.empty_like(self.weights).exponential_(generator=self.generator) / self.weights
        return torch.where((self.weights > 0).any(1), clocks.argmin(1), -1)


class Chain:
    """Runs the Markov chain of a joint model: `state = chain.run(state, steps, observers)`.

    model: the model whose conditionals are redrawn, in evaluation mode; it may learn between runs.
    generator: the source of all randomness.
    clamp: Bool masks by name, true where values never change: `[batch, *event]`, `[batch]` or `[*event]`.
    scan: which group is redrawn next: "random" (by `alpha`), "no-repeat" (not the last one) or "systematic" (in turn).
    per_row: every row chooses its own group.
    batch: the number of rows, where `per_row` has no clamp to tell it.
    engine: how transitions run, "auto", "eager", "rounded" or "graphs", or an `Engine`.
    """

    def __init__(
        self,
        model: JointModel,
        *,
        generator: torch.Generator,
        clamp: Mapping[str, Tensor] | None = None,
        scan: str = "random",
        per_row: bool = False,
        batch: int | None = None,
        engine: str | Engine = "auto",
    ):
        require_model(model)
        if not isinstance(generator, torch.Generator):
            raise InputError(f"generator must be a torch.Generator, as model.generator(seed), found {shown(generator)}")
        batch = None if batch is None else as_count("batch", batch)
        true_or_false("per_row", per_row)
        one_of("scan", scan, SCANS)
        self.model = model = eval_copy(model)
        self.engine = Engine.of(model.device, engine)
        self.rounded = self.engine.rounded_copy(model)
        self._recorder: _Recorder | None = None
        self.undefined: Undefined | None = None  # since the first `advance`
        self.generator = generator
        self.clamp = full_clamp(model, {} if clamp is None else clamp, batch)
        self.free = tuple(n for n in model.names if n not in self.clamp or not bool(self.clamp[n].all()))
        # The shared choice is made on the host, so it has a source of its own there.
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        host = torch.Generator().manual_seed(int(seed))
        self.scan: Scan | RowScan
        self.batch = batch
        if per_row:
            if scan != "random":
                raise InputError(f'scan must be "random" where rows choose for themselves (per_row), found {scan!r}')
            self.scan = RowScan(self.free, model.alpha, self._free_rows(batch), generator)
        else:
            self.scan = Scan(self.free, model.alpha, scan, host)

    def _free_rows(self, batch: int | None) -> Tensor:
        if batch is None:
            batch = max((len(mask) for mask in self.clamp.values()), default=None)
        if batch is None:
            raise InputError("per_row without a clamp needs batch=, the number of rows")
        everywhere = torch.ones(batch, dtype=torch.bool, device=self.generator.device)
        rows = [~self.clamp[n].reshape(batch, -1).all(1) if n in self.clamp else everywhere for n in self.free]
        return torch.stack(rows, 1) if rows else everywhere.new_zeros(batch, 0)

    @torch.no_grad()
    def step(self, state: State) -> tuple[State, list[Move]]:
        """One transition. Returns a new state and what was redrawn; the given state is not changed."""
        if not self.free:
            return state, []
        choice = self.scan.next()
        if isinstance(choice, str):
            move = self._redraw(choice, state, self.clamp.get(choice))
            if self.undefined is not None:
                self.undefined.see(move)
            return {**state, choice: move.value}, [move]
        moves, after = [], dict(state)
        for index, name in enumerate(self.free):
            rows = (choice == index).nonzero().squeeze(1)
            if len(rows):
                move = self._redraw_rows(name, state, rows)
                if self.undefined is not None:
                    self.undefined.see_some(move, rows)
                after[name] = state[name].index_copy(0, rows, move.value)
                moves.append(move)
        return after, moves

    def _redraw(self, name: str, state: State, clamp: Tensor | None) -> Move:
        with self.engine.precision():
            return transition(self.rounded.model, name, state, clamp, self.generator)

    def _redraw_rows(self, name: str, state: State, rows: Tensor) -> Move:
        clamp = self.clamp[name][rows] if name in self.clamp else None
        move = self._redraw(name, take(state, rows), clamp)
        return Move(name, move.distribution, move.previous, move.value, clamp, rows, len(state[name]))

    def run(self, state: State, steps: int, observers: Iterable[Observer] = (), progress: bool | None = None) -> State:
        """Run `steps` transitions, and return the last state.

        observers: functions that are called with every `Move`.
        progress: True or False shows a bar or not; None shows one on long runs in a terminal.
        """
        at_least({"steps": (steps, 0)})
        check_progress(progress)
        watching, valid = _functions(observers), self._validated(state)
        for former in (self.undefined, None if self._recorder is None else self._recorder.undefined):
            if former is not None:
                former.traces.zero_()  # of a run that was refused
        after = self.advance(valid, steps, watching, progress)
        assert self.undefined is not None
        self.undefined.refuse()
        return after

    def advance(
        self, state: State, steps: int, observers: Iterable[Observer] = (), progress: bool | None = None
    ) -> State:
        """`run` for a state that is valid already. What is not finite stands in `undefined`."""
        observers = tuple(observers)
        if self.undefined is None or self.undefined.traces.shape[1] != row_count(state):
            self.undefined = Undefined(self.model, row_count(state))
        self.rounded.refresh()  # the model may have learned since
        if self.engine.captures and isinstance(self.scan, Scan) and self.free:
            return self._run_recorded(self.scan, state, steps, observers, progress)
        for _ in track(range(steps), "running the chain", progress):
            state, moves = self.step(state)
            for move in moves:
                for observer in observers:
                    observer(move)
        return state

    def _run_recorded(self, scan: Scan, state: State, steps: int, observers, progress) -> State:
        if self._recorder is None or not self._recorder.fits(state):
            self._recorder = _Recorder(self, state)
        recorder = self._recorder
        recorder.load(state)
        for _ in track(range(steps), "running the chain", progress):
            move = recorder.redraw(scan.next())
            for observer in observers:
                observer(move)
        self.undefined = recorder.undefined
        return {name: value.clone() for name, value in recorder.state.items()}

    def _validated(self, state: State) -> State:
        values = self.model.whole_state(state)
        batch = row_count(values)
        if isinstance(self.scan, RowScan) and self.batch not in (None, batch):
            raise InputError(f"batch={self.batch}, and the state has {batch} rows: they must be the same with per_row")
        for name, mask in self.clamp.items():
            if len(mask) not in (1, batch):
                raise InputError(f"clamp of {name!r} has {len(mask)} rows, the state has {batch}")
        return values

    def sweeps(self, count: int) -> int:
        """The number of steps in which every free group is redrawn `count` times (on average, if random)."""
        return count * len(self.free)


def _functions(observers: Any) -> tuple[Observer, ...]:
    """Observers, or the only one, or refuse what is none."""
    try:
        several = not callable(observers) and not isinstance(observers, (str, bytes))
        found = tuple(observers) if several else (observers,)
    except TypeError:  # it is no list either
        found = (observers,)
    for observer in [each for each in found if not callable(each)]:
        raise InputError(f"observers must be functions of a Move, found {shown(observer)}")
    return tuple(partial(called, "observers", each) for each in found)


class _Recorder:
    """A chain's redraws as programs on a state that stays in place (see `engine`). A `Move` that it returns is
    overwritten by the next one of the same group."""

    def __init__(self, chain: Chain, state: State):
        self.clamp, self.draw = chain.clamp, WeakCall(Chain._redraw, chain)  # weak: the chain keeps this recorder
        self.state = {name: value.clone() for name, value in state.items()}
        self.moves: dict[str, Move] = {}
        self.undefined = Undefined(chain.model, row_count(state))
        self.programs = {n: chain.engine.program(self._redraw, chain.generator, n) for n in chain.free}

    def fits(self, state: State) -> bool:
        return all(self.state[name].shape == value.shape for name, value in state.items())

    def load(self, state: State) -> None:
        for name, value in state.items():
            self.state[name].copy_(value)

    @torch.no_grad()
    def redraw(self, name: str) -> Move:
        self.programs[name]()
        return self.moves[name]

    def _redraw(self, name: str) -> None:
        before = self.state[name].clone()
        move = self.draw(name, self.state, self.clamp.get(name))
        self.state[name].copy_(move.value)
        self.undefined.see(move)
        _ = move.distribution.mean  # observers read it: its computation must be recorded too
        self.moves[name] = replace(move, previous=before)


def require_defined(model: JointModel, first: Tensor) -> None:
    """Refuse rows with a conditional that was not finite: `first` is as in `Undefined`."""
    rows = (first >= 0).nonzero().squeeze(1).tolist()
    if rows:
        listed = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise InputError(
            f"p({model.names[int(first[rows[0]])]} | rest) is NaN or infinite in {len(rows)} of {len(first)} rows "
            f"({listed}): their chains diverge. Leave these rows out, let chains begin anew more often by "
            "regeneration=Regeneration(rate, warmup), or give real groups bounds or a ceiling"
        )


def max_rows(model: JointModel, most: int) -> int:
    """The number of rows to run at a time: `most`, or fewer where rows are large."""
    families = model.variables.values()
    size = max(max(math.prod(f.event_shape), math.prod(f.encoding_shape) // CHANNELS) for f in families)
    return max(1, min(most, VALUES // size))


def full_clamp(model: JointModel, clamp: Mapping[str, Tensor], batch: int | None = None) -> Mask:
    """Masks in full form, without those that clamp nothing; refuses masks that the family cannot honour."""
    clamp = named("clamp", clamp)
    model.check_names(clamp)
    full = {}
    for name, each in clamp.items():
        family, mask = model.variables[name], as_mask(name, each).to(model.device)
        rows = batch or (len(mask) if mask.ndim and tuple(mask.shape) != family.event_shape else 1)
        mask = mask.expand(rows) if mask.ndim == 0 else mask
        mask = expand_mask(name, mask, [rows, *family.event_shape], model.device)
        flat = mask.reshape(rows, -1)
        if not family.clamps_coordinates and bool((flat.any(1) & ~flat.all(1)).any()):
            raise InputError(
                f"{name!r}: coordinates of a {type(family).__name__} are not independent given the rest, "
                "so single ones cannot be clamped; clamp the whole group or none of it"
            )
        if bool(mask.any()):
            full[name] = mask
    return full
