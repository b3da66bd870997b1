"""Special cases: each has the gradient that its literature gives it."""

import pytest
import torch
from helpers import assert_mean, random_joint, random_tables, still, table_model

import paracond as pc
from paracond import exact
from paracond.baselines import special_cases
from paracond.theory.kernels import FactorKernel
from paracond.theory.noise_kernels import Flips
from paracond.training.running_batch import LiteralForm, RunningForm

SHAPE = (3, 4)


def rows_of(law, rows, seed):
    index = torch.multinomial(law.flatten(), rows, replacement=True, generator=torch.Generator().manual_seed(seed))
    return torch.unravel_index(index, law.shape)


def gradient(model, name, weights):
    """grad of sum_x weights(x) log p(x_name | rest), by enumeration."""
    finite = exact.enumerate_model(model)
    scores = model(name, finite.states).log_prob(finite.states[name])
    parameters = list(model.conditional(name).parameters())
    return torch.cat([g.flatten() for g in torch.autograd.grad((weights.flatten() * scores).sum(), parameters)])


def batches(learner, name, updates):
    """Gradients of -loss in updates of one group, [updates, parameters]."""
    found = []
    for info in learner.run(updates):
        if info.variable == name:
            parameters = learner.model.conditional(name).parameters()
            found.append(-torch.cat([p.grad.flatten() for p in parameters]))
    return torch.stack(found)


def test_pseudo_likelihood_ascends_the_mean_of_the_conditionals():
    """With all examples in the batch it is deterministic: equal to enumeration, to rounding."""
    a, b = rows_of(random_joint(SHAPE, 1), 500, 2)
    model = table_model(random_tables(SHAPE, 0))
    learner = special_cases.pseudo_likelihood(model, pc.Data({"a": a, "b": b}), batch_size=500, optimiser=still)
    empirical = torch.bincount(a * SHAPE[1] + b, minlength=12).double().view(SHAPE) / 500
    for name in "ab":
        found = batches(learner, name, 6)
        expected = gradient(model, name, empirical).expand_as(found)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    hidden = pc.datasets.hide(pc.Data({"a": a, "b": b}), {"b": 0.5})
    with pytest.raises(pc.InputError, match="pseudo-likelihood needs complete data; b is missing in places"):
        special_cases.pseudo_likelihood(model, hidden)


def same_rows(found, wanted):
    """Whether the rows are the same, in any order."""
    return sorted(found.tolist()) == sorted(wanted.tolist())


def mlp_model():
    """An MLP for either direction: x is Real, z Binary."""
    torch.manual_seed(0)
    variables = {"x": pc.Real(3, scale="element"), "z": pc.Binary(4)}
    nets = {n: pc.Conditional(f, pc.networks.mlp(variables, n, hidden=8)) for n, f in variables.items()}
    return pc.JointModel(nets).double()


@pytest.mark.parametrize(
    "method, paired", [("wake_sleep", 0), ("symmetric_equilibrium", 0), ("symmetric_equilibrium", 4)]
)
def test_the_two_gradients_of_a_completed_batch(method, paired):
    """To rounding, by autograd: the decoder learns from the data with z ~ p(z | x), the encoder from the prior with
    x ~ p(x | z), and both from pairs; all are divided by the rows of the batch."""
    model, rows = mlp_model(), 10
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    z, prior = (torch.randint(2, (rows, 4), generator=generator).double() for _ in range(2))
    data = pc.Data({"x": x, "z": z}, {"z": torch.arange(rows) < paired}) if paired else pc.Data({"x": x})
    learner = getattr(special_cases, method)(model, data, prior, batch_size=2 * rows, optimiser=still, engine="eager")
    for info in learner.run(16):
        batch, mask = learner.completion.pool, learner.completion.mask
        awake, asleep = mask["x"].all(1), mask["z"].all(1)
        assert same_rows(batch["x"][awake], x)
        assert same_rows(batch["z"][~awake], prior)
        assert int((awake & asleep).sum()) == paired
        learns = awake if info.variable == "x" else asleep
        parameters = list(model.conditional(info.variable).parameters())
        scores = model(info.variable, batch).log_prob(batch[info.variable])[learns].sum() / (2 * rows)
        for parameter, wanted in zip(parameters, torch.autograd.grad(scores, parameters), strict=True):
            torch.testing.assert_close(-parameter.grad, wanted, rtol=0, atol=1e-10)


def test_wake_sleep_has_its_two_gradients_on_average():
    """Wake: the mean over data and z ~ p(z | x) of grad log p(x | z). Sleep: that over the prior and x ~ p(x | z) of
    grad log p(z | x). Either kind makes up half of the batch."""
    model = table_model(random_tables(SHAPE, 3))
    data, prior = random_joint((SHAPE[0],), 4), random_joint((SHAPE[1],), 5)
    (x,), (z,) = rows_of(data, 4000, 6), rows_of(prior, 4000, 7)
    learner = special_cases.wake_sleep(model, pc.Data({"a": x}), z, batch_size=8000, optimiser=still, seed=1)
    finite = exact.enumerate_model(model)
    p_x, p_z = finite.kernel.tables  # p(x | z), p(z | x)
    seen = torch.bincount(x, minlength=3).double() / 4000
    dreamt = torch.bincount(z, minlength=4).double() / 4000
    assert_mean(batches(learner, "a", 400), gradient(model, "a", 0.5 * seen[:, None] * p_z))
    assert_mean(batches(learner, "b", 400), gradient(model, "b", 0.5 * dreamt[None] * p_x))


