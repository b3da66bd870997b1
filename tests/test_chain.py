"""Chains against the exact limiting distribution, with every scan and every kind of clamp."""

import itertools

import pytest
import torch
from helpers import Pairwise, assert_fits, random_tables, state_index, table_model

import paracond as pc
from paracond import exact
from paracond.distributions import Bernoulli, Distribution

CHAINS = 20_000
INCONSISTENT = table_model(random_tables((2, 3, 2), seed=1, strength=1.5), alpha=[0.5, 0.3, 0.2])
CONSISTENT = Pairwise({"u": pc.Binary(3), "c": pc.Categorical(3), "w": pc.Binary((2, 1))}, seed=2).model


def run(model, steps, clamp=None, state=None, seed=0, **options):
    generator = model.generator(seed)
    chain = pc.Chain(model, clamp=clamp, generator=generator, batch=CHAINS, **options)
    first = pc.initializers.initial_state(model, CHAINS, generator)
    first = first if state is None else {**first, **state}
    return chain.run(first, steps)


def counts(finite, state):
    return torch.bincount(state_index(finite, state), minlength=finite.limiting().numel())


def test_random_scan_of_an_inconsistent_model():
    """The limit depends on alpha, so this also tests that groups are chosen by their weights."""
    finite = exact.enumerate_model(INCONSISTENT)
    assert exact.consistency_gap(finite.kernel) > 1e-8
    assert_fits(counts(finite, run(INCONSISTENT, 60, scan="random", per_row=True)), finite.limiting())


def test_laws_before_the_limit():
    """After k steps from a point the law is q_k+1 of section 3."""
    finite = exact.enumerate_model(INCONSISTENT)
    first = torch.zeros(finite.kernel.shape, dtype=torch.float64)
    first[0, 1, 0] = 1
    point = {"a": 0, "b": 1, "c": 0}
    state = {n: torch.full((CHAINS,), v) for n, v in point.items()}
    for steps in (1, 2, 3):
        law = exact.trajectory(finite.kernel, first, steps)[-1]
        assert_fits(counts(finite, run(INCONSISTENT, steps, state=state, per_row=True)), law)


@pytest.mark.parametrize(
    "scan, per_row",
    [("random", True), ("random", False), ("no-repeat", False), ("systematic", False)],
)
def test_every_scan_of_a_consistent_model(scan, per_row):
    finite = exact.enumerate_model(CONSISTENT)
    assert exact.consistency_gap(finite.kernel) < 1e-8
    assert_fits(counts(finite, run(CONSISTENT, 80, scan=scan, per_row=per_row)), finite.limiting())


def test_no_repeat_never_repeats_and_weighs_the_rest_by_alpha():
    model = INCONSISTENT
    chain = pc.Chain(model, scan="no-repeat", generator=model.generator(0))
    names = [chain.scan.next() for _ in range(3000)]
    pairs = list(itertools.pairwise(names))
    assert all(a != b for a, b in pairs)
    after_a = [b for a, b in pairs if a == "a"]
    assert_fits([after_a.count("b"), after_a.count("c")], [0.6, 0.4])


def test_rows_choose_for_themselves_by_alpha():
    model = INCONSISTENT
    rows = pc.Chain(model, per_row=True, batch=2000, generator=model.generator(0)).scan
    first, second = rows.next(), rows.next()
    weights = [model.alpha[name] for name in model.names]
    assert_fits(torch.bincount(second, minlength=3), weights)
    assert_fits(torch.bincount(second[first == 0], minlength=3), weights)  # whatever came before


def test_systematic_goes_round():
    chain = pc.Chain(INCONSISTENT, scan="systematic", generator=INCONSISTENT.generator(0))
    assert [chain.scan.next() for _ in range(5)] == ["a", "b", "c", "a", "b"]


# --- clamping ---------------------------------------------------------------------------------------------------

COORDINATES = torch.tensor([True, False, True])
CLAMPS = {
    "whole group": {"c": torch.tensor(2)},
    "coordinates": {"u": pc.Observed(torch.tensor([1.0, 0.0, 0.0]), COORDINATES)},
    "groups and coordinates": {
        "u": pc.Observed(torch.tensor([0.0, 0.0, 1.0]), COORDINATES),
        "w": torch.tensor([[1.0], [0.0]]),
    },
}


def clamped_state(model, given, rows):
    """The given values (one row, without batch) repeated, and their masks."""
    state, mask = {}, {}
    for name, known in given.items():
        known = known if isinstance(known, pc.Observed) else pc.Observed(known)
        family = model.variables[name]
        state[name] = family.store(known.value, model.dtype).expand(rows, *family.event_shape)
        part = torch.ones(family.event_shape, dtype=torch.bool) if known.mask is None else known.mask
        mask[name] = part.expand(rows, *family.event_shape)
    return state, mask


