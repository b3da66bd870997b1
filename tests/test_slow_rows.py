"""Slow rows: how often rows are replaced; and the squares that questions leave free."""

import pytest
import torch
from helpers import learner_of, random_joint, random_tables, table_model
from test_learner import SHAPE, sample, still

import paracond as pc
from paracond.experiments.faces.held_squares import AroundASquare
from paracond.experiments.faces.slow_rows import SlowRows


def test_slow_rows_are_replaced_less_often_and_the_mean_length_stays():
    model, data = table_model(random_tables(SHAPE, 0)), pc.Data(sample(random_joint(SHAPE, 1), 100, 2))
    learner = learner_of(model, data, chain_length=8, slow=SlowRows(0.25, 50), batch_size=64, optimiser=still)
    learner.step()
    replaced = torch.zeros(64)
    for _ in range(4000):
        learner.step()
        replaced += learner.batch.ranks[learner.batch.turn[0]] < learner.batch.count
    assert float(replaced.sum()) == 4000 * 64 / 8
    assert float(replaced[:16].mean() / replaced[16:].mean()) == pytest.approx(1 / 50, rel=0.2)


def test_a_square_is_free_and_all_around_it_held():
    generator = torch.Generator().manual_seed(0)
    held = AroundASquare(16, 3, 6)(2000, generator, torch.device("cpu"))
    assert held.shape == (2000, 1, 16, 16)
    free = ~held.squeeze(1)
    height, width = free.any(2).sum(1), free.any(1).sum(1)
    assert torch.equal(height, width) and torch.equal(free.sum((1, 2)), height * width)
    assert set(height.tolist()) == {3, 4, 5, 6}
    assert bool(free.any(0).all())  # anywhere, corners too


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SlowRows(1.0, 10), r"slow rows need a share in \[0, 1\) and times of at least 1, found 1.0 and 10"),
        (lambda: SlowRows(0.5, 0.5), "slow rows need a share"),
    ],
)
def test_bad_slow_rows_are_refused(make, message):
    model, data = table_model(random_tables(SHAPE, 0)), pc.Data(sample(random_joint(SHAPE, 1), 10, 2))
    with pytest.raises(pc.InputError, match=message):
        learner_of(model, data, slow=make())
