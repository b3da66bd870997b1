"""Low frequencies of an image: the orthonormal discrete cosine transform, of which the first k x k waves are kept.

w_k(i) = cos(pi k (i + 1/2) / size) sqrt(2 / size),      w_0(i) = 1 / sqrt(size).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paracond.data import InputError
from paracond.networks.arguments import counts, shape_of


class Cosines(nn.Module):
    """Transforms images to their lowest frequencies and back; the waves are orthonormal.

    shape: the shape of an image, (channels, height, width).
    band: the number of frequencies along each side.
    """

    down: Tensor
    across: Tensor

    def __init__(self, shape: Sequence[int], band: int):
        super().__init__()
        (band,), shape = counts({"band": (band, 1)}), shape_of("shape", shape)
        if len(shape) != 3 or band > min(shape[1:]):
            raise InputError(
                f"a band is for images (channels, height, width), at most their sides, found {band} and {list(shape)}"
            )
        self.channels, self.band = shape[0], band
        self.register_buffer("down", _cosines(shape[1], band), persistent=False)
        self.register_buffer("across", _cosines(shape[2], band), persistent=False)

    def coefficients(self, rows: Tensor) -> Tensor:
        """Transform images `[rows, coordinates]` to coefficients `[rows, channels * band^2]`."""
        images = rows.view(-1, self.channels, self.down.shape[1], self.across.shape[1])
        return (self.down @ images @ self.across.T).flatten(1)

    def images(self, rows: Tensor) -> Tensor:
        """Transform coefficients back to images. It is the inverse for images within the band."""
        return (self.down.T @ rows.view(-1, self.channels, self.band, self.band) @ self.across).flatten(1)


def _cosines(size: int, band: int) -> Tensor:
    places, speeds = torch.arange(size, dtype=torch.float64) + 0.5, torch.arange(band, dtype=torch.float64)
    waves = torch.cos(math.pi / size * speeds.unsqueeze(1) * places) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    return waves.to(torch.get_default_dtype())
