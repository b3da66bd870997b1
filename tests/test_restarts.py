"""Rows that begin as questions do: exact laws of what is drawn, and what learns from what."""

import itertools
import math

import pytest
import torch
from helpers import DEVICES, assert_mean
from test_learner import still

import paracond as pc
from paracond.holds import AroundASquare

VARIABLES = {"x": pc.Real((1, 4, 4), scale=0.5), "c": pc.Binary(2)}


def begun_model(redundancy=1.0, seed=0):
    torch.manual_seed(seed)
    networks = {name: pc.networks.mlp(VARIABLES, name, hidden=8) for name in VARIABLES}
    start = pc.networks.components(VARIABLES, "x", ["c"], 3, redundancy=redundancy)
    with torch.no_grad():
        start.means.normal_()
    starts = {"x": start}
    return pc.JointModel({n: pc.Conditional(f, networks[n], starts.get(n)) for n, f in VARIABLES.items()}).double()


def law_of(start, c):
    """The mean given c, directions `[16, 3]` and sigma of a start."""
    with torch.no_grad():
        return start._mean({"c": c})[0], start.directions.T, float(start._log_scale().exp())


def examples(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 1, 4, 4, generator=generator, dtype=torch.float64)
    return {"x": x, "c": torch.randint(2, (rows, 2), generator=generator).double()}


@pytest.mark.parametrize(("redundancy", "doubt"), [(1.0, 1.0), (8.0, 1.0), (2.0, 4.0)])
def test_a_group_is_drawn_again_by_what_its_start_knows_of_it(redundancy, doubt):
    """Given x, with P = 1 + A'A / (r sigma^2): mean mu + A P^-1 A' (x - mu) / (r sigma^2), covariance A P^-1 A' +
    sigma^2."""
    model = begun_model(redundancy)
    one = {name: value[:1] for name, value in examples(1).items()}
    rows = 40_000
    state = {name: value.expand(rows, *value.shape[1:]) for name, value in one.items()}
    drawn = model.restart("x", state, None, model.generator(1), doubt).flatten(1)
    mu, a, sigma = law_of(model.conditional("x").start, one["c"])
    noise = doubt * redundancy * sigma**2
    inverse = torch.linalg.inv(torch.eye(3, dtype=torch.float64) + a.T @ a / noise)
    mean = mu + a @ inverse @ a.T @ (one["x"].flatten() - mu) / noise
    covariance = a @ inverse @ a.T + sigma**2 * torch.eye(16, dtype=torch.float64)
    assert_mean(drawn, mean)
    gap = drawn - mean
    assert_mean((gap.unsqueeze(1) * gap.unsqueeze(2)).flatten(1), covariance.flatten())


def test_drawing_again_keeps_the_law_of_the_start():
    """Where known coordinates count in full, x' has the law of x: one step of a Gibbs sampler of p_0(x, u)."""
    model, rows = begun_model(), 40_000
    c = torch.ones(rows, 2, dtype=torch.float64)
    start = model.conditional("x").start
    x = start.sample({"c": c}, model.generator(0), rows)
    again = model.restart("x", {"x": x, "c": c}, None, model.generator(1)).flatten(1)
    mu, a, sigma = law_of(start, c[:1])
    gap = again - mu
    assert_mean(gap, torch.zeros(16))
    covariance = a @ a.T + sigma**2 * torch.eye(16, dtype=torch.float64)
    assert_mean((gap.unsqueeze(1) * gap.unsqueeze(2)).flatten(1), covariance.flatten())


def on_the_way(rows=12, restarts=None, lasting=None, device="cpu", **options):
    """A model, and a learner of it with rows that begin at data (the first ones) and rows that restart; c has the first
    turn. Nothing is replaced in the first 1e9 updates, unless options say otherwise."""
    model = begun_model().to(device)
    options = {"chain_length": 1e9, "batch_size": rows, "optimiser": still, "scan": "systematic", **options}
    learner = pc.Learner(model, pc.Data(examples(40)), restarts=restarts, lasting=lasting, **options)
    learner.scan.last = 0
    return model, learner


@pytest.mark.parametrize("device", DEVICES)
def test_rows_begin_with_an_example_whose_group_is_drawn_anew(device):
    """Whole, around a square of known size, or not at all."""
    square = AroundASquare(4, 2, 2)
    restarts = [pc.Restart(0.25, "x", given=("c",)), pc.Restart(0.5, "x", square)]
    _, learner = on_the_way(20, restarts, device=device)
    learner.step()
    truth, pool, first = learner.restarts.truth, learner.source.pool, learner.restarts.first
    assert first == learner.rows == 5
    known = {tuple(row.tolist()) for row in pool["x"].flatten(1)}
    assert {tuple(row.tolist()) for row in truth["x"].flatten(1)} <= known
    same = (learner.batch["x"][first:] == truth["x"]).flatten(1).sum(1)
    assert same.tolist() == [0] * 5 + [12] * 10
    assert torch.equal(learner.batch["c"][first : first + 5], truth["c"][:5])
    assert {tuple(row.tolist()) for row in learner.batch["x"][:first].flatten(1)} <= known


