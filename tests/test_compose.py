"""Several models in one chain: exact posteriors by enumeration, factors against Gaussian algebra."""

import copy
import re
import warnings
from pathlib import Path

import pytest
import torch
from helpers import assert_mean
from torch import nn

import paracond as pc
from paracond import exact
from paracond.baselines import harmonium
from paracond.composition import Pinned, Summing
from paracond.distributions import Gaussian

MIXED = torch.tensor([1.0, 0.0])
PIXELS = pc.Binary(2)


def machine(seed=0):
    """A consistent model of two pixels x and one latent y."""
    torch.manual_seed(seed)
    model = harmonium.rbm(2, 1).double()
    for parameter in model.parameters():
        parameter.data.normal_(0, 2)
    return model


def demixing(first, second, mixed=None):
    """x is first.x where m = 0 and second.x where m = 1; given, or fixed to `mixed`."""

    def seen(others):
        return others["x"] if mixed is None else mixed.expand(len(others["first.y"]), -1).to(others["first.y"].dtype)

    def mask(law, others):
        return pc.Binary().distribution(law("second.x").scores(seen(others)) - law("first.x").scores(seen(others)))

    rules = {
        "m": mask,
        "first.x": lambda law, others: Pinned(law("first.x"), seen(others), others["m"] == 0),
        "second.x": lambda law, others: Pinned(law("second.x"), seen(others), others["m"] == 1),
    }
    given = {"x": PIXELS} if mixed is None else {}
    return pc.compose({"first": first, "second": second}, groups={"m": PIXELS}, given=given, rules=rules)


def posterior(finite, first, second):
    """p(x', y') p(x'', y'') where they mix to what is seen, over all states."""
    joints = []
    for prefix, model in (("first", first), ("second", second)):
        alone = exact.enumerate_model(model)
        weights = 2.0 ** torch.arange(alone.states["x"].shape[1] + 1).flip(0)
        key = (torch.cat([alone.states["x"], alone.states["y"]], 1).double() * weights).sum(1)
        table = dict(zip(key.tolist(), alone.limiting().flatten().tolist(), strict=True))
        own = torch.cat([finite.states[f"{prefix}.x"], finite.states[f"{prefix}.y"]], 1).double()
        joints.append(torch.tensor([table[k] for k in (own * weights).sum(1).tolist()], dtype=torch.float64))
    m = finite.states["m"]
    fits = (torch.where(m == 0, finite.states["first.x"], finite.states["second.x"]) == MIXED).all(1)
    p = joints[0] * joints[1] * fits
    return (p / p.sum()).view(finite.kernel.shape)


def test_a_sweep_of_demixing_keeps_the_exact_posterior():
    first, second = machine(0), machine(1)
    joint = demixing(first, second, MIXED)
    finite = exact.enumerate_model(joint)
    law = wanted = posterior(finite, first, second)
    assert joint.names == ("m", "first.x", "first.y", "second.x", "second.y")
    for axis, table in enumerate(finite.kernel.tables):
        law = law.sum(axis, keepdim=True) * table
    torch.testing.assert_close(law, wanted, atol=1e-12, rtol=0)


def test_demixing_is_asked_like_any_model():
    first, second = machine(0), machine(1)
    finite = exact.enumerate_model(demixing(first, second, MIXED))
    wanted = posterior(finite, first, second).flatten()
    state = pc.sample(demixing(first, second), {"x": MIXED.expand(20_000, 2)}, sweeps=30)
    assert torch.equal(torch.where(state["m"] == 0, state["first.x"], state["second.x"]), state["x"])
    for name in ("first.x", "second.x", "m"):
        assert_mean(state[name] - (wanted @ finite.states[name].double()), 0.0)


def test_what_is_learned_stays_shared():
    model = machine()
    joint = demixing(model, model)
    assert {id(p) for p in joint.parameters()} == {id(p) for p in model.parameters()}
    state = pc.sample(joint, {"x": MIXED.expand(50, 2)}, sweeps=2)
    own = {name: state[f"first.{name}"] for name in ("x", "y")}
    assert torch.equal(joint("first.y", state).mean, model("y", own).mean)
    copied = copy.deepcopy(joint)
    with torch.no_grad():
        next(copied.parameters()).add_(1.0)
    assert not torch.equal(copied("m", state).mean, joint("m", state).mean)  # a copy has laws of its own


