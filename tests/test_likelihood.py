"""Likelihoods against enumeration and closed forms; scores of anomaly against their definitions."""

import math
import warnings

import pytest
import torch
from helpers import Pairwise, assert_mean

import paracond as pc
from paracond import initializers
from paracond.likelihood import RoughWarning, anomaly_score, log_likelihood

ANEW = pc.Regeneration(0.1, 2)


def inconsistent(seed=0, alpha=None):
    """A model whose conditionals belong to no joint."""
    groups = {"a": pc.Binary(3), "b": pc.Categorical(3), "z": pc.Binary(2)}
    torch.manual_seed(seed)
    networks = {name: pc.networks.mlp(groups, name, hidden=8, depth=1) for name in groups}
    model = pc.JointModel({n: pc.Conditional(f, networks[n]) for n, f in groups.items()}, alpha, regeneration=ANEW)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


MODEL = inconsistent()


def rows_with_holes(rows=60, seed=1):
    g = torch.Generator().manual_seed(seed)
    state = {"a": torch.randint(2, (rows, 3), generator=g).float(), "b": torch.randint(3, (rows,), generator=g)}
    return pc.Data(state, {"a": torch.rand(rows, 3, generator=g) < 0.7, "b": torch.rand(rows, generator=g) < 0.8})


