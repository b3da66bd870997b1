"""What objects say of themselves: one line each, tables for notebooks, and `help` of a page or two."""

import pydoc
import re
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import paracond as pc
from paracond.baselines.directed import VAE
from paracond.html_table import MOST_ROWS, html_table

EVIL = "<script>alert('x')</script>&"
VARIABLES = {"x": pc.Real(4), "c": pc.Categorical(3), EVIL: pc.Binary(2)}


def joint(variables=VARIABLES, **options) -> pc.JointModel:
    torch.manual_seed(0)
    networks = {name: pc.networks.mlp(variables, name, depth=0) for name in variables}
    return pc.JointModel({n: pc.Conditional(f, networks[n]) for n, f in variables.items()}, **options)


def data(rows: int = 6) -> pc.Data:
    values = {"x": torch.zeros(rows, 4), "c": torch.zeros(rows, dtype=torch.long), EVIL: torch.zeros(rows, 2)}
    return pc.Data(values, {"c": torch.arange(rows) < rows // 2})


def learner() -> pc.Learner:
    return pc.Learner(joint(), data(), batch_size=2, chain_length=3)


def answer() -> pc.Answer:
    return pc.query(joint(), {"x": torch.zeros(5, 4)}, stop=pc.Tours(8))


class Table(HTMLParser):
    """The tags of a page, and the texts of its cells row by row. Tags must be balanced."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.open, self.rows = set(), [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert all(name == "style" and "url" not in value and "color" not in value for name, value in attrs)
        self.tags.add(tag)
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += text


# --- models ---------------------------------------------------------------------------------------------------------


def test_a_model_is_a_line_per_group():
    model = joint(alpha={"x": 2, "c": 1, EVIL: 1}, context={"old": pc.Context(pc.Binary(), None)})
    assert repr(model).split("\n") == [
        "JointModel of 3 groups: 85 parameters, float32 on cpu, Regeneration(rate=0.04, warmup=60)",
        f"  x: Real(shape=4) given c, {EVIL} by MLP (48 parameters), alpha 0.5",
        f"  c: Categorical(classes=3) given x, {EVIL} by MLP (21 parameters), alpha 0.25",
        f"  {EVIL}: Binary(shape=2) given x, c by MLP (16 parameters), alpha 0.25",
        "  old: Binary(), context, must be given",
    ]


def test_a_model_names_initializers_and_says_nothing_of_equal_weights():
    init = pc.initializers.pca(VARIABLES, "x", ["c"], rank=2)
    text = repr(pc.initializers.with_init(joint().double(), "x", init))
    assert "init PCA" in text and "alpha" not in text and "float64 on cpu" in text and len(text.split("\n")) == 4


def test_many_groups_are_not_all_named_in_every_line():
    variables = {f"v{number}": pc.Real() for number in range(40)}
    model = joint(variables)
    assert "v0: Real() given all others by" in repr(model)
    assert max(map(len, repr(model).split("\n"))) < 120
    variables_read = [f"v{number}" for number in range(1, 9)]
    some = pc.Conditional(pc.Real(), pc.networks.mlp(variables, "v0", reads=variables_read, depth=0))
    text = repr(pc.JointModel({"v0": some} | {n: model.conditional(n) for n in variables if n != "v0"}))
    assert "v0: Real() given 8 of 39 others by" in text


def test_what_cannot_be_counted_or_read_is_no_error_in_a_repr():
    class Odd(nn.Module):
        reads = ("nowhere",)

        def __init__(self):
            super().__init__()
            self.lazy = nn.LazyLinear(3)

    text = repr(pc.JointModel({"a": pc.Conditional(pc.Real(), Odd())}))
    assert "a: Real() given nowhere by Odd (0 parameters)" in text
    assert "given nothing by Identity" in repr(pc.JointModel({"a": pc.Conditional(pc.Real(), nn.Identity())}))


def test_the_layers_of_a_network_are_printed_as_ever():
    assert "(layers): Sequential(" in repr(joint().conditional("x").network)


# --- learners and answers -------------------------------------------------------------------------------------------


def test_a_learner_says_where_it_is():
    made = learner()
    begun = "<Learner: step 0, rows 6, batch size 2, device cpu, chain length 3; last losses: x none, c none, "
    assert repr(made) == f"{begun}{EVIL} none>"
    last = {}
    for info in made.run(4):
        last[info.variable] = float(info.loss)
    assert "step 4," in repr(made) and all(f"{name} {loss:.4g}" in repr(made) for name, loss in last.items())
    assert made._repr_html_().count("none") == 3 - len(last)


def test_a_learner_says_the_chain_length_of_its_last_update():
    lengths = [2, 4.5, torch.tensor(3.0)]
    made = pc.Learner(joint(), data(), batch_size=2, chain_length=lengths.__getitem__)
    assert "chain length 2;" in repr(made)
    made.fit(2)
    assert "chain length 4.5;" in repr(made)
    made.fit(1)
    assert "chain length 3;" in repr(made)


def test_the_learners_of_baselines_say_the_same():
    variables = {"x": pc.Real(4), "z": pc.Binary(2)}
    made = VAE(joint(variables), pc.Data({"x": torch.zeros(6, 4)}), batch_size=2)
    made.fit(1)
    assert re.fullmatch(
        r"<VAE: step 1, rows 6, batch size 2, device cpu; last losses: x [\d.]+, z [\d.e-]+>", repr(made)
    )


def test_an_answer_says_of_how_many_rows():
    assert re.match(rf"<Answer about c, {re.escape(EVIL)} of 5 rows: .*converged after \d.*>$", repr(answer()))
    nothing = pc.query(joint(), {"x": torch.zeros(1, 4), "c": torch.zeros(1).long(), EVIL: torch.zeros(1, 2)})
    assert repr(nothing) == "<Answer about nothing: exact, without a chain>" and nothing._repr_html_()


# --- tables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [joint, data, learner, answer])
def test_tables_are_escaped_and_load_nothing(make):
    found = Table(make()._repr_html_())
    assert found.tags == {"div", "strong", "table", "thead", "tbody", "tr", "th", "td"}
    assert [row[0] for row in found.rows[1:] if row[0] == EVIL], "the name of a group is text"
    assert len({len(row) for row in found.rows}) == 1


def test_tables_have_what_is_asked_for():
    assert Table(data()._repr_html_()).rows == [
        ["group", "shape", "type", "observed"],
        ["x", "[4]", "float32", "100%"],
        ["c", "[]", "int64", "50%"],
        [EVIL, "[2]", "float32", "100%"],
    ]
    head, classes, bits = Table(answer()._repr_html_()).rows
    assert head == ["group", "probabilities", "mean", "std", "decisions", "samples", "largest error"]
    assert classes[:6] == ["c", "[5, 3]", "", "", "[5]", "[5, 8]"] and 0 < float(classes[6]) < 1
    assert bits[:6] == [EVIL, "[5, 2]", "[5, 2]", "[5, 2]", "[5, 2]", "[5, 8, 2]"]


def test_long_tables_are_cut_and_empty_columns_left_out():
    found = Table(html_table("Title", ("a", "b", "c"), [(n, "", n) for n in range(MOST_ROWS + 5)]))
    assert found.rows[0] == ["a", "c"] and len(found.rows) == 1 + MOST_ROWS
    assert "and 5 more" in html_table("Title", ("a",), [(n,) for n in range(MOST_ROWS + 5)])


# --- help -----------------------------------------------------------------------------------------------------------

PACKAGES = [pc, pc.datasets, pc.diagnostics, pc.exact, pc.initializers, pc.networks, pc.schedules]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_help_of_a_package_is_short(package):
    assert len(pydoc.render_doc(package).splitlines()) < 250


@pytest.mark.parametrize("package", [pc, pc.exact, pc.initializers, pc.networks], ids=lambda package: package.__name__)
def test_help_of_a_package_names_everything(package):
    text = pydoc.plain(pydoc.render_doc(package))
    for name in package.__all__:
        assert f"`{name}`" in package.__doc__ and name in dir(package)
        assert isinstance(getattr(package, name), type) or re.search(rf"^    {name}\b", text, re.MULTILINE)
    assert dir(package) == sorted(set(dir(package)))


def test_help_of_a_class_is_whole():
    assert "hidden: the width of hidden layers" in pydoc.render_doc(pc.networks.MLP)
    assert "load_state_dict" in pydoc.render_doc(pc.networks.MLP)


def test_help_of_an_answer_has_the_shape_of_everything():
    for name in pc.Answer.__dataclass_fields__:
        (line,) = re.findall(rf"^{name}: ((?:.|\n    )*)", pc.Answer.__doc__.replace("\n    ", "\n"), re.MULTILINE)
        assert "`[batch" in line or "same shapes" in line or name == "diagnostics"
