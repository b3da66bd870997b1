"""Seeded calls of the whole public API: valid ones, and ones with one or two hostile arguments.

    python campaigns/fuzz_api.py                     # 20,000 calls
    python campaigns/fuzz_api.py --seed 3 --only 17  # trial 17 alone, with its traceback

Every call ends in one of these ways:

    ok       it returned, and its oracle agrees: exact enumeration for finite models, the same bits for the same values
    refused  an InputError, or a TypeError, of one sentence that names the argument; nothing was changed
    raw      any other exception, warning or hang, or a message that does not name the argument
    silent   it returned although its input was wrong, its result is wrong, or it changed what it must not change

`hostile_values.py` has the values, `worlds.py` the models, `api_calls.py` and `baseline_calls.py` the calls.
"""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import baseline_calls  # noqa: F401 (registers its calls)
import common
import numpy as np
import torch
from api_calls import MAKERS_OF_CALLS, Call, _same
from torch import Tensor, nn

import paracond as pc
from paracond.experiments.common.results import Metric

LONGEST = 400  # characters of a message
PATIENCE = 20.0  # seconds of a call
MODES = {"valid": 0.2, "one": 0.65, "two": 0.15}
MEMORY = 12 * 2**30
EXPECTED = (pc.ImpreciseWarning, pc.NotMixedWarning, pc.RoughWarning)


class Slow(BaseException):
    """A call took longer than `PATIENCE`."""


@dataclass
class Result:
    """How a trial ended."""

    outcome: str
    what: str  # the call, as far as it differs from a valid one
    why: str = ""
    error: BaseException | None = None

    @property
    def key(self) -> str:
        """What is the same in failures of one class."""
        place = _place(self.error) if self.error is not None and self.outcome == "raw" else ""
        name = self.what.split("(")[0]
        why = type(self.error).__name__ if place else self.why.split(":")[0]
        return f"{self.outcome} | {place or name} | {why}"


# --- what must not change ---------------------------------------------------------------------------------------------


def _leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """Tensors and arrays inside an argument."""
    if isinstance(value, Tensor | np.ndarray):
        yield value
    elif isinstance(value, pc.Observed):
        yield from _leaves(value.value, depth + 1)
        yield from _leaves(value.mask, depth + 1)
    elif isinstance(value, pc.Data):
        yield from _leaves([value.state, value.mask], depth + 1)
    elif isinstance(value, Mapping) and depth < 4:
        for each in value.values():
            yield from _leaves(each, depth + 1)
    elif isinstance(value, list | tuple) and depth < 4:
        for each in value:
            yield from _leaves(each, depth + 1)


def _bits(value: Any) -> Any:
    try:
        if isinstance(value, Tensor):
            if value.is_meta or value.layout != torch.strided:
                return value.shape
            return value.detach().clone()
        return value.copy()
    except Exception:
        return None


def _equal_bits(before: Any, now: Any) -> bool:
    if isinstance(before, Tensor):
        return before.shape == now.shape and bool(((before == now) | ((before != before) & (now != now))).all())
    if isinstance(before, np.ndarray):
        if before.dtype == object:
            return bool(before.shape == now.shape)
        return np.asarray(before).tobytes() == np.asarray(now).tobytes()
    return True


class Snapshot:
    """What a call must leave as it was: models, arguments, random state, settings of torch."""

    def __init__(self, call: Call):
        self.call = call
        self.models = [(m, [t.detach().clone() for t in m.state_dict().values()], self._flags(m)) for m in call.models]
        self.arguments = [(v, _bits(v)) for v in _leaves(list(call.values().values()))]
        self.random, self.numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        self.settings = self._settings()

    @staticmethod
    def _flags(model: nn.Module) -> list[Any]:
        return [(m.training, [p.requires_grad for p in m.parameters(recurse=False)]) for m in model.modules()]

    @staticmethod
    def _settings() -> tuple:
        return (
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            np.geterr()["divide"],
        )

    def changed(self) -> str:
        """What was changed, or nothing."""
        for model, tensors, flags in self.models:
            now = list(model.state_dict().values())
            if len(now) != len(tensors) or not all(torch.equal(a, b) for a, b in zip(tensors, now, strict=True)):
                return "the weights of the model"
            if flags != self._flags(model):
                return "the modes of the model"
        if any(not _equal_bits(before, now) for now, before in self.arguments if before is not None):
            return "an argument"
        if not self.call.draws_globally and not torch.equal(self.random, torch.get_rng_state()):
            return "the random state of torch"
        if not np.array_equal(self.numpy, np.random.get_state()[1]):  # noqa: NPY002
            return "the random state of numpy"
        return "" if self.settings == self._settings() else f"settings of torch: {self.settings} to {self._settings()}"

    def restore(self) -> None:
        torch.set_rng_state(self.random)
        torch.set_num_threads(self.settings[0])
        torch.set_default_dtype(self.settings[1])


