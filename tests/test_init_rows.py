"""Init rows, which begin as questions do: exact laws of what is drawn, and what learns from what."""

import itertools
import math

import pytest
import torch
from helpers import DEVICES, assert_mean, learner_of, still

import paracond as pc
from paracond.experiments.faces.held_squares import AroundASquare
from paracond.experiments.faces.init_rows import InitRows
from paracond.experiments.faces.slow_rows import SlowRows

SQUARE = AroundASquare(4, 2, 2)
VARIABLES = {"x": pc.Real((1, 4, 4), scale=0.5), "c": pc.Binary(2)}


def model_with_init(redundancy=1.0, seed=0):
    torch.manual_seed(seed)
    networks = {name: pc.networks.mlp(VARIABLES, name, hidden=8) for name in VARIABLES}
    init = pc.initializers.pca(VARIABLES, "x", ["c"], 3, redundancy=redundancy)
    with torch.no_grad():
        init.means.normal_()
    inits = {"x": init}
    return pc.JointModel({n: pc.Conditional(f, networks[n], inits.get(n)) for n, f in VARIABLES.items()}).double()


def law_of(init, c):
    """The mean given c, directions `[16, 3]` and sigma of an initializer."""
    with torch.no_grad():
        return init._mean({"c": c})[0], init.directions.T, float(init._log_scale().exp())


def examples(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 1, 4, 4, generator=generator, dtype=torch.float64)
    return {"x": x, "c": torch.randint(2, (rows, 2), generator=generator).double()}


@pytest.mark.parametrize("redundancy", [1.0, 8.0])
def test_a_group_is_drawn_by_what_its_init_knows_of_it(redundancy):
    """Given x_K, with A_K the directions there and P = 1 + A_K'A_K / (r sigma^2): mean mu + A P^-1 A_K' (x_K - mu_K) /
    (r sigma^2), covariance A P^-1 A' + sigma^2, of what is hidden."""
    model, rows = model_with_init(redundancy), 40_000
    one = {name: value[:1] for name, value in examples(1).items()}
    state = {name: value.expand(rows, *value.shape[1:]) for name, value in one.items()}
    mask = SQUARE(1, torch.Generator().manual_seed(3), torch.device("cpu"))
    drawn = pc.initializers.draw_group(model, "x", state, mask.expand_as(state["x"]), model.generator(1)).flatten(1)
    mu, a, sigma = law_of(model.conditional("x").init, one["c"])
    seen, noise, x = mask.flatten(), redundancy * sigma**2, one["x"].flatten()
    inverse = torch.linalg.inv(torch.eye(3, dtype=torch.float64) + a[seen].T @ a[seen] / noise)
    mean = (mu + a @ inverse @ a[seen].T @ (x - mu)[seen] / noise)[~seen]
    covariance = a[~seen] @ inverse @ a[~seen].T + sigma**2 * torch.eye(4, dtype=torch.float64)
    assert torch.equal(drawn[:, seen], x[seen].expand(rows, -1))
    assert_mean(drawn[:, ~seen], mean)
    gap = drawn[:, ~seen] - mean
    assert_mean((gap.unsqueeze(1) * gap.unsqueeze(2)).flatten(1), covariance.flatten())


def on_the_way(rows=12, init_rows=(), slow=None, device="cpu", **options):
    """A model, and a learner of it with rows that begin at data (the first ones) and init rows; c has the first
    turn. Nothing is replaced in the first 1e9 updates, unless options say otherwise."""
    model = model_with_init().to(device)
    options = {"chain_length": 1e9, "batch_size": rows, "optimiser": still, "scan": "systematic", **options}
    learner = learner_of(model, pc.Data(examples(40)), init_rows=init_rows, slow=slow, **options)
    learner.scan.last = 0
    return model, learner


@pytest.mark.parametrize("device", DEVICES)
def test_rows_begin_with_an_example_whose_group_is_drawn_anew(device):
    """Around a square of known size."""
    _, learner = on_the_way(
        20, [InitRows(0.25, "x", AroundASquare(4, 3, 3)), InitRows(0.5, "x", SQUARE)], device=device
    )
    learner.step()
    truth, pool, first = learner.batch.init_rows.truth, learner.source.pool, learner.batch.init_rows.first
    assert first == learner.batch.rows == 5
    known = {tuple(row.tolist()) for row in pool["x"].flatten(1)}
    assert {tuple(row.tolist()) for row in truth["x"].flatten(1)} <= known
    same = (learner.batch.state["x"][first:] == truth["x"]).flatten(1).sum(1)
    assert same.tolist() == [7] * 5 + [12] * 10
    assert {tuple(row.tolist()) for row in learner.batch.state["x"][:first].flatten(1)} <= known


