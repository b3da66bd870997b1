"""Noise along a few directions, against Gaussians with full covariance matrices."""

import pytest
import torch
from helpers import DEVICES, assert_mean
from torch.distributions import MultivariateNormal

import paracond as pc
from paracond.directions import Stirred, around

SHAPE, RANK, SIGMA = (2, 3), 2, 0.4


def stirred(rows=3, seed=0):
    """A law with orthogonal directions of lengths 1 and 0.5, and its covariance `[6, 6]`."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(6, RANK, generator=generator, dtype=torch.float64)).Q.T
    directions = basis * torch.tensor([[1.0], [0.5]], dtype=torch.float64)
    mu = torch.randn(rows, *SHAPE, generator=generator, dtype=torch.float64)
    law = Stirred(mu, torch.tensor(SIGMA, dtype=torch.float64).log(), directions)
    return law, SIGMA**2 * torch.eye(6, dtype=torch.float64) + directions.T @ directions


def exact(law, covariance):
    return MultivariateNormal(law.mu.flatten(1), covariance)


def conditioned(law, covariance, value, known):
    """Mean and covariance of the unknown coordinates of one row, by the textbook."""
    hidden, mu = ~known, law.mu[0].flatten()
    gain = covariance[hidden][:, known] @ torch.linalg.inv(covariance[known][:, known])
    mean = mu[hidden] + gain @ (value.flatten() - mu)[known]
    return mean, covariance[hidden][:, hidden] - gain @ covariance[known][:, hidden]


def test_scores_add_up_to_the_density():
    law, covariance = stirred()
    value = torch.randn(3, *SHAPE, dtype=torch.float64)
    assert torch.allclose(law.log_prob(value), exact(law, covariance).log_prob(value.flatten(1)), rtol=1e-12)
    assert torch.allclose(law.entropy.flatten(1).sum(1), exact(law, covariance).entropy(), rtol=1e-12)
    assert torch.allclose(law.variance.flatten(1), covariance.diagonal().expand(3, 6), rtol=1e-12)


def test_draws_have_its_covariance():
    law, covariance = stirred(1)
    many = Stirred(law.mu.expand(40_000, *SHAPE), law.log_scale, law.directions)
    gap = (many.sample(torch.Generator().manual_seed(1)) - law.mu).flatten(1)
    assert_mean(gap, torch.zeros(6))
    assert_mean((gap.unsqueeze(1) * gap.unsqueeze(2)).flatten(1), covariance.flatten())


@pytest.mark.parametrize("known", [[0, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]])
def test_known_coordinates_say_something_of_the_others(known):
    law, covariance = stirred(1)
    known = torch.tensor(known, dtype=torch.bool)
    value = torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mean, spread = conditioned(law, covariance, value, known)
    given = law.given(value, known.view(1, *SHAPE))
    assert torch.allclose(given.mean.flatten()[~known], mean, rtol=1e-10)
    assert torch.allclose(given.variance.flatten()[~known], spread.diagonal(), rtol=1e-10)
    rows = 40_000
    many = Stirred(law.mu.expand(rows, *SHAPE), law.log_scale, law.directions)
    clamp = known.view(1, *SHAPE).expand(rows, *SHAPE)
    drawn = many.redraw(value.expand(rows, *SHAPE), clamp, torch.Generator().manual_seed(1)).flatten(1)
    assert torch.equal(drawn[:, known], value.flatten()[known].expand(rows, -1))
    gap = drawn[:, ~known] - mean
    assert_mean(gap, torch.zeros(len(mean)))
    assert_mean((gap.unsqueeze(1) * gap.unsqueeze(2)).flatten(1), spread.flatten())


def test_rows_may_know_different_coordinates():
    law, covariance = stirred(3)
    known = torch.tensor([[1, 0, 0, 1, 0, 1], [0, 1, 1, 1, 0, 0], [1, 0, 0, 1, 0, 1]], dtype=torch.bool)
    value = torch.randn(3, *SHAPE, dtype=torch.float64)
    given = law.given(value, known.view(3, *SHAPE))
    for k in range(3):
        one = Stirred(law.mu[k : k + 1], law.log_scale, law.directions)
        mean, spread = conditioned(one, covariance, value[k], known[k])
        assert torch.allclose(given.mean[k].flatten()[~known[k]], mean, rtol=1e-10)
        assert torch.allclose(given.variance[k].flatten()[~known[k]], spread.diagonal(), rtol=1e-10)


def test_low_precision_of_networks_does_not_touch_it():
    law, _ = stirred(2)
    law = Stirred(law.mu.float(), law.log_scale.float(), law.directions.float())
    known = torch.tensor([1, 0, 0, 1, 0, 1], dtype=torch.bool).view(1, *SHAPE)
    value = torch.randn(2, *SHAPE)

    def found():
        given, generator = law.given(value, known), torch.Generator().manual_seed(0)
        drawn = [each.sample(generator) for each in (law, given)]
        return [given.mean, given.variance, law.scores(value), law.around(value).mean, *drawn]

    exact_ones = found()
    with torch.autocast("cpu", torch.bfloat16):
        assert all(torch.equal(a, b) for a, b in zip(found(), exact_ones, strict=True))


def test_around_a_value_coordinates_are_independent():
    """Its mean is mu + A' E[u | x], and the law is untouched where there is nothing in common."""
    law, covariance = stirred(2)
    value = torch.randn(2, *SHAPE, dtype=torch.float64)
    common = law.directions.T @ law.directions @ torch.linalg.inv(covariance)
    near = around(law, value)
    assert type(near) is pc.families.Gaussian
    assert torch.allclose(near.mean.flatten(1), law.mu.flatten(1) + (value - law.mu).flatten(1) @ common.T, rtol=1e-10)
    assert around(near, value) is near


