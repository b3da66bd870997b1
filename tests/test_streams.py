"""A random stream for every row: uniform and independent numbers of the right laws, the same on every path."""

import numpy as np
import pytest
import scipy.stats
import torch
from helpers import DEVICES, THRESHOLD, assert_fits, assert_mean

import paracond as pc
from paracond import streams
from paracond.question import Question
from paracond.streams import RowStreams, exponential, integers, normal, uniform

ROWS, ELEMENTS = 256, 1024
FLOATS = [torch.float32, torch.float64]
HALVES = [torch.bfloat16, torch.float16]


def rows_of(count=ROWS, seed=0, time=0, place=0):
    """Streams of rows as inference makes them."""
    keys = np.random.default_rng(seed).integers(0, 2**63, size=1, dtype=np.uint64)
    keys = streams.as_keys(streams.numbered(np.repeat(keys, count), np.arange(count)))
    return RowStreams(keys, torch.full_like(keys, time), place)


def cells(bits, shift, width=4):
    """The `width` bits of each number from `shift` on."""
    return ((bits >> shift) & (2**width - 1)).flatten().numpy()


def assert_independent(first, second):
    """Both are uniform, and so is the pair: chi-square of the upper, the middle and the lowest four bits."""
    for shift in (60, 31, 0):
        counts = np.bincount(16 * cells(first, shift) + cells(second, shift), minlength=256)
        assert_fits(counts, np.full(256, 1 / 256))


def test_bits_are_uniform():
    bits = rows_of().bits((ROWS, ELEMENTS))
    for shift in range(0, 64, 8):
        assert_fits(np.bincount(cells(bits, shift, 8), minlength=256), np.full(256, 1 / 256))


@pytest.mark.parametrize("axis", ["rows", "elements", "draws", "places", "times", "a time and a draw", "keys in turn"])
def test_numbers_are_independent(axis):
    shape = (ROWS, ELEMENTS)
    generator = rows_of()
    bits, then = generator.bits(shape), generator.bits(shape)
    keys = torch.arange(ROWS + 1)
    in_turn = RowStreams(keys, torch.zeros_like(keys)).bits((ROWS + 1, ELEMENTS))
    first, second = {
        "rows": (bits[:-1], bits[1:]),
        "elements": (bits[:, :-1], bits[:, 1:]),
        "draws": (bits, then),
        "places": (bits, rows_of(place=1).bits(shape)),
        "times": (bits, rows_of(time=1).bits(shape)),
        "a time and a draw": (then, rows_of(time=1).bits(shape)),
        "keys in turn": (in_turn[:-1], in_turn[1:]),
    }[axis]
    assert_independent(first, second)


def test_no_number_comes_twice():
    """Of 2^20 numbers of 64 bits two agree with probability 2^-25."""
    found = []
    for time in range(4):
        for place in range(4):
            generator = rows_of(64, time=time).at(place)
            found += [generator.bits((64, 256)) for _ in range(4)]
    assert len(torch.stack(found).unique()) == 2**20


def test_serial_correlations_are_zero():
    """Along a row, of numbers up to 32 apart."""
    u = uniform(torch.empty(64, 2**14, dtype=torch.float64), rows_of(64)) - 0.5
    for lag in (1, 2, 3, 4, 8, 16, 32):
        assert_mean((12 * u[:, :-lag] * u[:, lag:]).mean(1), 0.0, f"lag {lag}")


@pytest.mark.parametrize("dtype", FLOATS)
def test_laws(dtype):
    like = torch.empty(ROWS, ELEMENTS, dtype=dtype)
    for draw, law in ((uniform, "uniform"), (normal, "norm"), (exponential, "expon")):
        found = draw(like, rows_of(seed=1))
        assert found.dtype == dtype and found.shape == like.shape
        assert scipy.stats.kstest(found.flatten().double().numpy(), law).pvalue > THRESHOLD, law
        assert_mean(
            found.flatten()[1:].double() * found.flatten()[:-1], {"norm": 0.0, "uniform": 0.25, "expon": 1}[law]
        )
    u = uniform(like, rows_of())
    assert float(u.min()) >= 0 and float(u.max()) < 1


@pytest.mark.parametrize("dtype", HALVES)
def test_laws_of_numbers_of_16_bits(dtype):
    """They are coarse, so cells are counted."""
    edges = np.linspace(0, 1, 11)
    for draw, law in ((uniform, "uniform"), (normal, "norm"), (exponential, "expon")):
        found = draw(torch.empty(50, 200, dtype=dtype), rows_of(50))
        assert found.dtype == dtype
        cell = np.digitize(getattr(scipy.stats, law).cdf(found.flatten().double().numpy()), edges[1:-1])
        assert_fits(np.bincount(cell, minlength=10), np.full(10, 0.1))
    u = uniform(torch.empty(ROWS, ELEMENTS, dtype=dtype), rows_of())
    assert float(u.min()) >= 0 and float(u.max()) < 1


