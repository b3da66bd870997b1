"""Questions by tours: intervals hold, easy rows stop early, at most one warning, options that contradict each other.

The joint of most tests is known: a binary group a, a ternary b, a binary d, and a real g whose mean and scale depend on
all three. Any conditional of it is exact, by Bayes.
"""

import math
import warnings

import pytest
import torch
from helpers import SIGMAS, assert_fits, assert_mean
from limits import MODEL, VARIABLES, wired
from torch import nn

import paracond as pc

GROUPS = {"a": pc.Binary(), "b": pc.Categorical(3), "d": pc.Binary(1), "g": pc.Real(2)}
BRISK = pc.Regeneration(0.1, 12)  # enough for this joint


class Known:
    """p(a, b, d) N(g; mean(a, b, d), scale(a, b, d)), two independent coordinates of g."""

    def __init__(self, seed=0):
        self.random = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=self.random, dtype=torch.float64)  # noqa: E731
        self.p = (0.5 * draw(2, 3, 2)).flatten().softmax(0).view(2, 3, 2)
        self.mean, self.scale = 0.6 * draw(2, 3, 2, 2), (0.3 * draw(2, 3, 2, 2)).exp()
        self.model = pc.JointModel({n: pc.Conditional(f, Bayes(self, n)) for n, f in GROUPS.items()}).double()
        self.model.regeneration = BRISK

    def joint(self, g, known):
        """log p(a, b, d) + log p(known coordinates of g), `[rows, 2, 3, 2]`."""
        z = (g[:, None, None, None] - self.mean) / self.scale
        scores = torch.where(known[:, None, None, None], -0.5 * z.square() - self.scale.log(), 0).sum(-1)
        return self.p.log() + scores

    def draw(self, rows):
        index = torch.multinomial(self.p.flatten(), rows, replacement=True, generator=self.random)
        a, b, d = torch.unravel_index(index, self.p.shape)
        noise = torch.randn(rows, 2, generator=self.random, dtype=torch.float64)
        g = self.mean[a, b, d] + self.scale[a, b, d] * noise
        return {"a": a.double(), "b": b, "d": d[:, None].double(), "g": g}

    def posterior(self, given):
        """Exact mean and standard deviation of every group, encoded, for `Observed` values."""
        rows, law = len(given["g"].value), self.joint(given["g"].value, given["g"].mask)
        for axis, name in enumerate("abd", 1):
            value, mask = given[name].value.reshape(rows), given[name].mask.reshape(rows)
            shape = [-1 if k == axis else 1 for k in range(4)]
            fits = (torch.arange(law.shape[axis]).view([1, *shape[1:]]) == value.view(-1, 1, 1, 1)) | ~mask.view(
                -1, 1, 1, 1
            )
            law = law.masked_fill(~fits, -math.inf)
        law = law.flatten(1).softmax(1).view(law.shape)
        found = {}
        for axis, name in enumerate("abd", 1):
            marginal = law.sum([k for k in (1, 2, 3) if k != axis])
            mean = marginal if name == "b" else marginal[:, 1:] if name == "d" else marginal[:, 1]
            found[name] = mean, (mean * (1 - mean)).clamp(min=0).sqrt()
        known, value = given["g"].mask[:, None, None, None], given["g"].value[:, None, None, None]
        mean, variance = torch.where(known, value, self.mean), torch.where(known, 0, self.scale.square())
        first, second = ((law[..., None] * each).sum((1, 2, 3)) for each in (mean, mean.square() + variance))
        found["g"] = first, (second - first.square()).clamp(min=0).sqrt()
        return found

    def questions(self, rows):
        """Values of the joint, of which any group, or any coordinate of g, may be known; something is left to ask."""
        state = self.draw(rows)
        given = {}
        for name, value in state.items():
            mask = torch.rand(value.shape, generator=self.random) < 0.4
            given[name] = pc.Observed(value, mask)
        given["g"].mask[~given["g"].mask.any(1), 0] = True  # equal questions would have equal answers
        given["a"].mask[given["b"].mask & given["d"].mask[:, 0] & given["g"].mask.all(1)] = False
        return given


