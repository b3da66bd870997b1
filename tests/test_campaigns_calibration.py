"""Answers about joints that are known exactly: "converged" is right, ranks are uniform, and intervals hold."""

import warnings

import pytest
import torch
from joints import Gaussians, scale_mixture, stuck

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
