"""An initializer by principal components: p_0(x_i | g) of one group given some others, g.

Informative latents move slowly, so a chain from random values can take very long to reach the distribution that the
model has learned. An initializer is a simple model of one group, learned with its conditional, which puts the chain
near the data at once. The limiting distribution does not depend on it.

`PCA` is a Gaussian with few directions, probabilistic principal components about a mean that depends on g:

    x = mu(g) + A u + sigma e,      u ~ N(0, I),  e ~ N(0, I),  mu linear in g.

It ascends a lower bound of log p_0(x | g), with q(u | x, g) = N(m, diag d) and m = V (x - mu(g)),

    -(|x - mu - A m|^2 + sum_j d_j |A_j|^2) / (2 sigma^2) - D log(sigma sqrt(2 pi)) - KL(q | N(0, I)),

in which all expectations are exact, and whose maximum is that of log p_0. Binary groups are learned as real ones, and
draws are rounded to 0 or 1.

Where x is known in enough examples, `fit` computes the maximum of log p_0 directly: mu by least squares, and with the
eigenvalues l_1 >= l_2 >= ... and eigenvectors v_j of the covariance of x - mu(g),

    A_j = v_j sqrt(l_j - sigma^2),      sigma^2 = the mean of the l_j that have no direction of their own,

and q(u | x, g) exact: d_j = sigma^2 / l_j, V_j = A_j / l_j. For large images prefer `fit`: the bound is flat along
correlations between the u_j, so its gradient finds them slowly.

Where some coordinates K of x are known, draws are from p_0(x | x_K, g). With b = A_K' (x_K - mu_K(g)) / sigma^2,

    u | x_K, g ~ N(P^-1 b, P^-1),      P = I + A_K' A_K / sigma^2,
    log p_0(x_K | g) = -(|x_K - mu_K(g)|^2 / sigma^2 - b' P^-1 b) / 2 + a term that does not depend on g.

The latter gives the first value of g, if g is a class and not known. If g has an initializer of its own, with mean m
and covariance L'L, then mu(g) = mu(m) + w L M with w ~ N(0, I) and the slopes M of mu. So the rows of L M are further
directions, and g = m + w L is drawn together with u.

This treats the residual of the directions as independent noise. In an image it is not independent: neighbours have
nearly the same residual. Many known pixels then repeat one error and outweigh the prior of u, and draws of the other
pixels are extreme. With `redundancy` r, r known coordinates count as one: sigma^2 is r times as large for x_K.

The directions of images are smooth. With `band` k, mu and A consist of the k x k lowest frequencies of the orthonormal
discrete cosine transform, and are stored as coefficients. Faces of 64 x 64 pixels then need a quarter of the numbers,
so that more directions can be afforded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from paracond.data import InputError, as_float, at_least, true_or_false
from paracond.distributions import LOG_2PI
from paracond.families import GAIN, Binary, Family, Real
from paracond.initializers.dct import Cosines
from paracond.networks.arguments import counts, shape_of, sizes_of
from paracond.networks.base import Network, read_groups
from paracond.streams import Generator, normal

SCALE = 0.3  # sigma at first
CHUNK = 2**26  # numbers
SMALLEST = 0.02  # smaller noise would weigh known values beyond the precision of float32


class PCA(Network):
    """An initializer by principal components about a mean that is linear in other groups.

    inputs: the encoded sizes of the groups that it reads, by name.
    shape: the shape of one value.
    rank: the number of directions.
    binary: whether values are 0 or 1; draws are then rounded.
    learned: whether it can learn by gradients. If not, it has half of the parameters (no q(u | x, g)) and must be
        fitted: `initializers.fit(model, data)`.
    redundancy: how many known coordinates count as one.
    band: for images (channels, height, width): the number of frequencies along each side.
    """

    def __init__(
        self,
        inputs: Mapping[str, int],
        shape: Sequence[int],
        rank: int = 64,
        binary: bool = False,
        learned: bool = True,
        redundancy: float = 1.0,
        band: int | None = None,
    ):
        super().__init__()
        inputs, shape, (rank,) = sizes_of("inputs", inputs), shape_of("shape", shape), counts({"rank": (rank, 0)})
        redundancy, band = as_float("redundancy", redundancy), None if band is None else counts({"band": (band, 1)})[0]
        true_or_false("binary", binary)
        true_or_false("learned", learned)
        if redundancy < 1:
            raise InputError(f"redundancy must be at least 1, found {redundancy}")
        self.waves = None if band is None else Cosines(shape, band)
        size = math.prod(shape) if band is None else shape[0] * band**2
        if rank > size:
            what = "coordinates" if band is None else "coefficients"
            raise InputError(f"rank: {rank} directions are more than the {size} {what}")
        self.names = self.reads = tuple(inputs)
        self.shape, self.binary, self.learned, self.redundancy = shape, bool(binary), bool(learned), redundancy
        self.means = nn.Parameter(torch.zeros(1 + sum(inputs.values()), size))
        self.directions = nn.Parameter(torch.randn(rank, size) / math.sqrt(size) / 2)  # A^T
        if learned:
            self.readings = nn.Parameter(torch.randn(size, rank) / math.sqrt(size) / 2)  # V^T
            self.log_variance = nn.Parameter(torch.zeros(rank))
        self.log_sigma = nn.Parameter(torch.tensor(math.log(SCALE) / GAIN))
        self.requires_grad_(self.learned)

    def score(self, value: Tensor, others: Mapping[str, Tensor]) -> Tensor:
        """Return the lower bound of log p_0(x | g), `[batch]`."""
        if not self.learned:
            raise InputError(
                "an initializer with learned=False is fitted (initializers.fit), not learned: it has no bound"
            )
        gap, log_sigma = value.flatten(1) - self._mean(others), self._log_scale()
        m, d = self._kept(gap) @ self.readings, self.log_variance.exp()
        error = (gap - self._whole(m @ self.directions)).square().sum(1) + d @ self.directions.square().sum(1)
        divergence = 0.5 * (m.square() + d - 1 - self.log_variance).sum(1)
        return -0.5 * error * torch.exp(-2 * log_sigma) - gap.shape[1] * (log_sigma + 0.5 * LOG_2PI) - divergence

    @torch.no_grad()
    def fit(self, value: Tensor, others: Mapping[str, Tensor], generator: torch.Generator, passes: int = 8) -> None:
        """Set the parameters to the maximum of log p_0, by subspace iteration. Training does not change them then."""
        whole, rank = value.flatten(1).to(self.means.dtype), len(self.directions)
        if len(whole) <= rank:
            raise InputError(f"data: {rank} directions need more than {rank} known rows of a group, found {len(whole)}")
        x = self._kept(whole)
        given = torch.cat([torch.ones_like(x[:, :1]), *[others[n].flatten(1).to(x.dtype) for n in self.names]], 1)
        self.means.copy_(torch.linalg.pinv(given.T @ given, hermitian=True) @ (given.T @ x))
        gap = x - given @ self.means
        size = rank + min(16, x.shape[1] - rank)
        basis = torch.randn(x.shape[1], size, generator=generator, device=x.device, dtype=x.dtype)
        for _ in range(passes):
            basis = torch.linalg.qr(gap.T @ (gap @ basis)).Q
        variances, turned = torch.linalg.eigh((gap @ basis).T @ (gap @ basis) / len(x))
        variances, vectors = variances.flip(0)[:rank], (basis @ turned).flip(1)[:, :rank]
        beyond = whole.square().sum() - x.square().sum()  # outside the band
        left = (gap.square().sum() + beyond) / len(x) - variances.sum()
        noise = (left / max(1, whole.shape[1] - rank)).clamp(min=SMALLEST**2)
        lengths = (variances - noise).clamp(min=0).sqrt()
        self.directions.copy_((vectors * lengths).T)
        if self.learned:
            self.readings.copy_(vectors * (lengths / variances.clamp(min=noise)))
            self.log_variance.copy_((noise / variances.clamp(min=noise)).log())
        self.log_sigma.copy_(noise.log() / 2 / GAIN)
        self.requires_grad_(False)

    @torch.no_grad()
    def sample(
        self, others: Mapping[str, Tensor], generator: Generator, rows: int, part: KnownPart | None = None
    ) -> Tensor:
        """Draw one value per row, `[rows, *shape]`, given the coordinates in `part`."""
        mean = self._mean(others).expand(rows, -1)
        u = normal(mean.new_empty(len(mean), len(self.directions)), generator)
        e = normal(mean, generator)
        u = u if part is None else part.directions(mean, u)
        drawn = mean + self._whole(u @ self.directions) + self._log_scale().exp() * e
        drawn = (drawn > 0.5).to(drawn.dtype) if self.binary else drawn
        return (drawn if part is None else torch.where(part.mask, part.value, drawn)).view(-1, *self.shape)

    @torch.no_grad()
    def observe(self, value: Tensor, mask: Tensor) -> KnownPart:
        """Prepare known coordinates for `sample` and `evidence`. One mask for all rows is much cheaper than many."""
        sigma = self._log_scale().exp() * math.sqrt(self.redundancy)
        return KnownPart(
            self._whole(self.directions) / sigma, sigma, value.flatten(1).to(self.means.dtype), mask.flatten(1)
        )

    @torch.no_grad()
    def sample_parent(
        self,
        name: str,
        group: PCA,
        others: Mapping[str, Mapping[str, Tensor]],
        part: KnownPart,
        own: tuple[Tensor, Tensor] | None,
        generator: Generator,
    ) -> Tensor:
        """Draw a group that this initializer reads, one value per row, given the known parts of both groups.

        `group` is its own initializer. `others` has what the two read besides, under "x" (this one) and "g" (that one).
        """
        rank, centre = len(self.directions), group._mean(others["g"]).expand(len(part.value), -1)
        value, mask = (centre, torch.zeros_like(centre[:1], dtype=torch.bool)) if own is None else own
        value, mask = value.flatten(1).to(centre.dtype), mask.flatten(1)
        lengths = group._lengths()
        both = self._with(lengths, self._slopes(name), part, value, mask)
        mean = torch.cat([self._mean({**others["x"], name: centre}), centre], 1)
        noise = normal(mean.new_empty(len(mean), rank + len(lengths)), generator)
        w = both.directions(mean, noise)[:, rank:]
        drawn = centre + w @ lengths
        drawn = (drawn > 0.5).to(drawn.dtype) if group.binary else drawn
        return torch.where(mask, value, drawn).view(-1, *group.shape)

    def _with(self, lengths: Tensor, slopes: Tensor, part: KnownPart, value: Tensor, mask: Tensor) -> KnownPart:
        """Join the known parts of x and of g as parts of one vector (x, g), with the directions (A, 0) and (L M, L)."""
        own = torch.cat([lengths.new_zeros(len(self.directions), lengths.shape[1]), lengths])
        directions = torch.cat([torch.cat([self._whole(self.directions), lengths @ slopes]), own], 1)
        sigma = torch.cat([part.sigma.expand(slopes.shape[1]), torch.full_like(lengths[0], SMALLEST)])
        count = max(len(mask), len(part.mask))
        masks = torch.cat([part.mask.expand(count, -1), mask.expand(count, -1)], 1)
        return KnownPart(directions / sigma, sigma, torch.cat([part.value, value], 1), masks)

    def _lengths(self) -> Tensor:
        """Return L, with L'L the covariance."""
        directions = self._whole(self.directions)
        noise = (2 * self._log_scale()).exp() * torch.eye(
            directions.shape[1], dtype=directions.dtype, device=directions.device
        )
        return torch.linalg.cholesky_ex(noise + directions.T @ directions).L.T

    def _slopes(self, name: str) -> Tensor:
        """Return the rows of mu that belong to the group `name`."""
        sizes = list(self.config["inputs"].values())
        return self._whole(self.means[1:].split(sizes)[self.names.index(name)])

    @torch.no_grad()
    def evidence(self, others: Mapping[str, Tensor], part: KnownPart) -> Tensor:
        """Return log p_0(x_K | g), `[batch]`, up to a term that does not depend on g."""
        return part.evidence(self._mean(others))

    @torch.no_grad()
    def log_density(self, others: Mapping[str, Tensor], part: KnownPart) -> Tensor:
        """Return log p_0(x_K | g), `[batch]`."""
        return self.evidence(others, part) + part.log_normaliser()

    def _log_scale(self) -> Tensor:
        return (GAIN * self.log_sigma).clamp(min=math.log(SMALLEST))

    def _mean(self, others: Mapping[str, Tensor]) -> Tensor:
        """Return mu(g) in the type of the parameters, because low precision would show in the sums of squares."""
        if not self.names:
            return self._whole(self.means)
        given = [others[name].flatten(1).to(self.means.dtype) for name in self.names]
        return self._whole(self.means[0] + torch.cat(given, 1) @ self.means[1:])

    def _kept(self, rows: Tensor) -> Tensor:
        """Transform coordinates to those of the parameters."""
        return rows if self.waves is None else self.waves.coefficients(rows)

    def _whole(self, rows: Tensor) -> Tensor:
        """Transform parameters to coordinates of x."""
        return rows if self.waves is None else self.waves.images(rows)


