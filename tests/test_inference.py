"""Queries against the exact conditionals of a consistent model with binary, categorical and Gaussian members."""

import warnings
from functools import partial

import pytest
import scipy.stats
import torch
from helpers import DEVICES, THRESHOLD, Linear, Pairwise, assert_fits, assert_mean
from torch import nn

import paracond as pc
from paracond import inference

VARIABLES = {"u": pc.Binary(2), "c": pc.Categorical(3), "k": pc.Categorical(2, (2,)), "x": pc.Real(2, scale=0.8)}
PAIR = Pairwise(VARIABLES, seed=4, strength=0.7)
MODEL = PAIR.model
STATES, P, MEANS = PAIR.joint()
CHAINS = 64  # the same question in so many rows: their answers are independent, so their mean can be tested
ALONE = {"chains": 1, "stop": pc.Sweeps(400, 40)}


def posterior(given):
    """p(discrete states | given), and E[x | state] with clamped x coordinates at their values; exact, by Bayes."""
    weights = P.clone()
    means = MEANS.clone()
    for name, known in given.items():
        known = known if isinstance(known, pc.Observed) else pc.Observed(known)
        shape = VARIABLES[name].event_shape
        mask = torch.ones(shape, dtype=torch.bool) if known.mask is None else known.mask
        if name == "x":
            standard = (known.value - MEANS)[:, mask] / 0.8
            weights = weights * torch.exp(-0.5 * (standard**2).sum(1))
            means[:, mask] = known.value.double()[mask]
        else:
            same = (STATES[name] == known.value.to(STATES[name].dtype)) | ~mask
            weights = weights * same.reshape(len(P), -1).all(1)
    return weights / weights.sum(), means


GIVEN = {
    "nothing": {},
    "a class": {"c": torch.tensor(1)},
    "a real group": {"x": torch.tensor([0.5, -1.0])},
    "one real coordinate": {"x": pc.Observed(torch.tensor([0.5, 0.0]), torch.tensor([True, False]))},
    "one binary coordinate": {"u": pc.Observed(torch.tensor([0.0, 1.0]), torch.tensor([False, True]))},
    "one of two labels": {"k": pc.Observed(torch.tensor([1, 0]), torch.tensor([True, False]))},
    "a bit of everything": {
        "u": pc.Observed(torch.tensor([1.0, 0.0]), torch.tensor([True, False])),
        "k": torch.tensor([0, 1]),
        "x": pc.Observed(torch.tensor([0.0, 1.5]), torch.tensor([False, True])),
    },
}


def batched(given):
    return {
        n: pc.Observed(v.value[None], None if v.mask is None else v.mask[None])
        if isinstance(v, pc.Observed)
        else v[None]
        for n, v in given.items()
    }


def repeated(given, rows=CHAINS):
    return {
        n: pc.Observed(v.value.expand(rows, *v.value.shape), None if v.mask is None else v.mask[None])
        if isinstance(v, pc.Observed)
        else v.expand(rows, *v.shape)
        for n, v in given.items()
    }


def expected_of(name, weights):
    """E[encode(x_name)] under weights of the discrete states."""
    return torch.tensordot(weights, VARIABLES[name].encode(STATES[name]).double(), 1)


@pytest.mark.parametrize("kind", GIVEN)
def test_marginals_are_exact(kind):
    weights, means = posterior(GIVEN[kind])
    answer = pc.query(MODEL, repeated(GIVEN[kind]), list(VARIABLES), rows=CHAINS, **ALONE)
    for name in ("u", "c", "k"):
        exact = expected_of(name, weights)
        assert_mean(answer.probabilities[name], exact, f"{name} given {kind}")
        decided = VARIABLES[name].decide(answer.probabilities[name]).to(answer.decisions[name].dtype)
        assert torch.equal(answer.decisions[name], decided)
    assert_mean(answer.mean["x"], torch.tensordot(weights, means, 1), f"x given {kind}")
    assert torch.equal(answer.decisions["x"], answer.mean["x"])
    known = GIVEN[kind].get("x", pc.Observed(torch.zeros(2), torch.zeros(2, dtype=torch.bool)))
    known = known if isinstance(known, pc.Observed) else pc.Observed(known, torch.ones(2, dtype=torch.bool))
    # The mean of v + m^2 along a chain is unbiased for E[x^2]; its variance alone would not be for Var[x].
    square = torch.tensordot(weights, means**2, 1) + 0.64 * (~known.mask)
    assert_mean(answer.std["x"] ** 2 + answer.mean["x"] ** 2, square, f"x^2 given {kind}")


