"""Estimates from tours, against explicit sums and against what a renewal process is known to do."""

import math

import numpy as np
import pytest
import torch
from helpers import assert_mean

from paracond.estimates import TourMeans, estimate

RATE, HALF, NOISE = 0.1, 7, 0.5
AGES = 150  # at most; older ones have probability 1e-7
WEIGHTS = RATE * (1 - RATE) ** np.arange(AGES)


class Process:
    """Tours whose states have the conditional mean level(age) + z, z ~ N(0, 1) for the whole tour, and variance 1/4.

    Tours with a large z are longer if `tied`: then the mean over tours is not the mean over states.
    """

    def __init__(self, level, tied=False):
        self.levels, self.tied = np.array([level(age) for age in range(AGES)]), tied
        self.expected = self._expected()

    def states(self, rows, tours, seed=0, coordinates=1):
        """Conditional means `[rows, tours, ages, coordinates]`, and lengths `[rows, tours]`."""
        random = np.random.default_rng(seed)
        lengths = np.minimum(random.geometric(RATE, (rows, tours)), AGES)
        z = random.normal(size=(rows, tours, 1, coordinates))
        if self.tied:
            z = z + 0.03 * lengths[:, :, None, None]
        return self.levels[:, None] + z, lengths

    def _expected(self):
        """Mean and standard deviation of the values of a state, from a sum over lengths."""
        lengths = np.arange(1, AGES + 1)
        p = RATE * (1 - RATE) ** (lengths - 1)
        p[-1] = 1 - p[:-1].sum()
        shift = 0.03 * lengths if self.tied else 0 * lengths
        states = (p * lengths).sum()
        sums = np.stack([np.cumsum(self.levels**k) for k in (1, 2)])
        mean = (p * (sums[0] + lengths * shift)).sum() / states
        square = (p * (sums[1] + 2 * shift * sums[0] + lengths * (shift**2 + 1 + NOISE**2))).sum() / states
        return mean, math.sqrt(square - mean**2)

    def tours(self, rows, tours, seed=0, coordinates=1):
        """What a runner would record."""
        means, lengths = self.states(rows, tours, seed, coordinates)
        counts = np.arange(AGES) < lengths[:, :, None]
        first = counts & (np.arange(AGES) < HALF)
        own, early = (
            np.einsum("rtac,rta->rtc", means, each) / each.sum(2)[:, :, None] for each in (counts * 1.0, first * 1.0)
        )
        spread = np.einsum("rtac,rta->rtc", (means - own[:, :, None]) ** 2 + NOISE**2, counts * 1.0)
        return TourMeans(*(torch.tensor(each) for each in (lengths * 1.0, own, spread, early)), HALF)


STATIONARY = Process(lambda age: 0.0)
DRIFTING = Process(lambda age: 1 - 0.8**age)
TIED = Process(lambda age: 0.3 * (age % 2), tied=True)


def jackknife(changes):
    """The error, from the changes where each tour is left out, with and without the factor t."""
    count, squares = len(changes), [float(c) ** 2 for c in changes]
    d = 2 * count / (count * sum(s**2 for s in squares) / sum(squares) ** 2 - 1)
    skewness = math.sqrt(count) * sum(float(c) ** 3 for c in changes) / sum(squares) ** 1.5
    plain = math.sqrt((count - 1) / count * sum(squares))
    return (1 + 1.21 / d + 1.44 / d**2 + (1.08 * skewness**2 + 1) / count) * plain, plain


