"""Draws and marginals of tours against exact limits: the oracle of finite models, moments of Gaussian ones."""

import pytest
import torch
from helpers import assert_fits, assert_mean, state_index
from limits import (
    FINITE,
    MODEL,
    QUESTIONS,
    REGENERATIONS,
    SCANS,
    VARIABLES,
    assert_near,
    batched,
    encoded_mean,
    limit_of,
    wired,
    with_init,
)
from torch import nn

import paracond as pc
from paracond import exact
from paracond.composition import Pinned
from paracond.distributions import Bernoulli, Distribution
from paracond.streams import uniform

# --- the limit, exactly ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("regeneration", REGENERATIONS, ids=str)
def test_samples_have_the_joint_law_of_the_limit(regeneration, scan):
    """Questions with different masks in one batch."""
    each = 400 if regeneration.rate < 0.1 else 2000
    given = batched(MODEL, list(QUESTIONS.values()) * each)
    drawn = pc.sample(MODEL, given, regeneration=regeneration, scan=scan)
    for row, question in enumerate(QUESTIONS.values()):
        own = {name: value[row :: len(QUESTIONS)] for name, value in drawn.items()}
        counts = torch.bincount(state_index(FINITE, own), minlength=FINITE.kernel.stay.numel())
        assert_fits(counts, limit_of(FINITE, question, regeneration, scan))


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("regeneration", REGENERATIONS, ids=str)
def test_marginals_are_those_of_the_limit(regeneration, scan):
    count = 300 if regeneration.rate < 0.1 else 2000
    given = batched(MODEL, list(QUESTIONS.values()))
    answer = pc.query(MODEL, given, list(VARIABLES), stop=pc.Tours(count), regeneration=regeneration, scan=scan)
    assert answer.diagnostics.tours.tolist() == [count] * len(QUESTIONS)
    for row, (kind, question) in enumerate(QUESTIONS.items()):
        p = limit_of(FINITE, question, regeneration, scan)
        for name in VARIABLES:
            mean = encoded_mean(FINITE, MODEL, p, name)
            assert_near(answer.probabilities[name][row], answer.error[name][row], mean, f"{name} given {kind}")
            if name != "b":
                std = (mean * (1 - mean)).clamp(min=0).sqrt()
                assert_near(answer.std[name][row], answer.error_of_std[name][row], std, f"std of {name} given {kind}")


def test_the_limits_differ():
    """So the tests above tell them apart."""
    limits = [limit_of(FINITE, {}, r, scan) for r in REGENERATIONS for scan in SCANS]
    gaps = [float((p - q).abs().sum() / 2) for i, p in enumerate(limits) for q in limits[:i]]
    assert len(gaps) == 45 and min(g for g in gaps if g > 1e-12) > 0.01
    assert sum(g < 1e-12 for g in gaps) == 1  # with a rate of one and no warm-up, no sweep runs


@pytest.mark.parametrize("regeneration", REGENERATIONS[2:4], ids=str)
def test_tours_begin_at_given_values(regeneration):
    """p_0 is one state; where it contradicts what is known, that counts."""
    init = {"a": torch.tensor([[1.0, 0.0]]), "b": torch.tensor([1]), "c": torch.tensor([1.0])}
    given = {"a": pc.Observed(torch.tensor([[0.0, 1.0]]), torch.tensor([[False, True]]))}
    begin = torch.zeros(FINITE.kernel.shape, dtype=torch.float64)
    begin.view(-1)[state_index(FINITE, init | {"a": torch.tensor([[1.0, 1.0]])})] = 1
    p = limit_of(
        FINITE, {"a": pc.Observed(*(v[0] for v in (given["a"].value, given["a"].mask)))}, regeneration, begin=begin
    )
    options = {"regeneration": regeneration, "init": init}
    answer = pc.query(MODEL, given, list(VARIABLES), stop=pc.Tours(2000), **options)
    assert answer.diagnostics.init == "given"
    for name in VARIABLES:
        mean = encoded_mean(FINITE, MODEL, p, name)
        assert_near(answer.probabilities[name][0], answer.error[name][0], mean, name)
    options["init"] = {name: value.expand(5000, *value.shape[1:]) for name, value in init.items()}
    given = {"a": pc.Observed(given["a"].value.expand(5000, 2), given["a"].mask[0])}
    drawn = pc.sample(MODEL, given, **options)
    assert_fits(torch.bincount(state_index(FINITE, drawn), minlength=p.numel()), p)


