"""Bad values, masks and settings are refused in words before anything is changed; what is odd but clear is taken."""

import json
import warnings
from collections import UserDict
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest
import torch

import paracond as pc
from paracond.composition import Pinned, Summing
from paracond.data import as_numbers, at_least, one_of, seeded, separated
from paracond.question import Question
from paracond.streams import integers, uniform
from paracond.training.running_batch import RunningForm

FAMILIES = {"x": pc.Real(3), "b": pc.Binary(2), "c": pc.Categorical(3), "t": pc.Real()}


def make_model(families=FAMILIES, **options):
    conditionals = {
        name: pc.Conditional(family, pc.networks.mlp(families, name, hidden=4, depth=1))
        for name, family in families.items()
    }
    return pc.JointModel(conditionals, **options)


MODEL = make_model()
GOOD = {"x": torch.zeros(5, 3), "b": torch.zeros(5, 2), "c": torch.zeros(5, dtype=torch.long), "t": torch.zeros(5)}
WHOLE = pc.Data(GOOD)


def learner(**options):
    return pc.Learner(make_model(), WHOLE, **{"batch_size": 4} | options)


def one_update(**options):
    made = learner(**options)
    for _ in made.run(1):
        pass


def used(**values):
    """Values come to a model."""
    return MODEL.validate(pc.Data(values).state, pc.Data(values).mask)


def hide(fractions, **options):
    return pc.datasets.hide(WHOLE, fractions, **options)


def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


class Sized:
    """Something with rows that is no array."""

    def __len__(self):
        return 3


NAN = float("nan")
NESTED = [1.0]
for _ in range(200):
    NESTED = [NESTED]