def test_rules_add_no_parameters():
    """Or the joint model would seem to be where they are, which may be another device."""
    family = pc.Real(2, scale="learned")
    model = pc.JointModel(
        {"x": pc.Conditional(family, pc.networks.mlp({"x": family, "c": pc.Binary(1)}, "x"))},
        context={"c": pc.Context(pc.Binary(1), 0)},
    )
    joint = pc.compose({"a": model}, rules={"a.x": lambda law, others: law("a.x")})
    assert {id(p) for p in joint.parameters()} == {id(p) for p in model.parameters()}


def test_initializers_are_composed_too():
    variables = {"x": pc.Real(3, scale=0.5), "c": pc.Categorical(2)}
    networks = {n: pc.networks.mlp(variables, n, hidden=8) for n in variables}
    init = pc.initializers.pca(variables, "x", ["c"], rank=2)
    model = pc.JointModel(
        {"x": pc.Conditional(variables["x"], networks["x"], init), "c": pc.Conditional(variables["c"], networks["c"])}
    )
    joint = pc.compose({"a": model, "b": model})
    known, mask = joint.validate({"a.x": torch.ones(6, 3)}, {"a.x": torch.arange(18).view(6, 3) % 2 == 0})
    state = pc.initializers.initial_state(joint, 6, joint.generator(0), known, mask)
    assert torch.equal(state["a.x"][mask["a.x"]], torch.ones(9)) and set(state) == {"a.x", "a.c", "b.x", "b.c"}
    alone = {"x": state["b.x"], "c": state["b.c"]}
    assert torch.equal(pc.initializers.score(joint, "b.x", state), pc.initializers.score(model, "x", alone))


def test_pinned_coordinates_are_certain():
    law = Gaussian(torch.zeros(4, 3), torch.zeros(()))
    where = torch.tensor([True, False, True])
    pinned = Pinned(law, torch.full((4, 3), 2.0), where)
    drawn = pinned.sample(torch.Generator().manual_seed(0))
    assert torch.equal(drawn[:, where], torch.full((4, 2), 2.0)) and not bool((drawn[:, 1] == 2.0).any())
    assert torch.equal(pinned.mean[0], torch.tensor([2.0, 0.0, 2.0]))
    assert torch.equal(pinned.variance[0], torch.tensor([0.0, 1.0, 0.0]))
    assert torch.equal(pinned.scores(drawn)[:, 1], law.scores(drawn)[:, 1])
    assert float(pinned.log_prob(drawn)[0]) == float(law.scores(drawn)[0, 1])
    assert float(pinned.log_prob(drawn + 1)[0]) == -float("inf")
    assert float(pinned.entropy[0, 0]) == 0 and float(pinned.entropy[0, 1]) == float(law.entropy[0, 1])


