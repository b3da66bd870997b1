"""Completion in parallel with learning: exact answers, which weights complete which pool, numbers that are not finite;
and on a GPU, where the two really run at the same time."""

import pytest
import scipy.stats
import torch
from helpers import (
    THRESHOLD,
    Pairwise,
    assert_fits,
    learner_of,
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
gpu = pytest.mark.gpu


def networks_learner(**options):
    """Small networks, two groups with missing values, portions of several redraws."""
    torch.manual_seed(0)
    variables = {"x": pc.Real(3, scale="learned"), "c": pc.Categorical(3), "z": pc.Binary(4)}
    networks = {n: pc.networks.mlp(variables, n, hidden=8) for n in variables}
    init = pc.initializers.pca(variables, "x", ["c"], 2)
    parts = {n: pc.Conditional(f, networks[n], init if n == "x" else None) for n, f in variables.items()}
    generator = torch.Generator().manual_seed(1)
    state = {"x": torch.rand(64, 3, generator=generator), "c": torch.randint(3, (64,), generator=generator)}
    data = pc.datasets.hide(pc.Data(state), {"c": 0.5})
    options = {"batch_size": 16, "steps": 4, "parallel": True} | options
    return learner_of(pc.JointModel(parts), data, **options)


def test_completed_examples_have_the_posterior_law_for_every_pattern():
    pair = Pairwise({"u": pc.Binary(2), "c": pc.Categorical(3), "w": pc.Binary(2)}, seed=5, strength=0.7)
    finite, rows = exact.enumerate_model(pair.model), 20_000
    state = {"u": torch.tensor([[1.0, 0.0]]).expand(rows, 2), "c": torch.full((rows,), 2)}
    half = torch.arange(rows) % 2
    mask = {"u": torch.stack([half == 0, half == 1], 1), "c": half == 0}
    learner = learner_of(
        pair.model,
        pc.Data(state, mask),
        steps=25,
        batch_size=rows,
        parallel=True,
    )
    learner.source.fill()
    half = half[learner.completion.index]  # of the pool that is completed now and taken into use next
    learner.source.fill()
    patterns = [
        {"u": pc.Observed(torch.tensor([1.0, 0.0]), torch.tensor([True, False])), "c": torch.tensor(2)},
        {"u": pc.Observed(torch.tensor([1.0, 0.0]), torch.tensor([False, True]))},
    ]
    for k, given in enumerate(patterns):
        part = {n: v[half == k] for n, v in learner.source.pool.items()}
        counts = torch.bincount(state_index(finite, part), minlength=finite.limiting().numel())
        assert_fits(counts, finite.posterior(given))


def test_warm_completion_goes_on_where_it_stopped():
    pair = Pairwise({"u": pc.Binary(2), "c": pc.Categorical(3), "w": pc.Binary(2)}, seed=5, strength=1.5)
    finite, rows = exact.enumerate_model(pair.model), 20_000
    first = torch.tensor([True, False])
    data = pc.Data({"u": torch.tensor([[1.0, 0.0]]).expand(rows, 2)}, {"u": first.expand(rows, 2)})
    source = learner_of(pair.model, data, batch_size=rows // 2, warm=("u", "c", "w"), parallel=True).source
    for _ in range(60):
        source.fill()
    counts = torch.bincount(state_index(finite, source.pool), minlength=finite.limiting().numel())
    assert_fits(counts, finite.posterior({"u": pc.Observed(torch.tensor([1.0, 0.0]), first)}))


def test_a_pool_is_completed_by_the_weights_of_one_pool_earlier():
    """Literal chains of length 1: a pool per update. At step s the model can only draw b = s mod 3."""
    model = table_model(random_tables(SHAPE, 0))
    data = pc.Data({n: v for n, v in sample(random_joint(SHAPE, 1), 60, 2).items() if n != "b"})
    learner = learner_of(
        model,
        data,
        chain_length=1,
        form="literal",
        batch_size=20,
        optimiser=still,
        parallel=True,
    )
    for step in range(8):
        with torch.no_grad():
            model.conditional("b").network.logits.copy_(100.0 * torch.eye(3)[step % 3])
        learner.step()
        assert learner.source.pool["b"].tolist() == [max(step - 1, 0) % 3] * 20


def test_fresh_rows_come_whole_and_every_example_once_per_pass():
    """x numbers the examples: what is taken into the batch is theirs, and flags say what was drawn."""
    variables = {"x": pc.Real((), scale=1.0), "c": pc.Categorical(3)}
    model = pc.JointModel({n: pc.Conditional(f, pc.networks.mlp(variables, n, hidden=4)) for n, f in variables.items()})
    c = torch.arange(30) % 3
    data = pc.datasets.hide(pc.Data({"x": torch.arange(30.0), "c": c}), {"c": 0.5})
    learner = learner_of(model, data, batch_size=8, chain_length=3, optimiser=still, parallel=True)
    taken, original = [], learner.batch._replace

    def note():
        new = slice(int(learner.batch.first), int(learner.batch.first) + int(learner.batch.count))
        rows = learner.source.pool["x"][new].long()
        known = data.mask["c"][rows]
        assert torch.equal(learner.source.pool["c"][new][known], c[rows][known])
        assert torch.equal(learner.source.redrawn["c"][new], ~known)
        original()
        assert set(rows.tolist()) <= set(learner.batch.state["x"].tolist())
        taken.extend(rows.tolist())

    learner.batch._replace = note
    learner.fit(70)
    passes = [taken[k : k + 30] for k in range(0, len(taken) - 29, 30)]
    assert len(passes) >= 6
    assert all(sorted(found) == list(range(30)) for found in passes) and passes[0] != passes[1]


@pytest.mark.parametrize("options", [{}, {"warm": ["c", "z"]}, {"form": "literal", "draw": "after"}])
def test_it_does_not_matter_when_portions_are_asked_for(options):
    """What completes is apart from what learns: a whole fill at once, or nothing before it is needed, all bit for bit
    the same."""
    found = []
    for share in (None, 1.0, 0.0):
        learner = networks_learner(**options)
        advance = learner.source.advance
        if share is not None:  # but all when asked for all
            learner.source.advance = lambda some, share=share, advance=advance: advance(1.0 if some == 1.0 else share)
        waiting = [len(learner.completion.turns) for _ in learner.run(30)]
        assert (max(waiting) == 0) == (share == 1.0)
        learner.source.fill()
        states = learner.batch.state, learner.source.pool, learner.completion.kept
        found.append([*learner.averaged.parameters(), *(value for state in states for value in state.values())])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_portions_are_even():
    """Two groups are redrawn 4 times, a pool lasts 4 updates: 2 redraws in each."""
    learner = networks_learner(chain_length=4)
    assert [len(learner.completion.turns) for _ in learner.run(9)] == [6, 6, 4, 2, 0, 6, 4, 2, 0]


@pytest.mark.parametrize("engine", ["eager", "rounded"])
def test_what_completes_shares_nothing_with_what_learns(engine):
    learner = networks_learner(engine=engine)
    learner.fit(3)
    kept = [[t.clone() for t in (*m.parameters(), *m.buffers())] for m in (learner.source.copy, learner.model)]
    assert any(not torch.equal(a, b) for a, b in zip(*kept, strict=True))
    learning = {t.data_ptr() for m in (learner.model, learner.rounded.model) for t in (*m.parameters(), *m.buffers())}
    for model in (learner.source.copy, learner.completion.rounded.model):
        assert learning.isdisjoint(t.data_ptr() for t in (*model.parameters(), *model.buffers()))
    learner.source.fill()
    now = zip(learner.source.copy.parameters(), learner.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in now)


def test_complete_data_need_no_completion():
    data = pc.Data(sample(random_joint(SHAPE, 1), 50, 2))
    learner = learner_of(table_model(random_tables(SHAPE, 0)), data, batch_size=10, parallel=True)
    learner.fit(20)
    assert learner.completion.left == 10 and not learner.completion.turns


@pytest.mark.parametrize("form", ["literal", "running"])
def test_the_limiting_distribution_is_learned(form):
    joint = random_joint(SHAPE, 7)
    data = pc.datasets.hide(pc.Data(sample(joint, 4000, 1)), dict.fromkeys("abc", 0.3), seed=2)
    model = table_model([torch.full(SHAPE, 1 / k, dtype=torch.float64) for k in SHAPE])
    rate = pc.schedules.cosine(0.05, 0.001, 1200)
    options = {"chain_length": 2, "steps": 2, "batch_size": 512, "average": 0.99, "learning_rate": rate}
    learner = learner_of(model, data, form=form, parallel=True, **options)
    found = exact.enumerate_model(learner.fit(1200)).limiting()
    start = exact.kl(joint, torch.full(SHAPE, 1 / 12, dtype=torch.float64))
    assert exact.kl(joint, found) < 0.03 < 0.1 * start


# --- non-finite numbers -----------------------------------------------------------------------------------------


def spoil(learner):
    """Let the completion in progress meet something that is not finite; returns the step at which it began."""
    assert learner.completion.turns
    with torch.no_grad():
        for parameter in learner.source.copy.parameters():
            parameter.fill_(float("nan"))
    return int(learner.completion.resources.guard.clock)


def test_a_completion_that_is_not_finite_stops_and_is_not_used():
    learner = networks_learner()
    learner.fit(6)
    began = spoil(learner)
    kept = [
        t.clone() for t in (*learner.model.parameters(), *learner.batch.state.values(), *learner.source.pool.values())
    ]
    for _ in range(3):  # it stays so: the half-made pool is never ready
        with pytest.raises(pc.NonFiniteError, match=f"a completion of '[cz]' is not finite at step {began};"):
            learner.step()
    now = (*learner.model.parameters(), *learner.source.pool.values())
    assert learner.step_count == 6 and learner.completion.left == 0
    assert all(torch.equal(a, b) for a, b in zip(now, [*kept[: len(now) - 3], *kept[-3:]], strict=True))


def test_what_is_not_finite_in_parallel_counts_before_its_pool_is_used():
    """Recorded programs only write it down."""
    learner = networks_learner()
    learner.fit(6)
    learner.completion.resources.guard.first.copy_(torch.tensor([5, 2, 3]))
    learner.guard.raise_first()  # not yet
    with pytest.raises(pc.NonFiniteError, match="a completion of 'z' is not finite at step 5"):
        learner.finish()
    learner.source.fill()
    assert learner.guard.first.tolist() == [5, 2, 3]
    batch = {n: v.clone() for n, v in learner.batch.state.items()}
    learner.batch.count.fill_(16)
    learner.batch._replace()
    assert all(torch.equal(v, learner.batch.state[n]) for n, v in batch.items())


def test_the_first_stays_the_first():
    learner = networks_learner()
    learner.guard.first.copy_(torch.tensor([2, 0, 0]))
    learner.completion.resources.guard.first.copy_(torch.tensor([1, 2, 3]))
    learner.guard.adopt(learner.completion.resources.guard)
    assert learner.guard.first.tolist() == [2, 0, 0]


# --- on a GPU ---------------------------------------------------------------------------------------------------


@gpu
def test_recorded_and_eager_learning_beside_completion_follow_the_same_law():
    """Parameters do not move, and the host makes the same choices: a two-sample chi-square test of the batches."""
    data = pc.datasets.hide(pc.Data(sample(random_joint(SHAPE, 1), 20_000, 2)), {"b": 0.5, "c": 0.5})
    tables, counts = random_tables(SHAPE, 0, strength=1.0), []
    finite = exact.enumerate_model(table_model(tables))
    options = {"chain_length": 3, "steps": 3, "batch_size": 20_000, "optimiser": still, "parallel": True}
    for engine in ("eager", "graphs"):
        learner = learner_of(table_model(tables).to("cuda"), data, engine=engine, **options)
        learner.fit(60)
        batch = {n: v.cpu() for n, v in learner.batch.state.items()}
        counts.append(torch.bincount(state_index(finite, batch), minlength=12))
    pooled = sum(counts).double()
    statistic = sum(((c - pooled / 2) ** 2 / (pooled / 2)).sum() for c in counts)
    assert float(scipy.stats.chi2.sf(float(statistic), 11)) > THRESHOLD


def scenes_learner(parallel, **options):
    """Images whose class is often missing, networks with a randomness of their own."""
    torch.manual_seed(0)
    variables = {"x": pc.Real((1, 12, 12), scale="learned"), "c": pc.Categorical(3), "z": pc.Binary(8)}
    extra = {"x": {}, "c": {"jitter": 1}, "z": {}}
    networks = {n: pc.networks.image_network(variables, n, width=8, kind="residual", **extra[n]) for n in variables}
    model = pc.JointModel({n: pc.Conditional(variables[n], net) for n, net in networks.items()})
    generator = torch.Generator().manual_seed(0)
    c = torch.randint(3, (512,), generator=generator)
    x = torch.rand(512, 1, 12, 12, generator=generator) * 0.1 + c.view(-1, 1, 1, 1) / 3
    data = pc.datasets.hide(pc.Data({"x": x, "c": c}), {"c": 0.5})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return learner_of(
        model.to(device),
        data,
        batch_size=128,
        steps=4,
        parallel=parallel,
        **options,
    )


@gpu
def test_recorded_learning_beside_completion_reaches_the_same_loss():
    found = {}
    for parallel in (False, True):
        learner = scenes_learner(parallel, engine="graphs", warm=["z"])
        torch.cuda.manual_seed(5)
        losses = {n: [] for n in "xcz"}
        for info in learner.run(900):
            losses[info.variable].append(info.loss)
        found[parallel] = {n: float(torch.stack(v[-100:]).mean()) for n, v in losses.items()}
        assert torch.cuda.initial_seed() == 5  # torch's generator has its own state again
    assert found[True]["x"] == pytest.approx(found[False]["x"], abs=0.05 * 144)
    assert found[True]["c"] < 0.1


@gpu
def test_what_is_not_finite_in_parallel_to_recorded_updates_freezes_them_and_is_found():
    learner = scenes_learner(True, engine="graphs")
    learner.fit(42)
    learner.source.engine.join_side_stream()
    began = spoil(learner)
    learner.source.engine.join_side_stream()
    with pytest.raises(pc.NonFiniteError, match=f"a completion of '[cz]' is not finite at step {began};"):
        for _ in learner.run(1000):
            pass
    assert learner.step_count < 400  # found by looking, not at the end
    assert int(learner.guard.clock) == learner.step_count
    tensors = (*learner.model.parameters(), *learner.averaged.parameters(), *learner.batch.state.values())
    assert all(bool(t.isfinite().all()) for t in tensors)
    kept = [t.clone() for t in tensors]
    for name in learner.model.names:
        learner.update[name]()
    assert all(torch.equal(a, b) for a, b in zip(tensors, kept, strict=True))