def test_several_chains_are_pooled():
    """Means are averages over chains; variances are those of the pooled draws."""
    given = GIVEN["one real coordinate"]
    weights, means = posterior(given)
    answer = pc.query(MODEL, repeated(given, 16), ["c", "x"], **{**ALONE, "chains": 8})
    assert_mean(answer.probabilities["c"], expected_of("c", weights))
    mean = torch.tensordot(weights, means, 1)
    assert_mean(answer.mean["x"], mean)
    square = torch.tensordot(weights, means**2, 1) + torch.tensor([0.0, 0.64])
    assert_mean(answer.std["x"] ** 2 + answer.mean["x"] ** 2, square)


def test_marginals_use_conditionals_and_not_only_draws():
    """With everything else known, one sweep gives the exact conditional: no draw could."""
    given = {"u": torch.ones(1, 2), "k": torch.zeros(1, 2).long(), "x": torch.zeros(1, 2)}
    answer = pc.query(MODEL, given, ["c"], chains=1, stop=pc.Sweeps(1, 0))
    state = {**given, "c": torch.zeros(1).long()}
    state = {n: VARIABLES[n].store(v, torch.float64) for n, v in state.items()}
    torch.testing.assert_close(answer.probabilities["c"], MODEL("c", state).mean.detach())


def test_samples_are_independent_draws():
    weights, means = posterior(GIVEN["one real coordinate"])
    answer = pc.query(MODEL, batched(GIVEN["one real coordinate"]), ["c", "x"], chains=20_000, stop=pc.Sweeps(1, 40))
    assert answer.samples["c"].shape == (1, 20_000) and answer.samples["x"].shape == (1, 20_000, 2)
    assert_fits(torch.bincount(answer.samples["c"][0], minlength=3), expected_of("c", weights))
    assert bool((answer.samples["x"][0, :, 0] == 0.5).all())

    def cumulative(x):  # a mixture of Gaussians, one for every discrete state
        return (weights[:, None] * torch.special.ndtr((torch.as_tensor(x) - means[:, 1:]) / 0.8)).sum(0).numpy()

    fit = scipy.stats.kstest(answer.samples["x"][0, :, 1].numpy(), cumulative)
    assert fit.pvalue > THRESHOLD


def test_every_row_has_its_own_question():
    value = torch.tensor([[0.5, 0.0], [0.0, -1.0], [0.0, 0.0]])
    mask = torch.tensor([[True, False], [False, True], [False, False]])
    each = {"x": pc.Observed(value.repeat(CHAINS, 1), mask.repeat(CHAINS, 1))}
    answer = pc.query(MODEL, each, ["c"], **ALONE)
    for row in range(3):
        weights, _ = posterior({"x": pc.Observed(value[row], mask[row])})
        assert_mean(answer.probabilities["c"][row::3], expected_of("c", weights))


def test_a_single_row_is_repeated_to_fit():
    answer = pc.query(MODEL, {"c": torch.tensor([1]), "u": torch.zeros(3, 2)}, ["x"], stop=pc.Sweeps(2))
    assert answer.samples["x"].shape == (3, 8, 2)
    assert pc.query(MODEL, {}, ["c"], rows=5, stop=pc.Sweeps(2)).probabilities["c"].shape == (5, 3)