BAD = {
    # values
    "too large for float32": (lambda: used(x=np.full((2, 3), 1e39)), "'x' .*too large for .*float32"),
    "minus too large": (lambda: used(t=np.array([0.0, -1e300])), "'t' .*too large for .*float32"),
    "NaN that is observed": (lambda: used(t=[1.0, float("nan")]), "'t' has NaN .*Data.from_nan"),
    "infinite": (lambda: used(t=[1.0, float("inf")]), "'t' has NaN or infinite values"),
    "huge whole numbers": (lambda: pc.Data({"t": [10**30, 1]}), "'t' .*64 bits"),
    "absurd whole numbers": (lambda: pc.Data({"t": [10**5000, 1]}), "'t'"),
    "unsigned over 63 bits": (lambda: pc.Data({"t": np.array([2**64 - 1], dtype=np.uint64)}), "'t' .*64 bits"),
    "complex": (lambda: pc.Data({"t": torch.zeros(3, dtype=torch.complex64)}), "'t' must be real numbers"),
    "complex array": (lambda: pc.Data({"t": np.zeros(3, dtype=complex)}), "'t' must be real numbers"),
    "words": (lambda: pc.Data({"c": np.array(["red", "blue"])}), "'c' .*words.*code"),
    "a word": (lambda: pc.Data({"c": "red"}), "'c' must be a tensor or nested lists of numbers, found 'red'"),
    "dates": (lambda: pc.Data({"t": np.array(["2020-01-01"], dtype="datetime64[D]")}), "'t' .*dates.*number"),
    "objects": (lambda: pc.Data({"t": np.array([1, None, 2.0], dtype=object)}), "'t' .*from_nan"),
    "object words": (lambda: pc.Data({"c": np.array(["red", 1], dtype=object)}), "'c' .*words.*code"),
    "records": (lambda: pc.Data({"t": np.zeros(3, dtype=[("a", "f4")])}), "'t' must be a tensor or nested lists"),
    "ragged": (lambda: pc.Data({"x": [[1.0, 2.0, 3.0], [1.0]]}), "'x' must be a tensor or nested lists of numbers"),
    "too deep": (lambda: pc.Data({"x": NESTED}), "'x' must be a tensor or nested lists of numbers"),
    "a number": (lambda: pc.Data({"t": 3.0}), "'t' of the data must have rows, found the single number 3"),
    "a truth value": (lambda: pc.Data({"t": True}), "'t' of the data must have rows"),
    "None": (lambda: pc.Data({"t": None}), "'t' must be a tensor or nested lists of numbers, found None"),
    "a dictionary": (lambda: pc.Data({"t": {"a": 1}}), "'t' must be a tensor or nested lists of numbers"),
    "an object": (lambda: pc.Data({"t": Sized()}), "'t' must be a tensor or nested lists of numbers"),
    "a function": (lambda: pc.Data({"t": len}), "'t' must be a tensor or nested lists of numbers"),
    "sparse": (lambda: pc.Data({"x": torch.eye(3).to_sparse()}), r"'x' .*sparse.*to_dense\(\)"),
    "quantized": (
        lambda: pc.Data({"t": quantized()}),
        r"'t' .*quantized.*dequantize\(\)",
    ),
    "meta": (lambda: pc.Data({"t": torch.ones(3, device="meta")}), "'t' .*meta.*has no values"),
    "no rows": (lambda: pc.Data({"t": []}), "the data is empty"),
    "no groups": (lambda: pc.Data({}), "values of at least one group"),
    "no dictionary": (
        lambda: pc.Data(torch.zeros(3)),
        "data must be a dictionary by the names of groups, found Tensor",
    ),
    "no values at all": (lambda: pc.Data(None), "data must be a dictionary by the names of groups, found NoneType"),
    "names that are no text": (lambda: pc.Data({3: [1.0]}), "data .*names.*text.*found 3"),
    "rows that differ": (lambda: pc.Data({"t": [1.0], "c": [1, 2]}), "groups differ in their number of rows"),
    "labels that are no whole numbers": (lambda: used(c=[0.5, 1.0]), "'c' is categorical.*found 0.5"),
    "labels beyond the classes": (lambda: used(c=np.array([3], dtype=np.uint8)), "'c' has classes 0 to 2, found 3"),
    "unsigned labels beyond": (lambda: used(c=np.array([9], dtype=np.uint16)), "'c' has classes 0 to 2, found 9"),
    "binary values": (lambda: used(b=np.full((2, 2), 7, dtype=np.uint32)), "'b' is binary.*found 7"),
    # masks
    "a mask of 0 and 1": (
        lambda: pc.Data({"t": [1.0, 2.0]}, {"t": [0, 1]}),
        r"mask of 't' must be boolean.*mask.bool\(\)",
    ),
    "a mask of words": (lambda: pc.Data({"t": [1.0]}, {"t": ["yes"]}), "mask of .t. must be boolean"),
    "a mask that is a word": (lambda: pc.Data({"t": [1.0]}, {"t": "all"}), "mask of .t. must be boolean"),
    "a mask with holes": (
        lambda: pc.Data({"t": [1.0, 2.0]}, {"t": np.ma.array([True, False], mask=[0, 1])}),
        "mask of .t. has missing entries",
    ),
    "a mask of objects": (
        lambda: pc.Data({"t": [1.0, 2.0]}, {"t": np.array([True, "x"], dtype=object)}),
        "mask of .t. must be boolean",
    ),
    "a mask of another shape": (lambda: pc.Data({"t": [1.0, 2.0]}, {"t": [True] * 3}), "mask of 't' must have shape"),
    "a mask that is no dictionary": (lambda: pc.Data({"t": [1.0]}, [True]), "mask of data must be a dictionary"),
    "a mask of an unknown group": (lambda: pc.Data({"t": [1.0]}, {"u": [True]}), "mask for 'u'"),
    # rows of data
    "a row that is not there": (lambda: WHOLE[5], "rows.*5.*5 rows"),
    "rows that are not there": (lambda: WHOLE[[0, 7]], "rows.*7.*5 rows"),
    "rows by a word": (lambda: WHOLE["x"], "rows of the data"),
    "rows by a fraction": (lambda: WHOLE[0.5], "rows of the data"),
    "rows by None": (lambda: WHOLE[None], "rows of the data"),
    "rows by two indices": (lambda: WHOLE[1, 2], "rows of the data"),
    "rows by a mask of another length": (lambda: WHOLE[torch.ones(3, dtype=torch.bool)], "rows of the data.*5"),
    "a device that is none": (lambda: WHOLE.to("gpux"), "device.*gpux"),
    # seeds, counts, words, numbers
    "a seed of 65 bits": (lambda: seeded(2**64), "seed must be a whole number of at most 64 bits"),
    "an absurd seed": (lambda: seeded(10**5000), "seed must be a whole number of at most 64 bits"),
    "a seed that is true": (lambda: seeded(True), "seed must be a whole number of at most 64 bits, found True"),
    "no seed": (lambda: seeded(None), "seed must be a whole number of at most 64 bits, found None"),
    "a seed that is a fraction": (lambda: hide({"t": 0.5}, seed=0.5), "seed must be a whole number"),
    "too many rows": (lambda: at_least({"rows": (10**30, 1)}), r"rows must be at most 2,147,483,647, found 10{29}"),
    "absurdly many rows": (lambda: at_least({"rows": (10**5000, 1)}), "rows must be at most"),
    "a count that is true": (
        lambda: at_least({"rows": (True, 1)}),
        "rows must be a whole number, at least 1, found True",
    ),
    "a word that is an array": (lambda: one_of("scan", np.zeros(3), ("a", "b")), "scan must be one of a, b"),
    "a word that is a list": (lambda: one_of("scan", ["a"], ("a", "b")), "scan must be one of a, b"),
    "hide everything of nothing": (lambda: hide(0.5), "fractions must be a dictionary"),
    "hide an unknown group": (lambda: hide({"u": 0.5}), "cannot hide 'u'"),
    "hide more than all": (lambda: hide({"t": 1.5}), "hidden fraction of 't' must be between 0 and 1"),
    "hide NaN": (lambda: hide({"t": float("nan")}), "hidden fraction of 't' must be"),
    "hide by a word": (lambda: hide({"t": "half"}), "hidden fraction of 't' must be"),
    "hide by truth": (lambda: hide({"t": True}), "hidden fraction of 't' must be"),
    "hide by a word of coordinates": (lambda: hide({"t": 0.5}, coordinates="yes"), "coordinates must be True or False"),
    "hide in no data": (lambda: pc.datasets.hide({"t": [1.0]}, {"t": 0.5}), r"hide takes Data\(values, mask\)"),
    # a model
    "alpha that is a list": (lambda: make_model(alpha=[1, 2, 3, 4]), "alpha must be a dictionary"),
    "alpha that is a number": (lambda: make_model(alpha=0.5), "alpha must be a dictionary"),
    "alpha of other groups": (lambda: make_model(alpha={"x": 1}), "alpha must weigh exactly x, b, c, t, found x"),
    **{
        f"alpha of {weight!r}": (
            lambda weight=weight: make_model(alpha={"x": weight, "b": 1, "c": 1, "t": 1}),
            "alpha of 'x' must be",
        )
        for weight in (0, -1, float("nan"), float("inf"), "1", None, True, 10**400, 1j, [1])
    },
    "alpha with an infinite sum": (lambda: make_model(alpha=dict.fromkeys(FAMILIES, 1e308)), "alpha"),
    "alpha that vanishes": (lambda: make_model(alpha={"x": 5e-324, "b": 1e300, "c": 1, "t": 1}), "alpha of 'x'"),
    "a context of no family": (lambda: pc.Context("Real"), "family of Context must be a Family, found 'Real'"),
    "a context of words": (lambda: pc.Context(pc.Real(), "zero"), "default of a context group"),
    "a context that is infinite": (lambda: pc.Context(pc.Real(), float("inf")), "default of a context group"),
    "a context of another shape": (lambda: pc.Context(pc.Real(3), [1.0, 2.0]), r"default of a context group.*\[3\]"),
    "a context too large": (
        lambda: make_model(context={"k": pc.Context(pc.Real(), 1e39)}).validate({"t": [0.0]}),
        "'k' .*too large for .*float32",
    ),
    "classes that are true": (lambda: pc.Categorical(True), "Categorical needs a whole number of classes"),
    "too many classes": (lambda: pc.Categorical(10**30), "Categorical needs"),
    "a shape of fractions": (lambda: pc.Binary((2.5,)), "event shape"),
    "a shape that is a word": (lambda: pc.Binary("ab"), "event shape"),
    "state that is no dictionary": (lambda: MODEL.validate([1.0]), "state must be a dictionary"),
    "mask that is no dictionary": (lambda: MODEL.validate(GOOD, [True]), "mask must be a dictionary"),
    # a learner
    "a batch that no memory holds": (lambda: learner(batch_size=10**12), "batch_size must be at most"),
    "a batch that is true": (lambda: learner(batch_size=True), "batch_size must be a whole number"),
    "a batch that is None": (lambda: learner(batch_size=None), "batch_size must be a whole number"),
    "a learner without a seed": (lambda: learner(seed=None), "seed must be a whole number"),
    "an average that is true": (lambda: learner(average=False), "average must be a number, found False"),
    "an average that is NaN": (lambda: learner(average=float("nan")), "average must be a number, not NaN"),
    "an average that is a word": (lambda: learner(average="fast"), "average must be a number, found"),
    "chains of no length": (lambda: learner(chain_length=0), "chain_length must be a number, 1 or more, found 0"),
    "chains of NaN": (lambda: learner(chain_length=float("nan")), "chain_length must be"),
    "chains of 10^400": (lambda: learner(chain_length=10**400), "chain_length must be"),
    "chains of a word": (lambda: learner(chain_length="long"), "chain_length must be a number or a function"),
    "chains of None": (lambda: learner(chain_length=None), "chain_length must be a number or a function"),
    "a schedule of words": (lambda: one_update(chain_length=lambda step: "long"), "chain_length at step 0 must be"),
    "a schedule of nothing": (lambda: one_update(chain_length=lambda step: None), "chain_length at step 0 must be"),
    "a schedule of rates": (lambda: one_update(learning_rate=lambda step: -1.0), "learning_rate at step 0 must be"),
    "a schedule of NaN": (lambda: one_update(learning_rate=lambda s: float("nan")), "learning_rate at step 0 must be"),
    "a rate that is a word": (lambda: learner(learning_rate="fast"), "learning_rate must be"),
    "a rate that is infinite": (lambda: learner(learning_rate=float("inf")), "learning_rate must be"),
    "a rate that is true": (lambda: learner(learning_rate=True), "learning_rate must be"),
    "a rate of no group": (lambda: learner(learning_rate={"u": 1e-3}), "unknown variable 'u'"),
    "a rate of a group that is None": (lambda: learner(learning_rate={"x": None}), "learning_rate of 'x' must be"),
    "an optimiser that is none": (lambda: learner(optimiser="adam"), "optimiser must be a function"),
    "an optimiser that makes none": (lambda: learner(optimiser=lambda n, p: None), "optimiser must return .*'x'"),
    "an augmentation that is none": (lambda: learner(augment="flip"), "augment must be a function"),
    "completion by a number": (lambda: learner(completion=3), "completion must be CompletionOptions"),
    "completion steps of 10^30": (lambda: pc.CompletionOptions(steps=10**30), "completion steps must be at most"),
    "warm that is None": (lambda: pc.CompletionOptions(warm=None), "warm must be a tuple of names"),
    "warm of numbers": (lambda: pc.CompletionOptions(warm=(1,)), "warm must be a tuple of names"),
    "parallel by a word": (lambda: pc.CompletionOptions(parallel="no"), "parallel must be True or False"),
    "a form of another scan": (lambda: RunningForm(scan="fast"), "scan must be one of"),
    "a form that skips a word": (lambda: RunningForm(skip_redrawn="no"), "skip_redrawn must be True or False"),
    "a line of words": (lambda: pc.schedules.linear("a", 1, 3), "start of a schedule must be a number"),
    "a line of fractions of steps": (lambda: pc.schedules.linear(1, 2, 2.5), "steps of a schedule must be a whole"),
    "a cosine to NaN": (lambda: pc.schedules.cosine(1, float("nan"), 3), "end of a schedule must be a number"),
    # composition
    "no models": (lambda: pc.compose({}), "compose needs at least one"),
    "models that are a list": (lambda: pc.compose([MODEL]), "models must be a dictionary"),
    "a model that is none": (lambda: pc.compose({"a": 3}), "'a' of models must be a JointModel, found 3"),
    "a prefix that is no text": (lambda: pc.compose({1: MODEL}), "models .*names.*text.*found 1"),
    "a group of no family": (
        lambda: pc.compose({"a": MODEL}, groups={"m": 3}, rules={"m": len}),
        "'m' of groups must be a Family, found 3",
    ),
    "a context instead of a family": (
        lambda: pc.compose({"a": MODEL}, given={"m": pc.Context(pc.Real())}),
        "'m' of given must be a Family",
    ),
    "a rule that is none": (lambda: pc.compose({"a": MODEL}, rules={"a.x": 3}), "'a.x' of rules must be a function"),
    "rules that are a list": (lambda: pc.compose({"a": MODEL}, rules=[len]), "rules must be a dictionary"),
    "a regeneration that is a number": (
        lambda: pc.compose({"a": MODEL}, regeneration=0.1),
        r"regeneration must be Regeneration\(rate, warmup\), found 0.1",
    ),
    "sums of no image": (
        lambda: Summing(pc.Real(3, scale=1.0).distribution(torch.zeros(2, 3)), torch.zeros(2), torch.ones(())),
        "law: Summing .*images",
    ),
    "sums of blocks of no size": (
        lambda: Summing(pc.Real((1, 2, 2), scale=1.0).distribution(torch.zeros(2, 1, 2, 2)), torch.zeros(1), 1.0, 0),
        "size of Summing must be a whole number, at least 1",
    ),
    "a law that is none": (lambda: Pinned(3, torch.zeros(2), torch.ones(2)), "law of Pinned must be a Distribution"),
    "a place that is none": (
        lambda: Pinned(pc.Binary(2).distribution(torch.zeros(2, 2)), torch.zeros(2), torch.ones(2)),
        "where of Pinned must be a boolean tensor",
    ),
    # streams
    "no generator": (lambda: uniform(torch.zeros(3), None), "generator must be a torch.Generator or RowStreams"),
    "no whole numbers": (lambda: integers(0, (3,), torch.Generator()), "high must be a whole number, at least 1"),
}


