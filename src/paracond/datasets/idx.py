"""The IDX format, in which MNIST is published: a header that gives type and shape, then the values.

    0 0 t n  s_1 ... s_n  v_1 ... v_m        m = s_1 s_2 ... s_n

t is the code of the type (8: unsigned byte), n the number of axes; sizes are 32-bit integers, and sizes and values are
big-endian, the last axis running fastest. So a whole file has exactly 4 + 4 n + m width(t) bytes, gzipped or not.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paracond.data import InputError

DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_AXES = 64  # of tensors


def unpack(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file, unpacked if its first bytes are those of gzip."""
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}")
    content = Path(path).read_bytes()
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is damaged: it cannot be unpacked ({error})") from None


def parse(content: bytes, name: str | os.PathLike[str]) -> Tensor:
    """Convert the bytes of an IDX file to a tensor. `name` is for messages."""
    dtype, shape, start = _header(content, name)
    expected = start + dtype.itemsize * math.prod(shape)
    if len(content) != expected:
        raise InputError(
            f"{name} is damaged: shape {list(shape)} of type {dtype.name} needs {expected} bytes, found {len(content)}"
        )
    values = np.ndarray(shape, dtype, buffer=content, offset=start)
    return torch.from_numpy(values.astype(dtype.newbyteorder("=")))  # a copy: bytes are read-only


def _header(content: bytes, name: str | os.PathLike[str]) -> tuple[np.dtype, tuple[int, ...], int]:
    """Read type, shape, and the offset of the values."""
    if len(content) < 4 or content[:2] != b"\0\0":
        found = content[:4].hex(" ") or "nothing"
        raise InputError(f"{name} is not an IDX file: it must start with the bytes 00 00, type and axes, found {found}")
    code, axes = content[2], content[3]
    if code not in DTYPES:
        listed = ", ".join(f"{known:02x}" for known in DTYPES)
        raise InputError(f"{name} is not an IDX file: the code of its type must be one of {listed}, found {code:02x}")
    if not 1 <= axes <= MAX_AXES:
        raise InputError(f"{name} is not an IDX file: it must have 1 to {MAX_AXES} axes, found {axes}")
    start = 4 + 4 * axes
    if len(content) < start:
        raise InputError(f"{name} is damaged: its header of {axes} axes needs {start} bytes, found {len(content)}")
    sizes = np.frombuffer(content, ">u4", count=axes, offset=4)
    return np.dtype(DTYPES[code]), tuple(map(int, sizes)), start
