"""Networks between an image and flat groups of variables (eq:mnist).

- `ImageEncoder`: logits of a flat group, f(x) + sum_k g_k W_k: a convolutional network of falling resolution on the
  image, plus an additive linear term for each other group g_k that it reads;
- `ImageDecoder`: an image from the concatenated flat groups, through transposed convolutions.

`kind="plain"` is the paper's: a few strided convolutions with ReLU between them. `kind="residual"` works on patches of
2 x 2 pixels, at half and at a quarter of the resolution, with `blocks` residual blocks at each of them. (Full
resolution would cost most of the arithmetic and add little.) Sizes are halved and rounded up, so images may have any
size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paracond.data import InputError, one_of, shown, true_or_false
from paracond.families import Family
from paracond.networks.arguments import counts, shape_of, sizes_of
from paracond.networks.base import Network, read_groups

KINDS = ("plain", "residual")
FLAT = 64  # channels between the smallest image and the flat part of a network, which has most parameters


class ImageEncoder(Network):
    """Maps an image and flat groups to the parameters of another group.

    The output may be an image of shape (channels, height / 4, width / 4); its features then stay in their places.

    image: the group that is the image.
    shape: its shape, (channels, height, width).
    inputs: the encoded sizes of flat groups, by name.
    output: the shape of the output, without the batch.
    width: channels at the highest resolution.
    kind: "plain" or "residual" (see the head of this module).
    blocks: residual blocks at each resolution.
    jitter: in training mode the image is moved at random by up to this many pixels each way. This conditional learns to
        ignore shifts; the data and the other conditionals stay as they are.
    mirrored: whether half of the rows are mirrored in training mode.
    """

    def __init__(
        self,
        image: str,
        shape: Sequence[int],
        inputs: Mapping[str, int],
        output: Sequence[int],
        width: int = 32,
        kind: str = "plain",
        blocks: int = 1,
        jitter: int = 0,
        mirrored: bool = False,
    ):
        super().__init__()
        one_of("kind", kind, KINDS)
        if not isinstance(image, str):
            raise InputError(f"image must be the name of a group, found {shown(image)}")
        shape, output, inputs = shape_of("shape", shape, 3), shape_of("output", output), sizes_of("inputs", inputs)
        width, blocks, jitter = counts({"width": (width, 1), "blocks": (blocks, 0), "jitter": (jitter, 0)})
        true_or_false("mirrored", mirrored)
        make = _plain_encoder if kind == "plain" else _residual_encoder
        self.f = nn.Sequential(*make(shape, output, width, blocks))
        self.linear = nn.ModuleList(nn.Linear(n, math.prod(output), bias=False) for n in inputs.values())
        self.image, self.names, self.output = image, tuple(inputs), tuple(output)
        self.reads = (image, *inputs)
        self.jitter, self.mirrored = jitter, mirrored

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        image = others[self.image]
        if self.training and (self.jitter or self.mirrored):
            image = jittered(image, torch.rand(3, len(image), device=image.device), self.jitter, self.mirrored)
        logits = self.f(image).view(-1, *self.output)
        for name, layer in zip(self.names, self.linear, strict=True):
            logits = logits + layer(others[name].flatten(1)).view(-1, *self.output)
        return logits

    @property
    def heads(self) -> list[Any]:
        """The layers whose outputs add up to the result; the first has a bias."""
        return [self.f[-1], *self.linear]


class ImageDecoder(Network):
    """Maps flat groups and maps to the parameters of an image.

    inputs: the encoded sizes of flat groups, by name.
    output: the shape of the image, (channels, height, width).
    maps: the channels of groups of shape (channels, height / 4, width / 4), by name.
    width: channels at the highest resolution.
    kind: "plain" or "residual" (see the head of this module).
    blocks: residual blocks at each resolution.
    """

    def __init__(
        self,
        inputs: Mapping[str, int],
        output: Sequence[int],
        maps: Mapping[str, int] | None = None,
        width: int = 32,
        kind: str = "plain",
        blocks: int = 1,
    ):
        super().__init__()
        one_of("kind", kind, KINDS)
        inputs, maps = sizes_of("inputs", inputs), sizes_of("maps", {} if maps is None else maps)
        output = shape_of("output", output)
        width, blocks = counts({"width": (width, 1), "blocks": (blocks, 0)})
        if len(output) != 3:
            raise InputError(
                "the decoder returns one number for every pixel: the scale of the image must be learned, of each "
                f'coordinate, or fixed, and not of each "element"; found an output of shape {tuple(output)}'
            )
        self.kind = kind
        self.names, self.maps = tuple(inputs), tuple(maps)
        self.reads = (*inputs, *maps)
        self.smallest = _halved(output[1:], 3 if kind == "plain" else 2)
        self.flat = nn.Linear(sum(inputs.values()), FLAT * math.prod(self.smallest))
        make = _plain_decoder if kind == "plain" else _residual_decoder
        self.f = nn.Sequential(*make(FLAT + sum(maps.values()), output, width, blocks))

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        flat = self.flat(torch.cat([others[name].flatten(1) for name in self.names], 1))
        activation = F.relu if self.kind == "plain" else F.silu
        features = [activation(flat).view(-1, FLAT, *self.smallest), *[others[name] for name in self.maps]]
        return self.f(torch.cat(features, 1))


def jittered(images: Tensor, chance: Tensor, pixels: int, mirrored: bool) -> Tensor:
    """Move images by whole pixels, and fill up with zeros. `chance` `[3, rows]` in [0, 1) decides: the shift down, the
    shift right, and whether to mirror."""
    height, width = images.shape[-2:]
    down, right = ((2 * pixels + 1) * chance[:2]).long().clamp(max=2 * pixels) - pixels
    i = torch.arange(height, device=images.device) - down[:, None]
    j = torch.arange(width, device=images.device) - right[:, None]
    inside = ((i >= 0) & (i < height))[:, None, :, None] & ((j >= 0) & (j < width))[:, None, None, :]
    if mirrored:
        j = torch.where(chance[2, :, None] < 0.5, width - 1 - j, j)
    index = i.clamp(0, height - 1)[:, :, None] * width + j.clamp(0, width - 1)[:, None, :]
    taken = images.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, images.shape[1], -1))
    return torch.where(inside, taken.view_as(images), 0)


def image_network(
    variables: Mapping[str, Family], name: str, image: str = "x", reads: Sequence[str] | None = None, **options
) -> Network:
    """Make the network of one group in a model of one image and flat groups.

    A latent group of shape (channels, height / 4, width / 4) is a map: its features keep their places in the image.

    variables: the families of all groups, by name.
    name: the group.
    image: the group that is the image.
    reads: the groups that the network reads (default: all others).
    options: those of `ImageEncoder` and `ImageDecoder`: width, kind, blocks, jitter, mirrored.
    """
    reads = read_groups(variables, name, reads)
    if not isinstance(image, str) or image not in variables:
        raise InputError(f"image: {shown(image)} must be one of {', '.join(variables)}")
    shape = variables[image].event_shape
    if len(shape) != 3:
        raise InputError(f"{image!r} must have shape (channels, height, width), found {shape}")
    shapes = {k: variables[k].encoding_shape for k in reads if k != image}
    if name != image:
        inputs = {k: math.prod(s) for k, s in shapes.items()}
        return ImageEncoder(image, shape, inputs, variables[name].output_shape, **options)
    keeps_places = str(options.get("kind")) == "residual"  # whatever it is, `ImageDecoder` refuses wrong ones
    maps = {k: s[0] for k, s in shapes.items() if keeps_places and list(s[1:]) == _halved(shape[1:], 2)}
    inputs = {k: math.prod(s) for k, s in shapes.items() if k not in maps}
    return ImageDecoder(inputs, variables[image].output_shape, maps, **options)


def _halved(size: Sequence[int], times: int) -> list[int]:
    return [-(-n // 2**times) for n in size]


# --- plain ------------------------------------------------------------------------------------------------------


def _plain_encoder(shape: Sequence[int], output: Sequence[int], width: int, blocks: int) -> list[nn.Module]:
    widths = [shape[0], width, 2 * width, 4 * width]
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Conv2d(fan_in, fan_out, 3, stride=2, padding=1), nn.ReLU()]
    return [*layers, nn.Flatten(), nn.Linear(4 * width * math.prod(_halved(shape[1:], 3)), math.prod(output))]


def _plain_decoder(features: int, output: Sequence[int], width: int, blocks: int) -> list[nn.Module]:
    channels, *size = output
    widths = [features, 2 * width, width, channels]
    layers: list[nn.Module] = []
    for level, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        here, there = _halved(size, 3 - level), _halved(size, 2 - level)
        down, right = (b - (2 * a - 1) for a, b in zip(here, there, strict=True))  # 1 where doubled, 0 where odd
        layers += [nn.ConvTranspose2d(fan_in, fan_out, 3, stride=2, padding=1, output_padding=(down, right)), nn.ReLU()]
    return layers[:-1]


# --- residual ---------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """A residual block, h + conv(act(conv(act(norm(h))))), with one normalisation over the channels of each place."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = ChannelNorm(width)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.second(F.silu(self.first(F.silu(self.norm(h)))))


