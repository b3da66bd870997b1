"""What observers accumulate, against plain averages, the textbook R-hat, and closed forms."""

import pytest
import torch
from helpers import Linear, Pairwise

import paracond as pc
from paracond.chain import Move
from paracond.observers import Marginals, Monitor, Trace

MODEL = Pairwise({"u": pc.Binary(3), "c": pc.Categorical(3), "x": pc.Real(2, scale=0.7)}, seed=3).model


def run(observers, steps=30, rows=4, clamp=None):
    generator = MODEL.generator(0)
    moves = []
    chain = pc.Chain(MODEL, scan="systematic", clamp=clamp, generator=generator)
    chain.run(pc.initializers.initial_state(MODEL, rows, generator), steps, [*observers, moves.append])
    return moves


@pytest.mark.parametrize("name", ["u", "c", "x"])
def test_marginals_average_conditionals(name):
    family = MODEL.variables[name]
    blackwell, plain = Marginals(family, name), Marginals(family, name, rao_blackwell=False)
    moves = [m for m in run([blackwell, plain]) if m.name == name]
    means = torch.stack([m.distribution.mean for m in moves])
    torch.testing.assert_close(blackwell.mean, means.mean(0))
    total = torch.stack([m.distribution.variance for m in moves]).mean(0) + means.var(0, correction=0)
    torch.testing.assert_close(blackwell.variance, total)
    draws = torch.stack([family.encode(m.value).double() for m in moves])
    torch.testing.assert_close(plain.mean, draws.mean(0))


def test_marginals_of_rows_that_choose_for_themselves():
    observer, moves = Marginals(MODEL.variables["u"], "u"), []
    generator = MODEL.generator(0)
    chain = pc.Chain(MODEL, per_row=True, batch=5, generator=generator)
    chain.run(pc.initializers.initial_state(MODEL, 5, generator), 40, [observer, moves.append])
    for row in range(5):
        seen = [m.distribution.mean[m.rows == row] for m in moves if m.name == "u" and bool((m.rows == row).any())]
        torch.testing.assert_close(observer.mean[row], torch.cat(seen).mean(0))
    with pytest.raises(pc.InputError, match="'c' was never redrawn"):
        _ = Marginals(MODEL.variables["c"], "c").mean


def test_clamped_coordinates_count_with_their_value():
    mask = torch.tensor([[True, False], [False, False]])
    observer = Marginals(MODEL.variables["x"], "x")
    moves = [m for m in run([observer], rows=2, clamp={"x": mask}) if m.name == "x"]
    assert float(observer.mean[0, 0]) == pytest.approx(float(moves[0].value[0, 0]))
    assert float(observer.variance[0, 0]) == pytest.approx(0, abs=1e-12) and float(observer.variance[0, 1]) > 0.1