def test_rare_events_have_their_probability():
    """Small uniform numbers have all their digits, as if there were infinitely many."""
    u = uniform(torch.empty(1024, 4096), rows_of(1024))
    small = u[u < 2.0**-12]
    fit = scipy.stats.kstest(small.double().numpy() * 2.0**12, "uniform")
    assert fit.pvalue > THRESHOLD
    assert scipy.stats.binomtest(len(small), u.numel(), 2.0**-12).pvalue > THRESHOLD
    assert bool((small * 2.0**24 % 1 != 0).any())  # more digits than 24 bits after the point


@pytest.mark.parametrize("dtype", FLOATS + HALVES)
@pytest.mark.parametrize("value", [0, -1, 2**63 - 1, -(2**63), 2**32 - 1])
def test_extreme_bits_give_numbers(dtype, value):
    class Extreme(RowStreams):
        def bits(self, shape):
            return torch.full(tuple(shape), value)

    generator, like = Extreme(torch.zeros(2).long(), torch.zeros(2).long()), torch.empty(2, 3, dtype=dtype)
    u = uniform(like, generator)
    assert bool(((u >= 0) & (u < 1)).all())
    assert bool(normal(like, generator).isfinite().all())
    clocks = exponential(like, generator)
    assert bool(((clocks >= 0) & clocks.isfinite()).all())
    assert int(integers(7, (2, 3), generator).max()) <= 6


@pytest.mark.parametrize("high", [1, 2, 7, 1000])
def test_integers(high):
    found = integers(high, (ROWS, ELEMENTS), rows_of())
    assert found.dtype == torch.int64
    assert_fits(np.bincount(found.flatten().numpy(), minlength=high), np.full(high, 1 / high)) if high > 1 else None
    assert int(found.min()) >= 0 and int(found.max()) < high


def test_a_row_draws_alone():
    """Its numbers do not depend on the other rows or on its place."""
    for draw in (uniform, normal, exponential):
        whole = draw(torch.empty(ROWS, 3, 5), rows_of())
        some = torch.tensor([200, 3, 77])
        part = RowStreams(rows_of().keys[some], torch.zeros(3).long())
        torch.testing.assert_close(draw(torch.empty(3, 3, 5), part), whole[some], rtol=1e-6, atol=1e-6)
    assert torch.equal(
        RowStreams(rows_of().keys[some], torch.zeros(3).long()).bits((3, 9)), rows_of().bits((ROWS, 9))[some]
    )
    # A row of another size begins with the same numbers.
    assert torch.equal(rows_of().bits((ROWS, 4)), rows_of().bits((ROWS, 2, 5)).flatten(1)[:, :4])


def test_time_moves_in_place():
    """As recorded programs need it."""
    generator = rows_of()
    before = generator.at(3)
    generator.time.add_(1)
    assert torch.equal(before.bits((ROWS, 4)), rows_of(time=1, place=3).bits((ROWS, 4)))
    assert torch.equal(rows_of().at(3, later=2).bits((ROWS, 4)), rows_of(time=2, place=3).bits((ROWS, 4)))


def test_a_torch_generator_serves_all_places():
    generator = torch.Generator().manual_seed(0)
    assert streams.at(generator, 5) is generator
    for draw, law in ((uniform, "uniform"), (normal, "norm"), (exponential, "expon")):
        assert scipy.stats.kstest(draw(torch.empty(20_000), generator).numpy(), law).pvalue > THRESHOLD
    assert_fits(np.bincount(integers(5, (100, 100), generator).flatten().numpy(), minlength=5), np.full(5, 0.2))


@pytest.mark.parametrize("device", DEVICES)
def test_bits_are_the_same_everywhere(device):
    """In numpy and in torch, and on every device."""
    numbers = np.random.default_rng(0).integers(0, 2**64, size=10_000, dtype=np.uint64)
    numbers[:4] = [0, 1, 2**63, 2**64 - 1]
    with np.errstate(over="ignore"):
        mixed = streams._mixed(numbers)
    assert torch.equal(streams._mix(streams.as_keys(numbers).to(device)).cpu(), streams.as_keys(mixed))
    assert len(np.unique(mixed)) == len(np.unique(numbers))  # a bijection
    generator = rows_of(time=4, place=2)
    moved = RowStreams(generator.keys.to(device), generator.time.to(device), 2)
    assert torch.equal(moved.bits((ROWS, 7)).cpu(), generator.bits((ROWS, 7)))
    drawn = uniform(torch.empty(ROWS, 7, device=device), moved).cpu()
    assert torch.equal(drawn, uniform(torch.empty(ROWS, 7), generator))