def test_groups_that_init_lacks_are_drawn_once():
    """Each from its conditional, in turn: p_0 is G applied to the rest."""
    init = {"b": torch.tensor([1]).expand(5000)}
    begin = torch.ones(FINITE.kernel.shape, dtype=torch.float64) / (2 * 4)
    begin[:, [0, 2]] = 0
    for axis in (0, 2):
        begin = FINITE.kernel.only(axis).push(begin)
    drawn = pc.sample(MODEL, rows=5000, init=init, regeneration=pc.Regeneration(0.5, 0))
    p = limit_of(FINITE, {}, pc.Regeneration(0.5, 0), begin=begin)
    assert_fits(torch.bincount(state_index(FINITE, drawn), minlength=p.numel()), p)


# --- with initializers ----------------------------------------------------------------------------------------------


def begins(model, finite, question):
    """p_0(x | what is known) of `with_init`: the class given the known bits, the bits given it, then c from its law."""
    init = model.conditional("a").init
    means = (init.means[0] + init.means[1:]).detach()
    one = torch.special.ndtr((means - 0.5) / 0.3)
    a, known = finite.values["a"], question.get("a")
    laws = torch.where(a[:, None] == 1, one, 1 - one)  # [a, b, 2]
    prior = torch.ones(3, dtype=torch.float64) / 3
    if known is not None:
        gap = (known.value.double() - means) / 0.3
        prior = torch.softmax(torch.where(known.mask, -0.5 * gap**2, 0).sum(1), 0)
        laws = torch.where(known.mask, (a == known.value.to(a.dtype)).double()[:, None], laws)
    if "b" in question:
        prior = torch.eye(3, dtype=torch.float64)[question["b"]]
    begin = (laws.prod(2) * prior)[:, :, None] * torch.tensor([0.5, 0.5], dtype=torch.float64)
    return finite.kernel.only(2).push(begin)


@pytest.mark.parametrize("scan", SCANS)
def test_tours_begin_at_initializers(scan):
    model, regeneration = with_init(), pc.Regeneration(0.5, 0)
    finite = exact.enumerate_model(model)
    questions = [QUESTIONS[kind] for kind in ("nothing", "a group", "a coordinate")]
    given = batched(model, questions * 2000)
    drawn = pc.sample(model, given, regeneration=regeneration, scan=scan)
    answer = pc.query(model, given, list(VARIABLES), stop=pc.Tours(1000), regeneration=regeneration, scan=scan)
    assert answer.diagnostics.init == "fitted"
    for row, question in enumerate(questions):
        p = limit_of(finite, question, regeneration, scan, begins(model, finite, question))
        own = {name: value[row :: len(questions)] for name, value in drawn.items()}
        assert_fits(torch.bincount(state_index(finite, own), minlength=p.numel()), p)
        for name in VARIABLES:
            mean = encoded_mean(finite, model, p, name)
            assert_near(answer.probabilities[name][row], answer.error[name][row], mean, name)


def test_tours_begin_at_random_values_if_they_are_told_to():
    model, regeneration = with_init(), pc.Regeneration(0.5, 0)
    finite = exact.enumerate_model(model)
    drawn = pc.sample(model, rows=5000, regeneration=regeneration, init="random")
    p, fitted = (limit_of(finite, {}, regeneration, begin=b) for b in (None, begins(model, finite, {})))
    assert_fits(torch.bincount(state_index(finite, drawn), minlength=p.numel()), p)
    assert float((p - fitted).abs().sum() / 2) > 0.05


# --- real groups ----------------------------------------------------------------------------------------------------


REALS = {name: pc.Real(1, scale=scale) for name, scale in zip("xyz", (0.7, 0.4, 1.0), strict=True)}
SLOPES = torch.tensor([[0.0, 0.9, -0.3], [0.8, 0.0, 0.5], [0.2, -0.6, 0.0]], dtype=torch.float64)
SHIFTS = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)


class Affine(nn.Module):
    def __init__(self, row):
        super().__init__()
        self.row = row
        self.probe = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, others):
        total = SHIFTS[self.row] + self.probe
        return total + sum(SLOPES[self.row, "xyz".index(name)] * value for name, value in others.items())


