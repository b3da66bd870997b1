"""Guided models against what their formula says, computed by hand."""

import pytest
import torch

import paracond as pc


def wild(variables):
    """A model whose conditionals depend on everything, strongly."""
    torch.manual_seed(0)
    networks = {name: pc.networks.mlp(variables, name, hidden=8) for name in variables}
    for network in networks.values():
        for parameter in network.parameters():
            parameter.data.normal_()
    return pc.JointModel({name: pc.Conditional(family, networks[name]) for name, family in variables.items()}).double()


def test_a_guided_conditional_is_the_power_of_a_ratio():
    """p_w ~ p^(1 + w) / p'^w, where the second bit of c is flipped in p', by tables of all states."""
    model, weight = wild({"a": pc.Binary(1), "k": pc.Categorical(3), "c": pc.Binary(2)}), 1.5
    plain, guided = (pc.exact.enumerate_model(m) for m in (model, pc.guided(model, "c", [1], weight)))
    values = plain.values["c"].tolist()
    flip = [values.index([first, 1 - second]) for first, second in values]
    for axis in (0, 1):
        p = plain.kernel.tables[axis]
        powers = p ** (1 + weight) / p[:, :, flip] ** weight
        torch.testing.assert_close(guided.kernel.tables[axis], powers / powers.sum(axis, keepdim=True))
        assert (guided.kernel.tables[axis] - p).abs().max() > 0.1
    torch.testing.assert_close(guided.kernel.tables[2], plain.kernel.tables[2])  # c does not read itself


def test_the_mean_of_a_guided_gaussian():
    """N(m, s)^(1 + w) / N(m', s)^w has mean m + w (m - m') and the same scale."""
    variables = {"x": pc.Real(3, scale="learned"), "c": pc.Binary((2, 2))}
    model = wild(variables)
    where = torch.tensor([[True, False], [False, True]])
    guided = pc.guided(model, "c", where, 2.0)
    state = {"x": torch.zeros(1, 3).double(), "c": torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]).double()}
    flipped = {**state, "c": torch.tensor([[[0.0, 0.0], [1.0, 1.0]]]).double()}
    m, other, found = model("x", state), model("x", flipped), guided("x", guided.validate(state)[0])
    torch.testing.assert_close(found.mean, m.mean + 2 * (m.mean - other.mean))
    torch.testing.assert_close(found.variance, m.variance)
    values = torch.randn(5, 3).double()
    powers = 3 * m.log_prob(values) - 2 * other.log_prob(values)
    gap = found.log_prob(values) - powers
    torch.testing.assert_close(gap, gap[:1].expand(5))


def test_no_weight_is_the_model_and_all_else_is_shared():
    torch.manual_seed(0)
    variables = {"x": pc.Real(2), "c": pc.Binary(3)}
    init = pc.initializers.pca(variables, "x", ["c"], 1)
    networks = {name: pc.networks.mlp(variables, name) for name in variables}
    conditionals = {n: pc.Conditional(f, networks[n], init if n == "x" else None) for n, f in variables.items()}
    model = pc.JointModel(conditionals, {"x": 3.0, "c": 1.0})
    same = pc.guided(model, "c", [0], 0)
    drawn, again = (pc.sample(each, rows=4, sweeps=3, seed=1) for each in (model, same))
    assert all(torch.equal(drawn[name], again[name]) for name in drawn)
    assert same.alpha == model.alpha and same.conditional("x").init is init
    shared = {id(p) for p in model.parameters()}
    assert all(id(p) in shared for p in pc.guided(model, "c", [0], 2).parameters())


@pytest.mark.parametrize(
    ("name", "where", "weight", "message"),
    [
        ("x", [0], 1, r"Binary groups, found 'x'"),
        ("c", [3], 1, r"coordinates 0 to 2, found \[3\]"),
        ("c", [0.5], 1, r"coordinates 0 to 2"),
        ("c", torch.ones(2, dtype=torch.bool), 1, r"shape \[3\], found \[2\]"),
        ("c", [0], -1, r"from 0 to 1e.06, found -1"),
        ("c", ["Hat"], 1, r"where must be numbers of coordinates of 'c'"),
        ("c", [], 1, r"`where` is empty: pass at least one coordinate of 'c'"),
        ("q", [0], 1, r"'q'"),
    ],
)
def test_what_cannot_be_guided_is_refused(name, where, weight, message):
    variables = {"x": pc.Real(2), "c": pc.Binary(3)}
    model = pc.JointModel({n: pc.Conditional(f, pc.networks.mlp(variables, n)) for n, f in variables.items()})
    with pytest.raises(pc.InputError, match=message):
        pc.guided(model, name, where, weight)


def test_rules_are_not_guided():
    model = wild({"x": pc.Real(2, scale="learned"), "c": pc.Binary(3)})
    pair = pc.compose({"one": model}, rules={"one.x": lambda law, others: law("one.x")})
    with pytest.raises(pc.InputError, match=r"'one.x' follows a rule"):
        pc.guided(pair, "one.c", [0], 1)


