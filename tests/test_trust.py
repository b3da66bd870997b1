"""Nothing is silently wrong: numbers that are none are refused, and answers touch nothing that others use."""

import copy
import math
import threading

import numpy as np
import pytest
import torch
from helpers import random_tables, table_model
from torch import nn

import paracond as pc
from paracond.runtime.eval_copy import eval_copy
from paracond.theory.kernels import JointKernel

GROUPS = {"x": pc.Real(3, scale=0.5), "b": pc.Binary(4), "c": pc.Categorical(3)}


def mixed(noise=0.0, seed=0):
    torch.manual_seed(seed)
    nets = {name: pc.networks.mlp(GROUPS, name, hidden=8, noise=noise) for name in GROUPS}
    return pc.JointModel({name: pc.Conditional(family, nets[name]) for name, family in GROUPS.items()})


GIVEN = {"x": torch.zeros(5, 3)}
ASKS = {
    "query": lambda model: pc.query(model, GIVEN, stop=pc.Tours(4), chains=2),
    "query, endless": lambda model: pc.query(model, GIVEN, stop=pc.Sweeps(4)),
    "query, directly": lambda model: pc.query(model, GIVEN | {"b": torch.ones(5, 4)}, stop=pc.Tours(4), chains=2),
    "sample": lambda model: pc.sample(model, rows=5),
    "sample, sweeps": lambda model: pc.sample(model, rows=5, sweeps=2),
    "impute": lambda model: pc.impute(model, pc.Data(GIVEN), how="sample"),
    "log_likelihood": lambda model: pc.log_likelihood(model, pc.Data(GIVEN), draws=64),
    "anomaly_score": lambda model: pc.anomaly_score(model, pc.Data(GIVEN)),
    "choose": lambda model: pc.choose_regeneration(
        model, pc.Data({"x": torch.arange(300.0).sin().view(100, 3)}), rows=100
    ),
    "latent usage": lambda model: pc.diagnostics.latent_usage(model, pc.Data(GIVEN), "b"),
    "consistency": lambda model: pc.diagnostics.consistency(model, chains=4, warmup=2, steps=2),
    "mixing": lambda model: pc.diagnostics.mixing(model, chains=4, sweeps=4),
    "edited": lambda model: pc.edited(
        model, {"x": torch.zeros(2, 3), "b": torch.zeros(2, 4), "c": torch.zeros(2).long()}, "b", torch.ones(2, 4)
    ),
}


@pytest.mark.filterwarnings("ignore::paracond.NotMixedWarning")
@pytest.mark.filterwarnings("ignore::paracond.RoughWarning")
@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_refused(ask, number):
    model = mixed()
    ASKS[ask](model)
    with torch.no_grad():
        next(model.conditional("b").parameters())[0, 0] = number
    with pytest.raises(pc.InputError, match=r"NaN or infinite weights, network\.layers\.0\.weight of 'b': load"):
        ASKS[ask](model)


def test_an_enumeration_with_weights_that_are_no_numbers_is_refused():
    model = table_model(random_tables((2, 3), 0))
    with torch.no_grad():
        next(model.conditional("a").parameters()).fill_(math.nan)
    with pytest.raises(pc.InputError, match="NaN or infinite weights"):
        pc.exact.enumerate_model(model)


class Overflowing(nn.Module):
    """Finite weights, and outputs that are not finite where the other group is large."""

    def __init__(self, other, shape):
        super().__init__()
        self.other, self.shape, self.weight = other, shape, nn.Parameter(torch.tensor(1e30))

    def forward(self, others):
        big = (self.weight * others[self.other].reshape(len(others[self.other]), -1).sum(1)) * 1e20
        return (big - big).view(-1, *[1] * len(self.shape)).expand(-1, *self.shape)


