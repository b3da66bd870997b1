"""Tours: the chain that begins anew, and so forgets at a rate that we choose.

    K(x | x') = (1 - eps) G(x | x') + eps p_0 G^w (x),

where G is one sweep over the free groups, p_0 draws the first state of a chain given what is known (`initializers`),
and w sweeps warm it up. For any conditionals, K has the one limiting distribution

    pi = sum_k eps (1 - eps)^k p_0 G^(w + k),          |K^n(x', .) - pi| <= (1 - eps)^n.

The chain between two beginnings is a tour: x_0 ~ p_0, then w + T sweeps with P(T = k) = eps (1 - eps)^k. Tours are
independent. The last state of a tour is an exact draw from pi, and E f(pi) = E sum_t f(x_t) / E (T + 1), t = w..w + T
(`estimates`).

`TourRunner` runs tours in a fixed number of slots. When a tour ends, its slot goes to the next one, so tours of
different ages run in one batch, in one recorded program. Three things make a tour independent of its neighbours, bit
for bit on a CPU: every tour has its own stream of random numbers (`streams`), every pass of a network has the same
number of rows, and a tour has its own place among them, because products of matrices round by the place of a row. On a
GPU a tour takes any slot.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paracond.chain import SCANS as OF_CHAINS
from paracond.chain import Undefined, transition
from paracond.data import InputError, Mask, State, merge, one_of, take, wide
from paracond.estimates import TourMeans
from paracond.initializers.initial_state import blank_state, draw_groups, has_init, redraw_rest
from paracond.model import JointModel, Regeneration
from paracond.observers import summary
from paracond.question import Question
from paracond.runtime.engine import Engine
from paracond.streams import RowStreams, as_keys, exponential, geometric, numbered, occurrences

#: Slots on a CPU and on a GPU: the fewest, the most, and the number of values in the largest group of all slots.
SLOTS = {"cpu": (16, 256, 2**14), "cuda": (64, 16_384, 2**23)}
#: Tours that are taken from the schedule ahead of time, per slot: where tours have places, one for each place.
AHEAD = {"cpu": 4, "cuda": 1}
#: The part of a tour for which a finished slot may wait on a GPU, where looking for it takes time.
IDLE = 0.05
SCANS = ("systematic", "random")


@dataclass(frozen=True, eq=False)
class Batch:
    """Some tours, in arrays.

    rows: the row of the question that each serves.
    numbers: its number there.
    keys: its stream.
    homes: its place, modulo the number of slots.
    """

    rows: np.ndarray
    numbers: np.ndarray
    keys: np.ndarray
    homes: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, numbers: np.ndarray, row_keys: np.ndarray) -> Batch:
        """Tours of these rows; `row_keys` has the keys of all rows."""
        rows, numbers = rows.astype(np.int64), numbers.astype(np.int64)
        keys = row_keys[rows]
        return cls(rows, numbers, numbered(keys, numbers), keys + numbers.astype(np.uint64))

    @classmethod
    def none(cls, places: int = 0) -> Batch:
        """Places for so many tours."""
        zero = np.zeros(places, dtype=np.int64)
        return cls(zero, zero.copy(), zero.astype(np.uint64), zero.astype(np.uint64))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: np.ndarray | slice) -> Batch:
        return Batch(*(array[which] for array in self._arrays()))

    def __add__(self, other: Batch) -> Batch:
        return Batch(*(np.concatenate(pair) for pair in zip(self._arrays(), other._arrays(), strict=True)))

    def put(self, places: np.ndarray, tours: Batch) -> None:
        """Put tours at these places."""
        for array, new in zip(self._arrays(), tours._arrays(), strict=True):
            array[places] = new

    def _arrays(self) -> tuple[np.ndarray, ...]:
        return self.rows, self.numbers, self.keys, self.homes


@dataclass(frozen=True, eq=False)
class Record:
    """What tours that have just ended leave, by group, `[tours, ...]`: their last states, and their means.

    undefined: as `first` of `Undefined`, of every tour.
    """

    state: State
    means: dict[str, TourMeans]
    undefined: Tensor


class Schedule(Protocol):
    """Decides which tours run."""

    def take(self, count: int) -> Batch:
        """The next tours, at most `count`; none where nothing is left to begin."""

    def wanted(self, tours: Batch) -> np.ndarray:
        """Which of these tours are still needed, Bool."""

    def finish(self, tours: Batch, record: Record) -> None:
        """These tours have ended."""


def slots_of(model: JointModel, tours: int) -> int:
    """The number of slots for a model, a power of two.

    tours: the number of tours, as far as it is known. On a GPU a few times as many tours as slots keep all slots busy;
        on a CPU the number of slots does not depend on it, so that the arithmetic of a tour does not either.
    """
    least, most, values = SLOTS["cuda" if model.device.type == "cuda" else "cpu"]
    size = max(math.prod(family.event_shape) for family in model.variables.values())
    count = min(most, max(least, 2 ** int(math.log2(max(1, values // size)))))
    if model.device.type == "cpu":
        return count
    return min(count, max(least, 2 ** int(math.log2(max(1, tours // 4)))))


def passes(homes: np.ndarray, slots: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Split rows into passes with at most one row at every place: their indices and places."""
    places = (homes.astype(np.uint64) % np.uint64(slots)).astype(np.int64)
    turns = occurrences(places)
    for turn in range(int(turns.max(initial=-1)) + 1):
        rows = np.flatnonzero(turns == turn)
        yield rows, places[rows]