@pytest.mark.parametrize("kind", CLAMPS)
@pytest.mark.parametrize("scan, per_row", [("random", True), ("systematic", False)])
def test_clamped_chains_draw_from_the_posterior(kind, scan, per_row):
    finite = exact.enumerate_model(CONSISTENT)
    state, mask = clamped_state(CONSISTENT, CLAMPS[kind], CHAINS)
    final = run(CONSISTENT, 60, clamp=mask, state=state, scan=scan, per_row=per_row)
    for name in state:
        assert torch.equal(final[name][mask[name]], state[name][mask[name]])
    assert_fits(counts(finite, final), finite.posterior(CLAMPS[kind]))


def test_clamped_chain_of_an_inconsistent_model_has_its_own_limit():
    """Clamped and unclamped chains then disagree (section 4); ours must follow the clamped kernel exactly."""
    finite = exact.enumerate_model(INCONSISTENT)
    given = {"b": torch.tensor(1)}
    kernel, left = finite.clamped(given)
    law = exact.limiting(kernel)
    posterior = finite.posterior(given)[:, 1:2, :]
    assert float((law - posterior).abs().sum()) > 0.05
    state, mask = clamped_state(INCONSISTENT, given, CHAINS)
    final = run(INCONSISTENT, 60, clamp=mask, state=state, per_row=True)
    assert bool((final["b"] == 1).all()) and left["b"].tolist() == [1]
    assert_fits(torch.bincount(2 * final["a"] + final["c"], minlength=4), law)


@pytest.mark.parametrize("per_row, scan", [(True, "random"), (False, "random"), (False, "systematic")])
def test_another_pattern_in_every_row(per_row, scan):
    """Thirds of the rows have nothing, a group, or coordinates clamped: each third draws from its own posterior."""
    finite = exact.enumerate_model(CONSISTENT)
    patterns = [{}, CLAMPS["whole group"], CLAMPS["groups and coordinates"]]
    first = pc.initializers.initial_state(CONSISTENT, CHAINS, CONSISTENT.generator(5))
    mask = {n: torch.zeros(v.shape, dtype=torch.bool) for n, v in first.items()}
    for k, given in enumerate(patterns):
        rows = torch.arange(CHAINS) % 3 == k
        values, known = clamped_state(CONSISTENT, given, CHAINS)
        for name in values:
            mask[name][rows] = known[name][rows]
            first[name] = torch.where(
                mask[name] & rows.view(-1, *[1] * (values[name].ndim - 1)), values[name], first[name]
            )
    final = run(CONSISTENT, 120, clamp=mask, state=first, per_row=per_row, scan=scan)
    for k, given in enumerate(patterns):
        third = {n: v[torch.arange(CHAINS) % 3 == k] for n, v in final.items()}
        assert_fits(counts(finite, third), finite.posterior(given))


def test_all_clamped_changes_nothing():
    model = CONSISTENT
    state = pc.initializers.initial_state(model, 4, model.generator(0))
    clamp = {n: torch.ones(4, dtype=torch.bool) for n in model.names}
    for per_row in (False, True):
        final = pc.Chain(model, clamp=clamp, per_row=per_row, generator=model.generator(0)).run(state, 5)
        assert all(torch.equal(final[n], state[n]) for n in state)


# --- a family whose coordinates depend on each other ------------------------------------------------------------


class Equal(Distribution):
    """Both coordinates are 1 with probability sigmoid(logit), else both are 0: one score for the two of them."""

    def __init__(self, logits):
        self.one = Bernoulli(logits)

    def scores(self, value):
        return self.one.scores(value[:, 0])

    def sample(self, generator):
        return self.one.sample(generator).unsqueeze(1).expand(-1, 2).clone()

    mean = property(lambda self: self.one.mean.unsqueeze(1).expand(-1, 2))
    variance = property(lambda self: self.one.variance.unsqueeze(1).expand(-1, 2))
    entropy = property(lambda self: self.one.entropy)


class Twins(pc.Binary):
    """Two coordinates that are always equal: clamping one of them says something of the other."""

    clamps_coordinates = False

    def distribution(self, output, **shared):
        return Equal(output[:, 0])


def test_a_family_that_does_not_factorise_learns_and_answers():
    variables = {"a": Twins(2), "b": pc.Binary(2)}
    model = pc.JointModel({n: pc.Conditional(f, pc.networks.mlp(variables, n, hidden=8)) for n, f in variables.items()})
    twins = torch.tensor([[1.0, 1.0], [0.0, 0.0]]).repeat(50, 1)
    learner = pc.Learner(model, pc.Data({"a": twins, "b": twins}), batch_size=2, learning_rate=0.02, average=0.9)
    learned = learner.fit(400)
    assert model("a", {"a": twins, "b": twins}).log_prob(twins).shape == (100,)
    answer = pc.query(learned, {"a": twins[:2]}, ["b"], stop=pc.Sweeps(5))
    assert answer.decisions["b"].tolist() == twins[:2].tolist()


