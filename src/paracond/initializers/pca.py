"""Where chains begin: p_0(x_i | g), of one group given some others, g.

Informative latents move slowly, so a chain from random values can take very long to reach what the model has learned. A
start is a plain model of one group, learned beside its conditional, that puts the chain near the data at once. Which
distribution the chain then tends to does not depend on it.

`Components` is a Gaussian with few directions, probabilistic principal components about a mean that depends on g:

    x = mu(g) + A u + sigma e,      u ~ N(0, I),  e ~ N(0, I),  mu linear in g.

It ascends a lower bound of log p_0(x | g), with q(u | x, g) = N(m, diag d) and m = V (x - mu(g)),

    -(|x - mu - A m|^2 + sum_j d_j |A_j|^2) / (2 sigma^2) - D log(sigma sqrt(2 pi)) - KL(q | N(0, I)),

in which all expectations are exact, and whose maximum is that of log p_0. Binary groups are learned as if they were
real, and what is drawn is rounded to 0 or 1.

Where x is known in enough examples, `fit` goes to the maximum of log p_0 at once: mu by least squares, and with the
eigenvalues l_1 >= l_2 >= ... and eigenvectors v_j of the covariance of x - mu(g),

    A_j = v_j sqrt(l_j - sigma^2),      sigma^2 = the mean of the l_j that have no direction of their own,

and q(u | x, g) exact: d_j = sigma^2 / l_j, V_j = A_j / l_j. For large images this matters: the bound is flat where it
is about correlations between the u_j, and what was learned by its gradient drew garish faces.

Where some coordinates K of x are known, the start is that given them. With b = A_K' (x_K - mu_K(g)) / sigma^2,

    u | x_K, g ~ N(P^-1 b, P^-1),      P = I + A_K' A_K / sigma^2,
    log p_0(x_K | g) = -(|x_K - mu_K(g)|^2 / sigma^2 - b' P^-1 b) / 2 + what does not depend on g,

and the latter says which g a chain should begin with, if g is a class and not known. If g has a start of its own, with
mean m and covariance L'L, then mu(g) = mu(m) + w L M with w ~ N(0, I) and the slopes M of mu: rows of L M are more
directions, and g = m + w L is found with u.

That takes what the directions leave for independent noise, which in an image it is not: neighbours leave the same.
Many known pixels then outvote the prior of u with what is one and the same error, and what is drawn beside them is
wild. With `redundancy` r, r known coordinates count as one: sigma^2 is r times as large where x_K speaks.

What is common to images is smooth. With `band` k, mu and A have only the k x k slowest of the cosines of which an image
can be made (the discrete cosine transform, orthonormal), and are kept as their coefficients. A face of 64 x 64 pixels
needs a quarter of the numbers then, and more directions for the same number say more of what is hidden (RESULTS).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from paracond.data import InputError, at_least
from paracond.distributions import LOG_2PI
from paracond.families import GAIN, Binary, Family, Real
from paracond.initializers.dct import Cosines
from paracond.networks.base import Network

SCALE = 0.3  # sigma at first
CHUNK = 2**26  # numbers
SMALLEST = 0.02  # under it, what is known would weigh more than the digits of float32 can tell


class PCA(Network):
    """p_0 of a group of shape `shape` given `inputs`, the encoded sizes of the groups that it reads, by name.

    If not `learned`, it has no q(u | x, g), which is half of its parameters, and must be fitted (see `fit`). `band` is
    for images, `[channels, height, width]`.
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
        super().__init__(
            inputs=dict(inputs),
            shape=list(shape),
            rank=rank,
            binary=binary,
            learned=learned,
            redundancy=redundancy,
            band=band,
        )
        if not 1 <= redundancy < math.inf:
            raise InputError(f"redundancy must be at least 1, found {redundancy}")
        self.waves = None if band is None else Cosines(shape, band)
        size = math.prod(shape) if band is None else shape[0] * band**2
        if rank > size:
            raise InputError(f"{rank} directions are more than the {size} coefficients of the band")
        self.names = self.reads = tuple(inputs)
        self.shape, self.binary, self.learned, self.redundancy = tuple(shape), binary, learned, redundancy
        self.means = nn.Parameter(torch.zeros(1 + sum(inputs.values()), size))
        self.directions = nn.Parameter(torch.randn(rank, size) / math.sqrt(size) / 2)  # A^T
        if learned:
            self.readings = nn.Parameter(torch.randn(size, rank) / math.sqrt(size) / 2)  # V^T
            self.log_variance = nn.Parameter(torch.zeros(rank))
        self.log_sigma = nn.Parameter(torch.tensor(math.log(SCALE) / GAIN))
        self.requires_grad_(learned)

    def score(self, value: Tensor, others: Mapping[str, Tensor]) -> Tensor:
        """The lower bound of log p_0(x | g), `[batch]`."""
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
        """The maximum of log p_0 for examples `value` `[rows, *shape]` and encoded `others`; it learns no more.

        Directions are found by subspace iteration, which begins at random and takes `passes` over the examples.
        """
        whole, rank = value.flatten(1).to(self.means.dtype), len(self.directions)
        if len(whole) <= rank:
            raise InputError(f"{rank} directions need more than {rank} examples, found {len(whole)}")
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
        beyond = whole.square().sum() - x.square().sum()  # what no cosine in the band has
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
        self, others: Mapping[str, Tensor], generator: torch.Generator, rows: int, part: KnownPart | None = None
    ) -> Tensor:
        """One draw per row, `[rows, *shape]`, given the coordinates in `part`."""
        drawn = self._draw(others, generator, rows, part)
        return (drawn if part is None else torch.where(part.mask, part.value, drawn)).view(-1, *self.shape)

    def _draw(
        self, others: Mapping[str, Tensor], generator: torch.Generator, rows: int, part: KnownPart | None
    ) -> Tensor:
        """mu(g) + A u + sigma e, with u given the coordinates in `part`."""
        mean = self._mean(others).expand(rows, -1)
        u = mean.new_empty(len(mean), len(self.directions)).normal_(generator=generator)
        e = torch.empty_like(mean).normal_(generator=generator)
        u = u if part is None else part.directions(mean, u)
        drawn = mean + self._whole(u @ self.directions) + self._log_scale().exp() * e
        return (drawn > 0.5).to(drawn.dtype) if self.binary else drawn

    @torch.no_grad()
    def observe(self, value: Tensor, mask: Tensor) -> KnownPart:
        """The coordinates of `value` where `mask` is true, for `sample` and `evidence`; `[batch, *shape]` both, or one
        row of a mask for all (which is much cheaper)."""
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
        generator: torch.Generator,
    ) -> Tensor:
        """One draw per row, `[rows, *its shape]`, of the group `name` that this start reads and whose own start is
        `group`, given `part` of x and, if any of the group is known, its `own` value and mask. `others` are what the
        two starts read besides: of "x" and of "g"."""
        rank, centre = len(self.directions), group._mean(others["g"]).expand(len(part.value), -1)
        value, mask = (centre, torch.zeros_like(centre[:1], dtype=torch.bool)) if own is None else own
        value, mask = value.flatten(1).to(centre.dtype), mask.flatten(1)
        lengths = group._lengths()
        both = self._with(lengths, self._slopes(name), part, value, mask)
        mean = torch.cat([self._mean({**others["x"], name: centre}), centre], 1)
        w = both.directions(mean, mean.new_empty(len(mean), rank + len(lengths)).normal_(generator=generator))[:, rank:]
        drawn = centre + w @ lengths
        drawn = (drawn > 0.5).to(drawn.dtype) if group.binary else drawn
        return torch.where(mask, value, drawn).view(-1, *group.shape)

    def _with(self, lengths: Tensor, slopes: Tensor, part: KnownPart, value: Tensor, mask: Tensor) -> KnownPart:
        """`part` of x, and what is known of a group with the covariance L'L that it reads, as coordinates of one
        vector (x, g) with the directions (A, 0) and (L M, L)."""
        own = torch.cat([lengths.new_zeros(len(self.directions), lengths.shape[1]), lengths])
        directions = torch.cat([torch.cat([self._whole(self.directions), lengths @ slopes]), own], 1)
        sigma = torch.cat([part.sigma.expand(slopes.shape[1]), torch.full_like(lengths[0], SMALLEST)])
        count = max(len(mask), len(part.mask))
        masks = torch.cat([part.mask.expand(count, -1), mask.expand(count, -1)], 1)
        return KnownPart(directions / sigma, sigma, torch.cat([part.value, value], 1), masks)

    def _lengths(self) -> Tensor:
        """L, with L'L the covariance."""
        directions = self._whole(self.directions)
        noise = (2 * self._log_scale()).exp() * torch.eye(
            directions.shape[1], dtype=directions.dtype, device=directions.device
        )
        return torch.linalg.cholesky_ex(noise + directions.T @ directions).L.T

    def _slopes(self, name: str) -> Tensor:
        """The rows of mu that belong to the group `name`."""
        sizes = list(self.config["inputs"].values())
        return self._whole(self.means[1:].split(sizes)[self.names.index(name)])

    @torch.no_grad()
    def evidence(self, others: Mapping[str, Tensor], part: KnownPart) -> Tensor:
        """log p_0(x_K | g), `[batch]`, but for what does not depend on g; with its redundancy."""
        return part.evidence(self._mean(others))

    def _log_scale(self) -> Tensor:
        return (GAIN * self.log_sigma).clamp(min=math.log(SMALLEST))

    def _mean(self, others: Mapping[str, Tensor]) -> Tensor:
        """In the type of the parameters: low precision would show in the sums of squares."""
        if not self.names:
            return self._whole(self.means)
        given = [others[name].flatten(1).to(self.means.dtype) for name in self.names]
        return self._whole(self.means[0] + torch.cat(given, 1) @ self.means[1:])

    def _kept(self, rows: Tensor) -> Tensor:
        """Coordinates, as parameters have them."""
        return rows if self.waves is None else self.waves.coefficients(rows)

    def _whole(self, rows: Tensor) -> Tensor:
        """What parameters stand for, in coordinates."""
        return rows if self.waves is None else self.waves.images(rows)