def test_estimates_are_the_sums_of_the_module():
    """Against loops over single states."""
    rows, tours = 3, 6
    means, lengths = DRIFTING.states(rows, tours, seed=1, coordinates=2)
    found = estimate(DRIFTING.tours(rows, tours, seed=1, coordinates=2))
    for row in range(rows):
        z_squares = []
        for k in range(2):
            values = [means[row, i, : lengths[row, i], k] for i in range(tours)]
            total = sum(len(v) for v in values)
            mean = sum(v.sum() for v in values) / total
            error, plain = jackknife([(v - mean).sum() / (total - len(v)) for v in values])
            squares = [((v - mean) ** 2 + NOISE**2).sum() for v in values]
            variance = sum(squares) / total
            gaps = [q - len(v) * variance for q, v in zip(squares, values, strict=True)]
            of_variance = jackknife([g / (total - len(v)) for g, v in zip(gaps, values, strict=True)])[0] ** 2
            of_variance, std = of_variance + 1.96**2 * error**4, math.sqrt(variance + plain**2)
            for name, expected in (
                ("mean", mean),
                ("error", error),
                ("std", std),
                ("error_of_std", math.sqrt(of_variance) / (2 * std)),
            ):
                assert float(getattr(found, name)[row, k]) == pytest.approx(expected, rel=1e-12)
            parts = [[v[:HALF] for v in values], [v[HALF:] for v in values]]
            centres = [sum(v.sum() for v in part) / sum(len(v) for v in part) for part in parts]
            sums = [
                [(v - centre).sum() / sum(len(w) for w in part) for v in part]
                for part, centre in zip(parts, centres, strict=True)
            ]
            variance = tours / (tours - 1) * sum((a - b) ** 2 for a, b in zip(*sums, strict=True))
            z_squares.append((centres[0] - centres[1]) ** 2 / variance)
        assert float(found.drift[row]) == pytest.approx(math.sqrt(np.mean(z_squares)), rel=1e-12)


@pytest.mark.parametrize("process", [STATIONARY, DRIFTING, TIED], ids=["stationary", "drifting", "tied"])
def test_means_and_deviations_are_right_and_so_are_their_errors(process):
    """With many tours, because a ratio of two means has a bias of the order of 1 / tours."""
    found = estimate(process.tours(400, 1000))
    mean, std = process.expected
    for value, error, expected, what in (
        (found.mean, found.error, mean, "mean"),
        (found.std, found.error_of_std, std, "std"),
    ):
        z = (value - expected) / error
        assert_mean(value, expected, what)
        assert_mean(z**2, 1.0, f"squared error of {what} over its square")
        assert 0.92 < float((z.abs() < 1.96).double().mean()) < 0.98  # the error of this is .011


def test_few_tours_have_no_bias_where_tours_are_single_states():
    """Then these are the textbook estimates: s^2 / n, and s^2 itself."""
    normal = torch.from_numpy(np.random.default_rng(0).normal(2.0, 3.0, size=(40_000, 3, 1)))
    ones, zeros = torch.ones(40_000, 3, dtype=torch.float64), torch.zeros_like(normal)
    found = estimate(TourMeans(ones, normal, zeros, normal, 1))
    assert_mean(found.mean, 2.0)
    assert_mean(found.std**2, 9.0)
    assert not bool(found.drift.any())  # there are no late states


@pytest.mark.parametrize("tours", [64, 200])
def test_intervals_hold_for_the_deviation_of_coins(tours):
    """Also of nearly fair ones, where the slope of m (1 - m) is small. The error of a share is .0013."""
    random = np.random.default_rng(0)
    p = 0.05 + 0.9 * random.random((30_000, 1))
    p[:300] = 0.5
    coins = torch.from_numpy((random.random((30_000, tours, 1)) < p[:, None]) * 1.0)
    ones = torch.ones(30_000, tours, dtype=torch.float64)
    found = estimate(TourMeans(ones, coins, torch.zeros_like(coins), coins, 1))
    covered = ((found.std - torch.from_numpy(np.sqrt(p * (1 - p)))).abs() < 1.96 * found.error_of_std).double()
    assert 0.94 < float(covered.mean()) < 0.965
    assert float(covered[:300].mean()) > 0.95


