"""Every family against torch.distributions, at every kind of event shape."""

import math

import pytest
import torch
from helpers import assert_fits, assert_mean

import paracond as pc
from paracond.families import family_from

SHAPES = [(), (3,), (2, 3)]
FAMILIES = [
    *[pc.Binary(shape) for shape in SHAPES],
    *[pc.Categorical(4, shape) for shape in SHAPES],
    *[
        pc.Real(shape, scale=scale, initial_scale=0.5)
        for shape in SHAPES
        for scale in ("element", "coordinate", "learned", 0.7)
    ],
    *[pc.Real(5, scale=scale, initial_scale=0.5, ceiling=0.9) for scale in ("element", "coordinate", "learned")],
    *[pc.Real(5, scale=scale, initial_scale=0.5, bounds=(-1.0, 0.5)) for scale in ("element", "learned", 0.7)],
]
BATCH = 5


def make(family, batch=BATCH, seed=0):
    generator = torch.Generator().manual_seed(seed)
    output = torch.randn(batch, *family.output_shape, generator=generator, dtype=torch.float64, requires_grad=True)
    shared = {k: (v + 0.03).double().requires_grad_() for k, v in family.shared_parameters().items()}
    return output, shared, family.distribution(output, **shared)


def reference(family, output, shared):
    if isinstance(family, pc.Binary):
        return torch.distributions.Bernoulli(logits=output)
    if isinstance(family, pc.Categorical):
        return torch.distributions.Categorical(logits=output)
    if family.scale == "element":
        return torch.distributions.Normal(
            within(output[:, 0], family.bounds), softly_bounded(output[:, 1], family.ceiling)
        )
    scale = softly_bounded(10 * shared["log_scale"], family.ceiling) if family.scale != 0.7 else torch.tensor(0.7)
    return torch.distributions.Normal(within(output, family.bounds), scale.double())


def within(raw, bounds):
    """Written out anew: middle + half * tanh((raw - middle) / half), for bounds middle - half and middle + half."""
    if bounds is None:
        return raw
    middle, half = (bounds[0] + bounds[1]) / 2, (bounds[1] - bounds[0]) / 2
    return middle + half * torch.tanh((raw - middle) / half)


