"""What is refused in one place for all: whole states, states of learners, sizes, functions of the user."""

import numpy as np
import pytest
import torch
from torch import nn

import paracond as pc

SIDES = {"a": pc.Binary(2), "b": pc.Categorical(3)}


def made(dtype=torch.float32):
    parts = {name: pc.Conditional(family, pc.networks.mlp(SIDES, name, hidden=4)) for name, family in SIDES.items()}
    return pc.JointModel(parts).to(dtype)


MODEL = made()
STATE = {"a": torch.zeros(4, 2), "b": torch.zeros(4, dtype=torch.long)}
HIDDEN = STATE | {"a": np.ma.array(np.zeros((4, 2)), mask=np.eye(4, 2, dtype=bool))}
DATA = pc.Data(STATE)


def learner(**options):
    return pc.Learner(MODEL, DATA, batch_size=2, **options)


def chain():
    return pc.Chain(MODEL, generator=torch.Generator())


CASES = {
    "a masked whole state": (lambda: chain().run(HIDDEN, 1), "'a' has missing values"),
    "an edit of one": (lambda: pc.edited(MODEL, HIDDEN, "a", torch.ones(1, 2)), "'a' has missing values"),
    "chains that begin at one": (
        lambda: pc.diagnostics.consistency(MODEL, state=HIDDEN, chains=4),
        "'a' has missing values",
    ),
    "one chain that should mix": (lambda: pc.diagnostics.mixing(MODEL, chains=1), "chains must be .* at least 2"),
    "a masked number": (lambda: pc.guided(MODEL, "a", [0], np.ma.masked), "weight of guidance must be a number"),
    "rows that do not fit into memory": (lambda: pc.sample(MODEL, rows=2**31 - 1), "rows=2147483647 would take"),
    "draws that do not": (lambda: pc.log_likelihood(MODEL, DATA, draws=2**31 - 1), "draws=2147483647 would take"),
    "a batch that does not": (lambda: pc.Learner(MODEL, DATA, batch_size=2**31 - 1), "batch_size=2147483647 would"),
    "an augmentation that drops groups": (lambda: learner(augment=lambda s, g: {}).fit(1), "augment must return"),
    "an augmentation of another form": (lambda: learner(augment=lambda s: s).fit(1), "augment failed: TypeError"),
    "a schedule of another form": (lambda: learner(learning_rate=lambda: 1).fit(1), "learning_rate failed"),
    "models of two types": (lambda: pc.compose({"x": MODEL, "y": made(torch.float64)}), "weights of one type"),
    "a held-out row that is not chosen": (
        lambda: pc.choose_regeneration(MODEL, {"a": torch.full((300, 2), 7.0)}, rows=100),
        "'a' is binary",
    ),
    "modules that are none": (lambda: pc.JointModel.load("nowhere", {"a": nn.Linear}), "'a' of modules must be"),
}


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    monkeypatch.setattr("paracond.memory._room", lambda device: 2**33)


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_in_words(case):
    ask, words = CASES[case]
    with pytest.raises(pc.InputError, match=words):
        ask()


@pytest.mark.parametrize(
    "change",
    [{"step_count": "word"}, {"threads": 10**6}, {"threads": -1}, {"scan": None}, {"random": None}, {"model": {}}],
    ids=str,
)
def test_a_state_that_does_not_fit_changes_nothing(change):
    one, other = learner(seed=1), learner(seed=2)
    one.fit(2)
    before, threads = {k: v.clone() for k, v in other.averaged.state_dict().items()}, torch.get_num_threads()
    with pytest.raises(pc.InputError, match="the state"):
        other.load_state_dict(one.state_dict() | change)
    assert all(torch.equal(v, before[k]) for k, v in other.averaged.state_dict().items())
    assert torch.get_num_threads() == threads and other.step_count == 0
    other.load_state_dict(one.state_dict())
    assert other.step_count == 2


def test_small_numbers_of_numpy_count_as_others():
    plain = pc.sample(MODEL, rows=200, sweeps=1, chunk=100)
    small = pc.sample(MODEL, rows=np.uint8(200), sweeps=np.int8(1), chunk=np.int8(100))
    assert all(torch.equal(plain[name], small[name]) for name in SIDES)


def test_the_mask_of_one_row_is_repeated_with_it():
    given = {"a": pc.Observed(torch.ones(1, 2), torch.tensor([True]))}
    assert bool((pc.sample(MODEL, given, rows=5, sweeps=1)["a"] == 1).all())
    hidden = {"a": pc.Observed(torch.ones(1, 2), torch.tensor([False]))}
    assert not bool((pc.sample(MODEL, hidden, rows=50, sweeps=1)["a"] == 1).all())