class Bayes(nn.Module):
    """The exact conditional of one group of a `Known` joint."""

    def __init__(self, joint, name):
        super().__init__()
        self.joint, self.name, self.probe = joint, name, nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, others):
        index = {"a": 0, "b": 1, "d": 2}
        rows = len(next(iter(others.values())))
        at = {n: others[n].argmax(1) if n == "b" else others[n].reshape(rows).long() for n in index if n in others}
        if self.name == "g":
            mean, scale = self.joint.mean[at["a"], at["b"], at["d"]], self.joint.scale[at["a"], at["b"], at["d"]]
            low = math.log(GROUPS["g"].floor)  # the inverse of `Real._bounded`
            return torch.stack(
                [mean, (scale.log() - low).expm1().log() - math.log(math.expm1(math.log(0.03) - low))], 1
            )
        scores = self.joint.joint(others["g"], torch.ones_like(others["g"], dtype=torch.bool))
        for name in reversed("abd"):
            if name != self.name:
                axis = index[name] + 1
                where = at[name].view([-1 if k == 0 else 1 for k in range(scores.ndim)])
                where = where.expand([1 if k == axis else n for k, n in enumerate(scores.shape)])
                scores = scores.gather(axis, where)
        scores = scores.reshape(rows, -1)
        logit = (scores[:, 1] - scores[:, 0]) if self.name != "b" else scores
        return logit[:, None] if self.name == "d" else logit


def test_the_joint_of_these_tests_is_consistent():
    """Its conditionals are those of draws of it, and a chain that begins there stays there."""
    joint = Known()
    state = joint.draw(20_000)
    for name in "abd":
        encoded = GROUPS[name].encode(state[name]).double()
        assert_mean(joint.model(name, state).mean - encoded, 0.0, name)
    law = joint.model("g", state)
    assert_mean((state["g"] - law.mean) / law.variance.sqrt(), 0.0)
    assert_mean((state["g"] - law.mean) ** 2 / law.variance, 1.0)


@pytest.mark.parametrize("stop", [pc.Precise(), pc.Tours(64)], ids=str)
def test_intervals_hold_in_95_of_100_cases(stop):
    """Of probabilities, means and standard deviations, over 600 clamped questions to two joints. The error of a share
    is .006 to .008, so shares are in these bounds for 99 of 100 sets of questions."""
    hits = {"probabilities": [], "means": [], "deviations": []}
    for seed in range(2):
        joint = Known(seed)
        given = joint.questions(300)
        answer = pc.query(joint.model, given, list(GROUPS), stop=stop, seed=seed)
        exactly = joint.posterior(given)

        def count(kind, value, error, expected):
            asked = error > 0
            hits[kind].append(((value - expected).abs() <= 1.96 * error)[asked].double())
            assert bool(((value - expected).abs()[~asked] < 0.01).all())  # known, or direct, or a rare event

        for name, (mean, std) in exactly.items():
            if name != "g":
                count("probabilities", answer.probabilities[name], answer.error[name], mean)
                continue
            count("means", answer.mean[name], answer.error[name], mean)
            count("deviations", answer.std[name], answer.error_of_std[name], std)
    shares = {kind: float(torch.cat([h.flatten() for h in found]).mean()) for kind, found in hits.items()}
    assert all(0.93 <= share <= 0.97 for share in shares.values()), shares


# --- when rows stop -------------------------------------------------------------------------------------------------


class Copies(nn.Module):
    """Each bit is the other group's, with probability sigmoid(strength); the first is nearly certain of its own."""

    def __init__(self, other, strengths):
        super().__init__()
        self.other, self.strengths = other, nn.Parameter(torch.tensor(strengths, dtype=torch.float64))

    def forward(self, others):
        return self.strengths * (2 * others[self.other] - 1)


def copies(strengths=(1.0, 4.0, 8.0)):
    groups = {name: pc.Binary(len(strengths)) for name in "xy"}
    parts = {n: pc.Conditional(groups[n], Copies(o, strengths)) for n, o in ("xy", "yx")}
    return pc.JointModel(parts, regeneration=pc.Regeneration(0.1, 2)).double()


def known_but(*hidden):
    """Which bits of x are known in every row."""
    mask = torch.ones(len(hidden), 3, dtype=torch.bool)
    for row, bits in enumerate(hidden):
        mask[row, list(bits)] = False
    return {"x": pc.Observed(torch.ones(len(hidden), 3), mask), "y": pc.Observed(torch.ones(len(hidden), 3), mask)}


