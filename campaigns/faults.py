"""Faults: damaged bytes, kills, several writers, full disks and hostile folders. Parts, all of them if none is named:

damage    one change of the bytes of a saved model or checkpoint: it must be refused
kills     SIGKILL at random moments of a run with checkpoints: resumed, it must end with the same bytes
writers   processes and threads that save into one folder, some killed, while others read: never a mixture or an error
full      errors of the system at every call, small disks, read-only places: what was there before stays
hostile   crafted folders: refused, soon, and without memory

Every trial runs in this process or in a fork of it, which has paracond imported and one thread.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from common import Tally, parser, trials, write
from hostile_folders import KINDS, NORMAL, Kind, attack_checkpoint

import paracond as pc
from paracond import serialization
from paracond.cli.given import coordinate_names
from paracond.experiments.common.names import write_names
from paracond.experiments.common.results import Metric
from paracond.model import FORMAT as MODEL
from paracond.training import checkpoints

PATIENCE = 60  # seconds after which a trial is ended and counts as endless
MOST_MB, MOST_SECONDS = 200, 2.0
BATCH = 20  # crafted checkpoints of one fork
STEPS, EVERY = 60, 0.02  # of the runs that are killed: updates, and seconds between checkpoints

# --- trials in a process of their own ---------------------------------------------------------------------------


@dataclass
class Ended:
    """How a forked trial ended. `value` is what it returned, or None; `peak` is in MB."""

    value: Any
    error: str
    peak: float
    seconds: float
    killed: bool = False


def forked(work: Callable[[], Any], kill_after: float | None = None) -> Ended:
    """Run `work` in a fork. `kill_after`: send SIGKILL after so many seconds, if it still runs."""
    return joined(start(work), kill_after)


def start(work: Callable[[], Any]) -> tuple[int, int]:
    """Begin `work` in a fork: its process and the pipe with its result."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forks of a process with threads
        process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    try:
        os.close(reading)
        begin = time.process_time()
        try:
            value, error = work(), ""
        except BaseException:
            value, error = None, traceback.format_exc()
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump((value, error, time.process_time() - begin), pipe)
    finally:
        os._exit(0)


def joined(running: tuple[int, int], kill_after: float | None = None) -> Ended:
    """Wait for a fork. One that does not end is killed after `PATIENCE` seconds."""
    process, pipe = running
    end = time.monotonic() + (PATIENCE if kill_after is None else kill_after)
    killed, status, usage = False, 0, None
    os.set_blocking(pipe, False)
    found = b""
    while True:
        with suppress(BlockingIOError):
            found += os.read(pipe, 2**20)
        over, status, usage = os.wait4(process, os.WNOHANG)
        if over:
            break
        if time.monotonic() >= end and not killed:
            killed = True
            os.kill(process, signal.SIGKILL)
        time.sleep(0.0005)
    os.set_blocking(pipe, True)
    while more := os.read(pipe, 2**20):
        found += more
    os.close(pipe)
    try:
        value, error, seconds = pickle.loads(found)
    except (EOFError, pickle.UnpicklingError):
        value, error, seconds = None, f"ended with status {status}", float(PATIENCE)
    return Ended(value, error, usage.ru_maxrss / 1000, seconds, killed and os.WIFSIGNALED(status))


# --- what is saved ----------------------------------------------------------------------------------------------

VARIABLES = {
    "x": pc.Real(3, scale="learned"),
    "c": pc.Categorical(3),
    "z": pc.Binary(3),
    "r": pc.Real(2, scale="element", ceiling=1.0, bounds=(-2.0, 2.0)),
    "k": pc.Categorical(2),
}


def model_of(seed: int, hidden: int = 6) -> pc.JointModel:
    """A small model with every kind of part: several families, an initializer, context and shared weights."""
    torch.manual_seed(seed)
    names = [name for name in VARIABLES if name != "k"]
    networks = {n: pc.networks.mlp(VARIABLES, n, hidden=hidden, depth=1) for n in names}
    networks["z"].layers[-1].bias = networks["x"].layers[-1].bias
    init = pc.initializers.pca(VARIABLES, "x", ["c"], 2)
    return pc.JointModel(
        {n: pc.Conditional(VARIABLES[n], networks[n], init if n == "x" else None) for n in names},
        {"x": 2.0, "c": 1.0, "z": 1.0, "r": 0.5},
        {"k": pc.Context(VARIABLES["k"], 1)},
        pc.Regeneration(0.05, 7),
    )


