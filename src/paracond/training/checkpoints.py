"""Checkpoints: all that the next update of a learner depends on, in a folder. A run that was cut off continues as if it
had not been (bit for bit on a CPU).

A checkpoint is what the learner's `state_dict()` returns, as JSON and safetensors. It holds state, not settings: the
learner that continues is made with the same arguments, whose schedules are functions of its step count. Settings of
optimisers are part of the state. `learning_rate` still overrides the rate.

A checkpoint is always of a moment between two updates at which all was finite. It replaces the former one in one rename
(see `serialization`). A state that is not finite is never written over it, and never restored; the one in the folder
`nonfinite` is there to look at.

A checkpoint is compared with the new learner, part by part, before anything is changed. If the learner refuses it all
the same, its former state comes back.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paracond import serialization
from paracond.data import InputError, at_least, shown, true_or_false
from paracond.families import Family
from paracond.runtime.nonfinite import SUSPECTS, NonFiniteError
from paracond.runtime.progress import track
from paracond.serialization import Entry
from paracond.training.stepwise import Stepwise

if TYPE_CHECKING:  # a trainer saves itself by this module
    from paracond.training.trainer import Trainer

FORMAT = "paracond checkpoint 3"
FORMATS = (FORMAT, "paracond checkpoint 2")  # the second had a digest of its state only
COUNTS = re.compile(r"/(step_count|threads|updates/.*|.*/left|.*/age|.*/replacements)", re.DOTALL)
VALUES = re.compile(r"/(?:batch|source|source/completion)(?:/tensors)?/(?:state|pool|kept)/(.*)", re.DOTALL)
MOST_THREADS = 512  # more are not started, whatever a file says
MOST_MOMENTS = 64  # how many times as large as all else may be what optimisers remember
#: Optimisers that remember one number, or as many as a parameter has.
ELEMENTWISE = ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
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
    _require_stepwise(learner)
    at_least({"steps": (steps, 0)})
    true_or_false("resume", resume)
    if progress is not None:
        true_or_false("progress", progress)
    _require_time("every", every)
    if minutes is not None:
        _require_time("minutes", minutes)
    if on_step is not None and not callable(on_step):
        raise InputError(f"on_step must be a function of an Info, found {shown(on_step)}")
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    place = None if folder is None else serialization.as_folder(folder)
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
    return os.path.lexists(serialization.as_folder(folder) / serialization.DESCRIPTION)


def save(learner: Trainer, folder: str | Path) -> None:
    """Write or replace the checkpoint in a folder; raises a pending `NonFiniteError` instead."""
    _require_stepwise(learner)
    learner.finish()
    _write(learner, folder)


def restore(learner: Trainer, folder: str | Path) -> None:
    """Bring a new learner into the state of a checkpoint. A checkpoint that does not fit changes nothing."""
    _require_stepwise(learner)
    if learner.step_count > 0:
        raise InputError(f"a checkpoint is restored into a new learner; this one is at step {learner.step_count}")
    if not exists(folder):
        raise InputError(f"there is no checkpoint in {folder}")
    source = f"the checkpoint in {folder}"

    def check(description: dict, entries: dict[str, Entry]) -> None:
        tensors = dict[str, Tensor]()
        state, mine = _undamaged(description, folder), _pack(learner.state_dict(), "", tensors)
        _require_same(source, state["identity"] | _fixed(entries), _identity(learner) | _fixed(tensors))
        with _refusing(source):
            _require_alike(state["learner"], mine, "", learner)
            _require_bounded(entries, tensors)

    description, tensors = serialization.read(folder, FORMATS, check)
    if description.get("finite", Path(folder).name != NONFINITE):
        serialization.require_finite(tensors, f"{source} is of a run that has failed")
    with _refusing(source):
        _require_values(tensors, learner)
        found = _unpack(description["state"]["learner"], tensors)
        _require_optimisers(found["optimisers"], learner)
        _replace_state(learner, found)


def load_state(learner: Trainer, state: Mapping[str, Any]) -> None:
    """Bring a learner into the state that `learner.state_dict()` was. A state that does not fit changes nothing."""
    if not isinstance(state, dict):
        raise InputError(f"state must be what learner.state_dict() returns, found {shown(state)}")
    theirs, mine = dict[str, Tensor](), dict[str, Tensor]()
    with _refusing("the state"):
        _require_alike(_pack(state, "", theirs), _pack(learner.state_dict(), "", mine), "", learner)
        _require_same("the state", _fixed(theirs), _fixed(mine))
        serialization.require_finite(theirs, "it")
        _require_values(theirs, learner)
        _require_optimisers(state["optimisers"], learner)
        _replace_state(learner, state)


def _require_stepwise(learner: Trainer) -> None:
    if not isinstance(learner, Stepwise):
        raise InputError(f"learner must be a Learner, found {shown(learner)}")


def _require_time(what: str, found: float) -> None:
    """Refuse what is no length of time; it may be infinite."""
    if not isinstance(found, Real) or isinstance(found, bool):
        raise InputError(f"{what} must be a number, 0 or more, found {shown(found)}")
    if not found >= 0:
        raise InputError(f"{what} must not be negative, found {shown(found)}")


def _replace_state(learner: Trainer, state: Mapping[str, Any]) -> None:
    """Load a state, or none of it."""
    former = _copied(learner.state_dict())
    try:
        learner._load_state(state)
        for optimiser in learner.optimisers.values():
            _require_steps(optimiser)
    except BaseException:
        learner._load_state(former)
        raise


def _require_steps(optimiser: torch.optim.Optimizer) -> None:
    """Refuse settings and moments with which an update would fail: a copy does one, without a gradient."""
    try:
        twin = copy.deepcopy(optimiser)
    except Exception:  # it holds what cannot be copied
        return
    for group in twin.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    twin.step()


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return type(value)(_copied(item) for item in value) if isinstance(value, (list, tuple)) else value


# --- what a checkpoint holds ----------------------------------------------------------------------------------------


def _write(learner: Trainer, folder: str | Path, finite: bool = True) -> None:
    serialization.require_format(folder, FORMAT)  # a model that was saved here must not be lost
    tensors: dict[str, Tensor] = {}
    state = {"identity": _identity(learner), "learner": _pack(learner.state_dict(), "", tensors)}
    try:
        serialization.write(folder, {"format": FORMAT, "finite": finite, "state": state}, tensors, finite=finite)
    except serialization.NonFiniteTensor as error:
        raise NonFiniteError(error.name, learner.step_count, "the state") from None


def _identity(learner: Trainer) -> dict:
    return json.loads(json.dumps(learner.identity()))  # as it will be read


def _fixed(tensors: Mapping[str, Tensor | Entry]) -> dict[str, str]:
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
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
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
    if kind == "float":
        return float(content)
    if kind == "pairs":
        return {key: _unpack(item, tensors) for key, item in content}
    items = [_unpack(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items


# --- checks ---------------------------------------------------------------------------------------------------------


def _digest(state: dict) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _undamaged(description: dict, folder: str | Path) -> dict:
    """The state in a description. Earlier versions had a digest of the state, and names of families alone."""
    state, old = description.get("state"), description.get("format") != FORMAT
    if (
        not isinstance(state, dict)
        or not isinstance(state.get("identity"), dict)
        or "learner" not in state
        or (old and _digest(state) != description.get("state_sha256"))
    ):
        raise InputError(
            f"{Path(folder) / serialization.DESCRIPTION} is damaged: its state does not have the SHA-256 it names"
        )
    if old:
        state["identity"] = {key: _of_today(value) for key, value in state["identity"].items()}
    return state


def _of_today(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("class"), str) and "." not in value["class"]:
        return value | {"class": serialization.name_of(serialization.class_named(Family, value["class"]))}
    return value


@contextmanager
def _refusing(source: str) -> Iterator[None]:
    """Refuse a state that this learner cannot take, whatever the error."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{source} cannot be restored: {error}") from None
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{source} cannot be restored: {why:.200}") from None