@pytest.mark.parametrize("call, words", BAD.values(), ids=BAD)
def test_bad_input_is_refused_in_words(call, words):
    with pytest.raises(pc.InputError, match=words) as refused:
        call()
    assert len(str(refused.value)) < 400 and "\n" not in str(refused.value)


# --- masks that values carry ------------------------------------------------------------------------------------------


class Dtype:
    def __str__(self):
        return "Int64"


class Column:
    """A column with missing entries, as data frames have it: what pandas and polars have in common."""

    dtype = Dtype()

    def __init__(self, entries):
        self.entries = list(entries)

    def __len__(self):
        return len(self.entries)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.entries, dtype=dtype)

    def isna(self):
        return np.array([each is None for each in self.entries])

    def dropna(self):
        return Column(each for each in self.entries if each is not None)


class Words(Column):
    dtype = "category"


class Frame:
    """A table with named columns."""

    def __init__(self, **found):
        self.found = {name: Column(each) for name, each in found.items()}
        self.columns, self.shape = list(found), (3, len(found))

    def __getitem__(self, name):
        return self.found[name]


def masked_tensor():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.masked.masked_tensor(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True]))


def pandas_column(dtype):
    return pytest.importorskip("pandas").Series([1, None, 3], dtype=dtype)


CARRIED = {
    "masked array": lambda: np.ma.array([1, 2, 3], mask=[0, 1, 0]),
    "masked array of objects": lambda: np.ma.array([1, None, 3], mask=[0, 1, 0], dtype=object),
    "masked elements": lambda: [1, np.ma.masked, 3],
    "column": lambda: Column([1, None, 3]),
    "masked tensor": masked_tensor,
    "Int64": lambda: pandas_column("Int64"),
    "UInt8": lambda: pandas_column("UInt8"),
    "Float64": lambda: pandas_column("Float64"),
    "array of Int64": lambda: pandas_column("Int64").array,
    "polars": lambda: pytest.importorskip("polars").Series([1, None, 3]),
    "arrow": lambda: pytest.importorskip("pyarrow").array([1, None, 3]),
    "arrow in pandas": lambda: pytest.importorskip("pyarrow") and pandas_column("int64[pyarrow]"),
}


