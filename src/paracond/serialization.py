"""Folders of tensors and their description, without pickle: `model.json` beside `weights-<hash>.safetensors`.

The JSON names the weights files and their SHA-256, and ends with the SHA-256 of all its bytes before that. So no change
of any byte goes unseen. (Descriptions of earlier versions have no digest of their own.)

Writing: weights have a name made of their content, and the JSON is replaced last, in one rename. A crash at any instant
leaves the former folder or the new one, complete. Writers take turns, by a lock that ends with its process. A reader
that finds a file gone while the JSON has changed begins again.

Reading: nothing in a file is trusted before it was compared. JSON and headers are bounded in bytes, parts and depth.
Tensors must fill their file exactly, and the caller compares names and shapes with what it expects before they are
read. What could not be read again is not written.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import re
import secrets
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from paracond.data import InputError, shown, warn_caller

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

DESCRIPTION = "model.json"
#: Earlier names of classes, and the modules of classes that may not be imported yet when a description names them.
RENAMED = {"Components": "PCA"}
MODULES = {
    "PCA": "paracond.initializers.pca",
    "Side": "paracond.baselines.harmonium",
    "LogLinear": "paracond.theory.kernels",
}
PACKAGE = "paracond"
WEIGHTS = r"weights-[0-9a-f]{12}\.safetensors"
OURS = re.compile(rf"{WEIGHTS}(\.part)?|({WEIGHTS}|model\.json)\.[0-9a-f]{{8}}\.part")
PLAIN = re.compile(r"\w[\w.-]{0,199}", re.ASCII)
SEAL = re.compile(rb',\n "digest": "([0-9a-f]{64})"\n\}')
SEAL_LENGTH = len(b',\n "digest": ""\n}') + 64
# What a description, or all headers together, may hold. Python needs about 250 bytes for an object of JSON, and 100 for
# an entry.
MOST_BYTES, MOST_OBJECTS, MOST_ENTRIES, MOST_LEVELS = 2**23, 300_000, 500_000, 200
MOST_FILES = 4096
MOST_LETTERS = 4096  # of a path
#: Errors of a place where no folder can be.
NO_FOLDER = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
ATTEMPTS = 1000  # to read a folder that others keep replacing
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_WITHOUT_LOCKS = threading.Lock()


@dataclass(frozen=True)
class Entry:
    """A tensor as the header of its file declares it."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * _count(self.shape)


class NonFiniteTensor(InputError):
    """A tensor has NaN or infinite values. `name` is its name."""

    def __init__(self, name: str, where: str):
        super().__init__(f"{where}: the tensor {name!r} has NaN or infinite values")
        self.name = name


# --- writing --------------------------------------------------------------------------------------------------------


def write(
    folder: str | Path,
    description: Mapping,
    tensors: Mapping[str, Tensor],
    max_bytes: int | None = None,
    finite: bool = True,
) -> None:
    """Write or replace a folder, with weights in files of at most `max_bytes`. The description has a "format".

    finite: refuse tensors that are NaN or infinite.
    """
    folder = as_folder(folder)
    # Copies: tied weights share their memory, which the format does not allow.
    copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    if finite:
        require_finite(copies, f"{folder} is not written")
    payloads = [save(part) for part in _parts(copies, max_bytes)]
    _require_readable(payloads, folder)
    digests = [hashlib.sha256(payload).hexdigest() for payload in payloads]
    weights = [f"weights-{digest[:12]}.safetensors" for digest in digests]
    one = len(weights) == 1
    named = {"weights": weights[0] if one else weights, "sha256": digests[0] if one else digests}
    sealed = seal({**description, **named})
    try:
        with _alone(folder):
            require_format(folder, description["format"])
            try:
                for name, payload in zip(weights, payloads, strict=True):
                    replace_file(folder / name, payload)
                replace_file(folder / DESCRIPTION, sealed)
            finally:
                _tidy(folder)
    except OSError as error:
        reason = error.strerror or error
        if error.errno in NO_FOLDER:
            raise InputError(f"folder {folder!s:.200} cannot be written: {reason}; give another one") from None
        raise OSError(
            error.errno, f"{folder} cannot be written: {reason}; what it held before is whole, or all of this is there"
        ) from None