@pytest.mark.parametrize("size, channels", [(2, False), (1, True), (2, True)])
def test_sums_condition_a_gaussian(size, channels):
    """Mean and covariance of x given A x = t, with A written out."""
    torch.manual_seed(0)
    mean, log_scale, weights = (torch.randn(1, 2, 4, 4).double() for _ in range(3))
    rows = 40_000
    total = torch.randn(1, 1 if channels else 2, 4 // size, 4 // size).double()
    wide = Summing(Gaussian(mean.expand(rows, -1, -1, -1), log_scale), total, weights, size, channels)
    eye = torch.eye(32).double().view(32, 2, 4, 4)
    pooled = nn.functional.avg_pool2d(eye * weights, size) * size**2
    a = (pooled.sum(1, keepdim=True) if channels else pooled).flatten(1).T
    covariance = torch.diag(torch.exp(2 * log_scale).flatten())
    gain = covariance @ a.T @ (a @ covariance @ a.T).inverse()
    expected = mean.flatten() + gain @ (total.flatten() - a @ mean.flatten())
    left = covariance - gain @ a @ covariance
    torch.testing.assert_close(wide.mean[0].flatten(), expected)
    torch.testing.assert_close(wide.variance[0].flatten(), left.diagonal())
    drawn = wide.sample(torch.Generator().manual_seed(1)).flatten(1)
    torch.testing.assert_close(drawn @ a.T, total.flatten().expand(rows, -1))
    gap = drawn - expected
    assert_mean(gap[:, :6, None] * gap[:, None, :6] - left[:6, :6], 0.0)
    with pytest.raises(pc.InputError, match="not defined under a constraint"):
        _ = wide.entropy


def test_what_cannot_be_composed():
    model = machine()
    with pytest.raises(pc.InputError, match="the new group 'm' needs a rule"):
        pc.compose({"a": model}, groups={"m": PIXELS})
    with pytest.raises(pc.InputError, match=r"there is a rule for 'x', which is none of a\.x, a\.y"):
        pc.compose({"a": model}, rules={"x": lambda law, others: law("a.x")})
    with pytest.raises(pc.InputError, match=r"two groups are called 'a\.x'"):
        pc.compose({"a": model}, given={"a.x": PIXELS})
    with pytest.raises(pc.InputError, match="'x' must be given"):
        pc.sample(demixing(model, model))
    joint = pc.compose({"a": model}, rules={"a.x": lambda law, others: law("b.x")})
    with pytest.raises(pc.InputError, match=r"the rule of 'a\.x' asks for 'b\.x'; there are a\.x, a\.y"):
        pc.sample(joint)
    joint = pc.compose({"a": model}, rules={"a.x": lambda law, others: law("a.y")})
    with pytest.raises(pc.InputError, match=r"asks for 'a\.y', which reads 'a\.x' itself"):
        pc.sample(joint)


def test_the_program_in_the_guide_runs(monkeypatch, capsys):
    """In short: a few updates and sweeps."""
    guide = Path(__file__).parents[1] / "docs" / "compose.md"
    program = "".join(re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL))
    fit, query, calls = pc.Learner.fit, pc.query, []

    def short_fit(learner, steps):
        calls.append(steps)
        return fit(learner, 3)

    def short_query(*what, stop):
        calls.append(stop)
        return query(*what, stop=pc.Sweeps(2), chains=2)

    monkeypatch.setattr(pc.Learner, "fit", short_fit)
    monkeypatch.setattr(pc, "query", short_query)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pc.NotMixedWarning)
        exec(program, {})
    assert calls == [6000, pc.Sweeps(200, 200), pc.Sweeps(200, 200)]
    said = capsys.readouterr().out
    numbers = [float(number) for number in re.findall(r"\d\.\d+", said)]
    assert len(numbers) == 6 and all(0 < number < 3 for number in numbers), said
    assert numbers[2] > 0.2  # by the mean digit: this does not depend on the model


def test_rules_and_sums_that_cannot_be_are_refused():
    variables = {"x": pc.Real((1, 4, 4)), "c": pc.Binary(2)}
    networks = {name: pc.networks.mlp(variables, name) for name in variables}
    model = pc.JointModel({name: pc.Conditional(family, networks[name]) for name, family in variables.items()})

    def draw(rule):
        return pc.sample(pc.compose({"one": model}, rules={"one.x": rule}), rows=2, sweeps=1)

    def summing(total, size, name="one.x"):
        return lambda law, others: Summing(law(name), total, torch.ones(()), size)

    for rule, message in (
        (lambda law, others: law("one.x").mean, "rule of 'one.x' must return a Distribution, found Tensor"),
        (summing(torch.zeros(2, 1, 1, 1), 3), "blocks of 3 x 3 pixels do not fill images of 4 x 4"),
        (summing(torch.zeros(2, 1, 4, 4), 2), r"must have shape \[1, 2, 2\], found \[1, 4, 4\]"),
    ):
        with pytest.raises(pc.InputError, match=message):
            draw(rule)
    with pytest.raises(pc.InputError, match="for a Gaussian law, found Bernoulli"):
        Summing(model("c", pc.sample(model, rows=2, sweeps=0)), torch.zeros(2, 1, 1, 1), torch.ones(()))
