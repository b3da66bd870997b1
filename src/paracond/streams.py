"""Random numbers, from one generator for a batch or from a stream for every row.

A `Generator` is a `torch.Generator`, which all rows of a batch share, or `RowStreams`, in which every row has a stream
of its own. Draws of a row then do not depend on its neighbours, its place or the size of the batch. A stream has no
state but a counter (SplitMix64: Steele, Lea and Flood 2014): the j-th number of a draw in row r is

    bits_rj = mix(base_r + j g),     base_r = mix(mix(key_r + t_r g) + d g),     g odd, arithmetic modulo 2^64,

where t_r is the time of the row, d says which draw at that time it is, and mix is a bijection of 64 bits that sends
neighbours far apart. Only integers are computed until the last step, so the numbers are the same on every device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from paracond.data import InputError, at_least, shown

GOLDEN = 0x9E3779B97F4A7C15
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
USES = 2**32  # draws that one place may make at one time


class RowStreams:
    """A stream of random numbers for every row.

    keys: int64 `[rows]`, which stream each row draws from.
    time: int64 `[rows]`, the time in each row. Keys and times may be changed in place, also in a recorded program.
    place: which of several independent uses at the same time this is.
    """

    def __init__(self, keys: Tensor, time: Tensor, place: int = 0):
        self.keys, self.time, self.place = keys, time, place
        self._uses = 0

    @property
    def device(self) -> torch.device:
        return self.keys.device

    def at(self, place: int, later: int = 0) -> RowStreams:
        """The numbers of another place, at the same time or later."""
        return RowStreams(self.keys, self.time + later if later else self.time, place)

    def bits(self, shape: Sequence[int]) -> Tensor:
        """The next 64 random bits of every element, int64 `[rows, ...]`."""
        if shape[0] != len(self.keys):
            raise InputError(
                f"a draw has shape {list(shape)}, expected {len(self.keys)} rows: networks, rules and families return "
                "one row for every row that they read"
            )
        draw = self.place * USES + self._uses
        self._uses += 1
        base = _mix(_mix(self.keys + self.time * _signed(GOLDEN)) + _signed(draw * GOLDEN))
        steps = torch.arange(math.prod(shape[1:]), device=self.device) * _signed(GOLDEN)
        return _mix(base.unsqueeze(1) + steps).view(*shape)


Generator = torch.Generator | RowStreams


def at(generator: Generator, place: int) -> Generator:
    """The generator for one of several independent uses. A `torch.Generator` serves them all."""
    return generator.at(place) if isinstance(generator, RowStreams) else generator


def uniform(like: Tensor, generator: Generator) -> Tensor:
    """Uniform numbers in [0, 1), of the shape and type of `like`."""
    if isinstance(generator, torch.Generator):
        return torch.empty_like(like).uniform_(generator=generator)
    return _uniform(like, generator).to(like.dtype).clamp_(max=1 - torch.finfo(like.dtype).eps)


def exponential(like: Tensor, generator: Generator) -> Tensor:
    """Exponential numbers with mean one, of the shape and type of `like`."""
    if isinstance(generator, torch.Generator):
        return torch.empty_like(like).exponential_(generator=generator)
    return _uniform(like, generator).neg_().log1p_().neg_().to(like.dtype)


def normal(like: Tensor, generator: Generator) -> Tensor:
    """Standard normal numbers, of the shape and type of `like` (Box and Muller)."""
    if isinstance(generator, torch.Generator):
        return torch.empty_like(like).normal_(generator=generator)
    bits, dtype = _of_rows(generator).bits(like.shape), _computed(like)
    radius = (_upper(bits, 32).to(dtype) + 0.5) * 2.0**-32
    angle = (bits & 0xFFFFFFFF).to(dtype) * (2 * math.pi * 2.0**-32)
    return (radius.clamp_(max=1).log_().mul_(-2).sqrt_() * angle.cos_()).to(like.dtype)


def integers(high: int, shape: Sequence[int], generator: Generator) -> Tensor:
    """Whole numbers from 0 to high - 1, int64."""
    at_least({"high": (high, 1)}, most=2**53)
    if isinstance(generator, torch.Generator):
        return torch.randint(high, tuple(shape), generator=generator, device=generator.device)
    return (uniform(torch.empty(shape, dtype=torch.float64, device=generator.device), generator) * high).long()


def _of_rows(generator: Generator) -> RowStreams:
    """The streams of the rows; refuses what is no generator."""
    if not isinstance(generator, RowStreams):
        raise InputError(f"generator must be a torch.Generator or RowStreams, found {shown(generator)}")
    return generator


def _uniform(like: Tensor, generator: Generator) -> Tensor:
    # Not the upper bits of a fixed number: near zero all digits count, so that rare events have their probability.
    dtype = _computed(like)
    return (_upper(_of_rows(generator).bits(like.shape), 1).to(dtype) * 2.0**-63).clamp_(max=1 - torch.finfo(dtype).eps)


def _computed(like: Tensor) -> torch.dtype:
    """The type to compute in: numbers of 16 bits would be coarse, and overflow."""
    return torch.promote_types(like.dtype, torch.float32)


@contextmanager
def rows_draw() -> Iterator[None]:
    """Explain the error that arises where code draws with `RowStreams` as if it were a `torch.Generator`."""
    try:
        yield
    except TypeError as error:
        if RowStreams.__name__ not in str(error):
            raise
        raise InputError(
            "every row has a random stream of its own here, which torch functions cannot read: in families, rules and "
            f"initializers of your own draw with uniform, normal, exponential or integers of paracond.streams ({error})"
        ) from error


# --- keys -----------------------------------------------------------------------------------------------------------


def row_digests(content: Mapping[str, Tensor], seed: int) -> np.ndarray:
    """128 bits for every row, uint64 `[rows, 2]`, from what the row contains and the seed. Equal rows have the same."""
    parts = [_as_bytes(value) for value in content.values()]
    salt = hashlib.blake2b(repr((int(seed), list(content))).encode(), digest_size=16).digest()
    digests = [
        hashlib.blake2b(b"".join(part[row].tobytes() for part in parts), digest_size=16, key=salt).digest()
        for row in range(len(parts[0]))
    ]
    return np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2)


def numbered(keys: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Another key for each key and number, uint64."""
    with np.errstate(over="ignore"):
        return _mixed(_mixed(keys) + (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))


