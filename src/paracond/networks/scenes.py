"""Networks between several images of one size (pictures, segmentations) and flat groups (appendix C).

- `SceneEncoder`, for flat outputs: a convolutional network of falling resolution on all images, joined by their
  channels; its features and the flat inputs, concatenated, go through an MLP;
- `UNet`, for images: the same way down; the flat inputs join at the lowest resolution; and up again, with the features
  of each resolution on the way down joined to those on the way up.

`kind="plain"` is the paper's: nine convolutions, every other one halving the resolution, to 1 x 1, with ReLU between
them. `kind="residual"` works on patches of 2 x 2 pixels, with `blocks` residual blocks at each of four resolutions.
Label maps (a `Categorical` of two axes) are read and put out as one channel per label.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paracond.families import Family
from paracond.networks.base import Network
from paracond.networks.images import ChannelNorm, Residual
from paracond.state import InputError

LEVELS = 4  # resolutions
KINDS = ("plain", "residual")


def scene_network(variables: Mapping[str, Family], name: str, reads: Sequence[str] | None = None, **options) -> Network:
    """The network of group `name` in a model of images of one size and flat groups; options as in the classes."""
    if name not in variables:
        raise InputError(f"{name!r} must be among the variables {', '.join(variables)}")
    reads = [k for k in variables if k != name] if reads is None else list(reads)
    encoded = {k: variables[k].encoding_shape for k in reads}
    images = {k: list(shape) for k, shape in encoded.items() if len(shape) == 3}
    flat = {k: math.prod(shape) for k, shape in encoded.items() if len(shape) != 3}
    labels = [k for k in [*images, name] if len(variables[k].event_shape) == 2]  # channels last, one per label
    make = UNet if len(variables[name].encoding_shape) == 3 else SceneEncoder
    return make(images, flat, variables[name].output_shape, labels=labels, target=name, **options)


class _Scene(Network):
    """What both kinds of network have in common: reading, and the way down."""

    def __init__(
        self,
        images: Mapping[str, Sequence[int]],
        flat: Mapping[str, int],
        output: Sequence[int],
        labels: Sequence[str] = (),
        target: str = "",
        width: int = 32,
        kind: str = "residual",
        blocks: int = 1,
        hidden: int = 512,
    ):
        super().__init__(
            images={k: list(v) for k, v in images.items()},
            flat=dict(flat),
            output=list(output),
            labels=list(labels),
            target=target,
            width=width,
            kind=kind,
            blocks=blocks,
            hidden=hidden,
        )
        if kind not in KINDS:
            raise InputError(f"kind must be one of {', '.join(KINDS)}, found {kind!r}")
        self.images, self.flat, self.labels = tuple(images), tuple(flat), frozenset(labels)
        self.output, self.target, self.kind = tuple(output), target, kind
        self.reads = (*images, *flat)

    def _seen(self, others: Mapping[str, Tensor]) -> Tensor:
        """All images, `[batch, channels, height, width]`."""
        parts = [others[k].permute(0, 3, 1, 2) if k in self.labels else others[k] for k in self.images]
        return torch.cat(parts, 1)

    def _told(self, others: Mapping[str, Tensor]) -> list[Tensor]:
        return [others[k].flatten(1) for k in self.flat]

    def _make_way_down(self, sizes: Mapping[str, Sequence[int]], width: int, blocks: int) -> int:
        """`self.down`: one module per resolution; returns the channels at the last."""
        channels = sum(_channels(size, k in self.labels) for k, size in sizes.items())
        make = _plain_down if self.kind == "plain" else _residual_down
        self.down = nn.ModuleList(make(channels, width, blocks, _side(sizes) // 2**LEVELS))
        return widths(width, self.kind)[-1]

    def _way_down(self, others: Mapping[str, Tensor]) -> list[Tensor]:
        """The features at every resolution, the finest first."""
        h, found = self._seen(others), []
        for level in self.down:
            h = level(h)
            found.append(h)
        return found


class SceneEncoder(_Scene):
    """`[batch, *output]`, flat, from images and flat groups."""

    def __init__(self, images, flat, output, width: int = 32, blocks: int = 1, hidden: int = 512, **options):
        super().__init__(images, flat, output, width=width, blocks=blocks, hidden=hidden, **options)
        side = _side(images)
        features = self._make_way_down(images, width, blocks)
        if self.kind == "plain":
            self.head: nn.Module = nn.Flatten()
        else:
            self.head = nn.Sequential(ChannelNorm(features), nn.SiLU(), nn.Conv2d(features, 64, 1), nn.Flatten())
            features = 64 * (side // 2**LEVELS) ** 2
        activation = nn.ReLU if self.kind == "plain" else nn.SiLU
        self.mlp = nn.Sequential(
            nn.Linear(features + sum(flat.values()), hidden),
            activation(),
            nn.Linear(hidden, hidden),
            activation(),
            nn.Linear(hidden, math.prod(output)),
        )

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        features = self.head(self._way_down(others)[-1])
        return self.mlp(torch.cat([features, *self._told(others)], 1)).view(-1, *self.output)


class UNet(_Scene):
    """An image `[batch, *output]` from images and flat groups. Output (2, channels, height, width) is means and
    log-scales; (height, width, labels) a label map."""

    def __init__(self, images, flat, output, width: int = 32, blocks: int = 1, hidden: int = 512, **options):
        super().__init__(images, flat, output, width=width, blocks=blocks, hidden=hidden, **options)
        side = _side(images)
        bottom = self._make_way_down(images, width, blocks)
        self.low = 1 if self.kind == "plain" else side // 2**LEVELS
        self.told: nn.Module | None = None  # of images alone there is nothing to join
        if flat:
            self.told = nn.Linear(sum(flat.values()), hidden)
            self.join = nn.Linear(hidden, bottom * self.low**2)
        self.channels = _channels(output, self.target in self.labels)
        make = _plain_up if self.kind == "plain" else _residual_up
        self.up = nn.ModuleList(make(self.channels, width, blocks, side // 2**LEVELS))

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        *finer, h = self._way_down(others)
        if self.told is not None:
            told = self.join(F.silu(self.told(torch.cat(self._told(others), 1))))
            h = h + told.view(len(h), -1, self.low, self.low)
        for level, skip in zip(self.up[:-1], reversed(finer), strict=True):
            h = torch.cat([level(h), skip], 1)
        image = self.up[-1](h)
        if self.target in self.labels:
            return image.permute(0, 2, 3, 1)
        return image.view(-1, *self.output)


def widths(width: int, kind: str) -> list[int]:
    """Channels at each resolution."""
    if kind == "plain":
        return [width, 2 * width, 4 * width, 8 * width, 8 * width]
    return [width, 2 * width, 4 * width, 4 * width]


def _channels(size: Sequence[int], labels: bool) -> int:
    return size[-1] if labels else math.prod(size[:-2])


def _side(images: Mapping[str, Sequence[int]]) -> int:
    if not images:
        raise InputError("a network of this kind reads at least one image")
    sides = {tuple(sorted(size)[-2:]) for size in images.values()}
    side = next(iter(sides))[0]
    if len(sides) > 1 or len(set(next(iter(sides)))) > 1 or side % 2**LEVELS:
        raise InputError(f"images must be square, of one size, a multiple of {2**LEVELS}; found {dict(images)}")
    return side


# --- plain ------------------------------------------------------------------------------------------------------


def _plain_down(channels: int, width: int, blocks: int, low: int) -> list[nn.Module]:
    """Nine convolutions: two at each of four resolutions, the second halving it, and one to 1 x 1."""
    levels: list[nn.Module] = []
    *ways, last = widths(width, "plain")
    for fan_in, fan_out in itertools.pairwise([channels, *ways]):
        first, second = nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.Conv2d(fan_out, fan_out, 4, stride=2, padding=1)
        levels.append(nn.Sequential(first, nn.ReLU(), second, nn.ReLU()))
    return [*levels, nn.Sequential(nn.Conv2d(ways[-1], last, low), nn.ReLU())]


def _plain_up(channels: int, width: int, blocks: int, low: int) -> list[nn.Module]:
    """The same, the other way; below the last, what comes in is joined to what came down."""
    *ways, last = widths(width, "plain")
    levels: list[nn.Module] = [nn.Sequential(nn.ConvTranspose2d(last, ways[-1], low), nn.ReLU())]
    for fan_in, fan_out in itertools.pairwise([*reversed(ways), channels]):
        first, second = nn.ConvTranspose2d(2 * fan_in, fan_in, 3, padding=1), nn.ReLU()
        levels.append(nn.Sequential(first, second, nn.ConvTranspose2d(fan_in, fan_out, 4, stride=2, padding=1)))
    return levels


# --- residual ---------------------------------------------------------------------------------------------------


def _residual_down(channels: int, width: int, blocks: int, low: int) -> list[nn.Module]:
    levels: list[nn.Module] = []
    fan_in = 4 * channels
    for level, fan_out in enumerate(widths(width, "residual")):
        entry: list[nn.Module] = (
            [nn.PixelUnshuffle(2), nn.Conv2d(fan_in, fan_out, 3, padding=1)]
            if level == 0
            else [nn.Conv2d(fan_in, fan_out, 3, stride=2, padding=1, bias=False)]
        )
        levels.append(nn.Sequential(*entry, *[Residual(fan_out) for _ in range(blocks)]))
        fan_in = fan_out
    return levels


def _residual_up(channels: int, width: int, blocks: int, low: int) -> list[nn.Module]:
    """Where two ways have joined, a convolution over channels alone brings them back to the width of one."""
    levels: list[nn.Module] = []
    joined: list[nn.Module] = []
    for here, finer in itertools.pairwise(reversed(widths(width, "residual"))):
        level = [*joined, *[Residual(here) for _ in range(blocks)], nn.ConvTranspose2d(here, finer, 2, stride=2)]
        levels.append(nn.Sequential(*level))
        joined = [nn.Conv2d(2 * finer, finer, 1)]
    end = [*joined, *[Residual(width) for _ in range(blocks)], ChannelNorm(width), nn.SiLU()]
    levels.append(nn.Sequential(*end, nn.Conv2d(width, 4 * channels, 3, padding=1), nn.PixelShuffle(2)))
    return levels
