"""How the hot loops run: the only module that knows of devices, precision and capture.

Learning and sampling are loops over *programs*: functions without arguments that read and write tensors which stay
where they are (the running batch, the parameters, the random state). An engine says how programs are run.

- "eager" calls them. This is the reference, in float32, on every device.
- "rounded" calls them too, with networks in bfloat16 where autocast allows: faster on CPUs that compute in it.
- "graphs" (CUDA) calls a program three times, which settles lazy state, then records it as one CUDA graph; from then
  on a call is one launch without any work in Python. Networks are rounded too.

Convolutions lie channels last. Autocast would round every weight at every call; programs evaluate a `RoundedCopy` model
instead, whose weights of convolutions and linear layers are rounded copies, brought up to date all at once.

Two lots of recorded programs may run at the same time if nothing is common to them: not the stream they were recorded
on, not the memory of their graphs, not a random generator. So work beside the main stream has an engine of its own
(`another`), is called `aside`, and `meet` says where one of the two waits for the other; the host waits for neither.

An object keeps its programs, and they do not keep it (`WeakCall`): with its last user it is gone, and with it the
memory of its graphs, which can be most of what the device has and of which Python, when it looks for cycles, knows
nothing. Graphs of one engine share their memory; when all are gone, the next ones share another, since torch does not
record into memory that had its graphs.

All run the same code and draw from the same law. Nothing in a recorded program may depend on a value that the host
would have to wait for; what the host decides (which group, how many rows, the learning rate) it writes into small
tensors beforehand, and what it wants to know (is everything finite?) it looks up later, without waiting.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import MethodType
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from paracond.data import InputError

MODES = ("auto", "eager", "rounded", "graphs")
WARM_UP = 3  # calls before a program is recorded: optimisers make their state, libraries choose their algorithms

ROUNDED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)

Program = Callable[[], None]
Model = TypeVar("Model", bound=nn.Module)
Work = TypeVar("Work", bound=Callable)


class RoundedCopy(Generic[Model]):
    """A model as programs evaluate it: `model` is the original itself, or a copy that shares with it all but the
    weights which autocast would round; those it has in bfloat16. `part` is a part of the original."""

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
        """Round the weights as they are now."""
        pairs = self._pairs(part)
        if pairs:
            torch._foreach_copy_([new for _, new in pairs], [old for old, _ in pairs])

    @torch.no_grad()
    def return_gradients(self, part: nn.Module) -> None:
        """Give the originals the gradients of their copies, which forget them."""
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
    """`mode` "auto" takes graphs on CUDA and eager elsewhere. `compile` fuses elementwise work; it costs up to a
    minute once, so it is worth it for long runs only."""

    def __init__(self, device: torch.device | str, mode: str = "auto", compile: bool = False):
        self.device = torch.device(device)
        if mode not in MODES:
            raise InputError(f"engine must be one of {', '.join(MODES)}, found {mode!r}")
        if mode == "graphs" and self.device.type != "cuda":
            raise InputError(f'engine "graphs" needs a CUDA device; the model is on {self.device}')
        self.captures = mode in ("auto", "graphs") and self.device.type == "cuda"
        self.rounds = self.captures or mode == "rounded"
        self.mode, self.compile = mode, compile
        self._move_towards = self.fused(_move_towards)
        self._pool: weakref.ref[_Pool] | None = None
        self._stream = _stream_of(self) if self.captures else None

    def prepare(self, model: nn.Module) -> None:
        """Lay out a model's weights for this engine, channels last; what it computes stays the same."""
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
                module.weight.data = module.weight.data.to(memory_format=torch.channels_last)

    def rounded_copy(self, model: Model) -> RoundedCopy[Model]:
        """The model as this engine's programs evaluate it."""
        return RoundedCopy(model, rounded=self.rounds)

    def fused(self, work: Work) -> Work:
        """A network (in place), a function of tensors, or a method (then `WeakCall`), as few kernels where that was
        asked for. (A fused network is kept until Python looks for cycles: torch's own `Module.compile` makes one.)"""
        if isinstance(work, nn.Module):
            if self.compile:
                work.compile(dynamic=False)
            return work
        fuse = partial(torch.compile, dynamic=False) if self.compile else _as_it_is
        if isinstance(work, MethodType):
            return cast(Work, WeakCall(fuse(work.__func__), work.__self__))
        return cast(Work, fuse(work))

    def precision(self):
        """The context in which networks are evaluated."""
        if not self.rounds:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    def program(self, method: Callable[..., None], generator: torch.Generator, *arguments: Any) -> Program:
        """A method with its arguments (`WeakCall`), to be called again and again; all its draws come from
        `generator`."""
        assert isinstance(method, MethodType)
        call = WeakCall(method.__func__, method.__self__, *arguments)
        return _Recorded(call, generator, self) if self.captures else call

    def pool(self) -> _Pool:
        """The memory of all graphs that are recorded now: keep it as long as the graph."""
        found = self._pool and self._pool()
        if not found:
            found = _Pool()
            self._pool = weakref.ref(found)
        return found

    def another(self) -> Engine:
        """One like this, whose programs may run while those of this one run."""
        return Engine(self.device, self.mode, self.compile)

    def __deepcopy__(self, memo: dict) -> Engine:
        return self.another()  # a copy of what has programs may run while the original does

    @contextlib.contextmanager
    def side_stream(self, generator: torch.Generator) -> Iterator[None]:
        """Programs of this engine that are called in here run on its own stream, if they are recorded, beside all else;
        layers with a randomness of their own then draw from `generator` too, since torch's belongs to the main stream.
        """
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
        """What was asked for until now, aside or not, is done before anything that is asked for after; never waits."""
        if self._stream is not None:
            main = torch.cuda.current_stream(self.device)
            main.wait_stream(self._stream)
            self._stream.wait_stream(main)

    def capturable(self, name: str, optimiser: torch.optim.Optimizer) -> None:
        """Make an optimiser's step recordable: its learning rate and its counts become tensors on the device."""
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
        """means += weight (values - means), in place; a tensor as weight is read when a recorded program runs."""
        if isinstance(weight, Tensor):
            self._move_towards(list(means), list(values), weight)
        else:
            torch._foreach_lerp_(list(means), list(values), weight)

    def settle(self, work: Callable[[], object]) -> float:
        """On a CPU, choose the number of threads by trying `work` with some; returns its seconds then. Where another
        process has a core, or for small networks, all threads can be several times slower than one."""
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
        """The engine for much of the same `work`: on a CPU, by trying, as is the number of threads."""
        if torch.device(device).type != "cpu":
            return cls(device)
        tried = []
        for engine in (cls(device, "eager"), cls(device, "rounded")):
            seconds = engine.settle(partial(work, engine))
            tried.append((seconds, torch.get_num_threads(), engine))
        _, threads, engine = min(tried, key=lambda each: each[0])
        torch.set_num_threads(threads)
        return engine

    def synchronise(self) -> None:
        """Wait until all that was asked for is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class WeakCall:
    """A call of a method of `owner`, with its first arguments, that does not keep the owner alive."""

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
        """Copied with its owner, it is that of the copy. (Alone it is of a copy that nobody keeps.)"""
        return WeakCall(self.function, copy.deepcopy(self.owner(), memo), *copy.deepcopy(self.arguments, memo))


def _as_it_is(function: Callable) -> Callable:
    return function


def _move_towards(means: list[Tensor], values: list[Tensor], weight: Tensor) -> None:
    gaps = torch._foreach_sub(values, means)
    torch._foreach_mul_(gaps, weight)
    torch._foreach_add_(means, gaps)


def _seconds(work: Callable[[], object], threads: int, most: float) -> float:
    """The shorter of two calls, after one to warm up; or that one alone, if it took longer than `most`."""
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
    """Its own, since libraries keep a workspace for every stream and engines side by side must not share one; and that
    of an engine that is gone, if there is one, since they keep it for good (32 MiB of it is cuBLAS's alone). What was
    asked for there comes first, as on any stream; engines wait for the main stream besides."""
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
    """Memory that graphs share: gone, for torch, when the last of them is."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()


class _Recorded:
    """A program that becomes a CUDA graph after its first calls, which are real calls."""

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
        self.work.owner()  # whose tensors it reads and writes
        self.graph.replay()

    def _warm_up(self) -> None:
        """AsyncCompletion the main stream, as recording will: some lazily made state belongs to a stream."""
        self.calls += 1
        main = torch.cuda.current_stream()
        self.stream.wait_stream(main)
        with torch.cuda.stream(self.stream):
            self.work()
        main.wait_stream(self.stream)

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        pool = self.engine.pool()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=pool.handle, stream=self.stream):
            self.work()
        self.graph, self.pool = graph, pool


class Watch:
    """Looks at a number on the device without waiting for it: what is read is how it stood some calls ago."""

    def __init__(self, number: Tensor, every: int = 100):
        self.number, self.every, self.calls = number, every, 0
        self.seen = torch.full_like(number, -1, device="cpu", pin_memory=number.is_cuda)

    def raised(self) -> bool:
        """Whether the number was seen at zero or above."""
        self.calls += 1
        if self.calls % self.every:
            return False
        found = int(self.seen) >= 0
        self.seen.copy_(self.number, non_blocking=True)
        return found
