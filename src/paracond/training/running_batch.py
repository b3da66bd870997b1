"""The batch of chains that step II of Algorithm 1 learns from: its rows, their replacement, and which draws are fresh.

It comes in two forms, for the expected chain length n.

- `RunningForm`, the paper's implementation: one batch runs on for ever. Before each update a share 1/n of its rows,
  chosen at random, is replaced by fresh completed examples. The chain length of a row is random with mean n. Every
  update sees chains of all ages, which makes learning steadier.
- `LiteralForm`, Algorithm 1 as printed: a batch of completed examples runs exactly n steps, then all rows are replaced.

Both may skip values that were just redrawn. Where x_i is itself the last thing redrawn, from p_theta_i(. | x_-i) with
x_-i unchanged since, the expectation of its gradient is zero with the same theta_i, and of the order of the learning
rate after an update. Such coordinates only add noise, so `skip_redrawn` leaves them out of the loss. The mean is still
over all rows, so the expected gradient is the same (for networks without a randomness of their own).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paracond.chain import SCANS, Move
from paracond.data import State, one_of, true_or_false, wide
from paracond.model import JointModel
from paracond.training.completion import Source
from paracond.training.parts import Resources, blank, copy_into, flags

SHUFFLES = 64


@dataclass(frozen=True)
class RunningForm:
    """One batch runs on for ever, with a share 1/n of its rows replaced before each update.

    scan: which group is updated next, "no-repeat", "random" or "systematic" (see `chain`).
    skip_redrawn: leave values that were just redrawn out of the loss.
    """

    scan: str = "no-repeat"
    skip_redrawn: bool = True

    def __post_init__(self) -> None:
        one_of("scan", self.scan, SCANS)
        true_or_false("skip_redrawn", self.skip_redrawn)

    def make_batch(self, model: JointModel, size: int, source: Source, resources: Resources) -> RunningBatch:
        return RunningBatch(model, size, source, resources, self.skip_redrawn)


@dataclass(frozen=True)
class LiteralForm(RunningForm):
    """A batch of completed examples runs exactly n steps, then all rows are replaced. Options as in `RunningForm`."""

    def make_batch(self, model: JointModel, size: int, source: Source, resources: Resources) -> RunningBatch:
        return LiteralBatch(model, size, source, resources, self.skip_redrawn)


FORMS = {"running": RunningForm(), "literal": LiteralForm()}


class RunningBatch:
    """`size` chains: `state` are their values, `redrawn` is true where a value was the last thing redrawn in its row.

    Tensors stay where they are, for the programs that work on them. Only the first `rows` rows are replaced from the
    source, rows with larger `patience` less often. Subclasses use the others.
    """

    resets_scan = False  # whether a replacement begins the scan anew

    def __init__(
        self,
        model: JointModel,
        size: int,
        source: Source,
        resources: Resources,
        skip_redrawn: bool = True,
        rows: int | None = None,
        patience: Tensor | None = None,
    ):
        self.model, self.size, self.source, self.resources = model, size, source, resources
        self.skip_redrawn, self.rows, self.patience = skip_redrawn, size if rows is None else rows, patience
        device = model.device
        self.state = blank(model, size)
        self.redrawn = flags(self.state)
        self.due = float(self.rows)  # rows that are to be replaced
        self.ranks = torch.zeros(SHUFFLES, size, dtype=torch.long, device=device)  # orders of rows, for replacements
        self.replacements, self.turn = 0, torch.zeros(1, dtype=torch.long, device=device)
        self.first, self.count = torch.zeros(2, dtype=torch.long, device=device)  # which rows of the pool come next
        program, fused, generator = resources.engine.program, resources.engine.fused, resources.generator
        self._put, self._keep = fused(self._put_rows), fused(self._keep_value)
        self._shuffle = program(self._shuffle_rows, generator)
        self._replace = program(self._replace_rows, generator)

    # --- replacement --------------------------------------------------------------------------------------------

    def replace_due(self, length: float, step: int) -> bool:
        """Put fresh rows in place of those that are due before update `step`; whether there were any.

        A fraction of a row, and rows that the pool no longer has, stay due until the next update.
        """
        self.due += self.newly_due(length) if step > 0 else 0.0
        if self.due < 1:
            return False
        if self.source.left == 0:
            self.source.fill()
            self.pool_filled(step)
        count = min(int(self.due), self.source.left)
        if self.replacements % SHUFFLES == 0:
            self._shuffle()
        self.turn.fill_(self.replacements % SHUFFLES)
        self.replacements += 1
        self.first.fill_(self.size - self.source.left)
        self.count.fill_(count)
        self._replace()
        self.due, self.source.left = self.due - count, self.source.left - count
        return True

    def newly_due(self, length: float) -> float:
        """How many rows one update makes due."""
        return self.rows / length

    def pool_filled(self, step: int) -> None:
        """Called when the source has a new pool."""

    @torch.no_grad()
    def _shuffle_rows(self) -> None:
        """Many random orders at once: one sort of many short rows costs hardly more than a sort of one. Rows come in
        the order of exponential waiting times, with their patience as means; if all are alike, any order will do."""
        uniform = torch.rand(self.ranks.shape, generator=self.resources.generator, device=self.model.device)
        waits = -torch.log1p(-uniform).clamp(max=-1e-12)
        if self.patience is None:
            self.ranks.copy_(waits.argsort(1))
        else:
            self.ranks.copy_((waits * self.patience).argsort(1).argsort(1))

    @torch.no_grad()
    def _replace_rows(self) -> None:
        rank = self.ranks.index_select(0, self.turn).squeeze(0)
        chosen = (rank < self.count) & (self.resources.guard.first[0] < 0)
        self._put(chosen, (self.first + rank).clamp(max=self.size - 1))

    @torch.no_grad()
    def _put_rows(self, chosen: Tensor, places: Tensor) -> None:
        """Put the rows `places` of the pool where `chosen` is true."""
        for buffers, fresh in ((self.state, self.source.pool), (self.redrawn, self.source.redrawn)):
            for name, buffer in buffers.items():
                buffer.copy_(torch.where(wide(chosen, buffer), fresh[name][places], buffer))

    # --- what an update reads and writes ------------------------------------------------------------------------

    def target(self, name: str) -> Tensor:
        """What group `name` learns: its value."""
        return self.state[name]

    def targets(self) -> State:
        """What every group learns."""
        return {name: self.target(name) for name in self.state}

    def ignored(self, name: str) -> Tensor | None:
        """Bool `[batch, ...]`, true where group `name` learns nothing; None if it learns everywhere."""
        return self.redrawn[name] if self.skip_redrawn else None

    def clamp(self, name: str) -> Tensor | None:
        """Bool `[batch, ...]`, true where group `name` is clamped; None if nowhere."""
        return None

    def store(self, move: Move, good: Tensor) -> None:
        """Take over the new draw of a group if `good`, and mark it as redrawn."""
        self._keep(move.name, move.value, good)

    @torch.no_grad()
    def _keep_value(self, name: str, value: Tensor, good: Tensor) -> None:
        former = self.state[name]
        former.copy_(torch.where(good, value, former))
        for other, redrawn in self.redrawn.items():
            self.mark(redrawn, other == name)

    def mark(self, redrawn: Tensor, new: bool) -> None:
        """Set the flags of one group after a draw of it (`new`) or of another."""
        redrawn.fill_(new)

    # --- saving -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": self._tensors(), "due": self.due, "replacements": self.replacements}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for part, tensors in self._tensors().items():
            copy_into(tensors, state["tensors"][part])
        self.due, self.replacements = state["due"], state["replacements"]

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"state": self.state, "redrawn": self.redrawn, "own": {"ranks": self.ranks}}


class LiteralBatch(RunningBatch):
    """`size` chains of exactly n steps. The scan begins anew with every batch; otherwise, with some lengths, the same
    group would always meet the data first."""

    resets_scan = True
    age = 0  # updates since the last replacement

    def replace_due(self, length: float, step: int) -> bool:
        self.age += 1 if step > 0 else 0
        replaced = super().replace_due(length, step)
        self.age = 0 if replaced else self.age
        return replaced

    def newly_due(self, length: float) -> float:
        return float(self.size) if self.age >= round(length) else 0.0

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"age": self.age}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.age = state["age"]