def test_easy_rows_stop_early_and_hard_ones_go_on():
    """By how slowly the hidden bits move: not at all without a chain, at once, slowly, hardly."""
    answer = pc.query(copies(), known_but([], [0], [1], [2]), ["x", "y"], stop=pc.Precise(0.04))
    found = answer.diagnostics.tours.tolist()
    assert found[0] == 0 and found[1] == 32 < found[2] < found[3] <= 1024
    assert all(bool((error <= 0.04).all()) for error in answer.diagnostics.error.values())
    assert answer.diagnostics.converged and "after 0 to" in repr(answer)
    for name in "xy":
        assert torch.equal(answer.diagnostics.error[name], answer.error[name].amax(1))
        assert_near(answer.probabilities[name], answer.error[name], known_but([], [0], [1], [2])["x"].mask * 0.5 + 0.5)
    coin = 1 / (2 * 0.04) ** 2  # the third bit is a fair coin for a whole tour
    assert coin < found[3] < 4 * coin


def assert_near(found, error, expected):
    assert bool(((found - expected).abs() <= SIGMAS * error + 1e-9).all())


def test_smaller_errors_need_more_tours():
    rough, fine = (pc.query(copies(), known_but([2]), ["x"], stop=pc.Precise(e)) for e in (0.1, 0.025))
    assert float(rough.error["x"].max()) <= 0.1 and float(fine.error["x"].max()) <= 0.025
    assert 8 < int(fine.diagnostics.tours) / int(rough.diagnostics.tours) < 32  # sixteen times, or so


def test_means_of_real_groups_count_in_units_of_two_deviations():
    joint = Known()
    joint.scale = joint.scale * 10
    joint.mean = joint.mean * 10
    given = {"g": pc.Observed(torch.zeros(1, 2, dtype=torch.float64), torch.tensor([True, False]))}
    answer = pc.query(joint.model, given, ["g"], stop=pc.Precise(0.02))
    assert torch.equal(answer.diagnostics.error["g"][0], (answer.error["g"] / (2 * answer.std["g"]))[0, 1])
    assert float(answer.diagnostics.error["g"]) <= 0.02 < float(answer.error["g"].max())


def test_a_row_that_stops_has_the_answer_of_so_many_tours():
    """Of its first tours by their numbers; those that ended first would be the short ones."""
    joint = Known()
    given = joint.questions(20)
    answer = pc.query(joint.model, given, list(GROUPS), stop=pc.Precise(0.04, least=8), seed=1)
    tours = answer.diagnostics.tours
    assert len(set(tours.tolist())) > 2
    for count in [n for n in set(tours.tolist()) if n]:
        same = pc.query(joint.model, given, list(GROUPS), stop=pc.Tours(count), seed=1)
        rows = tours == count
        for name in GROUPS:
            for what in ("probabilities", "mean", "std", "error", "samples"):
                for mine, other in zip(*(getattr(a, what).items() for a in (answer, same)), strict=True):
                    assert torch.equal(mine[1][rows], other[1][rows]), (name, what)


def test_means_do_not_favour_short_tours():
    """x moves from 0 to 1 as a tour goes on, so long tours have larger means. 600 answers from two tours each."""

    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.probe = nn.Parameter(torch.zeros((), dtype=torch.float64))

        def forward(self, others):
            return self.probe + 0.8 * others["y"] + 0.2

    class Same(Grows):
        def forward(self, others):
            return self.probe + others["x"]

    groups = {"x": pc.Real(1, scale=0.1), "y": pc.Real(1, scale=0.1), "k": pc.Real(1, scale=1.0)}
    parts = {"x": Grows(), "y": Same(), "k": Grows()}
    model = pc.JointModel({n: pc.Conditional(groups[n], parts[n]) for n in groups}).double()
    anew = pc.Regeneration(0.2, 0)
    given = {"k": torch.arange(600, dtype=torch.float64)[:, None]}  # says nothing; makes the rows differ
    answer = pc.query(model, given, ["x"], stop=pc.Tours(60), chains=60, regeneration=anew)
    # E x_k = 1 - .8^k after k sweeps from mean zero (in the first, x reads a y of mean zero)
    ages = torch.arange(400, dtype=torch.float64)
    expected = float((0.2 * 0.8**ages * (1 - 0.8**ages)).sum())
    assert_mean(answer.samples["x"].mean(1), expected)  # of last states
    gap = answer.mean["x"] - expected
    assert abs(float(gap.mean())) < SIGMAS * float(gap.std()) / 600**0.5 + 0.02  # a ratio: its bias is of order 1 / 60
    assert 0.9 < float((gap / answer.error["x"]).std()) < 1.1