def _require_alike(theirs: Any, mine: Any, place: str, learner: Trainer) -> None:
    """Refuse a packed state that has other parts or other kinds of values than the learner's own. What optimisers
    remember comes with the first update, and lists grow and shrink."""
    free = place.startswith("/optimisers/")
    if free and _number(theirs) and _number(mine):
        return
    if not isinstance(theirs, dict) or not isinstance(mine, dict):
        _require_value(theirs, mine, place, learner)
        return
    if theirs.keys() != mine.keys():
        raise InputError(f"its {place or 'state'} is not of the kind it should be")
    ((kind, content),) = theirs.items()
    own = mine[kind]
    if kind == "pairs":
        found, wanted = dict(content), dict(own)
        if not free and list(found) != list(wanted):
            raise InputError(f"its {place or 'state'} has other parts than this learner")
        for key in found.keys() & wanted.keys():
            _require_alike(found[key], wanted[key], f"{place}/{key}", learner)
    elif kind == "tensor":
        if content != own:
            raise InputError(f"its {place} is {content!r:.80}, expected {own!r:.80}")
    else:  # a list or a tuple
        for k, item in enumerate(content):
            _require_alike(item, own[k] if k < len(own) else None, f"{place}/{k}", learner)


def _number(value: Any) -> bool:
    """A number, be it infinite or a tensor."""
    return isinstance(value, (int, float)) or (isinstance(value, dict) and value.keys() <= {"float", "tensor"})


