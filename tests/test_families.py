"""Every family against torch.distributions, at every kind of event shape."""

import math

import pytest
import scipy.stats
import torch
from helpers import assert_fits, assert_mean

import paracond as pc
from paracond.distributions import TruncatedGaussian
from paracond.families import family_from
from paracond.streams import RowStreams

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
    *[
        pc.Truncated(shape, support=support, scale=scale, initial_scale=0.5)
        for shape in ((), 5)
        for support in ((-1.0, 0.5), (0.0, None), (None, 0.3))
        for scale in ("element", "coordinate", "learned", 0.7)
    ],
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
    if isinstance(family, pc.Truncated):
        return Truncated(family, output, shared)
    if family.scale == "element":
        return torch.distributions.Normal(
            within(output[:, 0], family.bounds), softly_bounded(output[:, 1], family.ceiling)
        )
    scale = softly_bounded(10 * shared["log_scale"], family.ceiling) if family.scale != 0.7 else torch.tensor(0.7)
    return torch.distributions.Normal(within(output, family.bounds), scale.double())


class Truncated:
    """The law by scipy."""

    def __init__(self, family, output, shared):
        raw = (output[:, 0] if family.scale == "element" else output).detach()
        low, high = family.support
        if None in family.support:
            mu = within(raw, (-10.0, 10.0))
        else:
            mu = within(raw * (high - low) / 2, (low - (high - low) / 2, high + (high - low) / 2), (low + high) / 2)
        scale = torch.full_like(raw, 0.7)
        if family.scale != 0.7:
            logit = output[:, 1].detach() if family.scale == "element" else 10 * shared["log_scale"].detach()
            scale = softly_bounded(logit, family.ceiling, floor=family.floor).expand_as(raw)
        ends = [-1e3 if low is None else low, 1e3 if high is None else high]  # scipy warns of infinite ones
        a, b = ((end - mu) / scale for end in ends)
        self.mu, self.scale, self.end = mu, scale, high if low is None else low
        self.law = scipy.stats.truncnorm(a.numpy(), b.numpy(), mu.numpy(), scale.numpy())
        self.mean, self.variance = torch.as_tensor(self.law.mean()), torch.as_tensor(self.law.var())

    def log_prob(self, value):
        return torch.as_tensor(self.law.logpdf(value.numpy()))

    def entropy(self):
        """-E log p, where log p is a quadratic; scipy's own is infinite in tails."""
        whole = scipy.stats.norm(self.mu.numpy(), self.scale.numpy()).logpdf(self.end)
        log_z = torch.as_tensor(whole - self.law.logpdf(self.end))
        square = self.variance + (self.mean - self.mu) ** 2
        return self.scale.log() + 0.5 * math.log(2 * math.pi) + 0.5 * square / self.scale**2 + log_z


def within(raw, bounds, at_zero=0.0):
    """Written out anew: middle + half * tanh((raw - middle) / half), for bounds middle - half and middle + half.

    at_zero: what raw = 0 is, before that.
    """
    if bounds is None:
        return raw
    middle, half = (bounds[0] + bounds[1]) / 2, (bounds[1] - bounds[0]) / 2
    return middle + half * torch.tanh((raw + at_zero - middle) / half)


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
    if family.finite:
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
        (
            lambda: pc.Truncated(),
            r"support of Truncated is \(low, high\), of which one may be None, found \(None, None\)",
        ),
        (lambda: pc.Truncated(support=(1.0, 0.0)), "one may be None, found"),
        (lambda: pc.Truncated(support=(0.0, math.inf)), "one may be None, found"),
        (lambda: pc.Truncated(support=(0.0, None), scale="wide"), 'scale of Truncated must be "element"'),
        (lambda: pc.Truncated(support=(0.0, None), ceiling=0.01), "0 < floor < initial_scale < ceiling"),
        (lambda: pc.Truncated(support=(50.0, None)), "the limit 50 of Truncated is too far from 0"),
        (lambda: pc.Binary(17).values(), "too many to enumerate"),
        (lambda: pc.Real(3).values(), "no finite set"),
        (lambda: family_from({"class": "Poisson"}), "unknown Family 'Poisson'"),
    ],
)
def test_bad_families_are_refused(build, message):
    with pytest.raises(pc.InputError, match=message):
        build()


def test_real_values_have_limits_in_networks_that_learn_and_none_in_laws():
    """A law that is written by hand is what it says, whatever its mean and scale."""
    for real in (pc.Real(), pc.Real(scale="learned"), pc.Real(scale=0.5), pc.Real(scale="coordinate")):
        assert real.ceiling is real.bounds is None
    law = pc.Real(1).distribution(torch.tensor([[[5e3], [20.0]]]))
    assert float(law.mu) == 5e3 and float(law.log_scale) > 15
    for real in (pc.Real(scale="learned"), pc.Real(scale=0.5), pc.Real(ceiling=0.3), pc.Binary(3), pc.Categorical(4)):
        assert real.output_limits() is None