class KnownPart:
    """The known part x_K of x, and the posterior of u that it implies. Every row may have another K. `scaled` is
    A' / sigma."""

    def __init__(self, scaled: Tensor, sigma: Tensor, value: Tensor, mask: Tensor):
        self.scaled, self.sigma, self.value, self.mask = scaled, sigma, value, mask
        masks, which = _distinct(mask)
        prior = torch.eye(len(scaled), dtype=scaled.dtype, device=scaled.device)
        factor = torch.linalg.cholesky_ex(prior + _products(scaled, masks)).L  # P = L L' >= 1: no need for a check
        self.factor = factor if len(factor) == 1 else factor[which]

    def directions(self, mean: Tensor, noise: Tensor) -> Tensor:
        """Draw u = P^-1 b + L'^-1 noise = L'^-1 (L^-1 b + noise)."""
        return self._solve(self.factor.mT, self._half(self._gap(mean)) + noise, upper=True)

    def evidence(self, mean: Tensor) -> Tensor:
        """Return log p_0(x_K | g), up to a term that does not depend on the mean."""
        gap = self._gap(mean)
        return -0.5 * (gap.square().sum(1) - self._half(gap).square().sum(1))

    def log_normaliser(self) -> Tensor:
        """Return what `evidence` leaves out, -log |P| / 2 - sum_K log(sigma sqrt(2 pi))."""
        noise = torch.where(self.mask, self.sigma.log() + 0.5 * LOG_2PI, 0).sum(1)
        return -self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) - noise

    def _gap(self, mean: Tensor) -> Tensor:
        """Return (x_K - mu_K) / sigma, and zero elsewhere."""
        return torch.where(self.mask, self.value - mean, 0) / self.sigma

    def _half(self, gap: Tensor) -> Tensor:
        """Return L^-1 b."""
        return self._solve(self.factor, gap @ self.scaled.T, upper=False)

    def _solve(self, factor: Tensor, rows: Tensor, upper: bool) -> Tensor:
        if len(factor) == 1:
            return torch.linalg.solve_triangular(factor[0], rows.T, upper=upper).T
        return torch.linalg.solve_triangular(factor, rows.unsqueeze(-1), upper=upper).squeeze(-1)


