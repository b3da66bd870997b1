"""Rows that begin as questions do, and learn the way to the data.

The chain of a question begins at p_0(x_i | what is known) (see `networks.starts`), where learning has never been: its
own chains begin at data. So some rows of the running batch begin there too. They are examples in which a group x_i has
given way to

    x_i' ~ p_0(x_i' | x_K, x_-i),       K being what a question may hold of it.

Groups are redrawn as in any chain, given x_i' at first; but what each of the others learns, in the place of what it
was before, is the example. What a question knows, x_K, is neither redrawn nor learned. So they learn the way from a
start to the data it may stand for. x_i itself learns nothing from this: latents that were drawn given x_i' say little
of the example, and learning it from them makes x_i blurred and noisy, a state that chains fall into and do not leave.
(Small models of faces, one seed: sigma .097 with it, .094 without; distance of what is drawn 41.3 and 36.9. Of 36
pictures of a large one, with it, five were brown fog.) A row goes on like this until another example takes its place.

Nor do rows become chains of questions, under whose clamps they would learn, as in any chain, what they were before:
those that begin at a start learn the way back to it as well, and pictures of faces grew blurred with the sweeps (FID 38
after 30, 59 after 100); those that begin at data changed little. Images drawn anew as a whole, given attributes, and
pixels hidden here and there were tried and did not pay (RESULTS).

The examples are some that other rows learn from as well: this costs rows of the batch, and no data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.data import InputError, State, take, wide
from paracond.model import JointModel
from paracond.training.holds import Hold


@dataclass(frozen=True)
class Restart:
    """A `share` of the batch begins with group `name` from its start, given the part that `hold` keeps.

    Rows stay for so many `times` the chain length n. In the first `after` updates they begin at data: before latents
    say much, what they are to be given x_i' is only noise to them.
    """

    share: float
    name: str
    hold: Hold
    times: float = 2.0
    after: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.times < math.inf:
            raise InputError(f"times must be at least 1, found {self.times}")


class Restarts:
    """The last rows of the running batch, from `first` on, began at a start: tensors that stay where they are. `truth`
    are their examples, `known` is what their questions know of these, `away` says which rows learn them."""

    def __init__(self, model: JointModel, wanted: Sequence[Restart], batch: State, generator: torch.Generator):
        self.model, self.wanted, self.generator, self.batch = model, tuple(wanted), generator, batch
        self._check()
        size, device = next((len(value), value.device) for value in batch.values())
        counts = [round(each.share * size) for each in wanted]
        self.size, self.first = size, size - sum(counts)
        if self.first < 1:
            raise InputError(f"restarts leave no row of {size} for chains that begin at data")
        self.blocks = [slice(end - count, end) for count, end in zip(counts, itertools.accumulate(counts), strict=True)]
        self.truth = {name: torch.zeros_like(batch[name][self.first :]) for name in model.names} if wanted else {}
        parts = dict.fromkeys(each.name for each in wanted)
        self.known = {name: torch.zeros_like(self.truth[name], dtype=torch.bool) for name in parts}
        self.away = torch.zeros(sum(counts), dtype=torch.bool, device=device)
        self.silent = {each.name: torch.zeros_like(self.away) for each in wanted}  # where a group itself restarts
        for each, block in self._kinds():
            self.silent[each.name][block] = True
        self.turn = torch.zeros((), dtype=torch.long, device=device)
        self.open = torch.zeros(len(wanted), dtype=torch.bool, device=device)  # which kinds begin at the start by now

    def _check(self) -> None:
        shares = [each.share for each in self.wanted]
        if any(not share >= 0 for share in shares) or sum(shares) > 1 + 1e-9:
            raise InputError(f"the shares of restarts must be at least 0, and at most 1 together, found {shares}")
        for each in self.wanted:
            start = each.name in self.model.names and self.model.conditional(each.name).start is not None
            if not start:
                raise InputError(f"{each.name!r} cannot restart: it is no group of the model with a start")

    @torch.no_grad()
    def renew(self, pool: State, all_rows: bool = False) -> None:
        """Some rows of each kind, the oldest, take examples of a new pool: a part 1 / times of them, or, where that is
        less than one, one of them every so often; or all rows do, at first."""
        taken = 0
        for each, block in self._kinds():
            rows = block.stop - block.start
            count, every = (rows, 1) if all_rows else (math.ceil(rows / each.times), max(1, round(each.times / rows)))
            place = (self.turn // every * count + torch.arange(count, device=self.turn.device)) % rows
            state = take(pool, slice(taken, taken + count))
            self._put(each, block.start + place, state, self.turn % every == 0, self.open[self.wanted.index(each)])
            taken += count
        self.turn.add_(1)

    def _put(self, each: Restart, rows: Tensor, state: State, due: Tensor, open: Tensor) -> None:
        """These examples in the place of rows, if that is due."""
        value = state[each.name]
        mask = wide(each.hold(len(value), self.generator, value.device), value).expand_as(value)
        drawn = self.model.restart(each.name, state, mask, self.generator)
        begun = {**state, each.name: torch.where(open, drawn.to(value.dtype), value)}
        known = {name: mask if name == each.name else torch.zeros_like(old[rows]) for name, old in self.known.items()}
        here = self.first + rows
        for buffers, at, new in ((self.batch, here, begun), (self.truth, rows, state), (self.known, rows, known)):
            for name, buffer in buffers.items():
                buffer.index_copy_(0, at, torch.where(due, new[name], buffer[at]))
        self.away.index_copy_(0, rows, torch.where(due, open, self.away[rows]))

    def look(self, step: int) -> None:
        """Whether any kind begins at its start from this update on."""
        for k, each in enumerate(self.wanted):
            if step == each.after:
                self.open[k].fill_(True)

    def target(self, name: str) -> Tensor:
        """What group `name` learns: what it is, or the example."""
        value = self.batch[name]
        if name not in self.truth:
            return value
        own, example = value[self.first :], self.truth[name]
        return torch.cat([value[: self.first], torch.where(wide(self.away, own), example, own)])

    def targets(self) -> State:
        return {name: self.target(name) for name in self.batch}

    def held(self, name: str) -> Tensor | None:
        """Where questions know `name`, Bool `[batch, ...]`; None if none does."""
        if name not in self.known:
            return None
        known = self.known[name]
        found = known & wide(self.away, known)
        return torch.cat([torch.zeros_like(found[:1]).expand(self.first, *found.shape[1:]), found])

    def unlearned(self, name: str) -> Tensor | None:
        """Where `name` learns nothing, Bool `[batch, ...]`: where it is known, and on the way from a start of its own;
        None if it learns everywhere."""
        held = self.held(name)
        if name not in self.silent:
            return held
        own = self.batch[name]
        alone = wide(self.silent[name] & self.away, own[self.first :]).expand_as(own[self.first :])
        alone = torch.cat([torch.zeros_like(own[: self.first], dtype=torch.bool), alone])
        return alone if held is None else alone | held

    def mark(self, redrawn: Tensor, new: bool) -> None:
        """Whether a group is new in these rows; nothing is where they learn their examples."""
        part = redrawn[self.first :]
        part.copy_(wide(~self.away, part).expand_as(part) if new else torch.zeros_like(part))

    def _kinds(self) -> list[tuple[Restart, slice]]:
        """What is wanted, and which of these rows are for it, if any."""
        pairs = zip(self.wanted, self.blocks, strict=True)
        return [(each, block) for each, block in pairs if block.stop > block.start]
