"""VAE and symmetric equilibrium learning: gradients and bounds against enumeration and closed forms."""

import math

import pytest
import torch
from helpers import assert_fits, assert_mean, still

import paracond as pc
from paracond.baselines import directed, estimators, priors, special_cases
from paracond.baselines.directed import VAE, Symmetric
from paracond.training import checkpoints

BITS = 3
CLASSES = 2


def model_of(latent, observed=None, seed=0, hidden=6):
    """x and z, each by an MLP that reads the other and the context c."""
    torch.manual_seed(seed)
    context = pc.Context(pc.Categorical(CLASSES), None)
    groups = {"x": observed or pc.Binary(4), "z": latent}
    variables = {**groups, "c": context.family}
    nets = {n: pc.networks.mlp(variables, n, hidden=hidden, depth=1, activation="tanh") for n in groups}
    model = pc.JointModel({n: pc.Conditional(f, nets[n]) for n, f in groups.items()}, context={"c": context})
    with torch.no_grad():  # far from zero, where all estimators would agree
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model.double()


def examples(rows=8, family=None, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = (family or pc.Binary(4)).random(rows, generator, torch.float64)
    return pc.Data({"x": x, "c": torch.arange(rows) % CLASSES})


def flat_gradient(value, model):
    gradients = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    parts = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, model.parameters(), strict=True)]
    return torch.cat([part.flatten() for part in parts])


def found_gradients(learner, updates):
    """Of minus the objective, [updates, parameters]."""
    parameters = list(learner.model.parameters())
    return torch.stack([-torch.cat([p.grad.flatten() for p in parameters]) for _ in learner.run(updates)])


def all_codes(state, family):
    """Every row with every code, [rows * codes], and the codes."""
    codes = family.values().double()
    rows = len(state["x"])
    wide = {k: v.repeat_interleave(len(codes), 0) for k, v in state.items()}
    return {**wide, "z": codes.repeat(rows, *[1] * (codes.ndim - 1))}


def exact_elbo(model, state, log_prior=None):
    """[rows]: sum_z q(z) (log p(x | z, c) + log p(z) - log q(z)), by enumeration. `log_prior`: [codes], or uniform."""
    family = model.variables["z"]
    wide = all_codes(state, family)
    log_q = model("z", wide).log_prob(wide["z"])
    log_p = torch.full((2**BITS,), -BITS * math.log(2)) if log_prior is None else log_prior
    inside = model("x", wide).log_prob(wide["x"]) + log_p.repeat(len(state["x"])) - log_q
    return (log_q.exp() * inside).view(len(state["x"]), -1).sum(1)


def exact_codes(model, state):
    """[codes]: log of the mean of q(z | x, c) over examples, by enumeration."""
    wide = all_codes(state, model.variables["z"])
    each = model("z", wide).log_prob(wide["z"]).view(len(state["x"]), -1)
    return each.logsumexp(0) - math.log(len(each))


# --- VAE ------------------------------------------------------------------------------------------------------------