@pytest.mark.parametrize("family", [pc.Binary(2), pc.Categorical(3), pc.Real(2, scale=1.0), pc.Real(2)], ids=str)
@pytest.mark.parametrize("options", [{}, {"sweeps": 3}])
def test_draws_of_laws_that_are_not_finite_are_refused(family, options):
    """A NaN probability would give zeros, and a NaN logit the first class, without a word."""
    groups = {"a": family, "x": pc.Real((), scale=1.0)}
    networks = {"a": Overflowing("x", family.output_shape), "x": pc.networks.mlp(groups, "x", hidden=4)}
    model = pc.JointModel({name: pc.Conditional(groups[name], networks[name]) for name in groups})
    given = {"x": torch.tensor([0.0, 3.0, 0.0, 1e10])}
    pc.sample(model, {"x": torch.zeros(4)}, **options)
    with pytest.raises(pc.InputError, match=r"p\(a \| rest\) is NaN or infinite in 2 of 4 rows \(1, 3\)"):
        pc.sample(model, given, **options)
    with pytest.raises(pc.InputError, match=r"p\(a \| rest\) is NaN or infinite in 2 of 4 rows \(1, 3\)"):
        pc.query(model, given, stop=pc.Sweeps(3) if options else pc.Tours(3), chains=2)


def test_a_state_of_a_chain_that_is_not_finite_is_refused():
    groups = {"a": pc.Binary(2), "x": pc.Real((), scale=1.0)}
    networks = {"a": Overflowing("x", (2,)), "x": pc.networks.mlp(groups, "x", hidden=4)}
    model = pc.JointModel({name: pc.Conditional(groups[name], networks[name]) for name in groups})
    state = {"a": torch.zeros(3, 2), "x": torch.tensor([0.0, 1e10, 0.0])}
    clamp = {"x": torch.ones(3, dtype=torch.bool)}
    for options in ({}, {"per_row": True, "batch": 3}):
        chain = pc.Chain(model, generator=model.generator(0), clamp=clamp, **options)
        with pytest.raises(pc.InputError, match=r"p\(a \| rest\) is NaN or infinite in 1 of 3 rows \(1\)"):
            chain.run(state, 4)


# --- networks that return what they may not ---------------------------------------------------------------------------


