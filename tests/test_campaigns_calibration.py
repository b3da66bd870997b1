"""Answers about joints that are known exactly: "converged" is right, ranks are uniform, and intervals hold."""

import json
import warnings
from dataclasses import replace

import calibration
import pytest
import torch
from helpers import assert_mean
from joints import Gaussians, emitting, mixed, scale_mixture, slow_start, stuck

import paracond as pc

# --- "converged" is right, or is not said: three models that were wrong with confidence ---------------------------


def asked(joint, name, chains=8, seeds=range(4), limit=992):
    """Answers about a group of a joint by chains that never begin anew, and its exact moments."""
    state = joint.draw(1, torch.Generator().manual_seed(0))
    exact = joint.posterior(state, {n: torch.zeros_like(v, dtype=torch.bool) for n, v in state.items()})[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pc.NotMixedWarning)
        stop = pc.Converged(limit=limit)
        answers = [pc.query(joint.model, {}, [name], stop=stop, chains=chains, seed=seed) for seed in seeds]
    return answers, *exact


@pytest.mark.parametrize("ratio, size", [(100.0, 1), (8.0, 4), (4.0, 12)])
def test_the_scale_of_a_mixture_is_right_where_chains_have_converged(ratio, size):
    """Its mean is zero in every state of the chain. 200 draws know the scale of such a mixture to 5 or 7%."""
    joint = scale_mixture(torch.Generator().manual_seed(0), ratio, size)
    answers, _, std = asked(joint, "x")
    for answer in answers:
        if answer.diagnostics.converged:
            assert float((answer.std["x"] / std - 1).abs().max()) < 0.25
            assert answer.diagnostics.sweeps > answer.diagnostics.measured
    assert any(answer.diagnostics.converged for answer in answers) or size > 1


@pytest.mark.parametrize("numbers, gap", [(True, 3.2), (False, 7.0)])
def test_one_stuck_coordinate_of_hundreds_is_seen(numbers, gap):
    joint = stuck(torch.Generator().manual_seed(0), 300, gap, numbers)
    answers, _, _ = asked(joint, "x", seeds=range(2), limit=480)
    assert not any(answer.diagnostics.converged for answer in answers)
    assert all(float(answer.diagnostics.r_hat["x"]) > 1.1 for answer in answers)


@pytest.mark.parametrize("correlation", [0.7, 0.8])
def test_many_chains_do_not_make_runs_shorter(correlation):
    """512 chains begin 3 standard deviations away, and forget it with correlation^2 per sweep."""
    joint = Gaussians(torch.tensor([correlation]), torch.tensor([3.0]))
    answers, mean, std = asked(joint, "x", chains=512)
    z = [float((a.mean["x"] - mean) / std * a.diagnostics.ess["x"].sqrt()) for a in answers]
    assert all(answer.diagnostics.converged for answer in answers)
    assert sum(v * v for v in z) < 28  # chi-square with 6 degrees of freedom, 1e-4; the error of ess is small
    assert all(float((answer.std["x"] / std - 1).abs()) < 0.05 for answer in answers)


def test_the_first_stretch_is_never_the_answer():
    """Where all draws are independent of each other and of the first state, it would do."""
    joint = Gaussians(torch.tensor([0.0]), torch.tensor([0.0]))
    (answer,), _, _ = asked(joint, "x", seeds=[0])
    assert answer.diagnostics.converged and (answer.diagnostics.sweeps, answer.diagnostics.measured) == (96, 64)
    with pytest.warns(pc.NotMixedWarning, match="limit of 1 sweeps"):
        answer = pc.query(joint.model, {}, ["x"], stop=pc.Converged(ess=0, limit=1))
    assert not answer.diagnostics.converged


# --- the campaign -------------------------------------------------------------------------------------------------

JOINTS = {
    "mixed": mixed,
    "scale mixture": lambda g: scale_mixture(g, 3.0, 3),
    "stuck number": lambda g: stuck(g, 5, 1.2, True, 0.3),
    "stuck bit": lambda g: stuck(g, 5, 2.0, False, 0.3),
    "slow start": slow_start,
    **{name: lambda g, family=family: emitting(g, family) for name, family in calibration.FAMILIES.items()},
}


