"""Algorithm 1 in the order in which it is printed: update theta_i, then redraw x_i with the new parameters.

`Learner` redraws with the parameters before the update, which saves a forward pass. This is the reference beside it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from paracond.training.learner import Learner, Scored


class LiteralLearner(Learner):
    """`Learner`, with the draw after the update. Arguments are those of `Learner`."""

    def _update(self, name: str) -> None:
        scored = Scored(self.evaluate)
        move = self._transition(scored, name)
        drawn, good = self._draw_after(name, self._check(move, scored.objective, scored.loss))
        self._record(replace(move, value=drawn), good, scored.loss)

    @torch.no_grad()
    def _draw_after(self, name: str, good: Tensor) -> tuple[Tensor, Tensor]:
        """Update, then draw; with a draw that is not finite, the update is taken back."""
        averages = [average.clone() for average in self.averages[name]]
        with torch.enable_grad():
            self._descend([name], good, keep=True)
        with self.engine.precision():
            drawn = self._transition(self.rounded.model, name).value
        fine = torch.zeros_like(good)
        try:
            fine = self._taken_back_unless_finite({name: {"a draw": drawn.sum()}})
        finally:
            for value, old in zip(self.averages[name], averages, strict=True):
                torch.where(fine, value, old, out=value)
        return drawn, fine
