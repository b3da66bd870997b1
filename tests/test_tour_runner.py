"""The runner of tours: against a loop over single tours, however they are scheduled, whatever the other rows are."""

import math

import numpy as np
import pytest
import torch
from helpers import assert_fits, state_index
from limits import FINITE, MODEL, QUESTIONS, REGENERATIONS, SCANS, VARIABLES, batched, limit_of, with_init
from torch import nn

import paracond as pc
from paracond import inference, streams, tours
from paracond.chain import transition
from paracond.estimates import _errors
from paracond.observers import summary
from paracond.question import Question
from paracond.runtime.engine import Engine
from paracond.streams import RowStreams

# --- the runner, against a loop over single tours -------------------------------------------------------------------


def one_tour(question, row, number, key, regeneration):
    """The last state of a tour, and the conditional means and variances of the states that count."""
    model, tour = question.model, streams.numbered(np.array([key]), np.array([number]))
    own, keys = question.rows(torch.tensor([row])), streams.as_keys(tour)
    state = tours.first_states(own, keys)
    now = {n: (f.encode(state[n]).double(), torch.zeros(1, *f.encoding_shape)) for n, f in model.variables.items()}
    last = regeneration.warmup + int(streams.geometric(tour, regeneration.rate)[0])
    counted = [dict(now)] if regeneration.warmup == 0 else []
    for time in range(1, last + 1):
        generator = RowStreams(keys, torch.full_like(keys, time))
        for place, name in enumerate(model.names):
            move = transition(model, name, state, own.mask[name], generator.at(place))
            state[name], now[name] = move.value, summary(model.variables[name], move)
        counted += [dict(now)] * (time >= regeneration.warmup)
    return state, counted


@pytest.mark.parametrize("regeneration", [pc.Regeneration(1, 0), *REGENERATIONS[1:4], pc.Regeneration(0.1, 4)], ids=str)
def test_an_answer_is_that_of_its_tours(regeneration):
    """Of exactly as many as were asked for, each with the states from the warm-up on to the last."""
    count, chains = 20, 5
    model = with_init()
    given = batched(model, [QUESTIONS[kind] for kind in ("nothing", "a coordinate", "a coordinate and a group")])
    options = {"stop": pc.Tours(count), "regeneration": regeneration, "chains": chains, "seed": 3}
    answer = pc.query(model, given, list(VARIABLES), **options)
    assert answer.diagnostics.tours.tolist() == [count] * 3
    question = Question.of(model, given, None, None, "fitted")
    half = max(1, round(math.log(2) / regeneration.rate))
    for row, key in enumerate(question.digests(3)[:, 0]):
        done = [one_tour(question, row, number, key, regeneration) for number in range(count)]
        for name in VARIABLES:
            drawn = torch.cat([state[name] for state, _ in done])
            assert torch.equal(answer.samples[name][row], drawn[:chains])
            parts = [torch.cat([each[name][0] for each in counted]) for _, counted in done]
            every = torch.cat(parts)
            variances = torch.cat([torch.cat([each[name][1] for each in counted]) for _, counted in done])
            mean = every.mean(0)
            left_out = [(part - mean).sum(0) / (len(every) - len(part)) for part in parts]
            error, spread = (each[0] for each in _errors(torch.stack(left_out)[None]))
            torch.testing.assert_close(answer.probabilities[name][row], mean)
            torch.testing.assert_close(answer.error[name][row], error, atol=1e-8, rtol=1e-6)
            if name != "b":
                variance = ((every - mean) ** 2 + variances).mean(0) + spread
                torch.testing.assert_close(answer.std[name][row], variance.sqrt(), atol=1e-8, rtol=1e-6)
            early, late = (torch.cat([part[some] for part in parts]) for some in (slice(half), slice(half, None)))
            if not len(late):
                assert float(answer.diagnostics.drift[name][row]) == 0
                continue
            gaps = torch.stack(
                [
                    (part[:half] - early.mean(0)).sum(0) / len(early) - (part[half:] - late.mean(0)).sum(0) / len(late)
                    for part in parts
                ]
            )
            squares = count / (count - 1) * gaps.square().sum(0)
            free = squares > 1e-20
            z = (early.mean(0) - late.mean(0))[free].square() / squares[free]
            drift = z.mean().sqrt() if bool(free.any()) else torch.zeros(())
            torch.testing.assert_close(answer.diagnostics.drift[name][row], drift.double())


