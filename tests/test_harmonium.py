"""Harmoniums: consistent by design, learned by contrastive divergence, exact by enumeration."""

import math

import pytest
import torch
from helpers import assert_fits, assert_mean, state_index
from torch import nn

import paracond as pc
from paracond import exact
from paracond import model as joint
from paracond import serialization as storage
from paracond.baselines import harmonium
from paracond.baselines.harmonium import ContrastiveDivergence

CLOSE = {"rtol": 0, "atol": 1e-10}
FINITE = [
    {"x": pc.Binary(4), "y": pc.Binary(3)},
    {"x": pc.Binary((2, 2)), "y": pc.Categorical(3)},
    {"x": pc.Categorical(3, 2), "y": pc.Binary(2)},
    {"x": pc.Categorical(2), "y": pc.Categorical(4, (2,))},
]
GAUSSIAN = {"x": pc.Real(2, scale=0.7), "y": pc.Binary(3)}


def strong(variables, seed=0, strength=1.0):
    """A harmonium in float64 with random weights and biases."""
    generator = torch.Generator().manual_seed(seed)
    model = harmonium.harmonium(variables).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(strength * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def weights(model):
    x, y = harmonium.groups(model)
    return x.side.weight, x.side.bias, y.side.bias


def energies(model):
    """<psi, W xi> + <psi, a> + <xi, b> of every state, written out, `[values of x, values of y]`."""
    weight, a, b = (p.detach() for p in weights(model))
    psi, xi = (codes(model, name, model.variables[name].values()) for name in model.names)
    return psi @ weight @ xi.T + (psi @ a)[:, None] + xi @ b


def codes(model, name, value):
    """Statistics, by the family's own encoding."""
    return model.variables[name].encode(value).reshape(len(value), -1).double()


def products(model, law):
    """E[psi (x) xi] for a law over the states."""
    psi, xi = (codes(model, name, model.variables[name].values()) for name in model.names)
    return psi.T @ law @ xi


# --- the model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variables", FINITE)
def test_a_harmonium_is_consistent_and_its_limit_is_the_exponential_family(variables):
    model = strong(variables)
    finite = exact.enumerate_model(model)
    assert exact.consistency_gap(finite.kernel) < 1e-10
    assert abs(exact.detailed_balance_gap(finite.kernel)) < 1e-10
    energy = energies(model)
    expected = torch.softmax(energy.flatten(), 0).view_as(energy)
    torch.testing.assert_close(finite.limiting(), expected, **CLOSE)
    torch.testing.assert_close(harmonium.log_normaliser(model).detach(), energy.logsumexp((0, 1)), **CLOSE)


@pytest.mark.parametrize("variables", FINITE)
def test_likelihoods_against_enumeration(variables):
    model = strong(variables, seed=1)
    finite = exact.enumerate_model(model)
    x = finite.values["x"]
    p = finite.limiting().sum(1)
    torch.testing.assert_close(harmonium.free_energy(model, x).detach(), -energies(model).logsumexp(1), **CLOSE)
    torch.testing.assert_close(harmonium.log_likelihood(model, x).detach(), p.log(), **CLOSE)
    grid = p.view([harmonium.groups(model)[0].alternatives] * math.prod(variables["x"].event_shape))
    per_unit = torch.stack([(grid / grid.sum(d, keepdim=True)).log().flatten() for d in range(grid.ndim)])
    torch.testing.assert_close(harmonium.pseudo_likelihood(model, x), per_unit.mean(0), **CLOSE)


def test_a_gaussian_rbm_against_quadrature():
    """p(x) by sum over y of Gaussians on a fine grid: normalised, and log p(x) as computed."""
    model = strong(GAUSSIAN)
    line = torch.linspace(-9, 9, 601, dtype=torch.float64)
    x = torch.cartesian_prod(line, line)
    log_p = harmonium.log_likelihood(model, x).detach()
    torch.testing.assert_close(log_p.exp().sum() * (line[1] - line[0]) ** 2, torch.ones((), dtype=torch.float64))
    weight, a, b = (p.detach() for p in weights(model))
    y = pc.Binary(3).values().double()
    mean, variance = 0.49 * (a + y @ weight.T), torch.full((2,), 0.49, dtype=torch.float64)
    mixture = torch.softmax(y @ b + 0.5 * (mean**2).sum(1) / 0.49, 0)
    near = (x.abs() < 4).all(1)  # torch's softplus(t) is t for t > 20, which is off by up to 2e-9
    parts = torch.distributions.MultivariateNormal(mean, torch.diag(variance)).log_prob(x[near, None])
    torch.testing.assert_close(log_p[near], torch.logsumexp(parts + mixture.log(), 1), **CLOSE)
    given = model("x", {"y": y})
    torch.testing.assert_close(given.mean.detach(), mean, **CLOSE)


def test_the_chain_of_a_gaussian_rbm_has_its_moments():
    model = harmonium.gaussian_rbm(2, 3, scale=0.7).double()
    model.load_state_dict(strong(GAUSSIAN, strength=0.5).state_dict())
    weight, a, b = (p.detach() for p in weights(model))
    y = pc.Binary(3).values().double()
    mean = 0.49 * (a + y @ weight.T)
    p = torch.softmax(y @ b + 0.5 * (mean**2).sum(1) / 0.49, 0)
    generator = model.generator(0)
    state = pc.Chain(model, generator=generator, scan="systematic").run(
        pc.initializers.initial_state(model, 20_000, generator), 80
    )
    assert_mean(state["x"], p @ mean)
    assert_mean(state["x"] ** 2, p @ (mean**2 + 0.49))


@pytest.mark.parametrize("variables", [*FINITE, GAUSSIAN])
def test_weights_are_saved_once_and_stay_tied(tmp_path, variables):
    model = strong(variables)
    model.save(tmp_path)
    _, tensors = storage.read(tmp_path, joint.FORMAT)
    assert len(tensors) == 3
    loaded = pc.JointModel.load(tmp_path)
    x, y = harmonium.groups(loaded)
    assert x.side.weight is y.side.weight and len(list(loaded.parameters())) == 3
    state = pc.initializers.initial_state(model, 5, model.generator(0))
    for name in model.names:
        assert torch.equal(loaded(name, state).mean, model(name, state).mean)


def test_a_harmonium_answers_questions_like_any_model():
    variables = {"x": pc.Binary(4), "c": pc.Categorical(3)}
    model = strong(variables)
    x = pc.Binary(4).values().double()
    finite = exact.enumerate_model(model)
    expected = exact.conditionals(finite.limiting())[1]
    torch.testing.assert_close(pc.query(model, given={"x": x}, want=["c"]).probabilities["c"], expected, **CLOSE)


# --- the gradient -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variables", [*FINITE, GAUSSIAN])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_gradients_along_a_chain_telescope(variables, steps):
    """eq:ef_stgrad by autograd: grad log p_i(old x_i | x_-i) less that of the draw, whose mean is zero. The sum
    over the steps of a chain is eq:cd, row by row."""
    model = strong(variables)
    generator = model.generator(3)
    chain = pc.Chain(model, generator=generator, scan="systematic")
    first = state = pc.initializers.initial_state(model, 20, generator)
    total = torch.zeros(20, dtype=torch.float64)
    for _ in range(steps):
        old = state
        state, (move,) = chain.step(old)
        total = total + log_prob(model, move.name, old, old) - log_prob(model, move.name, state, old)
    for row in range(20):
        found = torch.autograd.grad(total[row], weights(model), retain_graph=True, materialize_grads=True)
        ends = [statistics(model, {n: v[row : row + 1] for n, v in end.items()}) for end in (first, state)]
        for ours, before, after in zip(found, *ends, strict=True):
            torch.testing.assert_close(ours, before - after, **CLOSE)


def log_prob(model, name, value, rest):
    """log p(x_name | rest), by the conditional's own network."""
    return model(name, rest).log_prob(value[name])


def statistics(model, state):
    """psi (x) xi, psi and xi of one row."""
    psi, xi = (codes(model, name, state[name])[0] for name in model.names)
    return torch.outer(psi, xi), psi, xi


@pytest.mark.parametrize("variables", FINITE)
@pytest.mark.parametrize("order", ["xyxyx", "yxy", "xxyyx"])
def test_expected_gradients_of_algorithm_1_sum_to_contrastive_divergence(variables, order):
    """sum_k E_q_k grad log p_i(x_i | x_-i), by autograd and enumeration, is E_q_1 - E_q_n of psi (x) xi; any order."""
    model = strong(variables, seed=2)
    finite = exact.enumerate_model(model)
    generator = torch.Generator().manual_seed(0)
    law = first = torch.rand(finite.kernel.shape, generator=generator, dtype=torch.float64)
    law = first = first / first.sum()
    states = {name: model.variables[name].store(value, torch.float64) for name, value in finite.states.items()}
    objective = 0.0
    for name in order:
        objective = objective + (law.flatten() * model(name, states).log_prob(states[name])).sum()
        axis = model.names.index(name)
        law = finite.kernel.tables[axis] * law.sum(axis, keepdim=True)
    weight, a, b = torch.autograd.grad(objective, weights(model))
    torch.testing.assert_close(weight, products(model, first) - products(model, law), **CLOSE)
    psi, xi = (codes(model, name, finite.values[name]) for name in model.names)
    change = first - law
    torch.testing.assert_close(a, change.sum(1) @ psi, **CLOSE)
    torch.testing.assert_close(b, change.sum(0) @ xi, **CLOSE)


@pytest.mark.parametrize("variables", FINITE)
@pytest.mark.parametrize("sweeps", [1, 3])
@pytest.mark.parametrize("supervised", [False, True])
def test_the_learner_has_the_expected_gradient(variables, sweeps, supervised):
    """Its gradients, with nothing learned, average to E_q_1 - E_q_n, though it takes means for draws of y."""
    model = strong(variables, seed=4)
    finite = exact.enumerate_model(model)
    law = torch.rand(finite.kernel.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    law = law / law.sum()
    x_table, y_table = finite.kernel.tables
    if not supervised:
        law = y_table * law.sum(1, keepdim=True)
    index = torch.multinomial(law.flatten(), 20_000, replacement=True, generator=torch.Generator().manual_seed(2))
    state = {n: v[index] for n, v in finite.states.items() if supervised or n == "x"}
    first = torch.bincount(index, minlength=law.numel()).view_as(law).double() / len(index)
    first = first if supervised else y_table * first.sum(1, keepdim=True)  # the data's own law: a batch is all of them
    last = first
    for _ in range(sweeps):
        last = x_table * last.sum(0, keepdim=True)
        last = y_table * last.sum(1, keepdim=True)
    expected = products(model, last) - products(model, first)
    learner = ContrastiveDivergence(model, pc.Data(state), sweeps=sweeps, batch_size=20_000, learning_rate=0.0)
    found = torch.stack([weights(model)[0].grad.clone() for _ in learner.run(40)])
    assert_mean(found, expected)


@pytest.mark.parametrize("variables", [*FINITE, GAUSSIAN])
@pytest.mark.parametrize("sweeps", [1, 3])
def test_the_gradient_is_that_of_the_conditionals_by_autograd(variables, sweeps):
    """With observed y, what the learner computes is minus the gradient of the conditionals' log-probabilities along its
    chain (old value less draw; the last y is not drawn), averaged over the batch."""
    model = strong(variables)
    data = pc.initializers.initial_state(model, 64, model.generator(5))
    options = {"sweeps": sweeps, "batch_size": 64, "learning_rate": 0.0}
    ContrastiveDivergence(model, pc.Data(data), **options).step()
    found = [p.grad.clone() for p in weights(model)]
    learner = ContrastiveDivergence(model, pc.Data(data), **options)  # draws the same again
    rows = learner._next_rows()
    state, total = {name: value[rows] for name, value in data.items()}, 0.0
    for sweep in range(sweeps):
        x, law = learner._sweep(state["y"])
        total = total + log_prob(model, "x", state, state) - log_prob(model, "x", {"x": x}, state)
        state = {**state, "x": x}
        total = total + log_prob(model, "y", state, state)
        if sweep < sweeps - 1:
            y = law.sample(learner.generator)
            total = total - log_prob(model, "y", {"y": y}, state)
            state = {**state, "y": y}
    expected = torch.autograd.grad(-total.mean(), weights(model))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


# --- learning ---------------------------------------------------------------------------------------------------


def exact_fit(variables, law, steps=300):
    """Maximum likelihood by L-BFGS on the exact likelihood."""
    model = strong(variables, seed=9, strength=0.1)
    x = variables["x"].values()
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def loss():
        optimiser.zero_grad()
        value = -(law * harmonium.log_likelihood(model, x)).sum()
        value.backward()
        return value

    optimiser.step(loss)
    return model


def divergence(law, model):
    """KL(law || p) of x."""
    x = model.variables["x"].values()
    return exact.kl(law, harmonium.log_likelihood(model, x).exp().detach())


@pytest.mark.parametrize("options", [{"sweeps": 5}, {"persistent": True, "sweeps": 2}])
def test_learning_recovers_a_known_distribution(options):
    variables = {"x": pc.Binary(4), "y": pc.Binary(3)}
    truth = exact.enumerate_model(strong(variables, strength=1.5)).limiting().sum(1)
    index = torch.multinomial(truth, 4000, replacement=True, generator=torch.Generator().manual_seed(0))
    data = variables["x"].values()[index]
    empirical = torch.bincount(index, minlength=16).double() / len(index)
    best = divergence(truth, exact_fit(variables, empirical))
    model = strong(variables, seed=9, strength=0.1)
    before = divergence(truth, model)
    rate = pc.schedules.cosine(0.3, 0.0, 6000)
    ContrastiveDivergence(model, pc.Data({"x": data}), batch_size=200, learning_rate=rate, **options).fit(6000)
    assert best < 0.005
    assert divergence(truth, model) < best + 0.005 < before / 10


def test_persistent_particles_follow_the_model():
    """With nothing learned, particles of many chains become independent draws from the joint."""
    model = strong({"x": pc.Binary(3), "y": pc.Categorical(3)}, strength=1.0)
    finite = exact.enumerate_model(model)
    data = pc.Data({"x": torch.zeros(20_000, 3)})
    learner = ContrastiveDivergence(model, data, persistent=True, batch_size=20_000, learning_rate=0.0)
    learner.fit(60)
    counts = torch.bincount(state_index(finite, learner.particles), minlength=24)
    assert_fits(counts, finite.limiting())


def test_any_optimiser_will_do_and_both_networks_learn():
    torch.manual_seed(0)
    model = harmonium.rbm((2, 2), 3)
    data = pc.Data({"x": torch.ones(50, 2, 2)})
    learner = ContrastiveDivergence(model, data, batch_size=20, optimiser=lambda p: torch.optim.Adam(p, lr=0.05))
    infos = list(learner.run(200))
    assert [i.step for i in infos] == list(range(1, 201)) and bool(infos[-1].norm < infos[0].norm)
    x, y = harmonium.groups(model)
    assert x.side.weight is y.side.weight
    assert float(harmonium.log_likelihood(model, data.state["x"][:1]).detach()) > math.log(0.9)


def test_the_general_learner_learns_a_harmonium_too():
    variables = {"x": pc.Binary(4), "y": pc.Binary(2)}
    torch.manual_seed(0)
    model = harmonium.harmonium(variables)
    truth = exact.enumerate_model(strong(variables, strength=1.5)).limiting().sum(1)
    index = torch.multinomial(truth, 4000, replacement=True, generator=torch.Generator().manual_seed(0))
    before = divergence(truth, model)
    data = pc.Data({"x": variables["x"].values()[index]})
    learned = pc.Learner(model, data, learning_rate=pc.schedules.cosine(0.02, 0.0, 2000), average=0.99).fit(2000)
    x, y = harmonium.groups(learned)
    assert x.side.weight is y.side.weight
    assert divergence(truth, learned) < before / 5


# --- refusals ---------------------------------------------------------------------------------------------------


def test_what_is_not_a_harmonium_is_refused():
    variables = {"x": pc.Binary(2), "y": pc.Binary(2)}
    other = pc.JointModel({n: pc.Conditional(f, pc.networks.mlp(variables, n)) for n, f in variables.items()})
    with pytest.raises(pc.InputError, match="not a harmonium"):
        harmonium.free_energy(other, torch.zeros(1, 2))
    untied = harmonium.rbm(2, 2)
    side = untied.conditional("y").network
    side.weight = nn.Parameter(side.weight.detach().clone())
    with pytest.raises(pc.InputError, match="two sides of one weight"):
        ContrastiveDivergence(untied, pc.Data({"x": torch.zeros(3, 2)}))
    with pytest.raises(pc.InputError, match="two groups"):
        harmonium.harmonium({"x": pc.Binary(2)})
    with pytest.raises(pc.InputError, match="'x' of variables must be Binary, Categorical or Real with a number"):
        harmonium.harmonium({"x": pc.Real(2), "y": pc.Binary(2)})


def test_missing_values_and_infinite_groups_are_refused():
    model = harmonium.rbm(2, 2)
    with pytest.raises(pc.InputError, match="'x' has missing values"):
        ContrastiveDivergence(model, pc.Data({"x": torch.zeros(3, 2)}, {"x": torch.tensor([True, True, False])}))
    with pytest.raises(pc.InputError, match="'x' has missing values"):
        ContrastiveDivergence(model, pc.Data({"y": torch.zeros(3, 2)}))
    with pytest.raises(pc.InputError, match="'x' has no finite set of values"):
        harmonium.pseudo_likelihood(harmonium.gaussian_rbm(2, 2), torch.zeros(1, 2))
    with pytest.raises(pc.InputError, match="log Z needs a finite group"):
        harmonium.log_normaliser(harmonium.harmonium({"x": pc.Real(2, scale=1.0), "y": pc.Real(2, scale=1.0)}))


def test_frozen_parameters_are_not_learned():
    model = strong({"x": pc.Binary(2), "y": pc.Binary(2)})
    weight, a, b = weights(model)
    weight.requires_grad_(False)
    before = [p.detach().clone() for p in (weight, a, b)]
    data = pc.Data({"x": torch.ones(10, 2)})
    ContrastiveDivergence(model, data, batch_size=10).fit(5)
    assert [torch.equal(p, old) for p, old in zip((weight, a, b), before, strict=True)] == [True, False, False]
    with pytest.raises(pc.InputError, match="no parameter requires a gradient: call"):
        ContrastiveDivergence(model.requires_grad_(False), data)
    with pytest.raises(pc.InputError, match="takes Data"):
        ContrastiveDivergence(model, data.state)


def test_an_update_that_is_not_finite_is_not_made():
    model = harmonium.gaussian_rbm(2, 2)
    with torch.no_grad():
        weights(model)[0].fill_(1e38)
    before = [p.detach().clone() for p in model.parameters()]
    learner = ContrastiveDivergence(model, pc.Data({"x": torch.ones(10, 2)}), batch_size=10)
    with pytest.raises(pc.NonFiniteError, match="gradient of 'x'"):
        learner.fit(3)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
