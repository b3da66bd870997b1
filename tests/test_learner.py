"""Algorithm 1: gradients against exact expectations, completion against the posterior, repeatability, errors."""

import copy
import math
from collections import Counter

import pytest
import scipy.stats
import torch
from helpers import (
    DEVICES,
    THRESHOLD,
    Pairwise,
    assert_fits,
    assert_mean,
    learner_of,
    on_cpu,
    random_joint,
    random_tables,
    sample,
    state_index,
    still,
    table_model,
)

import paracond as pc
from paracond import exact

SHAPE = (2, 3, 2)


def exact_gradient(model, name, law, states):
    """sum_x law(x) grad log p_name(x_name | x_-name)."""
    score = (law.flatten() * model(name, states).log_prob(states[name])).sum()
    return torch.autograd.grad(score, list(model.conditional(name).parameters()))


def empirical(state):
    table = torch.zeros(SHAPE, dtype=torch.float64)
    table.index_put_(tuple(state[n] for n in "abc"), torch.tensor(1.0, dtype=torch.float64), accumulate=True)
    return table / table.sum()


def gradients(learner, name):
    """The ascent direction of the last update of `name`."""
    return [-p.grad.clone() for p in learner.model.conditional(name).parameters()]


def test_one_step_on_complete_data_is_the_pseudo_likelihood_gradient():
    """n = 1, the whole data as the batch: no sampling is involved, so the gradient is exact."""
    model = table_model(random_tables(SHAPE, 0))
    state = sample(random_joint(SHAPE, 1), 50, 2)
    learner = learner_of(model, pc.Data(state), chain_length=1, batch_size=50, optimiser=still)
    states = exact.enumerate_model(model).states
    for _ in range(6):
        info = learner.step()
        expected = exact_gradient(model, info.variable, empirical(state), states)
        torch.testing.assert_close(gradients(learner, info.variable), list(expected))


@pytest.mark.parametrize("form", ["literal", "running"])
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("draw", ["before", "after"])
def test_the_expected_gradient_along_the_chain(form, skip, draw):
    """With frozen parameters the mean gradient of group i is exactly sum_k w_k sum_x q_k(x) grad log p_i: ages have
    weights w_k = 1/n (literal), or geometric ones of mean n (running). Skipping must not change it."""
    n, batch, rounds = 3, 2000, 2400
    model = table_model(random_tables(SHAPE, 0, strength=1.5), alpha=[0.5, 0.3, 0.2])
    finite = exact.enumerate_model(model)
    data = sample(random_joint(SHAPE, 1), batch, 2)
    learner = learner_of(
        model,
        pc.Data(data),
        chain_length=n,
        batch_size=batch,
        form=form,
        scan="random",
        draw=draw,
        skip_redrawn=skip,
        optimiser=still,
        seed=3,
    )
    if form == "running":
        for _ in range(30):  # until the ages in the batch are in equilibrium
            learner.step()
        ages = [1 / n * (1 - 1 / n) ** k for k in range(40)]
    else:
        ages = [1 / n] * n
    laws = exact.trajectory(finite.kernel, empirical(data), len(ages))
    law = sum(w * q for w, q in zip(ages, laws, strict=False))
    seen: dict[str, list] = {name: [] for name in model.names}
    for _ in range(rounds):
        name = learner.step().variable
        seen[name].append(torch.cat([g.flatten() for g in gradients(learner, name)]))
    for name, found in seen.items():
        expected = torch.cat([g.flatten() for g in exact_gradient(model, name, law, finite.states)])
        # Successive batches overlap, so means of stretches of updates are compared, not single updates.
        blocks = torch.stack([torch.stack(part).mean(0) for part in _stretches(found, 20)])
        error = blocks.std(0) / len(blocks) ** 0.5
        gap = (blocks.mean(0) - expected).abs()
        limit = float(scipy.stats.t.isf(THRESHOLD / 2, len(blocks) - 1))
        assert bool((gap < limit * error + 1e-12).all()), (name, gap.max(), error.max())
        assert float(expected.abs().max()) > 2 * limit * float(error.max())  # there was something to see


def _stretches(found, count):
    size = len(found) // count
    return [found[k * size : (k + 1) * size] for k in range(count)]