def occurrences(keys: np.ndarray) -> np.ndarray:
    """How many earlier rows have the same key, `[rows]`."""
    order = np.argsort(keys, kind="stable")
    first = np.ones(len(keys), dtype=bool)
    first[1:] = keys[order][1:] != keys[order][:-1]
    places = np.arange(len(keys))
    counts = np.empty(len(keys), dtype=np.int64)
    counts[order] = places - np.maximum.accumulate(np.where(first, places, 0))
    return counts


def geometric(keys: np.ndarray, rate: float) -> np.ndarray:
    """A draw of each key with P(k) = rate (1 - rate)^k, int64."""
    if rate >= 1:
        return np.zeros(len(keys), dtype=np.int64)
    with np.errstate(over="ignore"):
        bits = _mixed(keys ^ np.uint64(GOLDEN))
    u = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.floor(np.log(u) / math.log1p(-rate)).astype(np.int64)


def as_keys(keys: np.ndarray) -> Tensor:
    """Keys as a tensor, int64."""
    return torch.from_numpy(keys.view(np.int64).copy())


def _as_bytes(value: Tensor) -> np.ndarray:
    flat = value.detach().cpu().reshape(len(value), -1)
    if flat.dtype == torch.bool:
        return np.packbits(flat.numpy(), axis=1)
    if flat.dtype == torch.bfloat16:  # numpy has no such type
        flat = flat.float()
    return np.ascontiguousarray((flat + 0).numpy())  # minus zero is zero


def _signed(number: int) -> int:
    """The int64 with the same 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def _upper(bits: Tensor, shift: int) -> Tensor:
    """A shift to the right that brings in zeros; int64 has none."""
    return (bits >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def _mix(bits: Tensor) -> Tensor:
    for shift, factor in ROUNDS:
        bits = (bits ^ _upper(bits, shift)).mul_(_signed(factor))
    return bits ^ _upper(bits, LAST_SHIFT)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """`_mix` of uint64 arrays."""
    for shift, factor in ROUNDS:
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(LAST_SHIFT))
