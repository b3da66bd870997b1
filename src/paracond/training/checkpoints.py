"""Checkpoints: all that the next update of a learner depends on, in a folder, so that a run which was cut off goes on
as if it had not been (bit for bit on a CPU).

That is: the model and its moving averages, the optimisers' states, the running batch, the pool and the examples still
to come, the counters, the scan's last choice and the random states; and where completion runs beside learning, the pool
in the making, what it still lacks and the weights that make it. A checkpoint holds state, not settings: the
learner that goes on is made with the same arguments, whose schedules are functions of its step count. (The optimisers'
own settings count as state, since programs change them; `learning_rate` overrides the rate as ever.)

Tensors that exist are filled where they are: programs (see `engine`) hold on to them. A checkpoint is always of a
moment between two updates without a fault, and replaces the former one in one rename (see `storage`).
"""

from __future__ import annotations

import hashlib
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from paracond import serialization as storage
from paracond.data import InputError
from paracond.runtime.nonfinite import NonFiniteError
from paracond.runtime.progress import track
from paracond.training.async_completion import Beside
from paracond.training.trainer import Descent, Info

FORMAT = "paracond checkpoint 1"
FAULT = "fault"  # the folder, inside that of the checkpoint, for the state in which something was not finite
OWN = ("params", "capturable", "fused", "foreach", "differentiable")  # how an optimiser computes is its engine's choice


def fit(
    learner: Descent[Info],
    steps: int,
    folder: str | Path | None = None,
    *,
    resume: bool = False,
    minutes: float | None = None,
    every: float = 120.0,
    progress: bool | None = None,
    on_step: Callable[[Info], None] | None = None,
) -> bool:
    """Run until the learner's step count is `steps`. True when it is; False if `minutes` were over first.

    A checkpoint is written to `folder` every `every` seconds and at the end, be it the last step, the end of the time
    box or Ctrl-C (which lets the update in progress finish; a second one does not). With `resume` the run goes on from
    the checkpoint in `folder` if there is one. `on_step(info)` is called after each update. A NonFiniteError leaves the
    last checkpoint as it is, to resume from with other settings, and the state at that moment in `folder`/fault.
    """
    if minutes is not None and not minutes >= 0:
        raise InputError(f"minutes must not be negative, found {minutes}")
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    place = None if folder is None else Path(folder)
    _begin(learner, place, resume)
    with _keeping_faults(learner, place), _patience(place is not None) as interrupted:
        due = time.monotonic() + every
        for info in _updates(learner, steps, progress, lambda: interrupted.is_set() or time.monotonic() >= end):
            if on_step is not None:
                on_step(info)
            if place is not None and time.monotonic() >= due:
                save(learner, place)
                due = time.monotonic() + every
        learner.finish()
        if place is not None:
            save(learner, place)
    if interrupted.is_set():
        raise KeyboardInterrupt(f"stopped at step {learner.step_count}; the checkpoint is in {place}")
    return learner.step_count >= steps


def exists(folder: str | Path) -> bool:
    """Whether something was saved in a folder."""
    return (Path(folder) / storage.DESCRIPTION).exists()


def save(learner: Descent, folder: str | Path) -> None:
    """Write or replace the checkpoint in a folder; a fault not yet noticed is raised instead (NonFiniteError)."""
    learner.finish()
    _write(learner, folder)


def restore(learner: Descent, folder: str | Path) -> None:
    """Bring a learner that was just made into the state of a checkpoint; one that does not fit changes nothing."""
    if learner.step_count > 0:
        raise InputError(f"a checkpoint is restored into a new learner; this one is at step {learner.step_count}")
    if not exists(folder):
        raise InputError(f"there is no checkpoint in {folder}")
    description, tensors = storage.read(folder, FORMAT)
    state = _undamaged(description, folder)
    buffers = _buffers(learner)
    fixed = {name: tensor for name, tensor in tensors.items() if not name.startswith("free/")}
    _require_same(
        folder, state["identity"] | _kinds(fixed), _identity(learner) | _kinds({**buffers, **_random(learner)})
    )
    optimisers = {name: _unpack(packed, tensors) for name, packed in state["optimisers"].items()}
    # From here on the learner changes.
    with torch.no_grad():
        for name, buffer in buffers.items():
            buffer.copy_(fixed[name])
    for name, found in optimisers.items():
        optimiser = learner.optimisers[name]
        optimiser.load_state_dict(_adapted(optimiser, found))
    learner.completion.order = tensors["free/order"].to(learner.model.device)
    _set_counters(learner, state["counters"])
    _set_random(learner, fixed)
    _meet(learner)


# --- what a checkpoint holds ----------------------------------------------------------------------------------------