def seal(description: Mapping) -> bytes:
    """A description as the bytes of its file, with the digest of these."""
    try:
        body = json.dumps({k: v for k, v in description.items() if k != "digest"}, indent=1, allow_nan=False)
    except ValueError:
        raise InputError("a description must not hold NaN or infinite numbers") from None
    body = body.removesuffix("\n}")
    sealed = f'{body},\n "digest": "{hashlib.sha256(body.encode()).hexdigest()}"\n}}'.encode()
    try:
        _parsed(sealed, Path(DESCRIPTION))
    except InputError as error:
        raise InputError(f"the description could not be read again: {error}") from None
    return sealed


def _require_readable(payloads: Sequence[bytes], folder: Path) -> None:
    headers = [payload[8 : 8 + int.from_bytes(payload[:8], "little")] for payload in payloads]
    if len(payloads) > MOST_FILES:
        found = f"{len(payloads):,} weights files, at most {MOST_FILES:,} can be read"
        raise InputError(f"{folder} is not written: it would have {found}; give a larger max_bytes")
    if sum(map(len, headers)) > MOST_BYTES:
        raise InputError(f"{folder} is not written: the names of its tensors have over {MOST_BYTES:,} bytes")
    for header in headers:
        _parsed(header, folder)


def require_place(folder: str | Path, expected_format: str) -> None:
    """Refuse a folder that cannot be made or written, or that holds something else, before any work is done."""
    folder = as_folder(folder)
    try:
        there = _nearest(Path(os.path.abspath(folder)))
        if not there.is_dir():
            raise InputError(f"{folder} cannot be written: {there} is not a folder; give another folder")
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}; give another folder") from None
    require_format(folder, expected_format)


