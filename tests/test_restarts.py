"""Rows that begin as questions do: exact laws of what is drawn, and what learns from what."""

import math

import pytest
import torch
from helpers import assert_mean
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


def test_others_learn_from_what_was_drawn_and_the_group_from_the_truth():
    """At chain length 1 all rows are fresh: losses are -log p(c | x') and -log p(x | c), exactly."""
    model, state = begun_model(), examples(12)
    restarts = [pc.Restart(0.5, "x"), pc.Restart(0.25, "x", AroundASquare(4, 1, 2))]
    learner = pc.Learner(
        model, pc.Data(state), chain_length=1, batch_size=12, restarts=restarts, optimiser=still, scan="systematic"
    )
    for _ in range(4):
        info = learner.step()
        pool, begun = learner.source.pool, learner.restarts.begun["x"]
        same = (begun == pool["x"]).flatten(1)
        assert int(same.all(1).sum()) == 3  # a quarter begins as it is
        partly = same.any(1) & ~same.all(1)
        assert int(partly.sum()) == 3 and set((~same[partly]).sum(1).tolist()) <= {1, 4}
        read = {**pool, "x": begun} if info.variable == "c" else pool
        expected = -model(info.variable, read).log_prob(pool[info.variable]).mean()
        assert float(info.loss) == pytest.approx(float(expected.detach()), rel=1e-12)
        # what was redrawn is the truth from now on; what was not is still to be learned
        if info.variable == "x":
            assert torch.equal(learner.truth["x"], learner.batch["x"])
        else:
            assert not torch.equal(learner.truth["x"], learner.batch["x"])
            assert {tuple(row.tolist()) for row in learner.truth["x"].flatten(1)} == {
                tuple(row.tolist()) for row in state["x"].flatten(1)
            }


def test_what_is_held_is_held_as_it_was_found():
    model, state = begun_model(), examples(20)
    lasting = pc.Lasting(0.5, 1e9, [(1.0, {"x": AroundASquare(4, 1, 2)})])
    learner = pc.Learner(
        model,
        pc.Data(state),
        chain_length=3,
        batch_size=20,
        lasting=lasting,
        restarts=[pc.Restart(1.0, "x")],
        optimiser=still,
    )
    known = {round(float(value), 12) for value in state["x"].flatten()}
    for _ in range(9):
        learner.step()
    held = learner.held.masks["x"]
    assert bool(held[:10].flatten(1).any(1).all()) and not held[10:].any()
    assert {round(float(value), 12) for value in learner.batch["x"][held]} <= known


@pytest.mark.parametrize(
    ("restarts", "message"),
    [
        ([pc.Restart(0.7, "x"), pc.Restart(0.6, "x")], "at most 1 together"),
        ([pc.Restart(-0.1, "x")], "must be at least 0"),
        ([pc.Restart(math.nan, "x")], "must be at least 0"),
        ([pc.Restart(0.5, "c")], "'c' cannot restart: it is no group of the model with a start"),
        ([pc.Restart(0.5, "q")], "'q' cannot restart"),
    ],
)
def test_what_cannot_restart(restarts, message):
    with pytest.raises(pc.InputError, match=message):
        pc.Learner(begun_model(), pc.Data(examples(5)), restarts=restarts)


def test_doubt_is_not_negative():
    with pytest.raises(pc.InputError, match=r"doubt must be at least 1, found 0\.5"):
        pc.Restart(0.5, "x", None, 0.5)