def softly_bounded(raw, ceiling, initial=0.5, floor=1e-3):
    """Written out anew: exp(log floor + log(1 + exp(raw + shift))), with the shift that maps 0 to the initial scale.

    With a ceiling: floor^(1 - w) ceiling^w, where w / (1 - w) is exp(raw) times what it is at the initial scale.
    """
    if ceiling is not None:
        odds = torch.exp(raw) * math.log(initial / floor) / math.log(ceiling / initial)
        return floor ** (1 / (1 + odds)) * ceiling ** (odds / (1 + odds))
    return floor * (1 + torch.exp(raw) * (initial / floor - 1))


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_scores_moments_and_entropy(family):
    output, shared, ours = make(family)
    theirs = reference(family, output, shared)
    value = ours.sample(torch.Generator().manual_seed(1))
    assert value.shape == (BATCH, *family.event_shape)
    scores = theirs.log_prob(value)
    torch.testing.assert_close(ours.scores(value), scores)
    torch.testing.assert_close(ours.log_prob(value), scores.reshape(BATCH, -1).sum(1))
    torch.testing.assert_close(ours.entropy, theirs.entropy())
    if isinstance(family, pc.Categorical):
        torch.testing.assert_close(ours.mean, theirs.probs)
        torch.testing.assert_close(ours.variance, theirs.probs * (1 - theirs.probs))
    else:
        torch.testing.assert_close(ours.mean, theirs.mean)
        torch.testing.assert_close(ours.variance, theirs.variance)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_gradients_reach_every_parameter(family):
    output, shared, ours = make(family)
    value = ours.sample(torch.Generator().manual_seed(1))
    assert not value.requires_grad
    ours.log_prob(value).sum().backward()
    assert output.grad is not None and bool((output.grad != 0).any())
    for parameter in shared.values():
        assert parameter.grad is not None and bool((parameter.grad != 0).all())


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_draws_follow_the_law_and_the_seed(family):
    output, shared, _ = make(family, batch=1)
    many = 20_000
    big = family.distribution(
        output.detach().expand(many, *family.output_shape), **{k: v.detach() for k, v in shared.items()}
    )
    value = big.sample(torch.Generator().manual_seed(2))
    assert torch.equal(value, big.sample(torch.Generator().manual_seed(2)))
    assert not torch.equal(value, big.sample(torch.Generator().manual_seed(3)))
    flat, mean = value.reshape(many, -1), big.mean[0].detach()
    if isinstance(family, pc.Categorical):
        for d, p in enumerate(mean.reshape(-1, family.classes)):
            assert_fits(torch.bincount(flat[:, d], minlength=family.classes), p)
    else:
        assert_mean(flat, mean.reshape(-1))
        assert_mean((flat - mean.reshape(-1)) ** 2, big.variance[0].detach().reshape(-1))


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_start_encode_decide_and_description(family):
    generator = torch.Generator().manual_seed(0)
    value = family.random(1000, generator, torch.float64)
    family.check_shape("v", value)
    family.check_known("v", value.flatten())
    encoded = family.encode(value)
    assert encoded.shape == (1000, *family.encoding_shape)
    torch.testing.assert_close(family.decide(encoded.double()), value)
    assert family_from(family.describe()) == family
    if not isinstance(family, pc.Real):
        assert_fits(torch.bincount(value.long().flatten()), torch.full((len(value.unique()),), 1 / len(value.unique())))


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.finite], ids=repr)
def test_values_are_all_different_and_score_to_one(family):
    values = family.values()
    per_coordinate = 2 if isinstance(family, pc.Binary) else family.classes
    assert len(values) == per_coordinate ** math.prod(family.event_shape)
    assert len(values.reshape(len(values), -1).unique(dim=0)) == len(values)
    output, _, _ = make(family, batch=1)
    spread = family.distribution(output.expand(len(values), *family.output_shape))
    torch.testing.assert_close(spread.log_prob(values).exp().sum().item(), 1.0)


def test_redraw_keeps_clamped_coordinates():
    family = pc.Real(4, scale=1.0)
    value = torch.arange(8.0).view(2, 4)
    clamp = torch.tensor([[True, False, True, False], [False] * 4])
    drawn = family.distribution(torch.zeros(2, 4)).redraw(value, clamp, torch.Generator().manual_seed(0))
    assert torch.equal(drawn[clamp], value[clamp])
    assert not bool((drawn[~clamp] == value[~clamp]).any())


def test_scale_starts_where_it_is_told_and_has_a_floor():
    for scale in ("learned", "coordinate", "element"):
        family = pc.Real(1, scale=scale, initial_scale=0.03, floor=0.001)

        def deviation(raw, family=family):
            output = torch.tensor([0.0, raw]).view(1, 2, 1) if family.scale == "element" else torch.zeros(1, 1)
            shared = {name: value + raw for name, value in family.shared_parameters().items()}
            return float(family.distribution(output, **shared).variance.sqrt())

        assert deviation(0.0) == pytest.approx(0.03, rel=1e-5)
        assert deviation(-100.0) == pytest.approx(0.001, rel=1e-4)
        assert deviation(0.1) > 0.03


