"""Numbers that are not finite: nothing changes, and the error says what to do."""

import copy
import math

import pytest
import torch
from helpers import learner_of, random_joint, random_tables, sample, table_model

import paracond as pc
from paracond.baselines.directed import Symmetric
from paracond.baselines.harmonium import ContrastiveDivergence, rbm
from paracond.runtime.nonfinite import REMEDIES, SUSPECTS
from paracond.training.former import Former

SHAPE = (2, 3, 2)


class Flags(pc.Engine):
    """A CPU engine whose programs do not look at numbers, as recorded ones: flags decide."""

    def __init__(self):
        super().__init__("cpu", "eager")
        self.captures = True

    def program(self, method, generator, *arguments):
        return lambda: method(*arguments)

    def capturable(self, name, optimiser):
        for group in optimiser.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]))


def tables():
    return table_model(random_tables(SHAPE, 0)).float(), pc.Data(sample(random_joint(SHAPE, 1), 64, 2))


def learner(engine="eager", **options):
    model, data = tables()
    return learner_of(model, data, scan="systematic", chain_length=1e9, batch_size=32, engine=engine, **options)


def everything(learner):
    """All that an update changes, but random numbers, whose draws have been made."""
    state = learner.state_dict()
    kept = {key: state[key] for key in ("model", "averaged", "optimisers", "updates", "step_count")}
    return copy.deepcopy(kept | {"batch": state.get("batch", {}).get("tensors", {})})


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def optimisers(rate):
    """Optimisers with and without a state, at a rate that they accept."""
    return {
        "adam": lambda name, parameters: torch.optim.Adam(parameters, lr=rate, fused=True),
        "slow adam": lambda name, parameters: torch.optim.Adam(parameters, lr=rate, foreach=False),
        "momentum": lambda name, parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
    }


def spoil(learner, name, rate):
    for group in learner.optimisers[name].param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@pytest.mark.parametrize("kind", ["adam", "slow adam", "momentum"])
@pytest.mark.parametrize("steps", [0, 7])
def test_a_step_to_parameters_that_are_not_finite_is_taken_back_whole(kind, steps):
    """At the first step of an optimiser, which has no state before, and later."""
    made = learner(optimiser=optimisers(0.01)[kind])
    made.fit(steps)
    name = "abc"[steps % 3]
    spoil(made, name, math.inf)
    made.batch.replace_due(1e9, 0)  # so that the failing step replaces no row
    before = everything(made)
    with pytest.raises(pc.NonFiniteError, match=f"a parameter of '{name}' is not finite at step {steps}") as error:
        made.step()
    assert (error.value.variable, error.value.step, error.value.what) == (name, steps, "a parameter")
    assert_same(everything(made), before)
    spoil(made, name, 0.01)
    made.scan.last = steps - 1 if steps else None
    made.fit(9)
    assert all(bool(p.isfinite().all()) for p in made.model.parameters())


@pytest.mark.parametrize("steps", [0, 7])
def test_where_the_host_cannot_look_a_flag_takes_the_step_back(steps):
    made = learner(Flags(), optimiser=optimisers(1.5)["adam"])  # watched, because the rate is above 1
    for name in "abc":
        spoil(made, name, 0.01)
    made.fit(steps)
    name = "abc"[steps % 3]
    spoil(made, name, math.inf)
    made.batch.replace_due(1e9, 0)
    before = everything(made)
    made.step()
    after = everything(made)
    for key in ("model", "averaged"):
        assert_same(after[key], before[key])
    assert_same(after["batch"]["state"], before["batch"]["state"])
    for key, entry in after["optimisers"][name]["state"].items():
        former = before["optimisers"][name]["state"].get(key)
        assert_same(entry, former or {what: torch.zeros_like(value) for what, value in entry.items()})
    spoil(made, name, 0.01)
    made.step()  # from now on nothing changes
    assert_same(everything(made)["model"], before["model"])
    with pytest.raises(pc.NonFiniteError, match=f"a parameter of '{name}' is not finite at step {steps}"):
        made.finish()