def _require_value(theirs: Any, mine: Any, place: str, learner: Trainer) -> None:
    names = learner.model.names
    if "/turns/" in place:
        alike = theirs in names
    elif place == "/scan/last":
        alike = theirs is None or (type(theirs) is int and 0 <= theirs < len(names))
    elif COUNTS.fullmatch(place):
        most = MOST_THREADS if place == "/threads" else learner.batch_size if place.endswith("/left") else 2**62
        alike = type(theirs) is int and (place == "/threads") <= theirs <= most
    elif place.endswith("/due"):
        alike = isinstance(theirs, (int, float)) and 0 <= theirs <= 2**53
    else:
        numbers = all(isinstance(value, (int, float)) for value in (theirs, mine))
        alike = mine is None or theirs is None or numbers or type(theirs) is type(mine)
    if not alike:
        raise InputError(f"its {place} cannot be {theirs!r:.80}")


def _require_bounded(entries: Mapping[str, Entry], own: Mapping[str, Tensor]) -> None:
    """Refuse to read more of what the learner has no tensor for yet than any optimiser remembers."""
    more = sum(entry.nbytes for name, entry in entries.items() if name not in own)
    if more > MOST_MOMENTS * sum(tensor.nbytes for tensor in own.values()):
        raise InputError(f"its optimisers have {more:,} bytes, which is too much for this model")


def _require_optimisers(found: Mapping[str, Any], learner: Trainer) -> None:
    """Fused optimisers read as many numbers as their parameter has, whatever the tensor."""
    for name, optimiser in learner.optimisers.items():
        parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        if any(isinstance(v, Tensor) and v.ndim for group in found[name]["param_groups"] for v in group.values()):
            raise InputError(f"a setting of the optimiser of {name!r:.80} is no number")
        if type(optimiser).__name__ not in ELEMENTWISE:
            continue
        for number, moments in found[name]["state"].items():
            if type(number) is not int or not 0 <= number < len(parameters):
                raise InputError(f"the optimiser of {name!r:.80} has no parameter {number!r:.80}")
            shape = parameters[number].shape
            for key, moment in moments.items():
                number_like = moment is None or isinstance(moment, (int, float))
                fits = isinstance(moment, Tensor) and moment.is_floating_point() and moment.shape in ((), shape)
                if not number_like and not fits:
                    raise InputError(f"{key!r:.80} of the optimiser of {name!r:.80} does not fit its parameter")


def _require_values(tensors: Mapping[str, Tensor], learner: Trainer) -> None:
    """Refuse indices of rows or of examples that do not exist, and values that their groups cannot take."""
    for place, tensor in tensors.items():
        if place.endswith(("/order", "/own/index")):
            _require_indices(place, tensor, learner.completion.rows)
        elif place.endswith("/own/ranks"):
            _require_indices(place, tensor, tensor.shape[-1])
        elif place in ("/guard/first", "/source/guard/first"):
            counts = (2**62, len(learner.model.names), len(SUSPECTS))
            if not all(-1 <= value < count for value, count in zip(tensor.tolist(), counts, strict=True)):
                raise InputError(f"its {place} cannot be {tensor.tolist()}")
        elif (group := VALUES.fullmatch(place)) and group[1] in learner.model.variables:
            learner.model.variables[group[1]].check_values(group[1], tensor.flatten())


def _require_indices(place: str, tensor: Tensor, count: int) -> None:
    whole = tensor.dtype == torch.long
    if tensor.numel() and not (whole and int(tensor.min()) >= 0 and int(tensor.max()) < count):
        raise InputError(f"its {place} names what does not exist")


def _require_same(source: str, found: Mapping, expected: Mapping) -> None:
    for what in {**expected, **found}:
        theirs, mine = found.get(what, "absent"), expected.get(what, "absent")
        if theirs != mine:
            both = f"{what:.200} is {theirs!s:.200} there and {mine!s:.200} here"
            raise InputError(f"{source} is of another run: {both}")


# --- the loop -------------------------------------------------------------------------------------------------------


def _begin(learner: Trainer, folder: Path | None, resume: bool) -> None:
    """Go on from a checkpoint, or see to it that none will be overwritten."""
    if folder is None:
        if resume:
            raise InputError("resume=True needs folder=, the folder of the checkpoint")
        return
    serialization.require_place(folder, FORMAT)
    if exists(folder):
        if not resume:
            raise InputError(f"{folder} has a checkpoint: continue it with resume=True, or give another folder")
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
            try:
                _write(learner, folder / NONFINITE, finite=False)
            except (OSError, InputError) as failed:
                error.add_note(f"the model at that moment is lost: {failed}")
            else:
                error.add_note(f"the model and all else at that moment are in {folder / NONFINITE}, to look at")
        raise