def test_on_the_way_others_learn_the_example():
    """c learns its true value given x', and again given the x that was drawn; x is only held against its own, given the
    c that was drawn; rows that begin at data learn what each group was before."""
    model, learner = on_the_way(restarts=[pc.Restart(0.5, "x")])
    state, truth = None, learner.restarts.truth
    for name in ("c", "x", "c"):
        before = None if state is None else state
        loss = learner.step().loss
        if before is None:  # the first rows are examples, and x' is as it was
            before = {"x": learner.batch["x"].clone(), "c": learner.batch["c"].clone()}
            pool = learner.source.pool
            rows = [(pool["x"] == x).flatten(1).all(1).nonzero()[0, 0] for x in before["x"][:6]]
            before["c"][:6] = pool["c"][torch.stack(rows)]
        target = torch.cat([before[name][:6], truth[name]])
        expected = -model(name, before).log_prob(target).mean()
        assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-12)
        state = {key: value.clone() for key, value in learner.batch.items()}
        assert not torch.equal(state[name][6:], truth[name])
    objective = learner.evaluate("c")[1]  # c is new: left out at home, learned on the way
    expected = -model("c", state).log_prob(torch.cat([state["c"][:6], truth["c"]]))[6:].sum() / 12
    assert float(objective.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)


