"""Joint models: names, weights, what is valid, saving and loading."""

import copy
import json
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from helpers import assert_fits, assert_mean
from torch import nn

import paracond as pc
from paracond import model as joint
from paracond import serialization as storage
from paracond.initializers.pca import _distinct

VARIABLES = {"x": pc.Real(3, scale="learned"), "c": pc.Categorical(4), "z": pc.Binary((2, 2)), "r": pc.Real(())}


def make(variables=VARIABLES, **options):
    return pc.JointModel(
        {n: pc.Conditional(f, pc.networks.mlp(variables, n, hidden=8)) for n, f in variables.items()}, **options
    )


def test_a_conditional_reads_all_others_and_never_itself():
    model = make()
    state = pc.initializers.initial_state(model, 6, model.generator(0))
    for name in model.names:
        before = model(name, state).mean
        changed = {**state, name: VARIABLES[name].random(6, model.generator(9), torch.float32)}
        assert torch.equal(model(name, changed).mean, before)
        for other in set(model.names) - {name}:
            moved = {**state, other: VARIABLES[other].random(6, model.generator(9), torch.float32)}
            assert not torch.equal(model(name, moved).mean, before)


def with_init(seed=0):
    """x has an initializer that reads c."""
    torch.manual_seed(seed)
    variables = {"x": pc.Real(3, scale=0.5), "c": pc.Categorical(2), "z": pc.Binary(2)}
    networks = {n: pc.networks.mlp(variables, n, hidden=8) for n in variables}
    init = pc.initializers.pca(variables, "x", ["c"], rank=2)
    for parameter in init.parameters():
        parameter.data = torch.randn_like(parameter) / 2
    init.log_sigma.data.fill_(-0.05)
    inits = {"x": init}
    return pc.JointModel({n: pc.Conditional(f, networks[n], inits.get(n)) for n, f in variables.items()})


def gaussians(init):
    """Means given each class, and the covariance, of an initializer that reads c."""
    covariance = init.directions.T @ init.directions + torch.exp(20 * init.log_sigma) * torch.eye(3)
    return (init.means[0] + init.means[1:]).detach(), covariance.detach()


@pytest.mark.parametrize("given", [True, False])
def test_chains_begin_at_an_initializer(given):
    """x ~ N(mu_c, A A^T + sigma^2 I), then what is not known from its conditional: c given x and z, z given both."""
    model, rows = with_init().double(), 40_000
    c = torch.arange(rows) % 2
    known, mask = model.validate({"c": c} if given else {}, rows=rows)
    state = pc.initializers.initial_state(model, rows, model.generator(1), known, mask)
    p = model("z", state).mean
    assert_mean(((state["z"] - p) * state["x"][:, :1]).detach(), 0.0)
    assert_mean((state["z"] - p).detach(), 0.0)
    assert given == torch.equal(state["c"], c)
    if given:
        means, covariance = gaussians(model.conditional("x").init)
        for k in range(2):
            x = (state["x"][c == k] - means[k]).detach()
            assert_mean(x, 0.0)
            assert_mean(x[:, :, None] * x[:, None, :] - covariance, 0.0)


def test_an_initializer_leaves_what_is_known():
    model = with_init()
    x, seen = torch.randn(5, 3), torch.tensor([True, False, False]).expand(5, 3)
    known, mask = model.validate({"x": x}, {"x": seen})
    state = pc.initializers.initial_state(model, 5, model.generator(0), known, mask)
    assert torch.equal(state["x"][:, 0], x[:, 0]) and not bool((state["x"][:, 1:] == x[:, 1:]).any())


SEEN = torch.tensor([[True, False, True], [False, True, False]])