def test_exact_expectations_give_the_elbo_and_its_gradient():
    """Deterministic, so equal to enumeration to rounding: also a test of the divergence."""
    model, data = model_of(pc.Binary(BITS)), examples()
    learner = VAE(model, data, estimator="exact", batch_size=8, optimiser=still)
    bound = exact_elbo(model, data.state).mean()
    wanted = flat_gradient(bound, model)
    for info in learner.run(2):
        torch.testing.assert_close(-sum(info.losses.values()), bound.detach())
    torch.testing.assert_close(found_gradients(learner, 1)[0], wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("estimator", ["disarm"])
def test_an_unbiased_estimator_has_the_exact_gradient_on_average(estimator):
    model, data = model_of(pc.Binary(BITS)), examples()
    learner = VAE(model, data, estimator=estimator, batch_size=8, optimiser=still)
    assert_mean(found_gradients(learner, 2000), flat_gradient(exact_elbo(model, data.state).mean(), model))


def test_gumbel_has_the_slope_of_its_relaxed_bit():
    """For f(z) = z, of which d E f / d l = p (1 - p), it is the mean over u of s (1 - s) / T, T = 2 / 3."""
    logits = torch.full((100_000, 1), 0.7, dtype=torch.float64, requires_grad=True)
    q = pc.distributions.Bernoulli(logits)
    value = estimators.gumbel(q, lambda z: z.sum(1), torch.Generator().manual_seed(0)).mean()
    (found,) = torch.autograd.grad(value, logits)
    u = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    s = torch.sigmoid((0.7 + u.logit()) * 3 / 2)
    assert float(found.sum()) == pytest.approx(float((s * (1 - s)).mean() * 3 / 2), rel=0.01)
    assert float(value.detach()) == pytest.approx(float(torch.sigmoid(torch.tensor(0.7))), abs=0.01)


@pytest.mark.parametrize("estimator", ["straight-through", "gumbel"])
def test_a_biased_estimator_is_biased_in_the_encoder_only_and_not_far_off(estimator):
    """Said to be biased, so it must fail the test that unbiased ones pass; the decoder's gradient is exact on average.
    On its way it points: the cosine with the true gradient of the encoder is high."""
    model, data = model_of(pc.Binary(BITS)), examples()
    learner = VAE(model, data, estimator=estimator, batch_size=8, optimiser=still)
    found, wanted = found_gradients(learner, 2000), flat_gradient(exact_elbo(model, data.state).mean(), model)
    split = sum(p.numel() for p in model.conditional("x").parameters())
    assert_mean(found[:, :split], wanted[:split])
    with pytest.raises(AssertionError, match="off by"):
        assert_mean(found[:, split:], wanted[split:])
    mean = found[:, split:].mean(0)
    assert float(torch.cosine_similarity(mean, wanted[split:], 0)) > 0.9


def linear_gaussian(seed=0):
    """p(x | z) = N(A z + a, 0.5^2), q(z | x) = N(B x + b, sigma^2), with a learned sigma per coordinate."""
    torch.manual_seed(seed)
    groups = {"x": pc.Real(3, scale=0.5), "z": pc.Real(2, scale="coordinate", initial_scale=0.4)}
    nets = {n: pc.networks.mlp(groups, n, depth=0) for n in groups}
    return pc.JointModel({n: pc.Conditional(f, nets[n]) for n, f in groups.items()}).double()


def closed_form_elbo(model, x):
    """E_q log p(x | z) = log N(x; A m + a, 0.5^2) - sum_dj A_dj^2 s_j^2 / (2 0.5^2), for q = N(m, s^2)."""
    decoder = model.conditional("x").network.layers[0]
    q = model("z", {"x": x})
    mean = q.mean @ decoder.weight.T + decoder.bias
    fit = torch.distributions.Normal(mean, 0.5).log_prob(x).sum(1)
    spread = (q.variance @ decoder.weight.square().T).sum(1) / (2 * 0.5**2)
    prior = torch.distributions.Normal(torch.zeros_like(q.mean), 1.0)
    own = torch.distributions.Normal(q.mean, q.variance.sqrt())
    return fit - spread - torch.distributions.kl_divergence(own, prior).sum(1)


def test_the_pathwise_gradient_is_that_of_the_closed_form_for_a_linear_gaussian_model():
    model = linear_gaussian()
    x = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    learner = VAE(model, pc.Data({"x": x}), batch_size=8, optimiser=still)
    assert learner.estimator == "pathwise"
    assert_mean(found_gradients(learner, 2000), flat_gradient(closed_form_elbo(model, x).mean(), model))
    drawn = torch.stack([directed.elbo(model, pc.Data({"x": x}), draws=20, seed=k) for k in range(200)])
    assert_mean(drawn, closed_form_elbo(model, x).detach())


def evidence_of_components(x):
    """The largest log p(x), on average, of two components with sigma 0.5 (Tipping & Bishop 1999)."""
    values = torch.linalg.eigvalsh(x.T @ x / len(x))
    variances = torch.cat([torch.full((1,), 0.25, dtype=torch.float64), values[1:].clamp(min=0.25)])
    return float(-0.5 * (variances.log() + values / variances + math.log(2 * math.pi)).sum())


def test_a_linear_gaussian_vae_reaches_the_evidence_of_principal_components():
    """The exact posterior is within reach, so the bound is tight at the maximum of the marginal likelihood, which is
    known (Tipping & Bishop 1999): that of the sample's eigenvalues, sigma given."""
    generator = torch.Generator().manual_seed(3)
    basis = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q
    x = torch.randn(2000, 3, generator=generator, dtype=torch.float64) * torch.tensor([2.0, 1.2, 0.5]) @ basis.T
    x = x - x.mean(0)
    groups = {"x": pc.Real(3, scale=0.5), "z": pc.Real(2, scale="coordinate", initial_scale=0.4)}
    torch.manual_seed(0)
    nets = {n: pc.networks.mlp(groups, n, depth=0) for n in groups}
    model = pc.JointModel({n: pc.Conditional(f, nets[n]) for n, f in groups.items()}).double()
    rate = pc.schedules.cosine(0.02, 1e-4, 2500)
    learned = VAE(model, pc.Data({"x": x}), batch_size=200, learning_rate=rate, average=0.99).fit(2500)
    found = float(directed.elbo(learned, pc.Data({"x": x}), draws=20).mean())
    best = evidence_of_components(x)
    assert best - 0.03 < found < best + 0.005  # q's axes must turn towards those of the posterior, at the end slowly


@pytest.mark.parametrize("family", [pc.Binary(5), pc.Real(5)])
def test_the_divergence_is_that_of_torch(family):
    output = torch.randn(6, *family.output_shape, generator=torch.Generator().manual_seed(0)).double()
    q = family.distribution(output)
    if isinstance(family, pc.Binary):
        own, prior = torch.distributions.Bernoulli(q.mean), torch.distributions.Bernoulli(torch.full((6, 5), 0.5))
    else:
        own, prior = torch.distributions.Normal(q.mean, q.variance.sqrt()), torch.distributions.Normal(0.0, 1.0)
    torch.testing.assert_close(priors.divergence(q), torch.distributions.kl_divergence(own, prior))


# --- the prior of examples ------------------------------------------------------------------------------------------


def test_with_a_prior_of_examples_the_bound_and_its_gradient_are_exact_too():
    """The prior learns: its gradient is that of the encoder, at the examples."""
    model, data, others = model_of(pc.Binary(BITS)), examples(), examples(5, seed=7)
    bound = exact_elbo(model, data.state, exact_codes(model, others.state)).mean()
    wanted = flat_gradient(bound, model)
    learner = VAE(model, data, estimator="exact", prior=others, batch_size=8, optimiser=still)
    torch.testing.assert_close(-sum(learner.step().losses.values()), bound.detach())
    torch.testing.assert_close(found_gradients(learner, 1)[0], wanted, rtol=1e-9, atol=1e-9)
    learner = VAE(model, data, estimator="disarm", prior=others, batch_size=8, optimiser=still)
    assert_mean(found_gradients(learner, 2000), wanted)
    drawn = torch.stack([directed.elbo(model, data, prior=others, draws=10, seed=k) for k in range(300)])
    assert_mean(drawn.mean(1), bound.detach())


def test_the_gradient_through_a_prior_of_examples_is_that_of_rounded_networks_too():
    """That of the rounded model's encoder reaches the parameters: the same up to bfloat16."""
    model, found = model_of(pc.Real(2, scale=0.7), hidden=32).float(), []
    for engine in ("eager", "rounded"):
        learner = VAE(model, examples(), prior=examples(5, seed=7), batch_size=8, optimiser=still, engine=engine)
        found.append(found_gradients(learner, 1)[0])
    assert float((found[0] - found[1]).norm() / found[0].norm()) < 0.03


def test_scalar_codes_have_priors():
    model = model_of(pc.Real(()))
    for prior in (None, examples(5)):
        learner = VAE(model, examples(), prior=prior, batch_size=8)
        assert bool(learner.step().losses["z"].isfinite())
        assert directed.random_code(model, "z", {"c": torch.zeros(3).long()}, prior=prior)["z"].shape == (3,)


@pytest.mark.parametrize("scale", ["element", "coordinate", "learned", 0.7])
def test_a_prior_of_examples_is_a_mixture_of_their_gaussians(scale):
    model, others = model_of(pc.Real((2, 1), scale=scale)), examples(6, seed=7)
    q = model("z", others.state)
    parts = torch.distributions.Independent(torch.distributions.Normal(q.mean, q.variance.sqrt()), 2)
    weights = torch.distributions.Categorical(torch.ones(6))
    mixture = torch.distributions.MixtureSameFamily(weights, parts)
    z = torch.randn(9, 2, 1, generator=torch.Generator().manual_seed(0)).double()
    prior = directed.prior_of(model, "z", others)
    torch.testing.assert_close(prior.log_prob(lambda state: model("z", state))(z), mixture.log_prob(z))
    torch.testing.assert_close(prior.charge(q), -parts.entropy())
    drawn = prior.sample(lambda state: model("z", state), 20_000, torch.Generator().manual_seed(1), torch.float64)
    assert_mean(drawn, mixture.mean.detach())
    assert_mean(drawn.square(), (mixture.variance + mixture.mean.square()).detach())


def test_random_codes_of_a_prior_of_examples_are_codes_of_examples():
    model, others, rows = model_of(pc.Binary(BITS)), examples(5, seed=7), 20_000
    c = torch.ones(rows).long()
    state = directed.random_code(model, "z", {"c": c}, prior=others, seed=3)
    law = exact_codes(model, others.state).exp().detach()
    weights = 2 ** torch.arange(BITS - 1, -1, -1)
    assert torch.equal((model.variables["z"].values() @ weights.float()).long(), torch.arange(2**BITS))
    assert_fits(torch.bincount((state["z"] @ weights.double()).long(), minlength=2**BITS), law)
    wide = {"z": model.variables["z"].values().double(), "c": torch.ones(8).long(), "x": torch.zeros(8, 4).double()}
    assert_mean(state["x"], (law[:, None] * model("x", wide).mean).sum(0).detach())


def test_a_prior_of_examples_fits_what_no_fixed_one_can():
    """Two clusters by a linear decoder: with a Gaussian prior x is Gaussian, and its evidence has a maximum in closed
    form (that of principal components); the mixture has up to 1/2 log(6.5 / 0.25) - log 2 = .94 more."""
    generator = torch.Generator().manual_seed(3)
    x = 0.5 * torch.randn(1000, 3, generator=generator, dtype=torch.float64)
    x[:, 0] += 2.5 * (2 * (torch.arange(1000) % 2) - 1)
    data = pc.Data({"x": x - x.mean(0)})
    rate = pc.schedules.cosine(0.02, 1e-4, 1500)
    learner = VAE(linear_gaussian(), data, prior=data[:100], batch_size=100, learning_rate=rate, average=0.99)
    found = float(directed.elbo(learner.fit(1500), data, prior=data[:100], draws=20).mean())
    assert evidence_of_components(data.state["x"]) + 0.5 < found < evidence_of_components(data.state["x"]) + 0.94


def test_priors_that_cannot_be():
    model, data = model_of(pc.Binary(BITS)), examples()
    c, whole = torch.zeros(3).long(), {"x": torch.zeros(3, 4), "z": torch.zeros(3, BITS)}
    for wrong in ({"z": whole["z"], "c": c}, {**whole, "c": c}):
        with pytest.raises(pc.InputError, match="examples for a prior must have 'x' everywhere, and lack 'z'"):
            VAE(model, data, prior=pc.Data(wrong))
    with pytest.raises(pc.InputError, match="prior must be Data, examples whose codes are the prior, found int"):
        directed.random_code(model, "z", {"c": c}, prior=500)
    with pytest.raises(pc.InputError, match="'c' must be given"):
        VAE(model, data, prior=pc.Data({"x": data.state["x"]}))


# --- symmetric equilibrium ------------------------------------------------------------------------------------------


def utilities(model, state):
    """Both utilities by enumeration: decoder on q's completions, encoder on the prior's, the other held fixed."""
    latent, seen = model.variables["z"], model.variables["x"]
    wide = all_codes(state, latent)
    q = model("z", wide).log_prob(wide["z"]).exp().detach()
    decoder = (q * model("x", wide).log_prob(wide["x"])).sum() / len(state["x"])
    pairs = {"c": state["c"].repeat_interleave(len(latent.values()), 0)}
    pairs["z"] = latent.values().double().repeat(len(state["c"]), 1)
    images = seen.values().double()
    every = {k: v.repeat_interleave(len(images), 0) for k, v in pairs.items()}
    every["x"] = images.repeat(len(pairs["c"]), 1)
    p = model("x", every).log_prob(every["x"]).exp().detach()
    encoder = (p * model("z", every).log_prob(every["z"])).sum() / len(pairs["c"])
    return decoder, encoder


def test_symmetric_ascends_the_two_utilities_on_average():
    model, data = model_of(pc.Binary(BITS)), examples()
    learner = Symmetric(model, data, batch_size=8, optimiser=still)
    wanted = flat_gradient(sum(utilities(model, data.state)), model)
    assert_mean(found_gradients(learner, 2000), wanted)


def test_symmetric_may_complete_the_data_by_the_average():
    """With a model that has moved away from its average: the decoder ascends what the average's codes say."""
    model, data = model_of(pc.Binary(BITS)), examples()
    learner = Symmetric(model, data, batch_size=8, optimiser=still, completed_by="average", average=1 - 1e-12)
    learner.updates["x"] = learner.updates["z"] = 10**13  # or the average would forget its first weights
    with torch.no_grad():
        for parameter in model.conditional("z").parameters():
            parameter.mul_(-1.5)
    wide = all_codes(data.state, model.variables["z"])
    by_average, by_model = (m("z", wide).log_prob(wide["z"]).exp().detach() for m in (learner.averaged, model))

    def gradient(q):
        return flat_gradient((q * model("x", wide).log_prob(wide["x"])).sum() / 8, model)

    wanted, other = gradient(by_average), gradient(by_model)
    split = sum(p.numel() for p in model.conditional("x").parameters())
    found = found_gradients(learner, 2000)[:, :split]
    assert_mean(found, wanted[:split])
    with pytest.raises(AssertionError, match="off by"):
        assert_mean(found, other[:split])


def test_without_observed_latents_it_is_wake_sleep():
    """The gradients of `special_cases.wake_sleep` (Algorithm 1, n = 1), which uses half of its batch for either phase,
    are half of these, on average: both are unbiased for the same expectation."""
    torch.manual_seed(0)
    groups = {"x": pc.Binary(3), "z": pc.Binary(BITS)}
    nets = {n: pc.networks.mlp(groups, n, hidden=6, depth=1) for n in groups}
    model = pc.JointModel({n: pc.Conditional(f, nets[n]) for n, f in groups.items()}).double()
    data = pc.Data({"x": pc.Binary(3).random(8, torch.Generator().manual_seed(1), torch.float64)})
    ours = found_gradients(Symmetric(model, data, batch_size=8, optimiser=still), 1200)
    prior = pc.Binary(BITS).values().double()  # each code once: exactly uniform
    learner = special_cases.wake_sleep(model, data, prior, batch_size=16, optimiser=still, engine="eager")
    split = sum(p.numel() for p in model.conditional("x").parameters())
    theirs: dict[str, list] = {"x": [], "z": []}
    for info in learner.run(2400):
        parameters = model.conditional(info.variable).parameters()
        theirs[info.variable].append(-2 * torch.cat([p.grad.flatten() for p in parameters]))
    for name, part in (("x", slice(0, split)), ("z", slice(split, None))):
        count = min(len(ours), len(theirs[name]))
        assert_mean(ours[:count, part] - torch.stack(theirs[name][:count]), torch.zeros(ours[0, part].shape))


def test_pairs_teach_both():
    """Rows with an observed z: the decoder learns from it, the encoder too, beside its dreams."""
    model, data = model_of(pc.Binary(BITS)), examples()
    z = pc.Binary(BITS).random(8, torch.Generator().manual_seed(5), torch.float64)
    pairs = torch.arange(8) < 3
    learner = Symmetric(model, pc.Data({**data.state, "z": z}, {"z": pairs}), batch_size=8, optimiser=still)
    state = data.state
    wide = all_codes(state, model.variables["z"])
    q = model("z", wide).log_prob(wide["z"]).exp().detach().view(8, -1)
    own = (wide["z"].view(8, -1, BITS) == z.unsqueeze(1)).all(2).double()
    weights = torch.where(pairs.unsqueeze(1), own, q).flatten()
    decoder = (weights * model("x", wide).log_prob(wide["x"])).sum() / 8
    encoder = utilities(model, state)[1] + (model("z", {**state, "z": z}).log_prob(z) * pairs).sum() / 8
    wanted = flat_gradient(decoder + encoder, model)
    assert_mean(found_gradients(learner, 2000), wanted)


# --- what both have in common ---------------------------------------------------------------------------------------


def test_a_random_code_is_a_draw_from_the_prior_and_the_decoder():
    model = model_of(pc.Binary(BITS))
    rows = 20_000
    state = directed.random_code(model, "z", {"c": torch.ones(rows).long()}, seed=3)
    wide = {"z": model.variables["z"].values().double(), "c": torch.ones(8).long(), "x": torch.zeros(8, 4).double()}
    assert_mean(state["z"], torch.full((BITS,), 0.5))
    assert_mean(state["x"], model("x", wide).mean.mean(0).detach())


def test_a_random_code_without_context_and_what_cannot_be_given(monkeypatch):
    groups = {"x": pc.Real(2, scale=1e-4), "z": pc.Binary(BITS)}
    bare = pc.JointModel({n: pc.Conditional(f, pc.networks.mlp(groups, n)) for n, f in groups.items()})
    assert directed.random_code(bare, "z", {}, rows=5)["x"].shape == (5, 2)
    whole = directed.random_code(bare, "z", {}, rows=5)
    monkeypatch.setattr(directed, "DRAWN", 2)
    parts = directed.random_code(bare, "z", {}, rows=5)
    assert torch.equal(whole["z"], parts["z"])
    torch.testing.assert_close(parts["x"], bare("x", parts).mean.detach(), atol=1e-3, rtol=0)
    model, c = model_of(pc.Binary(BITS)), torch.ones(3).long()
    with pytest.raises(pc.InputError, match="a random code draws 'x': only context can be given"):
        directed.random_code(model, "z", {"c": c, "x": torch.zeros(3, 4)})
    with pytest.raises(pc.InputError, match="the latent must be one of x, z, found 'w'"):
        directed.random_code(model, "w", {"c": c})


def with_codes_of(seed, c=None):
    prior = examples(5, seed=seed)
    prior = prior if c is None else pc.Data({**prior.state, "c": torch.full((5,), c)})
    return lambda *what, **options: VAE(*what, prior=prior, **options)


@pytest.mark.parametrize("kind", [VAE, Symmetric, with_codes_of(7)])
def test_a_run_cut_in_two_is_bit_for_bit_the_whole_run(kind, tmp_path):
    def make():
        return kind(model_of(pc.Binary(BITS)), examples(20), batch_size=6, seed=4)

    whole, first, second = make(), make(), make()
    whole.fit(30)
    checkpoints.fit(first, 13, tmp_path)
    checkpoints.fit(second, 30, tmp_path, resume=True)
    for a, b in zip(whole.averaged.parameters(), second.averaged.parameters(), strict=True):
        assert torch.equal(a, b)
    others = {VAE: Symmetric, Symmetric: VAE}
    other = others.get(kind, with_codes_of(7, c=1))  # the same images, given something else
    with pytest.raises(pc.InputError, match=r"of another run: (method is (VAE|Symmetric)|prior is 5 .*) there"):
        checkpoints.restore(other(model_of(pc.Binary(BITS)), examples(20), batch_size=6), tmp_path)


@pytest.mark.parametrize("kind", [VAE, Symmetric])
def test_rounded_networks_learn_too(kind):
    learner = kind(model_of(pc.Real(2)).float(), examples(64), batch_size=32, engine="rounded")
    first, *_, last = [sum(info.losses.values()) for info in learner.run(300)]
    assert float(last) < float(first)


def by_average(*what, **options):
    return Symmetric(*what, completed_by="average", **options)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [VAE, Symmetric, by_average, with_codes_of(7)])