def _write(learner: Descent, folder: str | Path) -> None:
    storage.require_format(folder, FORMAT)  # a model that was saved here must not be lost
    _meet(learner)
    tensors = {**_buffers(learner), **_random(learner), "free/order": learner.completion.order}
    state = {
        "identity": _identity(learner),
        "counters": _counters(learner),
        "optimisers": {
            name: _pack(optimiser.state_dict(), f"free/optimisers/{learner.model.index(name)}", tensors)
            for name, optimiser in learner.optimisers.items()
        },
    }
    storage.write(folder, {"format": FORMAT, "state": state, "state_sha256": _digest(state)}, tensors)


def _meet(learner: Descent) -> None:
    """Nothing that runs beside the updates writes what is read here, or reads what is written, at the same time."""
    if learner.beside is not None:
        learner.beside.engine.meet()


def _identity(learner: Descent) -> dict:
    """What must be the same in the learner that goes on, in words for the message if it is not."""
    model = learner.model
    found = {
        "device": model.device.type,
        "batch size": learner.batch_size,
        "number of examples": learner.completion.rows,
        **{f"variable {name!r}": family.describe() for name, family in model.variables.items()},
        **learner.identity(),
    }
    if learner.beside is not None:
        found["completion beside learning"] = "on"  # absent otherwise, as in checkpoints from before it was there
    for name, optimiser in learner.optimisers.items():
        sizes = [len(group["params"]) for group in optimiser.param_groups]
        found[f"optimiser of {name!r}"] = f"{type(optimiser).__name__} of {sizes} parameters"
    found["digest of the examples"] = _fingerprint(learner.completion.examples, learner.completion.observed)
    return json.loads(json.dumps(found))  # as it will be read