@pytest.mark.parametrize("name", JOINTS)
def test_the_conditionals_of_a_known_joint_are_those_of_its_posterior(name):
    """All others given, a query is exact; so is the posterior, by another way."""
    generator = torch.Generator().manual_seed(3)
    joint = JOINTS[name](generator)
    state = joint.draw(30, generator)
    every = {n: torch.ones_like(value, dtype=torch.bool) for n, value in state.items()}
    for group in state:
        mean, std = joint.posterior(state, every | {group: ~every[group]})[group]
        answer = pc.query(joint.model, {n: v for n, v in state.items() if n != group}, [group])
        found = answer.probabilities[group] if joint.model.variables[group].finite else answer.mean[group]
        torch.testing.assert_close(found, mean)
        if group in answer.std:
            torch.testing.assert_close(answer.std[group], std, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", JOINTS)
def test_posteriors_are_moments_of_draws(name):
    """E (x - E[x | known]) = 0 and E (x - E[x | known])^2 = E Var[x | known], over draws of everything."""
    generator = torch.Generator().manual_seed(4)
    joint = JOINTS[name](generator)
    state = joint.draw(20_000, generator)
    known = calibration.clamps(state, generator)
    for group, (mean, std) in joint.posterior(state, known).items():
        gap = joint.model.variables[group].encode(state[group]).double() - mean
        assert_mean(gap, 0.0, group)
        assert_mean(gap**2 - std**2, 0.0, group)


def test_ranks_are_uniform_only_where_draws_are_right():
    generator = torch.Generator().manual_seed(0)
    true, draws = torch.randn(4000, generator=generator), torch.randn(4000, 63, generator=generator)
    assert calibration.uniformity(calibration.ranks(true, draws, generator)) > 1e-3
    assert calibration.uniformity(calibration.ranks(true, 1.2 * draws, generator)) < 1e-6
    coins, tosses = (true > 0).double(), (draws > 0).double()  # ties
    assert calibration.uniformity(calibration.ranks(coins, tosses, generator)) > 1e-3
    assert calibration.uniformity(calibration.ranks(coins, (draws > 0.3).double(), generator)) < 1e-6


def test_equal_questions_count_once():
    state = {"a": torch.tensor([1.0, 1.0, 0.0, 1.0]), "x": torch.tensor([[0.5], [0.7], [0.5], [0.7]])}
    known = {"a": torch.tensor([True, True, True, True]), "x": torch.zeros(4, 1, dtype=torch.bool)}
    assert calibration.distinct(state, known).tolist() == [True, False, True, False]
    known["x"] = torch.ones(4, 1, dtype=torch.bool)
    assert calibration.distinct(state, known).tolist() == [True, True, True, False]


def test_the_error_of_a_share_is_that_over_questions():
    """Ten answers to each question that agree are worth one."""
    hits = torch.rand(4000, 1, generator=torch.Generator().manual_seed(0)) < 0.9
    alone, tenfold = calibration.Share(), calibration.Share()
    alone.add(hits, torch.ones_like(hits))
    tenfold.add(hits.expand(-1, 10), torch.ones(4000, 10, dtype=torch.bool))
    assert alone.value == pytest.approx(tenfold.value) and (alone.number, tenfold.number) == (4000, 40_000)
    assert alone.error == pytest.approx(tenfold.error) == pytest.approx((0.09 / 4000) ** 0.5, rel=0.05)


def test_a_small_campaign(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(calibration, "FAMILIES", {n: calibration.FAMILIES[n] for n in ("Binary", "Real, element")})
    few = {name: replace(model, rows=15) for name, model in calibration.MODELS.items()}
    monkeypatch.setattr(calibration, "MODELS", few)
    monkeypatch.setattr(calibration, "TURN", list(few))
    monkeypatch.setattr(calibration, "REPEATS", 1)
    monkeypatch.setattr(calibration, "STOPS", (pc.Tours(32),))
    calibration.main(["--count", "5", "--rows", "15", "--seed", "5", "--out", str(tmp_path)])
    found = {each["name"]: each["value"] for each in json.loads((tmp_path / "trust.json").read_text())["metrics"]}
    assert set(found) == {"coverage_min", "coverage_max", "sbc_failures"} and found["sbc_failures"] == 0
    assert 0.5 < found["coverage_min"] <= found["coverage_max"] <= 1  # few questions
    text = capsys.readouterr().out
    assert all(name in text for name in (*calibration.MODELS, "every family", *calibration.KINDS))