class Returning(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change, self.weight = change, nn.Parameter(torch.zeros(()))

    def forward(self, others):
        rows = len(next(iter(others.values())))
        return self.change(self.weight + torch.zeros(rows, 4))


@pytest.mark.parametrize(
    "change, found",
    [
        (lambda output: output[:4], r"found float32 \[4, 4\]"),
        (lambda output: output[:1], r"found float32 \[1, 4\]"),
        (lambda output: torch.cat([output, output]), r"found float32 \[2000, 4\]"),
        (lambda output: output[:, :3], r"found float32 \[1000, 3\]"),
        (lambda output: output[0], r"found float32 \[4\]"),
        (lambda output: output.long(), r"found int64 \[1000, 4\]"),
        (lambda output: output.detach().numpy(), "found ndarray"),
        (lambda output: (output, output), "found tuple"),
        (lambda output: None, "found NoneType"),
    ],
)
def test_what_a_network_returns_is_checked(change, found):
    groups = {"b": pc.Binary(4), "c": pc.Categorical(3)}
    networks = {"b": Returning(change), "c": pc.networks.mlp(groups, "c", hidden=4)}
    model = pc.JointModel({name: pc.Conditional(groups[name], networks[name]) for name in groups})
    with pytest.raises(pc.InputError, match=r"Returning must return \[\d+, 4\] for Binary\(shape=4\), found"):
        pc.sample(model, rows=1000)
    state = {"b": torch.zeros(1000, 4), "c": torch.zeros(1000).long()}
    with pytest.raises(pc.InputError, match=r"Returning must return \[1000, 4\] for Binary\(shape=4\), " + found):
        model("b", state)


def test_numbers_of_another_precision_become_those_of_the_model():
    groups = {"b": pc.Binary(4), "c": pc.Categorical(3)}
    networks = {"b": Returning(lambda output: output.double()), "c": pc.networks.mlp(groups, "c", hidden=4)}
    model = pc.JointModel({name: pc.Conditional(groups[name], networks[name]) for name in groups})
    assert pc.sample(model, rows=3)["b"].dtype == torch.float32


def test_a_rule_that_returns_other_rows_is_refused():
    rule = pc.compose(
        {"m": mixed()},
        groups={"new": pc.Binary(2)},
        rules={"new": lambda law, others: pc.Binary(2).distribution(torch.zeros(1, 2))},
    )
    with pytest.raises(pc.InputError, match=r"a draw has shape \[1, 2\], expected \d+ rows"):
        pc.sample(rule, rows=7)
    with pytest.raises(pc.InputError, match=r"a draw of Bernoulli has shape \[1, 2\], expected \[7, 2\]"):
        pc.sample(rule, rows=7, sweeps=1)


# --- evaluation mode without a change of the model --------------------------------------------------------------------


def modes(model):
    return [module.training for module in model.modules()]


@pytest.mark.filterwarnings("ignore::paracond.NotMixedWarning")
@pytest.mark.filterwarnings("ignore::paracond.RoughWarning")
@pytest.mark.parametrize("ask", ASKS)
def test_questions_read_evaluation_mode_and_change_nothing(ask):
    """The noise of training would change every answer."""
    trained, plain = mixed(noise=3.0).train(), mixed(noise=0.0)
    trained.conditional("b").eval()
    before, weights = modes(trained), [p.detach().clone() for p in trained.parameters()]
    torch.manual_seed(1)
    state = torch.get_rng_state()
    found = ASKS[ask](trained)
    assert modes(trained) == before
    assert all(torch.equal(a, b) for a, b in zip(weights, trained.parameters(), strict=True))
    assert torch.equal(state, torch.get_rng_state()), "questions draw from no source of others"
    assert same(found, ASKS[ask](plain))


def same(one, two):
    """Whether two answers are the same, bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    return same(vars(one), vars(two)) if hasattr(one, "__dict__") else one == two


def test_enumeration_reads_evaluation_mode():
    model = table_model(random_tables((2, 3), 0))
    model.conditional("a").network = nn.Sequential(Last(model.conditional("a").network), nn.Dropout(0.5))
    one, two = (pc.exact.enumerate_model(model.train(mode)).limiting() for mode in (True, False))
    assert torch.equal(one, two)


class Last(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, others):
        return self.inner(others)


def test_a_chain_reads_evaluation_mode_and_follows_the_learner():
    trained, plain = mixed(noise=3.0).train(), mixed(noise=0.0)
    first = pc.initializers.initial_state(plain, 4, plain.generator(0))
    chains = [pc.Chain(model, generator=model.generator(0)) for model in (trained, plain)]
    for _ in range(2):
        one, two = (chain.run(first, 10) for chain in chains)
        assert same(one, two)
        with torch.no_grad():
            for model in (trained, plain):
                for parameter in model.parameters():
                    parameter.add_(0.1)


def test_the_copy_shares_numbers_and_nothing_else():
    model = pc.JointModel(
        {
            "x": pc.Conditional(pc.Real((1, 8, 8), scale=1.0), Pictures()),
            "c": pc.Conditional(pc.Categorical(3), Pictures()),
        }
    )
    shared = model.conditional("x").network.inner
    model.conditional("c").network.inner = shared  # one module in two places
    copied = eval_copy(model.train())
    pairs = list(
        zip(model.state_dict(keep_vars=True).values(), copied.state_dict(keep_vars=True).values(), strict=True)
    )
    assert pairs and all(one is two for one, two in pairs)
    assert not {id(m) for m in model.modules()} & {id(m) for m in copied.modules()}
    assert copied.conditional("x").network.inner is copied.conditional("c").network.inner
    assert copied.conditional("x").network.act.__self__ is copied.conditional("x").network
    copied.conditional("x").network.seen.append(1)
    handle = copied.conditional("x").network.register_forward_hook(lambda *_: None)
    copied.conditional("c").network.scale = None
    assert model.conditional("x").network.seen == []
    assert not model.conditional("x").network._forward_hooks
    assert model.conditional("c").network.scale is not None
    handle.remove()
    assert all(modes(model)) and not any(modes(copied))


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Conv2d(1, 2, 3), nn.Parameter(torch.ones(()))
        self.act, self.seen = self.plus, []

    def plus(self, value):
        return value + self.training


def test_compiled_networks_are_asked_as_they_are_written():
    model, plain = mixed(noise=3.0).train(), mixed()
    for name in model.names:
        model.conditional(name).network._compiled_call_impl = None  # as torch.compile leaves it, without its minute
        model.conditional(name).network._compiled_call_impl = lambda *_: pytest.fail("compiled for training")
    assert same(pc.sample(model, rows=3), pc.sample(plain, rows=3))


def test_eight_threads_beside_a_learner_give_the_bits_of_one():
    """The learner trains the model that is asked; its rate is zero, so that the answers have something to agree on."""
    model = mixed(noise=1.0)
    data = pc.Data({"x": torch.randn(200, 3), "b": (torch.rand(200, 4) < 0.5).float(), "c": torch.arange(200) % 3})

    def learner(asked):
        torch.manual_seed(5)
        return pc.Learner(asked, data, batch_size=64, learning_rate=0.0, seed=3)

    alone, losses = learner(copy.deepcopy(model)), []
    expected = [float(info.loss) for info in alone.run(120)]
    calm = ask_all(mixed(), 0)
    beside, found, stopped = learner(model), {}, threading.Event()

    def ask(number):
        while not stopped.is_set() or number not in found:
            found.setdefault(number, []).append(ask_all(model, number % 2))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    losses = [float(info.loss) for info in beside.run(120)]
    stopped.set()
    for thread in threads:
        thread.join()
    other = ask_all(mixed(), 1)
    assert all(same(each, other if number % 2 else calm) for number, answers in found.items() for each in answers)
    assert len(found) == 8
    assert losses == expected, "learning has its noise, whoever asks"
    assert all(modes(model))


def ask_all(model, seed):
    answer = pc.query(model, GIVEN, stop=pc.Tours(8), chains=2, seed=seed)
    return {"mean": answer.mean, "samples": answer.samples, "drawn": pc.sample(model, GIVEN, seed=seed)}


# --- values outside the family ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.5, 3.0, -1.0, math.nan])
def test_edits_take_values_of_the_family_alone(value):
    model = mixed()
    state = pc.sample(model, rows=2)
    change = pc.Observed(torch.full((2, 4), value), torch.tensor([True, False, False, False]))
    for sweeps in (0, 3):
        with pytest.raises(pc.InputError, match="'b'"):
            pc.edited(model, state, "b", change, sweeps=sweeps)
    with pytest.raises(pc.InputError, match=r"change.mask must be boolean, found torch.int64"):
        pc.edited(model, state, "b", pc.Observed(torch.ones(2, 4), torch.ones(4).long()))
    assert bool((pc.edited(model, state, "b", pc.Observed(torch.ones(1, 4)), sweeps=0)["b"] == 1).all())


def test_exact_answers_of_questions_that_are_none_are_refused():
    finite = pc.exact.enumerate_model(table_model(random_tables((2, 3), 0)))
    with pytest.raises(pc.InputError, match="unknown variable 'typo'"):
        finite.posterior({"typo": torch.tensor(0)})
    with pytest.raises(pc.InputError, match="'a' has no value that agrees with what is given, 7"):
        finite.posterior({"a": torch.tensor(7)})


class Roundabout(nn.Module):
    """Reaches its dropout by another way than as a submodule."""

    def __init__(self, way):
        super().__init__()
        self.dropout, self.linear = nn.Dropout(0.5), nn.Linear(3, 4)
        steps = [self.dropout, self.linear]
        self.run = {
            "list": steps,
            "tuple": tuple(steps),
            "methods": [self.drop, self.linear.forward],
            "nested": ({"steps": steps},),
        }[way]
        if way == "methods":
            self.linear.register_forward_pre_hook(self.hook)

    def drop(self, value):
        return self.dropout(value)

    def hook(self, module, given):
        return (self.dropout(given[0]),)

    def forward(self, others):
        value, steps = others["x"], self.run
        for step in steps[0]["steps"] if isinstance(steps[0], dict) else steps:
            value = step(value)
        return value


@pytest.mark.parametrize("way", ["list", "tuple", "methods", "nested"])
def test_whatever_a_network_holds_is_asked_in_evaluation_mode(way):
    groups = {"x": pc.Real(3, scale=0.5), "b": pc.Binary(4)}
    networks = {"b": Roundabout(way), "x": pc.networks.mlp(groups, "x", hidden=4)}
    model = pc.JointModel({name: pc.Conditional(groups[name], networks[name]) for name in groups}).train()
    asked = [pc.query(model, {"x": torch.ones(2, 3)}, ["b"]).probabilities["b"] for _ in range(6)]
    assert all(torch.equal(asked[0], each) for each in asked[1:])
    assert torch.equal(asked[0], pc.query(model.eval(), {"x": torch.ones(2, 3)}, ["b"]).probabilities["b"])


def test_compiled_networks_answer():
    groups = {"x": pc.Real(3, scale=0.5), "b": pc.Binary(4)}
    torch.manual_seed(0)
    plain = {name: pc.networks.mlp(groups, name, hidden=4) for name in groups}
    compiled = plain | {"b": torch.compile(plain["b"], backend="eager")}
    answers = []
    for networks in (plain, compiled):
        model = pc.JointModel({name: pc.Conditional(groups[name], networks[name]) for name in groups})
        answers.append(pc.query(model, {"x": torch.ones(2, 3)}, ["b"]).probabilities["b"])
    assert torch.equal(*answers)


def test_a_chain_goes_on_after_a_run_that_was_refused():
    groups = {"a": pc.Binary(2), "x": pc.Real((), scale=1.0)}
    networks = {"a": Overflowing("x", (2,)), "x": pc.networks.mlp(groups, "x", hidden=4)}
    model = pc.JointModel({name: pc.Conditional(groups[name], networks[name]) for name in groups})
    chain = pc.Chain(model, generator=model.generator(0), clamp={"x": torch.ones(2, dtype=torch.bool)})
    with pytest.raises(pc.InputError, match="is NaN or infinite in 1 of 2 rows"):
        chain.run({"a": torch.zeros(2, 2), "x": torch.tensor([0.0, 1e10])}, 4)
    assert bool(chain.run({"a": torch.zeros(2, 2), "x": torch.zeros(2)}, 4)["a"].isfinite().all())


MASKED = np.ma.array([[0.0, 999.0, 0.0]] * 2, mask=[[0, 1, 0]] * 2)


@pytest.mark.parametrize(
    "use",
    [
        lambda model, state: pc.Chain(model, generator=model.generator(0)).run(state, 0),
        lambda model, state: pc.edited(model, state, "b", torch.ones(2, 4), sweeps=0),
        lambda model, state: pc.diagnostics.consistency(model, state=state, chains=2, warmup=0, steps=1),
        lambda model, state: pc.sample(model, rows=2, init={"x": state["x"]}),
        lambda model, state: JointKernel(model).validate(state),
    ],
)
def test_masked_values_of_whole_states_are_refused(use):
    model = mixed()
    state = pc.sample(model, rows=2)
    use(model, state)
    with pytest.raises(pc.InputError, match="'x' has missing values"):
        use(model, state | {"x": MASKED})


def test_data_are_a_question():
    model = mixed()
    data = pc.Data.from_nan({"x": [[0.0, math.nan, 0.0]]})
    known = pc.Observed(torch.zeros(1, 3), torch.tensor([True, False, True]))
    assert same(pc.sample(model, data), pc.sample(model, {"x": known}))
