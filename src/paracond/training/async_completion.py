"""Step I of Algorithm 1 beside step II: while examples of one pool are learned from, those of the next are completed.

The paper completed and learned by turns, and names this as open (appendix D). Time runs in fills. With theta_k the
parameters at the moment when pool k is taken into use, pool k + 1 is completed by p_theta_k while pool k is learned
from; completed values are thus older by one pool than without (pools 0 and 1 are both completed by theta_0).

For that, completion works on a copy of the model that nothing else reads or writes, brought up to date once per fill,
with a generator, an engine and faults of its own, and its pool is copied to the front in one go. Its programs are asked
for in portions, a few per update: a long queue of them would hold up the updates. They depend on nothing that updates
change, so when they run within a fill does not matter; without recorded programs they run in line, to the same effect.
(Layers with a randomness of their own, such as dropout, share torch's generator then, and so depend on the order.)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import torch

from paracond.data import Data
from paracond.model import JointModel
from paracond.runtime.engine import Engine
from paracond.runtime.nonfinite import Faults
from paracond.training.completion import Augment, Completion, flags


class Beside:
    """A pool of completed examples, of which `left` are not used yet, and the `completion` of the next ones."""

    def __init__(
        self,
        model: JointModel,
        data: Data,
        size: int,
        steps: int,
        augment: Augment | None,
        engine: Engine,
        faults: Faults,
        generator: torch.Generator,
        host: torch.Generator,
        warm: Iterable[str] = (),
    ):
        self.model, self.faults, self.left = model, faults, 0
        self.engine = engine.another()
        self.generator = model.generator(int(torch.randint(2**62, (), generator=host)))
        self.engine.meet()
        with self.engine.aside(self.generator):  # so that its memory, once freed, is not reused while it is written
            self.still = copy.deepcopy(model).requires_grad_(False)  # the model as it was when this fill began
            working = self.engine.working(self.still)
            sources = self.engine, Faults(self.still.names, self.engine), self.generator, host
            what = self.still, data, size, steps, augment
            self.completion = Completion(*what, working, *sources, warm=warm)
        self.engine.meet()
        for name in model.names:
            self.engine.fused(working.model.conditional(name).network)
        self.pool = {name: value.clone() for name, value in self.completion.pool.items()}
        self.redrawn = flags(self.pool)
        self._follow = engine.program(self._follow_model, generator)
        self._take = engine.program(self._take_pool, generator)

    def fill(self) -> None:
        """Take the next pool into use, completed by now, and begin with the one after it."""
        next_one = self.completion
        if next_one.left == 0 and not next_one.turns:
            self._begin()  # the first of all
        self.go_on(1.0)
        self.engine.meet()
        self._take()
        self.left, next_one.left = next_one.size, 0
        self._begin()

    def go_on(self, share: float) -> None:
        """Ask for this share of what a fill takes, or for what is left of it."""
        if self.completion.turns:
            with self.engine.aside(self.generator):
                self.completion.go_on(math.ceil(share * self.completion.steps * len(self.completion.missing)))

    def finish(self) -> None:
        """Let all that is asked for next wait for what was asked for aside, and raise its first fault."""
        self.engine.meet()
        self.completion.faults.raise_first()

    def _begin(self) -> None:
        self.completion.choose()
        self._follow()
        self.engine.meet()
        with self.engine.aside(self.generator):
            self.completion.begin()
            self.completion.go_on(0)  # where nothing is missing, that is all

    @torch.no_grad()
    def _follow_model(self) -> None:
        """The model's weights, and the time, as they are now; nothing runs aside."""
        kinds = (self.still.parameters(), self.model.parameters()), (self.still.buffers(), self.model.buffers())
        for copies, originals in kinds:
            if tensors := list(copies):
                torch._foreach_copy_(tensors, list(originals))
        self.completion.faults.clock.copy_(self.faults.clock)

    @torch.no_grad()
    def _take_pool(self) -> None:
        """What was completed comes to the front, and with it what was not finite; nothing runs aside."""
        source = self.completion
        for front, back in ((self.pool, source.pool), (self.redrawn, source.redrawn)):
            for name, value in front.items():
                value.copy_(back[name])
        self.faults.adopt(source.faults)