def answers(model=MODEL, **options):
    """Marginals, errors and samples of all questions, and draws."""
    given = batched(model, list(QUESTIONS.values()))
    options = {"regeneration": pc.Regeneration(0.2, 2)} | options
    found = pc.query(model, given, list(VARIABLES), stop=pc.Tours(12), **options)
    flat = {f"{what} {n}": v for what in ("probabilities", "error", "samples") for n, v in getattr(found, what).items()}
    return flat | pc.sample(model, batched(model, list(QUESTIONS.values()) * 10), **options)


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("how", ["few slots", "two slots", "many slots", "any slot", "any of few slots", "rare looks"])
def test_scheduling_does_not_change_answers(how, scan, monkeypatch):
    """Up to the rounding of products of other sizes."""
    model = with_init()
    expected = answers(model, scan=scan)
    slots = {"few slots": 7, "two slots": 2, "many slots": 300, "any of few slots": 7}
    if how in slots:
        monkeypatch.setattr(tours, "slots_of", lambda *_: slots[how])
        monkeypatch.setattr(inference, "slots_of", lambda *_: slots[how])
    if "any" in how:  # as on a GPU
        monkeypatch.setattr(tours._Waiting, "placed", False)
    if how == "rare looks":  # as there too: tours that have ended wait
        begin = tours.TourRunner.run
        monkeypatch.setattr(
            tours.TourRunner, "run", lambda self, schedule: setattr(self, "stride", 9) or begin(self, schedule)
        )
    found = answers(model, scan=scan)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-9, rtol=1e-7)


class Recorded:
    """A schedule of some tours that notes what they leave."""

    def __init__(self, batch):
        self.left, self.ended = batch, []

    def take(self, count):
        taken, self.left = self.left[:count], self.left[count:]
        return taken

    def wanted(self, batch):
        return np.ones(len(batch), dtype=bool)

    def finish(self, batch, record):
        self.ended += [(int(n), {k: v[i] for k, v in record.state.items()}) for i, n in enumerate(batch.numbers)]


def runner_of(question, regeneration, slots, **options):
    free = list(question.model.names)
    return tours.TourRunner(question, free, free, regeneration, "systematic", Engine("cpu"), slots, **options)


def test_every_tour_runs_once_whatever_its_length():
    question, keys = Question.of(MODEL, {}, None, 1, "fitted"), np.array([7], dtype=np.uint64)
    batch = tours.Batch.of(np.zeros(500, dtype=int), np.arange(500), keys)
    schedule = Recorded(batch)
    runner_of(question, pc.Regeneration(0.1, 1), 16).run(schedule)
    assert sorted(number for number, _ in schedule.ended) == list(range(500))
    assert [number for number, _ in schedule.ended] != list(range(500))  # short ones end earlier


def test_tours_that_are_not_wanted_any_more_give_their_slots_away():
    """Tours of one sweep and of many: when the first have ended, the schedule wants no more."""
    question, keys = Question.of(MODEL, {}, None, 1, "fitted"), np.array([7], dtype=np.uint64)

    class Impatient(Recorded):
        def wanted(self, batch):
            return np.full(len(batch), len(self.ended) < 10)

    schedule = Impatient(tours.Batch.of(np.zeros(5000, dtype=int), np.arange(5000), keys))
    sweeps = runner_of(question, pc.Regeneration(0.001, 0), 16).run(schedule)
    assert 10 <= len(schedule.ended) < 26 and sweeps < 2000