def test_all_rows_have_the_probability_that_enumeration_gives():
    """The exact answers sum to one over what can be observed, and are the marginals of the limit."""
    finite = pc.exact.enumerate_model(MODEL)
    pi = pc.exact.limiting(finite.tours(None, ANEW))
    every = {"a": finite.values["a"].repeat_interleave(3, 0), "b": finite.values["b"].repeat(8)}
    found = log_likelihood(MODEL, every)
    torch.testing.assert_close(found.value.exp().view(8, 3), pi.sum(2))
    assert bool((found.error == 0).all() and found.ess.isinf().all())
    nothing = pc.Data({"a": torch.zeros(1, 3)}, {"a": torch.zeros(1, 3, dtype=torch.bool)})
    torch.testing.assert_close(log_likelihood(MODEL, nothing).value, torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("warmup", [1, 3])
def test_estimates_agree_with_enumeration_and_their_intervals_cover(warmup):
    """Rows share their draws, so 40 seeds of 60 rows count as 40 numbers: the mean coverage is 95% within 4 of their
    standard errors (by chance once in 10^4)."""
    data, anew = rows_with_holes(), pc.Regeneration(0.1, warmup)
    exact = log_likelihood(MODEL, data, regeneration=anew).value
    covered = []
    for seed in range(40):
        low, high = log_likelihood(MODEL, data, draws=1000, regeneration=anew, seed=seed).interval
        covered.append(((low - 1e-9 <= exact) & (exact <= high + 1e-9)).double().mean())
    share = torch.stack(covered)
    assert abs(float(share.mean()) - 0.95) < 4 * float(share.std()) / 40**0.5 + 0.005
    assert float(share.std()) < 0.15


def test_what_is_given_is_clamped():
    known = {"b": torch.tensor([1])}
    finite = pc.exact.enumerate_model(MODEL)
    pi = pc.exact.limiting(finite.tours({"b": torch.tensor(1)}, ANEW)).sum((1, 2))
    found = log_likelihood(MODEL, {"a": finite.values["a"]}, given=known, draws=20_000)
    gap = (found.value - pi.log()).abs() / found.error
    assert float(gap.max()) < 4.5
    part = {"a": pc.Observed(torch.ones(1, 3), torch.tensor([True, False, False]))}  # some coordinates of a group
    pi = pc.exact.limiting(finite.tours({"a": pc.Observed(torch.ones(3), part["a"].mask)}, ANEW)).sum((0, 2))
    found = log_likelihood(MODEL, {"b": torch.arange(3)}, given=part, draws=20_000)
    assert float(((found.value - pi.log()).abs() / found.error).max()) < 4.5


def test_a_real_joint_has_its_density():
    """Consistent conditionals and tours that reach the joint: log p(x) of a binary and a Gaussian group."""
    joint = Pairwise({"u": pc.Binary(2), "x": pc.Real(2, scale=0.8)}, seed=1)
    _, p, means = joint.joint()
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    normal = torch.distributions.Normal(means[None], torch.tensor(0.8, dtype=torch.float64))
    exact = (normal.log_prob(x[:, None]).sum(2) + p.log()).logsumexp(1)
    found = log_likelihood(joint.model, {"x": x}, draws=8000, regeneration=pc.Regeneration(0.05, 50))
    known = ~found.value.isnan()
    assert int(known.sum()) >= 18
    assert float(((found.value - exact).abs() / found.error)[known].max()) < 4.5


def test_the_answer_about_a_row_does_not_depend_on_the_others():
    data = rows_with_holes(20)
    whole = log_likelihood(MODEL, data, draws=500, seed=3)
    parts = [log_likelihood(MODEL, data[k : k + 7], draws=500, seed=3).value for k in (0, 7, 14)]
    torch.testing.assert_close(torch.cat(parts), whole.value, rtol=1e-6, atol=1e-6)


def test_a_rough_estimate_is_no_number():
    """Far from all that the model draws, a few draws dominate: the answer is NaN, and one warning says what to do."""
    joint = Pairwise({"u": pc.Binary(10), "x": pc.Real(30, scale=0.1)}, seed=0, strength=0.5)
    x = torch.cat([pc.sample(joint.model, rows=1)["x"], torch.full((2, 30), 3.0, dtype=torch.float64)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = log_likelihood(joint.model, {"x": x}, draws=100)
    assert [w.category for w in caught if issubclass(w.category, RoughWarning)] == [RoughWarning]
    assert "draws=1600" in str(caught[0].message) and caught[0].filename == __file__
    assert bool(found.value[1:].isnan().all() and found.error[1:].isnan().all()) and not bool(found.value[0].isnan())


def test_bad_questions_are_refused():
    with pytest.raises(pc.InputError, match="needs a sweep of warm-up"):
        log_likelihood(MODEL, {"b": torch.zeros(1)}, draws=100, regeneration=pc.Regeneration(0.1, 0))
    with pytest.raises(pc.InputError, match="'b' is given and also in the data"):
        log_likelihood(MODEL, {"b": torch.zeros(1)}, given={"b": torch.zeros(1)})
    with pytest.raises(pc.InputError, match="given must have one row"):
        log_likelihood(MODEL, {"b": torch.zeros(2)}, given={"a": torch.zeros(2, 3)})
    with pytest.raises(pc.InputError, match="draws must be a whole number, at least 2"):
        log_likelihood(MODEL, {"b": torch.zeros(1)}, draws=1)
    with pytest.raises(pc.InputError, match='use by="surprise"'):
        anomaly_score(MODEL, {"b": torch.zeros(1)}, by="evidence")
    with pytest.raises(pc.InputError, match="by must be one of evidence, surprise"):
        anomaly_score(MODEL, {"b": torch.zeros(1)}, by="size")


# --- anomaly ----------------------------------------------------------------------------------------------------------


def test_surprise_is_the_gap_between_a_redraw_and_the_value():
    """Without latents its expectation is minus the entropy minus the score of the value, group by group."""
    groups = {"a": pc.Binary(3), "b": pc.Categorical(3)}
    torch.manual_seed(0)
    networks = {name: pc.networks.mlp(groups, name, hidden=8, depth=1) for name in groups}
    model = pc.JointModel({n: pc.Conditional(f, networks[n]) for n, f in groups.items()})
    state = {"a": torch.tensor([[1.0, 0, 1]]), "b": torch.tensor([2])}
    with torch.no_grad():
        laws = {name: model(name, state) for name in groups}
    exact = sum(-law.entropy.sum() - law.scores(state[name]).sum() for name, law in laws.items())
    draws = torch.stack([anomaly_score(model, state, draws=50, seed=seed) for seed in range(0, 2000, 50)])
    assert_mean(draws[:, 0], exact)


def test_rows_of_a_consistent_joint_have_no_surprise_on_average():
    joint = Pairwise({"u": pc.Binary(3), "c": pc.Categorical(3)}, seed=2)
    rows = pc.sample(joint.model, rows=4000, regeneration=pc.Regeneration(0.02, 100))
    assert_mean(anomaly_score(joint.model, rows, draws=1), 0.0)


def with_initializer():
    groups = {"x": pc.Real(4, scale="coordinate"), "c": pc.Categorical(3)}
    torch.manual_seed(0)
    data = torch.randn(600, 4) @ torch.randn(4, 4)
    classes = torch.arange(600) % 3
    init = initializers.pca(groups, "x", ["c"], rank=2)
    conditionals = {
        "x": pc.Conditional(groups["x"], pc.networks.mlp(groups, "x", hidden=8), init),
        "c": pc.Conditional(groups["c"], pc.networks.mlp(groups, "c", hidden=8)),
    }
    model = pc.JointModel(conditionals)
    initializers.fit(model, pc.Data({"x": data + classes[:, None], "c": classes}))
    return model


@pytest.mark.parametrize("seen", [[True] * 4, [True, False, True, False]])
@pytest.mark.parametrize("known", [True, False])
def test_evidence_is_the_density_of_the_initializer(seen, known):
    """A Gaussian mixture with covariance A'A + sigma^2, over the classes if they are not known."""
    model, mask = with_initializer(), torch.tensor(seen)
    init = model.conditional("x").init
    covariance = init.directions.T @ init.directions + (2 * init._log_scale()).exp() * torch.eye(4)
    x, c = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])
    data = {"x": x, "c": c} if known else {"x": x}
    found = anomaly_score(model, pc.Data(data, {"x": mask.expand(5, 4)}), draws=4000)
    covariance = covariance[mask][:, mask].double()
    means = torch.stack([init._mean({"c": model.variables["c"].encode(torch.tensor([k]))})[0] for k in range(3)])
    law = torch.distributions.MultivariateNormal(means[:, mask].double()[None], covariance)
    scores = law.log_prob(x[:, mask].double()[:, None])
    exact = scores.gather(1, c[:, None])[:, 0] if known else scores.logsumexp(1) - math.log(3)
    torch.testing.assert_close(-found, exact, rtol=1e-4, atol=1e-4 if known else 0.1)  # 4,000 draws of the class


def test_outliers_score_higher():
    model = with_initializer()
    near, far = torch.zeros(50, 4), torch.full((50, 4), 9.0)
    for by in ("evidence", "surprise"):
        scores = anomaly_score(model, {"x": torch.cat([near, far])}, by=by)
        assert float(scores[50:].min()) > float(scores[:50].max())
