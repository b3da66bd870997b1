"""Checkpoints: all that the next update of a learner depends on, in a folder. A run that was cut off continues as if it
had not been (bit for bit on a CPU).

A checkpoint is what the learner's `state_dict()` returns, as JSON and safetensors. It holds state, not settings: the
learner that continues is made with the same arguments, whose schedules are functions of its step count. Settings of
optimisers are part of the state. `learning_rate` still overrides the rate.

A checkpoint is always of a moment between two updates at which all was finite. It replaces the former one in one rename
(see `serialization`).
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
from typing import TYPE_CHECKING, Any

from torch import Tensor

from paracond import serialization
from paracond.data import InputError
from paracond.runtime.nonfinite import NonFiniteError
from paracond.runtime.progress import track

if TYPE_CHECKING:  # a trainer saves itself by this module
    from paracond.training.trainer import Trainer

FORMAT = "paracond checkpoint 2"
NONFINITE = "nonfinite"  # the folder, inside that of the checkpoint, for a state that is not finite


def fit(
    learner: Trainer,
    steps: int,
    folder: str | Path | None = None,
    *,
    resume: bool = False,
    minutes: float | None = None,
    every: float = 120.0,
    progress: bool | None = None,
    on_step: Callable[[Any], None] | None = None,
) -> bool:
    """Run until the learner's step count is `steps`. True when it is; False if `minutes` were over first.

    A checkpoint is written to `folder` every `every` seconds and at the end, be it the last step, the end of the time
    box or Ctrl-C (which lets the update in progress finish; a second one does not). With `resume` the run goes on from
    the checkpoint in `folder` if there is one. `on_step(info)` is called after each update. A NonFiniteError leaves the
    last checkpoint as it is, to resume from with other settings, and the state at that moment in `folder`/nonfinite.
    """
    if minutes is not None and not minutes >= 0:
        raise InputError(f"minutes must not be negative, found {minutes}")
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    place = None if folder is None else Path(folder)
    _begin(learner, place, resume)
    with _keeping_nonfinite(learner, place), _deferred_interrupt(place is not None) as interrupted:
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
    return (Path(folder) / serialization.DESCRIPTION).exists()


def save(learner: Trainer, folder: str | Path) -> None:
    """Write or replace the checkpoint in a folder; raises a pending `NonFiniteError` instead."""
    learner.finish()
    _write(learner, folder)


def restore(learner: Trainer, folder: str | Path) -> None:
    """Bring a new learner into the state of a checkpoint. A checkpoint that does not fit changes nothing."""
    if learner.step_count > 0:
        raise InputError(f"a checkpoint is restored into a new learner; this one is at step {learner.step_count}")
    if not exists(folder):
        raise InputError(f"there is no checkpoint in {folder}")
    description, tensors = serialization.read(folder, FORMAT)
    state, mine = _undamaged(description, folder), dict[str, Tensor]()
    _pack(learner.state_dict(), "", mine)
    _require_same(folder, state["identity"] | _fixed(tensors), _identity(learner) | _fixed(mine))
    learner.load_state_dict(_unpack(state["learner"], tensors))


# --- what a checkpoint holds ----------------------------------------------------------------------------------------


def _write(learner: Trainer, folder: str | Path) -> None:
    serialization.require_format(folder, FORMAT)  # a model that was saved here must not be lost
    tensors: dict[str, Tensor] = {}
    state = {"identity": _identity(learner), "learner": _pack(learner.state_dict(), "", tensors)}
    serialization.write(folder, {"format": FORMAT, "state": state, "state_sha256": _digest(state)}, tensors)


def _identity(learner: Trainer) -> dict:
    return json.loads(json.dumps(learner.identity()))  # as it will be read


def _fixed(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Types and shapes of the tensors that every learner with these arguments has. Moments of optimisers come with the
    first update, and the examples still to come grow fewer."""
    free = [name for name in tensors if name.startswith("/optimisers/") or name.endswith("/order")]
    found = {name: f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for name, t in tensors.items()}
    return {f"tensor {name!r}": kind for name, kind in found.items() if name not in free}


def _pack(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """Nested values as JSON, their tensors put aside by name. Pairs, since the keys of a state are numbers."""
    if isinstance(value, Tensor):
        place = place if place not in tensors else f"{place} {len(tensors)}"  # names of groups may have slashes
        tensors[place] = value
        return {"tensor": place}
    if isinstance(value, dict):
        return {"pairs": [[key, _pack(item, f"{place}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_pack(item, f"{place}/{k}", tensors) for k, item in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InputError(f"the state of a learner has a {type(value).__name__}, which a checkpoint cannot hold ({place})")


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
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


# --- checks ---------------------------------------------------------------------------------------------------------


def _digest(state: dict) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _undamaged(description: dict, folder: str | Path) -> dict:
    state = description.get("state")
    if not isinstance(state, dict) or _digest(state) != description.get("state_sha256"):
        raise InputError(
            f"{Path(folder) / serialization.DESCRIPTION} is damaged: its state does not have the SHA-256 it names"
        )
    return state


def _require_same(folder: str | Path, found: Mapping, expected: Mapping) -> None:
    for what in {**expected, **found}:
        theirs, mine = found.get(what, "absent"), expected.get(what, "absent")
        if theirs != mine:
            raise InputError(f"the checkpoint in {folder} is of another run: {what} is {theirs} there and {mine} here")


# --- the loop -------------------------------------------------------------------------------------------------------


def _begin(learner: Trainer, folder: Path | None, resume: bool) -> None:
    """Go on from a checkpoint, or see to it that none will be overwritten."""
    if folder is None:
        if resume:
            raise InputError("resume=True needs folder=, the folder of the checkpoint")
        return
    serialization.require_format(folder, FORMAT)
    if exists(folder):
        if not resume:
            how = "resume=True (on the command line --resume)"
            raise InputError(f"{folder} has a checkpoint: continue it with {how}, or give another folder")
        restore(learner, folder)


def _updates(learner: Trainer, steps: int, progress: bool | None, over: Callable[[], bool]) -> Iterator[Any]:
    """Do updates up to `steps`. `over` is called before each, so that `minutes=0` does none."""
    start = learner.step_count
    for _ in track(range(start, steps), "learning", progress, start):
        if over():
            return
        yield learner.step()


@contextmanager
def _deferred_interrupt(wanted: bool) -> Iterator[threading.Event]:
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
def _keeping_nonfinite(learner: Trainer, folder: Path | None) -> Iterator[None]:
    """Write a state that is not finite to a folder of its own, not over the last checkpoint.

    The model is the last good one, but the run cannot go on: this is noticed in mid-update, or some updates late.
    """
    try:
        yield
    except NonFiniteError as error:
        if folder is not None:
            _write(learner, folder / NONFINITE)
            error.add_note(f"the model and all else at that moment are in {folder / NONFINITE}, to look at")
        raise