def test_the_literal_form_lets_every_group_meet_the_data():
    """Two groups, an even length: without a fresh start of the scan one of them would never see a real pair."""
    tables = random_tables((2, 3), 0)
    data = pc.Data({"a": torch.tensor([0, 1]), "b": torch.tensor([2, 0])})
    for scan in ("no-repeat", "systematic"):
        learner = learner_of(table_model(tables), data, chain_length=2, form="literal", scan=scan, optimiser=still)
        first = [info.variable for info in learner.run(80)][::2]
        assert first.count("a") > 8
        assert first.count("b") > 8


def rows_of(state):
    return list(zip(*(state[n].tolist() for n in "abc"), strict=True))


def test_fresh_rows_come_from_the_pool_whole_and_in_order():
    """Values and flags of an example stay together; every row of the pool is used once, then it is filled again."""
    model = table_model(random_tables(SHAPE, 0))
    state = sample(random_joint(SHAPE, 1), 60, 2)
    data = pc.datasets.hide(pc.Data(state), {"b": 0.5})
    learner = learner_of(model, data, batch_size=12, chain_length=3, optimiser=still)
    used = []
    for _ in range(12):
        before = Counter(rows_of(learner.batch.state))
        learner.batch.replace_due(3.0, learner.step_count)
        learner.step_count += 1
        new = slice(int(learner.batch.first), int(learner.batch.first) + int(learner.batch.count))
        used += range(new.start, new.stop)
        fresh, examples = {n: v[new] for n, v in learner.completion.pool.items()}, learner.completion.index[new]
        known = data.mask["b"][examples]
        assert torch.equal(learner.completion.redrawn["b"][new], ~known)
        assert all(torch.equal(fresh[n], state[n][examples]) for n in "ac")
        assert torch.equal(fresh["b"][known], state["b"][examples][known])
        rest = Counter(rows_of(learner.batch.state)) - Counter(rows_of(fresh))
        assert rest.total() == 12 - len(known) and not rest - before
    assert used == (list(range(12)) * 5)[:56]  # all 12 at first, then 4 in each of 11 updates


def test_skipping_removes_noise_only():
    """Right after a redraw of group i its gradient has mean zero; skipped, it is zero."""
    model = table_model(random_tables(SHAPE, 0))
    data = pc.Data(sample(random_joint(SHAPE, 1), 500, 2))
    for skip in (True, False):
        learner = learner_of(
            model, data, chain_length=1e9, batch_size=500, scan="systematic", skip_redrawn=skip, optimiser=still
        )
        learner.step()
        assert learner.batch.redrawn["a"].all() and not learner.batch.redrawn["b"].any()
        learner.scan.last = None  # choose `a` again
        learner.step()
        size = torch.cat([g.flatten() for g in gradients(learner, "a")]).abs().max()
        assert (float(size) == 0) == skip


def test_the_running_batch_has_the_expected_chain_length():
    model = table_model(random_tables(SHAPE, 0))
    data = pc.Data(sample(random_joint(SHAPE, 1), 100, 2))
    for n in (2.5, 7.0):
        learner = learner_of(model, data, chain_length=n, batch_size=64, optimiser=still)
        learner.step()
        taken, original = 0, learner.batch._replace

        def count(learner=learner, original=original):
            nonlocal taken
            taken += int(learner.batch.count)
            original()

        learner.batch._replace = count
        for _ in range(500):
            learner.step()
        assert 500 * 64 / taken == pytest.approx(n, rel=0.02)


def test_literal_chains_all_have_the_same_length():
    model = table_model(random_tables(SHAPE, 0))
    learner = learner_of(
        model,
        pc.Data(sample(random_joint(SHAPE, 1), 10, 2)),
        chain_length=3,
        batch_size=10,
        form="literal",
        optimiser=still,
    )
    fresh, original = [], learner.completion.fill

    def note():
        fresh.append(learner.step_count)
        original()

    learner.completion.fill = note
    for _ in range(9):
        learner.step()
    assert fresh == [0, 3, 6]


def test_a_scheduled_chain_length_grows():
    model = table_model(random_tables(SHAPE, 0))
    data = pc.Data(sample(random_joint(SHAPE, 1), 10, 2))
    learner = learner_of(model, data, chain_length=pc.schedules.linear(1, 5, 4), batch_size=10, optimiser=still)
    assert [info.chain_length for info in learner.run(6)] == [1, 2, 3, 4, 5, 5]
    assert pc.schedules.cosine(1.0, 0.0, 10)(5) == pytest.approx(0.5)