def _nearest(path: Path) -> Path:
    """The path, or the folder nearest to it that exists."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return _nearest(path.parent)
    return path


def require_format(folder: str | Path, expected_format: str) -> None:
    """Refuse a folder of another kind, which `write` would replace. Formats of one kind differ in their last word."""
    path = as_folder(folder) / DESCRIPTION
    if not os.path.lexists(path):
        return
    found = _parsed(_contents(path, MOST_BYTES), path).get("format")
    if not isinstance(found, str) or found.rpartition(" ")[0] != expected_format.rpartition(" ")[0]:
        raise InputError(f"{path} has format {found!r:.80}, expected {expected_format!r}: give another folder")


def as_folder(folder: str | Path) -> Path:
    """A path, or refuse what is none."""
    if not isinstance(folder, (str, os.PathLike)):
        raise InputError(f"folder must be a path, found {shown(folder)}")
    text = os.fspath(folder)
    if not isinstance(text, str) or "\0" in text or not text.strip() or len(text) > MOST_LETTERS:
        raise InputError(f"folder must be the name of a folder, found {shown(text)}")
    return Path(text)


def replace_file(path: Path, payload: bytes) -> None:
    """Replace a file in one rename, after its bytes have reached the disk. Whatever fails leaves the former file."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(temporary, "xb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if hasattr(os, "O_DIRECTORY"):  # where folders can be opened, a rename is safe once its folder is
        folder = os.open(path.parent, os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _tidy(folder: Path) -> None:
    """Remove weights that the description in place does not name: former ones, and those of a write that failed. A
    user's own files stay. What cannot be removed stays until the next save."""
    with suppress(OSError):
        try:
            named = (folder / DESCRIPTION).read_bytes()
        except FileNotFoundError:
            named = b""
        for old in list(folder.iterdir()):
            if OURS.fullmatch(old.name) and old.name.encode() not in named:
                with suppress(OSError):  # elsewhere than on POSIX, a file may be read just now
                    old.unlink()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Make the folder, and be its only writer among threads and processes."""
    if fcntl is None:
        with _WITHOUT_LOCKS:
            folder.mkdir(parents=True, exist_ok=True)
            yield
        return
    descriptor = _locked(folder)
    try:
        yield
    finally:
        with suppress(OSError):  # a process that was forked meanwhile has the descriptor too, and would keep the lock
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _locked(folder: Path) -> int:
    """Make, open and lock a folder. Another process may remove it while this one waits: the lock is then of nothing."""
    for _ in range(ATTEMPTS):
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                with suppress(OSError):  # some network file systems have no locks
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
    raise OSError(errno.ENOENT, "it is removed again and again")


def _parts(tensors: Mapping[str, Tensor], max_bytes: int | None) -> list[dict[str, Tensor]]:
    """Divide the tensors into parts, in their order. A tensor that is too large has a part to itself."""
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        size += tensor.nbytes + 200  # and its entry in the header
        if max_bytes is not None and size > max_bytes and parts[-1]:
            parts.append({})
            size = tensor.nbytes + 200
        parts[-1][name] = tensor
    return parts


# --- reading --------------------------------------------------------------------------------------------------------

Check = Callable[[dict, dict[str, Entry]], Any]


def read(
    folder: str | Path, formats: str | Sequence[str], check: Check | None = None
) -> tuple[dict, dict[str, Tensor]]:
    """Read the description and the tensors of a folder. A wrong or damaged folder is refused.

    formats: the formats that can be read, the newest first. Only the newest must have a digest of its own.
    check: `check(description, entries)` refuses what does not fit, before any tensor is read.
    """
    path = as_folder(folder) / DESCRIPTION
    formats = [formats] if isinstance(formats, str) else list(formats)
    for attempt in range(ATTEMPTS):
        version = _version(path)
        try:
            return _read(path, _contents(path, MOST_BYTES), formats, check)
        except InputError:  # or another writer has replaced the folder meanwhile, perhaps by what it was before
            if attempt == ATTEMPTS - 1 or version == _version(path):
                raise
    raise AssertionError("the last attempt returns or raises")


def _read(path: Path, payload: bytes, formats: Sequence[str], check: Check | None) -> tuple[dict, dict[str, Tensor]]:
    description = _parsed(payload, path)
    _require_undamaged(description, payload, path, formats)
    files = _weights(description, path)
    entries: dict[str, Entry] = {}
    parts, left = [], MOST_BYTES
    for name, _ in files:
        found, length = _header(path.parent / name, left)
        left -= length
        parts.append(found)
        if twice := found.keys() & entries.keys():
            raise InputError(f"{path.parent} is damaged: two files hold the tensor {min(twice)!r:.80}")
        entries |= found
    if check is not None:
        check(description, entries)
    tensors: dict[str, Tensor] = {}
    for (name, digest), declared in zip(files, parts, strict=True):
        tensors |= _read_weights(path.parent / name, digest, declared)
    return {key: value for key, value in description.items() if key != "digest"}, tensors


def _version(path: Path) -> tuple[int, ...] | None:
    """What differs between a file and the one that replaces it, even if both have the same bytes."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_json(path: Path, expected_format: str) -> dict:
    """Read the object of a JSON file by itself. One with a "format" must have a digest; a user's own has neither."""
    payload = _contents(path, MOST_BYTES)
    found = _parsed(payload, path)
    if "format" in found:
        _require_undamaged(found, payload, path, [expected_format])
    return {key: value for key, value in found.items() if key != "digest"}


def require_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse NaN and infinite values, by the name of the tensor."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise NonFiniteTensor(name, where)


def _require_undamaged(description: Mapping, payload: bytes, path: Path, formats: Sequence[str]) -> None:
    found = description.get("format")
    if found not in formats:
        raise InputError(f"{path} has format {found!r:.80}, expected {formats[0]!r}")
    if found != formats[0] and "digest" not in description:
        return
    seal = SEAL.fullmatch(payload[-SEAL_LENGTH:])
    if seal is None or hashlib.sha256(payload[:-SEAL_LENGTH]).hexdigest().encode() != seal[1]:
        raise InputError(f"{path} is damaged: its SHA-256 is not the one at its end; copy or save the folder again")


def _weights(description: Mapping, path: Path) -> list[tuple[str, str]]:
    """List the weights files and their SHA-256."""
    names, digests = description.get("weights"), description.get("sha256")
    if isinstance(names, str) and isinstance(digests, str):
        names, digests = [names], [digests]
    if isinstance(names, list) and isinstance(digests, list) and 0 < len(names) == len(digests) <= MOST_FILES:
        plain = all(isinstance(name, str) and PLAIN.fullmatch(name) for name in names)
        if plain and len(set(names)) == len(names):
            return list(zip(names, digests, strict=True))
    raise InputError(f"{path} is damaged: it must name a weights file in its folder, and its sha256")


def _read_weights(path: Path, digest: str, declared: Mapping[str, Entry]) -> dict[str, Tensor]:
    """The tensors of a file, which must still be those that were compared."""
    payload = _contents(path)
    if hashlib.sha256(payload).hexdigest() != digest:
        raise InputError(f"{path} is damaged: its SHA-256 is not the one in {DESCRIPTION}")
    try:
        tensors = load(payload)
    except SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from None
    if {name: Entry(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()} != declared:
        raise InputError(f"{path} was replaced while it was read")
    return tensors


def _header(path: Path, most: int) -> tuple[dict[str, Entry], int]:
    """The tensors that a safetensors file declares, which must fill it exactly; and the bytes of its header, at most
    `most`."""
    with _opened(path) as (file, size):
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise InputError(f"{path} is damaged: it is not a safetensors file")
        if length > most:
            raise InputError(f"{path} is damaged: its header has {length:,} bytes, at most {most:,} can be read")
        header = _parsed(file.read(length), path)
    header.pop("__metadata__", None)
    parts = {name: _entry(name, entry, path) for name, entry in header.items()}
    end = 0
    for name, (entry, begin, stop) in sorted(parts.items(), key=lambda item: item[1][1:]):
        if begin != end or stop - begin != entry.nbytes:
            raise InputError(f"{path} is damaged: the place of {name!r:.80} is not what its shape needs")
        end = stop
    if end != size - 8 - length:
        raise InputError(f"{path} is damaged: it has {size - 8 - length:,} bytes of tensors, and declares {end:,}")
    return {name: entry for name, (entry, _, _) in parts.items()}, length


def _entry(name: str, found: Any, path: Path) -> tuple[Entry, int, int]:
    """One line of a header."""
    match found:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(stop)]}:
            if dtype in TYPES and len(shape) <= 64 and all(type(size) is int and size >= 0 for size in shape):
                return Entry(TYPES[dtype], tuple(shape)), begin, stop
    raise InputError(f"{path} is damaged: {name!r:.80} is not a tensor that can be read")


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file and its size. A pipe or a device would never end, and is not even opened."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"{path} is not a file that can be read")
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise InputError(f"{path} is not a file that can be read")
            yield file, about.st_size
    except (FileNotFoundError, NotADirectoryError):
        why = f"is {path.parent} a saved model?" if path.name == DESCRIPTION else f"though {DESCRIPTION} names it"
        what = "does not exist:" if path.name == DESCRIPTION else "is missing,"
        raise InputError(f"{path} {what} {why}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _contents(path: Path, most: int | None = None) -> bytes:
    with _opened(path) as (file, size):
        if most is not None and size > most:
            raise InputError(f"{path} is damaged: it has {size:,} bytes, at most {most:,} can be read")
        return file.read(size)


def _parsed(payload: bytes, path: Path) -> dict:
    """A JSON object within bounds: it may not be deep, large, ambiguous, or hold numbers that are none."""
    if len(payload) > MOST_BYTES:
        raise InputError(f"{path} has {len(payload):,} bytes of JSON, at most {MOST_BYTES:,} can be read")
    objects, entries = payload.count(b"{") + payload.count(b"["), payload.count(b",")
    if objects > MOST_OBJECTS or entries > MOST_ENTRIES:
        found = f"{objects:,} objects and {entries:,} entries"
        raise InputError(f"{path} has {found}, at most {MOST_OBJECTS:,} and {MOST_ENTRIES:,} can be read")
    try:
        found = json.loads(
            payload.decode(), object_pairs_hook=_unique, parse_int=_whole, parse_float=_finite, parse_constant=_finite
        )
        _require_shallow(found)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error!s:.200}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} has format None: it must hold an object, found a {type(found).__name__}")
    return found