@pytest.mark.parametrize("p, least", [(0.5, 0.938), (0.2, 0.91)])
def test_intervals_hold_for_few_tours_of_any_length(p, least):
    """A coin per tour, which it keeps; lengths are geometric. The error of a share is .0015. Of rare events, 32 tours
    see too few."""
    random = np.random.default_rng(1)
    coins = torch.from_numpy((random.random((20_000, 32, 1)) < p) * 1.0)
    lengths = torch.from_numpy(random.geometric(0.05, size=(20_000, 32)).astype(float))
    found = estimate(TourMeans(lengths, coins, torch.zeros_like(coins), coins, 1))
    covered = ((found.mean - p).abs() < 1.96 * found.error).double()
    assert least < float(covered.mean()) < 0.97


def test_the_error_is_that_between_tours():
    """All tours are the same inside: then conditional variances say nothing about the error."""
    length = torch.full((1, 50), 4.0, dtype=torch.float64)
    mean = torch.full((1, 50, 1), 0.5, dtype=torch.float64)
    found = estimate(TourMeans(length, mean, 4 * torch.full_like(mean, 0.25), mean, 2))
    assert float(found.error) == 0 and float(found.std) == pytest.approx(0.5) and float(found.error_of_std) == 0


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_units_do_not_matter(scale):
    tours = TIED.tours(5, 40, coordinates=3)
    scaled = TourMeans(tours.length, scale * tours.mean, scale**2 * tours.spread, scale * tours.early, tours.half)
    one, other = estimate(tours), estimate(scaled)
    for name in ("mean", "std", "error", "error_of_std"):
        torch.testing.assert_close(getattr(other, name), scale * getattr(one, name), rtol=1e-9, atol=0)
    torch.testing.assert_close(other.drift, one.drift)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6, 1e-7])
def test_what_is_known_has_no_error(value):
    """Though the rounding of its mean is not zero."""
    tours = STATIONARY.tours(4, 37)
    known = torch.full_like(tours.mean, value)
    both = [torch.cat(pair, -1) for pair in ((tours.mean, known), (tours.spread, 0 * known), (tours.early, known))]
    found = estimate(TourMeans(tours.length, *both, HALF))
    torch.testing.assert_close(found.mean[:, 1], known[:, 0, 0], rtol=1e-14, atol=0)
    for each in (found.std, found.error, found.error_of_std):
        assert bool((each[:, 0] > 0).all()) and not bool(each[:, 1].any())
    torch.testing.assert_close(found.drift, estimate(tours).drift)  # it does not count there either


def test_what_is_not_a_number_stays_so():
    tours = STATIONARY.tours(3, 10)
    tours.mean[1, 4] = math.nan
    found = estimate(tours)
    for each in (found.mean, found.std, found.error, found.error_of_std):
        assert each.isnan().flatten().tolist() == [False, True, False]


def test_drift_is_one_where_states_do_not_age():
    found = estimate(STATIONARY.tours(60, 500, coordinates=20))
    assert_mean(found.drift**2, 1.0)
    one = estimate(DRIFTING.tours(1, 1000)).drift
    assert float(one) > 10
    more = estimate(DRIFTING.tours(1, 4000)).drift  # it is a ratio to the error
    assert float(more) == pytest.approx(2 * float(one), rel=0.1)


@pytest.mark.parametrize("shape", [(), (2,), (3, 4)])
def test_groups_have_any_shape(shape):
    random = torch.Generator().manual_seed(0)
    size = (2, 5, *shape)
    mean, spread, early = (torch.rand(size, generator=random, dtype=torch.float64) for _ in range(3))
    length = 1 + torch.arange(10, dtype=torch.float64).view(2, 5)
    found = estimate(TourMeans(length, mean, spread, early, 2))
    flat = estimate(TourMeans(length, *(each.reshape(2, 5, -1) for each in (mean, spread, early)), 2))
    for name in ("mean", "std", "error", "error_of_std"):
        assert torch.equal(getattr(found, name).reshape(2, -1), getattr(flat, name))
    assert torch.equal(found.drift, flat.drift) and found.drift.shape == (2,)