def test_on_the_way_others_learn_the_example():
    """c learns its true value given x', and again given the x that was drawn; x is only held against its own, given the
    c that was drawn; rows that begin at data learn what each group was before."""
    model, learner = on_the_way(init_rows=[InitRows(0.5, "x", SQUARE)])
    state, truth = None, learner.batch.init_rows.truth
    for name in ("c", "x", "c"):
        before = None if state is None else state
        loss = learner.step().loss
        if before is None:  # the first rows are examples, and x' is as it was
            before = {"x": learner.batch.state["x"].clone(), "c": learner.batch.state["c"].clone()}
            pool = learner.source.pool
            rows = [(pool["x"] == x).flatten(1).all(1).nonzero()[0, 0] for x in before["x"][:6]]
            before["c"][:6] = pool["c"][torch.stack(rows)]
        target = torch.cat([before[name][:6], truth[name]])
        expected = -model(name, before).log_prob(target).mean()
        assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-12)
        state = {key: value.clone() for key, value in learner.batch.state.items()}
        assert not torch.equal(state[name][6:], truth[name])
    objective = learner.evaluate("c", learner.batch.state)[1]  # c is new: left out at home, learned on the way
    expected = -model("c", state).log_prob(torch.cat([state["c"][:6], truth["c"]]))[6:].sum() / 12
    assert float(objective.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_seen_of_a_group_stays_and_a_group_does_not_learn_on_its_own_way(device):
    """x is redrawn inside the square alone, and learns from the rows at home alone."""
    model, learner = on_the_way(12, [InitRows(0.5, "x", AroundASquare(4, 2, 3))], device=device)
    learner.learns_init["x"] = False
    learner.step()
    seen, truth, before = (
        learner.batch.init_rows.known["x"],
        learner.batch.init_rows.truth["x"],
        learner.batch.state["x"].clone(),
    )
    assert set((~seen).flatten(1).sum(1).tolist()) <= {4, 9}
    with torch.no_grad():  # nodes of autograd that outlive this would be of another stream than the next step's
        scores = model("x", learner.batch.state).scores(torch.cat([before[:6], truth]))
        assert float(learner.evaluate("x", learner.batch.state)[1]) == pytest.approx(
            float(-scores[:6].sum() / 12), rel=1e-12
        )
    learner.step()
    assert torch.equal(learner.batch.state["x"][6:][seen], truth[seen])
    assert (
        not (learner.batch.state["x"][6:] == before[6:])[~seen].any()
        and not (learner.batch.state["x"][:6] == before[:6]).any()
    )


def test_rows_that_last_are_renewed_now_and_then():
    """Three rows for twelve lengths: one of them with every fourth pool."""
    _, learner = on_the_way(12, [InitRows(0.25, "x", SQUARE, times=12.0)], chain_length=1)
    learner.step()
    buffers, former, changes = learner.batch.init_rows, learner.batch.init_rows.truth["x"].clone(), []
    assert bool((former != 0).flatten(1).any(1).all())  # all have an example from the first step on
    for k in range(24):
        buffers.renew({name: value + k + 1 for name, value in learner.source.pool.items()})
        changes.append((buffers.truth["x"] != former).flatten(1).any(1).nonzero().flatten().tolist())
        former = buffers.truth["x"].clone()
    assert changes == [[k // 4 % 3] if k % 4 == 0 else [] for k in range(1, 25)]  # after all, at 0


def test_rows_stay_for_some_chain_lengths():
    """With n = 2 and times = 3, a third of them is new with every pool; others are never replaced by examples."""
    _, learner = on_the_way(12, [InitRows(0.5, "x", SQUARE, times=3.0)], chain_length=2)
    learner.step()
    pools, former = learner.source.pool["x"].clone(), learner.batch.init_rows.truth["x"].clone()
    changes = []
    for _ in range(24):
        learner.step()
        if not torch.equal(learner.source.pool["x"], pools):
            now = learner.batch.init_rows.truth["x"]
            changes.append((now != former).flatten(1).any(1).nonzero().squeeze(1).tolist())
            pools, former = learner.source.pool["x"].clone(), now.clone()
    assert len(changes) >= 5
    for rows in changes:
        assert rows in ([0, 1], [2, 3], [4, 5])  # in turn
    assert all(after == [(row + 2) % 6 for row in rows] for rows, after in itertools.pairwise(changes))


def test_rows_begin_at_data_at_first():
    _, learner = on_the_way(12, [InitRows(0.5, "x", SQUARE, times=1.0, after=3)], chain_length=1)
    buffers = learner.batch.init_rows
    for _ in range(3):
        learner.step()
        assert not buffers.away.any()
    learner.batch._renew()
    assert torch.equal(learner.batch.state["x"][6:], buffers.truth["x"])
    learner.step()
    learner.batch._renew()
    assert bool(buffers.away.all()) and not torch.equal(learner.batch.state["x"][6:], buffers.truth["x"])


def test_slow_rows_begin_at_data():
    _, learner = on_the_way(12, [InitRows(0.5, "x", SQUARE)], SlowRows(0.5, 10.0), chain_length=3)
    assert learner.batch.patience.tolist() == [10.0] * 3 + [1.0] * 3 + [math.inf] * 6
    for _ in range(10):
        learner.step()
    assert (learner.batch.ranks[:, 6:] >= 6).all()  # never due


@pytest.mark.parametrize(
    ("init_rows", "message"),
    [
        ([InitRows(0.7, "x", SQUARE), InitRows(0.6, "x", SQUARE)], "at most 1 together"),
        ([InitRows(-0.1, "x", SQUARE)], "must be at least 0"),
        ([InitRows(math.nan, "x", SQUARE)], "must be at least 0"),
        ([InitRows(0.5, "c", SQUARE)], "init rows need a group with an initializer; 'c' is none"),
        ([InitRows(0.5, "q", SQUARE)], "'q' is none"),
    ],
)
def test_bad_init_rows_are_refused(init_rows, message):
    with pytest.raises(pc.InputError, match=message):
        learner_of(model_with_init(), pc.Data(examples(5)), init_rows=init_rows)


def test_rows_stay_for_a_chain_length_at_least():
    with pytest.raises(pc.InputError, match=r"times must be at least 1, found 0\.5"):
        InitRows(0.5, "x", SQUARE, times=0.5)


def test_some_rows_must_begin_at_data():
    with pytest.raises(pc.InputError, match="init rows leave no row of 4 for chains that begin at data"):
        learner_of(model_with_init(), pc.Data(examples(5)), init_rows=[InitRows(1.0, "x", SQUARE)], batch_size=4)