@pytest.mark.parametrize("seen", [SEEN[:1], SEEN])
def test_an_initializer_is_given_what_is_known(seen):
    """The conditional of a Gaussian; with one pattern for all rows and with several."""
    model, rows = with_init().double(), 40_000
    x, c = torch.tensor([0.3, -0.2, 0.7]).double().expand(rows, 3), torch.arange(rows) // 2 % 2
    known, mask = model.validate({"x": x, "c": c}, {"x": seen.repeat(rows // len(seen), 1)})
    state = pc.initializers.initial_state(model, rows, model.generator(3), known, mask)
    means, covariance = gaussians(model.conditional("x").init)
    for i, pattern in enumerate(seen):
        for k in range(2):
            drawn = state["x"][i :: len(seen)][c[i :: len(seen)] == k]
            gain = covariance[~pattern][:, pattern] @ covariance[pattern][:, pattern].inverse()
            mean = means[k][~pattern] + gain @ (x[0] - means[k])[pattern]
            left = covariance[~pattern][:, ~pattern] - gain @ covariance[pattern][:, ~pattern]
            gap = drawn[:, ~pattern] - mean
            assert torch.equal(drawn[:, pattern], x[: len(drawn), pattern])
            assert_mean(gap, 0.0)
            assert_mean(gap[:, :, None] * gap[:, None, :] - left, 0.0)


@pytest.mark.parametrize("seen", [SEEN[:1], SEEN, torch.ones(1, 3, dtype=torch.bool)])
def test_a_missing_class_begins_where_the_known_part_is_likely(seen):
    """p_0(c | x_K) by Bayes, with equal priors."""
    model, rows = with_init().double(), 40_000
    x = torch.tensor([0.3, -0.2, 0.7]).double().expand(rows, 3)
    state = {"x": x.clone(), "c": torch.zeros(rows, dtype=torch.long), "z": torch.zeros(rows, 2).double()}
    mask = {"x": seen.repeat(rows // len(seen), 1)}
    pc.initializers.draw_groups(model, state, mask, ["x", "c", "z"], model.generator(3))
    means, covariance = gaussians(model.conditional("x").init)
    for i, pattern in enumerate(seen):
        part = covariance[pattern][:, pattern]
        laws = [torch.distributions.MultivariateNormal(mean[pattern], part) for mean in means]
        posterior = torch.stack([law.log_prob(x[0, pattern]) for law in laws]).softmax(0)
        assert_fits(torch.bincount(state["c"][i :: len(seen)], minlength=2), posterior)


def in_turn(seed=0):
    """g has an initializer, and x one that reads it; all are Gaussian together."""
    torch.manual_seed(seed)
    variables = {"x": pc.Real(3, scale=0.5), "g": pc.Real(2, scale=0.5), "z": pc.Binary(2)}
    networks = {n: pc.networks.mlp(variables, n, hidden=8) for n in variables}
    inits = {
        "x": pc.initializers.pca(variables, "x", ["g"], rank=2),
        "g": pc.initializers.pca(variables, "g", [], rank=1),
    }
    for init in inits.values():
        for parameter in init.parameters():
            parameter.data = torch.randn_like(parameter) / 2
        init.log_sigma.data.fill_(-0.05)
    return pc.JointModel({n: pc.Conditional(f, networks[n], inits.get(n)) for n, f in variables.items()}).double()


def gaussian_in_turn(model):
    """The mean and the covariance of (x, g) at their initializers."""
    x, g = (model.conditional(name).init for name in "xg")
    with torch.no_grad():
        spread = g.directions.T @ g.directions + torch.exp(20 * g.log_sigma) * torch.eye(2)
        slopes = x.means[1:]
        within = x.directions.T @ x.directions + torch.exp(20 * x.log_sigma) * torch.eye(3)
        covariance = torch.cat(
            [
                torch.cat([slopes.T @ spread @ slopes + within, slopes.T @ spread], 1),
                torch.cat([spread @ slopes, spread], 1),
            ]
        )
        return torch.cat([x.means[0] + g.means[0] @ slopes, g.means[0]]), covariance


@pytest.mark.parametrize("prefix", ["", "one."])
@pytest.mark.parametrize("own", [[False, False], [True, False]])
@pytest.mark.parametrize("seen", [SEEN[:1], SEEN])
def test_what_an_initializer_reads_is_drawn_given_what_is_known_of_both(seen, own, prefix):
    """(g, x) begin at their joint Gaussian given x_K and g_K (which is known but for a sigma of SMALLEST); composed
    models too."""
    model, rows = in_turn(), 40_000
    mean, covariance = gaussian_in_turn(model)
    covariance[[3, 4], [3, 4]] += 0.02**2 * torch.tensor(own).double()
    model = pc.compose({"one": model}) if prefix else model
    x, g = (torch.tensor(v).double().expand(rows, len(v)) for v in ([0.3, -0.2, 0.7], [0.4, -0.1]))
    values = {f"{prefix}x": x, f"{prefix}g": g}
    patterns = {f"{prefix}x": seen.repeat(rows // len(seen), 1), f"{prefix}g": torch.tensor(own).expand(rows, 2)}
    state = pc.initializers.initial_state(model, rows, model.generator(3), *model.validate(values, patterns))
    drawn = torch.cat([state[f"{prefix}x"], state[f"{prefix}g"]], 1)
    for i, pattern in enumerate(seen):
        known = torch.cat([pattern, torch.tensor(own)])
        free = ~known
        gain = covariance[free][:, known] @ covariance[known][:, known].inverse()
        centre = mean[free] + gain @ (torch.cat([x[0], g[0]]) - mean)[known]
        left = covariance[free][:, free] - gain @ covariance[known][:, free]
        gap = drawn[i :: len(seen)][:, free] - centre
        if any(own):  # x is drawn given g as it is given, which was only nearly known: look at g alone
            gap, left = gap[:, -1:], left[-1:, -1:]
        assert_mean(gap, 0.0)
        assert_mean(gap[:, :, None] * gap[:, None, :] - left, 0.0)
        assert torch.equal(drawn[i :: len(seen)][:, known], torch.cat([x, g], 1)[: rows // len(seen), known])


def two_inits():
    """x and y both have an initializer that reads c: x knows it for sure, y a little."""
    variables = {"x": pc.Real(2, scale=0.5), "y": pc.Real(2, scale=0.5), "c": pc.Categorical(3), "z": pc.Binary(2)}
    networks = {n: pc.networks.mlp(variables, n, hidden=8) for n in variables}
    inits = {n: pc.initializers.pca(variables, n, ["c"], rank=1) for n in "xy"}
    for name, size in (("x", 2.0), ("y", 0.1)):
        inits[name].means.data[1:] = size * torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        inits[name].directions.data.zero_()
    return pc.JointModel({n: pc.Conditional(f, networks[n], inits.get(n)) for n, f in variables.items()})


def test_all_initializers_that_read_a_class_are_evidence_for_it():
    """x for sure, y a little: the class is likely by their product, also where y is not known, and it is kept."""
    model, rows = two_inits(), 3000
    x, y = torch.tensor([2.0, 0.0]).expand(rows, 2), torch.tensor([0.0, 0.1]).expand(rows, 2)
    known, mask = model.validate({"x": x, "y": y}, {"y": torch.arange(rows) % 2 == 0})
    state = pc.initializers.initial_state(model, rows, model.generator(0), known, mask)
    assert state["c"].unique().tolist() == [1]  # c is not redrawn by its own, unlearned network
    known, mask = model.validate({"y": y})
    found = pc.initializers.initial_state(model, rows, model.generator(0), known, mask)["c"]
    gaps = (y[0] - 0.1 * torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])).square().sum(1)
    assert_fits(torch.bincount(found, minlength=3), (-gaps.double() / (2 * 0.3**2)).softmax(0))
    data = pc.Data({"x": x, "y": y}, {"y": torch.zeros(rows, dtype=torch.bool)})
    completed, _ = pc.Learner(model, data, batch_size=rows).completion._first_state(torch.arange(rows))
    assert completed["c"].unique().tolist() == [1]


def test_an_initializer_keeps_the_type_of_the_model():
    model = with_init()
    model.conditional("x").init.double()
    assert pc.initializers.initial_state(model, 5, model.generator(0))["x"].dtype == torch.float32


def test_an_initializer_that_has_learned_little_noise_is_bounded():
    """Under a noise of 0.02 the known part would weigh more than float32 can tell."""
    model = with_init()
    model.conditional("x").init.log_sigma.data.fill_(-5.0)
    known, mask = model.validate({"x": torch.ones(4, 3)}, {"x": torch.tensor([[True, False, False]]).expand(4, 3)})
    single = pc.initializers.initial_state(model, 4, model.generator(0), known, mask)["x"]
    model = model.double()
    known, mask = model.validate({"x": torch.ones(4, 3)}, {"x": torch.tensor([[True, False, False]]).expand(4, 3)})
    assert bool(single.isfinite().all()) and bool(
        pc.initializers.initial_state(model, 4, model.generator(0), known, mask)["x"].isfinite().all()
    )


def test_examples_are_completed_from_an_initializer():
    """Before any completion step, what is not known is as the initializer has it given the rest."""
    model = with_init()
    data = pc.Data({"x": torch.ones(4000, 3), "c": torch.ones(4000).long()}, {"x": SEEN[:1].repeat(4000, 1)})
    learner = pc.Learner(model, data, batch_size=4000, completion=pc.CompletionOptions(steps=1))
    state, _ = learner.completion._first_state(torch.arange(4000))
    means, covariance = gaussians(model.conditional("x").init)
    gain = covariance[1, [0, 2]] @ covariance[[0, 2]][:, [0, 2]].inverse()
    assert_mean(state["x"][:, 1].double() - float(means[1][1] + gain @ (1 - means[1][[0, 2]])), 0.0)
    assert torch.equal(state["x"][:, [0, 2]], torch.ones(4000, 2))


def test_initializers_are_saved(tmp_path):
    model = with_init()
    model.save(tmp_path)
    again = pc.JointModel.load(tmp_path)
    state = pc.initializers.initial_state(model, 5, model.generator(0))
    assert torch.equal(pc.initializers.score(again, "x", state), pc.initializers.score(model, "x", state))
    assert again.conditional("z").init is None
    with pytest.raises(pc.InputError, match="'z' has no initializer"):
        pc.initializers.score(again, "z", state)


def test_a_folder_of_an_earlier_version_loads_and_answers_the_same(tmp_path):
    """It says "starts" and "conditions", calls the class Components, and its weights conditionals.N.start.*."""
    torch.manual_seed(0)
    variables = {"x": pc.Real(3, scale=0.5), "c": pc.Categorical(2), "t": pc.Real(1)}
    networks = {n: pc.networks.mlp(variables, n, hidden=8) for n in "xc"}
    inits = {"x": pc.initializers.pca(variables, "x", ["c", "t"], rank=2), "c": None}
    model = pc.JointModel(
        {n: pc.Conditional(variables[n], networks[n], inits[n]) for n in "xc"},
        context={"t": pc.Context(variables["t"], 0.5)},
    )
    model.save(tmp_path)
    description, tensors = storage.read(tmp_path, joint.FORMAT)
    assert description["init"]["x"]["class"] == "paracond.PCA" and any(
        key.startswith("conditionals.0.init.") for key in tensors
    )
    starts, conditions = description.pop("init"), description.pop("context")
    starts["x"]["class"] = "Components"
    old = {key.replace("conditionals.0.init.", "conditionals.0.start."): tensor for key, tensor in tensors.items()}
    storage.write(tmp_path, {**description, "starts": starts, "conditions": conditions}, old)
    again = pc.JointModel.load(tmp_path)
    assert isinstance(again.conditional("x").init, pc.initializers.PCA) and again.context == model.context
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())
    given = {"x": pc.Observed(torch.ones(4, 3), SEEN[:1])}
    answers = [pc.query(each, given, ["x", "c"], stop=pc.Sweeps(4)) for each in (model, again)]
    assert torch.equal(answers[0].samples["x"], answers[1].samples["x"])
    assert torch.equal(answers[0].probabilities["c"], answers[1].probabilities["c"])
    again.save(tmp_path)
    saved = json.loads((tmp_path / "model.json").read_text())
    assert {"init", "context"} < saved.keys() and not {"starts", "conditions"} & saved.keys()


def test_weights_of_flat_inputs_load_under_their_former_name(tmp_path):
    """Networks of scenes called the layer that reads flat groups "told"."""
    variables = {"x": pc.Real((1, 16, 16), scale=0.5), "y": pc.Real((1, 16, 16)), "c": pc.Categorical(2)}
    for kind in ("plain", "residual"):
        networks = {n: pc.networks.scene_network(variables, n, kind=kind, width=8, hidden=8) for n in variables}
        model = pc.JointModel({n: pc.Conditional(variables[n], networks[n]) for n in variables}).eval()
        model.save(tmp_path)
        description, tensors = storage.read(tmp_path, joint.FORMAT)
        old = {key.replace("network.flat_features.", "network.told."): tensor for key, tensor in tensors.items()}
        assert old.keys() != tensors.keys()
        storage.write(tmp_path, description, old)
        again = pc.JointModel.load(tmp_path)
        assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())


def test_saving_and_loading_refuse_bad_options(tmp_path):
    model = make()
    for options, message in (
        ({"dtype": torch.int8}, "dtype must be a floating-point type .*, found torch.int8"),
        ({"dtype": "bfloat16"}, "dtype must be a floating-point type .*, found 'bfloat16'"),
        ({"max_bytes": 0}, "max_bytes must be a whole number, at least 1, found 0"),
    ):
        with pytest.raises(pc.InputError, match=message):
            model.save(tmp_path / "model", **options)
    assert not (tmp_path / "model").exists()
    model.save(tmp_path / "model")
    with pytest.raises(pc.InputError, match="modules: 'q' is none of "):
        pc.JointModel.load(tmp_path / "model", modules={"q": nn.Identity()})


def test_objects_are_shown_in_a_line(capsys):
    data = pc.Data({"x": torch.zeros(1000, 2), "c": torch.zeros(1000)}, {"x": torch.tensor([True, False])})
    assert repr(data) == "<Data of 1,000 rows: x [2] 50% observed, c [] 100% observed>"
    model = make()
    assert "c: Categorical(" in repr(model)
    answer = pc.query(model, want=["c"], stop=pc.Sweeps(4))
    assert repr(answer).startswith("<Answer about c of 1 row: ") and len(repr(answer)) < 200


class Asked(pc.networks.Network):
    """A network whose constructor has every kind of argument that can be rebuilt."""

    def __init__(this, n, options=None, *, width=2, **kwargs):
        super().__init__()
        this.given = {"n": n, "options": options, "width": width, **kwargs}
        this.layer = nn.Linear(1, n)

    def forward(self, others):
        return self.layer(others["c"].reshape(-1, 1).float())


class Nothing(pc.networks.Network):
    """A network without a constructor of its own."""

    def forward(self, others):
        return 0 * others["x"][:, :1].repeat(1, 2)


def test_a_network_keeps_the_arguments_of_its_constructor(tmp_path):
    options = {"a": [1, 2]}
    made = Asked(3, options=options, width=4, extra="e", kwargs=1)
    options["a"] = 0
    expected = {"n": 3, "options": {"a": [1, 2]}, "width": 4, "extra": "e", "kwargs": 1}
    assert made.config == expected and copy.deepcopy(made).config == pickle.loads(pickle.dumps(made)).config == expected
    families = {"x": pc.Real(3, scale=1.0), "c": pc.Binary(1)}
    networks = {"x": Asked(3, width=5, extra=1), "c": pc.networks.mlp(families, "c", hidden=2)}
    model = pc.JointModel({n: pc.Conditional(families[n], networks[n]) for n in families})
    model.save(tmp_path)
    again = pc.JointModel.load(tmp_path).conditional("x").network
    assert again.given == networks["x"].given and torch.equal(again.layer.weight, networks["x"].layer.weight)
    assert Nothing().config == {}


def test_arguments_that_cannot_be_rebuilt_are_refused(tmp_path):
    class Sizes(pc.networks.Network):
        def __init__(self, *sizes):
            super().__init__()

    class Positional(pc.networks.Network):
        def __init__(self, n, /):
            super().__init__()

    assert Sizes().config == {}
    for make, name in ((lambda: Sizes(1, 2), "sizes"), (lambda: Positional(1), "n")):
        with pytest.raises(pc.InputError, match=f"must take its argument '{name}' by name"):
            make()
    family = pc.Real(3, scale=1.0)
    model = pc.JointModel(
        {"x": pc.Conditional(family, Asked(3, act=torch.tanh)), "c": pc.Conditional(family, Nothing())}
    )
    with pytest.raises(pc.InputError, match=r"'act' of Asked must be a value that JSON can hold, .* found <built-in"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_arrays_that_cannot_be_written_are_taken():
    """pandas gives such arrays, and torch warns of them."""
    values, mask = np.zeros((3, 2), dtype=np.float32), np.ones((3, 2), dtype=bool)
    values.flags.writeable = mask.flags.writeable = False
    data = pc.Data({"x": values}, {"x": mask})
    data.state["x"].add_(1)
    assert float(values.sum()) == 0 and bool(data.mask["x"].all())


def test_a_shape_may_be_a_list():
    assert pc.Binary([2, 3]) == pc.Binary((2, 3)) and len({pc.Binary([2, 3]), pc.Binary((2, 3))}) == 1


def test_a_folder_without_initializers_and_context_loads(tmp_path):
    """The first versions had neither."""
    model = make()
    model.save(tmp_path)
    description, tensors = storage.read(tmp_path, joint.FORMAT)
    storage.write(tmp_path, {k: v for k, v in description.items() if k not in ("init", "context")}, tensors)
    again = pc.JointModel.load(tmp_path)
    assert not again.context and not pc.initializers.has_init(again)
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())


class Elsewhere(nn.Module):
    """An initializer that is not paracond's."""

    reads = ()

    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.randn(3))

    def sample(self, others, generator, rows, part=None):
        return self.mean.expand(rows, 3)

    def evidence(self, others, part):
        return torch.zeros(len(part))


def test_a_foreign_initializer_is_supplied_on_load(tmp_path):
    model = pc.initializers.with_init(make(), "x", Elsewhere())
    model.save(tmp_path)
    with pytest.raises(pc.InputError, match=r"pass it as modules=\{'init of x': \.\.\.\}"):
        pc.JointModel.load(tmp_path)
    again = pc.JointModel.load(tmp_path, modules={"init of x": Elsewhere()})
    state = pc.initializers.initial_state(again, 2, again.generator(0))
    assert torch.equal(state["x"], model.conditional("x").init.mean.expand(2, 3))


def test_what_an_initializer_cannot_be():
    variables = {"x": pc.Real(3), "c": pc.Categorical(2)}
    with pytest.raises(pc.InputError, match="pca is for Real and Binary groups; 'c' is Categorical"):
        pc.initializers.pca(variables, "c", ["x"])
    with pytest.raises(pc.InputError, match="unknown variable 'q'"):
        pc.initializers.pca(VARIABLES, "q", ["c"])
    with pytest.raises(pc.InputError, match=r"init must be a module such as initializers\.pca\(\.\.\.\), found str"):
        pc.Conditional(pc.Real(3), nn.Identity(), "init")
    with pytest.raises(pc.InputError, match=r"reads: 'x' can read .*; found q"):
        pc.initializers.pca(variables, "x", ["q"])


def test_alpha_is_uniform_or_normalised():
    assert make().alpha == dict.fromkeys(VARIABLES, 0.25)
    assert make(alpha={"x": 2, "c": 1, "z": 1, "r": 4}).alpha == {"x": 0.25, "c": 0.125, "z": 0.125, "r": 0.5}


@pytest.mark.parametrize("names", [("values", "a.b"), ("training", "type"), ("", "keys")])
def test_any_text_can_name_a_group(names, tmp_path):
    model = make({name: pc.Binary(2) for name in names})
    model.save(tmp_path)
    assert pc.JointModel.load(tmp_path).names == names


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_save_and_load_give_the_same_model(tmp_path, dtype):
    model = make(alpha={"x": 2, "c": 1, "z": 1, "r": 1}).to(dtype)
    model.save(tmp_path / "model")
    again = pc.JointModel.load(tmp_path / "model")
    assert again.alpha == model.alpha and again.variables == model.variables and again.dtype == dtype
    state = pc.initializers.initial_state(model, 5, model.generator(0))
    for name in model.names:
        assert torch.equal(model(name, state).mean, again(name, state).mean)


def test_saving_again_replaces_the_weights(tmp_path):
    make().save(tmp_path)
    second = make()
    second.save(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    for a, b in zip(second.parameters(), pc.JointModel.load(tmp_path).parameters(), strict=True):
        assert torch.equal(a, b)


def test_saving_touches_no_other_file(tmp_path):
    """Neither a user's own files nor a checkpoint of a learner in the same folder."""
    model = make()
    (tmp_path / "weights-best.pt").write_text("mine")
    model.save(tmp_path)
    model.save(tmp_path)
    assert (tmp_path / "weights-best.pt").read_text() == "mine"
    description = json.loads((tmp_path / "model.json").read_text())
    edit(tmp_path, format="paracond checkpoint 1")
    with pytest.raises(pc.InputError):
        model.save(tmp_path)
    assert (tmp_path / description["weights"]).exists()


def test_a_crash_while_saving_leaves_the_former_model(tmp_path, monkeypatch):
    first = make()
    first.save(tmp_path)
    real = __import__("os").replace
    calls = []

    def crash(source, target):
        calls.append(target)
        if len(calls) == 2:  # the weights are in place, the description is not
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr("os.replace", crash)
    with pytest.raises(KeyboardInterrupt):
        make().save(tmp_path)
    monkeypatch.undo()
    for a, b in zip(first.parameters(), pc.JointModel.load(tmp_path).parameters(), strict=True):
        assert torch.equal(a, b)


class Foreign(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, others):
        return self.layer(others["b"])


def test_tied_weights_are_written_once_and_tied_again(tmp_path):
    variables = {"a": pc.Binary(3), "b": pc.Binary(3)}
    networks = {n: pc.networks.mlp(variables, n, hidden=8, depth=1) for n in variables}
    networks["b"].layers[0].weight = networks["a"].layers[0].weight
    pc.JointModel({n: pc.Conditional(f, networks[n]) for n, f in variables.items()}).save(tmp_path)
    _, tensors = storage.read(tmp_path, joint.FORMAT)
    assert len(tensors) == 7
    loaded = pc.JointModel.load(tmp_path)
    a, b = (loaded.conditional(n).network.layers[0].weight for n in variables)
    assert a is b and torch.equal(a, networks["a"].layers[0].weight)
    edit(tmp_path, tied={"conditionals.1.network.nowhere.weight": "conditionals.0.network.layers.0.weight"})
    with pytest.raises(pc.InputError, match="do not fit"):
        pc.JointModel.load(tmp_path)


def test_a_foreign_network_is_supplied_on_load(tmp_path):
    variables = {"a": pc.Binary(2), "b": pc.Binary(2)}
    model = pc.JointModel(
        {
            "a": pc.Conditional(variables["a"], Foreign()),
            "b": pc.Conditional(variables["b"], pc.networks.mlp(variables, "b")),
        }
    )
    model.save(tmp_path)
    with pytest.raises(pc.InputError, match="network of 'a' is not one of paracond's"):
        pc.JointModel.load(tmp_path)
    again = pc.JointModel.load(tmp_path, modules={"a": Foreign()})
    assert torch.equal(again.conditional("a").network.layer.weight, model.conditional("a").network.layer.weight)
    with pytest.raises(pc.InputError, match="weights do not fit"):
        pc.JointModel.load(tmp_path, modules={"a": nn.Linear(3, 3)})


def damage_json(folder):
    (folder / "model.json").write_text('{"format": "paracond')


def other_format(folder):
    (folder / "model.json").write_text(json.dumps({"format": "something else"}))


def not_a_mapping(folder):
    (folder / "model.json").write_text("[]")


def flip_a_byte(folder):
    (path,) = folder.glob("*.safetensors")
    payload = bytearray(path.read_bytes())
    payload[-1] ^= 1
    path.write_bytes(payload)


def truncate(folder):
    (path,) = folder.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-10])


def remove_weights(folder):
    (path,) = folder.glob("*.safetensors")
    path.unlink()


def edit(folder, **changes):
    """Change a description, with a digest of its own again."""
    path = folder / "model.json"
    path.write_bytes(storage.seal({**json.loads(path.read_text()), **changes}))


def forget_the_families(folder):
    edit(folder, variables={})


def garble_the_families(folder):
    edit(folder, variables=[1, 2])


def garble_a_family(folder):
    edit(folder, variables={"x": {"class": "Real", "colour": "red"}})


def point_elsewhere(folder):
    edit(folder, weights="../weights.safetensors")


def remove_json(folder):
    (folder / "model.json").unlink()


@pytest.mark.parametrize(
    "harm, message",
    [
        (damage_json, "model.json is damaged"),
        (other_format, "has format 'something else', expected 'paracond model 2'"),
        (not_a_mapping, "has format None"),
        (flip_a_byte, "is damaged: its SHA-256"),
        (truncate, "is damaged: it has .* bytes of tensors, and declares"),
        (remove_weights, "is missing, though model.json names it"),
        (remove_json, "is .* a saved model"),
        (forget_the_families, "conditionals must have at least one group"),
        (garble_the_families, "does not describe a model"),
        (garble_a_family, "does not describe a model"),
        (point_elsewhere, "must name a weights file in its folder"),
    ],
)
def test_a_wrong_or_damaged_file_is_named(tmp_path, harm, message):
    make().save(tmp_path)
    harm(tmp_path)
    with pytest.raises(pc.InputError, match=message):
        pc.JointModel.load(tmp_path)


def test_weights_in_several_files(tmp_path):
    """Each of them small, all of them checked; a later save in one file leaves no other behind."""
    model = make()
    model.save(tmp_path, max_bytes=2000)
    files = sorted(tmp_path.glob("*.safetensors"))
    largest = max(t.nbytes for t in model.state_dict().values())
    assert len(files) > 2 and all(path.stat().st_size <= max(2000, largest + 300) for path in files)
    again = pc.JointModel.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    edit(tmp_path, sha256=["0"])
    with pytest.raises(pc.InputError, match="must name a weights file"):
        pc.JointModel.load(tmp_path)
    (tmp_path / "model.json").unlink()
    model.save(tmp_path, max_bytes=2000)
    files[0].unlink()
    with pytest.raises(pc.InputError, match=r"is missing, though model\.json names it"):
        pc.JointModel.load(tmp_path)
    model.save(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    pc.JointModel.load(tmp_path)


def test_initializers_are_drawn_after_what_they_read():
    """c begins as it comes in the data, or given what is known of it; x, which comes first in the model, given c."""
    torch.manual_seed(0)
    both = (torch.rand(4000) < 0.3).float()
    c = torch.stack([both, both, (torch.rand(4000) < 0.5).float()], 1)  # two that are always equal
    x = 10 * c[:, :1] + 0.1 * torch.randn(4000, 2)
    variables = {"x": pc.Real(2), "c": pc.Binary(3)}
    inits = {n: pc.initializers.pca(variables, n, reads, 2) for n, reads in (("x", ["c"]), ("c", []))}
    networks = {n: pc.networks.mlp(variables, n, hidden=4) for n in variables}
    model = pc.JointModel({n: pc.Conditional(variables[n], networks[n], inits[n]) for n in variables})
    pc.initializers.fit(model, pc.Data({"x": x, "c": c}))
    state = pc.initializers.initial_state(model, 4000, model.generator(0))
    assert abs(float(state["c"][:, 0].mean()) - 0.3) < 0.05 and abs(float(state["c"][:, 2].mean()) - 0.5) < 0.05
    assert float((state["c"][:, 0] == state["c"][:, 1]).float().mean()) > 0.97
    torch.testing.assert_close(state["x"], 5 * state["c"][:, :2].sum(1, keepdim=True).expand(-1, 2), atol=1.0, rtol=0)
    known = {"c": torch.tensor([0.0, 1.0, 0.0]).expand(4000, -1)}
    given = pc.initializers.initial_state(
        model, 4000, model.generator(0), known, {"c": torch.tensor([False, True, False]).expand(4000, -1)}
    )
    assert bool((given["c"][:, 1] == 1).all()) and float(given["c"][:, 0].mean()) > 0.97
    assert abs(float(given["c"][:, 2].mean()) - 0.5) < 0.05


def test_a_copy_may_have_another_initializer():
    """Another initializer of one group, fitted alone: the rest is that of the model, which stays as it was."""
    torch.manual_seed(0)
    variables = {"x": pc.Real(2), "c": pc.Binary(2)}
    inits = {n: pc.initializers.pca(variables, n, [], 1) for n in variables}
    networks = {n: pc.networks.mlp(variables, n, hidden=4) for n in variables}
    model = pc.JointModel({n: pc.Conditional(variables[n], networks[n], inits[n]) for n in variables}).double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    other = pc.initializers.with_init(model, "x", pc.initializers.pca(variables, "x", ["c"], 1, redundancy=3.0))
    c = (torch.rand(500, 2) < 0.5).double()
    pc.initializers.fit(other, pc.Data({"x": 10 * c, "c": c}), names=["x"])
    assert other.init_reads("x") == ("c",) and model.init_reads("x") == ()
    state = pc.initializers.initial_state(other, 50, other.generator(0))
    torch.testing.assert_close(state["x"], 10 * state["c"], atol=0.2, rtol=0)
    assert other.dtype == torch.float64
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
        if not name.startswith("conditionals.0.init"):
            assert torch.equal(value, other.state_dict()[name])
    with pytest.raises(pc.InputError, match="'w'"):
        pc.initializers.fit(other, pc.Data({"x": 10 * c, "c": c}), names=["w"])


def good():
    return {"x": torch.zeros(2, 3), "c": torch.tensor([0, 3]), "z": torch.zeros(2, 2, 2), "r": torch.zeros(2)}


NAN = torch.tensor([[0.0, float("nan"), 0.0], [0.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    "state, mask, message",
    [
        ({**good(), "x": torch.zeros(2, 4)}, None, r"'x' must have shape \[batch, 3\], found \[2, 4\]"),
        ({**good(), "r": torch.tensor(1.0)}, None, r"'r' must have shape \[batch\], found \[\]"),
        ({**good(), "c": torch.tensor([0, 4])}, None, "'c' has classes 0 to 3, found 4"),
        ({**good(), "c": torch.tensor([-1, 0])}, None, "'c' has classes 0 to 3, found -1"),
        ({**good(), "c": torch.tensor([0.5, 1])}, None, "'c' is categorical"),
        ({**good(), "z": torch.full((2, 2, 2), 0.5)}, None, "'z' is binary"),
        ({**good(), "x": NAN}, None, "'x' has NaN or infinite values that are marked as observed"),
        ({**good(), "y": torch.zeros(2)}, None, "unknown variable 'y' .the model has x, c, z, r."),
        ({**good(), "x": torch.zeros(3, 3)}, None, "groups differ in their number of rows"),
        (good(), {"x": torch.ones(2, 2, dtype=torch.bool)}, r"mask of 'x' must have shape \[2, 3\]"),
        (good(), {"x": torch.ones(2, 3)}, "mask of 'x' must be boolean"),
        (good(), {"y": torch.ones(2, dtype=torch.bool)}, "unknown variable 'y'"),
        ({}, None, "values of at least one group"),
    ],
)
def test_bad_input_is_refused_by_name(state, mask, message):
    with pytest.raises(pc.InputError, match=message):
        make().validate(state, mask)


def test_unobserved_values_may_be_anything():
    state = {"x": NAN, "c": torch.tensor([99.0, float("nan")])}
    mask = {"x": ~NAN.isnan(), "c": torch.zeros(2, dtype=torch.bool)}
    values, masks = make().validate(state, mask)
    assert values["c"].dtype == torch.long and int(values["c"].max()) <= 3
    assert not bool(masks["z"].any()) and masks["z"].shape == (2, 2, 2)
    assert torch.equal(masks["x"], mask["x"])


def test_a_mask_for_rows_or_coordinates_is_spread():
    _, masks = make().validate(good(), {"x": torch.tensor([True, False, True]), "z": torch.tensor([True, False])})
    assert masks["x"].tolist() == [[True, False, True]] * 2
    assert bool(masks["z"][0].all()) and not bool(masks["z"][1].any())
    square = pc.JointModel({n: pc.Conditional(pc.Binary(2), pc.networks.MLP({"a": 2}, (2,))) for n in ("a", "b")})
    with pytest.raises(pc.InputError, match="could mean rows or coordinates"):
        square.validate({"a": torch.zeros(2, 2)}, {"a": torch.tensor([True, False])})


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: pc.JointModel({}), "conditionals must have at least one group"),
        (lambda: pc.JointModel({"a": nn.Linear(1, 1)}), "'a' must be a Conditional"),
        (lambda: pc.networks.mlp(VARIABLES, "q"), "unknown variable 'q'"),
        (lambda: pc.networks.mlp(VARIABLES, "x", activation="gelu"), "activation must be one of"),
        (lambda: make(alpha={"x": 1.0}), "alpha must weigh exactly"),
        (lambda: make(alpha=dict.fromkeys(VARIABLES, 0.0)), "alpha of .x. must be over 0"),
        (lambda: make()("y", {}), "unknown variable 'y'"),
        (lambda: pc.networks.mlp({"x": pc.Binary(2)}, "x"), "the only group"),
        (lambda: pc.networks.mlp(VARIABLES, "x", reads=["x"]), "reads: 'x' can read c, z, r; found x"),
    ],
)
def test_bad_models_are_refused(build, message):
    with pytest.raises(pc.InputError, match=message):
        build()


def test_a_network_of_the_wrong_size_is_named():
    bad = pc.JointModel({"a": pc.Conditional(pc.Binary(3), Foreign()), "b": pc.Conditional(pc.Binary(2), Foreign())})
    with pytest.raises(pc.InputError, match=r"Foreign must return \[4, 3\] for Binary.*found float32 \[4, 2\]"):
        bad("a", pc.initializers.initial_state(bad, 4, bad.generator(0)))


@dataclass(frozen=True)
class Sign(pc.Binary):
    """A family of one's own, in one place: {-1, +1} stored as 0/1 and encoded as signs."""

    def encode(self, value):
        return 2 * value - 1


def test_a_new_family_is_one_class(tmp_path):
    variables = {"s": Sign(3), "b": pc.Binary(2)}
    model = make(variables)
    model.save(tmp_path)
    assert pc.JointModel.load(tmp_path).variables == variables
    answer = pc.query(model, {"b": torch.ones(1, 2)}, ["s"], stop=pc.Sweeps(4))
    assert answer.samples["s"].shape == (1, 8, 3)


def test_data_is_checked():
    with pytest.raises(pc.InputError, match="the data is empty"):
        pc.Data({"x": torch.zeros(0, 3)})
    with pytest.raises(pc.InputError, match="mask for 'y'"):
        pc.Data({"x": torch.zeros(2, 3)}, {"y": torch.ones(2, dtype=torch.bool)})
    with pytest.raises(pc.InputError, match="'c' of the data must have rows"):
        pc.Data({"c": torch.tensor(3)})
    assert len(pc.Data({"c": [1, 2, 3]})[1]) == 1
    data = pc.Data(good())[torch.tensor([1])]
    assert len(data) == 1 and bool(data.mask["x"].all())


def test_input_noise_is_for_learning_only():
    """In training mode outputs of equal rows differ; in evaluation they are those of the same network without noise."""
    noisy, plain = (pc.networks.MLP({"a": 3}, (2,), hidden=8, depth=1, noise=s) for s in (0.5, 0.0))
    plain.load_state_dict(noisy.state_dict())
    same = {"a": torch.ones(4, 3)}
    assert len(noisy(same).unique(dim=0)) == 4
    torch.testing.assert_close(noisy.eval()(same), plain(same))
    assert noisy.config["noise"] == 0.5


def fitted(rows: int = 500, **options) -> pc.initializers.PCA:
    torch.manual_seed(0)
    u = torch.randn(rows, 2)
    x = u @ torch.tensor([[1.0, 0.5, 0.0, 0.2], [0.0, 1.0, -1.0, 0.3]]) + 0.3 * torch.randn(rows, 4)
    init = pc.initializers.pca({"x": pc.Real(4)}, "x", [], 2, **options)
    init.fit(x, {}, torch.Generator().manual_seed(0))
    return init


def test_coordinates_that_say_the_same_count_as_one():
    """If every coordinate is there three times over, error and all, a redundancy of three gives the law of one each."""
    once = fitted()
    thrice = pc.initializers.pca({"x": pc.Real(12)}, "x", [], 2, redundancy=3.0)
    with torch.no_grad():
        thrice.directions.copy_(once.directions.repeat(1, 3))
        thrice.means.copy_(once.means.repeat(1, 3))
        thrice.log_sigma.copy_(once.log_sigma)
    x, mask = torch.randn(6, 4), torch.rand(6, 4) < 0.5
    noise, mean = torch.randn(6, 2), once.means.expand(6, -1)
    drawn = once.observe(x, mask).directions(mean, noise)
    same = thrice.observe(x.repeat(1, 3), mask.repeat(1, 3)).directions(mean.repeat(1, 3), noise)
    torch.testing.assert_close(same, drawn)
    torch.testing.assert_close(
        thrice.evidence({}, thrice.observe(x.repeat(1, 3), mask.repeat(1, 3))), once.evidence({}, once.observe(x, mask))
    )
    with pytest.raises(pc.InputError, match="redundancy must be at least 1"):
        pc.initializers.pca({"x": pc.Real(4)}, "x", [], 2, redundancy=0.5)


def test_rows_with_the_same_mask_are_worked_out_once():
    init, x = fitted(), torch.randn(6, 4)
    masks = torch.eye(4, dtype=torch.bool)[:3].repeat_interleave(2, 0)
    distinct, which = _distinct(masks)
    assert len(distinct) == 3 and torch.equal(distinct[which], masks)
    noise, mean = torch.randn(6, 2), init.means.expand(6, -1)
    together = init.observe(x, masks).directions(mean, noise)
    for k in range(6):
        alone = init.observe(x[k : k + 1], masks[k : k + 1]).directions(mean[:1], noise[k : k + 1])
        torch.testing.assert_close(together[k : k + 1], alone)


def test_an_initializer_that_is_only_fitted_has_half_the_parameters(tmp_path):
    init, learned = fitted(learned=False), fitted()
    torch.testing.assert_close(init.directions, learned.directions)
    assert not hasattr(init, "readings") and not any(p.requires_grad for p in init.parameters())
    with pytest.raises(pc.InputError, match=r"is fitted \(initializers\.fit\), not learned: it has no bound"):
        init.score(torch.zeros(1, 4), {})
    variables = {"x": pc.Real(4), "c": pc.Binary(1)}
    networks = {n: pc.networks.mlp(variables, n, hidden=4) for n in variables}
    inits = {"x": init, "c": None}
    pc.JointModel({n: pc.Conditional(variables[n], networks[n], inits[n]) for n in variables}).save(tmp_path)
    found = pc.JointModel.load(tmp_path).conditional("x").init
    torch.testing.assert_close(found.directions, init.directions)


def banded(rows=400, band=3, rank=5, **options):
    """Images of 2 x 6 x 8, and an initializer with a band that is fitted to them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 2, 6, 8, generator=generator, dtype=torch.float64).cumsum(2).cumsum(3)
    g = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    x = x + (g @ torch.randn(3, 96, generator=generator, dtype=torch.float64)).view_as(x)
    variables = {"x": pc.Real((2, 6, 8)), "g": pc.Real(3)}
    init = pc.initializers.pca(variables, "x", ["g"], rank, band=band, **options).double()
    init.fit(x, {"g": g}, generator, passes=200)
    return init, x, g


def basis(band):
    """Cosines on 2 x 6 x 8 images by their formula, `[2 band^2, 96]`."""
    found = []
    for channel in range(2):
        for i in range(band):
            for j in range(band):
                image = torch.zeros(2, 6, 8, dtype=torch.float64)
                rows = torch.cos(torch.pi * i * (torch.arange(6, dtype=torch.float64) + 0.5) / 6)
                columns = torch.cos(torch.pi * j * (torch.arange(8, dtype=torch.float64) + 0.5) / 8)
                image[channel] = rows.outer(columns)
                found.append(image.flatten() / image.norm())
    return torch.stack(found)


@pytest.mark.parametrize("band", [3, 6])
def test_an_initializer_with_a_band_is_the_best_in_it(band):
    """The maximum of log p_0 among means and directions of slow cosines, by eigenvectors of what these see."""
    init, x, g = banded(band=band, learned=False)
    waves = basis(band)
    torch.testing.assert_close(waves @ waves.T, torch.eye(len(waves), dtype=torch.float64))
    given, flat = torch.cat([torch.ones_like(g[:, :1]), g], 1), x.flatten(1)
    slopes = torch.linalg.lstsq(given, flat @ waves.T).solution
    gap = flat - given @ slopes @ waves
    variances, vectors = torch.linalg.eigh((gap @ waves.T).T @ (gap @ waves.T) / len(x))
    variances, vectors = variances.flip(0)[:5], vectors.flip(1)[:, :5]
    noise = (gap.square().sum() / len(x) - variances.sum()) / (96 - 5)
    torch.testing.assert_close(init._log_scale().exp() ** 2, noise)
    close = {"rtol": 1e-5, "atol": 1e-5}  # cosines have the digits of float32
    torch.testing.assert_close(init._mean({"g": g}), given @ slopes @ waves, **close)
    covariance = waves.T @ (vectors * (variances - noise)) @ vectors.T @ waves
    directions = init._whole(init.directions)
    torch.testing.assert_close(directions.T @ directions, covariance, **close)
    assert init.directions.shape == (5, 2 * band**2)


def test_an_initializer_with_a_band_is_used_in_pixels():
    """What is seen, and draws, are as those of the initializer that has the same mean and directions in full."""
    init, x, g = banded()
    full = pc.initializers.pca({"x": pc.Real((2, 6, 8)), "g": pc.Real(3)}, "x", ["g"], 5).double()
    with torch.no_grad():
        full.means.copy_(init._whole(init.means))
        full.directions.copy_(init._whole(init.directions))
        full.readings.copy_(init._whole(init.readings.T).T)
        full.log_sigma.copy_(init.log_sigma)
        full.log_variance.copy_(init.log_variance)
    some, seen, others = x[:4], torch.rand(4, 2, 6, 8, generator=torch.Generator().manual_seed(1)) < 0.4, {"g": g[:4]}
    for part in (None, (some, seen)):
        drawn = []
        for each in (init, full):
            known = None if part is None else each.observe(*part)
            drawn.append(each.sample(others, torch.Generator().manual_seed(2), 4, known))
            drawn.append(torch.zeros(()) if known is None else each.evidence(others, known))
        torch.testing.assert_close(drawn[:2], drawn[2:])
    torch.testing.assert_close(init.score(some, others), full.score(some, others))


def test_a_band_is_saved_and_checked(tmp_path):
    variables = {"x": pc.Real((2, 6, 8)), "g": pc.Real(3)}
    networks = {n: pc.networks.mlp(variables, n, hidden=4) for n in variables}
    init, _, _ = banded(learned=False)
    inits = {"x": init.float(), "g": None}
    pc.JointModel({n: pc.Conditional(variables[n], networks[n], inits[n]) for n in variables}).save(tmp_path)
    found = pc.JointModel.load(tmp_path).conditional("x").init
    torch.testing.assert_close(found._whole(found.directions), init._whole(init.directions))
    for shape, band in ((4, 2), ((2, 6, 8), 7), ((2, 6, 8), 0)):
        with pytest.raises(pc.InputError, match=r"band (is for images|must be a whole number, at least 1)"):
            pc.initializers.pca({"x": pc.Real(shape)}, "x", [], 2, band=band)
    with pytest.raises(pc.InputError, match=r"9 directions are more than the 8 coefficients"):
        pc.initializers.pca({"x": pc.Real((2, 6, 8))}, "x", [], 9, band=2)