def test_a_ceiling_bounds_the_scale_and_keeps_its_start():
    family = pc.Real(1, scale="element", initial_scale=0.03, floor=0.01, ceiling=0.2)
    raw = torch.tensor([-100.0, 0.0, 100.0])
    output = torch.stack([torch.zeros(3), raw], 1).unsqueeze(-1)
    deviation = family.distribution(output).variance.sqrt().flatten()
    torch.testing.assert_close(deviation, torch.tensor([0.01, 0.03, 0.2]))


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: pc.Categorical(1), "at least 2, found 1"),
        (lambda: pc.Categorical(2.5), "at least 2, found 2.5"),
        (lambda: pc.Real(2, scale=True), "positive number"),
        (lambda: pc.Binary(2.5), "positive whole numbers"),
        (lambda: pc.Binary((3, 0)), "positive whole numbers"),
        (lambda: pc.Real(3, scale="wide"), 'must be "element", "coordinate", "learned" or a positive number'),
        (lambda: pc.Real(3, scale=-1.0), "positive number"),
        (lambda: pc.Real(3, initial_scale=1e-4), "initial_scale > floor"),
        (lambda: pc.Real(3, ceiling=0.01), "a ceiling over initial_scale"),
        (lambda: pc.Real(3, bounds=(1.0, 0.0)), r"a low and a high number, found \(1.0, 0.0\)"),
        (lambda: pc.Real(3, bounds=1.0), "a low and a high number, found 1.0"),
        (lambda: pc.Binary(17).values(), "too many to enumerate"),
        (lambda: pc.Real(3).values(), "no finite set"),
        (lambda: family_from({"class": "Poisson"}), "unknown Family 'Poisson'"),
    ],
)
def test_bad_families_are_refused(build, message):
    with pytest.raises(pc.InputError, match=message):
        build()


def test_the_limits_of_real_that_come_with_a_scale_per_element():
    """Other scales have none, and what is given is kept."""
    assert (pc.Real().ceiling, pc.Real().bounds) == (2.0, (-10.0, 10.0))
    assert pc.Real(initial_scale=3.0).ceiling == 6.0
    assert (pc.Real(bounds=(0.0, 1.0)).ceiling, pc.Real(bounds=None).ceiling) == (0.5, 2.0)
    for real in (pc.Real(scale="learned"), pc.Real(scale=0.5), pc.Real(scale="coordinate")):
        assert real.ceiling is real.bounds is None
    given = pc.Real(ceiling=0.3)
    assert (given.ceiling, given.bounds) == (0.3, None)
    assert pc.Real(ceiling=None).bounds is None


@pytest.mark.parametrize("family", [pc.Real(), pc.Real(ceiling=None), pc.Real(scale="learned")], ids=repr)
def test_a_saved_description_keeps_its_limits_whatever_the_defaults_are(family):
    described = family.describe()
    assert described["ceiling"] == family.ceiling and described["ceiling"] != "auto" != described["bounds"]
    assert family_from(described) == family


def test_numbers_of_another_unit_are_refused_before_learning_and_scaled_ones_never():
    def learner(values, family):
        groups = {"mass": family, "kind": pc.Binary()}
        model = pc.JointModel({n: pc.Conditional(f, pc.networks.mlp(groups, n)) for n, f in groups.items()})
        return pc.Learner(model, pc.Data({"mass": values, "kind": torch.arange(200) % 2}), batch_size=8)

    grams = 4000 + 800 * torch.randn(200, generator=torch.Generator().manual_seed(0))
    with pytest.raises(pc.InputError, match=r"100% of the values of 'mass' are beyond 10.*standard deviation 1"):
        learner(grams, pc.Real())
    learner(grams, pc.Real(ceiling=2000.0))
    learner(grams, pc.Real(scale="learned"))
    learner((grams - grams.mean()) / grams.std(), pc.Real())
    outlier = torch.zeros(200).index_fill_(0, torch.tensor([7]), 1e6)  # the farthest that a scaled value can be
    learner((outlier - outlier.mean()) / outlier.std(), pc.Real())


def test_a_chain_of_defaults_cannot_run_away():
    """Networks that multiply what they read by a hundred."""
    groups = {"x": pc.Real(3), "y": pc.Real(3)}
    model = pc.JointModel({n: pc.Conditional(f, pc.networks.mlp(groups, n, depth=0)) for n, f in groups.items()})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(100)
    drawn = pc.sample(model, rows=50, sweeps=50, regeneration=0)
    assert max(float(value.abs().max()) for value in drawn.values()) < 10 + 6 * 2
