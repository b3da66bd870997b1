"""One network from any groups to any group, where some of them are images of several sizes and others are flat.

It works at `LEVELS` resolutions. The finest is half of the images' own: images are read and returned as patches of
2 x 2 pixels, because full resolution would cost most of the arithmetic and add little.

    down    level 0 ──► level 1 ──► level 2 ──► level 3       every level: residual blocks
               ▲            ▲           ▲           │          an input of side / 2^k joins at its own resolution
             images        maps       maps     flat ┤          flat inputs join at the lowest, and on the way up
    up      level 0 ◄── level 1 ◄── level 2 ◄── level 3       features of the way down join those of the way up
               │            │           │           │
             image         map         map         flat        the output is taken where its own resolution is reached

An encoder is the case without a way up, a decoder the case without a way down, a U-Net has both. Label maps (a
`Categorical` of two axes) have one channel per label.

Three choices save time. A bias costs two passes over a large image, one forward and one backward, so only inputs have
one, and flat groups enter as one. Normalisation costs more than the convolution at the finest level, so it begins at
the second. Tensor cores need multiples of eight channels, so other numbers are filled up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paracond.data import InputError, true_or_false
from paracond.networks.arguments import counts, shape_of, shapes_of, sizes_of
from paracond.networks.base import Network
from paracond.networks.conv import jittered

LEVELS = 4
FLAT = 64  # channels between the lowest resolution and a flat output


def even(channels: int) -> int:
    """Round up to a multiple of eight."""
    return -(-channels // 8) * 8


class Block(nn.Module):
    """A residual block, h + conv(act(conv(act(norm(h))))); the normalisation is over channels, or left out."""

    def __init__(self, width: int, norm: bool):
        super().__init__()
        self.norm = norm
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.second(F.silu(self.first(F.silu(normalised(h) if self.norm else h))))


def filled(parts: list[Tensor]) -> Tensor:
    """Concatenate channels, and fill up with zeros to a multiple of eight."""
    channels = sum(part.shape[1] for part in parts)
    if channels % 8:
        parts = [*parts, torch.zeros_like(parts[0][:, :1]).expand(-1, even(channels) - channels, -1, -1)]
    return torch.cat(parts, 1)


def normalised(h: Tensor) -> Tensor:
    """Return h / rms(h over channels), at every place."""
    last = h.permute(0, 2, 3, 1)
    return F.rms_norm(last, last.shape[-1:], eps=1e-5).permute(0, 3, 1, 2)


def patches(image: Tensor) -> Tensor:
    """Reshape `[batch, height, width, channels]` to patches `[batch, height / 2, width / 2, 4 channels]`."""
    batch, height, width, channels = image.shape
    parts = image.reshape(batch, height // 2, 2, width // 2, 2, channels)
    return parts.permute(0, 1, 3, 2, 4, 5).reshape(batch, height // 2, width // 2, 4 * channels)


def whole(image: Tensor) -> Tensor:
    """The inverse of `patches`."""
    batch, height, width, channels = image.shape
    parts = image.reshape(batch, height, width, 2, 2, channels // 4)
    return parts.permute(0, 1, 3, 2, 4, 5).reshape(batch, 2 * height, 2 * width, channels // 4)


class Pyramid(Network):
    """Maps images of several sizes and flat groups to the parameters of one group (see the head of this module).

    images: the shapes of the images that it reads, by name: of side `side`, or a half, a quarter, ... of it.
    flat: the encoded sizes of flat groups, by name.
    output: the shape of the output: flat, an image (channels, height, width), means and log-scales
        (2, channels, height, width), or a label map (height, width, labels).
    side: the side of the largest images, a multiple of 16.
    labels: the groups that are label maps.
    target: the group whose network this is.
    width: channels at the finest resolution; they double at each further one.
    most: the largest number of channels.
    blocks: residual blocks at each resolution.
    hidden: the width of layers on flat groups.
    jitter: in training mode images are moved at random by up to this many pixels, for groups that should ignore it.
    mirrored: whether half of the rows are mirrored in training mode. Otherwise the output is then the mean over images
        and their mirror images.
    """

    def __init__(
        self,
        images: Mapping[str, Sequence[int]],
        flat: Mapping[str, int],
        output: Sequence[int],
        side: int,
        labels: Sequence[str] = (),
        target: str = "",
        width: int = 32,
        most: int = 128,
        blocks: int = 1,
        hidden: int = 128,
        jitter: int = 0,
        mirrored: bool = False,
    ):
        super().__init__()
        images, flat, output = shapes_of("images", images), sizes_of("flat", flat), shape_of("output", output)
        side, width, most = counts({"side": (side, 1), "width": (width, 1), "most": (most, 1)})
        hidden, blocks, jitter = counts({"hidden": (hidden, 1), "blocks": (blocks, 0), "jitter": (jitter, 0)})
        true_or_false("mirrored", mirrored)
        if side % 2**LEVELS:
            raise InputError(f"side: images must have sides that are a multiple of {2**LEVELS}, found {side}")
        if mirrored and len(output) >= 3:
            raise InputError(f"mirrored is for flat groups; {target!r} is an image, which would be mirrored too")
        if (jitter or mirrored) and any(tuple(v[-2:]) != (side, side) for v in images.values()):
            raise InputError(f"only images of {side} x {side} pixels can be moved; {target!r} reads others too")
        self.flat, self.labels, self.output, self.target = tuple(flat), frozenset(labels), tuple(output), target
        self.jitter, self.mirrored = jitter, mirrored
        self.levels = {k: self._level(k, shape) for k, shape in images.items()}  # -1: the images themselves
        self.reads = (*images, *flat)
        self.low = side // 2**LEVELS
        self.goal = LEVELS if len(output) < 3 else self._level(target, output[-3:])  # where the output is taken
        self.ways = [min(width * 2**level, most) for level in range(LEVELS)]  # channels at each resolution
        self._make_way_down({k: self._channels(k, shape) for k, shape in images.items()}, blocks)
        self._make_flat_side(sum(flat.values()), hidden)
        self._make_way_up(blocks, hidden)

    def _level(self, name: str, shape: Sequence[int]) -> int:
        """Return the resolution at which an image is read or returned."""
        side = self.config["side"]
        height, width = shape[:2] if name in self.labels else shape[-2:]
        fits = [k for k in range(-1, LEVELS) if side == height * 2 ** (k + 1) == width * 2 ** (k + 1)]
        if not fits:
            sides = ", ".join(str(side // 2 ** (k + 1)) for k in range(-1, LEVELS))
            raise InputError(f"{name!r} must be square, of side {sides}; found {height} x {width}")
        return fits[0]

    def _channels(self, name: str, shape: Sequence[int]) -> int:
        return shape[-1] if name in self.labels else math.prod(shape[:-2])

    # --- down ---------------------------------------------------------------------------------------------------

    def _make_way_down(self, channels: Mapping[str, int], blocks: int) -> None:
        """Make the layers from the finest input down: `entries` read inputs, `down` leads to the next resolution."""
        ways = self.ways
        self.finest = min([max(level, 0) for level in self.levels.values()], default=LEVELS)
        self.entries, self.down, self.blocks = nn.ModuleDict(), nn.ModuleDict(), nn.ModuleDict()
        for level in range(self.finest, LEVELS):
            key, here = str(level), [k for k in self.levels if max(self.levels[k], 0) == level]
            if here:
                read = even(sum(channels[k] * (4 if self.levels[k] < 0 else 1) for k in here))
                size = 3 if level == 0 else 1
                self.entries[key] = nn.Conv2d(read, ways[level], size, padding=size // 2)
            if level > self.finest:
                self.down[key] = nn.Conv2d(ways[level - 1], ways[level], 3, stride=2, padding=1, bias=False)
            self.blocks[key] = self._make_blocks(level, blocks)

    def _make_blocks(self, level: int, blocks: int) -> nn.Sequential:
        return nn.Sequential(*[Block(self.ways[level], norm=level > 0) for _ in range(blocks)])

    def _seen(self, others: Mapping[str, Tensor]) -> dict[int, Tensor]:
        """Return the inputs of each level, `[batch, channels, height, width]`; images are in patches."""
        found: dict[int, list[Tensor]] = {}
        images = self._moved({k: others[k] if k in self.labels else others[k].permute(0, 2, 3, 1) for k in self.levels})
        for k, image in images.items():
            seen = patches(image) if self.levels[k] < 0 else image
            found.setdefault(max(self.levels[k], 0), []).append(seen.permute(0, 3, 1, 2))
        return {level: filled(parts) for level, parts in found.items()}

    def _moved(self, images: dict[str, Tensor]) -> dict[str, Tensor]:
        """Jitter and mirror all images of a row in the same way."""
        if not self.training or not (self.jitter or self.mirrored):
            return images
        some = next(iter(images.values()))
        chance = torch.rand(3, len(some), device=some.device)
        moved = {k: jittered(v.permute(0, 3, 1, 2), chance, self.jitter, self.mirrored) for k, v in images.items()}
        return {k: v.permute(0, 2, 3, 1) for k, v in moved.items()}

    def _way_down(self, others: Mapping[str, Tensor]) -> dict[int, Tensor]:
        """Return the features at every resolution, from the finest input on."""
        seen, found = self._seen(others), {}
        h: Tensor | None = None
        for level in range(self.finest, LEVELS):
            key = str(level)
            if h is not None:
                h = self.down[key](h)
            if key in self.entries:
                entered = self.entries[key](seen[level])
                h = entered if h is None else h + entered
            h = self.blocks[key](h)
            found[level] = h
        return found

    # --- the flat side ------------------------------------------------------------------------------------------

    def _make_flat_side(self, size: int, hidden: int) -> None:
        bottom = self.ways[-1]
        if self.goal == LEVELS:
            features = FLAT * self.low**2 if self.levels else 0
            if self.levels:
                self.head = nn.Conv2d(bottom, FLAT, 1)
            sizes = [features + size, 4 * hidden, 4 * hidden, math.prod(self.output)]
            layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.SiLU())]
            self.mlp = nn.Sequential(*layers[:-1])
        elif size:
            self.flat_features = nn.Sequential(
                nn.Linear(size, 4 * hidden), nn.SiLU(), nn.Linear(4 * hidden, hidden), nn.SiLU()
            )
            self.bottom = nn.Linear(hidden, bottom * self.low**2)

    def _flat_output(self, found: Mapping[int, Tensor], flat: Sequence[Tensor]) -> Tensor:
        features = [self.head(F.silu(normalised(found[LEVELS - 1]))).flatten(1)] if self.levels else []
        return self.mlp(torch.cat([*features, *flat], 1)).view(-1, *self.output)

    # --- up -----------------------------------------------------------------------------------------------------

    def _make_way_up(self, blocks: int, hidden: int) -> None:
        """Make the layers up to the resolution of the output; `joins` add the features of the way down."""
        self.up, self.joins, self.biases, self.rise = nn.ModuleDict(), nn.ModuleDict(), nn.ModuleDict(), nn.ModuleDict()
        if self.goal == LEVELS:
            return
        last = max(self.goal, 0)
        for level in range(LEVELS - 1, last - 1, -1):
            key, here = str(level), self.ways[level]
            if level < LEVELS - 1:
                self.rise[key] = nn.ConvTranspose2d(self.ways[level + 1], here, 2, stride=2, bias=False)
                if level >= self.finest:
                    self.joins[key] = nn.Conv2d(2 * here, here, 1, bias=False)
                if self.flat:
                    self.biases[key] = nn.Linear(hidden, here)
            self.up[key] = self._make_blocks(level, blocks)
        channels = self._channels(self.target, self.output)
        if self.goal < 0:
            self.last = nn.Conv2d(self.ways[last], even(4 * channels), 3, padding=1)
        else:
            self.last = nn.Conv2d(self.ways[last], even(channels), 1)

    def _way_up(self, found: Mapping[int, Tensor], flat: Sequence[Tensor]) -> Tensor:
        features = self.flat_features(torch.cat(list(flat), 1)) if flat else None
        h = found.get(LEVELS - 1)
        if features is not None:
            bottom = self.bottom(features)
            bottom = bottom.view(len(bottom), -1, self.low, self.low)
            h = bottom if h is None else h + bottom
        assert h is not None  # it reads something
        for key, blocks in self.up.items():
            if key in self.rise:
                h = self.rise[key](h)
                if key in self.joins:
                    h = self.joins[key](torch.cat([h, found[int(key)]], 1))
                if features is not None:
                    h = h + self.biases[key](features)[:, :, None, None]
            h = blocks(h)
        return self.last(F.silu(h if self.goal <= 0 else normalised(h)))

    @property
    def heads(self) -> list[Any]:
        """The last layer, alone (see `ImageEncoder.heads`)."""
        return [self.mlp[-1] if self.goal == LEVELS else self.last]

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        if self.training or not self.mirrored:
            return self._evaluate(others)
        mirror = {k: v.flip(-2 if k in self.labels else -1) if k in self.levels else v for k, v in others.items()}
        return (self._evaluate(others) + self._evaluate(mirror)) / 2

    def _evaluate(self, others: Mapping[str, Tensor]) -> Tensor:
        found = self._way_down(others) if self.levels else {}
        flat = [others[k].flatten(1) for k in self.flat]
        if self.goal == LEVELS:
            return self._flat_output(found, flat)
        image = self._way_up(found, flat).permute(0, 2, 3, 1)
        channels = self._channels(self.target, self.output)
        image = whole(image[..., : 4 * channels]) if self.goal < 0 else image[..., :channels]
        return image if self.target in self.labels else image.permute(0, 3, 1, 2).reshape(-1, *self.output)
