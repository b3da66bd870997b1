"""Step I of Algorithm 1 at the same time as step II: the next pool is completed while the last one is learned from.

The paper completed and learned in turn, and names this as open (appendix D). With theta_k the parameters at the moment
when pool k is taken into use, pool k + 1 is completed by p_theta_k while pool k is learned from. Completed values are
thus older by one pool than without (pools 0 and 1 are both completed by theta_0).

Completion works on a copy of the model that nothing else reads or writes, updated once per pool, with a generator, an
engine and a guard of its own. Its pool is copied to the front when it is complete. Its transitions are queued a few per
update: a long queue would delay the updates. They depend on nothing that updates change, so it does not matter when
they run within a pool; without recorded programs they run in line, with the same result. (Layers with a randomness of
their own, such as dropout, then share torch's generator, and so depend on the order.)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch

from paracond.data import Data
from paracond.model import JointModel
from paracond.runtime.nonfinite import NonFiniteGuard
from paracond.training.completion import Augment, Completion, CompletionOptions
from paracond.training.parts import Resources, copy_into, flags, weights


class AsyncCompletion:
    """A pool of completed examples in use (see `Source`), and the `completion` of the next ones."""

    def __init__(
        self,
        model: JointModel,
        data: Data,
        size: int,
        options: CompletionOptions,
        augment: Augment | None,
        resources: Resources,
    ):
        self.model, self.guard, self.left = model, resources.guard, 0
        self.engine = resources.engine.twin()
        self.generator = model.generator(int(torch.randint(2**62, (), generator=resources.host)))
        self.engine.join_side_stream()
        with self.engine.side_stream(self.generator):  # so that its memory, once freed, is not reused while written
            self.copy = copy.deepcopy(model).requires_grad_(False)  # the model as it was when this pool began
            rounded = self.engine.rounded_copy(self.copy)
            own = Resources(self.engine, NonFiniteGuard(model.names, self.engine), self.generator, resources.host)
            self.completion = Completion(self.copy, data, size, options, augment, rounded, own)
        self.engine.join_side_stream()
        for name in model.names:
            self.engine.fused(rounded.model.conditional(name).network)
        self.pool = {name: value.clone() for name, value in self.completion.pool.items()}
        self.redrawn = flags(self.pool)
        self._follow = resources.engine.program(self._follow_model, resources.generator)
        self._take = resources.engine.program(self._take_pool, resources.generator)

    def fill(self) -> None:
        """Use the next pool, which is complete, and begin completing the one after it."""
        upcoming = self.completion
        if upcoming.left == 0 and not upcoming.turns:
            self._begin()  # the first of all
        self.advance(1.0)
        self.engine.join_side_stream()
        self._take()
        self.left, upcoming.left = upcoming.size, 0
        self._begin()

    def advance(self, share: float) -> None:
        """Queue this share of a pool's transitions, or those that are left."""
        if self.completion.turns:
            with self.engine.side_stream(self.generator):
                self.completion.redraw(math.ceil(share * self.completion.steps * len(self.completion.missing)))

    def finish(self) -> None:
        self.engine.join_side_stream()
        self.completion.resources.guard.raise_first()

    def state_dict(self) -> dict[str, Any]:
        self.engine.join_side_stream()
        return {
            "completion": self.completion.state_dict(),
            "guard": self.completion.resources.guard.state_dict(),
            "model": weights(self.copy),
            "pool": self.pool,
            "redrawn": self.redrawn,
            "random": self.generator.get_state(),
            "left": self.left,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.engine.join_side_stream()
        self.completion.load_state_dict(state["completion"])
        self.completion.resources.guard.load_state_dict(state["guard"])
        for part, tensors in (("model", weights(self.copy)), ("pool", self.pool), ("redrawn", self.redrawn)):
            copy_into(tensors, state[part])
        self.generator.set_state(state["random"])
        self.left = state["left"]
        self.engine.join_side_stream()

    def _begin(self) -> None:
        self.completion.choose()
        self._follow()
        self.engine.join_side_stream()
        with self.engine.side_stream(self.generator):
            self.completion.load()
            self.completion.redraw(0)  # where nothing is missing, the pool is complete

    @torch.no_grad()
    def _follow_model(self) -> None:
        """Copy the model's weights and its clock; nothing runs on the side stream."""
        kinds = (self.copy.parameters(), self.model.parameters()), (self.copy.buffers(), self.model.buffers())
        for copies, originals in kinds:
            if tensors := list(copies):
                torch._foreach_copy_(tensors, list(originals))
        self.completion.resources.guard.clock.copy_(self.guard.clock)

    @torch.no_grad()
    def _take_pool(self) -> None:
        """Copy the completed pool to the front, and what its guard has stored; nothing runs on the side stream."""
        source = self.completion
        for front, back in ((self.pool, source.pool), (self.redrawn, source.redrawn)):
            for name, value in front.items():
                value.copy_(back[name])
        self.guard.adopt(source.resources.guard)