class KnownPart:
    """x_K, and what it says of u. K may be another in every row. `scaled` is A' / sigma."""

    def __init__(self, scaled: Tensor, sigma: Tensor, value: Tensor, mask: Tensor):
        self.scaled, self.sigma, self.value, self.mask = scaled, sigma, value, mask
        masks, which = _distinct(mask)
        prior = torch.eye(len(scaled), dtype=scaled.dtype, device=scaled.device)
        factor = torch.linalg.cholesky_ex(prior + _products(scaled, masks)).L  # P = L L' >= 1: no need for a check
        self.factor = factor if len(factor) == 1 else factor[which]

    def directions(self, mean: Tensor, noise: Tensor) -> Tensor:
        """u = P^-1 b + L'^-1 noise = L'^-1 (L^-1 b + noise)."""
        return self._solve(self.factor.mT, self._half(self._gap(mean)) + noise, upper=True)

    def evidence(self, mean: Tensor) -> Tensor:
        gap = self._gap(mean)
        return -0.5 * (gap.square().sum(1) - self._half(gap).square().sum(1))

    def _gap(self, mean: Tensor) -> Tensor:
        """(x_K - mu_K) / sigma, and zero elsewhere."""
        return torch.where(self.mask, self.value - mean, 0) / self.sigma

    def _half(self, gap: Tensor) -> Tensor:
        """L^-1 b."""
        return self._solve(self.factor, gap @ self.scaled.T, upper=False)

    def _solve(self, factor: Tensor, rows: Tensor, upper: bool) -> Tensor:
        if len(factor) == 1:
            return torch.linalg.solve_triangular(factor[0], rows.T, upper=upper).T
        return torch.linalg.solve_triangular(factor, rows.unsqueeze(-1), upper=upper).squeeze(-1)


