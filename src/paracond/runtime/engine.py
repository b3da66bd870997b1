"""How the hot loops run: device, precision, CUDA graphs.

Learning and sampling are loops over *programs*: functions without arguments that read and write tensors at fixed
places in memory (the running batch, the parameters, the random state). An engine decides how programs run:

- "eager" calls them. This is the reference, in float32, on every device.
- "rounded" calls them with networks in bfloat16 where autocast allows: faster on CPUs that compute in it.
- "graphs" (CUDA) calls a program three times, so that optimisers and libraries make their state, then records it as one
  CUDA graph. From then on a call is one launch, without any work in Python. Networks are rounded too.

Weights of convolutions are laid out channels last when a model is made (`lay_out`). Autocast would round every weight
at every call. Programs evaluate a `RoundedCopy` of the model instead, whose weights of convolutions and linear layers
are rounded together.

Two sets of recorded programs may run at the same time if they share nothing: no stream, no memory of graphs, no random
generator. So work in parallel to the main stream has an engine of its own (`twin`) and is called in `side_stream`;
`join_side_stream` synchronises the two. The host waits for neither.

A program does not keep its object alive (`WeakCall`), so the memory of graphs, which Python's garbage collector does
not see, is freed with the last user of the object. Graphs of one engine share a pool of memory. When all of them are
gone, the next ones share a new pool, because torch does not record into a pool whose graphs are gone.

All modes run the same code and draw from the same law. A recorded program never waits for the host: the host writes
its decisions (which group, how many rows, the learning rate) into small tensors before, and reads results after.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import MethodType
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from paracond.data import InputError, as_device, one_of, true_or_false

MODES = ("auto", "eager", "rounded", "graphs")
DEVICES = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")
WARM_UP = 3  # calls before a program is recorded: optimisers make their state, libraries choose their algorithms

ROUNDED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)

Program = Callable[[], None]
Model = TypeVar("Model", bound=nn.Module)
Work = TypeVar("Work", bound=Callable)


class RoundedCopy(Generic[Model]):
    """The model that programs evaluate: the original, or a copy with the weights of convolutions and linear layers in
    bfloat16, which shares everything else."""

    def __init__(self, original: Model, rounded: bool):
        self.original = original
        self._copies: dict[int, nn.Parameter] = {}
        self.model = self._copy() if rounded else original

    def _copy(self) -> Model:
        original = self.original
        layers = [module for module in original.modules() if isinstance(module, ROUNDED)]
        weights = {id(p) for layer in layers for p in layer.parameters(recurse=False) if p.dtype == torch.float32}
        shared = {id(t): t for t in [*original.parameters(), *original.buffers()] if id(t) not in weights}
        copied = copy.deepcopy(original, shared)
        for old, new in zip(original.parameters(), copied.parameters(), strict=True):
            if id(old) in weights:
                new.data = new.data.to(torch.bfloat16)
                self._copies[id(old)] = new
        return copied

    def _pairs(self, part: nn.Module | None) -> list[tuple[nn.Parameter, nn.Parameter]]:
        if not self._copies:
            return []
        parameters = (self.original if part is None else part).parameters()
        return [(p, self._copies[id(p)]) for p in parameters if id(p) in self._copies]

    @torch.no_grad()
    def refresh(self, part: nn.Module | None = None) -> None:
        """Round the present weights again, of all or of one part of the original."""
        pairs = self._pairs(part)
        if pairs:
            torch._foreach_copy_([new for _, new in pairs], [old for old, _ in pairs])

    @torch.no_grad()
    def return_gradients(self, part: nn.Module) -> None:
        """Move the gradients of the copies to the original weights."""
        found = [(old, new.grad) for old, new in self._pairs(part) if new.grad is not None]
        if not found:
            return
        gradients = [torch.empty_like(old) for old, _ in found]
        torch._foreach_copy_(gradients, [rounded for _, rounded in found])
        for (old, _), gradient in zip(found, gradients, strict=True):
            old.grad = gradient
        for _, new in self._pairs(part):
            new.grad = None


class Engine:
    """Decides how learning and sampling run on a device.

    device: the device of the model.
    mode: "eager" (float32, the reference), "rounded" (networks in bfloat16), "graphs" (recorded CUDA graphs, rounded
        too), or "auto": graphs on CUDA, eager elsewhere.
    compile: whether torch.compile fuses elementwise work. That takes up to a minute once, so it pays for long runs.
    """

    def __init__(self, device: torch.device | str, mode: str = "auto", compile: bool = False):
        self.device = as_device(device)
        true_or_false("compile", compile)
        if DEVICES.fullmatch(str(mode)):
            listed = ", ".join(MODES)
            raise InputError(
                f'engine must be one of {listed}, found the device {mode}; use model.to("{mode}") for that'
            )
        one_of("engine", mode, MODES)
        if mode == "graphs" and self.device.type != "cuda":
            raise InputError(f'engine "graphs" needs a CUDA device; the model is on {self.device}')
        self.captures = mode in ("auto", "graphs") and self.device.type == "cuda"
        self.rounds = self.captures or mode == "rounded"
        self.mode, self.compile = mode, compile
        self._move_towards = self.fused(_move_towards)
        self._pool: weakref.ref[_Pool] | None = None
        self._stream = self._own_stream() if self.captures else None

    @classmethod
    def of(cls, device: torch.device, engine: str | Engine) -> Engine:
        """Return an engine, which may be given by its mode."""
        return engine if isinstance(engine, Engine) else cls(device, engine)

    def _own_stream(self) -> torch.cuda.Stream:
        try:
            return _stream_of(self)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"device {self.device} cannot be used: {error!s:.200}") from None

    def rounded_copy(self, model: Model) -> RoundedCopy[Model]:
        """Return the model as this engine's programs evaluate it."""
        return RoundedCopy(model, rounded=self.rounds)

    def fused(self, work: Work) -> Work:
        """Compile a network (in place), a function of tensors, or a method (then a `WeakCall`), if the engine compiles.

        A compiled network is freed only by Python's garbage collector: `Module.compile` makes a reference cycle.
        """
        if isinstance(work, nn.Module):
            if self.compile:
                work.compile(dynamic=False)
            return work
        fuse = partial(torch.compile, dynamic=False) if self.compile else lambda function: function
        if isinstance(work, MethodType):
            return cast(Work, WeakCall(fuse(work.__func__), work.__self__))
        return cast(Work, fuse(work))

    def precision(self):
        """Return the context manager in which networks are evaluated: autocast, or none."""
        if not self.rounds:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    def program(self, method: Callable[..., None], generator: torch.Generator, *arguments: Any) -> Program:
        """Make a program of a method and its arguments (a `WeakCall`), to be called many times."""
        assert isinstance(method, MethodType)
        call = WeakCall(method.__func__, method.__self__, *arguments)
        return _Recorded(call, generator, self) if self.captures else call

    def pool(self) -> _Pool:
        """Return the memory pool for new graphs. Keep a reference to it as long as the graph."""
        found = self._pool and self._pool()
        if not found:
            found = _Pool()
            self._pool = weakref.ref(found)
        return found

    def twin(self) -> Engine:
        """Make an engine like this one, whose programs may run at the same time as those of this one."""
        return Engine(self.device, self.mode, self.compile)

    def __deepcopy__(self, memo: dict) -> Engine:
        return self.twin()  # the programs of a copy may run at the same time as those of the original

    @contextlib.contextmanager
    def side_stream(self, generator: torch.Generator) -> Iterator[None]:
        """Run recorded programs of this engine in parallel to the main stream; layers draw from `generator` there."""
        if self._stream is None:
            yield
            return
        default = torch.cuda.default_generators[self._stream.device.index]
        former = default.graphsafe_get_state()
        default.graphsafe_set_state(generator.graphsafe_get_state())
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            default.graphsafe_set_state(former)

    def join_side_stream(self) -> None:
        """Synchronise the side stream with the main stream: work queued later starts after all work queued so far.

        Does not block the host.
        """
        if self._stream is not None:
            main = torch.cuda.current_stream(self.device)
            main.wait_stream(self._stream)
            self._stream.wait_stream(main)

    def capturable(self, name: str, optimiser: torch.optim.Optimizer) -> None:
        """Make an optimiser's step recordable: its learning rate and counts become tensors on the device."""
        if not self.captures:
            return
        for group in optimiser.param_groups:
            if not group.get("fused"):
                raise InputError(
                    f'the optimiser of {name!r} must be made with fused=True for engine "graphs", '
                    f'or use engine="eager"; found {type(optimiser).__name__}'
                )
            group["capturable"] = True
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(self.device)

    def move_towards(self, means: Sequence[Tensor], values: Sequence[Tensor], weight: float | Tensor) -> None:
        """Add weight (values - means) to `means`, in place. A recorded program reads a tensor `weight` when it runs."""
        if isinstance(weight, Tensor):
            self._move_towards(list(means), list(values), weight)
        else:
            torch._foreach_lerp_(list(means), list(values), weight)

    def choose_threads(self, work: Callable[[], object]) -> float:
        """Choose the number of CPU threads by timing `work` with several numbers; returns the seconds of the best.

        All threads can be several times slower than one for small networks, or where another process uses a core.
        """
        if self.device.type != "cpu":
            return 0.0
        most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        counts = sorted({1, *(2**k for k in range(most.bit_length()) if 2**k <= most), most})
        times: dict[int, float] = {}
        for count in counts:
            times[count] = _seconds(work, count, 3 * min(times.values(), default=math.inf))
        best = min(times, key=times.__getitem__)
        torch.set_num_threads(best)
        return times[best]

    @classmethod
    def fastest(cls, device: torch.device | str, work: Callable[[Engine], object]) -> Engine:
        """Choose the engine for repeated `work`. On a CPU, modes and numbers of threads are timed."""
        if torch.device(device).type != "cpu":
            return cls(device)
        tried = []
        for engine in (cls(device, "eager"), cls(device, "rounded")):
            seconds = engine.choose_threads(partial(work, engine))
            tried.append((seconds, torch.get_num_threads(), engine))
        _, threads, engine = min(tried, key=lambda each: each[0])
        torch.set_num_threads(threads)
        return engine

    def synchronise(self) -> None:
        """Wait until all queued work is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class WeakCall:
    """A method of `owner` with its first arguments, as a call that does not keep the owner alive."""

    def __init__(self, function: Callable, owner: object, *arguments: Any):
        self.function, self.arguments = function, arguments
        self._owner = weakref.ref(owner)

    def owner(self) -> object:
        found = self._owner()
        if found is None:
            name = getattr(self.function, "__qualname__", self.function)
            raise ReferenceError(f"{name} is called after its object is gone: keep the object, not the call alone")
        return found

    def __call__(self, *more: Any) -> Any:
        return self.function(self.owner(), *self.arguments, *more)

    def __deepcopy__(self, memo: dict) -> WeakCall:
        """Copy the call together with its owner: the copy calls the copied owner."""
        return WeakCall(self.function, copy.deepcopy(self.owner(), memo), *copy.deepcopy(self.arguments, memo))


def lay_out(model: nn.Module) -> None:
    """Lay out the weights of convolutions channels last, where they are new. The results stay the same."""
    layers = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d))]
    for weight in [layer.weight for layer in layers if not layer.weight.is_meta]:
        if not weight.is_contiguous(memory_format=torch.channels_last):
            weight.data = weight.data.to(memory_format=torch.channels_last)


def _move_towards(means: list[Tensor], values: list[Tensor], weight: Tensor) -> None:
    gaps = torch._foreach_sub(values, means)
    torch._foreach_mul_(gaps, weight)
    torch._foreach_add_(means, gaps)


def _seconds(work: Callable[[], object], threads: int, most: float) -> float:
    """Time the shorter of two calls after a warm-up; or the warm-up alone, if it took longer than `most` seconds."""
    torch.set_num_threads(threads)
    times: list[float] = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
        if times[0] > most:
            return times[0]
    return min(times[1:])


def _stream_of(engine: Engine) -> torch.cuda.Stream:
    """Return a stream that no other living engine uses. Libraries keep a workspace per stream for good (cuBLAS:
    32 MiB), so the stream of an engine that is gone is used again."""
    index = torch.cuda.current_device() if engine.device.index is None else engine.device.index
    idle = _idle.setdefault(index, [])
    try:
        stream = idle.pop()
    except IndexError:
        stream = torch.cuda.Stream(engine.device)
    weakref.finalize(engine, idle.append, stream)
    return stream


_idle: dict[int, list[torch.cuda.Stream]] = {}  # by the number of the device


class _Pool:
    """Memory that graphs share. torch frees it with the last of them."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()


class _Recorded:
    """A program that becomes a CUDA graph after its first calls, which run eagerly."""

    def __init__(self, work: WeakCall, generator: torch.Generator, engine: Engine):
        assert engine._stream is not None
        self.work, self.generator, self.engine, self.stream = work, generator, engine, engine._stream
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.pool: _Pool | None = None

    def __call__(self) -> None:
        if self.graph is None:
            if self.calls < WARM_UP:
                self._warm_up()
                return
            self._record()
        assert self.graph is not None
        self.work.owner()  # raises if the object is gone whose tensors the graph uses
        self.graph.replay()

    def _warm_up(self) -> None:
        """Run on the engine's own stream, as recording will: some lazily made state belongs to a stream."""
        self.calls += 1
        main = torch.cuda.current_stream(self.engine.device)
        self.stream.wait_stream(main)
        with torch.cuda.stream(self.stream):
            self.work()
        main.wait_stream(self.stream)

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        pool = self.engine.pool()
        torch.cuda.synchronize(self.engine.device)
        with torch.cuda.graph(graph, pool=pool.handle, stream=self.stream):
            self.work()
        self.graph, self.pool = graph, pool