# --- at most one warning --------------------------------------------------------------------------------------------


def test_most_is_honoured_and_one_warning_says_what_to_change():
    with pytest.warns(pc.ImpreciseWarning) as caught:
        answer = pc.query(copies(), known_but([0], [1], [2], [2, 1]), ["x", "y"], stop=pc.Precise(0.03, most=100))
    assert len(caught) == 1 and caught[0].filename == __file__
    text = str(caught[0].message)
    assert "in 3 of 4 rows after 100 tours: allow more, as in stop=Precise(error=0.03, most=400)" in text
    assert int(answer.diagnostics.tours.max()) == 100 and not answer.diagnostics.converged
    assert "not converged" in repr(answer)


def test_no_warning_where_all_is_well():
    joint = Known()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = pc.query(joint.model, joint.questions(5))
        pc.query(copies(), known_but([2]), stop=pc.Tours(2), chains=2)  # errors do not matter
        pc.query(MODEL)
        pc.query(MODEL, {"b": torch.tensor([2])}, ["a"])
    assert answer.diagnostics.converged


class Runaway(nn.Module):
    def __init__(self, other):
        super().__init__()
        self.other, self.probe = other, nn.Parameter(torch.zeros(()))

    def forward(self, others):
        return self.probe + 1e6 * others[self.other]


@pytest.mark.parametrize("stop", [pc.Precise(), pc.Tours(40), pc.Sweeps(60), pc.Converged(limit=60)], ids=str)
def test_chains_that_diverge_are_refused_by_row(stop):
    """And the others have their answers once such rows are left out."""
    groups = {name: pc.Real(1, scale=1.0) for name in "xy"}
    model = pc.JointModel({n: pc.Conditional(groups[n], Runaway(o)) for n, o in ("xy", "yx")})
    given = {"x": pc.Observed(torch.zeros(3, 1), torch.tensor([[True], [False], [True]]))}
    with pytest.raises(pc.InputError, match=r"\| rest\) is NaN or infinite in 1 of 3 rows \(1\): their chains diverge"):
        pc.query(model, given, ["x", "y"], stop=stop)
    answer = pc.query(model, {"x": torch.zeros(2, 1)}, ["x", "y"], stop=stop)
    assert bool(answer.mean["y"].isfinite().all())


# --- options that contradict each other -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"stop": pc.Tours(10), "regeneration": 0}, r"stop=Tours\(10\) needs tours; with regeneration=0 use stop=Conv"),
        ({"stop": pc.Precise(), "regeneration": 0}, r"stop=Precise\(.*\) needs tours"),
        (
            {"stop": pc.Sweeps(3), "regeneration": BRISK},
            r"stop=Sweeps\(.*\) is for chains that never begin anew: leave",
        ),
        ({"stop": pc.Converged(), "regeneration": BRISK}, r"stop=Converged\(.*\) is for chains that never begin anew"),
        ({"regeneration": 0.02}, r"regeneration must be Regeneration\(rate, warmup\), or 0 for never, found 0.02"),
        ({"regeneration": False}, r"regeneration must be Regeneration"),
        ({"stop": pc.Tours(4)}, r"chains=8 samples need as many tours, but stop=Tours\(4\) allows 4"),
        ({"stop": pc.Precise(least=2, most=5), "chains": 6}, "chains=6 samples need as many tours"),
        (
            {"scan": "no-repeat"},
            "scan='no-repeat' is for chains that never begin anew; tours have systematic and random",
        ),
        ({"stop": 3}, r"stop must be Precise\(error\), Tours\(count\), Converged\(...\) or Sweeps\(count\), found 3"),
    ],
)
def test_contradictions_are_refused_in_words(options, message):
    whole = {name: value[:1] for name, value in pc.sample(MODEL, seed=1).items()}
    direct = {name: value for name, value in whole.items() if name != "a"}
    for given in ({}, direct):  # also where no chain would run
        with pytest.raises(pc.InputError, match=message):
            pc.query(MODEL, given, ["a"], **options)