def test_chains_stop_once_they_have_converged_and_are_right():
    answer = pc.query(MODEL, batched(GIVEN["a real group"]), ["c", "u"], regeneration=0, chains=16)
    assert answer.diagnostics.converged and answer.diagnostics.sweeps < 1000
    assert all(float(r.max()) <= 1.05 for r in answer.diagnostics.r_hat.values())
    many = pc.query(MODEL, repeated(GIVEN["a real group"], 40), ["c"], stop=pc.Converged(), chains=4)
    weights, _ = posterior(GIVEN["a real group"])
    assert_mean(many.probabilities["c"], expected_of("c", weights))
    # 200 effective draws promise a standard error of at most 0.5 / sqrt(200)
    assert float(many.probabilities["c"].std(0).max()) < 0.5 / 200**0.5


def stuck():
    """Two groups that copy each other: with a strong weight the chain never leaves the mode it begins in."""
    weight = torch.full((1, 1), 40.0)
    return pc.JointModel(
        {a: pc.Conditional(pc.Binary(1), Linear(torch.full((1,), -20.0), {b: weight})) for a, b in ("ab", "ba")}
    )


def test_a_chain_that_has_not_mixed_is_reported():
    with pytest.warns(pc.NotMixedWarning, match=r"'a' has not mixed in 1 of 1 rows \(R-hat up to"):
        answer = pc.query(stuck(), {}, ["a"], stop=pc.Sweeps(50))
    assert not answer.diagnostics.converged
    with pytest.warns(pc.NotMixedWarning):
        answer = pc.query(stuck(), {}, ["a"], stop=pc.Converged(limit=100))
    with pytest.warns(pc.NotMixedWarning, match="stopped at the limit of 4 sweeps"):
        pc.query(MODEL, {"c": torch.tensor([0])}, ["x"], stop=pc.Converged(limit=4, ess=1e9))
    assert not answer.diagnostics.converged and answer.diagnostics.sweeps == 100
    assert "not converged after 100 sweeps" in repr(answer.diagnostics)


def test_what_is_given_comes_back():
    answer = pc.query(
        MODEL, {n: f.random(2, MODEL.generator(0), torch.float64) for n, f in VARIABLES.items()}, ["c", "x"]
    )
    assert answer.probabilities["c"].sum(1).tolist() == [1, 1] and float(answer.std["x"].max()) == 0
    assert answer.diagnostics.converged and pc.query(
        MODEL, {"x": torch.zeros(1, 2)}, stop=pc.Sweeps(2)
    ).samples.keys() == {
        "u",
        "c",
        "k",
    }


def test_same_seed_same_answer():
    def ask(seed):
        return pc.query(MODEL, {"c": torch.tensor([0])}, ["x"], stop=pc.Sweeps(5), seed=seed).samples["x"]

    assert torch.equal(ask(0), ask(0)) and not torch.equal(ask(0), ask(1))