@pytest.mark.parametrize("make", CARRIED.values(), ids=CARRIED)
def test_the_mask_of_values_is_kept(make):
    data = pc.Data({"t": make()})
    assert data.mask["t"].tolist() == [True, False, True]
    assert data.state["t"][data.mask["t"]].tolist() == [1, 3]
    both = pc.Data({"t": make()}, {"t": [False, True, True]})
    assert both.mask["t"].tolist() == [False, False, True]
    _, mask = MODEL.validate({"t": make()}, {"t": [True, True, False]})
    assert mask["t"].tolist() == [True, False, False]
    values, masks = separated({"t": make()})
    assert values["t"].shape == (3,) and masks["t"].tolist() == [True, False, True]
    with pytest.raises(pc.InputError, match="'prior' has missing values"):
        as_numbers("prior", make())


def test_a_column_without_missing_entries_has_no_mask():
    for column in (Column([1, 2]), np.ma.array([1, 2]), np.ma.array([1, 2], mask=[0, 0])):
        values, masks = separated({"t": column})
        assert values["t"].tolist() == [1, 2] and masks == {}


def test_masks_of_single_rows_go_with_many():
    """One row of values, which a query repeats, and a mask with rows of its own."""
    masked = np.ma.array([[1.0, 2.0, 3.0]], mask=[[0, 1, 0]])
    _, masks = separated({"x": masked}, {"x": [[True, True, False], [False, True, True]]})
    assert masks["x"].tolist() == [[True, False, False], [False, False, True]]
    for short in ([True, True, False], [[True, True, False]]):
        assert separated({"x": masked}, {"x": short})[1]["x"].tolist() == [[True, False, False]]