@pytest.mark.parametrize("initial, widest", [(0.03, 2.0), (1.5, 3.0)])
def test_networks_of_real_values_keep_to_limits(initial, widest):
    groups = {"x": pc.Real(3, initial_scale=initial), "y": pc.Binary(2)}
    network, free = (pc.networks.mlp(groups, "x", depth=0, **options) for options in ({}, {"limits": None}))
    network.requires_grad_(False).layers[0].bias.mul_(0.1)
    free.load_state_dict(network.state_dict())
    read = {"y": torch.tensor([[0.1, -0.1], [1e6, -1e6], [-1e6, 1e6]])}
    law = groups["x"].distribution(network(read))
    assert torch.equal(network(read)[0], free(read)[0]), "near the data nothing changes"
    assert float(law.mu[1:].abs().min()) == 10.0 and float(law.mu.abs().max()) == 10.0
    assert float(law.log_scale.exp().max()) == pytest.approx(widest, rel=1e-4)
    bounded = pc.Real(3, bounds=(0.0, 4.0))
    assert bounded.output_limits()[0] == [None, None]
    raw = torch.tensor(bounded.output_limits()[1][1]).expand(1, 2, 3)
    assert float(bounded.distribution(raw).log_scale.exp().max()) == pytest.approx(2.0, rel=1e-4)


def test_limits_of_networks_are_saved_and_checked(tmp_path):
    groups = {"x": pc.Real(2), "y": pc.Binary(2)}
    model = pc.JointModel({n: pc.Conditional(f, pc.networks.mlp(groups, n, hidden=4)) for n, f in groups.items()})
    model.save(tmp_path)
    assert pc.JointModel.load(tmp_path).conditional("x").network.limits == model.conditional("x").network.limits
    for limits in (3, [[-1, 1]], [[1, 2], [None, 3]], [[-1, "a"], [None, 3]], [[-1, 1, 2], [None, 3]]):
        with pytest.raises(pc.InputError, match="limits"):
            pc.networks.mlp(groups, "x", limits=limits)


def test_numbers_of_another_unit_are_refused_before_learning_and_scaled_ones_never():
    def learner(values, family):
        groups = {"mass": family, "kind": pc.Binary()}
        model = pc.JointModel({n: pc.Conditional(f, pc.networks.mlp(groups, n)) for n, f in groups.items()})
        return pc.Learner(model, pc.Data({"mass": values, "kind": torch.arange(200) % 2}), batch_size=8)

    grams = 4000 + 800 * torch.randn(200, generator=torch.Generator().manual_seed(0))
    with pytest.raises(
        pc.InputError, match=r"100.0% of the values of 'mass' are farther than 10 .*standard deviation 1"
    ):
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


# --- Truncated --------------------------------------------------------------------------------------------------


def tail(distance, scale):
    """Mean, variance and entropy of x > 0 under N(-distance, scale^2), by the trapezoidal rule on its density."""
    h = distance / scale
    t = torch.linspace(0, 40 / h, 400_001, dtype=torch.float64)
    log_p = -h * t - 0.5 * t * t
    p = log_p.exp() / torch.trapezoid(log_p.exp(), t)
    mean = torch.trapezoid(p * t, t)
    entropy = -torch.trapezoid(p * p.clamp(min=1e-300).log(), t) + math.log(scale)
    return scale * mean, scale**2 * torch.trapezoid(p * (t - mean) ** 2, t), entropy