def test_imputation_keeps_what_is_known():
    state = {"x": torch.tensor([[0.5, float("nan")], [1.0, 2.0]]), "c": torch.tensor([2, 0])}
    data = pc.Data(state, {"x": ~state["x"].isnan(), "c": torch.tensor([True, False])})
    for how in ("decide", "sample"):
        filled = pc.impute(MODEL, data, how=how, **ALONE)
        assert filled["x"][0, 0] == 0.5 and filled["x"][1].tolist() == [1, 2] and filled["c"][0] == 2
        assert bool(filled["x"].isfinite().all()) and set(filled) == set(VARIABLES)
    weights, means = posterior(
        {"x": pc.Observed(torch.tensor([0.5, 0.0]), torch.tensor([True, False])), "c": torch.tensor(2)}
    )
    many = data[torch.zeros(CHAINS, dtype=torch.long)]
    assert_mean(pc.impute(MODEL, many, **ALONE)["x"][:, 1], torch.tensordot(weights, means, 1)[1])
    drawn = pc.impute(MODEL, data[torch.zeros(2000, dtype=torch.long)], how="sample", chains=1, stop=pc.Sweeps(1, 40))
    assert_mean(drawn["x"][:, 1], torch.tensordot(weights, means, 1)[1])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (({"y": torch.zeros(1)},), "unknown variable 'y'"),
        (({}, ["y"]), "unknown variable 'y'"),
        (({"x": torch.zeros(2)},), r"'x' must have shape \[batch, 2\], found \[2\]; a single row needs its batch axis"),
        (({"c": torch.tensor([3])},), "'c' has classes 0 to 2, found 3"),
        (({"x": torch.full((1, 2), float("nan"))},), "'x' has NaN"),
        (({"x": pc.Observed(torch.zeros(1, 2), torch.ones(1, 3, dtype=torch.bool))},), "mask of 'x' must have shape"),
        (({"x": torch.zeros(2, 2), "u": torch.zeros(3, 2)},), "groups differ in their number of rows"),
        (({"x": "hello"},), "'x' must be a tensor or nested lists of numbers, found 'hello'"),
        (({"x": None},), "'x' must be a tensor or nested lists of numbers, found None"),
        (({"x": [[1, 2], [3]]},), "'x' must be a tensor or nested lists of numbers"),
        (({"x": torch.zeros(1, 2, dtype=torch.complex64)},), "'x' must be real numbers, found torch.complex64"),
        (([1],), "given must be a dictionary by the names of groups, found list"),
        (({}, 3), "want must be names of groups, found 3"),
        (({}, []), "want is empty: name at least one group"),
    ],
)
def test_bad_questions_are_refused(arguments, message):
    with pytest.raises(pc.InputError, match=message):
        pc.query(MODEL, *arguments)


def test_bad_options_are_refused_also_where_no_chain_runs():
    whole = {name: value[:1] for name, value in pc.sample(MODEL, seed=1).items()}
    given = {name: value for name, value in whole.items() if name != "c"}
    assert pc.query(MODEL, given, ["c"]).diagnostics.sweeps == 0
    for ask in (lambda **options: pc.query(MODEL, given, ["c"], **options), partial(pc.sample, MODEL, whole)):
        with pytest.raises(pc.InputError, match="scan must be one of systematic, random, found 'foo'"):
            ask(scan="foo")
        with pytest.raises(pc.InputError, match="scan='no-repeat' is for chains that never begin anew; tours have sys"):
            ask(scan="no-repeat")
        with pytest.raises(pc.InputError, match=r"engine must be one of auto, .*, found 'fast'"):
            ask(engine="fast")


def test_a_warning_points_to_the_line_that_asked():
    model = two_modes()
    data = pc.Data({"x": torch.tensor([[1.0, 0.0]])}, {"x": torch.tensor([[True, False]])})
    options = {"stop": pc.Sweeps(40), "init": "random", "chains": 16}
    for ask in (partial(pc.query, model, {"x": pc.Observed(data.state["x"], data.mask["x"])}, ["c"]), None):
        with pytest.warns(pc.NotMixedWarning) as caught:
            _ = ask(**options) if ask else pc.impute(model, data, **options)
        assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize("seed", ["a", 1.5, None, True, 2**70])
def test_bad_seeds_are_refused(seed):
    data = pc.Data({"u": torch.zeros(3, 2)})
    hide = lambda _, seed: pc.datasets.hide(data, {"u": 0.5}, seed=seed)  # noqa: E731
    for ask in (pc.query, pc.sample, partial(pc.Learner, data=data), hide):
        with pytest.raises(pc.InputError, match="seed must be a whole number of at most 64 bits, found"):
            ask(MODEL, seed=seed)