def test_single_coordinates_of_dependent_ones_are_refused():
    model = pc.JointModel({n: pc.Conditional(Twins(2), pc.networks.MLP({o: 2}, (2,))) for n, o in ("ab", "ba")})
    part = torch.tensor([[True, False], [True, True]])
    with pytest.raises(pc.InputError, match="'a': coordinates of a Twins are not independent"):
        pc.Chain(model, clamp={"a": part}, generator=model.generator(0))
    with pytest.raises(pc.InputError, match="coordinates of a Twins"):
        pc.query(model, {"a": pc.Observed(torch.zeros(2, 2), part)})
    with pytest.raises(pc.InputError, match="coordinates of a Twins"):  # also where no chain would run
        pc.query(model, {"a": pc.Observed(torch.zeros(2, 2), part), "b": torch.zeros(2, 2)}, ["a"])
    with pytest.raises(pc.InputError, match="coordinates of a Twins"):
        pc.Learner(model, pc.Data({"a": torch.zeros(2, 2)}, {"a": part}))
    pc.Chain(model, clamp={"a": torch.tensor([True, False, True])}, generator=model.generator(0))  # whole rows are fine


# --- repeatability and errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scan, per_row", [("random", True), ("no-repeat", False), ("systematic", False)])
def test_same_seed_same_result(scan, per_row):
    def final(seed):
        chain = pc.Chain(CONSISTENT, scan=scan, per_row=per_row, batch=50, generator=CONSISTENT.generator(seed))
        return chain.run(pc.initializers.initial_state(CONSISTENT, 50, CONSISTENT.generator(1)), 20)

    one, two, other = final(0), final(0), final(1)
    assert all(torch.equal(one[n], two[n]) for n in one)
    assert any(not torch.equal(one[n], other[n]) for n in one)


def test_a_step_leaves_the_given_state_alone():
    model = CONSISTENT
    state = pc.initializers.initial_state(model, 10, model.generator(0))
    copy = {n: v.clone() for n, v in state.items()}
    for per_row in (False, True):
        pc.Chain(model, per_row=per_row, batch=10, generator=model.generator(0)).step(state)
        assert all(torch.equal(state[n], copy[n]) for n in state)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"scan": "alphabetic"}, "scan must be one of random, no-repeat, systematic"),
        ({"scan": "systematic", "per_row": True, "batch": 4}, 'scan must be "random" where rows choose for themselves'),
        ({"per_row": True}, "needs batch="),
        ({"clamp": {"v": torch.tensor(True)}}, "unknown variable 'v'"),
        ({"clamp": {"u": torch.ones(4, 2, dtype=torch.bool)}}, "mask of 'u' must have shape"),
        ({"clamp": {"u": torch.ones(4, 3, dtype=torch.bool)}, "batch": 5}, "mask of 'u' must have shape"),
    ],
)
def test_bad_chains_are_refused(options, message):
    with pytest.raises(pc.InputError, match=message):
        pc.Chain(CONSISTENT, generator=CONSISTENT.generator(0), **options)


def test_bad_states_are_refused():
    model = CONSISTENT
    state = pc.initializers.initial_state(model, 4, model.generator(0))
    chain = pc.Chain(model, clamp={"c": torch.tensor([True, False, True])}, generator=model.generator(0))
    with pytest.raises(pc.InputError, match="clamp of 'c' has 3 rows, the state has 4"):
        chain.run(state, 1)
    with pytest.raises(pc.InputError, match="the state lacks w"):
        chain.run({n: state[n] for n in ("u", "c")}, 1)


def test_a_chain_advances_a_valid_state_as_it_runs_one():
    """Without a look at the state: `advance` does not refuse what `run` would."""
    model = CONSISTENT
    state = pc.initializers.initial_state(model, 4, model.generator(0))
    run, advanced = (
        getattr(pc.Chain(model, generator=model.generator(1)), way)(state, 20) for way in ("run", "advance")
    )
    assert all(torch.equal(run[n], advanced[n]) for n in state)
    wrong = {**state, "c": torch.full((4,), 9)}
    with pytest.raises(pc.InputError, match="'c' has classes 0 to 2"):
        pc.Chain(model, generator=model.generator(1)).run(wrong, 0)
    assert pc.Chain(model, generator=model.generator(1)).advance(wrong, 0) is wrong


def test_states_are_converted_and_clamps_spread():
    model = CONSISTENT
    state = {n: v.double().numpy() for n, v in pc.initializers.initial_state(model, 4, model.generator(0)).items()}
    clamp = {"u": torch.tensor([True, False, True]), "c": torch.tensor([True, False, False, True])}
    chain = pc.Chain(model, clamp=clamp, batch=4, per_row=True, generator=model.generator(0))
    final = chain.run(state, 20)
    assert torch.equal(final["u"][:, 0], torch.as_tensor(state["u"][:, 0]))
    assert final["c"].dtype == torch.long
    shared = pc.Chain(model, clamp={"u": torch.tensor([True, False, True])}, generator=model.generator(0))
    assert torch.equal(shared.run(state, 20)["u"][:, 2], torch.as_tensor(state["u"][:, 2]))
