"""Time of an update, and a lower bound for it.

The floor of an update is the larger of two times: its floating-point operations at the rate of a large bfloat16 matrix
product, and its bytes at the rate of a large copy, both measured on the same device in the same run. torch counts the
operations. Bytes: every convolution and linear layer reads its input and writes its output once forward; backward it
reads the output's gradient twice and its input once, and writes the input's gradient (bfloat16). Every parameter is
read and written with its gradient, two moments and its moving average (float32). All else could be fused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import paracond as pc
from paracond.data import State
from paracond.experiments.common.runner import Runner

LAYERS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
BYTES_PER_PARAMETER = 4 * (2 + 2 + 4 + 2)  # itself, its gradient, two moments, its average: read and written


@dataclass(frozen=True)
class Work:
    """Operations and bytes of one update, averaged over the groups."""

    operations: float
    bytes: float


def count_work(model: pc.JointModel, batch_size: int) -> Work:
    state = pc.initializers.initial_state(model, batch_size, model.generator(0))
    works = [_count(model, name, state) for name in model.names]
    total = len(works)
    return Work(sum(w.operations for w in works) / total, sum(w.bytes for w in works) / total)


def _count(model: pc.JointModel, name: str, state: State) -> Work:
    moved = 0

    def note(module, inputs, output) -> None:
        nonlocal moved
        moved += 3 * 2 * (inputs[0].numel() + output.numel())

    layers = [m for m in model.conditional(name).modules() if isinstance(m, LAYERS)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    with FlopCounterMode(display=False) as counter:
        model(name, state).log_prob(state[name]).sum().backward()
    for hook in hooks:
        hook.remove()
    model.zero_grad()
    parameters = sum(p.numel() for p in model.conditional(name).parameters())
    return Work(counter.get_total_flops(), moved + BYTES_PER_PARAMETER * parameters)


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """Mean time of a call on CUDA, by events, after a warm-up of a tenth of the repeats."""
    for _ in range(max(3, repeats // 10)):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats


def rates() -> tuple[float, float]:
    """Operations and bytes per second of this device: a large bfloat16 product, a large copy."""
    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)
    product = milliseconds(lambda: a @ b, 30)
    source = torch.empty(2**30, device="cuda", dtype=torch.uint8).random_()
    target = torch.empty_like(source)
    copy = milliseconds(lambda: target.copy_(source), 30)
    return 2 * 8192**3 / (product / 1e3), 2 * 2**30 / (copy / 1e3)


@dataclass(frozen=True)
class UpdateTime:
    """Milliseconds per update, including completion and replacement of rows."""

    fast: float
    eager: float
    floor: float
    set_up: float  # seconds until the fast engine was warm


def fast_update(make: Callable[[pc.Engine], pc.Learner], compile: bool) -> tuple[float, float]:
    """Milliseconds per update on the fast engine, and seconds until it was warm."""
    began = time.perf_counter()
    fast = make(pc.Engine("cuda", "graphs", compile=compile))
    for _ in range(12 * len(fast.model.names)):  # until every program is recorded
        fast.step()
    fast.engine.synchronise()
    set_up = time.perf_counter() - began
    return milliseconds(fast.step, 600), set_up


def update_times(make: Callable[[pc.Engine], pc.Learner], compile: bool) -> UpdateTime:
    """The same updates on the fast engine and in plain eager float32, one after the other."""
    fast_ms, set_up = fast_update(make, compile)
    eager = make(pc.Engine("cuda", "eager"))
    eager_ms = milliseconds(eager.step, 90)
    work = count_work(eager.model, eager.batch_size)
    operations, moved = rates()
    floor = 1e3 * max(work.operations / operations, work.bytes / moved)
    return UpdateTime(fast_ms, eager_ms, floor, set_up)


def add_times(runner: Runner, times: UpdateTime, about: str) -> None:
    """Add the metrics of update times."""
    runner.add("update_ms", times.fast, "lower", about)
    runner.add("update_ms_eager", times.eager, "lower", "the same in plain eager float32, same run")
    runner.add("update_ms_floor", times.floor, "lower", "arithmetic and bandwidth, counted and at measured rates")