def test_values_are_validated_once(monkeypatch):
    calls, validate = [], pc.JointModel.validate
    monkeypatch.setattr(pc.JointModel, "validate", lambda *a, **k: calls.append(1) or validate(*a, **k))
    data = pc.Data({"x": torch.zeros(5, 2)}, {"x": torch.tensor([True, False])})
    pc.impute(MODEL, data, chains=2, stop=pc.Sweeps(1))
    pc.query(MODEL, {"x": torch.zeros(5, 2)}, chains=2, stop=pc.Sweeps(2))
    pc.sample(MODEL, {"x": torch.zeros(5, 2)}, sweeps=1, chunk=2)
    for how in ("decide", "sample"):  # by tours
        pc.impute(MODEL, data, how=how, regeneration=pc.Regeneration(1, 1))
    assert len(calls) == 5


def test_fewer_rows_run_at_a_time_where_they_are_large(monkeypatch):
    """By the largest group, two numbers here."""
    sizes = []
    advance = pc.Chain.advance

    def noted(chain, state, *rest, **options):
        sizes.append(len(state["x"]))
        return advance(chain, state, *rest, **options)

    monkeypatch.setattr(pc.Chain, "advance", noted)
    monkeypatch.setattr(pc.chain, "VALUES", 10)
    assert len(pc.sample(MODEL, rows=12, sweeps=1)["x"]) == 12 and sizes == [5, 5, 2]
    sizes.clear()
    answer = pc.query(MODEL, {"c": torch.zeros(3).long()}, ["x"], chains=2, stop=pc.Sweeps(1, 1))
    assert answer.samples["x"].shape == (3, 2, 2) and sizes == [4, 4, 2, 2]
    monkeypatch.undo()
    families = pc.Real((3, 64, 64), scale="learned"), pc.Binary((1, 28, 28)), pc.Categorical(256, (64, 64))
    for family, rows in zip(families, (2730, 32_768, 256), strict=True):  # as networks read it, if that is much more
        model = pc.JointModel({"x": pc.Conditional(family, Linear(torch.zeros(family.output_shape), {}))})
        assert pc.chain.max_rows(model, 32_768) == rows
    monkeypatch.setattr(pc.chain, "VALUES", 1)
    assert pc.chain.max_rows(model, 32_768) == 1


def test_bad_lengths_are_refused():
    for wrong in ({"chains": 0}, {"rows": 0}, {"chains": 1.5}):
        with pytest.raises(pc.InputError, match="must be a whole number, at least"):
            pc.query(MODEL, {}, **{"stop": pc.Sweeps(3), **wrong})
    with pytest.raises(pc.InputError, match="warmup must be a whole number, at least 0"):
        pc.Sweeps(3, -5)
    with pytest.raises(pc.InputError, match="limit must be a whole number, at least 1"):
        pc.Converged(limit=0)
    for wrong in ({"rows": 0}, {"sweeps": -1}, {"chunk": 0}):
        with pytest.raises(pc.InputError, match="must be a whole number, at least"):
            pc.sample(MODEL, **wrong)
    for never in ({"regeneration": 0}, {"stop": pc.Converged()}):
        with pytest.raises(pc.InputError, match="one chain cannot show whether it has converged"):
            pc.query(MODEL, {}, chains=1, **never)
    with pytest.raises(pc.InputError, match="for impute"):
        pc.impute(MODEL, {"c": torch.tensor([0])})
    for count in (0, -1, "forever", 2.5, True):
        with pytest.raises(pc.InputError, match="sweeps must be a whole number, at least 1"):
            pc.Sweeps(count)
    for stop in (3, "converged", True):
        with pytest.raises(pc.InputError, match=r"stop must be Precise\(error\), Tours.* or Sweeps\(count\), found"):
            pc.query(MODEL, {}, stop=stop)
    with pytest.raises(pc.InputError, match="how must be"):
        pc.impute(MODEL, pc.Data({"c": torch.tensor([0])}), how="guess")


def test_no_warning_when_all_is_well():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pc.query(MODEL, {"c": torch.tensor([0])}, ["u"])