@pytest.mark.parametrize("rate", [0.01, 1.5])
def test_flags_and_the_host_learn_the_same(rate):
    eager, flags = (learner(engine, optimiser=optimisers(rate)["adam"]) for engine in ("eager", Flags()))
    for made in (eager, flags):
        for name in "abc":
            spoil(made, name, 0.01)
        made.fit(30)
    for a, b in zip(eager.model.parameters(), flags.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_bits_bring_back_numbers_that_are_not_finite():
    parameter = torch.nn.Parameter(torch.tensor([1.5, -2.0]))
    former = Former([parameter], torch.optim.SGD([parameter], lr=1.0))
    for new in ([math.nan, math.inf], [3e38, -0.0], [1e-40, 7.0]):
        former.keep()
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter.copy_(torch.tensor(new))
        former.put_back_unless(torch.tensor(True))
        torch.testing.assert_close(parameter.detach(), torch.tensor(new), rtol=0, atol=0, equal_nan=True)
        former.put_back_unless(torch.tensor(False))
        assert torch.equal(parameter.detach(), before)


@pytest.mark.parametrize("engine", ["eager", "flags"])
def test_of_two_conditionals_that_step_together_none_changes(engine):
    torch.manual_seed(0)
    groups = {"x": pc.Real(2, scale=1.0), "z": pc.Binary(3)}
    model = pc.JointModel({n: pc.Conditional(f, pc.networks.mlp(groups, n, hidden=4)) for n, f in groups.items()})
    data = pc.Data({"x": torch.randn(40, 2, generator=torch.Generator().manual_seed(0))})
    options = {"engine": Flags() if engine == "flags" else "eager", "optimiser": optimisers(1.5)["adam"]}
    made = Symmetric(model, data, batch_size=8, **options)
    for name in "xz":
        spoil(made, name, 0.01)
    made.fit(3)
    spoil(made, "z", math.inf)
    before = everything(made)
    with pytest.raises(pc.NonFiniteError, match="a parameter of 'z' is not finite at step 3"):
        made.fit(1)
    for key in ("model", "averaged", "optimisers"):
        if key != "optimisers" or engine == "eager":  # flags keep the rate that is spoilt as a tensor
            assert_same(everything(made)[key], before[key])


@pytest.mark.parametrize("bad", [math.inf, math.nan, -1e-3, "fast", None])
@pytest.mark.parametrize("each", [False, True])
def test_a_schedule_that_leaves_the_rates_is_refused_before_anything_changes(bad, each):
    def schedule(step):
        return 0.01 if step < 5 else bad

    made = learner(learning_rate={"a": 0.01, "c": schedule} if each else schedule)
    made.fit(5)
    before, random = everything(made), made.generator.get_state()
    what = "learning_rate of 'c'" if each else "learning_rate"
    with pytest.raises(pc.InputError, match=f"{what} at step 5 must be a number, .*found {bad!r}"):
        made.step()
    assert_same(everything(made), before)
    assert torch.equal(made.generator.get_state(), random)


def test_a_recorded_program_that_does_not_look_refuses_large_rates():
    made = learner(Flags(), learning_rate=lambda step: 0.01 if step < 4 else 2.0)
    made.fit(4)
    before = everything(made)
    with pytest.raises(pc.InputError, match=r"learning_rate of '[abc]' above 1 needs engine=.eager."):
        made.step()
    assert_same(everything(made), before)


class Leap(torch.optim.SGD):
    """An optimiser of a user's own, whose third step is infinite."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(math.inf if self.count == 3 else 0.1)


@pytest.mark.parametrize("draw", ["before", "after"])
def test_optimisers_of_users_are_watched(draw):
    made = learner(optimiser=lambda name, parameters: Leap(parameters, lr=0.1), draw=draw)
    with pytest.raises(pc.NonFiniteError, match="a parameter of 'a' is not finite at step 6"):
        made.fit(100)
    assert all(bool(p.isfinite().all()) for p in [*made.model.parameters(), *made.averaged.parameters()])


@pytest.mark.parametrize("what", REMEDIES)
def test_every_error_says_what_to_do_in_two_sentences(what):
    text = str(pc.NonFiniteError("age", 12, what))
    assert text.startswith(f"{what} of 'age' is not finite at step 12; the last good state is kept. ")
    assert text.endswith(".") and text.count(". ") == 1


def test_what_programs_find_has_a_remedy():
    assert set(SUSPECTS) <= set(REMEDIES)


def test_contrastive_divergence_takes_a_step_back_and_refuses_rates():
    def made(**options):
        model = rbm(4, 3)
        return ContrastiveDivergence(model, pc.Data({"x": torch.ones(20, 4)}), batch_size=10, **options)

    learner = made(learning_rate=lambda step: 0.1 if step < 2 else math.nan)
    learner.fit(2)
    with pytest.raises(pc.InputError, match=r"learning_rate at step 2 must be a number, .*found nan"):
        learner.step()
    learner = made(optimiser=lambda parameters: torch.optim.SGD(parameters, lr=math.inf))
    before = [p.clone() for p in learner.parameters]
    with pytest.raises(pc.NonFiniteError, match="a parameter of 'x' is not finite at step 0"):
        learner.step()
    assert all(torch.equal(a, b) for a, b in zip(learner.parameters, before, strict=True))
