"""A cartoon of faces, the init of demixing: every region of a segmentation has one smooth colour.

In an image with known regions, pixel i of region l = s_i at the place b(i) (polynomials of degree 3) has the colour

    x_i = W_l b(i) + e_i,      e_i ~ N(0, V_l),      W_l ~ N(M_l, C_l)  as in training faces.

In a mixture of two images each pixel is from either, with equal chances. Expectation maximisation computes how likely
it is from the second, r_i = p(m_i = 1 | x), at a temperature T that falls from `HOT` to 1:

    r_i  <-  sigmoid((log p''(x_i) - log p'(x_i)) / T),    p'(x_i) = N(x_i; E W'_l b(i), V'_l + b(i)^T Cov(W'_l) b(i)),
    W'   <-  its posterior, V' <- its mode under an inverse Wishart prior, from pixels of weight (1 - r_i) / T,

and W'', V'' from pixels of weight r_i / T. The chain of the model needs this init: from random masks its latents
describe the speckle of a wrong mask in detail (research/faces.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from paracond.datasets.faces import LABELS, SIZE

#: Labels of similar colour form one region; every other label is a region.
ALIKE = (
    ("skin", "nose", "l_ear", "r_ear", "neck"),
    ("l_eye", "r_eye"),
    ("l_brow", "r_brow"),
    ("u_lip", "l_lip"),
)
DEGREE = 3
HOT, STEPS = 20.0, 60
TRUST = 60.0  # weight of the prior of a region's noise, in pixels
FEW = 20  # a region with fewer pixels is not fitted


def _regions() -> Tensor:
    """The region of each label; label 0 is the background."""
    names = ["background", *LABELS]
    first = {name: group[0] for group in ALIKE for name in group}
    kinds = list(dict.fromkeys(first.get(name, name) for name in names))
    return torch.tensor([kinds.index(first.get(name, name)) for name in names])


REGION = _regions()
COUNT = int(REGION.max()) + 1


def places() -> Tensor:
    """b(i) of all pixels, `[pixels, terms]`; the first term is 1."""
    side = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    down, right = torch.meshgrid(side, side, indexing="ij")
    powers = [(i, j) for i in range(DEGREE + 1) for j in range(DEGREE + 1 - i)]
    return torch.stack([down**i * right**j for i, j in powers], -1).flatten(0, 1)


@dataclass(frozen=True, eq=False)
class Cartoon:
    """M `[regions, terms * 3]`, C^-1 and V `[regions, 3, 3]`, all float64."""

    mean: Tensor
    precision: Tensor
    noise: Tensor

    @classmethod
    def fit(cls, images: Tensor, labels: Tensor, limit: int = 2000) -> Cartoon:
        """Fit to the first `limit` images `[n, 3, 64, 64]` with label maps `[n, 64, 64]`."""
        x, regions, b = _pixels(images[:limit]), _region_of(labels[:limit]), places().to(images.device)
        priors = [_prior(x, regions == k, b) for k in range(COUNT)]
        mean, covariance, noise = (torch.stack(each) for each in zip(*priors, strict=True))
        return cls(mean, torch.linalg.inv(covariance), noise)

    def mask(self, mixed: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Probabilities of the second image per pixel, `[n, 1, 64, 64]`, given both label maps `[n, 64, 64]`."""
        x, regions = _pixels(mixed), [_region_of(first), _region_of(second)]
        r = torch.full(x.shape[:2], 0.5, dtype=x.dtype, device=x.device)
        noises = [self.noise.expand(len(x), -1, -1, -1)] * 2
        for step in range(STEPS):
            heat = max(1.0, HOT * (1 - step / (0.7 * STEPS)))
            fits = [self._fit(x, s, weight / heat, v) for s, weight, v in zip(regions, (1 - r, r), noises, strict=True)]
            r = torch.sigmoid((fits[1][0] - fits[0][0]) / heat)
            if heat < 1.5:
                noises = [noise for _, noise in fits]
        return r.view(-1, 1, SIZE, SIZE).to(mixed.dtype)

    def _fit(self, x: Tensor, regions: Tensor, weight: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """log p(x_i) `[n, pixels]` under fields fitted to weighted pixels, and the noise of each region."""
        n, b = len(x), places().to(x.device)
        terms, member = b.shape[1], F.one_hot(regions, COUNT).to(x) * weight.unsqueeze(2)
        squares = (b.unsqueeze(2) * b.unsqueeze(1)).flatten(1)  # [pixels, terms * terms]
        sharp = torch.linalg.inv(noise)
        gram = torch.einsum("npl,pq->nlq", member, squares).view(n, COUNT, terms, 1, terms, 1)
        precision = (gram * sharp.view(n, COUNT, 1, 3, 1, 3)).reshape(n, COUNT, 3 * terms, -1) + self.precision
        pull = (torch.einsum("npl,pi,npc->nlic", member, b, x) @ sharp).flatten(2)
        pull = pull + (self.precision @ self.mean.unsqueeze(2)).squeeze(2)
        factor = torch.linalg.cholesky(precision)
        field = torch.cholesky_solve(pull.unsqueeze(3), factor).view(n, COUNT, terms, 3)
        unsure = torch.cholesky_inverse(factor).view(n, COUNT, terms, 3, terms, 3).transpose(3, 4)
        here = regions.view(n, 1, -1, 1)
        gap = x - _at(torch.einsum("pi,nlic->nlpc", b, field), here)
        spread = _at(torch.einsum("pq,nlqr->nlpr", squares, unsure.reshape(n, COUNT, -1, 9)), here).unflatten(2, (3, 3))
        spread = spread + noise[torch.arange(n, device=x.device).unsqueeze(1), regions]
        scatter = torch.einsum("npl,npc,npd->nlcd", member, gap, gap)
        own = (TRUST * self.noise + scatter) / (TRUST + member.sum(1)).view(n, COUNT, 1, 1)
        return _normal(gap, spread), own


def _prior(x: Tensor, inside: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """M, C and V of one region, from the faces with enough pixels of it; a wide prior if there are none."""
    rows = inside.sum(1) >= FEW
    weight, x, terms = inside[rows].to(x), x[rows], b.shape[1]
    if len(x) < 2:
        grey = 0.5 * torch.eye(terms)[0].repeat_interleave(3)
        return grey.to(b), torch.eye(3 * terms).to(b), 0.01 * torch.eye(3).to(b)
    middle = torch.einsum("np,npc->nc", weight, x) / weight.sum(1, keepdim=True)
    gram = torch.einsum("np,pi,pj->nij", weight, b, b) + 0.5 * torch.eye(terms).to(b)
    pull = torch.einsum("np,pi,npc->nic", weight, b, x - middle.unsqueeze(1))
    fields = torch.linalg.solve(gram, pull)
    gap = (x - middle.unsqueeze(1) - torch.einsum("pi,nic->npc", b, fields)) * weight.unsqueeze(2)
    noise = torch.einsum("npc,npd->cd", gap, gap) / weight.sum()
    fields[:, 0] += middle
    covariance = torch.cov(fields.flatten(1).T)
    return fields.flatten(1).mean(0), covariance + 1e-3 * torch.eye(3 * terms).to(b), noise + 1e-4 * torch.eye(3).to(b)


def _pixels(images: Tensor) -> Tensor:
    return images.flatten(2).transpose(1, 2).double()


def _region_of(labels: Tensor) -> Tensor:
    return REGION.to(labels.device)[labels.long()].flatten(1)


def _at(values: Tensor, here: Tensor) -> Tensor:
    """The values `[n, regions, pixels, k]` of each pixel's own region."""
    return values.gather(1, here.expand(-1, 1, -1, values.shape[3])).squeeze(1)


def _normal(gap: Tensor, covariance: Tensor) -> Tensor:
    """log N(gap; 0, covariance) up to a constant."""
    factor = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(factor, gap.unsqueeze(-1), upper=False).squeeze(-1)
    return -0.5 * white.square().sum(-1) - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