# --- in a model -------------------------------------------------------------------------------------------------


def model_of(scale: str | float = SIGMA, stir=(2, 0.5), learned=False, rows=200, device="cpu"):
    """x in R^6 given c, with a fitted start of three directions."""
    torch.manual_seed(0)
    variables = {"x": pc.Real(SHAPE, scale=scale), "c": pc.Binary(1)}
    start = pc.networks.components(variables, "x", ["c"], 3, learned=learned)
    conditionals = {
        "x": pc.Conditional(variables["x"], pc.networks.mlp(variables, "x", hidden=8), start, stir),
        "c": pc.Conditional(variables["c"], pc.networks.mlp(variables, "c", hidden=8)),
    }
    model = pc.JointModel(conditionals).double().to(device)
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.5, 0.5], dtype=torch.float64)
    turned = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q  # along no axis
    x = (torch.randn(rows, 6, generator=generator, dtype=torch.float64) * scales @ turned).view(rows, *SHAPE)
    data = pc.Data({"x": x, "c": (torch.arange(rows) % 2).double().unsqueeze(1)})
    model.fit_starts(data, 0)
    return model, data


def test_a_conditional_has_noise_along_the_first_directions_of_its_start():
    model, data = model_of()
    law = model("x", {"c": data.state["c"]})
    directions = model.conditional("x").start.directions
    assert isinstance(law, Stirred) and torch.equal(law.directions, 0.5 * directions[:2])
    products = directions @ directions.T
    assert torch.allclose(products, products.diagonal().diag(), atol=1e-10)  # orthogonal
    covariance = SIGMA**2 * torch.eye(6, dtype=torch.float64) + law.directions.T @ law.directions
    assert torch.allclose(law.log_prob(data.state["x"]), exact(law, covariance).log_prob(data.state["x"].flatten(1)))


@pytest.mark.parametrize("device", DEVICES)
def test_a_question_about_hidden_coordinates_has_the_exact_answer(device):
    """With c clamped x is redrawn from one law: the mean marginal of what is hidden is the conditional mean."""
    model, data = model_of(device=device)
    one = {name: value[:1] for name, value in data.state.items()}
    known = torch.tensor([1, 0, 0, 1, 1, 0], dtype=torch.bool)
    found = pc.query(
        model, {"c": one["c"], "x": pc.Observed(one["x"], known.view(1, *SHAPE))}, ["x"], chains=2, until=8, warmup=1
    )
    law = model.cpu()("x", {"c": one["c"]})
    covariance = SIGMA**2 * torch.eye(6, dtype=torch.float64) + law.directions.T @ law.directions
    mean, _ = conditioned(law, covariance, one["x"], known)
    assert torch.allclose(found.mean["x"].cpu().flatten()[~known], mean.detach(), rtol=1e-8)


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_saved_and_learned_with(tmp_path, device):
    model, data = model_of("learned", device=device)
    half = pc.Restart(0.5, "x", lambda rows, generator, device: torch.arange(6, device=device).view(1, *SHAPE) < 3)
    pc.Learner(model, data, chain_length=2, batch_size=8, restarts=[half]).fit(5)
    model.cpu()
    model.save(tmp_path)
    again = pc.JointModel.load(tmp_path)
    assert again.conditional("x").stir == (2, 0.5) and again.conditional("c").stir is None
    state = {"c": data.state["c"][:4]}
    assert torch.equal(again("x", state).variance, model.eval()("x", state).variance)