def two_modes():
    """x = (free, +-3) by c = 0, 1, equally probable whatever the first coordinate, by which init is sure of c."""
    variables = {"x": pc.Real(2, scale=0.5), "c": pc.Categorical(2)}

    class Sure(nn.Module):
        def forward(self, others):
            return 9.0 * others["x"][:, 1:] * torch.tensor([[1.0, -1.0]])

    class Modes(nn.Module):
        def forward(self, others):
            return torch.stack([0 * others["c"][:, 0], 3 * (others["c"][:, 0] - others["c"][:, 1])], 1)

    init = pc.initializers.pca(variables, "x", ["c"], rank=1)
    init.means.data[1:] = torch.tensor([[2.0, 3.0], [-2.0, -3.0]])
    init.directions.data.zero_()
    return pc.JointModel(
        {"x": pc.Conditional(variables["x"], Modes(), init), "c": pc.Conditional(variables["c"], Sure())}
    )


def test_where_chains_began_is_said_and_can_be_changed():
    """All chains begin in one of two modes and agree there; from random values they show that they do not mix."""
    model, seen = two_modes(), pc.Observed(torch.tensor([[1.0, 0.0]]), torch.tensor([[True, False]]))
    answer = pc.query(model, {"x": seen}, ["c"], stop=pc.Sweeps(40))
    assert answer.diagnostics.init == "fitted" and "from fitted initial values" in repr(answer.diagnostics)
    assert float(answer.probabilities["c"][0, 0]) > 0.99
    with pytest.warns(pc.NotMixedWarning):
        answer = pc.query(model, {"x": seen}, ["c"], stop=pc.Sweeps(40), init="random", chains=16)
    given = pc.query(model, {"x": seen}, ["c"], stop=pc.Sweeps(40), init={"c": torch.tensor([0])})
    assert given.diagnostics.init == "given" and "from given initial values" in repr(given.diagnostics)
    assert answer.diagnostics.init == "random" and 0.1 < float(answer.probabilities["c"][0, 0]) < 0.9
    with pytest.raises(pc.InputError, match="init must be one of fitted, random, found 'best'"):
        pc.query(model, {"x": seen}, ["c"], init="best")


@pytest.mark.parametrize("device", DEVICES)
def test_queries_run_in_evaluation_mode(device):
    """Noise and dropout are for learning; a model that learns goes on as it was."""
    variables = {"x": pc.Real(2), "c": pc.Categorical(3)}
    networks = {n: pc.networks.mlp(variables, n, hidden=8, noise=1.0) for n in variables}
    model = pc.JointModel({n: pc.Conditional(variables[n], networks[n]) for n in variables}).to(device).train()
    model.conditional("x").eval()
    x = torch.randn(5, 2, device=device)
    first, second = (pc.query(model, {"x": x}, ["c"]).probabilities["c"] for _ in range(2))
    assert torch.equal(first, second) and torch.equal(first, model.eval()("c", {"x": x}).mean)
    model.train()
    model.conditional("x").eval()
    drawn = [pc.sample(model, rows=4, sweeps=8)["x"] for _ in range(2)]
    assert torch.equal(*drawn)
    assert model.training and model.conditional("c").network.training and not model.conditional("x").network.training