class TourRunner:
    """Runs the tours of a schedule: `TourRunner(...).run(schedule)`.

    question: what is known, and where tours begin.
    free: the groups that are redrawn, in the order of a sweep.
    observed: the groups whose means are recorded.
    regeneration: how often the chain begins anew, and how long it warms up.
    scan: "systematic" (the groups in turn) or "random" (as many transitions as groups, each row chooses its own).
    engine: how sweeps run.
    slots: the number of tours at a time.
    rows: in which rows of the question each free group is redrawn, Bool by group (default: in all).
    """

    def __init__(
        self,
        question: Question,
        free: Sequence[str],
        observed: Iterable[str],
        regeneration: Regeneration,
        scan: str,
        engine: Engine,
        slots: int,
        rows: Mapping[str, Tensor] | None = None,
    ):
        self.question, self.model, self.regeneration, self.slots = question, question.model, regeneration, slots
        self.free, self.scan, self.rows = tuple(free), scan, rows or {}
        self.engine = engine
        self.rounded = engine.rounded_copy(self.model)
        self.rounded.refresh()
        self.clamped = [n for n in self.free if n in self.rows or bool(question.mask[n].any())]
        device = self.model.device
        # Sweeps of each tour; a slot whose time is beyond it is idle.
        self.last, keys, time = (torch.zeros(slots, dtype=torch.int64, device=device) for _ in range(3))
        self.streams = RowStreams(keys, time)
        weights = [self.model.alpha[name] if name in self.free else 0.0 for name in self.model.names]
        self.weights = torch.tensor(weights, dtype=torch.float64, device=device)
        self.state: State = {}
        self.clamp: Mask = {}
        self.undefined = Undefined(self.model, slots)
        self.count = torch.zeros(slots, dtype=torch.float64, device=device)
        half = max(1, round(math.log(2) / regeneration.rate))  # the median of the states that count
        self.means = {n: _Means(self.model, n, slots, regeneration.warmup, half) for n in observed if n in self.free}
        self.waiting = _Waiting(self)
        self.sweep = engine.program(self._sweep, torch.Generator(device))
        looks = IDLE * (regeneration.warmup + 1 / regeneration.rate) if device.type == "cuda" else 1
        self.stride = max(1, round(looks))

    @torch.no_grad()
    def run(self, schedule: Schedule) -> int:
        """Run tours until the schedule has no more. Returns the number of sweeps."""
        running, busy = Batch.none(self.slots), np.zeros(self.slots, dtype=bool)
        ends, now = np.zeros(self.slots, dtype=np.int64), 0
        while True:
            busy &= schedule.wanted(running)
            for slots, tours, lengths in self._begin(np.flatnonzero(~busy), schedule):
                running.put(slots, tours)
                ends[slots], busy[slots] = now + lengths, True
            if not busy.any():
                return now
            step = int(ends[busy].min()) - now
            if step > 0:
                step = max(step, self.stride)
                for _ in range(step):
                    self.sweep()
                now += step
            done = np.flatnonzero(busy & (ends <= now))
            schedule.finish(running[done], self._record(done))
            busy[done] = False

    def _begin(self, idle: np.ndarray, schedule: Schedule) -> Iterable[tuple[np.ndarray, Batch, np.ndarray]]:
        """Put the next tours into idle slots: slots, tours and their numbers of sweeps."""
        waiting = self.waiting
        while len(idle):
            slots, places = waiting.ready_for(idle)
            if not len(slots):
                if not waiting.draw(idle, schedule):
                    return
                continue
            waiting.ready[places] = False
            wanted = schedule.wanted(waiting.tours[places])
            slots, places = slots[wanted], places[wanted]
            idle = np.setdiff1d(idle, slots)
            self._install(slots, places)
            yield slots, waiting.tours[places], waiting.lengths[places]

    def _install(self, slots: np.ndarray, places: np.ndarray) -> None:
        """Copy first states to slots."""
        if not len(slots):
            return
        first = self.waiting
        if not self.state:
            self._make_room()
        to, source = (torch.from_numpy(index).to(self.model.device) for index in (slots, places))
        for name, value in self.state.items():
            value.index_copy_(0, to, first.state[name].index_select(0, source))
        for name, mask in self.clamp.items():
            mask.index_copy_(0, to, first.clamp[name].index_select(0, source))
        self.streams.keys.index_copy_(0, to, first.keys.index_select(0, source))
        self.streams.time.index_fill_(0, to, 0)
        self.last.index_copy_(0, to, first.last.index_select(0, source))
        self.undefined.forget(to)
        counted = float(self.regeneration.warmup == 0)  # the first state counts as well
        self.count.index_fill_(0, to, counted)
        for name, means in self.means.items():
            means.begin(to, self.state[name].index_select(0, to), counted)

    def _make_room(self) -> None:
        """Make the tensors in which tours run, at places that a recorded program can rely on."""
        self.state.update({name: torch.zeros_like(value) for name, value in self.waiting.state.items()})
        self.clamp.update({name: torch.ones_like(mask) for name, mask in self.waiting.clamp.items()})

    def _record(self, slots: np.ndarray) -> Record:
        at = torch.from_numpy(slots).to(self.model.device)
        state = {name: value.index_select(0, at) for name, value in self.state.items()}
        length = self.count.index_select(0, at)
        means = {name: means.taken(at, length) for name, means in self.means.items()}
        return Record(state, means, self.undefined.first.index_select(0, at))

    # --- one sweep of all slots, as one program ----------------------------------------------------------------------

    @torch.no_grad()
    def _sweep(self) -> None:
        self.streams.time.add_(1)
        alive = self.streams.time <= self.last
        if self.scan == "systematic":
            for name in self.free:
                self._redraw(name, alive, 0)
        else:
            for step in range(len(self.free)):
                self._redraw_one(step, alive)
        counts = alive & (self.streams.time >= self.regeneration.warmup)
        self.count.add_(counts)
        for means in self.means.values():
            means.count(counts, self.count, self.streams.time)

    def _redraw(self, name: str, rows: Tensor, place: int) -> None:
        """Redraw a group in these rows. Draws at different places are independent."""
        kept = wide(~rows, self.state[name]).expand_as(self.state[name])
        clamp = kept | self.clamp[name] if name in self.clamp else kept
        with self.engine.precision():
            streams = self.streams.at(place + self.model.index(name))
            move = transition(self.rounded.model, name, self.state, clamp, streams)
        self.state[name].copy_(move.value)
        self.undefined.see(move, rows)
        if name in self.means:
            self.means[name].see(rows, *summary(self.model.variables[name], move))

    def _redraw_one(self, step: int, alive: Tensor) -> None:
        """One transition of eq:gibbs_transition in which every row chooses among its own free groups.

        A sweep of a row has as many as it has free groups.
        """
        none = torch.zeros_like(alive)
        known = [self.clamp[n].reshape(self.slots, -1).all(1) if n in self.clamp else none for n in self.model.names]
        rates = ~torch.stack(known, 1) * self.weights
        place = (step + 1) * (len(self.model.names) + 1)
        clocks = exponential(rates, self.streams.at(place + len(self.model.names))) / rates
        chosen, moves = clocks.argmin(1), alive & (step < (rates > 0).sum(1))
        for name in self.free:
            self._redraw(name, moves & (chosen == self.model.index(name)), place)