def gaussian_limit(regeneration, scan, known):
    """Mean and second moments of the limit of Gaussian tours, summed over ages."""
    free = [i for i in range(3) if i not in known]
    first, second = torch.zeros(4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
    start = torch.tensor([known.get(i, 0.0) for i in range(3)] + [1.0], dtype=torch.float64)  # (x, y, z, 1)
    moments = torch.outer(start, start) + torch.diag(torch.tensor([*(float(i in free) for i in range(3)), 0.0]))
    steps = []
    for i in free:
        step = torch.eye(4, dtype=torch.float64)
        step[i] = torch.cat([SLOPES[i], SHIFTS[i : i + 1]])
        noise = torch.zeros(4, 4, dtype=torch.float64)
        noise[i, i] = REALS["xyz"[i]].scale ** 2
        steps.append((step, noise))

    def sweep(moments):
        if scan == "systematic":
            for step, noise in steps:
                moments = step @ moments @ step.T + noise
            return moments
        for _ in free:
            moments = sum(step @ moments @ step.T + noise for step, noise in steps) / len(free)
        return moments

    for _ in range(regeneration.warmup):
        moments = sweep(moments)
    weight = regeneration.rate
    for _ in range(2000):
        second += weight * moments
        moments, weight = sweep(moments), weight * (1 - regeneration.rate)
    first = second[3, :3]
    return first, second[:3, :3]


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("regeneration", REGENERATIONS[2:4], ids=str)
def test_gaussian_models_have_the_moments_of_the_limit(regeneration, scan):
    model = pc.JointModel({n: pc.Conditional(f, Affine(i)) for i, (n, f) in enumerate(REALS.items())}).double()
    for known in ({}, {2: 1.5}):
        mean, second = gaussian_limit(regeneration, scan, known)
        given = {"xyz"[i]: torch.tensor([[value]]) for i, value in known.items()}
        answer = pc.query(model, given, ["x", "y"], stop=pc.Tours(3000), regeneration=regeneration, scan=scan)
        std = (second.diagonal() - mean**2).sqrt()
        for i, name in enumerate("xy"):
            assert_near(answer.mean[name][0], answer.error[name][0], mean[i], name)
            assert_near(answer.std[name][0], answer.error_of_std[name][0], std[i], f"std of {name}")
        drawn = pc.sample(
            model, {n: v.expand(8000, 1) for n, v in given.items()}, rows=8000, regeneration=regeneration, scan=scan
        )
        values = torch.cat([drawn[name] for name in "xyz"], 1)
        assert_mean(values, mean)
        assert_mean((values.unsqueeze(1) * values.unsqueeze(2)).flatten(1), second.flatten())


# --- groups that are given, several models, families of one's own ---------------------------------------------------


def test_context_is_given():
    """Rows with different context have the limits of different chains; a default is a value like any other."""
    variables = VARIABLES | {"t": pc.Binary(1)}
    model = wired(variables, seed=3, context={"t": pc.Context(variables["t"], 1)})
    regeneration = pc.Regeneration(0.3, 1)
    limits = []
    for value in (0.0, 1.0):
        model.context = {"t": pc.Context(variables["t"], value)}
        limits.append(limit_of(exact.enumerate_model(model), {}, regeneration))
    assert float((limits[0] - limits[1]).abs().sum() / 2) > 0.05
    given = {"t": torch.tensor([[0.0], [1.0]]).repeat(3000, 1)}
    drawn = pc.sample(model, given, regeneration=regeneration)
    answer = pc.query(model, {"t": given["t"][:2]}, list("abc"), stop=pc.Tours(2000), regeneration=regeneration)
    alone = pc.query(model, {}, list("abc"), stop=pc.Tours(2000), regeneration=regeneration)
    for row, p in enumerate(limits):
        own = {name: drawn[name][row::2] for name in FINITE.names}
        assert_fits(torch.bincount(state_index(FINITE, own), minlength=p.numel()), p)
        for name in FINITE.names:
            mean = encoded_mean(FINITE, MODEL, p, name)
            assert_near(answer.probabilities[name][row], answer.error[name][row], mean, name)
    assert torch.equal(alone.probabilities["a"][0], answer.probabilities["a"][1])


PARTS = {"x": pc.Binary(2), "y": pc.Binary(1)}


def mixing(first, second, mixed=None):
    """x is first.x where m = 0 and second.x where m = 1; given, or fixed to `mixed`."""

    def seen(others):
        return others["x"] if mixed is None else mixed.expand(len(others["first.y"]), -1).to(others["first.y"].dtype)

    def mask(law, others):
        return PARTS["x"].distribution(law("second.x").scores(seen(others)) - law("first.x").scores(seen(others)))

    rules = {
        "m": mask,
        "first.x": lambda law, others: Pinned(law("first.x"), seen(others), others["m"] == 0),
        "second.x": lambda law, others: Pinned(law("second.x"), seen(others), others["m"] == 1),
    }
    given = {"x": PARTS["x"]} if mixed is None else {}
    return pc.compose({"first": first, "second": second}, groups={"m": PARTS["x"]}, given=given, rules=rules)


def test_several_models_are_asked_as_one():
    first, second = (wired(PARTS, seed=seed) for seed in (5, 6))
    mixes, regeneration = torch.tensor([[1.0, 0.0], [0.0, 0.0]]), pc.Regeneration(0.2, 2)
    joint = mixing(first, second)
    drawn = pc.sample(joint, {"x": mixes.repeat(3000, 1)}, regeneration=regeneration)
    assert torch.equal(torch.where(drawn["m"] == 0, drawn["first.x"], drawn["second.x"]), drawn["x"])
    answer = pc.query(joint, {"x": mixes}, ["m", "first.x"], stop=pc.Tours(1500), regeneration=regeneration)
    for row, mixed in enumerate(mixes):
        finite = exact.enumerate_model(mixing(first, second, mixed))
        p = limit_of(finite, {}, regeneration)
        for name in finite.names:
            assert_mean(drawn[name][row::2] - encoded_mean(finite, joint, p, name), 0.0, name)
        for name in ("m", "first.x"):
            mean = encoded_mean(finite, joint, p, name)
            assert_near(answer.probabilities[name][row], answer.error[name][row], mean, name)


def test_a_joint_of_several_models_begins_anew_as_the_slowest_of_them():
    models = {"first": wired(PARTS, seed=5), "second": wired(PARTS, seed=6)}
    models["first"].regeneration, models["second"].regeneration = pc.Regeneration(0.2, 3), pc.Regeneration(0.01, 2)
    assert pc.compose(models).regeneration == pc.Regeneration(0.01, 3)
    assert pc.compose({"one": models["first"], "two": models["first"]}).regeneration == pc.Regeneration(0.2, 3)
    own = pc.Regeneration(0.5, 0)
    assert pc.compose(models, regeneration=own).regeneration == own
    rule = {"m": lambda law, others: PARTS["x"].distribution(torch.zeros(1, 2))}
    assert pc.compose({}, groups={"m": PARTS["x"]}, rules=rule).regeneration == pc.Regeneration()


class Equal(Distribution):
    """Both coordinates are 1 with probability sigmoid(logit), else both are 0."""

    def __init__(self, logits):
        self.one = Bernoulli(logits)

    def scores(self, value):
        return self.one.scores(value[:, 0])

    def sample(self, generator):
        return uniform(self.one.mean, generator).lt(self.one.mean).to(self.one.mean.dtype).unsqueeze(1).expand(-1, 2)

    mean = property(lambda self: self.one.mean.unsqueeze(1).expand(-1, 2))
    variance = property(lambda self: self.one.variance.unsqueeze(1).expand(-1, 2))
    entropy = property(lambda self: self.one.entropy)


class Twins(pc.Binary):
    """Two coordinates that are always equal: single ones cannot be clamped."""

    clamps_coordinates = False

    def distribution(self, output, **shared):
        return Equal(output[:, 0])

    def random(self, batch, generator, dtype):
        return super().random(batch, generator, dtype)[:, :1].expand(-1, 2)

    def values(self):
        return torch.tensor([[0.0, 0.0], [1.0, 1.0]])


def test_a_family_of_ones_own_is_redrawn_as_a_whole():
    variables = {"a": Twins(2), "b": pc.Categorical(3), "c": pc.Binary()}
    model, regeneration = wired(variables, seed=4), pc.Regeneration(0.3, 1)
    finite = exact.enumerate_model(model)
    questions = [{}, {"a": torch.ones(2)}, {"c": torch.tensor(0.0)}]
    drawn = pc.sample(model, batched(model, questions * 2000), regeneration=regeneration, scan="random")
    assert torch.equal(drawn["a"][:, 0], drawn["a"][:, 1])
    for row, question in enumerate(questions):
        p = limit_of(finite, question, regeneration, "random")
        own = {name: value[row::3] for name, value in drawn.items()}
        assert_fits(torch.bincount(state_index(finite, own), minlength=p.numel()), p)
    with pytest.raises(pc.InputError, match="'a': coordinates of a Twins are not independent"):
        pc.sample(model, {"a": pc.Observed(torch.ones(1, 2), torch.tensor([True, False]))})
