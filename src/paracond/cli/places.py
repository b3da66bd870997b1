"""Where the command line writes: what cannot be written, or would be lost, is refused before any work is done."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

#: Of trainings and experiments. They write some of these when the work is done.
FOLDERS = ("model", "checkpoint", "parts", "cache")
FILES = ("results.json", "report.html", "milestones.json", "picture.png")


def require_place(config: Any) -> None:
    """Refuse a folder that cannot be made or written.

    config: settings with `out`, and with `folder` where files are not in `out` itself.
    """
    from paracond import serialization
    from paracond.data import InputError
    from paracond.model import FORMAT

    given = config.out or config.folder
    if "\0" in str(given):
        raise InputError("--out must not hold a zero byte")
    try:
        folder = Path(os.path.abspath(getattr(config, "folder", config.out)))
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        there = new[-1].parent if new else folder
        if not there.is_dir():
            raise InputError(f"--out {given} cannot be written: {there} is a file")
        for name in FOLDERS:
            if (folder / name).exists() and not (folder / name).is_dir():
                raise InputError(f"--out {given} cannot be written: {folder / name} is a file")
        for name in FILES:
            if (folder / name).is_dir():
                raise InputError(f"--out {given} cannot be written: {folder / name} is a folder")
        if (folder / "model").exists():
            serialization.require_place(folder / "model", FORMAT)
        _try(folder, new)
    except OSError as error:
        raise InputError(f"--out {given} cannot be written: {error.strerror}") from None


def _try(folder: Path, new: list[Path]) -> None:
    """Write a file in a folder, and leave nothing behind."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)  # a disk that is full lets a file be made, but not filled
            file.flush()
    finally:
        for path in new:
            with suppress(OSError):
                path.rmdir()


def free(path: Path) -> Path:
    """The path, or the first of NAME-2, NAME-3, ... that is not there yet: where a command writes by default."""
    names = itertools.chain([path], (path.with_stem(f"{path.stem}-{k}") for k in itertools.count(2)))
    return next(each for each in names if not os.path.lexists(each))


def require_free(paths: Iterable[Path], overwrite: bool) -> None:
    """Refuse to replace files, unless that is wanted and possible."""
    from paracond.data import InputError

    for path in paths:
        if os.path.lexists(path) and not overwrite:
            raise InputError(f"{path} is there already: add --overwrite, or name another place with --out")
        if path.is_dir():
            raise InputError(f"{path} cannot be written: it is a folder")
        if path.exists() and not os.access(path, os.W_OK):
            raise InputError(f"{path} cannot be written: it is read-only")