def test_what_does_not_matter_is_not_redrawn():
    """c reads a alone: b stays as it began, by row."""
    variables = {"a": pc.Binary(2), "b": pc.Binary(2), "c": pc.Binary(2)}
    networks = {n: pc.networks.mlp(variables, n, reads=["a"] if n == "c" else None) for n in variables}
    model = pc.JointModel({n: pc.Conditional(v, networks[n]) for n, v in variables.items()})
    known = torch.tensor([[True, True], [True, False], [False, False]])
    given = {"a": pc.Observed(torch.ones(3, 2), known), "b": pc.Observed(torch.ones(3, 2), known[[2, 0, 0]])}
    matters, direct = Question.of(model, given, ["c"], None, "fitted").relevant()
    assert {n: m.tolist() for n, m in matters.items()} == {
        "a": [False, True, True],
        "b": [False, False, False],
        "c": [True, True, True],
    }
    assert direct.tolist() == [True, False, False]
    matters, direct = Question.of(model, given, ["a", "c"], None, "fitted").relevant()
    assert direct.tolist() == [True, False, False] and matters["b"].tolist() == [False, False, False]
    given["b"] = pc.Observed(torch.ones(3, 2), known[[0, 1, 0]])
    matters, direct = Question.of(model, given, ["c"], None, "fitted").relevant()
    assert matters["b"].tolist() == [False, True, False]


# --- one row does not depend on the others, bit for bit -------------------------------------------------------------


def small(kind):
    """Models in float32 with sizes at which products of matrices round by the place of a row."""
    torch.manual_seed(0)
    x = pc.Real((1, 9, 9) if "convolutional" in kind else 13, scale="learned", initial_scale=0.5)
    variables = {"x": x, "c": pc.Categorical(3), "z": pc.Binary(5)}
    networks = {n: pc.networks.mlp(variables, n, hidden=17) for n in variables}
    if "convolutional" in kind:
        networks = {"x": Up(), "c": Down("z", 5, 3), "z": Down("c", 3, 5)}
    init = pc.initializers.pca(variables, "x", ["c"], rank=3) if "initializer" in kind else None
    parts = {n: pc.Conditional(variables[n], networks[n], init if n == "x" else None) for n in variables}
    return pc.JointModel(parts, regeneration=pc.Regeneration(0.15, 2))


class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.conv = nn.Linear(8, 3 * 81), nn.Conv2d(3, 1, 3, padding=1)

    def forward(self, others):
        hidden = nn.functional.gelu(self.line(torch.cat([others["c"], others["z"]], 1)))
        return self.conv(hidden.view(-1, 3, 9, 9))


class Down(nn.Module):
    def __init__(self, other, size, outputs):
        super().__init__()
        self.other, self.conv, self.line = other, nn.Conv2d(1, 3, 3, 2), nn.Linear(48 + size, outputs)

    def forward(self, others):
        hidden = nn.functional.silu(self.conv(others["x"])).flatten(1)
        return self.line(torch.cat([hidden, others[self.other]], 1))