def test_every_row_may_have_a_weight_of_its_own():
    model = wild({"a": pc.Binary(2), "c": pc.Binary(2)})
    state = {"a": torch.zeros(2, 2).double(), "c": torch.ones(2, 2).double()}
    several = pc.guided(model, "c", [0], 0.5)
    found = several("a", several.validate({**state, "guidance of c": torch.tensor([[0.5], [3.0]])})[0]).mean
    for row, weight in enumerate((0.5, 3.0)):
        alone = pc.guided(model, "c", [0], weight)
        torch.testing.assert_close(found[row], alone("a", alone.validate(state)[0]).mean[row])
    with pytest.raises(pc.InputError, match=r"guided by 'c' already"):
        pc.guided(several, "c", [1], 1)


def test_an_edit_changes_the_coordinates_that_were_named():
    model = wild({"a": pc.Binary(2), "b": pc.Binary(2), "c": pc.Binary(3)})
    state = pc.sample(model, rows=6, sweeps=0)
    change = pc.Observed(torch.ones(1, 3), torch.tensor([False, True, False]))
    still = pc.edited(model, state, "c", change, sweeps=0)
    assert all(torch.equal(still[name], state[name]) for name in "ab") and still["c"][:, 1].all()
    assert torch.equal(still["c"][:, [0, 2]], state["c"][:, [0, 2]]) and not torch.equal(still["c"], state["c"])
    parts = [pc.edited(model, state, "c", change, sweeps=3, chunk=size) for size in (6, 4)]
    assert all(torch.equal(part["c"], still["c"]) and set(part) == set("abc") for part in parts)


def test_rows_are_driven_as_far_as_the_model_doubts_them():
    """One sweep over one group, against p_w(a | c) with w = weight sqrt(1 - p(c_1 | a)), computed by hand."""
    model, rows, weight = wild({"a": pc.Categorical(3), "c": pc.Binary(2)}), 30_000, 4.0
    state = {"a": torch.arange(3).repeat_interleave(rows), "c": torch.zeros(3 * rows, 2).double()}
    change = pc.Observed(torch.ones(1, 2).double(), torch.tensor([False, True]))
    found = pc.edited(model, state, "c", change, weight=weight, sweeps=1, seed=1, chunk=3 * rows)["a"].view(3, rows)
    question = {"a": torch.arange(3), "c": torch.tensor([[0.0, 1.0]]).expand(3, 2).double()}
    w = weight * (1 - model("c", question).mean[:, 1:]).sqrt()
    assert w.min() < 0.7 * w.max()
    p, other = model("a", question).mean, model("a", {**question, "c": torch.zeros(3, 2).double()}).mean
    expected = p ** (1 + w) / other**w
    expected = expected / expected.sum(1, keepdim=True)
    share = torch.stack([(found == k).double().mean(1) for k in range(3)], 1)
    assert (share - expected).abs().max() < 4 * (0.25 / rows) ** 0.5
    assert (expected - p).abs().max() > 0.1


def test_rows_are_edited_alike():
    model = wild({"a": pc.Binary(2), "c": pc.Binary(3)})
    state = pc.sample(model, rows=6, sweeps=1)
    with pytest.raises(pc.InputError, match=r"change.mask must have the shape .* of one row of 'c'"):
        pc.edited(model, state, "c", pc.Observed(state["c"], torch.ones(6, 3, dtype=torch.bool)))
    with pytest.raises(pc.InputError, match=r"change.value of 'c' must have 1 or 6 rows, found 2"):
        pc.edited(model, state, "c", pc.Observed(torch.ones(2, 3)))


def test_rows_that_show_what_they_were_told_are_left_alone():
    """a is c, nearly surely: where it is already, nothing moves; else a follows, and then stays."""
    variables = {"a": pc.Binary(1), "b": pc.Real(1), "c": pc.Binary(1)}
    model = wild(variables)
    for name, other in (("a", "c"), ("c", "a")):
        network = pc.networks.mlp(variables, name, reads=[other], depth=0)
        network.load_state_dict(
            {k: torch.full_like(v, 14.0 if v.ndim > 1 else -7.0) for k, v in network.state_dict().items()}
        )
        model.conditional(name).network = network.double()
    state = {"a": torch.tensor([[1.0], [0.0]]), "b": torch.tensor([[5.0], [5.0]]), "c": torch.zeros(2, 1)}
    found = pc.edited(model, state, "c", torch.ones(1, 1), sweeps=20)
    assert found["a"].tolist() == [[1.0], [1.0]] and found["b"][0] == 5.0 != found["b"][1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "q"}, "unknown variable 'q'"),
        ({"state": {"a": torch.zeros(2, 2)}}, "the state lacks c"),
        ({"change": torch.ones(1, 4)}, r"'c' must have shape \[batch, 3\], found"),
        ({"weight": True}, "from 0 to 1e.06, found True"),
    ],
)
def test_bad_edits_name_what_is_wrong(change, message):
    model = wild({"a": pc.Binary(2), "c": pc.Binary(3)})
    arguments = {"state": pc.sample(model, rows=2, sweeps=1), "name": "c", "change": torch.ones(1, 3), **change}
    with pytest.raises(pc.InputError, match=message):
        pc.edited(model, **arguments)