def _products(scaled: Tensor, masks: Tensor) -> Tensor:
    """sum_k mask_k a_ik a_jk, `[masks, rank, rank]`; some at a time, or large images would take gigabytes."""
    (rank, size), masks = scaled.shape, masks.to(scaled.dtype)
    if len(masks) < rank:
        some = masks.split(max(1, CHUNK // (rank * size)))
        return torch.cat([(part[:, None] * scaled).flatten(0, 1) @ scaled.T for part in some]).view(-1, rank, rank)
    some = scaled.split(max(1, CHUNK // (rank * size)))
    return torch.cat([masks @ (part[:, None] * scaled).flatten(0, 1).T for part in some], 1).view(-1, rank, rank)


def _distinct(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that differ from the one before, and which of them each row is: all chains of one question have the same.
    While a program is recorded, nothing may wait for the host, and every row counts."""
    if mask.is_cuda and torch.cuda.is_current_stream_capturing():
        return mask, torch.arange(len(mask), device=mask.device)
    found: tuple[Tensor, Tensor] = mask.unique_consecutive(dim=0, return_inverse=True)
    return found


def pca(variables: Mapping[str, Family], name: str, reads: Sequence[str], rank: int = 64, **options) -> PCA:
    """The start of group `name` of a model with these variables, given the groups `reads` (perhaps none): with `rank`
    directions, but fewer than the group has coordinates. Options are those of `Components`."""
    if name not in variables:
        raise InputError(f"{name!r} is none of the variables {', '.join(variables)}")
    family = variables[name]
    at_least({"rank": (rank, 1)})
    if not isinstance(family, (Real, Binary)):
        raise InputError(f"pca is for Real and Binary groups; {name!r} is {family}")
    unknown = [k for k in reads if k not in variables or k == name]
    if unknown:
        raise InputError(f"the initializer of {name!r} must read other groups, found {', '.join(unknown)}")
    inputs = {k: math.prod(variables[k].encoding_shape) for k in reads}
    rank = min(rank, max(1, math.prod(family.event_shape) - 1))
    return PCA(inputs, family.event_shape, rank, isinstance(family, Binary), **options)