@pytest.mark.parametrize("scale", [1e-3, 0.02, 0.3])
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_tail_has_all_its_digits_in_float32(scale, mirrored):
    """mu is up to 9,000 standard deviations outside of the support."""
    sign = -1.0 if mirrored else 1.0
    mu = torch.full((40_000,), -9.0 * sign, requires_grad=True)
    log_scale = torch.full((40_000,), math.log(scale))
    law = TruncatedGaussian(mu, log_scale, *((None, 0.0) if mirrored else (0.0, None)))
    mean, variance, entropy = tail(9.0, float(log_scale[0].double().exp()))
    for found, expected in ((sign * law.mean, mean), (law.variance, variance), (law.entropy, entropy)):
        torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=0)
    drawn = law.sample(torch.Generator().manual_seed(0))
    assert bool((sign * drawn >= 0).all())
    assert_mean(sign * drawn[:, None].double(), mean[None])
    assert_mean(drawn[:, None].double() ** 2, (variance + mean**2)[None])
    # -E log p is the entropy, and the slope of the mean score is zero in expectation
    scores = law.scores(drawn)
    assert_mean(-scores[:, None].detach().double(), entropy[None])
    (slope,) = torch.autograd.grad(scores.sum(), mu)
    assert_mean(slope[:, None].double(), torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("support", [(-1.0, 0.5), (0.0, None), (None, 0.3)])
def test_gradients_of_truncated_scores_are_those_of_differences(support):
    generator = torch.Generator().manual_seed(0)
    mu = 3 * torch.randn(6, generator=generator, dtype=torch.float64)
    log_scale = torch.randn(6, generator=generator, dtype=torch.float64)
    value = TruncatedGaussian(mu, log_scale, *support).sample(generator)

    def score(m, s):
        return TruncatedGaussian(m, s, *support).scores(value)

    assert torch.autograd.gradcheck(score, (mu.requires_grad_(), log_scale.requires_grad_()))


@pytest.mark.parametrize("family", [f for f in FAMILIES if isinstance(f, pc.Truncated)], ids=repr)
def test_no_draw_leaves_the_support_and_what_is_outside_is_refused(family):
    low, high = (-math.inf if family.support[0] is None else family.support[0], family.support[1] or math.inf)
    output = 30 * torch.randn(2000, *family.output_shape, generator=torch.Generator().manual_seed(0))
    law = family.distribution(output, **family.shared_parameters())
    streams = RowStreams(torch.arange(2000), torch.zeros(2000, dtype=torch.int64))
    for source in (torch.Generator().manual_seed(1), streams):
        drawn = law.sample(source)
        assert bool(((drawn >= low) & (drawn <= high)).all()) and bool(law.scores(drawn).isfinite().all())
        first = family.random(2000, source, torch.float32)
        assert bool(((first >= low) & (first <= high)).all())
    outside = torch.full((5,), (low - 0.01) if family.support[0] is not None else high + 0.01)
    assert bool((family.distribution(output[:5], **family.shared_parameters()).mean <= high).all())
    with pytest.raises(pc.InputError, match=r"'age' takes values (at|from).*, found"):
        family.check_known("age", outside)
    assert bool((law.scores(outside[:1].expand_as(drawn)) == -math.inf).all())


def test_units_of_a_support():
    """With two ends nothing needs to be scaled; with one, values should be near 1."""
    ages = pc.Truncated(support=(17.0, 90.0))
    assert (ages.initial_scale, ages.floor, ages.ceiling) == pytest.approx((0.03 * 36.5, 0.0365, 182.5))
    law = ages.distribution(torch.tensor([[0.0, 0.0], [-9.0, 0.0], [9.0, 0.0]]))
    torch.testing.assert_close(law.mu, torch.tensor([53.5, -19.5, 126.5]), rtol=1e-3, atol=1e-2)
    assert (pc.Truncated(support=(0, None)).ceiling, pc.Truncated(support=(0, None)).reach) == (5.0, 10.0)
    with pytest.raises(pc.InputError, match="farther than 10 from 0"):
        pc.Truncated(support=(0, None)).check_examples("income", torch.full((10,), 4e4), False)


def ages(rows=600, seed=0):
    """A table with an age from 17 to 90 (in units of 20 years), a positive number with holes, and a group."""
    generator = torch.Generator().manual_seed(seed)
    group = torch.randint(2, (rows,), generator=generator)
    age = (17 + (12 + 10 * group) * (torch.randn(rows, generator=generator) + 2 * group).abs()).clamp(max=90) / 20
    income = torch.empty(rows).exponential_(generator=generator) * (0.3 + 0.4 * age)
    seen = torch.rand(rows, generator=generator) < 0.8
    return pc.Data({"age": age, "income": income, "group": group.float()}, {"income": seen})


def test_a_model_of_ages_never_leaves_them(tmp_path):
    """Learned, saved, loaded, sampled, asked, clamped and imputed; the mean age of each group is right."""
    data = ages()
    groups = {"age": pc.Truncated(support=(0.85, 4.5)), "income": pc.Truncated(support=(0.0, None))}
    groups |= {"group": pc.Binary()}
    torch.manual_seed(0)
    model = pc.JointModel(
        {n: pc.Conditional(f, pc.networks.mlp(groups, n, hidden=16, depth=1)) for n, f in groups.items()}
    )
    pc.Learner(model, data, batch_size=128, learning_rate=1e-2, average=0.99).fit(1200).save(tmp_path / "ages")
    model = pc.JointModel.load(tmp_path / "ages")
    assert model.variables == groups
    for options in ({}, {"sweeps": 50, "regeneration": 0}):
        drawn = pc.sample(model, rows=400, **options)
        assert float(drawn["age"].min()) >= 0.85 and float(drawn["age"].max()) <= 4.5
        assert float(drawn["income"].min()) >= 0
    answer = pc.query(model, {"group": torch.tensor([0.0, 1.0])}, ["age", "income"], seed=0)
    known = torch.stack([data.state["age"][data.state["group"] == k].mean() for k in (0, 1)])
    torch.testing.assert_close(answer.mean["age"].float(), known, rtol=0.1, atol=0)
    assert bool((answer.mean["income"] > 0).all())
    filled = pc.impute(model, data[:50])
    assert torch.equal(filled["income"][data.mask["income"][:50]], data.state["income"][:50][data.mask["income"][:50]])
    assert float(filled["income"].min()) >= 0
    with pytest.raises(pc.InputError, match=r"'age' takes values from 0.85 to 4.5, found -0.8"):
        pc.query(model, {"age": torch.tensor([-0.8])}, ["group"])