def test_a_draw_has_a_row_for_every_stream():
    with pytest.raises(pc.InputError, match=r"a draw has shape \[3, 2\], expected 256 rows"):
        uniform(torch.empty(3, 2), rows_of())


# --- keys -------------------------------------------------------------------------------------------------------


def test_digests_say_what_a_row_contains():
    content = {"a": torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.5, 1.0], [-0.0, 1.0]]), "b": torch.tensor([1, 2, 1, 1])}
    mask = {"m": torch.tensor([[True, False, False]]).repeat(4, 1)}
    found = streams.row_digests(content | mask, 0)
    assert found.shape == (4, 2) and found.dtype == np.uint64
    assert (found[0] == found[3]).all()  # minus zero is zero
    assert len(np.unique(found, axis=0)) == 3  # one value, one class
    again = streams.row_digests({k: v[[2, 0]] for k, v in (content | mask).items()}, 0)
    assert (again == found[[2, 0]]).all()  # whatever the rows beside it
    others = [
        streams.row_digests(content | mask, 1),
        streams.row_digests(content | {"m": mask["m"].flip(1)}, 0),
        streams.row_digests({"a": content["a"], "c": content["b"]} | mask, 0),
        streams.row_digests({"a": content["a"].double() + 1e-12, "b": content["b"]} | mask, 0),
    ]
    every = np.concatenate([found, *others])
    assert len(np.unique(every[:, 0])) == len(np.unique(every[:, 1])) == 3 * 5


def test_digests_of_numbers_of_16_bits():
    values = torch.tensor([[0.5, 1.0], [0.5, 1.0], [0.25, 1.0]])
    for dtype in HALVES:
        found = streams.row_digests({"a": values.to(dtype)}, 0)
        assert (found[0] == found[1]).all() and (found[0] != found[2]).all()


def test_digests_of_questions_ignore_what_is_not_known():
    variables = {"x": pc.Real(3), "c": pc.Categorical(4)}
    model = pc.JointModel({n: pc.Conditional(v, pc.networks.mlp(variables, n)) for n, v in variables.items()})
    mask = torch.tensor([True, False, True])

    def digests(x, mask=mask, seed=0, init="fitted"):
        return Question.of(model, {"x": pc.Observed(torch.tensor([x]), mask)}, None, None, init).digests(seed)

    found = digests([1.0, 2.0, 3.0])
    for same in (digests([1.0, 7.0, 3.0]), digests([1.0, float("nan"), 3.0])):
        assert (found == same).all()
    others = [
        digests([1.0, 2.0, 3.5]),
        digests([1.0, 2.0, 3.0], seed=1),
        digests([1.0, 2.0, 0.0], torch.tensor([True, False, False])),
        digests([1.0, 2.0, 0.0]),
        digests([1.0, 2.0, 3.0], torch.tensor([True, True, True])),
        digests([1.0, 2.0, 3.0], init={"c": torch.tensor([0])}),
        digests([1.0, 2.0, 3.0], init={"c": torch.tensor([1])}),
    ]
    assert len(np.unique(np.concatenate([found, *others]), axis=0)) == 8


def test_numbered_keys_differ():
    keys = np.array([0, 1, 2**64 - 1], dtype=np.uint64)
    found = streams.numbered(np.repeat(keys, 1000), np.tile(np.arange(1000), 3))
    assert len(np.unique(np.concatenate([found, keys]))) == 3003


def test_occurrences_count_equal_keys():
    keys = np.random.default_rng(0).integers(0, 5, size=200).astype(np.uint64)
    expected = [int((keys[:k] == keys[k]).sum()) for k in range(200)]
    assert streams.occurrences(keys).tolist() == expected
    assert streams.occurrences(keys[:0]).tolist() == []


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9, 1, 1.0])
def test_lengths_are_geometric(rate):
    found = streams.geometric(streams.numbered(np.zeros(100_000, dtype=np.uint64), np.arange(100_000)), rate)
    if rate == 1:
        assert not found.any()
        return
    last = int(np.log(1e-3) / np.log1p(-rate))
    law = rate * (1 - rate) ** np.arange(last)
    counts = np.bincount(np.minimum(found, last), minlength=last + 1)
    assert_fits(counts, np.append(law, 1 - law.sum()))


