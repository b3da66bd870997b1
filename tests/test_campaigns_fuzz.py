"""A small part of the campaign of hostile calls, and that the campaign itself sees what is wrong."""

import fuzz_api
import numpy as np
import pytest
import torch
from api_calls import Arg, Call
from hostile_values import Count, forms, spoiled

import paracond as pc

CALLS = 300


@pytest.fixture(autouse=True)
def one_thread():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def test_no_call_is_silently_wrong_or_fails_without_words():
    tally, classes, _ = fuzz_api.campaign(seed=31, count=CALLS, seconds=120)
    assert tally.total == CALLS
    listed = "\n".join(line for lines in tally.found.values() for line in lines)
    assert tally.failures == 0, f"{dict(classes)}\n{listed}"


def test_a_trial_can_be_repeated_alone():
    first, again = (fuzz_api.trial(31, 5) for _ in range(2))
    assert (first.outcome, first.what) == (again.outcome, again.what)


def judged(function, arg, verdict, label="pc.it(rows=...)"):
    call = Call("pc.it", function, {"rows": arg})
    snapshot = fuzz_api.Snapshot(call)
    value, error, _ = fuzz_api._run(call)
    if error is not None:
        return fuzz_api._judged_error(call, label, verdict, ("rows",), error).outcome
    return fuzz_api._judged_value(call, label, verdict, value, 0, 0, snapshot).outcome


def raising(error):
    def function(rows):
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (pc.InputError("rows must be a whole number"), "refused"),
        (TypeError("rows must be a number"), "refused"),
        (pc.InputError("something is wrong"), "raw"),
        (pc.InputError("rows must be\na whole number"), "raw"),
        (pc.InputError("rows " * 200), "raw"),
        (ValueError("rows must be a whole number"), "raw"),
        (TypeError("unhashable type"), "raw"),
    ],
)
def test_messages_are_judged(error, outcome):
    assert judged(raising(error), Arg(-1, Count()), "bad") == outcome


def test_bad_values_that_are_answered_are_silent():
    assert judged(lambda rows: rows, Arg(-1, Count()), "bad") == "silent"
    assert judged(lambda rows: rows, Arg(1, Count()), "fine") == "ok"


def test_what_a_call_changes_is_seen():
    model, given = torch.nn.Linear(2, 2), torch.zeros(3)
    call = Call("pc.it", lambda given: None, {"given": Arg(given, Count())}, models=[model])
    snapshot = fuzz_api.Snapshot(call)
    assert snapshot.changed() == ""
    given += 1
    assert snapshot.changed() == "an argument"
    given -= 1
    model.eval()
    assert snapshot.changed() == "the modes of the model"
    model.train()
    with torch.no_grad():
        model.weight += 1
    assert snapshot.changed() == "the weights of the model"
    with torch.no_grad():
        model.weight.copy_(snapshot.models[0][1][0])
    torch.rand(1)
    assert snapshot.changed() == "the random state of torch"


def test_all_forms_of_a_value_mean_the_same():
    value = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    for attack in forms(value):
        made = attack.make()
        if isinstance(made, torch.Tensor) and made.layout == torch.strided:
            assert torch.equal(made.detach().double(), value.double()), attack.label
        elif isinstance(made, np.ndarray | list | tuple) and not isinstance(made[0], torch.Tensor):
            assert np.array_equal(np.asarray(made).astype(float), value.numpy()), attack.label


def test_spoiled_values_are_not_the_valid_ones():
    value = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    for attack in spoiled(pc.Binary(2), value):
        made = attack.make()
        if isinstance(made, torch.Tensor) and made.shape == value.shape and not made.is_meta and not made.is_complex():
            wrong = (made.double() != 0) & (made.double() != 1)
            assert bool(wrong.any()), attack.label