def test_memory_does_not_grow_with_the_chain():
    def held(steps):
        monitor, marginals = Monitor(MODEL.variables["x"], "x", 2, steps // 3), Marginals(MODEL.variables["x"], "x")
        run([monitor, marginals], steps=steps)
        held = [v for trace in monitor.traces for v in vars(trace).values() if isinstance(v, torch.Tensor)]
        return sum(v.numel() for v in held) + marginals.centre.numel() + marginals.spread.numel()

    assert held(60) == held(600)


def convergence(draws):
    """R-hat, ess and mcse of raw draws [chains, n], with no conditional variance."""
    trace = Trace(*draws.shape)
    for now in draws.T:
        trace.add(now[:, None], torch.zeros(len(draws), 1, dtype=torch.float64))
    return trace.convergence()


def textbook_split_r_hat(draws):
    """Gelman et al., Bayesian Data Analysis, 3rd edition, section 11.4."""
    halves = torch.cat(draws.chunk(2, 1))
    n = halves.shape[1]
    between, within = n * halves.mean(1).var(), halves.var(1).mean()
    return (((n - 1) / n * within + between / n) / within).sqrt()


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_r_hat_is_the_textbook_one(shift):
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(4, 160, generator=generator, dtype=torch.float64) + shift * torch.arange(4.0).view(4, 1)
    r_hat, _, _ = convergence(draws)
    assert float(r_hat) == pytest.approx(float(textbook_split_r_hat(draws)), rel=1e-12)


def test_ess_of_independent_draws_is_their_number():
    draws = torch.randn(64, 1600, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, ess, _ = convergence(draws)
    assert float(ess) == pytest.approx(draws.numel(), rel=0.3)


def test_one_chain_alone_has_no_r_hat():
    draws = torch.randn(1, 160, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    r_hat, ess, _ = convergence(draws)
    assert bool(r_hat.isnan())
    assert float(ess) == pytest.approx(160, rel=0.6)


def test_variances_survive_large_means_in_single_precision():
    """x = 3000 + u with u | rest of variance 1: sums of squares in float32 would lose it all."""
    weight = torch.zeros(1, 1)
    model = pc.JointModel(
        {
            "x": pc.Conditional(pc.Real(1, scale=1.0), Linear(torch.full((1,), 3000.0), {"b": weight})),
            "b": pc.Conditional(pc.Binary(1), Linear(torch.zeros(1), {"x": weight})),
        }
    )
    answer = pc.query(model, {}, ["x"], stop=pc.Sweeps(100))
    assert float(answer.std["x"]) == pytest.approx(1, abs=1e-4)
    assert float(answer.diagnostics.r_hat["x"]) < 1.01
    clamped = pc.query(model, {"x": torch.full((1, 1), 3000.7)}, ["x"], stop=pc.Sweeps(10))
    assert float(clamped.std["x"]) == 0


def test_stuck_chains_have_as_many_draws_as_chains():
    draws = torch.arange(8.0, dtype=torch.float64).view(8, 1).expand(8, 160)
    r_hat, ess, _ = convergence(draws.contiguous())
    assert float(r_hat) > 100
    assert float(ess) == pytest.approx(7, rel=0.01)


def test_the_standard_error_of_independent_draws():
    draws = torch.randn(64, 1600, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, _, error = convergence(draws)
    assert float(error) == pytest.approx(draws.numel() ** -0.5, rel=0.2)


def test_a_probability_that_is_known_needs_no_more_draws():
    """Chains that disagree on whether a class has probability 1e-9 or 1e-7 agree for all purposes."""

    def report(p):
        monitor = Monitor(pc.Binary(1), "b", chains=4, length=32)
        for _ in range(32):
            monitor(Move("b", Fixed(p, p * (1 - p)), torch.zeros(4, 1), torch.zeros(4, 1), None))
        return [float(v) for v in monitor.report()]

    assert report(torch.tensor([[1e-9], [1e-7], [1e-9], [1e-7]], dtype=torch.float64)) == [1.0, float("inf")]
    r_hat, ess = report(torch.tensor([[0.01], [0.5], [0.01], [0.5]], dtype=torch.float64))
    assert r_hat > 1.1
    assert ess < 20


def test_a_constant_has_mixed_and_one_redraw_says_nothing():
    r_hat, ess, _ = convergence(torch.full((4, 32), 0.1, dtype=torch.float64))
    assert float(r_hat) <= 1 and float(ess) == float("inf")
    r_hat, ess, _ = convergence(torch.ones(4, 32, dtype=torch.float64)[:, :1])
    assert bool(r_hat.isnan()) and bool(ess.isnan())


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_units_do_not_matter(unit):
    """Also not those of squares, which are of the fourth order."""
    draws = torch.randn(4, 160, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + torch.arange(
        4.0
    ).view(4, 1, 1)
    found = []
    for scaled in (draws, unit * draws):
        monitor = Monitor(pc.Real(1), "x", chains=4, length=160)
        for now in scaled.transpose(0, 1):
            monitor(Move("x", Fixed(now, torch.zeros_like(now)), now, now, None))
        found.append(torch.cat([torch.cat(trace.convergence()[:2]) for trace in monitor.traces]))
    torch.testing.assert_close(*found)


class Fixed:
    """A distribution, as far as observers look at it."""

    def __init__(self, mean, variance):
        self.mean, self.variance = mean, variance


def test_ess_of_a_gaussian_chain_is_the_closed_form():
    """x | y ~ N(rho y, 1 - rho^2) and back: the conditional means of x are an AR(1) sequence with coefficient rho^2,
    so N sweeps are worth N (1 - rho^2) / (rho^2 (1 + rho^2)) independent draws of x."""
    rho, chains, sweeps = 0.8, 64, 4000
    scale = (1 - rho**2) ** 0.5
    weight = torch.full((1, 1), rho, dtype=torch.float64)
    model = pc.JointModel(
        {
            name: pc.Conditional(pc.Real(1, scale=scale), Linear(torch.zeros(1), {other: weight}))
            for name, other in (("x", "y"), ("y", "x"))
        }
    ).double()
    answer = pc.query(model, {}, ["x"], chains=chains, stop=pc.Sweeps(sweeps, 50))
    expected = chains * sweeps * (1 - rho**2) / (rho**2 * (1 + rho**2))
    assert float(answer.diagnostics.ess["x"]) == pytest.approx(expected, rel=0.4)
    assert float(answer.diagnostics.r_hat["x"]) < 1.01
    assert float(answer.std["x"]) == pytest.approx(1, rel=0.02)


def watched(values, variances, family, chains):
    """R-hat and ess of conditional means and variances `[redraws, rows, coordinates]`."""
    monitor = Monitor(family, "x", chains, len(values))
    for mean, variance in zip(values, variances, strict=True):
        monitor(Move("x", Fixed(mean, variance), mean, mean, None))
    return monitor.report()


def test_every_coordinate_of_a_large_group_is_watched():
    """One of 500 stands still in every chain; nothing of it is seen in sums over all."""
    random = torch.Generator().manual_seed(0)
    for family, values in (
        (pc.Real(500), torch.randn(256, 8, 500, generator=random, dtype=torch.float64)),
        (pc.Binary(500), torch.rand(256, 8, 500, generator=random, dtype=torch.float64)),
    ):
        variances = 0.1 * torch.ones_like(values)
        r_hat, ess = watched(values, variances, family, 8)
        assert float(r_hat) < 1.1 and float(ess) > 300
        values[:, :, 321] = torch.tensor([0.0, 1, 0, 1, 1, 0, 1, 0], dtype=torch.float64)
        r_hat, ess = watched(values, variances, family, 8)
        assert float(r_hat) > 1.5 and float(ess) < 30


def test_scales_that_stand_still_are_seen():
    """Conditional means are zero in all chains; conditional variances differ between them, or move between batches."""
    zero = torch.zeros(128, 4, 2, dtype=torch.float64)
    alike = torch.ones_like(zero)
    r_hat, ess = watched(zero, alike, pc.Real(2), 4)
    assert float(r_hat) <= 1 and float(ess) == float("inf")
    differ = alike * torch.tensor([1.0, 1, 9, 9], dtype=torch.float64).view(1, 4, 1)
    r_hat, ess = watched(zero, differ, pc.Real(2), 4)
    assert float(r_hat) > 1.05 and float(ess) < 40
    slow = alike.clone()
    slow[32:96] = 9  # the halves of a chain agree
    assert float(watched(zero, slow, pc.Real(2), 4)[1]) < 400


def test_many_chains_that_agree_are_not_known_for_that():
    """512 chains with a slow bit each: their mean has an error under .005, but none of them has moved."""
    p = torch.where(torch.arange(512) < 5, 0.9, 0.001).double()[:, None].expand(512, 1)
    values = p.expand(64, 512, 1)
    r_hat, ess = watched(values, values * (1 - values), pc.Binary(1), 512)
    assert float(r_hat) > 1.05 and float(ess) < 512 * 10


def test_questions_have_references_of_their_own():
    """The scale of one question is seen, though the mean of another is far away."""
    random = torch.Generator().manual_seed(0)
    mean = 0.1 * torch.randn(256, 8, 1, generator=random, dtype=torch.float64)
    mean[:, 4:] += 1e6
    variance = torch.ones_like(mean)
    variance[:, 2:4] = 9
    r_hat, ess = watched(mean, variance, pc.Real(1), 4)
    assert float(r_hat[0]) > 1.05 and float(r_hat[1]) < 1.02
    assert float(ess[0]) < 40 and float(ess[1]) > 1000