def test_lengths_do_not_depend_on_the_numbers_of_a_tour():
    keys = streams.numbered(np.zeros(20_000, dtype=np.uint64), np.arange(20_000))
    lengths = streams.geometric(keys, 0.5)
    generator = RowStreams(streams.as_keys(keys), torch.zeros(20_000).long())
    for time in range(3):
        u = uniform(torch.empty(20_000, 1, dtype=torch.float64), generator.at(0, later=time)).flatten()
        assert scipy.stats.spearmanr(u.numpy(), lengths).pvalue > THRESHOLD
        assert scipy.stats.kstest(u[torch.from_numpy(lengths == 0)].numpy(), "uniform").pvalue > THRESHOLD


# --- families ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["streams", "a torch generator"])
def test_families_have_their_laws(source):
    rows = 20_000
    generator = rows_of(rows) if source == "streams" else torch.Generator().manual_seed(0)
    logits = torch.tensor([-2.0, 0.3], dtype=torch.float64)
    drawn = pc.Binary(2).distribution(logits.expand(rows, 2)).sample(generator)
    index = (2 * drawn[:, 0] + drawn[:, 1]).long()
    p, q = torch.stack([-logits, logits]).sigmoid().T
    assert_fits(torch.bincount(index, minlength=4), torch.outer(p, q))
    logits = torch.tensor([[0.0, 1.0, -2.0], [0.5, 0.0, 0.0]], dtype=torch.float64)
    drawn = pc.Categorical(3, 2).distribution(logits.expand(rows, 2, 3)).sample(generator)
    p = logits.softmax(1)
    assert_fits(torch.bincount(3 * drawn[:, 0] + drawn[:, 1], minlength=9), torch.outer(p[0], p[1]))
    output = torch.tensor([[3.0, -1.0], [0.0, 2.0]])
    law = pc.Real(2).distribution(output.expand(rows, 2, 2))
    standard = (law.sample(generator) - law.mean) / law.variance.sqrt()
    for k in range(2):
        assert scipy.stats.kstest(standard[:, k].numpy(), "norm").pvalue > THRESHOLD
    assert_mean(standard[:, 0] * standard[:, 1], 0.0)


@pytest.mark.parametrize("source", ["streams", "a torch generator"])
def test_random_values_have_their_laws(source):
    rows = 20_000
    generator = rows_of(rows) if source == "streams" else torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        binary = pc.Binary(2).random(rows, generator, dtype)
        assert binary.dtype == dtype
        assert_fits(torch.bincount((2 * binary[:, 0] + binary[:, 1]).long(), minlength=4), np.full(4, 0.25))
    classes = pc.Categorical(3, 2).random(rows, generator, torch.float32)
    assert_fits(torch.bincount(3 * classes[:, 0] + classes[:, 1], minlength=9), np.full(9, 1 / 9))
    real = pc.Real(2).random(rows, generator, torch.float64)
    assert real.dtype == torch.float64
    assert scipy.stats.kstest(real.flatten().numpy(), "norm").pvalue > THRESHOLD


class Coin(pc.Distribution):
    """A law that draws as torch does, as a user might write it."""

    def __init__(self, logits):
        self.logits = logits

    def scores(self, value):
        return value * self.logits - torch.nn.functional.softplus(self.logits)

    def sample(self, generator):
        return torch.bernoulli(self.mean, generator=generator)

    mean = property(lambda self: torch.sigmoid(self.logits))
    variance = property(lambda self: self.mean * (1 - self.mean))
    entropy = property(lambda self: -self.scores(self.mean))


def test_a_foreign_draw_is_explained():
    """Families that ask torch for numbers are told what to use; other errors pass."""
    variables = {"a": pc.Binary(2), "b": pc.Binary(1)}
    model = pc.JointModel({n: pc.Conditional(v, pc.networks.mlp(variables, n)) for n, v in variables.items()})
    joint = pc.compose({"m": model}, rules={"m.a": lambda law, others: Coin(law("m.a").logits)})
    words = r"draw with uniform, normal, exponential or integers of paracond.streams \(.*RowStreams"
    for ask in (pc.sample, pc.query, lambda model: pc.query(model, {"m.b": torch.ones(1, 1)})):
        with pytest.raises(pc.InputError, match=words) as caught:
            ask(joint)
        assert isinstance(caught.value.__cause__, TypeError)
    assert len(pc.sample(joint, rows=3, sweeps=2)["m.a"]) == 3  # chains that never begin anew have a torch generator
    with pytest.raises(TypeError, match=r"^nothing else$"), streams.rows_draw():
        raise TypeError("nothing else")