def test_masked_arrays_are_learned_from_where_they_are_observed():
    """A hidden value of a million would show in the mean."""
    values = np.ma.masked_greater(np.where(np.arange(40) % 2, 1e6, 0.0), 1e3)
    made = pc.Learner(make_model(), pc.Data({"t": values}), batch_size=8)
    assert made.completion.observed["t"].tolist() == [True, False] * 20
    assert bool(made.completion.examples["t"][made.completion.observed["t"]].eq(0).all())


def test_tables_are_groups_or_the_columns_of_one():
    frame = Frame(a=[1, 2, 3], b=[4, None, 6])
    data = pc.Data(frame, Frame(a=[True, True, False]))
    assert list(data.state) == ["a", "b"] and data.state["a"].tolist() == [1, 2, 3]
    assert data.mask["a"].tolist() == [True, True, False] and data.mask["b"].tolist() == [True, False, True]
    whole = pc.Data({"x": frame})
    assert whole.state["x"].shape == (3, 2) and whole.state["x"][0].tolist() == [1, 4]
    assert whole.mask["x"].tolist() == [[True, True], [True, False], [True, True]]
    frame.found["b"] = Words(["red", "blue", "red"])
    with pytest.raises(pc.InputError, match=r"^'b' must be numbers, found a column of categories: give the code"):
        pc.Data(frame)
    with pytest.raises(pc.InputError, match=r"^column 'b' of 'x' must be numbers, found a column of categories"):
        pc.Data({"x": frame})
    frame.columns = ["a", "a"]
    with pytest.raises(pc.InputError, match="data has two columns called 'a'"):
        pc.Data(frame)


