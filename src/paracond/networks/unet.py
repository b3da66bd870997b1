"""Networks between several images of one size (pictures, segmentations) and flat groups (appendix C).

`scene_network` chooses the network of a group. `kind="plain"` is the paper's, in this file:

- `SceneEncoder`, for flat outputs: nine convolutions on all images, joined by their channels; every other one halves
  the resolution, to 1 x 1. Its features and the flat inputs, concatenated, go through an MLP;
- `UNet`, for images: the same way down; the flat inputs join at the lowest resolution; transposed convolutions lead up
  again, where the features of each resolution on the way down join those on the way up.

`kind="residual"` is a `Pyramid`, which also takes groups of lower resolution. Label maps (a `Categorical` of two axes)
have one channel per label.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paracond.data import InputError, one_of
from paracond.families import Family
from paracond.networks.arguments import counts, shape_of, shapes_of, sizes_of
from paracond.networks.base import Network, read_groups
from paracond.networks.pyramid import Pyramid

HALVINGS = 4
KINDS = ("plain", "residual")


def scene_network(
    variables: Mapping[str, Family], name: str, reads: Sequence[str] | None = None, kind: str = "residual", **options
) -> Network:
    """Make the network of one group in a model of images and flat groups.

    variables: the families of all groups, by name.
    name: the group.
    reads: the groups that the network reads (default: all others).
    kind: "plain" or "residual" (see the head of this module).
    options: those of `UNet`, `SceneEncoder` or `Pyramid`: width, hidden and others.
    """
    one_of("kind", kind, KINDS)
    encoded = {k: variables[k].encoding_shape for k in read_groups(variables, name, reads)}
    images = {k: list(shape) for k, shape in encoded.items() if len(shape) == 3}
    flat = {k: math.prod(shape) for k, shape in encoded.items() if len(shape) != 3}
    labels = [k for k in [*images, name] if len(variables[k].event_shape) == 2]  # channels last, one per label
    options |= {"labels": labels, "target": name}
    if kind == "residual":
        sizes = [family.event_shape[-2:] for family in variables.values() if len(family.encoding_shape) == 3]
        if not sizes:
            raise InputError(
                f"variables: a residual network needs an image (channels, height, width), found {dict(variables)}; "
                "use networks.mlp where there is none"
            )
        return Pyramid(images, flat, variables[name].output_shape, max(max(size) for size in sizes), **options)
    make = UNet if len(variables[name].encoding_shape) == 3 else SceneEncoder
    return make(images, flat, variables[name].output_shape, **options)


class _Scene(Network):
    """The common part of both networks: inputs, and the way down."""

    def __init__(
        self,
        images: Mapping[str, Sequence[int]],
        flat: Mapping[str, int],
        output: Sequence[int],
        labels: Sequence[str] = (),
        target: str = "",
        width: int = 32,
        hidden: int = 512,
    ):
        super().__init__()
        images, flat = shapes_of("images", images), sizes_of("flat", flat)
        (width,) = counts({"width": (width, 1)})
        self.images, self.flat, self.labels = tuple(images), tuple(flat), frozenset(labels)
        self.output, self.target = tuple(output), target
        self.reads = (*images, *flat)
        channels = sum(_channels(size, k in self.labels) for k, size in images.items())
        self.low = _side(images) // 2**HALVINGS
        self.down = nn.ModuleList(_way_down(channels, width, self.low))

    def _seen(self, others: Mapping[str, Tensor]) -> Tensor:
        """Concatenate all images, `[batch, channels, height, width]`."""
        parts = [others[k].permute(0, 3, 1, 2) if k in self.labels else others[k] for k in self.images]
        return torch.cat(parts, 1)

    def _flat_inputs(self, others: Mapping[str, Tensor]) -> list[Tensor]:
        return [others[k].flatten(1) for k in self.flat]

    def _features(self, others: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the features of every resolution, the finest first."""
        h, found = self._seen(others), []
        for level in self.down:
            h = level(h)
            found.append(h)
        return found