def test_every_example_is_used_once_per_pass():
    model = table_model(random_tables(SHAPE, 0))
    learner = learner_of(model, pc.Data(sample(random_joint(SHAPE, 1), 30, 2)), batch_size=10, optimiser=still)
    seen = []
    for _ in range(6):
        learner.completion.fill()
        seen += learner.completion.index.tolist()
    assert sorted(seen[:30]) == sorted(seen[30:]) == list(range(30)) != seen[:30]


# --- step I -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_completion_draws_from_the_posterior_for_every_pattern(device):
    pair = Pairwise({"u": pc.Binary(2), "c": pc.Categorical(3), "w": pc.Binary(2)}, seed=5, strength=0.7)
    finite = exact.enumerate_model(pair.model)
    rows = 30_000
    state = {"u": torch.tensor([[1.0, 0.0]]).expand(rows, 2), "c": torch.full((rows,), 2)}
    third = torch.arange(rows) % 3
    mask = {
        "u": torch.stack([third < 2, third == 0], 1),  # both coordinates, the first, none
        "c": third != 1,
    }
    learner = learner_of(pair.model.to(device), pc.Data(state, mask), steps=25, batch_size=rows)
    source = learner.completion
    for _ in range(1 if device == "cpu" else 5):  # on CUDA, until all is recorded
        source.fill()
    completed, redrawn, observed = (on_cpu(found) for found in (source.pool, source.redrawn, source.observed))
    index = source.index.cpu()
    third = third[index]
    patterns = [
        {"u": torch.tensor([1.0, 0.0]), "c": torch.tensor(2)},
        {"u": pc.Observed(torch.tensor([1.0, 0.0]), torch.tensor([True, False]))},
        {"c": torch.tensor(2)},
    ]
    for k, given in enumerate(patterns):
        part = {n: v[third == k] for n, v in completed.items()}
        counts = torch.bincount(state_index(finite, part), minlength=finite.limiting().numel())
        assert_fits(counts, finite.posterior(given))
    # In each row, what the last group with anything missing had missing there.
    rows_with = {n: flags.reshape(rows, -1).any(1) for n, flags in redrawn.items()}
    assert bool((torch.stack(list(rows_with.values())).sum(0) == 1).all())
    assert bool(rows_with["w"][third == 0].all())  # nothing else is missing there
    for name, some in rows_with.items():
        assert torch.equal(redrawn[name][some], ~observed[name][index][some])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("parallel", [False, True])
def test_examples_are_completed_by_the_average_where_that_is_asked_for(parallel, device):
    """The average is given another law here, and completed examples have that one."""
    one, other = (Pairwise({"u": pc.Binary(2), "c": pc.Categorical(3)}, seed=seed, strength=1.5) for seed in (5, 6))
    finite, rows = exact.enumerate_model(other.model), 20_000
    data = pc.Data({"u": torch.tensor([[1.0, 0.0]]).expand(rows, 2)})
    options = {"steps": 1, "batch_size": rows, "parallel": parallel, "by": "average"}
    learner = learner_of(one.model.to(device), data, **options)
    learner.averaged.load_state_dict(other.model.state_dict())
    learner.source.fill()
    counts = torch.bincount(state_index(finite, on_cpu(learner.source.pool)), minlength=finite.limiting().numel())
    given = {"u": torch.tensor([1.0, 0.0])}
    assert_fits(counts, finite.posterior(given))
    with pytest.raises(AssertionError, match="chi-square"):
        assert_fits(counts, exact.enumerate_model(one.model.to("cpu")).posterior(given))


