"""Chains that last: how often rows are replaced, what they hold, and the exact law of chains under a clamp."""

import pytest
import torch
from helpers import assert_fits, assert_mean, random_joint, random_tables, table_model
from test_learner import SHAPE, sample, still

import paracond as pc
from paracond.holds import AroundASquare, Scattered, whole


def test_rows_that_last_are_replaced_less_often_and_the_mean_length_stays():
    model, data = table_model(random_tables(SHAPE, 0)), pc.Data(sample(random_joint(SHAPE, 1), 100, 2))
    learner = pc.Learner(model, data, chain_length=8, lasting=pc.Lasting(0.25, 50), batch_size=64, optimiser=still)
    learner.step()
    replaced = torch.zeros(64)
    for _ in range(4000):
        learner.step()
        replaced += learner.ranks[learner.turn[0]] < learner.count
    assert float(replaced.sum()) == 4000 * 64 / 8
    assert float(replaced[:16].mean() / replaced[16:].mean()) == pytest.approx(1 / 50, rel=0.2)


@pytest.mark.parametrize("held", ["a", "b", None])
def test_held_chains_have_the_limit_of_the_question(held):
    """With consistent conditionals of a joint q and rows that are never replaced, those that hold a tend to p(a) q(b, c
    | a), p being the data; those that hold nothing to q."""
    q, p = random_joint(SHAPE, 0), random_joint(SHAPE, 1)
    model = table_model([q / q.sum(axis, keepdim=True) for axis in range(3)])
    rows = 8000
    holds = [(1.0, {held: whole})] if held else []
    data = sample(p, 2 * rows, 2)
    learner = pc.Learner(
        model,
        pc.Data(data),
        chain_length=5,
        lasting=pc.Lasting(0.5, 1e9, holds),
        batch_size=2 * rows,
        optimiser=still,
    )
    learner.step()
    before = {name: value[:rows].clone() for name, value in learner.batch.items()}
    for _ in range(60):
        learner.step()
    found = {name: value[:rows] for name, value in learner.batch.items()}
    for name in "abc":
        assert torch.equal(found[name], before[name]) == (name == held)
        assert not torch.equal(learner.batch[name][rows:], before[name])
    counts = torch.zeros(SHAPE, dtype=torch.float64)
    counts.index_put_(tuple(found[n] for n in "abc"), torch.tensor(1.0, dtype=torch.float64), accumulate=True)
    if held:
        axis = "abc".index(held)
        others = [k for k in range(3) if k != axis]
        own = counts.sum(others, keepdim=True) / rows  # what the rows hold
        law = own * q / q.sum(others, keepdim=True)
    else:
        law = q
    assert_fits(counts, law)


def test_a_square_is_free_and_all_around_it_held():
    generator = torch.Generator().manual_seed(0)
    held = AroundASquare(16, 3, 6)(2000, generator, torch.device("cpu"))
    assert held.shape == (2000, 1, 16, 16)
    free = ~held.squeeze(1)
    height, width = free.any(2).sum(1), free.any(1).sum(1)
    assert torch.equal(height, width) and torch.equal(free.sum((1, 2)), height * width)
    assert set(height.tolist()) == {3, 4, 5, 6}
    assert bool(free.any(0).all())  # anywhere, corners too


def test_scattered_places_are_held_in_the_shares_asked_for():
    held = Scattered(16, 0.25, 0.75)(4000, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert held.shape == (4000, 1, 16, 16)
    shares = held.double().mean((1, 2, 3))
    assert_mean(shares, 0.5)
    assert_mean((shares - 0.5).square(), 0.5**2 / 12 + (0.25 - 0.5**2 / 12) / 256)  # of the share, and of the places
    assert_mean(held[:, 0].double(), torch.full((16, 16), 0.5))


def test_parts_of_a_group_are_held_in_rows_that_last_alone():
    """Held coordinates keep their values until their row is replaced, and are not marked as redrawn."""
    variables = {"x": pc.Real((1, 8, 8), scale=0.5), "c": pc.Categorical(2)}
    model = pc.JointModel({n: pc.Conditional(f, pc.networks.mlp(variables, n, hidden=4)) for n, f in variables.items()})
    data = pc.Data({"x": torch.zeros(40, 1, 8, 8), "c": torch.zeros(40, dtype=torch.long)})
    lasting = pc.Lasting(0.5, 1e9, [(0.5, {"x": AroundASquare(8, 2, 4)}), (0.25, {"c": whole})])
    learner = pc.Learner(model, data, chain_length=2, lasting=lasting, batch_size=40, optimiser=still)
    for _ in range(20):
        learner.step()
    square, group = learner.held.masks["x"], learner.held.masks["c"]
    assert not square[20:].any() and not group[20:].any()
    kinds = square.flatten(1).any(1).long() + 2 * group.long()
    assert set(kinds[:20].tolist()) == {0, 1, 2}
    assert bool((learner.batch["x"][square] == 0).all()) and bool((learner.batch["x"][~square][:64] != 0).any())
    assert bool((learner.batch["c"][group] == 0).all())
    learner.scan.last = 1  # x comes next
    learner.step()
    assert torch.equal(learner.redrawn["x"], ~square) and not learner.redrawn["c"].any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pc.Lasting(1.0, 10), r"chains last with a share in \[0, 1\) and times from 1 on, found 1.0, 10"),
        (lambda: pc.Lasting(0.5, 0.5), "chains last with a share"),
        (lambda: pc.Lasting(0.5, 2, [(0.7, {}), (0.6, {})]), "at most 1 together, found"),
        (lambda: pc.Lasting(0.5, 2, [(-0.1, {})]), "must be at least 0"),
        (lambda: pc.Lasting(0.5, 2, [(0.1, {"q": whole})]), "'q' cannot be held: it is no group of the model"),
    ],
)
def test_what_cannot_last(make, message):
    model, data = table_model(random_tables(SHAPE, 0)), pc.Data(sample(random_joint(SHAPE, 1), 10, 2))
    with pytest.raises(pc.InputError, match=message):
        pc.Learner(model, data, lasting=make())


def test_literal_chains_do_not_last():
    model, data = table_model(random_tables(SHAPE, 0)), pc.Data(sample(random_joint(SHAPE, 1), 10, 2))
    with pytest.raises(pc.InputError, match="chains last, and restart, where form='running', found form='literal'"):
        pc.Learner(model, data, lasting=pc.Lasting(0.5, 9), form="literal")
