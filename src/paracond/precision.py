"""Questions by tours: every row runs as many as it needs.

A row runs `least` tours; then its standard errors (`estimates`) say how many more it needs, until all of them are small
enough or it has run `most`. So an easy row costs little, and a hard one does not hold the batch. A decision looks at
the first tours of the row by their numbers, never at those that happened to end first, because short tours end early.
While nothing else is left to do, idle slots run tours that rows may need next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paracond.data import MOST, InputError, State, as_count, as_float, shown
from paracond.estimates import Estimate, TourMeans, estimate
from paracond.question import Moments, Question
from paracond.tours import Batch, Record

CAUTION = 1.1  # more tours than the last errors ask for
GROWTH = 1.25, 4.0  # the least and the most by which the number of tours of a row grows


@dataclass(frozen=True)
class Precise:
    """Runs tours until standard errors are small.

    error: the standard error that all probabilities must reach, and means in units of two standard deviations. A fair
        coin needs as many independent draws for either, 1 / (2 error)^2.
    least: the number of tours that every row runs.
    most: the number at which a row stops in any case (0: half more than a coin needs that is fair, and that no
        tour tosses twice, 1 / (2 error^2), and at least 1,024).
    """

    error: float = 0.03
    least: int = 32
    most: int = 0

    def __post_init__(self) -> None:
        error = as_float("error", self.error, "a number over 0")
        if not error > 0:
            raise InputError(f"error must be a number over 0, found {shown(self.error)}")
        least = as_count("least", self.least, 2)
        most = as_count("most", self.most, 0) or max(1024, least, math.ceil(min(0.75 / error**2, MOST)))
        plain = {"error": error, "least": least, "most": as_count("most", most, least)}
        for name, value in plain.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Tours(Precise):
    """Runs a fixed number of tours in every row: `Tours(200)`.

    count: the number of tours.
    """

    def __init__(self, count: int):
        count = as_count("count of Tours", count, 2)
        for name, value in {"error": math.inf, "least": count, "most": count}.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"Tours({self.least})"


class Rounds:
    """The tours of a query: a `Schedule`. Afterwards it has moments and samples of every row.

    question: the question.
    keys: the key of every row.
    stop: when a row stops.
    draws: the number of samples of each row.
    """

    def __init__(self, question: Question, keys: np.ndarray, stop: Precise, draws: int):
        self.question, self.keys, self.stop, self.draws = question, keys, stop, draws
        model, rows = question.model, len(keys)
        self.names = names = [name for name in question.wanted if not bool(question.mask[name].all())]
        self.device, self.families = model.device, model.variables
        self.least, self.most = max(stop.least, draws), stop.most
        self.begun, self.target = np.zeros(rows, dtype=np.int64), np.full(rows, self.least)
        self.finished = np.zeros(rows, dtype=bool)
        self.opened = 0  # rows before this one have begun
        self.places: dict[int, np.ndarray] = {}  # where the tours of a row are kept, by number; -1: not ended yet
        self.store = _Store()
        self.tours = torch.zeros(rows, dtype=torch.int64, device=model.device)
        options: dict = {"dtype": torch.float64, "device": model.device}
        self.undefined = torch.full((rows,), -1, dtype=torch.int64, device=model.device)  # as in `Undefined`
        self.worst, self.drift = ({name: torch.zeros(rows, **options) for name in names} for _ in range(2))
        self.moments: dict[str, Moments] = {}
        for name in names:
            shape = (rows, *self.families[name].encoding_shape)
            self.moments[name] = Moments(*(torch.zeros(shape, **options | {"dtype": model.dtype}) for _ in range(4)))
        self.samples: State = {}

    @property
    def converged(self) -> bool:
        return all(bool((worst <= self.stop.error).all()) for worst in self.worst.values())

    # --- which tours run ---------------------------------------------------------------------------------------------

    def take(self, count: int) -> Batch:
        """The next tours: those that rows need, then those of new rows, then those that rows may need."""
        rows: list[np.ndarray] = []
        numbers: list[np.ndarray] = []

        def add(row: int, upto: int) -> None:
            nonlocal count
            new = max(0, min(upto - int(self.begun[row]), count))
            rows.append(np.full(new, row))
            numbers.append(self.begun[row] + np.arange(new))
            self.begun[row] += new
            count -= new

        for row in list(self.places):
            add(row, int(self.target[row]))
        while count and self.opened < len(self.keys):
            self.places[self.opened] = np.full(self.most, -1)
            add(self.opened, self.least)
            self.opened += 1
        for row in list(self.places) if count else ():
            add(row, min(self.most, 2 * int(self.target[row])))
        none = [np.zeros(0, dtype=np.int64)]
        return Batch.of(np.concatenate(rows or none), np.concatenate(numbers or none), self.keys)

    def wanted(self, tours: Batch) -> np.ndarray:
        return ~self.finished[tours.rows]

    # --- what they leave ---------------------------------------------------------------------------------------------

    def finish(self, tours: Batch, record: Record) -> None:
        if not len(tours):
            return
        self._keep_samples(tours, record.state)
        self.undefined.scatter_reduce_(0, torch.from_numpy(tours.rows).to(self.device), record.undefined, "amax")
        places = self.store.put(record.means)
        for row, number, place in zip(tours.rows.tolist(), tours.numbers.tolist(), places, strict=True):
            self.places[row][number] = place
        ready: dict[int, list[int]] = {}
        for row in np.unique(tours.rows).tolist():
            if self._complete(row):
                ready.setdefault(int(self.target[row]), []).append(row)
        for target, rows in ready.items():
            # On a CPU one by one, so that the sums of a row do not depend on the others.
            for some in [rows] if self.device.type != "cpu" else [[row] for row in rows]:
                self._decide(some, target)

    def _keep_samples(self, tours: Batch, state: State) -> None:
        early = np.flatnonzero(tours.numbers < self.draws)
        rows, numbers, at = (
            torch.from_numpy(index).to(self.device) for index in (tours.rows[early], tours.numbers[early], early)
        )
        for name in self.names:
            value = state[name]
            if name not in self.samples:
                self.samples[name] = value.new_zeros(len(self.keys), self.draws, *value.shape[1:])
            self.samples[name][rows, numbers] = value[at]

    def _decide(self, rows: list[int], target: int) -> None:
        """Estimate these rows from their first tours; they are finished, or get a new target."""
        places = torch.from_numpy(np.stack([self.places[row][:target] for row in rows])).to(self.device)
        at = torch.tensor(rows, device=self.device)
        worst = torch.zeros(len(rows), dtype=torch.float64, device=self.device)
        for name in self.names:
            found = estimate(self.store.at(name, places))
            error = self._largest(name, found)
            worst = torch.maximum(worst, error)
            self.worst[name][at], self.drift[name][at] = error, found.drift
            for to, value in zip(_parts(self.moments[name]), _parts(found), strict=True):
                to[at] = value.to(to.dtype)
        self.tours[at] = target
        for row, error in zip(rows, worst.tolist(), strict=True):
            if not error > self.stop.error or target >= self.most:  # or not a number: more tours would not help
                self._close(row)
                continue
            needed = CAUTION * target * (error / self.stop.error) ** 2
            grown = min(max(needed, GROWTH[0] * target), GROWTH[1] * target)
            self.target[row] = min(math.ceil(grown), self.most)
            if self._complete(row):  # tours ahead of the former target may have ended already
                self._decide([row], int(self.target[row]))

    def _complete(self, row: int) -> bool:
        """Whether all tours that a decision waits for have ended."""
        return bool((self.places[row][: self.target[row]] >= 0).all())

    def _largest(self, name: str, found: Estimate) -> Tensor:
        """The largest error of a row, in the units of `Precise`."""
        error = found.error
        if not self.families[name].finite:
            error = torch.where(error == 0, 0.0, error / (2 * found.std))
        return error.reshape(len(error), -1).amax(1)

    def _close(self, row: int) -> None:
        self.finished[row] = True
        places = self.places.pop(row)
        self.store.empty.extend(places[places >= 0].tolist())


def _parts(each: Moments | Estimate) -> tuple[Tensor, ...]:
    parts = (each.mean, each.std, each.error, each.error_of_std)
    assert all(part is not None for part in parts)
    return parts  # type: ignore[return-value]


class _Store:
    """What tours left, until their row is finished."""

    def __init__(self) -> None:
        self.values: dict[str, TourMeans] = {}
        self.size = 0
        self.empty: deque[int] = deque()

    def put(self, means: dict[str, TourMeans]) -> list[int]:
        """Keep these tours. Returns their places."""
        count = len(next(iter(means.values())).length)
        if len(self.empty) < count:
            more = max(self.size, 2 * count)
            for name, new in means.items():
                room = _mapped(new, lambda v: v.new_zeros(more, *v.shape[1:]))
                self.values[name] = _mapped(self.values[name], torch.cat, room) if self.size else room
            self.empty.extend(range(self.size, self.size + more))
            self.size += more
        places = [self.empty.popleft() for _ in range(count)]
        for name, new in means.items():
            at = torch.tensor(places, device=new.length.device)
            _mapped(self.values[name], lambda pair: pair[0].index_copy_(0, at, pair[1]), new)
        return places

    def at(self, name: str, places: Tensor) -> TourMeans:
        """What tours at these places left of a group."""
        return _mapped(self.values[name], lambda v: v[places])


def _mapped(means: TourMeans, change: Callable, other: TourMeans | None = None) -> TourMeans:
    """Change every tensor, or every pair with a tensor of the other one."""

    def each(name: str) -> Tensor:
        value = getattr(means, name)
        found: Tensor = change(value if other is None else (value, getattr(other, name)))
        return found

    return TourMeans(each("length"), each("mean"), each("spread"), each("early"), means.half)