def test_data_frames_of_pandas_and_polars():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    table = {"a": [1.0, 2.0], "b": [True, None]}
    for frame in (pandas.DataFrame(table).astype({"b": "boolean"}), polars.DataFrame(table)):
        data = pc.Data(frame)
        assert data.state["a"].tolist() == [1, 2] and data.state["b"].dtype == torch.bool
        assert data.mask["b"].tolist() == [True, False]
        assert pc.Data({"x": frame}).mask["x"].tolist() == [[True, True], [True, False]]
        assert pc.Data(data.state, frame[["a"]] == frame[["a"]]).mask["a"].tolist() == [True, True]
    words = {"a": [1, 2], "team": ["red", "blue"]}
    dates = pandas.DataFrame({"day": pandas.date_range("2020", periods=2)})
    for frame in (pandas.DataFrame(words), polars.DataFrame(words), pandas.DataFrame(words).astype("category")):
        with pytest.raises(pc.InputError, match=r"'(team|a)' must be numbers, found (words such as 'red'|a column of)"):
            pc.Data(frame)
    with pytest.raises(pc.InputError, match="'day' must be numbers, found dates or times"):
        pc.Data(dates)
    with pytest.raises(pc.InputError, match="names of groups, which are text, found 0"):
        pc.Data(pandas.DataFrame([[1, 2]]))
    with pytest.raises(pc.InputError, match="found LazyFrame"):
        pc.Data(polars.DataFrame(table).lazy())


@pytest.mark.parametrize("make", CARRIED.values(), ids=CARRIED)
def test_questions_keep_the_mask_of_values(make):
    def known(given):
        return Question.of(MODEL, {"t": given}, None, None, "fitted").mask["t"].tolist()

    assert known(make()) == known(pc.Observed(make())) == [True, False, True]
    assert known(pc.Observed(make(), [False, True, True])) == [False, False, True]


def test_hidden_values_are_answered():
    answer = pc.query(MODEL, {"t": np.ma.array([1.0, 2.0], mask=[0, 1])}, ["t"], stop=pc.Tours(8))
    assert answer.std["t"].gt(0).tolist() == [False, True] and answer.decisions["t"][0] == 1


@pytest.mark.parametrize(
    "given, words",
    [
        ({"t": np.array([1e39])}, "'t' has a value that is too large for the model's float32"),
        ({"x": [[0.0, NAN, 0.0]]}, "'x' has NaN .*Data.from_nan"),
        ({"t": [1.0, None]}, "'t' has missing values .None.: give Data.from_nan"),
        ({"t": pc.Observed([1.0], [1])}, "mask of 't' must be boolean, found torch.int64: give mask.bool"),
        ({1: [1.0]}, "given must be a dictionary by names of groups, which are text, found 1"),
    ],
)
def test_bad_questions_are_refused_in_words(given, words):
    with pytest.raises(pc.InputError, match=words):
        pc.query(MODEL, given)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: make_model(context=[1]), "context must be a dictionary"),
        (lambda: make_model(context={"k": pc.Real()}), "'k' must be a Context"),
        (lambda: make_model(regeneration=0.1), r"regeneration must be Regeneration\(rate, warmup\), found 0.1"),
        (lambda: pc.JointModel([MODEL.conditional("t")]), "conditionals must be a dictionary"),
        (lambda: pc.JointModel({1: MODEL.conditional("t")}), "names of groups, which are text, found 1"),
        (lambda: pc.Regeneration("often"), "rate of Regeneration must be a number over 0"),
        (lambda: pc.query(MODEL, want=[["t"]]), "the name of a group must be text"),
    ],
)
def test_bad_models_are_refused_in_words(call, words):
    with pytest.raises(pc.InputError, match=words):
        call()