@pytest.mark.parametrize("latent", [pc.Binary(8), pc.Real(3)])
def test_recorded_updates_learn_as_eager_ones_do(kind, latent):
    """Another order of draws and bfloat16, so the same only on average over the last updates."""
    found = {}
    for engine in ("eager", "graphs"):
        model = model_of(latent, hidden=32).float().to("cuda")
        learner = kind(model, examples(256), batch_size=128, engine=engine, seed=1)
        losses = torch.stack([sum(info.losses.values()) for info in learner.run(600)])
        found[engine] = float(losses[-200:].mean())
        assert found[engine] < float(losses[:20].mean())
    assert abs(found["eager"] - found["graphs"]) < 0.1 * abs(found["eager"]) + 0.1


def test_what_is_not_finite_changes_nothing():
    model = model_of(pc.Real(2, ceiling=2.0), pc.Real(4, ceiling=2.0))
    data = pc.Data({"x": torch.full((4, 4), 1e200, dtype=torch.float64), "c": torch.zeros(4).long()})
    learner = VAE(model, data, batch_size=4)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(pc.NonFiniteError, match="is not finite at step 0"):
        learner.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_what_is_refused():
    data, model = examples(), model_of(pc.Binary(BITS))
    with pytest.raises(pc.InputError, match="there is a prior for Binary and Real latents; 'z' is Categorical"):
        VAE(model_of(pc.Categorical(3)), data)
    with pytest.raises(
        pc.InputError, match=r"the estimator for Binary.* must be one of gumbel, straight-through, .* found 'pathwise'"
    ):
        VAE(model, data, estimator="pathwise")
    with pytest.raises(pc.InputError, match="the data must have one of x, z everywhere"):
        Symmetric(model, pc.Data({"c": torch.zeros(3).long()}))
    whole = pc.Data({**data.state, "z": torch.zeros(8, BITS)}, {"z": torch.arange(8) < 3})
    with pytest.raises(pc.InputError, match="'z' is observed in places: a VAE has no use for that, Symmetric has"):
        VAE(model, whole)
    with pytest.raises(pc.InputError, match="needs a JointModel of two groups"):
        VAE(pc.JointModel({"x": model.conditional("x")}), data)
    with pytest.raises(pc.InputError, match="learns from Data"):
        VAE(model, data.state)
    with pytest.raises(pc.InputError, match="completed_by must be one of model, average, found 'luck'"):
        Symmetric(model, data, completed_by="luck")