class SceneEncoder(_Scene):
    """Maps images and flat groups to the parameters of a flat group.

    images: the shapes of the images that it reads, by name.
    flat: the encoded sizes of flat groups, by name.
    output: the shape of the output, without the batch.
    width: channels at the highest resolution.
    hidden: the width of the MLP.
    options: labels, the groups that are label maps; target, the group whose network this is.
    """

    def __init__(self, images, flat, output, width: int = 32, hidden: int = 512, **options):
        output = shape_of("output", output)
        width, hidden = counts({"width": (width, 1), "hidden": (hidden, 1)})
        super().__init__(images, flat, output, width=width, hidden=hidden, **options)
        self.mlp = nn.Sequential(
            nn.Linear(widths(width)[-1] + sum(flat.values()), hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, math.prod(output)),
        )

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        features = self._features(others)[-1].flatten(1)
        return self.mlp(torch.cat([features, *self._flat_inputs(others)], 1)).view(-1, *self.output)


class UNet(_Scene):
    """Maps images and flat groups to the parameters of an image.

    images: the shapes of the images that it reads, by name.
    flat: the encoded sizes of flat groups, by name.
    output: the shape of the image; (2, channels, height, width) is means and log-scales, (height, width, labels) a
        label map.
    width: channels at the highest resolution.
    hidden: the width of the layer on flat groups.
    options: labels, the groups that are label maps; target, the group whose network this is.
    """

    def __init__(self, images, flat, output, width: int = 32, hidden: int = 512, **options):
        output = shape_of("output", output)
        if len(output) < 2:
            raise InputError(f"output must be the shape of an image, found {list(output)}")
        width, hidden = counts({"width": (width, 1), "hidden": (hidden, 1)})
        super().__init__(images, flat, output, width=width, hidden=hidden, **options)
        if flat:
            self.flat_features = nn.Linear(sum(flat.values()), hidden)
            self.join = nn.Linear(hidden, widths(width)[-1])
        self.up = nn.ModuleList(_way_up(_channels(output, self.target in self.labels), width, self.low))

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        *finer, h = self._features(others)
        if self.flat:
            flat = self.join(F.relu(self.flat_features(torch.cat(self._flat_inputs(others), 1))))
            h = h + flat[:, :, None, None]
        for level, skip in zip(self.up[:-1], reversed(finer), strict=True):
            h = torch.cat([level(h), skip], 1)
        image = self.up[-1](h)
        return image.permute(0, 2, 3, 1) if self.target in self.labels else image.view(-1, *self.output)


def widths(width: int) -> list[int]:
    """Return the channels at each resolution."""
    return [width, 2 * width, 4 * width, 8 * width, 8 * width]


def _channels(size: Sequence[int], labels: bool) -> int:
    return size[-1] if labels else math.prod(size[:-2])


def _side(images: Mapping[str, Sequence[int]]) -> int:
    if not images:
        raise InputError("images: a plain network must read at least one, found none; use networks.mlp instead")
    sides = {tuple(sorted(size)[-2:]) for size in images.values()}
    side = next(iter(sides))[0]
    if len(sides) > 1 or len(set(next(iter(sides)))) > 1 or side % 2**HALVINGS:
        raise InputError(f"images must be square, of one size, a multiple of {2**HALVINGS}; found {dict(images)}")
    return side


def _way_down(channels: int, width: int, low: int) -> list[nn.Module]:
    """Make nine convolutions: two at each of four resolutions, of which the second halves it, and one to 1 x 1."""
    levels: list[nn.Module] = []
    *ways, last = widths(width)
    for fan_in, fan_out in itertools.pairwise([channels, *ways]):
        first, second = nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.Conv2d(fan_out, fan_out, 4, stride=2, padding=1)
        levels.append(nn.Sequential(first, nn.ReLU(), second, nn.ReLU()))
    return [*levels, nn.Sequential(nn.Conv2d(ways[-1], last, low), nn.ReLU())]


def _way_up(channels: int, width: int, low: int) -> list[nn.Module]:
    """Make the reverse of `_way_down`, with room for the features that join at each resolution."""
    *ways, last = widths(width)
    levels: list[nn.Module] = [nn.Sequential(nn.ConvTranspose2d(last, ways[-1], low), nn.ReLU())]
    for fan_in, fan_out in itertools.pairwise([*reversed(ways), channels]):
        first, second = nn.ConvTranspose2d(2 * fan_in, fan_in, 3, padding=1), nn.ReLU()
        levels.append(nn.Sequential(first, second, nn.ConvTranspose2d(fan_in, fan_out, 4, stride=2, padding=1)))
    return levels