# --- missing by name --------------------------------------------------------------------------------------------------

NA = type("NAType", (), {})()


@pytest.mark.parametrize(
    "values, seen",
    [
        ([1.0, NAN, 3.0], [True, False, True]),
        ([1, None, 3], [True, False, True]),
        ([None, None, 3.5], [False, False, True]),
        ([True, None, False], [True, False, True]),
        ([[1.0, None, 3.0], [NAN, 2.0, 1.0]], [[True, False, True], [False, True, True]]),
        (np.array([1.0, NAN]), [True, False]),
        (np.array([1, None, NA, NAN, 2.5], dtype=object), [True, False, False, False, True]),
        (np.ma.array([1.0, NAN, 3.0], mask=[1, 0, 0]), [False, False, True]),
        (torch.tensor([NAN, 1.0], dtype=torch.float16), [False, True]),
        (Column([1.0, None, 3.0]), [True, False, True]),
        ([1, 2, 3], [True, True, True]),
    ],
)
def test_nan_means_missing_by_name(values, seen):
    data = pc.Data.from_nan({"v": values})
    assert data.mask["v"].tolist() == seen
    assert bool(data.state["v"][data.mask["v"]].double().isfinite().all())
    hidden = pc.Data.from_nan({"v": values}, {"v": [False] + [True] * (len(seen) - 1)})
    assert not bool(hidden.mask["v"][0].any()) and hidden.mask["v"][1:].tolist() == seen[1:]


def test_missing_by_name_in_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, NAN], "b": pandas.array([None, 2], dtype="Int64"), "c": [None, 3]})
    frame["d"] = pandas.Series([pandas.NA, 1], dtype=object)
    assert {name: mask.tolist() for name, mask in pc.Data.from_nan(frame).mask.items()} == {
        "a": [True, False],
        "b": [False, True],
        "c": [False, True],
        "d": [False, True],
    }


def test_infinite_is_not_missing():
    data = pc.Data.from_nan({"t": [1.0, float("inf"), NAN]})
    assert data.mask["t"].tolist() == [True, True, False]
    with pytest.raises(pc.InputError, match="'t' has NaN or infinite values"):
        MODEL.validate(data.state, data.mask)


# --- what is odd and taken --------------------------------------------------------------------------------------------

TAKEN = {
    **{
        f"labels {kind.__name__}": (lambda kind=kind: kind([0, 2]), "c")
        for kind in (
            np.uint8,
            np.uint16,
            np.uint32,
            np.uint64,
            np.int8,
            np.int16,
            np.float16,
            np.longlong,
            np.ulonglong,
        )
    },
    **{
        f"tensor {kind}": (lambda kind=kind: torch.tensor([0, 2]).to(kind), "c")
        for kind in (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16)
    },
    "other order of bytes": (lambda: np.array([0, 2], dtype=">i4"), "t"),
    "long double": (lambda: np.array([0, 2], dtype=np.longdouble), "t"),
    "backwards": (lambda: np.array([2.0, 0.0])[::-1], "t"),
    "read-only": (lambda: np.broadcast_to(np.array([0.0, 2.0]), (2,)), "t"),
    "read-only labels": (lambda: np.broadcast_to(np.array([0, 2]), (2,)), "c"),
    "with gradient": (lambda: torch.nn.Parameter(torch.tensor([0.0, 2.0])), "t"),
    "list of arrays": (lambda: [np.array(0.0), np.array(2.0)], "t"),
    "list of tensors": (lambda: [torch.tensor(0.0), torch.tensor(2.0)], "t"),
    "fractions": (lambda: np.array([Fraction(0), Fraction(2)], dtype=object), "t"),
    "range": (lambda: range(0, 4, 2), "t"),
}


@pytest.mark.parametrize("make, name", TAKEN.values(), ids=TAKEN)
def test_odd_types_are_taken(make, name):
    data = pc.Data({name: make()})
    assert data[1:].state[name].tolist() == [2] and data[[1, 0]].state[name].tolist() == [2, 0]
    values, _ = MODEL.validate(data.state, data.mask)
    assert values[name].tolist() == [0, 2] and not values[name].requires_grad


def test_more_classes_than_the_type_of_labels_counts():
    model = make_model({"c": pc.Categorical(300), "t": pc.Real()})
    assert model.validate({"c": np.array([255, 3], dtype=np.uint8)})[0]["c"].tolist() == [255, 3]
    with pytest.raises(pc.InputError, match="classes 0 to 299, found -1"):
        model.validate({"c": np.array([-1, 3], dtype=np.int8)})