def test_nothing_given_in_no_rows():
    model = two_modes()
    with pytest.raises(pc.InputError, match=r"^given must have at least one row"):
        pc.query(model, {"x": torch.zeros(0, 2)}, ["c"])
    with pytest.raises(pc.InputError, match=r"^given must have at least one row"):
        pc.sample(model, {"x": torch.zeros(0, 2)})
    with pytest.raises(pc.InputError, match=r"^given must be a dictionary"):
        pc.query(model, torch.zeros(3, 2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("given", ["x", "c"])
def test_many_rows_are_asked_in_parts(given, device, monkeypatch):
    """The same answers: exactly where the conditional itself is the answer, in law where chains run."""
    variables = {"x": pc.Real(2, scale=0.5), "c": pc.Categorical(3), "z": pc.Binary(2)}
    torch.manual_seed(0)
    reads = {"x": None, "c": ["x"], "z": None}
    networks = {n: pc.networks.mlp(variables, n, reads=reads[n], hidden=8) for n in variables}
    model = pc.JointModel({n: pc.Conditional(variables[n], networks[n]) for n in variables}).to(device)
    known = {"x": torch.randn(50, 2)} if given == "x" else {"c": torch.arange(50) % 3}
    wanted = "c" if given == "x" else "x"
    whole = pc.query(model, known, [wanted], stop=pc.Sweeps(400))
    monkeypatch.setattr(inference, "MAX_ROWS", (16 * 8, 16 * 8))
    parts = pc.query(model, known, [wanted], stop=pc.Sweeps(400))
    assert parts.samples[wanted].shape == whole.samples[wanted].shape == (50, 8, *variables[wanted].event_shape)
    assert parts.diagnostics.r_hat[wanted].shape == (50,) and parts.diagnostics.sweeps == whole.diagnostics.sweeps
    if given == "x":
        torch.testing.assert_close(parts.probabilities["c"], whole.probabilities["c"])  # products of other sizes round
    else:
        torch.testing.assert_close(parts.mean["x"], whole.mean["x"], atol=0.1, rtol=0)


def test_chains_begin_at_the_given_values():
    """Two groups that copy each other stay where they began."""

    class Copy(nn.Module):
        def __init__(self, other):
            super().__init__()
            self.other = other

        def forward(self, others):
            return 80 * (others[self.other] - 0.5)

    groups = {"a": pc.Binary(3), "b": pc.Binary(3)}
    model = pc.JointModel({n: pc.Conditional(groups[n], Copy(other)) for n, other in (("a", "b"), ("b", "a"))})
    init = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
    answer = pc.query(model, rows=2, want=["a"], chains=3, stop=pc.Sweeps(2), init={"a": init, "b": init})
    assert torch.equal(answer.decisions["a"], init) and answer.diagnostics.init == "given"
    assert torch.equal(answer.samples["a"], init.unsqueeze(1).expand(2, 3, 3))
    given = {"a": pc.Observed(1 - init, torch.tensor([True, False, False]))}
    part = pc.query(model, given, ["a"], chains=2, stop=pc.Sweeps(1), init={"b": init})
    assert torch.equal(part.decisions["a"], torch.cat([1 - init[:, :1], init[:, 1:]], 1))  # what is given is given
    with pytest.raises(pc.InputError, match="'a'"):
        pc.query(model, rows=2, init={"a": init[:, :2]})


@pytest.mark.parametrize("ask", ["sample", "query"])
def test_groups_that_init_lacks_are_drawn_given_those_that_it_has(ask):
    """b copies a, and a copies b: a chain that begins at a stays there, though a is redrawn first."""
    variables = {"a": pc.Binary(3), "b": pc.Binary(3)}
    networks = {name: pc.networks.mlp(variables, name, depth=0) for name in variables}
    model = pc.JointModel({name: pc.Conditional(family, networks[name]) for name, family in variables.items()})
    with torch.no_grad():
        for network in networks.values():
            layer = network.layers[-1]
            layer.weight.copy_(200 * torch.eye(3))
            layer.bias.fill_(-100)
    init = torch.tensor([[0.0, 1, 1], [1, 0, 0]])
    if ask == "sample":
        found = pc.sample(model, rows=2, sweeps=2, init={"a": init})
    else:
        found = pc.query(model, rows=2, stop=pc.Sweeps(2), chains=2, init={"a": init}).decisions
    assert torch.equal(found["a"], init) and torch.equal(found["b"], init)


def test_values_to_begin_at_must_have_the_rows_of_the_question():
    with pytest.raises(pc.InputError, match="init has 3 rows, the question has 2"):
        pc.sample(MODEL, rows=2, init={"c": torch.zeros(3).long()})


@pytest.mark.parametrize("bounds", [{"ess": "x"}, {"ess": -1}, {"r_hat": 0.9}, {"ess": float("nan")}])
def test_bounds_of_convergence_are_numbers(bounds):
    with pytest.raises(pc.InputError, match="must be a number, at least"):
        pc.Converged(**bounds)