def test_wake_sleep_takes_two_groups():
    model = table_model(random_tables((2, 2, 2), 0))
    with pytest.raises(pc.InputError, match="wake-sleep needs one group observed and one not"):
        special_cases.wake_sleep(model, pc.Data({"a": torch.zeros(4).long()}), torch.zeros(4).long())


ZEROS = torch.zeros(4).long()


@pytest.mark.parametrize(
    "data, prior, options, message",
    [
        ({"a": ZEROS}, ZEROS, {}, r"takes Data\(values\), found dict"),
        (pc.Data({"a": ZEROS, "b": ZEROS}), ZEROS, {}, "needs one group observed and one not"),
        (pc.Data({"a": ZEROS}), ZEROS[:0], {}, r"the prior of 'b' must be draws, \[rows, \*event\], found shape \[0\]"),
        (pc.Data({"a": ZEROS}), ZEROS + 4, {}, "'b' has classes 0 to 3, found 4"),
        (pc.Data({"a": ZEROS}), ZEROS, {"chain_length": 2}, "chain_length is no option of .*: it is 1"),
        (pc.Data({"a": ZEROS}), ZEROS, {"form": RunningForm()}, "form is no option of .*: it is 'literal'"),
        (
            pc.Data({"a": ZEROS}),
            ZEROS,
            {"completion": pc.CompletionOptions(0)},
            "completion steps must be a whole number, at least 1",
        ),
    ],
)
@pytest.mark.parametrize("method", ["wake_sleep", "symmetric_equilibrium"])
def test_what_the_two_player_methods_refuse(method, data, prior, options, message):
    with pytest.raises(pc.InputError, match=message):
        getattr(special_cases, method)(table_model(random_tables(SHAPE, 0)), data, prior, **options)


def test_what_else_is_refused():
    model = table_model(random_tables(SHAPE, 0))
    data = pc.Data({"a": ZEROS, "b": ZEROS})
    with pytest.raises(pc.InputError, match="'b' is observed in places: wake-sleep has no use for that"):
        special_cases.wake_sleep(model, pc.Data(data.state, {"b": torch.arange(4) < 2}), ZEROS)
    with pytest.raises(pc.InputError, match=r"pseudo-likelihood takes Data\(values\), found dict"):
        special_cases.pseudo_likelihood(model, data.state)
    with pytest.raises(pc.InputError, match="chain_length is no option of pseudo-likelihood: it is 1"):
        special_cases.pseudo_likelihood(model, data, chain_length=4)
    with pytest.raises(pc.InputError, match="form is no option of pseudo-likelihood: it is 'literal'"):
        special_cases.pseudo_likelihood(model, data, form=LiteralForm(skip_redrawn=False))
    kernel = FactorKernel("z", pc.Conditional(pc.Binary(1), pc.networks.MLP({"z": 1}, [1], depth=0)))
    with pytest.raises(pc.InputError, match="noise must be a Kernel, found 'forward'"):
        special_cases.diffusion(kernel, {"z": torch.zeros(4, 1)}, "forward")
    with pytest.raises(pc.InputError, match="q is no option of diffusion"):
        special_cases.diffusion(kernel, {"z": torch.zeros(4, 1)}, Flips("z", 0.1), q="forward")


def test_diffusion_learns_to_undo_a_fixed_noise():
    """With a table of its own for every state, the kernel becomes the posterior of x_k given x_k+1, exactly known."""
    generator = torch.Generator().manual_seed(0)
    z = torch.bernoulli(torch.full((20_000, 1), 0.8), generator=generator)
    network = pc.networks.MLP({"z": 1}, [1], depth=0)
    kernel = FactorKernel("z", pc.Conditional(pc.Binary(1), network))
    rate = pc.schedules.cosine(0.05, 1e-4, 800)
    special_cases.diffusion(
        kernel, {"z": z}, Flips("z", 0.3), chain_length=1, batch_size=20_000, learning_rate=rate
    ).fit(800)
    share, values = float(z.mean()), torch.tensor([[0.0], [1.0]])
    posterior = torch.tensor(
        [share * 0.3 / (share * 0.3 + (1 - share) * 0.7), share * 0.7 / (share * 0.7 + (1 - share) * 0.3)]
    )
    found = kernel.log_prob({"z": torch.ones(2, 1)}, {"z": values}).exp().detach()
    torch.testing.assert_close(found, posterior, atol=0.01, rtol=0)
