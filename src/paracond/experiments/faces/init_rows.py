"""Init rows: rows of the running batch that begin at the initializer of questions and learn the way to the data.

The chain of a question begins at p_0(x_i | known parts) (see `initializers`). The chains of training begin at data and
never visit that state. So some rows of the running batch begin at examples in which a group x_i is replaced by

    x_i' ~ p_0(x_i' | x_K, x_-i),       where K is the part of x_i that a question may clamp.

Groups are redrawn as in any chain, first given x_i'. The other groups learn the example instead of their value before
the redraw, and so the way from x_i' to the data. The known part x_K is neither redrawn nor learned. x_i learns nothing
from these rows: latents drawn given x_i' carry little about the example and would blur the decoder. A row stays like
this until another example replaces it. Init rows use examples that other rows use too, so they cost no data.

research/faces.md has the trials.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.data import InputError, State, take, wide
from paracond.experiments.faces.held_squares import Hold
from paracond.initializers import draw_group
from paracond.model import JointModel
from paracond.training.parts import copy_into


@dataclass(frozen=True)
class InitRows:
    """A `share` of the batch begins with group `name` from its initializer, given the part that `hold` keeps.

    times: rows stay this many times the chain length n.
    after: in the first `after` updates these rows begin at data, until latents carry information about the example.
    """

    share: float
    name: str
    hold: Hold
    times: float = 2.0
    after: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.times < math.inf:
            raise InputError(f"times must be at least 1, found {self.times}")


def count_rows(wanted: Sequence[InitRows], model: JointModel, size: int) -> list[int]:
    """The number of rows of a batch for each kind."""
    shares = [each.share for each in wanted]
    if any(not share >= 0 for share in shares) or sum(shares) > 1 + 1e-9:
        raise InputError(f"the shares of init rows must be at least 0, and at most 1 together, found {shares}")
    for each in wanted:
        if each.name not in model.names or model.conditional(each.name).init is None:
            raise InputError(f"init rows need a group with an initializer; {each.name!r} is none")
    counts = [round(share * size) for share in shares]
    if sum(counts) >= size:
        raise InputError(f"init rows leave no row of {size} for chains that begin at data")
    return counts


class InitRowBuffers:
    """The last rows of the running batch: tensors that stay where they are.

    `truth` are their examples, `known` masks their known parts, `away` is true for rows that began at an initializer
    and so learn their examples.
    """

    def __init__(self, model: JointModel, wanted: Sequence[InitRows], batch: State, generator: torch.Generator):
        self.model, self.wanted, self.generator, self.batch = model, tuple(wanted), generator, batch
        size, device = next((len(value), value.device) for value in batch.values())
        counts = count_rows(wanted, model, size)
        self.first = size - sum(counts)
        self.blocks = [slice(end - count, end) for count, end in zip(counts, itertools.accumulate(counts), strict=True)]
        self.truth = {name: torch.zeros_like(batch[name][self.first :]) for name in model.names} if wanted else {}
        parts = dict.fromkeys(each.name for each in wanted)
        self.known = {name: torch.zeros_like(self.truth[name], dtype=torch.bool) for name in parts}
        self.away = torch.zeros(sum(counts), dtype=torch.bool, device=device)
        self.silent = {each.name: torch.zeros_like(self.away) for each in wanted}  # where a group itself was replaced
        for each, block in self._kinds():
            self.silent[each.name][block] = True
        self.turn = torch.zeros((), dtype=torch.long, device=device)
        self.open = torch.zeros(len(wanted), dtype=torch.bool, device=device)  # which kinds are past `after`

    @torch.no_grad()
    def renew(self, pool: State, all_rows: bool = False) -> None:
        """Give examples of a new pool to the oldest rows of each kind: a part 1 / times of them, or, where that is less
        than one, one of them every so often; or to all rows, at first."""
        taken = 0
        for each, block in self._kinds():
            rows = block.stop - block.start
            count, every = (rows, 1) if all_rows else (math.ceil(rows / each.times), max(1, round(each.times / rows)))
            place = (self.turn // every * count + torch.arange(count, device=self.turn.device)) % rows
            state = take(pool, slice(taken, taken + count))
            self._put(each, block.start + place, state, self.turn % every == 0, self.open[self.wanted.index(each)])
            taken += count
        self.turn.add_(1)

    def _put(self, each: InitRows, rows: Tensor, state: State, due: Tensor, open: Tensor) -> None:
        """Put these examples in the place of rows, if `due`."""
        value = state[each.name]
        mask = wide(each.hold(len(value), self.generator, value.device), value).expand_as(value)
        drawn = draw_group(self.model, each.name, state, mask, self.generator)
        first = {**state, each.name: torch.where(open, drawn.to(value.dtype), value)}
        known = {name: mask if name == each.name else torch.zeros_like(old[rows]) for name, old in self.known.items()}
        here = self.first + rows
        for buffers, at, new in ((self.batch, here, first), (self.truth, rows, state), (self.known, rows, known)):
            for name, buffer in buffers.items():
                buffer.index_copy_(0, at, torch.where(due, new[name], buffer[at]))
        self.away.index_copy_(0, rows, torch.where(due, open, self.away[rows]))

    def open_due(self, step: int) -> None:
        """Open the kinds whose time has come."""
        for k, each in enumerate(self.wanted):
            if step == each.after:
                self.open[k].fill_(True)

    def target(self, name: str) -> Tensor:
        """The target of group `name`: its value, or the example."""
        value = self.batch[name]
        if name not in self.truth:
            return value
        own, example = value[self.first :], self.truth[name]
        return torch.cat([value[: self.first], torch.where(wide(self.away, own), example, own)])

    def clamp(self, name: str) -> Tensor | None:
        """Where `name` is clamped, Bool `[batch, ...]`; None if nowhere."""
        if name not in self.known:
            return None
        known = self.known[name]
        found = known & wide(self.away, known)
        return torch.cat([torch.zeros_like(found[:1]).expand(self.first, *found.shape[1:]), found])

    def unlearned(self, name: str) -> Tensor | None:
        """Where `name` learns nothing, Bool `[batch, ...]`: where it is known or was replaced; None if nowhere."""
        clamped = self.clamp(name)
        if name not in self.silent:
            return clamped
        own = self.batch[name]
        alone = wide(self.silent[name] & self.away, own[self.first :]).expand_as(own[self.first :])
        alone = torch.cat([torch.zeros_like(own[: self.first], dtype=torch.bool), alone])
        return alone if clamped is None else alone | clamped

    def mark(self, redrawn: Tensor, new: bool) -> None:
        """Set the flags of one group in these rows; no draw counts as new where they learn their examples."""
        part = redrawn[self.first :]
        part.copy_(wide(~self.away, part).expand_as(part) if new else torch.zeros_like(part))

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        own = {"turn": self.turn, "away": self.away, "open": self.open}
        return {"own": own, "truth": self.truth, "known": self.known}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        for part, tensors in self.state_dict().items():
            copy_into(tensors, state[part])

    def _kinds(self) -> list[tuple[InitRows, slice]]:
        """The kinds that have rows, each with its rows."""
        pairs = zip(self.wanted, self.blocks, strict=True)
        return [(each, block) for each, block in pairs if block.stop > block.start]