def _require_shallow(found: Any) -> None:
    """Refuse what is nested so deeply that functions which call themselves would fail on it."""
    level = [found]
    for _ in range(MOST_LEVELS):
        level = [
            item
            for value in level
            if isinstance(value, (dict, list))
            for item in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise ValueError(f"it is nested in more than {MOST_LEVELS} levels")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _whole(text: str) -> int:
    number = int(text) if len(text) <= 21 else 2**64
    if not -(2**63) <= number < 2**64:
        raise ValueError(f"the number {text:.30} has more than 64 bits")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not abs(number) < float("inf"):
        raise ValueError(f"{text:.30} is not a finite number")
    return number


# --- names of classes -----------------------------------------------------------------------------------------------


def name_of(kind: type) -> str:
    """How a description names a class: paracond.NAME for one of ours, whatever module it is in, else MODULE.NAME."""
    return f"{PACKAGE}.{kind.__name__}" if is_ours(kind) else f"{kind.__module__}.{kind.__name__}"


def class_named(base: type, name: str) -> type:
    """Return the imported subclass of `base` with this name. Code is never stored in a file or run from one.

    A name of ours is always ours. Another must be in the package that the name says. A script, `__main__`, may have
    become a module since; then a warning names the class that is taken. Names of earlier versions have no package.
    """
    if not isinstance(name, str):
        raise InputError(f"the name of a {base.__name__} must be a text, found {name!r:.80}")
    module, _, short = name.rpartition(".")
    short = RENAMED.get(short, short)
    if module in ("", PACKAGE) and short in MODULES:
        importlib.import_module(MODULES[short])
    known = [kind for kind in _subclasses(base) if kind.__name__ == short]
    ours, theirs = [k for k in known if is_ours(k)], [k for k in known if not is_ours(k)]
    if module == PACKAGE or (not module and ours):
        found = ours
    elif not module or module in SCRIPTS:
        found = theirs
    else:
        package = module.partition(".")[0]
        found = [k for k in theirs if k.__module__ == module]
        found = found or [k for k in theirs if k.__module__.partition(".")[0] == package]
        found = found or [k for k in theirs if k.__module__ in SCRIPTS]
    if len(found) > 1:  # a class that was defined again, as in a notebook: the one that its module has now
        found = [k for k in found if getattr(sys.modules.get(k.__module__), k.__qualname__, None) is k] or found
    if len(found) == 1:
        now = found[0].__module__
        if module not in ("", PACKAGE) and (module in SCRIPTS) != (now in SCRIPTS):
            warn_caller(UserWarning(f"{name!r:.80} was saved, and {now}.{short} is taken for it: it must be the same"))
        return found[0]
    if found:
        listed = ", ".join(sorted(f"{k.__module__}.{k.__qualname__}" for k in found))
        raise InputError(f"{name!r:.80} could be any of {listed}: rename all but one")
    listed = ", ".join(sorted({name_of(k) for k in _subclasses(base)}))
    raise InputError(f"unknown {base.__name__} {name!r:.80} (known: {listed}); import the module that defines it")


SCRIPTS = ("__main__", "__mp_main__")


def is_ours(kind: type) -> bool:
    """Whether a class belongs to this package."""
    return kind.__module__.partition(".")[0] == PACKAGE


def _subclasses(kind: type) -> list[type]:
    direct: list[type] = kind.__subclasses__()
    return list(dict.fromkeys(found for sub in direct for found in (sub, *_subclasses(sub))))