def test_draws_by_chains_that_never_begin_anew_need_a_length():
    with pytest.raises(
        pc.InputError, match="regeneration=0 needs sweeps=, the length of a chain that never begins anew"
    ):
        pc.sample(MODEL, regeneration=0)
    with pytest.raises(pc.InputError, match="sweeps and regeneration were both given: chains of a fixed length never"):
        pc.sample(MODEL, sweeps=3, regeneration=BRISK)
    both = [pc.sample(MODEL, rows=50, sweeps=3, **never) for never in ({}, {"regeneration": 0})]
    assert all(torch.equal(both[0][name], both[1][name]) for name in VARIABLES)


@pytest.mark.parametrize(
    "wrong",
    [
        {"error": 0},
        {"error": -1.0},
        {"error": "small"},
        {"error": True},
        {"error": math.nan},
        {"least": 1},
        {"most": 31},
    ],
)
def test_bounds_of_precision_are_checked(wrong):
    with pytest.raises(pc.InputError, match="must be a"):
        pc.Precise(**wrong)


@pytest.mark.parametrize("count", [0, 1, 2.5, True, "many"])
def test_numbers_of_tours_are_checked(count):
    with pytest.raises(pc.InputError, match="count of Tours must be a whole number, at least 2"):
        pc.Tours(count)


@pytest.mark.parametrize("wrong", [{"rate": 0}, {"rate": 1.5}, {"rate": "often"}, {"rate": math.nan}, {"warmup": -1}])
def test_regenerations_are_checked(wrong):
    with pytest.raises(pc.InputError, match="Regeneration must be a"):
        pc.Regeneration(**wrong)


def test_more_samples_than_tours_are_drawn_by_more_tours():
    answer = pc.query(MODEL, {}, ["a"], stop=pc.Precise(0.2, least=4), chains=50, regeneration=BRISK)
    assert answer.samples["a"].shape == (1, 50, 2) and answer.diagnostics.tours.tolist() == [50]
    answer = pc.query(MODEL, {}, ["a"], chains=1500, regeneration=pc.Regeneration(1, 1))  # over the default of `most`
    assert answer.samples["a"].shape == (1, 1500, 2) and answer.diagnostics.tours.tolist() == [1500]


# --- pure Gibbs, and answers without a chain ------------------------------------------------------------------------


def test_chains_that_never_begin_anew_are_asked_for():
    joint = Known()
    given = joint.questions(20)
    mean, _ = joint.posterior(given)["g"]
    for options in ({"regeneration": 0}, {"stop": pc.Sweeps(300, 20)}, {"stop": pc.Sweeps(300, 20), "regeneration": 0}):
        answer = pc.query(joint.model, given, ["g"], **options)
        assert answer.diagnostics.tours is None and answer.diagnostics.ess["g"].shape == (20,)
        assert not answer.error and float((answer.mean["g"] - mean).abs().max()) < 0.4


@pytest.mark.parametrize("options", [{}, {"stop": pc.Tours(9)}, {"regeneration": 0}, {"stop": pc.Sweeps(2)}], ids=str)
def test_answers_without_a_chain_are_the_same_whatever_stop_is(options):
    joint = Known()
    state = joint.draw(30)
    given = {name: value for name, value in state.items() if name != "b"}
    answer = pc.query(joint.model, given, ["a", "b"], **options)
    torch.testing.assert_close(answer.probabilities["b"], joint.model("b", state).mean)
    assert torch.equal(answer.probabilities["a"], state["a"])
    found = answer.diagnostics
    assert found.converged and found.sweeps == 0 and found.tours.tolist() == [0] * 30
    assert found.error["b"].tolist() == found.drift["b"].tolist() == [0.0] * 30
    assert found.r_hat["b"].tolist() == [1.0] * 30 and bool((found.ess["b"] == math.inf).all())
    assert not bool(answer.error["b"].any()) and repr(found) == "<exact, without a chain>"
    assert torch.equal(answer.samples["b"], pc.query(joint.model, given, ["a", "b"]).samples["b"])