def learner_of(seed: int, hidden: int = 6) -> pc.Learner:
    """A learner of such a model, with hidden values, warm completion beside it, and Adam."""
    generator = torch.Generator().manual_seed(1)
    state = {
        "x": torch.rand(24, 3, generator=generator),
        "c": torch.randint(3, (24,), generator=generator),
        "r": torch.rand(24, 2, generator=generator),
        "k": torch.randint(2, (24,), generator=generator),
    }
    data = pc.datasets.hide(pc.Data(state), {"c": 0.5})
    completion = pc.CompletionOptions(2, "average", ("z",), parallel=True)
    return pc.Learner(model_of(seed, hidden), data, batch_size=8, completion=completion, average=0.9, seed=seed)


def picture(value: Any) -> Any:
    """A nested state as something that can be compared, bit for bit."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().cpu().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: picture(item) for key, item in value.items()}
    return [picture(item) for item in value] if isinstance(value, (list, tuple)) else repr(value)


def digest_of(tensors: dict[str, torch.Tensor]) -> str:
    return hashlib.sha256(pickle.dumps(sorted(picture(tensors).items()))).hexdigest()


# --- damage -----------------------------------------------------------------------------------------------------


def damaged(payload: bytes, chance: random.Random) -> tuple[bytes, str]:
    """One change at a random place, and its name."""
    place, size = chance.randrange(len(payload)), chance.randint(1, 16)
    other = chance.randrange(len(payload))
    letter = bytes([chance.randrange(256) if chance.random() < 0.5 else chance.choice(b'0123456789aef".,:[]{} \n')])
    swapped = bytearray(payload)
    swapped[place], swapped[other] = swapped[other], swapped[place]
    flipped = bytes([payload[place] ^ (1 << chance.randrange(8))])
    head, tail, block = payload[:place], payload[place:], payload[place : place + size]
    changes = {
        "replace": head + letter + tail[1:],
        "flip": head + flipped + tail[1:],
        "insert": head + letter + tail,
        "delete": head + tail[1:],
        "remove": head + tail[size:],
        "truncate": head,
        "duplicate": head + block + tail,
        "swap": bytes(swapped),
        "append": payload + letter,
    }
    kind = chance.choice([kind for kind, found in changes.items() if found != payload])
    return changes[kind], f"{kind} at {place}"


def damage(count: int, seconds: float, seed: int, folder: Path) -> list[Metric]:
    """Change one thing in one file, load, and put the file back."""
    chance, tally = random.Random(seed), Tally("damage", bad=["silent", "raw", "changed"])
    places, learner = {"one": folder / "one", "several": folder / "several", "run": folder / "run"}, learner_of(5)
    model_of(1).save(places["one"])
    model_of(2).save(places["several"], max_bytes=1500)
    saved = learner_of(3)
    saved.fit(9, progress=False)
    saved.save(places["run"])
    write_names(places["one"], {"z": ["a", "b", "c"]})
    before = picture(learner.state_dict())
    files = [path for place in places.values() for path in sorted(place.iterdir())]
    for number in trials(count, seconds):
        path = chance.choice(files)
        payload = path.read_bytes()
        changed, what = damaged(payload, chance)
        path.write_bytes(changed)
        work = learner.resume if path.parent == places["run"] else load_with_names
        tally.add(*outcome(lambda: work(path.parent), f"seed {seed}, trial {number}: {what} of {path.name}"))
        path.write_bytes(payload)
        if learner.step_count or (number % 50 == 0 and picture(learner.state_dict()) != before):
            tally.add("changed", f"seed {seed}, trial {number}: {what} of {path.name} changed the learner")
            learner = learner_of(5)
    if picture(learner.state_dict()) != before:
        tally.add("changed", f"seed {seed}: the learner that refused is not what it was")
    for place in (places["one"], places["several"]):
        pc.JointModel.load(place)
    learner.resume(places["run"])
    print(tally)
    return [Metric("damaged_files", tally.total, "higher"), Metric("damaged_silent", tally.failures, "lower", goal=0)]


def load_with_names(folder: Path) -> None:
    """Load a model as the command line does. (First weights, which the file replaces, are drawn by torch's source.)"""
    with torch.random.fork_rng(devices=[]):
        coordinate_names(folder, pc.JointModel.load(folder))


def outcome(work: Callable[[], Any], reproducer: str) -> tuple[str, str]:
    """Whether something was refused, in one line; silent, or raw, if not."""
    try:
        work()
    except pc.InputError as error:
        return ("raw" if "\n" in str(error) else "refused"), reproducer
    except Exception as error:
        return "raw", f"{reproducer}: {type(error).__name__}: {error!s:.200}"
    return "silent", reproducer


# --- kills ------------------------------------------------------------------------------------------------------


def run_on(folder: Path, seed: int) -> bool:
    return checkpoints.fit(learner_of(seed), STEPS, folder, resume=True, every=EVERY, progress=False)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def kills(count: int, seconds: float, seed: int, folder: Path) -> list[Metric]:
    """Runs that are killed up to five times, and then run to their end. A kill counts if the run was alive."""
    chance, tally = random.Random(seed), Tally("kills", bad=["differs", "broken", "failed"])
    whole = folder / "whole"
    first = forked(lambda: run_on(whole, 0))
    assert first.value is True, first.error
    expected = contents(whole)
    begin = time.monotonic()
    forked(lambda: run_on(folder / "timed", 0))
    lasts, done, number = time.monotonic() - begin, 0, 0
    for number in trials(4 * count, seconds):
        place, times = folder / f"run {number}", []
        for _ in range(min(5, count - done)):
            times.append(chance.uniform(0, lasts))
            ended = forked(lambda: run_on(place, 0), times[-1])
            line = f"seed {seed}, run {number}, killed after {', '.join(f'{t:.4f}' for t in times)} s"
            if ended.error and not ended.killed:
                tally.add("failed", f"{line}: {ended.error[-300:]}")
            if not ended.killed:
                break
            done += 1
            tally.add("killed")
            if (place / serialization.DESCRIPTION).exists():
                refused, why = outcome(lambda: serialization.read(place, checkpoints.FORMATS), line)
                if refused != "silent":
                    tally.add("broken", why)
        last = forked(lambda: run_on(place, 0))
        if last.value is not True:
            tally.add("failed", f"{line}: {last.error[-300:]}")
        elif contents(place) != expected:
            tally.add("differs", line)
        if done >= count:
            break
    print(tally, f"({number + 1} runs of {lasts:.2f} s)")
    return [Metric("kills", done, "higher"), Metric("kills_differ", tally.failures, "lower", goal=0)]


# --- writers ----------------------------------------------------------------------------------------------------


@dataclass
class Written:
    """Something that can be saved into a folder, and the digest of its tensors there."""

    save: Callable[[Path], None]
    digest: str


def things(folder: Path) -> dict[str, list[Written]]:
    """Models and checkpoints of different sizes, in one or several files."""
    found: dict[str, list[Written]] = {MODEL: [], checkpoints.FORMAT: []}
    for k in range(4):
        model, learner = model_of(k, 4 + 2 * k), learner_of(k)
        learner.fit(2 * k, progress=False)
        saves = {MODEL: _saving(model, [None, 900][k % 2]), checkpoints.FORMAT: _saving_run(learner)}
        for kind, save in saves.items():
            save(folder / kind)
            found[kind].append(Written(save, digest_of(serialization.read(folder / kind, kind)[1])))
    return found


def _saving(model: pc.JointModel, most: int | None) -> Callable[[Path], None]:
    return lambda place: model.save(place, max_bytes=most)


def _saving_run(learner: pc.Learner) -> Callable[[Path], None]:
    def save(place: Path) -> None:
        torch.manual_seed(0)  # a checkpoint has torch's own random state, which is that of the process
        learner.save(place)

    return save


def read_until(place: Path, kind: str, stop: Path) -> tuple[list[str], list[str]]:
    """Read a folder again and again: the digests of what was there, and errors after the first success."""
    seen, errors = [], []
    while not stop.exists():
        try:
            seen.append(digest_of(serialization.read(place, kind)[1]))
        except pc.InputError as error:
            if seen or "does not exist" not in str(error):
                errors.append(str(error))
    return seen, errors


def write_some(place: Path, chosen: list[Written], threads: bool) -> None:
    import threading

    def work() -> None:
        for each in chosen:
            each.save(place)

    running = [threading.Thread(target=work) for _ in range(2 if threads else 0)]
    for thread in running:
        thread.start()
    work()
    for thread in running:
        thread.join()


def writers(count: int, seconds: float, seed: int, folder: Path) -> list[Metric]:
    """Rounds of two to four processes that save into one folder, and two that read it."""
    chance, tally, saved = random.Random(seed), Tally("writers", bad=["broken"]), things(folder)
    reads = 0
    for number in trials(count, seconds):
        place, stop, kind = folder / f"{number}" / "new", folder / f"stop {number}", list(saved)[number % 2]
        line, digests = f"seed {seed}, round {number} ({kind})", {each.digest for each in saved[kind]}
        readers = [start(lambda: read_until(place, kind, stop)) for _ in range(2)]
        plans = [(chance.choices(saved[kind], k=4), chance.random() < 0.5) for _ in range(chance.randint(2, 4))]
        running = [start(lambda plan=plan: write_some(place, *plan)) for plan in plans]
        ended = [joined(each, chance.uniform(0, 0.15) if chance.random() < 0.3 else None) for each in running]
        stop.touch()
        read = [joined(each) for each in readers]
        problems = [each.error[-300:] for each in (*ended, *read) if each.error and not each.killed]
        for each in read:
            seen, errors = each.value or ([], [])
            reads += len(seen)
            problems += errors[:2] + [f"a mixture {digest}" for digest in {*seen} - digests]
        if (place / serialization.DESCRIPTION).exists() or not all(each.killed for each in ended):
            final, _ = read_once(place, kind)
            problems += [] if final in digests else [f"left broken: {final}"]
        plans[0][0][0].save(place)  # what killed writers have left goes with the next save
        left = [name for name in contents(place) if name.endswith(".part")]
        problems += [f"left over: {left}"] if left else []
        tally.add("broken" if problems else "whole", f"{line}: {'; '.join(problems)[:600]}")
    print(tally, f"({reads:,} reads)")
    return [Metric("writers", tally.total, "higher"), Metric("writers_broken", tally.failures, "lower", goal=0)]


def read_once(place: Path, kind: str) -> tuple[str, str]:
    try:
        return digest_of(serialization.read(place, kind)[1]), ""
    except pc.InputError as error:
        return str(error), str(error)


# --- full -------------------------------------------------------------------------------------------------------

CALLS = {"fsync": 28, "replace": 28, "mkdir": 30, "open": 24, "stat": 5, "lstat": 5}  # and errors that they may raise


@contextmanager
def failing(name: str, call: int, used: list[int]) -> Iterator[None]:
    """Let the `call`-th use of a function of `os` raise an error. `used[0]` counts them."""
    original = getattr(os, name)

    def fails(*args: Any, **kwargs: Any) -> Any:
        used[0] += 1
        if used[0] == call:
            raise OSError(CALLS[name], os.strerror(CALLS[name]))
        return original(*args, **kwargs)

    setattr(os, name, fails)
    try:
        yield
    finally:
        setattr(os, name, original)


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """No file of this process may be larger."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path | None]:
    """A disk of this size; None where it cannot be mounted."""
    folder.mkdir(parents=True)
    command = f"mount -t tmpfs -o size={kilobytes}k none '{folder}' 2>/dev/null"
    mounted = sys.platform == "linux" and os.system(command) == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            os.system(f"umount '{folder}'")


def attempt(
    save: Callable[[Path], None], place: Path, kind: str, digests: set[str], fault: Any = None
) -> tuple[str, str]:
    """Save over what is there, with something that fails: what is left must be one of `digests`, and nothing else."""
    said = ""
    try:
        with nullcontext() if fault is None else fault:
            save(place)
    except (pc.InputError, OSError) as error:
        said = str(error)
        if "\n" in said or str(place) not in said:
            return "raw", f"{type(error).__name__}: {said:.200}"
    except BaseException as error:
        return "raw", f"{type(error).__name__}: {error!s:.200}"
    found, why = read_once(place, kind)
    if found not in digests:
        return "broken", why
    left = [path.name for path in place.iterdir() if path.name.endswith(".part")]
    if left:
        return "left over", str(left)
    return ("said" if said else "saved"), said


def full(count: int, seconds: float, seed: int, folder: Path) -> list[Metric]:
    """Save a second model (and a second checkpoint) over a first one while the system fails."""
    tally = Tally("full", bad=["raw", "broken", "left over", "failed"])
    saved = things(folder)
    for kind, (first, second, *_) in saved.items():
        digests = {first.digest, second.digest}
        for name in CALLS:
            for call in range(1, 40):
                place = folder / f"{kind} {name} {call}"
                first.save(place)
                used = [0]
                found, why = attempt(second.save, place, kind, digests, failing(name, call, used))
                tally.add(found, f"{kind}: {name} fails at call {call}: {why}")
                if used[0] < call:
                    break
        for size in (0, 1, 500, 1500, 2500, 4000, 8000):
            place = folder / f"{kind} of {size}"
            first.save(place)
            ended = forked(lambda: _limited(size, second, place, kind, digests))
            tally.add(*(ended.value or ("failed", ended.error)))
        _on_small_disks(tally, kind, first, second, folder)
        _where_nothing_is_written(tally, kind, second, folder)
    _commands(tally, folder)
    print(tally)
    return [Metric("full", tally.total, "higher"), Metric("full_broken", tally.failures, "lower", goal=0)]


def _limited(size: int, thing: Written, place: Path, kind: str, digests: set[str]) -> tuple[str, str]:
    found, why = attempt(thing.save, place, kind, digests, small_files(size))
    return found, f"{kind}: no file over {size} bytes: {why}"


def _on_small_disks(tally: Tally, kind: str, first: Written, second: Written, folder: Path) -> None:
    for kilobytes in range(16, 120, 8):
        with small_disk(folder / f"{kind} disk {kilobytes}", kilobytes) as disk:
            if disk is None:
                return
            try:
                first.save(disk / "it")
            except OSError:
                left = list(disk.rglob("*.part"))
                tally.add("left over" if left else "said", f"{kind}: a disk of {kilobytes} kB")
                continue
            found, why = attempt(second.save, disk / "it", kind, {first.digest, second.digest})
            tally.add(found, f"{kind}: a disk of {kilobytes} kB: {why}")


def _where_nothing_is_written(tally: Tally, kind: str, thing: Written, folder: Path) -> None:
    """Read-only folders (for a user without rights), files, names that cannot be."""
    locked = folder / f"{kind} locked"
    locked.mkdir()
    (locked / "file").touch()
    os.symlink(locked / "nowhere", locked / "link")
    os.chmod(locked, 0o555)
    places = [locked, locked / "new", locked / "file", locked / "file" / "x", locked / "link", locked / ("n" * 300)]
    for place in places:
        ended = forked(lambda place=place: _refused(thing, place))
        tally.add(*(ended.value or ("failed", ended.error)))
    os.chmod(locked, 0o755)


def _refused(thing: Written, place: Path) -> tuple[str, str]:
    if os.getuid() == 0:
        for path in [place, *place.parents]:  # whose own folders may be closed to others
            with suppress(OSError):
                os.chmod(path, os.stat(path).st_mode | 0o055) if path.is_dir() else None
            if path == Path(place.anchor) or len(path.parts) <= 2:
                break
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        thing.save(place)
    except (pc.InputError, OSError) as error:
        bad = "\n" in str(error) or place.name[:20] not in str(error)  # a long name is cut
        return ("raw" if bad else "said"), f"{place.name}: {error!s:.200}"
    except Exception as error:
        return "raw", f"{place.name}: {type(error).__name__}: {error!s:.200}"
    return "broken", f"{place.name} was written"


def _commands(tally: Tally, folder: Path) -> None:
    """The command line, where no file may have more than a few bytes."""
    for module in ("tyro", "paracond.cli.sample", "paracond.cli.classify", "paracond.cli.main"):
        importlib.import_module(module)  # once, and not in every fork
    model_of(0).save(folder / "model")
    for words in (
        ["sample", str(folder / "model"), "--rows", "300", "--sweeps", "1"],
        ["classify", str(folder / "model"), "--given", "z=1,0,1", "--sweeps", "2"],
    ):
        for size in (0, 1):
            out = folder / f"{words[0]} {size}" / ("samples" if words[0] == "sample" else "table.csv")
            ended = forked(lambda words=words, size=size, out=out: _command([*words, "--out", str(out)], size))
            tally.add(*(ended.value or ("failed", ended.error[-300:])))


def _command(words: list[str], size: int) -> tuple[str, str]:
    from paracond.cli.main import main

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    line = f"{words[0]}, no file over {size} bytes"
    try:
        with small_files(size):
            main(words)
    except SystemExit as stop:
        said = str(stop.code)
        return ("said" if said.startswith("paracond: ") and "\n" not in said else "raw"), f"{line}: {said:.300}"
    except BaseException as error:
        return "raw", f"{line}: {type(error).__name__}: {error!s:.200}"
    return "broken", f"{line}: wrote what cannot be"


# --- hostile ----------------------------------------------------------------------------------------------------


def hostile(count: int, seconds: float, seed: int, folder: Path) -> list[Metric]:
    """Load crafted folders and checkpoints, each in a fork. Memory is what is used over loading a good folder."""
    tally = Tally("hostile", bad=["loaded", "raw", "endless", "large", "slow", "changed"])
    chance, peak, longest = random.Random(seed), 0.0, 0.0
    kinds = list(KINDS)
    chance.shuffle(kinds)
    good = folder / "good"
    model_of(0).save(good)
    usual = forked(lambda: load(good, NORMAL)).peak
    for number in trials(min(count, len(kinds)), seconds):
        kind = kinds[number]
        place = folder / f"{number}"
        forked(lambda: kind.craft(place, model_of(0)))
        ended = forked(lambda: load(place, kind))
        used, found = ended.peak - usual, ended.value or "raw"
        if ended.killed:
            found = "endless"
        elif found == "refused" and used > MOST_MB:
            found = "large"
        elif found == "refused" and ended.seconds > MOST_SECONDS:
            found = "slow"
        why = ended.error[-300:] if ended.error else f"{used:.0f} MB, {ended.seconds:.2f} s"
        tally.add(found.partition(":")[0], f"{kind.name}: {found} {why}")
        peak, longest = max(peak, used), max(longest, ended.seconds)
        discard(place)
    for batch in range(min(count, 600) // BATCH):  # a fork for each: one that crashes the process ends no other
        own = random.Random(f"{seed} {batch}")
        found = forked(lambda own=own: attack_checkpoint(learner_of, picture, folder / "run", own, BATCH))
        for result, line in found.value or [("raw", found.error)]:
            tally.add(result, f"seed {seed}, batch {batch}: checkpoint: {line}")
    print(tally)
    return [
        Metric("hostile_folders", tally.total, "higher"),
        Metric("hostile_bad", tally.failures, "lower", goal=0),
        Metric("hostile_peak_mb", round(peak, 1), "lower", goal=MOST_MB),
        Metric("hostile_seconds", round(longest, 2), "lower", goal=MOST_SECONDS),
    ]


def load(place: Path, kind: Kind) -> str:
    try:
        pc.JointModel.load(place)
    except pc.InputError as error:
        return "refused" if len(str(error)) < 2000 and "\n" not in str(error) else f"raw: {error!s:.100}"
    except Exception as error:
        return f"raw: {type(error).__name__}: {error!s:.200}"
    return "harmless" if kind.harmless else "loaded"


def discard(folder: Path) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):
            path.unlink()


# --- all --------------------------------------------------------------------------------------------------------

PARTS = {"damage": (damage, 3000), "kills": (kills, 300), "writers": (writers, 100), "full": (full, 1)}
PARTS |= {"hostile": (hostile, 3000)}


def main(words: list[str] | None = None) -> int:
    """Run some parts and write their metrics; the number of failures."""
    options = parser(__doc__, 3000, 600)
    options.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)} (default: all)")
    found = options.parse_args(words)
    if wrong := [part for part in found.parts if part not in PARTS]:
        options.error(f"unknown part {wrong[0]!r}: choose from {', '.join(PARTS)}")
    torch.set_num_threads(1)
    begin, metrics = time.monotonic(), []
    for part in found.parts or PARTS:
        work, most = PARTS[part]
        start_of_part = time.monotonic()
        with TemporaryDirectory(prefix="faults") as folder:
            metrics += work(min(most, found.count), found.seconds, found.seed, Path(folder))
        print(f"{part}: {time.monotonic() - start_of_part:.0f} s", flush=True)
    config = {key: value for key, value in vars(found).items() if key != "out"}
    write("faults", metrics, time.monotonic() - begin, config, found.out)
    return sum(metric.value > metric.goal for metric in metrics if metric.goal is not None)


if __name__ == "__main__":
    sys.exit(min(1, main()))