def test_what_is_given_is_neither_redrawn_nor_learned_on_the_way():
    _, learner = on_the_way(restarts=[pc.Restart(0.5, "x", given=("c",))])
    for name in ("c", "x", "c"):
        assert learner.step().variable == name
        assert torch.equal(learner.batch["c"][6:], learner.restarts.truth["c"])
    assert float(learner.evaluate("c")[1].detach()) == 0  # at home it is new
    assert float(learner.evaluate("x")[1].detach()) != 0


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_seen_of_a_group_stays_and_a_group_does_not_learn_on_its_own_way(device):
    """x is redrawn inside the square alone, and learns from the rows at home alone."""
    model, learner = on_the_way(12, [pc.Restart(0.5, "x", AroundASquare(4, 2, 3))], device=device)
    learner.learns_start["x"] = False
    learner.step()
    seen, truth, before = learner.restarts.known["x"], learner.restarts.truth["x"], learner.batch["x"].clone()
    assert set((~seen).flatten(1).sum(1).tolist()) <= {4, 9}
    scores = model("x", learner.batch).scores(torch.cat([before[:6], truth]))
    expected = -scores[:6].sum() / 12
    assert float(learner.evaluate("x")[1].detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    learner.step()
    assert torch.equal(learner.batch["x"][6:][seen], truth[seen])
    assert not (learner.batch["x"][6:] == before[6:])[~seen].any() and not (learner.batch["x"][:6] == before[:6]).any()


@pytest.mark.parametrize("device", DEVICES)
def test_at_home_a_row_is_its_example_and_learns_as_a_chain(device):
    """Until x has had its turn c is given; then all are the example, nothing of it is new, and c learns again."""
    _, learner = on_the_way(restarts=[pc.Restart(0.5, "x", given=("c",), home=True)], device=device)
    truth = learner.restarts.truth
    learner.step()
    assert bool(learner.restarts.away.all()) and not torch.equal(learner.batch["x"][6:], truth["x"])
    learner.step()
    assert not learner.restarts.away.any()
    for name in ("x", "c"):
        assert torch.equal(learner.batch[name][6:], truth[name]) and not learner.redrawn[name][6:].any()
    learner.step()
    assert not torch.equal(learner.batch["c"][6:], truth["c"]) and bool(learner.redrawn["c"][6:].all())
    assert torch.equal(learner.restarts.target("c"), learner.batch["c"])
    assert float(learner.evaluate("c")[1].detach()) == 0


def test_rows_that_last_are_renewed_now_and_then():
    """Three rows for twelve lengths: one of them with every fourth pool."""
    _, learner = on_the_way(12, [pc.Restart(0.25, "x", times=12.0)], chain_length=1)
    learner.step()
    restarts, former, changes = learner.restarts, learner.restarts.truth["x"].clone(), []
    assert bool((former != 0).flatten(1).any(1).all())  # all have an example from the first step on
    for k in range(24):
        restarts.renew({name: value + k + 1 for name, value in learner.source.pool.items()})
        changes.append((restarts.truth["x"] != former).flatten(1).any(1).nonzero().flatten().tolist())
        former = restarts.truth["x"].clone()
    assert changes == [[k // 4 % 3] if k % 4 == 0 else [] for k in range(1, 25)]  # after all, at 0


def test_rows_stay_for_some_chain_lengths():
    """With n = 2 and times = 3, a third of them is new with every pool; others are never replaced by examples."""
    _, learner = on_the_way(12, [pc.Restart(0.5, "x", times=3.0)], chain_length=2)
    learner.step()
    pools, former = learner.source.pool["x"].clone(), learner.restarts.truth["x"].clone()
    changes = []
    for _ in range(24):
        learner.step()
        if not torch.equal(learner.source.pool["x"], pools):
            now = learner.restarts.truth["x"]
            changes.append((now != former).flatten(1).any(1).nonzero().squeeze(1).tolist())
            pools, former = learner.source.pool["x"].clone(), now.clone()
    assert len(changes) >= 5
    for rows in changes:
        assert rows in ([0, 1], [2, 3], [4, 5])  # in turn
    assert all(after == [(row + 2) % 6 for row in rows] for rows, after in itertools.pairwise(changes))


def test_examples_are_taken_as_preferred():
    """One at a time of 40: those with c_0 = 1 are taken three times as often."""
    restart = pc.Restart(0.025, "x", times=1.0, prefer=lambda state: 1 + 2 * state["c"][:, 0])
    _, learner = on_the_way(40, [restart], completion_steps=0)
    learner.step()
    taken = []
    for _ in range(4000):
        learner.restarts.renew(learner.source.pool)
        taken.append(learner.restarts.truth["c"][0, 0].clone())
    chance = 1 + 2 * learner.source.pool["c"][:, 0]
    assert_mean(torch.stack(taken).unsqueeze(1), (chance * learner.source.pool["c"][:, 0]).sum() / chance.sum())


def test_rows_begin_at_data_at_first():
    _, learner = on_the_way(12, [pc.Restart(0.5, "x", times=1.0, after=3)], chain_length=1)
    restarts = learner.restarts
    for _ in range(3):
        learner.step()
        assert not restarts.away.any()
    learner.restart()
    assert torch.equal(learner.batch["x"][6:], restarts.truth["x"])
    learner.step()
    learner.restart()
    assert bool(restarts.away.all()) and not torch.equal(learner.batch["x"][6:], restarts.truth["x"])


def test_chains_that_last_begin_at_data():
    _, learner = on_the_way(12, [pc.Restart(0.5, "x")], pc.Lasting(0.5, 10.0), chain_length=3)
    assert learner.patience.tolist() == [10.0] * 3 + [1.0] * 3 + [math.inf] * 6
    for _ in range(10):
        learner.step()
    assert (learner.ranks[:, 6:] >= 6).all()  # never due


@pytest.mark.parametrize(
    ("restarts", "message"),
    [
        ([pc.Restart(0.7, "x"), pc.Restart(0.6, "x")], "at most 1 together"),
        ([pc.Restart(-0.1, "x")], "must be at least 0"),
        ([pc.Restart(math.nan, "x")], "must be at least 0"),
        ([pc.Restart(0.5, "c")], "'c' cannot restart: it is no group of the model with a start"),
        ([pc.Restart(0.5, "q")], "'q' cannot restart"),
        ([pc.Restart(0.5, "x", given=["q"])], "'q' cannot be given where 'x' restarts"),
        ([pc.Restart(0.5, "x", given=["x"])], "'x' cannot be given where 'x' restarts"),
    ],
)
def test_what_cannot_restart(restarts, message):
    with pytest.raises(pc.InputError, match=message):
        pc.Learner(begun_model(), pc.Data(examples(5)), restarts=restarts)


@pytest.mark.parametrize("what", ["doubt", "times"])
def test_doubt_and_times_are_at_least_one(what):
    with pytest.raises(pc.InputError, match=rf"{what} must be at least 1, found 0\.5"):
        pc.Restart(0.5, "x", **{what: 0.5})


def test_some_rows_must_begin_at_data():
    with pytest.raises(pc.InputError, match="restarts leave no row of 4 for chains that begin at data"):
        pc.Learner(begun_model(), pc.Data(examples(5)), restarts=[pc.Restart(1.0, "x")], batch_size=4)
    with pytest.raises(pc.InputError, match="where form='running', found form='literal'"):
        pc.Learner(begun_model(), pc.Data(examples(5)), restarts=[pc.Restart(0.5, "x")], form="literal")