def _fingerprint(examples: Mapping[str, Tensor], observed: Mapping[str, Tensor]) -> str:
    """A digest of which values are observed, and of those values; of large groups, of some thousand rows."""
    digest = hashlib.sha256()
    for name in sorted(examples):
        rows = max(1, 1_000_000 // max(1, examples[name][0].numel()))
        step = max(1, len(examples[name]) // rows)
        mask = observed[name][::step].contiguous()
        for part in (mask, torch.where(mask, examples[name][::step], 0)):
            digest.update(part.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _buffers(learner: Descent) -> dict[str, Tensor]:
    """The learner's tensors that stay where they are."""
    parts: dict[str, Mapping[str, Tensor]] = {
        "model": _weights(learner.model),
        "averaged": _weights(learner.averaged),
        "pool": learner.completion.pool,
        "pool_mask": learner.completion.mask,
        "pool_redrawn": learner.completion.redrawn,
        "kept": learner.completion.kept,
        "learner": {"index": learner.completion.index, "visited": learner.completion.visited},
        "faults": {"clock": learner.faults.clock, "first": learner.faults.first},
        **_buffers_beside(learner.beside),
    }
    found = {f"{part}/{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
    return found | learner.kept()


def _buffers_beside(beside: Beside | None) -> dict[str, Mapping[str, Tensor]]:
    if beside is None:
        return {}
    faults = beside.completion.faults
    return {
        "beside_model": _weights(beside.still),
        "beside_pool": beside.pool,
        "beside_redrawn": beside.redrawn,
        "beside_faults": {"clock": faults.clock, "first": faults.first},
    }


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, those too that a state_dict leaves out."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _random(learner: Descent) -> dict[str, Tensor]:
    """All random states; networks (dropout) draw from torch's own."""
    found = {
        "random/learner": learner.generator.get_state(),
        "random/host": learner.host.get_state(),
        "random/torch": torch.get_rng_state(),
    }
    if learner.beside is not None:
        found["random/beside"] = learner.beside.generator.get_state()
    if learner.model.device.type == "cuda":
        found["random/cuda"] = torch.cuda.get_rng_state(learner.model.device)
    return found


def _set_random(learner: Descent, found: Mapping[str, Tensor]) -> None:
    learner.generator.set_state(found["random/learner"])
    learner.host.set_state(found["random/host"])
    torch.set_rng_state(found["random/torch"])
    if learner.beside is not None:
        learner.beside.generator.set_state(found["random/beside"])
    if learner.model.device.type == "cuda":
        torch.cuda.set_rng_state(found["random/cuda"], learner.model.device)


def _counters(learner: Descent) -> dict:
    found = {
        "step_count": learner.step_count,
        "left": learner.completion.left,
        "threads": torch.get_num_threads(),
        "updates": learner.updates,
        **learner.counts(),
    }
    if learner.beside is not None:
        found["beside"] = {"left": learner.beside.left, "turns": learner.completion.turns}
    return found


def _set_counters(learner: Descent, found: Mapping) -> None:
    learner.step_count, learner.completion.left = found["step_count"], found["left"]
    learner.set_counts(found)
    learner.updates.update(found["updates"])
    torch.set_num_threads(found["threads"])  # sums depend on it in their last digits
    if learner.beside is not None:
        learner.beside.left, learner.completion.turns = found["beside"]["left"], list(found["beside"]["turns"])


# --- optimisers -----------------------------------------------------------------------------------------------------


def _pack(value, place: str, tensors: dict[str, Tensor]):
    """Nested values as JSON, their tensors put aside by name. Pairs, since the keys of a state are numbers."""
    if isinstance(value, Tensor):
        tensors[place] = value
        return {"tensor": place}
    if isinstance(value, dict):
        return {"pairs": [[key, _pack(item, f"{place}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_pack(item, f"{place}/{k}", tensors) for k, item in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InputError(f"an optimiser's state has a {type(value).__name__}, which a checkpoint cannot hold ({place})")


def _unpack(value, tensors: Mapping[str, Tensor]):
    """The inverse of `_pack`."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "pairs":
        return {key: _unpack(item, tensors) for key, item in content}
    items = [_unpack(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items


def _adapted(optimiser: torch.optim.Optimizer, found: dict) -> dict:
    """A state_dict in this optimiser's own form: how it computes, rates as tensors or numbers, memory layout."""
    groups = []
    for mine, theirs in zip(optimiser.state_dict()["param_groups"], found["param_groups"], strict=True):
        group = {**theirs, **{key: mine[key] for key in OWN if key in mine}}
        rate = float(theirs["lr"])
        groups.append(group | {"lr": torch.full_like(mine["lr"], rate) if isinstance(mine["lr"], Tensor) else rate})
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state = {k: {key: _laid_out(v, parameters[k]) for key, v in entry.items()} for k, entry in found["state"].items()}
    return {"state": state, "param_groups": groups}


def _laid_out(value, parameter: Tensor):
    """A fused optimiser wants moments with the strides of their parameter (channels last, say); files have none."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape or value.ndim == 0:
        return value
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


# --- checks ---------------------------------------------------------------------------------------------------------


def _digest(state: dict) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _undamaged(description: dict, folder: str | Path) -> dict:
    state = description.get("state")
    if not isinstance(state, dict) or _digest(state) != description.get("state_sha256"):
        raise InputError(
            f"{Path(folder) / storage.DESCRIPTION} is damaged: its state does not have the SHA-256 it names"
        )
    return state


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {f"tensor {name!r}": f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for name, t in tensors.items()}


def _require_same(folder: str | Path, found: Mapping, expected: Mapping) -> None:
    for what in {**expected, **found}:
        theirs, mine = found.get(what, "absent"), expected.get(what, "absent")
        if theirs != mine:
            raise InputError(f"the checkpoint in {folder} is of another run: {what} is {theirs} there and {mine} here")


# --- the loop -------------------------------------------------------------------------------------------------------


def _begin(learner: Descent, folder: Path | None, resume: bool) -> None:
    """Go on from a checkpoint, or see to it that none will be overwritten."""
    if folder is None:
        if resume:
            raise InputError("to resume, give the folder of the checkpoint")
        return
    storage.require_format(folder, FORMAT)
    if exists(folder):
        if not resume:
            raise InputError(f"{folder} has a checkpoint: go on from it with --resume, or give another folder")
        restore(learner, folder)


def _updates(learner: Descent[Info], steps: int, progress: bool | None, over: Callable[[], bool]) -> Iterator[Info]:
    """The updates up to `steps`, or until it is over; asked first, so that a time box of nothing does nothing."""
    start = learner.step_count
    for _ in track(range(start, steps), "learning", progress, start):
        if over():
            return
        yield learner.step()


@contextmanager
def _patience(wanted: bool) -> Iterator[threading.Event]:
    """The first Ctrl-C is noted, the second interrupts. Other threads have no signals, and a process that ignores
    Ctrl-C goes on ignoring it."""
    noted = threading.Event()
    former = signal.getsignal(signal.SIGINT)
    if not wanted or threading.current_thread() is not threading.main_thread() or not callable(former):
        yield noted
        return

    def note(number, frame) -> None:
        noted.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, former)


@contextmanager
def _keeping_faults(learner: Descent, folder: Path | None) -> Iterator[None]:
    """A fault can be noticed in the middle of an update, or some updates late: the model is the last good one, but the
    run cannot go on from there. So it is written beside the last checkpoint, not over it."""
    try:
        yield
    except NonFiniteError as error:
        if folder is not None:
            _write(learner, folder / FAULT)
            error.add_note(f"the model and all else at that moment are in {folder / FAULT}, to look at")
        raise