@pytest.mark.parametrize("parallel", [False, True])
def test_an_average_that_follows_at_once_completes_as_the_model_does(parallel):
    weights = []
    for by in ("model", "average"):
        pair = Pairwise({"u": pc.Binary(2), "c": pc.Categorical(3)}, seed=5, strength=1.5)
        data = pc.Data({"u": torch.randint(2, (60, 2), generator=torch.Generator().manual_seed(0)).float()})
        learner = learner_of(
            pair.model,
            data,
            batch_size=20,
            average=0.0,
            parallel=parallel,
            by=by,
        )
        learner.fit(30, progress=False)
        weights.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
    torch.testing.assert_close(*weights, rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_warm_completion_goes_on_where_it_stopped(device):
    """One step at a time: after many passes what is kept has the posterior's law; one step from random has not."""
    pair = Pairwise({"u": pc.Binary(2), "c": pc.Categorical(3), "w": pc.Binary(2)}, seed=5, strength=1.5)
    finite, rows = exact.enumerate_model(pair.model), 20_000
    data = pc.Data(
        {"u": torch.tensor([[1.0, 0.0]]).expand(rows, 2)}, {"u": torch.tensor([[True, False]]).expand(rows, 2)}
    )
    given = {"u": pc.Observed(torch.tensor([1.0, 0.0]), torch.tensor([True, False]))}
    counts = {}
    for warm in ((), ("u", "c", "w")):
        model = pair.model.to(device)
        source = learner_of(model, data, steps=1, batch_size=rows // 2, warm=warm).completion
        for _ in range(60):
            source.fill()
        counts[warm] = torch.bincount(state_index(finite, on_cpu(source.pool)), minlength=finite.limiting().numel())
    assert_fits(counts["u", "c", "w"], finite.posterior(given))
    with pytest.raises(AssertionError, match="chi-square"):
        assert_fits(counts[()], finite.posterior(given))
    kept = {name: value.clone() for name, value in source.kept.items()}
    state, mask = source._first_state(torch.arange(50, device=device))
    for name, value in kept.items():
        assert torch.equal(state[name], torch.where(mask[name], source.examples[name][:50], value[:50]))


def test_values_that_are_not_observed_are_never_read():
    pair = Pairwise({"u": pc.Binary(2), "x": pc.Real(2, scale=1.0)}, seed=0)
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    mask = torch.rand(40, 2, generator=torch.Generator().manual_seed(1)) < 0.5

    def learned(hidden):
        model = copy.deepcopy(pair.model)
        data = pc.Data({"x": torch.where(mask, x, hidden)}, {"x": mask})
        return list(learner_of(model, data, batch_size=16).fit(20).parameters())

    for a, b in zip(learned(float("nan")), learned(7.0), strict=True):
        assert torch.equal(a, b)


# --- learning something -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [0.0, 0.3])
@pytest.mark.parametrize("form", ["literal", "running"])
def test_the_limiting_distribution_is_learned(hidden, form):
    joint = random_joint((2, 3, 2), 7)
    data = pc.datasets.hide(pc.Data(sample(joint, 4000, 1)), dict.fromkeys("abc", hidden), seed=2)
    model = table_model([torch.full(SHAPE, 1 / k, dtype=torch.float64) for k in SHAPE])
    learner = learner_of(
        model,
        data,
        chain_length=2,
        steps=2,
        batch_size=512,
        form=form,
        average=0.99,
        learning_rate=pc.schedules.cosine(0.05, 0.001, 1200),
    )
    learner.fit(1200)
    found = exact.enumerate_model(learner.averaged).limiting()
    start = exact.kl(joint, torch.full(SHAPE, 1 / 12, dtype=torch.float64))
    assert exact.kl(joint, found) < (0.01 if hidden == 0 else 0.03) < 0.1 * start


def test_averaged_weights_follow_the_model():
    model = table_model(random_tables(SHAPE, 0))
    data = pc.Data(sample(random_joint(SHAPE, 1), 100, 2))
    learner = learner_of(model, data, average=0.9, learning_rate=0.1, scan="systematic")
    mean = None
    for step in range(1, 40):
        learner.step()
        if (step - 1) % 3 == 0:  # an update of `a`
            updates = (step + 2) // 3
            decay = min(0.9, updates / (updates + 10))
            now = model.conditional("a").network.logits.detach()
            mean = now * (1 - decay) + decay * (
                random_tables(SHAPE, 0)[0].log().movedim(0, -1) if mean is None else mean
            )
    torch.testing.assert_close(learner.averaged.conditional("a").network.logits, mean)


class Unit(torch.optim.Optimizer):
    """Steps of length `lr`, whatever the gradient's length."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad / parameter.grad.norm()


def test_per_variable_optimisers():
    model = table_model(random_tables(SHAPE, 0))
    data = pc.Data(sample(random_joint(SHAPE, 1), 100, 2))
    rates = {"a": 0.5, "b": 0.0, "c": 0.5}
    learner = learner_of(model, data, scan="systematic", optimiser=lambda name, ps: Unit(ps, rates[name]))
    before = {n: model.conditional(n).network.logits.detach().clone() for n in "abc"}
    learner.fit(3)
    moved = {n: float((model.conditional(n).network.logits.detach() - before[n]).norm()) for n in "abc"}
    assert moved["b"] == 0
    assert moved["a"] == pytest.approx(0.5, rel=1e-6) and moved["c"] == pytest.approx(0.5, rel=1e-6)


def test_one_sweep_in_turn_scores_every_group_where_the_data_have_it():
    """Literal form, systematic scan, as many updates as groups: no group is scored after it was redrawn."""
    data = pc.Data({"c": torch.ones(100).long()})
    options = {"form": "literal", "scan": "systematic", "chain_length": 3}
    learner = learner_of(table_model(random_tables(SHAPE, 0)), data, batch_size=50, **options)
    update, true = learner.update["c"], []

    def watched() -> None:
        true.append(bool((learner.batch.state["c"] == 1).all()))
        update()

    learner.update["c"] = watched
    learner.fit(30)
    assert true == [True] * 10 and not bool((learner.batch.state["c"] == 1).all())


def test_learning_rates_by_name():
    model = table_model(random_tables(SHAPE, 0))
    data = pc.Data(sample(random_joint(SHAPE, 1), 100, 2))
    rates = {"a": 0.0, "b": pc.schedules.linear(0.25, 0.0, 4)}
    learner = learner_of(
        model,
        data,
        scan="systematic",
        learning_rate=rates,
        optimiser=lambda name, ps: Unit(ps, 0.5),
    )
    before = {n: model.conditional(n).network.logits.detach().clone() for n in "abc"}
    learner.fit(3)
    moved = [float((model.conditional(n).network.logits.detach() - before[n]).norm()) for n in "abc"]
    assert moved[0] == 0  # b learns at step 1 of its schedule, c at its optimiser's own rate
    assert moved[1:] == [pytest.approx(0.25 * 3 / 4, rel=1e-6), pytest.approx(0.5, rel=1e-6)]


def test_a_conditional_without_parameters_is_redrawn_and_not_learned():
    model = table_model(random_tables(SHAPE, 0))
    model.conditional("b").requires_grad_(False)
    learner = learner_of(model, pc.Data(sample(random_joint(SHAPE, 1), 100, 2)), scan="systematic")
    before = model.conditional("b").network.logits.clone()
    learner.fit(6)
    assert torch.equal(model.conditional("b").network.logits, before) and bool(learner.batch.redrawn["c"].all())


# --- repeatability and errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", ["before", "after"])
def test_bit_for_bit_repeatable(draw):
    def learned(seed):
        torch.manual_seed(0)
        variables = {"x": pc.Real(3, scale="learned"), "c": pc.Categorical(3), "z": pc.Binary(4)}
        model = pc.JointModel(
            {n: pc.Conditional(f, pc.networks.mlp(variables, n, hidden=8)) for n, f in variables.items()}
        )
        generator = torch.Generator().manual_seed(1)
        state = {"x": torch.rand(64, 3, generator=generator), "c": torch.randint(3, (64,), generator=generator)}
        data = pc.datasets.hide(pc.Data(state), {"c": 0.5})
        return list(learner_of(model, data, batch_size=16, draw=draw, seed=seed).fit(30).parameters())

    one, two, other = learned(0), learned(0), learned(1)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class Bomb(torch.nn.Module):
    """A network that puts out NaN (or huge numbers) from a given call on."""

    def __init__(self, fuse, what):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.fuse, self.what = fuse, what

    def forward(self, others):
        self.fuse -= 1
        ruin = self.what if self.fuse < 0 else 0.0
        return (others["c"][:, :1] * 0 + self.weight + ruin).expand(-1, 2)


@pytest.mark.parametrize("what", [float("nan"), 1e30])
def test_a_non_finite_loss_stops_with_name_and_step_and_keeps_the_last_good_state(what):
    variables = {"x": pc.Real(2, scale=1.0), "c": pc.Categorical(2)}
    model = pc.JointModel(
        {
            "x": pc.Conditional(variables["x"], Bomb(3, what)),
            "c": pc.Conditional(variables["c"], pc.networks.mlp(variables, "c", hidden=4)),
        }
    )
    data = pc.Data({"x": torch.zeros(8, 2), "c": torch.zeros(8).long()})
    learner = learner_of(model, data, chain_length=1e9, scan="systematic", batch_size=8)
    for _ in range(6):
        learner.step()
    kept = {n: v.clone() for n, v in learner.batch.state.items()}
    weights = [p.clone() for p in [*model.parameters(), *learner.averaged.parameters()]]
    with pytest.raises(
        pc.NonFiniteError, match=r"the loss of 'x' is not finite at step 6; the last good state is kept"
    ) as error:
        learner.step()
    assert error.value.variable == "x" and error.value.step == 6
    assert all(torch.equal(learner.batch.state[n], kept[n]) for n in kept)
    assert all(
        torch.equal(a, b) for a, b in zip([*model.parameters(), *learner.averaged.parameters()], weights, strict=True)
    )


class Spoilt(torch.nn.Module):
    """A network that puts out NaN from a given call on."""

    def __init__(self, shape, fuse):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(shape))
        self.fuse = fuse

    def forward(self, others):
        self.fuse -= 1
        rows = len(next(iter(others.values())))
        return (self.bias + (float("nan") if self.fuse < 0 else 0.0)).expand(rows, *self.bias.shape)


@pytest.mark.parametrize("family", [pc.Binary(2), pc.Categorical(3), pc.Real(2, scale=1.0)])
@pytest.mark.parametrize("draw", ["before", "after"])
@pytest.mark.parametrize("missing", [False, True])
def test_every_family_stops_with_name_and_step(family, draw, missing):
    variables = {"a": family, "b": pc.Binary(1)}
    b = pc.Conditional(variables["b"], pc.networks.mlp(variables, "b", hidden=4))
    model = pc.JointModel({"a": pc.Conditional(family, Spoilt(family.output_shape, 5)), "b": b})
    state = pc.initializers.initial_state(model, 40, model.generator(0))
    data = pc.Data({"b": state["b"]} if missing else state)
    learner = learner_of(model, data, batch_size=8, chain_length=2, draw=draw, steps=1)
    with pytest.raises(pc.NonFiniteError, match="of 'a' is not finite at step"):
        learner.fit(60)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    if missing and learner.completion.left == 0:
        with pytest.raises(pc.NonFiniteError, match="of 'a'"):  # the half-made pool is not used
            learner.fit(20)


def test_a_model_that_cannot_learn_is_refused():
    model = table_model(random_tables(SHAPE, 0)).requires_grad_(False)
    with pytest.raises(
        pc.InputError, match=r"no parameter of the model requires a gradient; call model.requires_grad_\(True\)"
    ):
        learner_of(model, pc.Data(sample(random_joint(SHAPE, 1), 10, 2)))


class Burst(torch.nn.Module):
    """A network whose output is not finite once its weight has moved."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, others):
        burst = torch.where(self.weight.detach() == 0, 0.0, float("inf"))
        return (others["c"][:, :1] * 0 + self.weight + burst).expand(-1, 2)


def test_a_draw_after_the_update_that_is_not_finite_takes_the_update_back():
    variables = {"x": pc.Real(2, scale=1.0), "c": pc.Categorical(2)}
    c = pc.Conditional(variables["c"], pc.networks.mlp(variables, "c", hidden=4))
    model = pc.JointModel({"x": pc.Conditional(variables["x"], Burst()), "c": c})
    learner = learner_of(model, pc.Data({"x": torch.ones(8, 2)}), scan="systematic", draw="after", batch_size=8)
    with pytest.raises(pc.NonFiniteError, match="a draw of 'x' is not finite at step 0"):
        learner.step()
    assert float(model.conditional("x").network.weight.detach()) == 0


def good():
    return pc.Data({"a": torch.tensor([0, 1]), "b": torch.tensor([2, 0])})


@pytest.mark.parametrize(
    "data, options, message",
    [
        (lambda: pc.Data({"a": torch.zeros(0).long()}), {}, "the data is empty"),
        (lambda: pc.Data({"a": torch.tensor([0, 2])}), {}, "'a' has classes 0 to 1, found 2"),
        (lambda: pc.Data({"y": torch.tensor([0])}), {}, "unknown variable 'y'"),
        (lambda: pc.Data({"a": torch.zeros(2, 2).long()}), {}, r"'a' must have shape \[batch\]"),
        (lambda: pc.Data({"a": torch.tensor([0.0, float("nan")])}), {}, "'a' has NaN"),
        (
            lambda: pc.Data({"a": torch.tensor([0])}, {"a": torch.zeros(2, dtype=torch.bool)}),
            {},
            "mask of 'a' must have",
        ),
        (lambda: pc.Data({"a": torch.tensor([0])}, {"a": torch.tensor([False])}), {}, "everything is missing"),
        (good, {"form": "loose"}, "form must be one of running, literal, or a RunningForm, found 'loose'"),
        (good, {"completion": 3}, r"completion must be CompletionOptions\(\.\.\.\), found 3"),
        (good, {"scan": "sorted"}, "scan must be one of"),
        (good, {"batch_size": 0}, "batch_size must be a whole number, at least 1, found 0"),
        (good, {"steps": 1.5}, "completion steps must be a whole number"),
        (good, {"by": "luck"}, "completion by must be one of model, average"),
        (good, {"warm": ["b"]}, "warm: 'b' has no completed values to keep: it is missing nowhere"),
        (good, {"warm": ["q"]}, "warm: 'q' has no completed values to keep: it is no group of the model"),
        (good, {"average": 2.0}, "average must be a number in"),
        (good, {"chain_length": "long"}, "chain_length must be a number or a function of the step, found 'long'"),
        (good, {"learning_rate": {"y": 0.1}}, "unknown variable 'y'"),
        (good, {"learning_rate": -1}, "learning_rate must be a number, 0 or more, found -1"),
        (
            good,
            {"learning_rate": {"a": math.nan}},
            "learning_rate of .a. must be a number, not NaN nor infinite, found nan",
        ),
        (good, {"learning_rate": {"a": "fast"}}, "learning_rate of 'a' must be a number or a function of the step"),
        (lambda: pc.Data([1]), {}, "data must be a dictionary by the names of groups, found list"),
        (lambda: pc.Data({"a": "b"}), {}, "'a' must be a tensor or nested lists of numbers, found 'b'"),
        (lambda: {"a": torch.tensor([0])}, {}, "a Learner takes Data"),
        (good, {"average": "x"}, "average must be a number, found"),
        (good, {"chain_length": True}, "chain_length must be a number"),
        (lambda: pc.Data({"a": torch.tensor([0])}, torch.tensor([True])), {}, "the mask of data must be a dictionary"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_changed(data, options, message):
    model = table_model(random_tables(SHAPE, 0))
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(pc.InputError, match=message):
        learner_of(model, data(), **options)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_a_bad_chain_length_is_refused():
    model = table_model(random_tables(SHAPE, 0))
    with pytest.raises(pc.InputError, match=r"chain_length must be a number, 1 or more, found 0\.5"):
        learner_of(model, good(), chain_length=0.5).step()


def test_hiding_is_exact_and_even():
    data = pc.datasets.hide(pc.datasets.digits(), {"c": 0.9})
    kept, all_of = (torch.bincount(c, minlength=10) for c in (data.state["c"][data.mask["c"]], data.state["c"]))
    assert int(kept.sum()) == 143 and bool(((kept - 0.1 * all_of).abs() < 1).all())
    spots = pc.datasets.hide(pc.datasets.digits(), {"x": 0.25}, coordinates=True)
    assert_mean(spots.mask["x"].flatten().double(), 0.75)
    for fractions, message in (({"y": 0.5}, "cannot hide 'y'"), ({"c": 1.5}, "between 0 and 1")):
        with pytest.raises(pc.InputError, match=message):
            pc.datasets.hide(data, fractions)
    with pytest.raises(pc.InputError, match="split must be"):
        pc.datasets.digits("validation")


def test_an_initializer_learns_the_principal_components():
    """Where the classes differ only in their means, the bound's maximum is the likelihood's, known in closed form; and
    the conditional learns as if there was no initializer."""
    generator = torch.Generator().manual_seed(0)
    rows, size, rank = 4000, 6, 2
    c = torch.randint(2, (rows,), generator=generator)
    directions = torch.randn(rank, size, generator=generator)
    x = torch.randn(rows, rank, generator=generator) @ directions + 0.3 * torch.randn(rows, size, generator=generator)
    x = x + c[:, None]
    variables = {"x": pc.Real(size), "c": pc.Categorical(2)}
    averaged = {}
    for with_init in (True, False):
        torch.manual_seed(1)
        networks = {n: pc.networks.mlp(variables, n, hidden=8) for n in variables}
        init = pc.initializers.pca(variables, "x", ["c"], rank) if with_init else None
        x_given_c = pc.Conditional(variables["x"], networks["x"], init)
        model = pc.JointModel({"x": x_given_c, "c": pc.Conditional(variables["c"], networks["c"])})
        options = {"batch_size": rows, "average": 0.9, "learning_rate": pc.schedules.cosine(0.03, 1e-4, 1500)}
        averaged[with_init] = learner_of(model, pc.Data({"x": x, "c": c}), chain_length=1, **options).fit(1500)
    centred = (x - torch.stack([x[c == k].mean(0) for k in range(2)])[c]).double()
    values = torch.linalg.eigvalsh(centred.T @ centred / rows).flip(0)
    logs = values[:rank].log().sum() + (size - rank) * values[rank:].mean().log()
    best = -0.5 * (logs + size * math.log(2 * math.pi) + size)
    found = pc.initializers.score(averaged[True], "x", {"x": x, "c": c}).mean()
    assert float(best) - 0.01 < float(found) <= float(best) + 0.01
    networks = [averaged[with_init].conditional("x").network.state_dict() for with_init in (True, False)]
    assert all(torch.equal(one, networks[1][name]) for name, one in networks[0].items())


@pytest.mark.parametrize("size", [6, 60])
def test_an_initializer_is_fitted_exactly(size):
    """The likelihood's maximum in closed form, which the bound attains with zero gradient; classes that are one-hot do
    not determine the mean, but all that it says. Afterwards it learns no more, and examples with gaps are left out."""
    generator = torch.Generator().manual_seed(0)
    rows, rank = 500, 3
    c = torch.randint(3, (rows,), generator=generator)
    lengths = torch.tensor([2.0, 1.5, 1.0]).view(-1, 1)
    directions = lengths * torch.linalg.qr(torch.randn(size, rank, generator=generator)).Q.T
    x = torch.randn(rows, rank, generator=generator) @ directions + 0.2 * torch.randn(rows, size, generator=generator)
    x = (x + c[:, None]).double()
    variables = {"x": pc.Real(size), "c": pc.Categorical(3)}
    init = pc.initializers.pca(variables, "x", ["c"], rank)
    networks = {n: pc.networks.mlp(variables, n, hidden=8) for n in variables}
    conditionals = {n: pc.Conditional(variables[n], networks[n], init if n == "x" else None) for n in variables}
    model = pc.JointModel(conditionals).double()
    broken, known = torch.cat([x, 1e6 + x[:50]]), torch.arange(rows + 50) < rows
    pc.initializers.fit(model, pc.Data({"x": broken, "c": torch.cat([c, c[:50]])}, {"c": known}))
    assert not any(p.requires_grad for p in init.parameters())
    centred = x - torch.stack([x[c == k].mean(0) for k in range(3)])[c]
    values = torch.linalg.eigvalsh(centred.T @ centred / rows).flip(0)
    logs = values[:rank].log().sum() + (size - rank) * values[rank:].mean().log()
    best = -0.5 * (logs + size * math.log(2 * math.pi) + size)
    init.requires_grad_(True)
    found = pc.initializers.score(model, "x", {"x": x, "c": c}).mean()
    assert abs(float(found.detach()) - float(best)) < 1e-9
    found.backward()
    assert max(float(p.grad.abs().max()) for p in init.parameters()) < 1e-6
    init.requires_grad_(False)
    before = [p.clone() for p in init.parameters()]
    learner_of(model, pc.Data({"x": x, "c": c}), batch_size=16).fit(5)
    assert all(torch.equal(a, b) for a, b in zip(before, init.parameters(), strict=True))
    with pytest.raises(pc.InputError, match="3 directions need more than 3 known rows of a group, found 2"):
        pc.initializers.fit(model, pc.Data({"x": x[:2], "c": c[:2]}))