def test_rows_are_chosen_in_many_ways():
    data = pc.Data({"t": [0.0, 1.0, 2.0]})
    for rows, expected in [
        (1, [1]), (-1, [2]), (np.int64(2), [2]), (torch.tensor(1), [1]), (slice(None, None, -1), [2, 1, 0]),
        ([True, False, True], [0, 2]), (np.array([2, 0], dtype=np.uint8), [2, 0]), (range(2), [0, 1]),
        (torch.tensor([-1]), [2]), (Column([0, 2]), [0, 2]),
    ]:  # fmt: skip
        assert data[rows].state["t"].tolist() == expected
    assert [row.state["t"].tolist() for row in data] == [[0], [1], [2]]
    with pytest.raises(pc.InputError, match="the data is empty"):
        data[[]]


def test_numbers_of_numpy_are_taken():
    model = make_model({"c": pc.Categorical(np.int64(3)), "x": pc.Real(np.int32(2)), "b": pc.Binary((np.int8(2), 1))})
    assert json.dumps([family.describe() for family in model.variables.values()])
    weighed = make_model(alpha={"x": np.float32(1), "b": np.int64(2), "c": 1, "t": torch.tensor(4.0)})
    assert weighed.alpha == {"x": 0.125, "b": 0.25, "c": 0.125, "t": 0.5}
    made = learner(batch_size=np.int64(4), seed=np.uint8(1), average=np.float32(0.5), chain_length=np.int32(2))
    assert (type(made.batch_size), type(made.decay), made.step().chain_length) == (int, float, 2)
    tensors = learner(chain_length=lambda step: torch.tensor(2.0), learning_rate=np.float32(0.5))
    assert tensors.step().chain_length == 2
    assert hide({"t": np.float32(0.25)}).mask["t"].sum() == 3
    assert seeded(np.uint64(2**64 - 1)).initial_seed() == 2**64 - 1


def test_a_default_of_context_is_plain():
    for default in (np.float64(0.5), np.array(0.5), torch.tensor(0.5), 0.5):
        group = pc.Context(pc.Real(2), default)
        assert json.loads(json.dumps(group.describe()))["default"] == 0.5
        assert group.values("k", 2, torch.float32, torch.device("cpu")).tolist() == [[0.5, 0.5]] * 2
    assert pc.Context(pc.Real(2), (1, np.int64(2))).describe()["default"] == [1, 2]


@pytest.mark.parametrize(
    "mask", [[True, False], Column([True, False]), np.broadcast_to(np.array([True, False]), (2,)), (True, False)]
)
def test_masks_of_many_kinds_are_taken(mask):
    assert pc.Data({"t": [1.0, 2.0]}, {"t": mask}).mask["t"].tolist() == [True, False]


def test_mappings_of_other_kinds_are_taken():
    data = pc.Data(UserDict(t=[1.0, 2.0]), MappingProxyType({"t": [True, False]}))
    assert data.mask["t"].tolist() == [True, False]
    assert hide(UserDict(t=1.0)).mask["t"].tolist() == [False] * 5


# --- nothing is changed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data, options",
    [
        (lambda: pc.Data({"t": [NAN, 1.0]}), {}),
        (lambda: pc.Data({"u": [1.0]}), {}),
        (lambda: WHOLE, {"optimiser": lambda name, parameters: None}),
        (lambda: WHOLE, {"completion": pc.CompletionOptions(warm=("x",))}),
        (lambda: WHOLE, {"chain_length": 0}),
    ],
)
def test_a_refused_learner_leaves_the_modes_of_its_model(data, options):
    model = make_model().eval()
    next(iter(model.conditionals)).train()
    before = [module.training for module in model.modules()]
    with pytest.raises(pc.InputError):
        pc.Learner(model, data(), **options)
    assert [module.training for module in model.modules()] == before


def test_values_of_the_model_s_own_type_are_checked_once(monkeypatch):
    """A large array of float32 is looked at once, one of float64 once more after it is stored."""
    looked = []
    real = torch.Tensor.isfinite
    monkeypatch.setattr(torch.Tensor, "isfinite", lambda self: looked.append(self.dtype) or real(self))
    MODEL.validate({"x": torch.zeros(4, 3)})
    assert looked.count(torch.float32) == 4  # the other groups have no values
    looked.clear()
    MODEL.validate({"x": torch.zeros(4, 3, dtype=torch.float64)})
    assert looked.count(torch.float64) == 1 and looked.count(torch.float32) == 4