def _products(scaled: Tensor, masks: Tensor) -> Tensor:
    """Return sum_k mask_k a_ik a_jk, `[masks, rank, rank]`, in parts, because large images would take gigabytes."""
    (rank, size), masks = scaled.shape, masks.to(scaled.dtype)
    if len(masks) < rank:
        some = masks.split(max(1, CHUNK // (rank * size)))
        return torch.cat([(part[:, None] * scaled).flatten(0, 1) @ scaled.T for part in some]).view(-1, rank, rank)
    some = scaled.split(max(1, CHUNK // (rank * size)))
    return torch.cat([masks @ (part[:, None] * scaled).flatten(0, 1).T for part in some], 1).view(-1, rank, rank)


def _distinct(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows that differ from the one before, and the index of each row among them.

    While a program is recorded, all rows are returned: their count would have to wait for the host.
    """
    if mask.is_cuda and torch.cuda.is_current_stream_capturing():
        return mask, torch.arange(len(mask), device=mask.device)
    found: tuple[Tensor, Tensor] = mask.unique_consecutive(dim=0, return_inverse=True)
    return found


def pca(variables: Mapping[str, Family], name: str, reads: Sequence[str], rank: int = 64, **options) -> PCA:
    """Make an initializer by principal components for one group of a model.

    variables: the families of all groups, by name.
    name: the group, Real or Binary.
    reads: the groups that the initializer reads; they may be none.
    rank: the number of directions; it is reduced for groups with few coordinates.
    options: those of `PCA`: learned, redundancy, band.
    """
    inputs = {k: math.prod(variables[k].encoding_shape) for k in read_groups(variables, name, reads, least=0)}
    family = variables[name]
    at_least({"rank": (rank, 1)})
    if not isinstance(family, (Real, Binary)):
        raise InputError(f"pca is for Real and Binary groups; {name!r} is {family}")
    rank = min(rank, max(1, math.prod(family.event_shape) - 1))
    return PCA(inputs, family.event_shape, rank, isinstance(family, Binary), **options)
