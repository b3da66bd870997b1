"""The running batch of the faces experiment: slow rows, and rows that begin at an initializer.

Rows are ordered: slow rows first, then rows that begin at data, then init rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from paracond.experiments.faces.init_rows import InitRowBuffers, InitRows, count_rows
from paracond.experiments.faces.slow_rows import SlowRows
from paracond.model import JointModel
from paracond.training.completion import Source
from paracond.training.parts import Resources
from paracond.training.running_batch import RunningBatch, RunningForm


@dataclass(frozen=True)
class FacesForm(RunningForm):
    """`RunningForm` with slow rows and init rows."""

    slow: SlowRows | None = None
    init_rows: tuple[InitRows, ...] = ()

    def make_batch(self, model: JointModel, size: int, source: Source, resources: Resources) -> RunningBatch:
        return FacesBatch(model, size, source, resources, self)


class FacesBatch(RunningBatch):
    """A running batch whose last rows are init rows, and of whose others some are slow."""

    def __init__(self, model: JointModel, size: int, source: Source, resources: Resources, form: FacesForm):
        rows = size - sum(count_rows(form.init_rows, model, size))
        slow = form.slow or SlowRows(0.0, 1.0)
        alike = form.slow is None and rows == size
        patience = None if alike else slow.patience(rows, size, model.device)
        super().__init__(model, size, source, resources, form.skip_redrawn, rows, patience)
        self.init_rows = InitRowBuffers(model, form.init_rows, self.state, resources.generator)
        program, generator = resources.engine.program, resources.generator
        self._renew, self._renew_all = (program(self._renew_rows, generator, all_rows) for all_rows in (False, True))

    def replace_due(self, length: float, step: int) -> bool:
        self.init_rows.open_due(step)
        return super().replace_due(length, step)

    def pool_filled(self, step: int) -> None:
        if self.init_rows.wanted:
            (self._renew if step else self._renew_all)()

    def _renew_rows(self, all_rows: bool) -> None:
        self.init_rows.renew(self.source.pool, all_rows)

    def target(self, name: str) -> Tensor:
        return self.init_rows.target(name)

    def ignored(self, name: str) -> Tensor | None:
        redrawn, unlearned = super().ignored(name), self.init_rows.unlearned(name)
        if redrawn is None or unlearned is None:
            return unlearned if redrawn is None else redrawn
        return redrawn | unlearned

    def clamp(self, name: str) -> Tensor | None:
        return self.init_rows.clamp(name)

    def mark(self, redrawn: Tensor, new: bool) -> None:
        redrawn[: self.rows].fill_(new)
        self.init_rows.mark(redrawn, new)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"init_rows": self.init_rows.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.init_rows.load_state_dict(state["init_rows"])