class _Means:
    """The mean of encode(x) along the tours in all slots, for one group: conditionals count instead of draws."""

    def __init__(self, model: JointModel, name: str, slots: int, warmup: int, half: int):
        self.family, self.dtype, self.half = model.variables[name], model.dtype, half
        self.middle = warmup + half - 1  # the time of the last early state
        shape, device = (slots, *self.family.encoding_shape), model.device
        self.now, self.variance = (torch.zeros(shape, dtype=model.dtype, device=device) for _ in range(2))
        self.mean, self.spread, self.early = (torch.zeros(shape, dtype=torch.float64, device=device) for _ in range(3))

    def begin(self, slots: Tensor, value: Tensor, counted: float) -> None:
        """Begin tours at these values."""
        encoded = self.family.encode(value).to(self.dtype)
        self.now.index_copy_(0, slots, encoded)
        for tensor in (self.mean, self.early):
            tensor.index_copy_(0, slots, encoded.double() * counted)
        for tensor in (self.variance, self.spread):
            tensor.index_fill_(0, slots, 0)

    def see(self, rows: Tensor, mean: Tensor, variance: Tensor) -> None:
        """The group was redrawn in these rows, from conditionals with this mean and variance."""
        rows = wide(rows, mean)
        self.now.copy_(torch.where(rows, mean, self.now))
        self.variance.copy_(torch.where(rows, variance, self.variance))

    def count(self, rows: Tensor, count: Tensor, time: Tensor) -> None:
        """A state that counts has been reached in these rows (Welford's update)."""
        now, counts = self.now.double(), wide(rows, self.mean)
        step = counts * (now - self.mean)
        self.mean.add_(step / wide(count.clamp(min=1), step))
        self.spread.add_(step * (now - self.mean) + counts * self.variance)
        self.early.copy_(torch.where(wide(time == self.middle, self.mean), self.mean, self.early))

    def taken(self, slots: Tensor, length: Tensor) -> TourMeans:
        """What the tours in these slots leave."""
        mean, spread, early = (each.index_select(0, slots) for each in (self.mean, self.spread, self.early))
        short = wide(length <= self.half, mean)
        return TourMeans(length, mean, spread, torch.where(short, mean, early), self.half)