def rows_to_ask(model, count=24):
    """Rows with many patterns of what is known; some are wholly known, and answered directly."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, *model.variables["x"].event_shape, generator=generator)
    z = torch.randint(2, (count, 5), generator=generator).float()
    masks = {"x": torch.rand(x.shape, generator=generator) < 0.4, "z": torch.rand(z.shape, generator=generator) < 0.5}
    for row, (whole_x, whole_z) in {1: (1, 1), 2: (1, 0), 3: (0, 1), 4: (0, 0), 5: (1, 1)}.items():
        masks["x"][row], masks["z"][row] = bool(whole_x), bool(whole_z)
    masks["x"][6:12], masks["z"][6:12] = masks["x"][6], masks["z"][6]
    return {"x": x, "z": z}, masks


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize(
    "kind", ["plain", "with an initializer", "convolutional", "convolutional, with an initializer"]
)
def test_a_row_has_the_same_answer_whatever_the_others_are(kind, scan):
    model = small(kind)
    state, masks = rows_to_ask(model)

    def ask(rows):
        given = {name: pc.Observed(state[name][rows], masks[name][rows]) for name in state}
        answer = pc.query(model, given, ["c", "x", "z"], stop=pc.Precise(2.0, least=8), scan=scan, seed=2)
        whats = ("probabilities", "mean", "std", "error", "error_of_std", "decisions", "samples")
        found = {f"{what} {name}": v for what in whats for name, v in getattr(answer, what).items()}
        found |= {f"drift {name}": v for name, v in answer.diagnostics.drift.items()}
        found["tours"] = answer.diagnostics.tours
        return found | pc.sample(model, given, scan=scan, seed=2)

    whole = ask(torch.arange(24))
    assert sorted(set(whole["tours"].tolist())) == [0, 8]
    batches = [torch.randperm(24, generator=torch.Generator().manual_seed(0)), torch.arange(5, 17)]
    for rows in [*batches, *torch.arange(8).split(1)]:
        part = ask(rows)
        for what, value in part.items():
            assert torch.equal(value, whole[what][rows]), (what, rows)


def test_direct_answers_of_many_rows_are_those_of_each():
    model = small("plain")
    state = {"x": torch.randn(700, 13), "z": torch.randint(2, (700, 5)).float()}
    whole = pc.query(model, state, ["c"], chains=3)
    exactly = model("c", {**state, "c": torch.zeros(700).long()}).mean.detach()
    torch.testing.assert_close(whole.probabilities["c"], exactly)  # products of other sizes round
    for row in (0, 1, 350, 699):
        one = pc.query(model, {name: value[row : row + 1] for name, value in state.items()}, ["c"], chains=3)
        assert torch.equal(one.probabilities["c"][0], whole.probabilities["c"][row])
        assert torch.equal(one.samples["c"][0], whole.samples["c"][row])


def test_equal_rows_have_equal_answers_and_different_draws():
    given = {"b": torch.tensor([2, 1, 2, 2])}
    options = {"regeneration": pc.Regeneration(0.3, 1)}
    answer = pc.query(MODEL, given, ["a"], stop=pc.Tours(10), **options)
    assert torch.equal(answer.mean["a"][0], answer.mean["a"][2]) and torch.equal(
        answer.mean["a"][0], answer.mean["a"][3]
    )
    assert torch.equal(answer.samples["a"][0], answer.samples["a"][2])
    assert not torch.equal(answer.mean["a"][0], answer.mean["a"][1])
    drawn = pc.sample(MODEL, {"b": torch.tensor([2]).repeat(4000)}, **options)
    pairs = state_index(FINITE, drawn).view(-1, 2)
    p = limit_of(FINITE, {"b": torch.tensor(2)}, options["regeneration"])[:, 2].flatten()
    both = [2 * (k // 6) + k % 2 for k in pairs.T]  # a and c, without b
    assert_fits(torch.bincount(8 * both[0] + both[1], minlength=64), torch.outer(p, p))  # neighbours are independent


@pytest.mark.parametrize("ask", ["query", "sample"])
def test_seeds_fix_everything(ask):
    def drawn(seed):
        given = {"b": torch.tensor([2, 1, 0]).repeat(4)}
        if ask == "sample":
            return pc.sample(MODEL, given, seed=seed, regeneration=pc.Regeneration(0.3, 1))["a"]
        return pc.query(MODEL, given, ["a"], seed=seed, stop=pc.Tours(8)).samples["a"]

    torch.manual_seed(0)
    first = drawn(0)
    torch.manual_seed(1)  # the global source does not matter
    assert torch.equal(first, drawn(0))
    seeds = [drawn(seed).flatten().tolist() for seed in range(8)]
    assert len({tuple(seed) for seed in seeds}) == 8