class ChannelNorm(nn.Module):
    """Computes h / rms(h over channels) * gain at every place of the image. It is cheap where channels lie last."""

    def __init__(self, width: int):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, h: Tensor) -> Tensor:
        last = h.permute(0, 2, 3, 1)
        return F.rms_norm(last, self.gain.shape, self.gain.to(h.dtype), eps=1e-5).permute(0, 3, 1, 2)


class Even(nn.Module):
    """Pads height and width to even numbers."""

    def forward(self, h: Tensor) -> Tensor:
        height, width = h.shape[-2:]
        return F.pad(h, (0, width % 2, 0, height % 2)) if height % 2 or width % 2 else h


class Crop(nn.Module):
    """Cuts an image to its size."""

    def __init__(self, size: Sequence[int]):
        super().__init__()
        self.size = tuple(size)

    def forward(self, h: Tensor) -> Tensor:
        return h[..., : self.size[0], : self.size[1]]


def _residual_encoder(shape: Sequence[int], output: Sequence[int], width: int, blocks: int) -> list[nn.Module]:
    layers: list[nn.Module] = [Even(), nn.PixelUnshuffle(2), nn.Conv2d(4 * shape[0], width, 3, padding=1)]
    layers += [Residual(width) for _ in range(blocks)]
    layers += [nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False)]
    layers += [Residual(2 * width) for _ in range(blocks)]
    layers += [ChannelNorm(2 * width), nn.SiLU()]
    smallest = _halved(shape[1:], 2)
    if list(output[1:]) == smallest:
        return [*layers, nn.Conv2d(2 * width, output[0], 1)]
    head = nn.Linear(FLAT * math.prod(smallest), math.prod(output))
    return [*layers, nn.Conv2d(2 * width, FLAT, 1), nn.SiLU(), nn.Flatten(), head]


def _residual_decoder(features: int, output: Sequence[int], width: int, blocks: int) -> list[nn.Module]:
    channels, *size = output
    layers: list[nn.Module] = [nn.Conv2d(features, 2 * width, 3, padding=1)]
    layers += [Residual(2 * width) for _ in range(blocks)]
    layers += [nn.ConvTranspose2d(2 * width, width, 2, stride=2, bias=False), Crop(_halved(size, 1))]
    layers += [Residual(width) for _ in range(blocks)]
    layers += [ChannelNorm(width), nn.SiLU(), nn.Conv2d(width, 4 * channels, 3, padding=1)]
    return [*layers, nn.PixelShuffle(2), Crop(size)]