class _Waiting:
    """Tours that wait for a slot. Their first states are drawn together, at most one for every slot."""

    def __init__(self, runner: TourRunner):
        self.runner, slots, device = runner, runner.slots, runner.model.device
        self.ahead = AHEAD["cuda" if device.type == "cuda" else "cpu"] * slots
        self.queue = Batch.none()  # without a first state
        # Those with a first state, by place:
        self.tours, self.lengths = Batch.none(slots), np.zeros(slots, dtype=np.int64)
        self.ready = np.zeros(slots, dtype=bool)
        self.keys, self.last = (torch.zeros(slots, dtype=torch.int64, device=device) for _ in range(2))
        self.state: State = {}
        self.clamp: Mask = {}

    @property
    def placed(self) -> bool:
        """Whether a tour runs in the slot of its own."""
        return self.runner.model.device.type == "cpu"

    def ready_for(self, idle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Idle slots for which there is a first state, and its places."""
        if self.placed:
            slots = idle[self.ready[idle]]
            return slots, slots
        places = np.flatnonzero(self.ready)[: len(idle)]
        return idle[: len(places)], places

    def draw(self, idle: np.ndarray, schedule: Schedule) -> bool:
        """Draw first states at all empty places; whether there is one for an idle slot."""
        self.queue = self.queue[schedule.wanted(self.queue)]
        if len(self.queue) < self.ahead:
            self.queue = self.queue + schedule.take(self.ahead - len(self.queue))
        chosen, places = self._chosen()
        if not len(chosen) or not (np.isin(places, idle).any() or not self.placed):
            return False
        left = np.ones(len(self.queue), dtype=bool)
        left[chosen] = False
        tours, self.queue = self.queue[chosen], self.queue[left]
        self._draw(tours, places)
        return True

    def _chosen(self) -> tuple[np.ndarray, np.ndarray]:
        """The next tour of the queue for every empty place: their indices and places."""
        empty = ~self.ready
        if not self.placed:
            places = np.flatnonzero(empty)[: len(self.queue)]
            return np.arange(len(places)), places
        homes = (self.queue.homes % np.uint64(self.runner.slots)).astype(np.int64)
        fits = np.flatnonzero(empty[homes])
        fits = fits[occurrences(homes[fits]) == 0]
        return fits, homes[fits]

    def _draw(self, tours: Batch, places: np.ndarray) -> None:
        """Draw the first states of these tours, at these places; other places repeat one of them."""
        runner, device = self.runner, self.keys.device
        filled = tours[np.zeros(runner.slots, dtype=np.int64)]
        filled.put(places, tours)
        lengths = runner.regeneration.warmup + geometric(filled.keys, runner.regeneration.rate)
        self.tours.put(places, tours)
        self.lengths[places], self.ready[places] = lengths[places], True
        rows, at = (torch.from_numpy(index).to(device) for index in (filled.rows, places))
        question, keys = runner.question.rows(rows), as_keys(filled.keys).to(device)
        state, clamp = first_states(question, keys), {n: question.mask[n] for n in runner.clamped}
        for name in [name for name in clamp if name in runner.rows]:
            clamp[name] = clamp[name] | wide(~runner.rows[name][rows], clamp[name])
        if not self.state:
            self.state, self.clamp = ({n: torch.zeros_like(v) for n, v in each.items()} for each in (state, clamp))
        pairs = [(self.keys, keys), (self.last, torch.from_numpy(lengths).to(device))]
        pairs += [(self.state[name], state[name]) for name in state] + [(self.clamp[n], clamp[n]) for n in clamp]
        for to, value in pairs:
            to.index_copy_(0, at, value.index_select(0, at))


@torch.no_grad()
def first_states(question: Question, keys: Tensor) -> State:
    """Draw x_0 ~ p_0(x | what is known), every row from its own stream, whatever the other rows are.

    What is known of a row decides how its first state is computed. So rows with the same pattern are drawn together,
    at their places among all rows; on a GPU, where bits need not agree, rows whose groups are known alike.
    """
    model = question.model
    known, placed = question.placed()
    streams = RowStreams(keys, torch.zeros_like(keys))
    state = merge(placed, known, blank_state(model, len(keys), streams, known))
    missing = [name for name in model.names if not bool(placed[name].all())]
    drawn: set[str] = set()
    if question.fitted and has_init(model):
        on_cpu, before = model.device.type == "cpu", dict(state)
        for rows in _alike(model, placed, len(keys)):
            every, at = rows, torch.arange(len(rows), device=rows.device)
            if on_cpu:  # rows stay at their places, and other places repeat one of them
                every, at = rows[:1].expand(len(keys)).index_copy(0, rows, rows), rows
            part, mask = take(before, every), take(placed, every)
            seen = {name: m[:1] if on_cpu else m for name, m in mask.items() if bool(m.any())}
            gaps = [name for name in missing if not bool(mask[name].all())]
            drawn |= draw_groups(model, part, seen, gaps, RowStreams(keys[every], torch.zeros_like(keys[every])))
            for name in gaps:
                state[name] = state[name].index_copy(0, rows, part[name][at])
    if drawn or question.values:
        redraw_rest(model, state, placed, [name for name in missing if name not in drawn], streams)
    return state


def _alike(model: JointModel, mask: Mapping[str, Tensor], count: int) -> list[Tensor]:
    """Rows with the same masks (on a GPU: in which the same groups are known, in whole or in part)."""
    flat = [mask[name].reshape(count, -1) for name in model.variables]
    if model.device.type != "cpu":
        flat = [torch.stack([m.any(1), m.all(1)], 1) for m in flat]
    which = torch.cat(flat, 1).unique(dim=0, return_inverse=True)[1]
    return [(which == k).nonzero().squeeze(1) for k in range(int(which.max()) + 1)]


def one_of_scans(scan: str) -> None:
    """Refuse orders of redraws that tours do not have."""
    if isinstance(scan, str) and scan in OF_CHAINS and scan not in SCANS:
        raise InputError(f"scan={scan!r} is for chains that never begin anew; tours have {' and '.join(SCANS)}")
    one_of("scan", scan, SCANS)
