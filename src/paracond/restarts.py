"""Rows that begin as questions do, and learn the way to the data.

The chain of a question begins at p_0(x_i | what is known) (see `networks.starts`), where learning has never been: its
own chains begin at data. So some rows of the running batch begin there too. They are examples in which a group x_i has
given way to

    x_i' ~ p_0(x_i' | x_K, x_-i),       K being what a question may hold of it, or, where it would hold nothing,
    x_i' ~ p_0(x_i' | u, x_-i),         u ~ p_0(u | x_i, x_-i).

Groups are redrawn as in any chain, given x_i' at first; but what each of the others learns, in the place of what it
was before, is the example. What a question knows (x_K, and groups that are `given`) is neither redrawn nor learned. So
they learn the way from a start to the data it may stand for, and what x_i' does not show must be taken from what else
is known, such as attributes. x_i itself learns nothing from this: latents that were drawn given x_i' say little of the
example, and learning it from them makes x_i blurred and noisy, a state that chains fall into and do not leave. (Small
models of faces, one seed: sigma .097 with it, .094 without; distance of what is drawn 41.3 and 36.9. Of 36 pictures of
a large one, with it, five were brown fog.) When x_i has had its turn, and been redrawn, a row either goes on like this
until another example takes its place, which is right for a hidden part of an image; or it goes `home`: it is its
example again, and from then on a chain like any other.

Nor do rows become chains of questions, under whose clamps they would learn, as in any chain, what they were before:
those that begin at a start learn the way back to it as well, and pictures of faces grew blurred with the sweeps (FID 38
after 30, 59 after 100); those that begin at data changed little.

The examples are some that other rows learn from as well: this costs rows of the batch, and no data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.holds import Hold, wide
from paracond.joint import JointModel
from paracond.state import InputError, State


@dataclass(frozen=True)
class Restart:
    """A `share` of the batch begins with group `name` from its start, given the part that `hold` keeps.

    Without a `hold`, u is given all of x_i, but `doubt` times as many coordinates count as one as in questions (see
    `redundancy` in `networks.starts`): the more, the less x_i' shows of x_i. Rows stay
    for so many `times` the chain length n. Examples are taken as they come, or at rates `prefer(examples)`: more often
    where what is given is rare, for example. In the first `after` updates rows begin at data: before latents say much,
    what they are to be given x_i' is only noise to them.
    """

    share: float
    name: str
    hold: Hold | None = None
    doubt: float = 1.0
    given: Sequence[str] = ()
    home: bool = False
    times: float = 2.0
    prefer: Callable[[State], Tensor] | None = None
    after: int = 0

    def __post_init__(self) -> None:
        for what, found in (("doubt", self.doubt), ("times", self.times)):
            if not 1 <= found < math.inf:
                raise InputError(f"{what} must be at least 1, found {found}")


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
        parts = {name for each in wanted for name in (*each.given, *([each.name] if each.hold else []))}
        self.known = {
            name: torch.zeros_like(self.truth[name], dtype=torch.bool) for name in self.truth if name in parts
        }
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
            unknown = [name for name in each.given if name not in self.model.names or name == each.name]
            if unknown:
                raise InputError(f"{unknown[0]!r} cannot be given where {each.name!r} restarts: it is no other group")

    @torch.no_grad()
    def renew(self, pool: State, all_rows: bool = False) -> None:
        """Some rows of each kind, the oldest, take examples of a new pool: a part 1 / times of them, or, where that is
        less than one, one of them every so often; or all rows do, at first."""
        taken = 0
        for each, block in self._kinds():
            rows = block.stop - block.start
            count, every = (rows, 1) if all_rows else (math.ceil(rows / each.times), max(1, round(each.times / rows)))
            place = (self.turn // every * count + torch.arange(count, device=self.turn.device)) % rows
            chosen = self._chosen(each, pool, taken, count)
            state = {name: value[chosen] for name, value in pool.items()}
            self._put(each, block.start + place, state, self.turn % every == 0, self.open[self.wanted.index(each)])
            taken += count
        self.turn.add_(1)

    def _chosen(self, each: Restart, pool: State, first: int, count: int) -> Tensor | slice:
        """Rows of the pool: the next ones, or those with the shortest waiting times at the rates preferred."""
        if each.prefer is None:
            return slice(first, first + count)
        uniform = torch.rand(self.size, generator=self.generator, device=self.turn.device)
        return (-torch.log1p(-uniform) / each.prefer(pool)).topk(count, largest=False).indices

    def _put(self, each: Restart, rows: Tensor, state: State, due: Tensor, open: Tensor) -> None:
        """These examples in the place of rows, if that is due."""
        begun = dict(state)
        known = {name: torch.full_like(mask[rows], name in each.given) for name, mask in self.known.items()}
        value, mask = state[each.name], self._mask(each, state)
        drawn = self.model.restart(each.name, state, mask, self.generator, each.doubt)
        begun[each.name] = torch.where(open, drawn.to(value.dtype), value)
        known |= {} if mask is None else {each.name: mask}
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

    def _mask(self, each: Restart, state: State) -> Tensor | None:
        if each.hold is None:
            return None
        value = state[each.name]
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

    def go_home(self, name: str, good: Tensor) -> None:
        """After a turn of `name`, in which all was well if it is `good`."""
        for each, block in self._kinds():
            if each.name != name or not each.home:
                continue
            for other, truth in self.truth.items():
                there = self.batch[other][self.first :][block]
                there.copy_(torch.where(wide(self.away[block] & good, there), truth[block], there))
            self.away[block].logical_and_(~good)

    def _kinds(self) -> list[tuple[Restart, slice]]:
        """What is wanted, and which of these rows are for it, if any."""
        pairs = zip(self.wanted, self.blocks, strict=True)
        return [(each, block) for each, block in pairs if block.stop > block.start]
