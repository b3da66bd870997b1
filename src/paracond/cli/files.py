"""Files that the command line reads: arrays (.npy) and pictures (.png).

Nothing in a file is trusted. What it declares is compared with what the model wants before its values are read, so that
a small file cannot ask for much memory.
"""

from __future__ import annotations

import io
import math
import os
import stat
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from paracond.data import InputError

PNG = b"\x89PNG\r\n\x1a\n"
SPARE = 2**22  # bytes of a picture's file that are no pixels: texts, profiles of colours
HEADERS = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}


def array(what: str, path: Path, shape: tuple[int, ...]) -> Tensor:
    """The numbers of a .npy file, `[rows, *shape]`.

    what: the name for messages, WHAT=PATH.
    """
    where = f"{what}={path}"
    with _opened(where, path) as (file, size):
        found, columns_first, dtype = _header(where, file)
        if dtype.kind == "O":
            raise InputError(f"{where} holds Python objects, which are never read: save plain numbers")
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise InputError(f"{where} must hold numbers, found {dtype!s:.40}")
        _check_shape(where, found, shape)
        expected, there = math.prod(found) * dtype.itemsize, size - file.tell()
        if there != expected:
            raise InputError(f"{where} is damaged: shape {list(found)} needs {expected:,} bytes, found {there:,}")
        values = np.frombuffer(file.read(), dtype)
    values = values.reshape(found[::-1]).T if columns_first else values.reshape(found)
    kind = np.int64 if dtype.kind == "u" else dtype.newbyteorder("=")
    if dtype == np.uint64 and int(values.max()) >= 2**63:
        raise InputError(f"{where} has numbers of more than 63 bits, such as {values.max()}")
    return torch.from_numpy(values.astype(kind, order="C"))


def pixels(what: str, path: Path, size: tuple[int, ...], invert: bool = False) -> Tensor:
    """The pixels of a .png file, `[1 or 3, height, width]`, from 0 (black) to 1 (white).

    Pictures of all depths and with palettes are read; colours of 16 bits are rounded down to 8. Transparent pixels have
    no brightness, so they are refused.

    what: the name for messages, WHAT=PATH.
    size: height and width, which the picture must have.
    invert: read black as 1.
    """
    where = f"{what}={path}"
    with _opened(where, path) as (file, length):
        head = file.read(24)
        if head[:8] != PNG or head[12:16] != b"IHDR" or len(head) < 24:
            raise InputError(f"{where} cannot be read: it is not a PNG picture; save it as one")
        width, height = struct.unpack(">II", head[16:])
        if (height, width) != tuple(size):
            raise InputError(f"{where} has {[height, width]} pixels, the model wants {list(size)}")
        if length > (most := SPARE + 16 * height * width):
            raise InputError(f"{where} has {length:,} bytes, a picture of this size at most {most:,}")
        payload = head + file.read()
    values, white = _decoded(where, payload, (width, height))
    values = white - values if invert else values
    shown = torch.from_numpy(values.astype(np.float32) / np.float32(white))
    return shown.permute(2, 0, 1) if shown.ndim == 3 else shown.unsqueeze(0)


def _decoded(where: str, payload: bytes, size: tuple[int, int]) -> tuple[np.ndarray, int]:
    """The values of a picture as integers, and the value of white."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong is refused below, and the rest is no business of the user
            with Image.open(io.BytesIO(payload), formats=["PNG"]) as picture:
                if picture.size != size:  # a second header
                    raise ValueError("it declares two sizes")
                if getattr(picture, "n_frames", 1) > 1:
                    raise ValueError("it is animated")
                picture.load()
                return _values(picture)
    except Exception as error:  # damaged files raise many kinds
        why = str(error).splitlines() or [type(error).__name__]
        raise InputError(f"{where} cannot be read: {why[0]:.160}") from None


def _values(picture) -> tuple[np.ndarray, int]:
    clear = picture.info.get("transparency")
    if picture.mode.startswith("I"):
        values = np.asarray(picture).astype(np.int32)
        _refuse_transparent(clear is not None and bool((values == clear).any()))
        return values, 2**16 - 1
    if clear is not None or picture.mode in ("LA", "PA", "RGBA"):
        _refuse_transparent(np.asarray(picture.convert("RGBA"))[..., 3].min() < 255)
    grey = picture.mode in ("1", "L", "LA")
    return np.asarray(picture.convert("L" if grey else "RGB")).astype(np.int32), 255


def _refuse_transparent(transparent: bool) -> None:
    if transparent:
        raise ValueError("it has transparent pixels; save it without transparency")


def _check_shape(where: str, found: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if found[1:] != shape or not found:
        expected = ", ".join(["rows", *map(str, shape)])
        hint = "; a single row needs its axis of rows too" if found == shape else ""
        raise InputError(f"{where} must have shape [{expected}], found {list(found)!s:.80}{hint}")
    if not found[0]:
        raise InputError(f"{where} has no rows")


def _header(where: str, file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of a .npy file, whose values come next."""
    try:
        version, _ = np.lib.format.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"its version {version} is unknown")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, columns_first, dtype = HEADERS[version](file)
    except Exception as error:  # damaged files raise many kinds
        why = str(error).splitlines() or [type(error).__name__]
        raise InputError(f"{where} cannot be read: {why[0]:.160}") from None
    if any(not 0 <= n < 2**63 for n in found):
        raise InputError(f"{where} is damaged: it declares the shape {list(found)!s:.80}")
    return found, columns_first, dtype


@contextmanager
def _opened(where: str, path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file and its size. A pipe or a device would never end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise InputError(f"{where} cannot be read: {error.strerror}") from None
    except ValueError as error:  # a name with a zero byte
        raise InputError(f"{where} cannot be read: {error}") from None
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        os.close(descriptor)
        raise InputError(f"{where} cannot be read: it is not a file")
    with open(descriptor, "rb") as file:
        try:
            yield file, about.st_size
        except OSError as error:
            raise InputError(f"{where} cannot be read: {error.strerror}") from None