def test_rows_that_need_no_chain_have_none_beside_others_that_do():
    joint = Known()
    state, known = joint.draw(40), torch.arange(40) % 2 == 0
    given = {name: pc.Observed(value, known) if name == "d" else value for name, value in state.items() if name != "b"}
    answer = pc.query(joint.model, given, ["b"], regeneration=pc.Regeneration(0.5, 0))
    assert torch.equal(answer.diagnostics.tours > 0, ~known)
    torch.testing.assert_close(answer.probabilities["b"][known], joint.model("b", state).mean[known])
    assert not bool(answer.error["b"][known].any()) and bool((answer.error["b"][~known] > 0).any(1).all())
    direct = pc.query(joint.model, {n: v[known] for n, v in state.items() if n != "b"}, ["b"])
    assert torch.equal(direct.probabilities["b"], answer.probabilities["b"][known])


def test_what_is_known_has_no_error():
    joint = Known()
    given = joint.questions(30)
    answer = pc.query(joint.model, given, list(GROUPS))
    for name, known in given.items():
        mask = known.mask[..., None] if name == "b" else known.mask
        assert not bool((answer.error[name] * mask).any())
        value = torch.where(known.mask, known.value, answer.decisions[name])
        assert torch.equal(answer.decisions[name], value)
        many = known.value.unsqueeze(1).expand_as(answer.samples[name])
        assert torch.equal(answer.samples[name], torch.where(known.mask.unsqueeze(1), many, answer.samples[name]))
    for name in ("a", "d", "g"):
        assert not bool(
            (answer.std[name] * given[name].mask).any() | (answer.error_of_std[name] * given[name].mask).any()
        )


# --- imputation, and types ------------------------------------------------------------------------------------------


def test_imputed_draws_are_joint():
    """One for each of 4,000 rows, of which none is missing the same."""
    joint = Known()
    given = joint.questions(4000)
    data = pc.Data({n: o.value for n, o in given.items()}, {n: o.mask for n, o in given.items()})
    for options in ({}, {"chains": 3, "stop": pc.Tours(20)}, {"chains": 1, "stop": pc.Sweeps(1, 12)}):
        filled = pc.impute(joint.model, data, how="sample", **options)
        for name, known in given.items():
            assert torch.equal(filled[name][known.mask], known.value[known.mask])
        # Values and masks are independent, so completed rows have the joint law.
        counts = torch.bincount((filled["a"] * 6 + filled["b"] * 2 + filled["d"][:, 0]).long(), minlength=12)
        assert_fits(counts, joint.p)
        a, b, d = filled["a"].long(), filled["b"], filled["d"][:, 0].long()
        z = (filled["g"] - joint.mean[a, b, d]) / joint.scale[a, b, d]
        assert_mean(z, 0.0)
        assert_mean(z.square(), 1.0)


def test_imputed_decisions_are_those_of_the_answer():
    joint = Known()
    given = joint.questions(10)
    data = pc.Data({n: o.value for n, o in given.items()}, {n: o.mask for n, o in given.items()})
    answer = pc.query(joint.model, given, list(GROUPS), stop=pc.Tours(8), seed=4)
    filled = pc.impute(joint.model, data, stop=pc.Tours(8), seed=4)
    assert all(torch.equal(filled[name], answer.decisions[name]) for name in GROUPS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_models_of_any_type_are_asked(dtype):
    model = wired(strength=0.5).to(dtype)
    given = {"a": pc.Observed(torch.ones(2, 2), torch.tensor([[True, False], [False, False]]))}
    answer = pc.query(model, given, ["a", "b"], stop=pc.Tours(100), regeneration=pc.Regeneration(0.5, 1))
    exactly = pc.query(model.double(), given, ["a", "b"], stop=pc.Tours(100), regeneration=pc.Regeneration(0.5, 1))
    assert answer.probabilities["b"].dtype == dtype
    for name in "ab":
        gap = (answer.probabilities[name].double() - exactly.probabilities[name]).abs()
        assert float(gap.max()) < 0.2