def test_rows_that_restart_are_redrawn_given_what_is_seen():
    """In a running batch, x at the hidden coordinates has the law of x given c and the seen ones, row by row."""
    model, data = model_of(rows=4000)
    known = torch.tensor([1, 1, 0, 0, 1, 0], dtype=torch.bool)
    half = pc.Restart(0.5, "x", lambda rows, generator, device: known.view(1, *SHAPE).expand(rows, *SHAPE))
    still = {"chain_length": 1e9, "scan": "systematic", "optimiser": lambda _, p: torch.optim.SGD(p, lr=0.0)}
    learner = pc.Learner(model, data, batch_size=4000, restarts=[half], **still)
    learner.scan.last = 0  # c has the first turn
    learner.step()
    c = learner.batch["c"][2000:].clone()
    assert learner.step().variable == "x"
    law, x = model("x", {"c": c}), learner.batch["x"][2000:].flatten(1)
    covariance = SIGMA**2 * torch.eye(6, dtype=torch.float64) + law.directions.T @ law.directions
    assert torch.equal(x[:, known], learner.restarts.truth["x"].flatten(1)[:, known])
    rows = [
        conditioned(Stirred(mu[None], law.log_scale, law.directions), covariance, v, known)
        for mu, v in zip(law.mu.detach(), x, strict=True)
    ]
    gap, spread = x[:, ~known] - torch.stack([mean for mean, _ in rows]), rows[0][1]
    assert_mean(gap, torch.zeros(3))
    assert_mean((gap.unsqueeze(1) * gap.unsqueeze(2)).flatten(1), spread.flatten())


def test_learning_finds_sigma_beside_the_common_noise():
    """The mean score of many draws is largest at the sigma that they have."""
    law, _ = stirred(1)
    many = Stirred(law.mu.expand(100_000, *SHAPE), law.log_scale, law.directions)
    value = many.sample(torch.Generator().manual_seed(0))
    log_scale = law.log_scale.clone().requires_grad_()
    score = Stirred(many.mu, log_scale, law.directions).log_prob(value)
    (slope,) = torch.autograd.grad(score.mean(), log_scale)
    each = 2 * 6**0.5  # of one row: minus 6 plus a chi-squared of about as many degrees
    assert abs(float(slope)) < 4 * each / len(value) ** 0.5
    wider = Stirred(many.mu, law.log_scale + 0.1, law.directions)
    assert float(wider.log_prob(value).mean()) < float(score.mean().detach()) - 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learned": True}, r"a start of networks\.components\(\.\.\., learned=False\)"),
        ({"scale": "element"}, "stir needs one sigma for all coordinates, found scale='element'"),
        ({"stir": (4, 0.5)}, "at most 3 directions and a share under 1, found 4, 0.5"),
        ({"stir": (2, 1.0)}, "at most 3 directions and a share under 1, found 2, 1.0"),
    ],
)
def test_what_cannot_be_stirred(options, message):
    with pytest.raises(pc.InputError, match=message):
        model_of(**options)


def test_parts_of_a_stirred_group_are_not_learned_from():
    model, data = model_of()
    mask = torch.ones_like(data.state["x"], dtype=torch.bool)
    mask[0, 0, 0] = False
    with pytest.raises(pc.InputError, match=r"'x' has noise in common .* in part"):
        pc.Learner(model, pc.Data(data.state, {"x": mask}))


def test_a_composed_model_has_it_too():
    model, data = model_of()
    joint = pc.compose({"a": model})
    here = {"c": data.state["c"][:4]}
    law = joint("a.x", {"a.c": here["c"]})
    assert torch.equal(law.variance, model("x", here).variance) and isinstance(law, Stirred)


@pytest.mark.parametrize("per_row", [False, True])
def test_chains_look_at_clamps_once_and_again_when_the_model_has_learned(per_row):
    """Draws with what was worked out beforehand are those without it, for masks that differ from row to row."""
    model, data = model_of("learned")
    state = {name: value[:6] for name, value in data.state.items()}
    mask = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(3)) < 0.5
    options = {"clamp": {"x": mask}, "per_row": per_row, "batch": 6}
    chain = pc.Chain(model, generator=model.generator(1), **options)
    for scale in (0.0, 0.2):  # what has learned has another sigma
        with torch.no_grad():
            model.conditional("x").shared.log_scale.fill_(scale)
        chain.generator.manual_seed(5)
        other = pc.Chain(model, generator=model.generator(1), **options)
        other.generator.manual_seed(5)
        chain.scan.last = other.scan.last = None
        if not per_row:
            chain.scan.generator.manual_seed(7)
            other.scan.generator.manual_seed(7)
        found, expected = chain.run(state, 10), state
        for _ in range(10):  # steps alone work it out each time
            expected, _ = other.step(expected)
        assert chain.factors and not other.factors
        for name in state:
            assert torch.allclose(found[name], expected[name], rtol=1e-10)


def test_what_is_pinned_says_something_of_the_others():
    law, covariance = stirred(1)
    known = torch.tensor([1, 1, 0, 0, 1, 0], dtype=torch.bool)
    value = torch.randn(1, *SHAPE, dtype=torch.float64)
    mean, _ = conditioned(law, covariance, value, known)
    found = pc.Pinned(law, value, known.view(1, *SHAPE)).mean.flatten()
    assert torch.allclose(found[~known], mean) and torch.equal(found[known], value.flatten()[known])