# --- one trial --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise Slow

    former = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def _place(error: BaseException | None) -> str:
    """The line of the package that raised."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    own = [f for f in frames if "/paracond/" in f.filename]
    return f"{own[-1].filename.split('/paracond/')[-1]}:{own[-1].lineno}" if own else "outside"


def _made(seed: int, number: int, base: bool) -> tuple[Call, str, str, tuple[str, ...]]:
    """The call of a trial, or the valid call from which it was made: the call, its label, the verdict, words."""
    rng = Random(f"{seed}/{number}")
    names, makers = zip(*MAKERS_OF_CALLS.items(), strict=True)
    maker = MAKERS_OF_CALLS[rng.choices(names, [weight for weight, _ in makers])[0]][1]
    mode = rng.choices(list(MODES), list(MODES.values()))[0]
    state = torch.get_rng_state()
    call = maker(rng)
    torch.set_rng_state(state)
    count = {"valid": 0, "one": 1, "two": 2}[mode] if call.attacked else 0
    attacked = rng.sample(list(call.args), min(count, len(call.args)))
    if base or not attacked:
        return call, f"{call.name}()", "same", ()
    labels, verdicts, words = [], [], list[str]()
    for name in attacked:
        arg = call.args[name]
        label, arg.value, verdict = arg.kind.attack(rng, arg.value)
        labels.append(f"{name}={label}")
        verdicts.append(verdict)
        words += [name, *arg.words]
    worst = next((v for v in ("bad", "missing", "fine") if v in verdicts), "same")
    return call, f"{call.name}({', '.join(labels)})", worst, tuple(words)


def _run(call: Call) -> tuple[Any, BaseException | None, list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", ".torch.jit.script_method", DeprecationWarning)  # of torch's compiler
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                with _limited(PATIENCE):
                    return call.function(**call.values()), None, caught
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:
                return None, error, caught


def trial(seed: int, number: int) -> Result:
    """Make one call and judge it."""
    call, what, verdict, words = _made(seed, number, base=False)
    what = f"{what} [{_world(call)}]"
    snapshot = Snapshot(call)
    try:
        value, error, caught = _run(call)
        changed = snapshot.changed()
        if changed:
            snapshot.restore()
            return Result("silent", what, f"it changed {changed}", error)
        if error is not None:
            return _judged_error(call, what, verdict, words, error)
        foreign = [w for w in caught if not issubclass(w.category, EXPECTED)]
        if foreign:
            return Result("raw", what, f"warning: {foreign[0].category.__name__}: {foreign[0].message!s:.200}")
        return _judged_value(call, what, verdict, value, seed, number, snapshot)
    finally:
        if call.cleanup is not None:
            call.cleanup()
        _repair(snapshot)


def _world(call: Call) -> str:
    import worlds

    return (
        ", ".join(name for name in worlds.MAKERS if any(worlds.world(name).model is model for model in call.models))
        or "-"
    )


def _repair(snapshot: Snapshot) -> None:
    """Bring models back that a call has changed, so that other trials do not depend on it."""
    for model, tensors, flags in snapshot.models:
        with torch.no_grad():
            for now, before in zip(model.state_dict().values(), tensors, strict=False):
                now.copy_(before)
        for module, (training, learned) in zip(model.modules(), flags, strict=False):
            module.training = training
            for parameter, learns in zip(module.parameters(recurse=False), learned, strict=False):
                parameter.requires_grad_(learns)


def _judged_error(call: Call, what: str, verdict: str, words: tuple[str, ...], error: BaseException) -> Result:
    message = str(error)
    named = any(word.lower() in message.lower() for word in (*words, *call.words))
    clear = named and len(message) <= LONGEST and "\n" not in message
    if isinstance(error, Slow):
        return Result("raw", what, f"it took more than {PATIENCE:g} s", error)
    if isinstance(error, pc.NonFiniteError):
        return Result("refused", what, "", error)
    if "a network of the user raised this" in message or ("of a liar" in message and call.refuses):
        return Result("refused", what, "", error)
    if not isinstance(error, pc.InputError | TypeError):
        return Result("raw", what, f"{type(error).__name__}: {message:.300}", error)
    if verdict == "same" and "()" in what and not call.refuses:
        return Result("raw", what, f"a valid call was refused: {message:.300}", error)
    if not clear:
        how = (
            "it does not name the argument" if not named else "it is long" if len(message) > LONGEST else "it has lines"
        )
        return Result("raw", what, f"{how}: {type(error).__name__}: {message:.300}", error)
    return Result("refused", what, "", error)


def _judged_value(
    call: Call, what: str, verdict: str, value: Any, seed: int, number: int, snapshot: Snapshot
) -> Result:
    if verdict == "bad" or call.must_refuse:
        return Result("silent", what, f"returned: {_brief(value)}")
    if call.check is not None and verdict == "same":
        try:
            call.check(value, call.values())
        except AssertionError as wrong:
            return Result("silent", what, f"wrong: {wrong}")
    if verdict == "same" and call.compare and "()" not in what:
        right, error = _plain(seed, number, snapshot)
        if error is None and not _same(value, right):
            return Result("silent", what, "other bits than for the plain values")
    if verdict == "missing":
        right, error = _plain(seed, number, snapshot)  # the answer must differ
        if error is None and call.compare and _same(value, right) and not _says_nothing(value):
            return Result("silent", what, "masked values are taken as observed")
    return Result("ok", what)


def _says_nothing(value: Any) -> bool:
    """Whether all likelihoods are NaN, which too few draws near a row leave, or all that was wanted was given."""
    if type(value).__name__ == "Answer":
        return not (value.diagnostics.error or value.diagnostics.r_hat)
    return type(value).__name__ == "LogLikelihood" and bool(value.value.isnan().all())


def _plain(seed: int, number: int, snapshot: Snapshot) -> tuple[Any, BaseException | None]:
    """What the valid call of a trial returns, from the same random state."""
    base, *_ = _made(seed, number, base=True)
    torch.set_rng_state(snapshot.random)
    try:
        right, error, _ = _run(base)
    finally:
        if base.cleanup is not None:
            base.cleanup()
    return right, error


def _brief(value: Any) -> str:
    try:
        return f"{value!r:.120}".replace("\n", " ")
    except Exception:
        return type(value).__name__


# --- all --------------------------------------------------------------------------------------------------------------


def campaign(
    seed: int, count: int, seconds: float, shown: int = 3, every: bool = False
) -> tuple[common.Tally, Counter[str], float]:
    """Run all trials. Of every class of failures, `shown` are printed."""
    tally, classes, begun = (
        common.Tally("calls", bad=("raw", "silent", "harness"), shown=0),
        Counter[str](),
        time.monotonic(),
    )
    examples: dict[str, list[str]] = {}
    for number in common.trials(count, seconds):
        try:
            result = trial(seed, number)
        except Exception as error:  # of the campaign itself
            result = Result("harness", f"trial {number}", "".join(traceback.format_exception(error)[-3:]), error)
        line = f"--seed {seed} --only {number}: {result.what}: {result.why}"
        tally.add(result.outcome, line)
        if result.outcome in tally.bad:
            classes[result.key] += 1
            examples.setdefault(result.key, []).append(line)
            if every or classes[result.key] <= shown:
                print(f"{result.outcome.upper()} {result.key.split(' | ')[1]}: {line}", flush=True)
    return tally, classes, time.monotonic() - begun


def _limit_memory() -> None:
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main(arguments: list[str] | None = None) -> int:
    parser = common.parser(__doc__, 20_000, 900)
    parser.add_argument("--only", type=int, help="run this trial alone, and show its traceback")
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args(arguments)
    _limit_memory()
    torch.set_num_threads(1)
    if options.only is not None:
        result = trial(options.seed, options.only)
        if result.error is not None:
            traceback.print_exception(result.error)
        print(f"{result.outcome}: {result.what}: {result.why or result.error}")
        return int(result.outcome in ("raw", "silent"))
    tally, classes, seconds = campaign(options.seed, options.count, options.seconds)
    print()
    for key, times in classes.most_common():
        print(f"{times:6}  {key}")
    print(f"{tally} in {seconds:.0f} s")
    metrics = [
        Metric("api_calls", tally.total, "higher", goal=20_000),
        Metric("api_silent", tally.counts["silent"], "lower", goal=0),
        Metric("api_raw", tally.counts["raw"], "lower", goal=0),
    ]
    if not options.dry:
        config = {"count": options.count, "seconds": options.seconds, "seed": options.seed}
        common.write("fuzz_api", metrics, seconds, config, options.out)
    return int(tally.failures > 0)


if __name__ == "__main__":
    sys.exit(main())
