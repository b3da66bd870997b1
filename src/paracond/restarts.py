"""Rows that begin as questions do, and learn the way to the data.

The chain of a question begins at p_0(x_i | what is known) (see `networks.starts`), where learning has never been: its
own chains begin at data. So some rows of the running batch begin there too. They are examples in which a group x_i has
given way to

    x_i' ~ p_0(x_i' | x_K, x_-i),       K being what a question may hold of it, or, where it would hold nothing,
    x_i' ~ p_0(x_i' | u, x_-i),         u ~ p_0(u | x_i, x_-i).

Groups are redrawn as in any chain, given x_i' at first; but what each of them learns, in the place of what it was
before, is the example. What a question knows (`given`) is neither redrawn nor learned. So every conditional learns the
way from a start to the data it may stand for, and what x_i' does not show must be taken from what else is known, such
as attributes. When x_i has had its turn, and been redrawn, there are three ways on:

- "learn" the example, until another takes its place. This leads to the mean of what a start may stand for, within a few
  sweeps: right where that is the question, as in a hidden part of an image, and too blurred to be generated;
- go "home": the row is its example again, and from then on a chain like any other;
- go "on": the row is the chain of a question from then on, in which what is given stays. Each group learns what it was
  before, so that wherever such chains get lost they are called back. They should be few and last long: they learn
  the way back to the start as well, as often as they come near to data. When half of all chains began at a start,
  pictures of faces grew blurred with the sweeps (FID 38 after 30, 59 after 100).

The examples are some that other rows learn from as well: this costs rows of the batch, and no data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.holds import Hold, wide
from paracond.joint import JointModel
from paracond.state import InputError, State


@dataclass(frozen=True)
class Restart:
    """A `share` of the batch begins with group `name` from its start, given the part that `hold` keeps.

    Without one, u is given all of x_i, but `doubt` times as many coordinates count as one as in questions (see
    `redundancy` in `networks.starts`): the more, the less x_i' shows of x_i. What comes `then` is said above. Rows stay
    for so many `times` the chain length n. `weight` is that of x_i where it learns its example: given what others drew
    from x_i' it is far from sure, and a noise that it learns for all rows would grow.
    """

    share: float
    name: str
    hold: Hold | None = None
    doubt: float = 1.0
    given: Sequence[str] = ()
    then: str = "learn"
    times: float = 2.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise InputError(f"weight must be at least 0, found {self.weight}")
        if self.then not in ("learn", "home", "on"):
            raise InputError(f"what comes then must be 'learn', 'home' or 'on', found {self.then!r}")
        for what, found in (("doubt", self.doubt), ("times", self.times)):
            if not 1 <= found < math.inf:
                raise InputError(f"{what} must be at least 1, found {found}")


class Restarts:
    """The last rows of the running batch, from `first` on, began at a start: tensors that stay where they are. `truth`
    are their examples, `away` says which of them learn these."""

    def __init__(self, model: JointModel, wanted: Sequence[Restart], batch: State, generator: torch.Generator):
        self.model, self.wanted, self.generator, self.batch = model, tuple(wanted), generator, batch
        self._check()
        size, device = next((len(value), value.device) for value in batch.values())
        counts = [round(each.share * size) for each in wanted]
        self.size, self.first = size, size - sum(counts)
        if self.first < 1:
            raise InputError(f"restarts leave no row of {size} for chains that begin at data")
        self.truth = {name: torch.zeros_like(batch[name][self.first :]) for name in model.names} if wanted else {}
        self.away = torch.zeros(sum(counts), dtype=torch.bool, device=device)
        self.turn = torch.zeros((), dtype=torch.long, device=device)
        self.blocks = [slice(end - count, end) for count, end in zip(counts, itertools.accumulate(counts), strict=True)]

    def _check(self) -> None:
        shares = [each.share for each in self.wanted]
        if any(not share >= 0 for share in shares) or sum(shares) > 1 + 1e-9:
            raise InputError(f"the shares of restarts must be at least 0, and at most 1 together, found {shares}")
        for each in self.wanted:
            if each.name not in self.model.names or self.model.conditional(each.name).start is None:
                raise InputError(f"{each.name!r} cannot restart: it is no group of the model with a start")
            unknown = [name for name in each.given if name not in self.model.names or name == each.name]
            if unknown:
                raise InputError(f"{unknown[0]!r} cannot be given where {each.name!r} restarts: it is no other group")

    @torch.no_grad()
    def renew(self, pool: State) -> None:
        """Some rows of each kind, the oldest, take examples of a new pool: a part 1 / times of them, or, where that is
        less than one, one of them every so often."""
        taken = 0
        for each, block in self._kinds():
            count, every = self._pace(each, block)
            due = self.turn % every == 0
            place = (self.turn // every * count + torch.arange(count, device=self.turn.device)) % (
                block.stop - block.start
            )
            state = {name: value[taken : taken + count] for name, value in pool.items()}
            self._put(each, block.start + place, state, due)
            taken += count
        self.turn.add_(1)

    def _put(self, each: Restart, rows: Tensor, state: State, due: Tensor) -> None:
        """These examples in the place of rows, if that is due."""
        begun = self.model.restart(each.name, state, self._mask(each, state), self.generator, each.doubt)
        for name, value in state.items():
            start = begun.to(value.dtype) if name == each.name else value
            for buffer, at, new in ((self.batch, self.first + rows, start), (self.truth, rows, value)):
                if name in buffer:
                    buffer[name].index_copy_(0, at, torch.where(due, new, buffer[name][at]))
        self.away.index_copy_(0, rows, self.away[rows] | due)

    def _pace(self, each: Restart, block: slice) -> tuple[int, int]:
        """How many rows of a kind are new at a time, and with every which pool."""
        rows = block.stop - block.start
        return math.ceil(rows / each.times), max(1, round(each.times / rows))

    @property
    def rounds(self) -> int:
        """How many times `renew` must be called until all rows have an example."""
        paces = [(block.stop - block.start, *self._pace(each, block)) for each, block in self._kinds()]
        return max((-(-rows // count) * every for rows, count, every in paces), default=0)

    def _mask(self, each: Restart, state: State) -> Tensor | None:
        value = state[each.name]
        if each.hold is None:
            return None
        return wide(each.hold(len(value), self.generator, value.device), value).expand_as(value)

    def target(self, name: str) -> Tensor:
        """What group `name` learns: what it is, or the example."""
        value = self.batch[name]
        if name not in self.truth:
            return value
        own, example = value[self.first :], self.truth[name]
        return torch.cat([value[: self.first], torch.where(wide(self.away, own), example, own)])

    def targets(self) -> State:
        return {name: self.target(name) for name in self.batch}

    def asked(self, name: str) -> Tensor | None:
        """Rows, Bool, in which `name` is not given; None if that is all of them."""
        if not any(name in each.given for each in self.wanted):
            return None
        known = torch.zeros_like(self.away)
        for each, block in self._kinds():
            if name in each.given:
                known[block] = True if each.then == "on" else self.away[block]
        return torch.cat([torch.ones_like(self.turn, dtype=torch.bool).expand(self.first), ~known])

    def weights(self, name: str) -> Tensor | None:
        """How much each row counts where `name` learns; None if all count in full."""
        asked, found = self.asked(name), torch.ones_like(self.away, dtype=torch.float32)
        lighter = [(each, block) for each, block in self._kinds() if each.name == name and each.weight != 1]
        if asked is None and not lighter:
            return None
        for each, block in lighter:
            found[block] = torch.where(self.away[block], each.weight, 1.0)
        found = torch.cat([found.new_ones(1).expand(self.first), found])
        return found if asked is None else found * asked

    def mark(self, redrawn: Tensor, new: bool) -> None:
        """Whether a group is new in these rows; nothing is where they learn their examples."""
        part = redrawn[self.first :]
        part.copy_(wide(~self.away, part).expand_as(part) if new else torch.zeros_like(part))

    def go_on(self, name: str, good: Tensor) -> None:
        """After a turn of `name`, in which all was well if it is `good`."""
        for each, block in self._kinds():
            if each.name != name or each.then == "learn":
                continue
            if each.then == "home":
                for other, truth in self.truth.items():
                    there = self.batch[other][self.first :][block]
                    there.copy_(torch.where(wide(self.away[block] & good, there), truth[block], there))
            self.away[block].logical_and_(~good)

    def _kinds(self) -> list[tuple[Restart, slice]]:
        """What is wanted, and which of these rows are for it, if any."""
        pairs = zip(self.wanted, self.blocks, strict=True)
        return [(each, block) for each, block in pairs if block.stop > block.start]
