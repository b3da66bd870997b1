"""What observers accumulate, against plain averages, the textbook R-hat, and closed forms."""

import pytest
import torch
from helpers import Linear, Pairwise

import paracond as pc
from paracond.chain import Move
from paracond.observers import Marginals, Monitor, convergence

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
        return monitor.sums.numel() + marginals.centre.numel() + marginals.spread.numel()

    assert held(60) == held(600)


def sums_of(draws, slots):
    """Raw draws [chains, n] as the sums that `convergence` takes, with no conditional variance."""
    parts = draws.view(len(draws), slots, -1).transpose(0, 1)  # [slots, chains, n / slots]
    stacked = torch.stack([parts.sum(-1), (parts**2).sum(-1), torch.zeros_like(parts.sum(-1))], 1)
    return stacked.unsqueeze(-1), torch.full((slots,), parts.shape[-1], dtype=torch.float64)


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
    r_hat, _, _ = convergence(*sums_of(draws, 16), chains=4)
    assert float(r_hat) == pytest.approx(float(textbook_split_r_hat(draws)), rel=1e-12)


def test_ess_of_independent_draws_is_their_number():
    draws = torch.randn(64, 1600, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, ess, _ = convergence(*sums_of(draws, 16), chains=64)
    assert float(ess) == pytest.approx(draws.numel(), rel=0.3)


def test_one_chain_alone_has_no_r_hat():
    draws = torch.randn(1, 160, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    r_hat, ess, _ = convergence(*sums_of(draws, 16), chains=1)
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
    r_hat, ess, _ = convergence(*sums_of(draws.contiguous(), 16), chains=8)
    assert float(r_hat) > 100
    assert float(ess) == pytest.approx(7, rel=0.01)


def test_the_standard_error_of_independent_draws():
    draws = torch.randn(64, 1600, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, _, error = convergence(*sums_of(draws, 16), chains=64)
    assert float(error) == pytest.approx(draws.numel() ** -0.5, rel=0.2)


def test_a_probability_that_is_known_needs_no_more_draws():
    """Chains that disagree on whether a class has probability 1e-9 or 1e-7 agree for all purposes."""

    class Fixed:
        def __init__(self, p):
            self.mean, self.variance = p, p * (1 - p)

    def report(p):
        monitor = Monitor(pc.Binary(1), "b", chains=4, length=32)
        for _ in range(32):
            monitor(Move("b", Fixed(p), torch.zeros(4, 1), torch.zeros(4, 1), None))
        return [float(v) for v in monitor.report()]

    assert report(torch.tensor([[1e-9], [1e-7], [1e-9], [1e-7]], dtype=torch.float64)) == [1.0, float("inf")]
    r_hat, ess = report(torch.tensor([[0.01], [0.5], [0.01], [0.5]], dtype=torch.float64))
    assert r_hat > 1.1
    assert ess < 20


def test_a_constant_has_mixed_and_one_slot_says_nothing():
    r_hat, ess, _ = convergence(*sums_of(torch.ones(4, 32, dtype=torch.float64), 16), chains=4)
    assert float(r_hat) == 1 and float(ess) == float("inf")
    r_hat, ess, _ = convergence(*sums_of(torch.ones(4, 32, dtype=torch.float64), 1), chains=4)
    assert bool(r_hat.isnan()) and bool(ess.isnan())


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


def test_large_groups_are_watched_through_projections():
    variables = {"x": pc.Real(100, scale=1.0), "b": pc.Binary(1)}
    model = Pairwise(variables, seed=0, strength=0.05).model
    answer = pc.query(model, {}, ["x"], chains=8, stop=pc.Sweeps(200))
    assert float(answer.diagnostics.r_hat["x"]) < 1.1
    monitor = Monitor(variables["x"], "x", 8, 20)
    chain = pc.Chain(model, scan="systematic", generator=model.generator(0))
    chain.run(pc.initializers.initial_state(model, 8, model.generator(0)), 40, [monitor])
    assert monitor.sums.shape[-1] == 64
