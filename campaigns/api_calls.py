"""Valid calls of the public API, each with what its arguments take and how its result is checked."""

from __future__ import annotations

import copy
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import hostile_values as hostile
import numpy as np
import scipy.stats
import torch
from hostile_values import (
    BIG,
    Attack,
    Count,
    Flag,
    Free,
    Groups,
    Is,
    Mask,
    Names,
    Num,
    Probabilities,
    Seed,
    Shape,
    Values,
    Word,
)
from torch import Tensor, nn
from worlds import MAKERS, REGENERATION, RIGHT, ROWS, WAYS, World, Wrapped, world

import paracond as pc
from paracond.question import Diagnostics
from paracond.training import checkpoints
from paracond.training.augment import Moved
from paracond.training.running_batch import LiteralForm, RunningForm

SCANS = ("systematic", "random", "no-repeat")
CHANCE = 1e-10  # of a right answer that is called wrong
SIGMAS = 6.0


@dataclass
class Arg:
    """A valid value, what the argument takes, and the words of which a refusal must have one."""

    value: Any
    kind: hostile.Kind
    words: tuple[str, ...] = ()


@dataclass
class Call:
    """A valid call. `check(result, values)` raises an AssertionError where the result is wrong."""

    name: str
    function: Callable[..., Any]
    args: dict[str, Arg]
    check: Callable[[Any, dict[str, Any]], None] | None = None
    models: list[nn.Module] = field(default_factory=list)  # those that nothing may change
    draws_globally: bool = False  # torch's own random numbers may be used
    compare: bool = True  # the result is a function of the arguments
    refuses: bool = False  # a valid call may be refused (networks that misbehave)
    must_refuse: bool = False
    words: tuple[str, ...] = ()
    cleanup: Callable[[], None] | None = None
    attacked: bool = True  # whether its arguments may be replaced

    def values(self) -> dict[str, Any]:
        return {name: arg.value for name, arg in self.args.items()}


Maker = Callable[[Random], Call]
MAKERS_OF_CALLS: dict[str, tuple[float, Maker]] = {}


def call(weight: float = 1.0) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        MAKERS_OF_CALLS[maker.__name__] = (weight, maker)
        return maker

    return register


def _own_randomness(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run with torch's own random numbers from a fixed state, and bring its state back."""

    def run(**options: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return function(**options)

    return run


# --- what arguments take ----------------------------------------------------------------------------------------------


GROUP = "the name of a group"


def _model(value: World) -> Arg:
    return Arg(value.model, Is((pc.JointModel,), more=MODELS), ("model", "JointModel"))


def _engine(value: Any = "auto") -> Arg:
    more = tuple(
        Attack(repr(word), lambda word=word: word, "bad") for word in ("cuda", "graphs", "gpu", "Eager", "cpu")
    )
    return (
        Arg(value, replace(Word(("auto", "eager", "rounded"), others=(pc.Engine,))), ("engine", "graphs", "cuda"))
        if not more
        else Arg(
            value, _Engines(("auto", "eager", "rounded"), others=(pc.Engine,)), ("engine", "device", "cuda", "graphs")
        )
    )


class _Engines(Word):
    def own(self, valid: Any) -> list[Attack]:
        words = ("graphs", "gpu", "Eager", "cuda:99", "cpu:x")
        return [
            *super().own(valid),
            *(Attack(repr(word), lambda word=word: word, "bad") for word in words),
            Attack("pc.Engine", lambda: pc.Engine, "bad"),
            Attack("torch.device('cpu')", lambda: torch.device("cpu"), "fine"),
        ]

    def judge(self, value: Any, valid: Any) -> str:
        return "fine" if isinstance(value, torch.device) else super().judge(value, valid)


def _seed(rng: Random) -> Arg:
    return Arg(rng.choice([0, 1, 7, -3, 2**40]), Seed(), ("seed",))


def _scan(rng: Random, words=("systematic", "random")) -> Arg:
    return Arg(rng.choice(words), Word(SCANS), ("scan",))


MODELS = (
    Attack("a Conditional", lambda: world("finite").model.conditional("city"), "bad"),
    Attack("a network", lambda: world("finite").model.conditional("city").network, "bad"),
    Attack("pc.JointModel", lambda: pc.JointModel, "bad"),
    Attack("a state_dict", lambda: world("finite").model.state_dict(), "bad"),
    Attack("a data set", lambda: pc.Data(world("finite").data), "bad"),
    Attack("a list of a model", lambda: [world("finite").model], "bad"),
)


class _Anew(hostile.Kind):
    """`regeneration` of `query` and `sample`."""

    def __init__(self, zero: bool = True, none: bool = True):
        self.zero, self.none = zero, none

    def judge(self, value: Any, valid: Any) -> str:
        if value is None:
            return "fine" if self.none else "bad"
        if isinstance(value, pc.Regeneration):
            return "fine"
        if Num(0, 1, open_high=False).judge(value, valid) == "fine" and not isinstance(value, Tensor | np.ndarray):
            return "fine"
        return Num(0, 1, open_high=False).judge(value, valid) if self.zero else "bad"


def _given(value: World, rng: Random, rows: int, **options: Any) -> Arg:
    given: dict[str, Any] = value.some(rng, rows)
    for name in list(given):
        family = value.families[name]
        if name not in value.needed and name not in value.model.context and rng.random() < 0.3:
            shape = rng.choice([given[name].shape, given[name].shape[:1], given[name].shape[1:]])
            mask = torch.rand(shape, generator=torch.Generator().manual_seed(rng.randrange(999))) < 0.7
            square = given[name].ndim == 2 and given[name].shape[0] == given[name].shape[1] != 1
            if square or not family.event_shape or (mask.ndim == 0):
                mask = torch.ones(given[name].shape, dtype=torch.bool)
            given[name] = pc.Observed(given[name], mask)
    kind = Groups(value.families, none=not value.needed, empty=not value.needed)
    return Arg(given, kind, ("given", *value.families))


def _data_arg(
    value: World, name: str = "data", rows: int = ROWS, rng: Random | None = None, whole: bool = True, **kind
) -> Arg:
    state = {k: v[:rows].clone() for k, v in value.data.items() if k not in value.latent}
    return Arg(state, Groups(value.families, none=False, empty=False, spread=False), (name, *value.families))


def _pick(rng: Random, *names: str) -> World:
    return world(rng.choice(names or tuple(MAKERS)))


FAST = ("finite", "finite", "double", "context", "mixed", "latent", "shared", "custom", "image")


# --- oracles ----------------------------------------------------------------------------------------------------------


def finite_numbers(value: Any, where: str = "result") -> None:
    """No NaN, and nothing infinite."""
    if isinstance(value, Tensor):
        assert not value.is_floating_point() or bool(value.isfinite().all()), f"{where} is not finite"
    elif isinstance(value, Mapping):
        for name, each in value.items():
            finite_numbers(each, f"{where}[{name!r}]")
    elif isinstance(value, float):
        assert math.isfinite(value), f"{where} is not finite"


def in_family(value: World, state: Mapping[str, Tensor], rows: int, extra: int = 0) -> None:
    """Whether drawn values are values of their families, of the right shapes and types."""
    for name, each in state.items():
        family = value.families[name]
        shape = (rows, *([extra] if extra else []), *family.event_shape)
        assert tuple(each.shape) == shape, f"{name!r} has shape {list(each.shape)}, not {list(shape)}"
        assert not each.requires_grad, f"{name!r} requires a gradient"
        finite_numbers(each, name)
        if isinstance(family, pc.Categorical):
            assert each.dtype == torch.long and int(each.min()) >= 0 and int(each.max()) < family.classes, (
                f"{name!r}: classes"
            )
        else:
            assert each.dtype == value.model.dtype, f"{name!r} has type {each.dtype}"
        if isinstance(family, pc.Binary):
            assert bool(((each == 0) | (each == 1)).all()), f"{name!r} is not 0 or 1"


def _known(value: World, given: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    """Values and full masks of what is given, by the reader of the library for plain tensors."""
    parts = {k: v if isinstance(v, pc.Observed) else pc.Observed(v) for k, v in given.items()}
    rows = max((len(v.value) for v in parts.values()), default=0)
    masks = {}
    for name, each in parts.items():
        full = torch.ones(each.value.shape, dtype=torch.bool)
        if each.mask is not None:
            mask = torch.as_tensor(each.mask)
            if mask.shape == full.shape[:1] and mask.shape != full.shape[1:]:
                mask = mask.view(-1, *[1] * (full.ndim - 1))
            full = full & mask
        masks[name] = full
    return {k: v.value for k, v in parts.items()}, masks, rows


def keeps_known(value: World, state: Mapping[str, Tensor], given: Mapping[str, Any]) -> None:
    """What is given comes back as it is."""
    values, masks, _ = _known(value, given)
    for name, known in values.items():
        if name in state:
            same = (state[name].double() == known.double()) | ~masks[name]
            assert bool(same.all()), f"{name!r}: given values were changed"


def exact_marginals(
    value: World, given: Mapping[str, Any], row: int, regeneration, scan: str, sweeps=None
) -> tuple[dict[str, Tensor], int]:
    """Marginals of all groups by enumeration, for one row of what is given, and the number of groups that are free."""
    finite: Any = value.finite
    values, masks, _ = _known(value, given)
    one = {k: pc.Observed(v[min(row, len(v) - 1)], masks[k][min(row, len(v) - 1)]) for k, v in values.items()}
    kernel = finite.tours(one, regeneration, scan)
    left = finite.clamped(one)[1]
    if sweeps is None:
        law = pc.exact.limiting(kernel)
    else:
        law = kernel.begin
        for _ in range(sweeps):
            law = kernel.kernel.push(law)
    found = {}
    for axis, name in enumerate(finite.names):
        p = law.sum([a for a in range(law.ndim) if a != axis]) if law.ndim > 1 else law
        encoded = value.families[name].encode(left[name]).double()
        found[name] = torch.tensordot(p, encoded.reshape(len(p), -1), 1)
    free = sum(size > 1 for size in kernel.shape)
    return found, free


def _near(found: Tensor, exact: Tensor, count: float, error: Tensor | None, what: str) -> None:
    """Whether marginal probabilities are within six standard errors."""
    found = found.double().flatten()
    spread = (2 * exact * (1 - exact) / count).clamp(min=0).sqrt()
    if error is not None:
        spread = torch.maximum(spread, error.double().flatten())
    gap = (found - exact).abs()
    assert bool((gap <= SIGMAS * spread + 4 / count + 1e-6).all()), (
        f"{what}: off by {gap.max():.4f}, error {spread.max():.4f}"
    )


def _counts_fit(drawn: Tensor, exact: Tensor, what: str) -> None:
    """Whether draws `[rows, cells]` of zeros and ones have these chances."""
    rows = len(drawn)
    for hits, p in zip(drawn.double().flatten(1).sum(0).tolist(), exact.tolist(), strict=True):
        p = min(max(p, 0.0), 1.0)
        chance = 2 * min(scipy.stats.binom.cdf(hits, rows, p), scipy.stats.binom.sf(hits - 1, rows, p))
        assert chance > CHANCE, f"{what}: {hits:g} of {rows} where {p * rows:.1f} are right"


def check_answer(
    value: World, given: Mapping[str, Any] | None, want, chains: int, rows: int, stop, regeneration, scan: str
):
    def check(answer: Any, _: dict[str, Any]) -> None:
        known = given or {}
        _, masks, found_rows = _known(value, known)
        batch = found_rows or rows
        wanted = (
            list(want)
            if want is not None
            else [n for n in value.model.names if n not in masks or not bool(masks[n].all())]
        )
        assert set(answer.samples) == set(wanted), f"answers about {list(answer.samples)}, not {wanted}"
        in_family(value, answer.samples, batch, chains)
        in_family(value, answer.decisions, batch)
        keeps_known(value, answer.decisions, {k: v for k, v in known.items() if k in answer.decisions})
        for part in ("probabilities", "mean", "std", "error", "error_of_std"):
            finite_numbers(getattr(answer, part), part)
        for name, p in answer.probabilities.items():
            shape = (batch, *value.families[name].encoding_shape)
            assert tuple(p.shape) == shape, f"probabilities of {name!r} have shape {list(p.shape)}"
            assert bool(((p >= -1e-6) & (p <= 1 + 1e-6)).all()), f"probabilities of {name!r} are no probabilities"
            if isinstance(value.families[name], pc.Categorical):
                assert bool(((p.sum(-1) - 1).abs() < 1e-4).all()), f"probabilities of {name!r} do not sum to one"
        if value.finite is None or not isinstance(stop, pc.Precise):
            return
        for row in range(min(batch, 2)):
            exact, free = exact_marginals(value, known, row, regeneration, scan)
            if free < 2:
                continue  # answered directly: the conditional itself
            for name, p in answer.probabilities.items():
                own = answer.error.get(name)
                count = float(answer.diagnostics.tours[row])
                if not count:
                    continue  # nothing that it reads is unknown
                _near(p[row], exact[name], count, None if own is None else own[row], f"{name!r} in row {row}")

    return check


# --- questions --------------------------------------------------------------------------------------------------------


@call(8)
def query(rng: Random) -> Call:
    value = _pick(rng, *FAST, "scenes")
    rows = rng.choice([1, 1, 2, 3])
    given = _given(value, rng, rows)
    names = value.model.names
    want = rng.choice([None, None, rng.sample(names, rng.randint(1, len(names)))])
    never = rng.random() < 0.15
    if never:
        stop: Any = rng.choice([pc.Sweeps(4, 2), pc.Converged(ess=10, limit=16)])
        regeneration: Any = rng.choice([0, 0.0, None])
    else:
        stop = rng.choice(
            [pc.Tours(32), pc.Tours(64), pc.Precise(0.2, most=64), pc.Tours(256) if value.exact else pc.Tours(32)]
        )
        regeneration = rng.choice([None, None, REGENERATION, pc.Regeneration(0.5, 1)])
    scan = rng.choice(["systematic", "systematic", "random"])
    chains = rng.choice([2, 3, 8])
    init = rng.choice(["fitted", "random"])
    init_kind = Groups(value.families)
    start: Any = init
    if rng.random() < 0.1 and value.latent == ():
        batch = _known(value, given.value)[2] or 1
        start = {names[0]: value.data[names[0]][:batch].clone()}
    args = {
        "model": _model(value),
        "given": given,
        "want": Arg(want, Names(value.families, none=True), ("want", GROUP, "variable", *value.families)),
        "rows": Arg(_known(value, given.value)[2] or 1, Count(none=True, huge=True), ("rows",)),
        "stop": Arg(stop, Is((pc.Precise, pc.Converged, pc.Sweeps), none=True), ("stop", "chains", "regeneration")),
        "regeneration": Arg(regeneration, _Anew(), ("regeneration", "stop")),
        "chains": Arg(chains, Count(huge=True), ("chains",)),
        "init": Arg(
            start,
            init_kind if isinstance(start, dict) else Word(("fitted", "random"), others=(Mapping,)),
            ("init", *value.families),
        ),
        "scan": Arg(scan, Word(("systematic", "random") if not never else SCANS), ("scan",)),
        "engine": _engine(rng.choice(["auto", "eager"])),
        "seed": _seed(rng),
    }
    anew = regeneration if isinstance(regeneration, pc.Regeneration) else value.model.regeneration
    exact = isinstance(start, str)
    check = check_answer(value, dict(given.value), want, chains, 1, stop if exact else None, anew, scan)
    short = never and scan != "systematic"  # a group may never be redrawn
    return Call("pc.query", pc.query, args, check, [value.model], refuses=short, words=("never redrawn",))


@call(5)
def sample(rng: Random) -> Call:
    value = _pick(rng, *FAST, "scenes")
    alone = not value.needed and rng.random() < 0.4
    rows = rng.choice([1, 2, 5])
    given = (
        Arg(None, Groups(value.families, none=True), ("given", *value.families)) if alone else _given(value, rng, rows)
    )
    count = 200 if value.exact else 4
    sweeps = rng.choice([None, None, 0, 1, 3])
    regeneration = (
        rng.choice([None, REGENERATION, pc.Regeneration(1.0, 1)]) if sweeps is None else rng.choice([None, 0])
    )
    scan = rng.choice(["systematic", "random"])
    args = {
        "model": _model(value),
        "given": given,
        "rows": Arg(_known(value, given.value or {})[2] or count, Count(none=True, huge=True), ("rows",)),
        "sweeps": Arg(sweeps, Count(0, none=regeneration != 0), ("sweeps", "regeneration")),
        "regeneration": Arg(regeneration, _Anew(zero=sweeps is not None), ("regeneration", "sweeps")),
        "init": Arg("fitted", Word(("fitted", "random"), others=(Mapping,)), ("init", *value.families)),
        "scan": Arg(scan, Word(("systematic", "random") if sweeps is None else SCANS), ("scan",)),
        "chunk": Arg(rng.choice([None, 2, 64]), Count(none=True), ("chunk",)),
        "engine": _engine(),
        "seed": _seed(rng),
        "progress": Arg(rng.choice([None, False]), Flag(none=True), ("progress",)),
    }

    plain = dict(given.value or {})

    def check(state: Any, _: dict[str, Any]) -> None:
        known = plain
        batch = _known(value, known)[2] or count
        assert set(state) == set(value.families), f"groups {sorted(state)}"
        in_family(value, state, batch)
        keeps_known(value, state, known)
        if value.finite is None or batch < 100 or (sweeps is not None and scan != "systematic"):
            return  # rows of chains that never begin anew share the random choices of their groups
        anew = regeneration or value.model.regeneration
        exact, _ = exact_marginals(value, known, 0, anew, scan, sweeps)
        for name, p in exact.items():
            _counts_fit(value.families[name].encode(state[name]).reshape(batch, -1), p, f"{name!r}")

    return Call("pc.sample", pc.sample, args, check, [value.model])


@call(3)
def impute(rng: Random) -> Call:
    value = _pick(rng, *FAST)
    rows = rng.choice([1, 3])
    state = value.some(rng, rows, all_groups=True)
    generator = torch.Generator().manual_seed(rng.randrange(999))
    mask = {k: torch.rand(v.shape, generator=generator) < 0.6 for k, v in state.items() if k not in value.model.context}
    data = pc.Data(state, mask)
    how = rng.choice(["decide", "sample"])
    args = {
        "model": _model(value),
        "data": Arg(data, Is((pc.Data,), more=DATA), ("data", "Data", "typo", *value.families)),
        "how": Arg(how, Word(("decide", "sample")), ("how",)),
        "seed": _seed(rng),
        "engine": _engine(),
        "regeneration": Arg(rng.choice([None, REGENERATION]), _Anew(zero=False), ("regeneration", "sweeps")),
        "scan": Arg("systematic", Word(("systematic", "random")), ("scan",)),
    }
    if how == "decide":
        args["stop"] = Arg(pc.Tours(32), Is((pc.Precise,), none=True), ("stop", "regeneration"))
        args["chains"] = Arg(8, Count(), ("chains",))

    def check(found: Any, _: dict[str, Any]) -> None:
        own = dict(found)
        assert set(own) >= set(value.model.names), f"groups {sorted(own)}"
        in_family(value, own, rows)
        keeps_known(value, own, {k: pc.Observed(v, mask.get(k)) for k, v in state.items()})

    return Call("pc.impute", pc.impute, args, check, [value.model])


def _bad_data() -> pc.Data:
    return pc.Data({"typo": [[0.0, 1.0]]})


DATA = (
    Attack("Data of a group 'typo'", _bad_data, "bad"),
    Attack("pc.Data", lambda: pc.Data, "bad"),
    Attack("a dictionary of numbers", lambda: {"typo": 1}, "bad"),
    Attack("a pair", lambda: ({}, {}), "bad"),
    Attack("a tensor", lambda: torch.zeros(3, 2), "bad"),
)


@call(2.5)
def log_likelihood(rng: Random) -> Call:
    value = _pick(rng, "finite", "double", "shared", "custom", "mixed", "latent", "image")
    rows = rng.choice([1, 3])
    data = _data_arg(value, rows=rows)
    given = None
    if rng.random() < 0.3 and len(data.value) > 1:
        name = rng.choice(list(data.value))
        given = {name: data.value.pop(name)[:1]}
    data.kind = Groups({k: v for k, v in value.families.items() if k in data.value}, empty=False, spread=False)
    draws = rng.choice([None, 64, 200]) if value.exact else 64
    plain = dict(data.value)
    args = {
        "model": _model(value),
        "data": data,
        "given": Arg(given, Groups(value.families, none=True, spread=False), ("given", *value.families)),
        "draws": Arg(draws, Count(2, none=True, huge=True), ("draws",)),
        "regeneration": Arg(rng.choice([None, REGENERATION]), Is((pc.Regeneration,), none=True), ("regeneration",)),
        "engine": _engine(),
        "seed": _seed(rng),
    }

    def check(found: Any, _: dict[str, Any]) -> None:
        assert tuple(found.value.shape) == (rows,) and found.value.dtype == torch.float64, "one number per row, float64"
        if value.finite is None:
            return
        finite: Any = value.finite
        one = {k: v[0] for k, v in (given or {}).items()}
        law, left = pc.exact.limiting(finite.tours(one)), finite.clamped(one)[1]
        for row in range(rows):
            kept = law
            for axis, name in enumerate(finite.names):
                if name in data.value:
                    same = (left[name].double() == plain[name][row].double()).reshape(len(left[name]), -1).all(1)
                    kept = kept * same.double().view([-1 if a == axis else 1 for a in range(law.ndim)])
            exact = float(kept.sum().log())
            number, error = float(found.value[row]), float(found.error[row])
            if not math.isnan(number):
                assert abs(number - exact) <= SIGMAS * max(error, 1e-5 if draws is None else 0.3) + 1e-5, (
                    f"row {row}: {number:.4f} +- {error:.4f}, exact {exact:.4f}"
                )

    return Call("pc.log_likelihood", pc.log_likelihood, args, check, [value.model])


@call(2)
def anomaly_score(rng: Random) -> Call:
    value = _pick(rng, "finite", "double", "context", "mixed", "latent", "image", "shared")
    rows = rng.choice([1, 3])
    evidence = value.name in ("latent", "image") and rng.random() < 0.6
    args = {
        "model": _model(value),
        "data": _data_arg(value, rows=rows),
        "by": Arg("evidence" if evidence else "surprise", Word(("evidence", "surprise"), none=True), ("by",)),
        "draws": Arg(3, Count(none=True), ("draws",)),
        "regeneration": Arg(rng.choice([None, REGENERATION]), Is((pc.Regeneration,), none=True), ("regeneration",)),
        "engine": _engine(),
        "seed": _seed(rng),
    }

    def check(found: Any, _: dict[str, Any]) -> None:
        assert tuple(found.shape) == (rows,) and found.dtype == torch.float64, "one number per row, float64"
        finite_numbers(found)

    return Call("pc.anomaly_score", pc.anomaly_score, args, check, [value.model])


@call(0.6)
def choose_regeneration(rng: Random) -> Call:
    value = _pick(rng, "finite", "context", "custom", "mixed")
    candidates = [pc.Regeneration(0.5, 0), pc.Regeneration(0.5, 2)]
    more = (
        Attack("[]", list, "bad"),
        Attack("[None]", lambda: [None], "bad"),
        Attack("[(0.1, 2)]", lambda: [(0.1, 2)], "bad"),
        Attack("[pc.Regeneration]", lambda: [pc.Regeneration], "bad"),
        Attack("a Regeneration", lambda: pc.Regeneration(0.5, 0), "bad"),
        Attack("iter", lambda: iter(list(candidates)), "same"),
        Attack("tuple", lambda: tuple(candidates), "same"),
    )
    args = {
        "model": _model(value),
        "held_out": _data_arg(value, "held_out"),
        "candidates": Arg(candidates, Is((), more=more), ("candidates", "Regeneration")),
        "rows": Arg(100, Count(100, none=True, huge=True), ("rows",)),
        "engine": _engine(),
        "seed": _seed(rng),
    }

    def check(found: Any, _: dict[str, Any]) -> None:
        assert found in candidates, f"{found} is no candidate"

    return Call("pc.choose_regeneration", pc.choose_regeneration, args, check, [value.model])


@call(1.5)
def guided(rng: Random) -> Call:
    value = _pick(rng, "finite", "context", "mixed", "latent", "double")
    name = "code" if value.name == "latent" else "smoker"
    size = math.prod(value.families[name].event_shape)
    where = rng.choice([[0], [0, 1], torch.ones(value.families[name].event_shape, dtype=torch.bool)])
    weight = rng.choice([0.0, 1.5, 3])
    args = {
        "model": _model(value),
        "name": Arg(name, Names([name], only_one=True), ("name", "variable", "group", *value.families)),
        "where": Arg(where, _Where(size, value.families[name].event_shape), ("where", "coordinate", name)),
        "weight": Arg(weight, Num(), ("weight",)),
    }

    def function(model, name, where, weight):
        made = pc.guided(model, name, where, weight)
        given = value.some(Random(1), 2)
        return pc.query(made, given, rows=2, stop=pc.Tours(32))

    def check(answer: Any, _: dict[str, Any]) -> None:
        finite_numbers(answer.probabilities)
        if weight == 0:
            plain = pc.query(value.model, value.some(Random(1), 2), rows=2, stop=pc.Tours(32))
            for group, p in plain.probabilities.items():
                assert tuple(answer.probabilities[group].shape) == tuple(p.shape), f"{group!r}: shape"

    return Call("pc.guided", function, args, check, [value.model])


class _Where(hostile.Kind):
    def __init__(self, size: int, shape: tuple[int, ...]):
        self.size, self.shape = size, shape

    def judge(self, value: Any, valid: Any) -> str:
        if isinstance(value, range | np.ndarray | Tensor) or hasattr(value, "dropna"):
            return "fine"
        if isinstance(value, list | tuple):
            return self._numbers(value)
        return "fine" if Count(0, self.size - 1).judge(value, None) != "bad" else "bad"

    def _numbers(self, value: Any) -> str:
        good = len(value) and all(Count(0, self.size - 1).judge(v, None) != "bad" for v in value)
        return "fine" if good else "bad"

    def own(self, valid: Any) -> list[Attack]:
        return [
            Attack("[size]", lambda: [self.size], "bad"),
            Attack("[-1]", lambda: [-1], "bad"),
            Attack("[0.0]", lambda: [0.0], "fine"),
            Attack("[0.5]", lambda: [0.5], "bad"),
            Attack("[nan]", lambda: [math.nan], "bad"),
            Attack("['0']", lambda: ["0"], "bad"),
            Attack("a mask of no coordinate", lambda: torch.zeros(self.shape, dtype=torch.bool), "bad"),
            Attack(
                "a longer mask", lambda: torch.ones((*self.shape[:-1], self.shape[-1] + 1), dtype=torch.bool), "bad"
            ),
            Attack("[10**30]", lambda: [10**30], "bad"),
            Attack("meta", lambda: torch.zeros(1, dtype=torch.long, device="meta"), "bad"),
            Attack("np.array([0], uint8)", lambda: np.array([0], np.uint8), "fine"),
        ]


@call(1.5)
def edited(rng: Random) -> Call:
    value = _pick(rng, "finite", "context", "mixed", "double")
    rows = rng.choice([1, 3])
    state, family = value.whole(rng, rows), value.families["smoker"]
    mask = torch.zeros(family.event_shape, dtype=torch.bool)
    mask.view(-1)[rng.randrange(mask.numel())] = True
    new = 1 - state["smoker"][:1] if rng.random() < 0.5 else 1 - state["smoker"]
    change = pc.Observed(new, mask)
    more = (
        Attack("Observed(2s)", lambda: pc.Observed(new * 0 + 2, mask), "bad"),
        Attack("Observed(NaN)", lambda: pc.Observed(new * math.nan, mask), "bad"),
        Attack("Observed(0.5)", lambda: pc.Observed(new * 0 + 0.5, mask), "bad"),
        Attack("Observed(wrong shape)", lambda: pc.Observed(new.unsqueeze(-1), mask), "bad"),
        Attack("Observed(wrong rows)", lambda: pc.Observed(new.repeat(7, *[1] * (new.ndim - 1)), mask), "bad"),
        Attack("Observed(words)", lambda: pc.Observed("word", mask), "bad"),
        Attack("Observed(None)", lambda: pc.Observed(None, mask), "bad"),
        Attack("Observed(mask of numbers)", lambda: pc.Observed(new, mask.float() * 2), "bad"),
        Attack("Observed(mask of words)", lambda: pc.Observed(new, "word"), "bad"),
        Attack("Observed(longer mask)", lambda: pc.Observed(new, torch.ones(5, dtype=torch.bool)), "bad"),
        Attack("Observed(empty mask)", lambda: pc.Observed(new, torch.zeros(0, dtype=torch.bool)), "bad"),
        Attack("Observed(list)", lambda: pc.Observed(new.tolist(), mask.tolist()), "same"),
        Attack("Observed(numpy)", lambda: pc.Observed(new.numpy(), mask.numpy()), "same"),
        Attack("Observed(masked)", lambda: pc.Observed(np.ma.array(new.numpy(), mask=True), mask), "bad"),
    )
    args = {
        "model": _model(value),
        "state": Arg(state, Groups(value.families, empty=False, whole=True, spread=False), ("state", *value.families)),
        "name": Arg("smoker", Names(["smoker"], only_one=True), ("name", "variable", "group", *value.families)),
        "change": Arg(change, Is((), more=more), ("change", "smoker", "mask")),
        "weight": Arg(rng.choice([0.0, 5.0]), Num(), ("weight",)),
        "sweeps": Arg(rng.choice([0, 1, 3]), Count(0), ("sweeps",)),
        "chunk": Arg(rng.choice([None, 1]), Count(none=True), ("chunk",)),
        "engine": _engine(),
        "seed": _seed(rng),
    }

    def check(found: Any, _: dict[str, Any]) -> None:
        assert set(found) == set(value.families), f"groups {sorted(found)}"
        in_family(value, found, rows)
        want = torch.where(mask, new.expand_as(state["smoker"]), state["smoker"])
        assert bool((found["smoker"].double() == want.double()).all()), "the edited group is not as asked"

    return Call("pc.edited", pc.edited, args, check, [value.model])


@call(1.5)
def compose(rng: Random) -> Call:
    first, second = _pick(rng, "finite", "shared", "custom", "latent"), _pick(rng, "double", "context", "shared")

    def rule(law, others):
        return pc.Binary(2).distribution(torch.zeros(len(next(iter(others.values()))), 2, dtype=torch.float32))

    models = {"one": first.model, "two": second.model}
    more_models = (
        Attack("a model", lambda: first.model, "bad"),
        Attack("a list", lambda: [first.model], "bad"),
        Attack("{'one': None}", lambda: {"one": None}, "bad"),
        Attack("{'one': Conditional}", lambda: {"one": first.model.conditional(first.model.names[0])}, "bad"),
        Attack("{1: model}", lambda: {1: first.model}, "bad"),
    )
    wrong = (
        Attack("{'new': None}", lambda: {"new": None}, "bad"),
        Attack("{'new': pc.Binary}", lambda: {"new": pc.Binary}, "bad"),
        Attack("{'new': 3}", lambda: {"new": 3}, "bad"),
        Attack("{3: pc.Binary(2)}", lambda: {3: pc.Binary(2)}, "bad"),
    )
    wrong_rules = (
        Attack("{'new': None}", lambda: {"new": None}, "bad"),
        Attack("{'new': 3}", lambda: {"new": 3}, "bad"),
        Attack("{'typo': rule}", lambda: {"typo": rule, "new": rule}, "bad"),
        Attack("a function", lambda: rule, "bad"),
    )
    dtypes = {first.model.dtype, second.model.dtype}
    args = {
        "models": Arg(models, _Empty(more_models), ("models", "JointModel", "prefix")),
        "groups": Arg({"new": pc.Binary(2)}, _Empty(wrong), ("groups", "group", "new")),
        "given": Arg({"extra": pc.Real(1)}, _Empty(wrong), ("given", "new", "group", "extra")),
        "rules": Arg({"new": rule}, _Empty(wrong_rules), ("rule", "new")),
        "regeneration": Arg(None, Is((pc.Regeneration,), none=True), ("regeneration",)),
    }

    def function(**options):
        made = pc.compose(**options)
        given = {"extra": torch.zeros(2, 1)} if "extra" in made.context else {}
        for name, context in made.context.items():
            if context.default is None and name not in given:
                given[name] = torch.zeros(2, 1)
        return pc.query(made, given, rows=2, stop=pc.Tours(32))

    def check(answer: Any, _: dict[str, Any]) -> None:
        finite_numbers(answer.probabilities)

    return Call(
        "pc.compose",
        function,
        args,
        check,
        [first.model, second.model],
        refuses=len(dtypes) > 1,
        words=("models", "dtype", "type"),
    )


class _Empty(hostile.Kind):
    """A dictionary, which may be empty."""

    def __init__(self, more: tuple[Attack, ...]):
        self.more = more

    def judge(self, value: Any, valid: Any) -> str:
        return "fine" if value is None or (isinstance(value, Mapping) and not value) else "bad"

    def own(self, valid: Any) -> list[Attack]:
        return list(self.more)


@call(1.5)
def rows_alone(rng: Random) -> Call:
    """The answer about a row does not depend on the other rows, nor on their order."""
    value = _pick(rng, *FAST)
    rows = 3
    given = _given(value, rng, rows)
    for name, each in given.value.items():  # masks that have rows
        if isinstance(each, pc.Observed):
            given.value[name] = pc.Observed(each.value, _known(value, given.value)[1][name])
    plain = dict(given.value)
    options: dict[str, Any] = {"stop": pc.Tours(32), "chains": 2, "seed": 1}
    order = torch.tensor(rng.choice([[2, 0, 1], [1], [2, 1]]))

    def function(given):
        return pc.query(value.model, given, **options)

    def check(answer: Any, _: dict[str, Any]) -> None:
        some = {
            name: pc.Observed(each.value[order], each.mask[order]) if isinstance(each, pc.Observed) else each[order]
            for name, each in plain.items()
        }
        if not plain:
            return
        part = pc.query(value.model, some, **options)
        for kind in ("probabilities", "mean", "std", "decisions", "samples", "error"):
            for name, found in getattr(part, kind).items():
                whole = getattr(answer, kind)[name][order]
                assert _same(found, whole), f"{kind} of {name!r} depend on the other rows"

    return Call("pc.query rows alone", function, {"given": given}, check, [value.model])


# --- chains -----------------------------------------------------------------------------------------------------------


@call(2.5)
def chain(rng: Random) -> Call:
    value = _pick(rng, *FAST)
    rows = rng.choice([1, 3])
    state = value.whole(rng, rows)
    per_row = rng.random() < 0.3
    name = rng.choice(value.model.names)
    masks = {name: torch.ones(rows, *value.families[name].event_shape, dtype=torch.bool)}
    clamp = rng.choice([None, masks])
    bad_clamps = (
        Attack("{'typo': mask}", lambda: {"typo": masks[name]}, "bad"),
        Attack("{name: 3}", lambda: {name: 3}, "bad"),
        Attack("{name: None}", lambda: {name: None}, "bad"),
        Attack("{name: 'word'}", lambda: {name: "word"}, "bad"),
        Attack("{name: floats}", lambda: {name: masks[name].float() / 2}, "bad"),
        Attack("{name: wrong shape}", lambda: {name: masks[name].unsqueeze(-1).unsqueeze(-1)}, "bad"),
        Attack("{name: numpy}", lambda: {name: masks[name].numpy()}, "same" if clamp else "fine"),
        Attack("{name: list}", lambda: {name: masks[name].tolist()}, "same" if clamp else "fine"),
        Attack("{name: wrong rows}", lambda: {name: torch.ones(7, *masks[name].shape[1:], dtype=torch.bool)}, "bad"),
        Attack("mask", lambda: masks[name], "bad"),
    )
    seen: list[str] = []
    args = {
        "model": _model(value),
        "generator": Arg(rng.randrange(99), _Generators(), ("generator",)),
        "clamp": Arg(clamp, _Optional((), none=True, more=bad_clamps), ("clamp", "mask", name, "typo")),
        "scan": Arg("random" if per_row else rng.choice(SCANS), Word(SCANS if not per_row else ("random",)), ("scan",)),
        "per_row": Arg(per_row, Flag(), ("per_row",)),
        "batch": Arg(rows if per_row else None, Count(none=not per_row or clamp is not None), ("batch", "rows")),
        "engine": _engine(),
        "state": Arg(
            state,
            Groups(value.families, empty=False, whole=True, spread=False, optional=tuple(value.model.context)),
            ("state", *value.families),
        ),
        "steps": Arg(rng.choice([0, 1, 5]), Count(0), ("steps",)),
        "observers": Arg([lambda move: seen.append(move.name)], _Observers(), ("observer",)),
        "progress": Arg(False, Flag(none=True), ("progress",)),
    }

    def function(model, generator, clamp, scan, per_row, batch, engine, **run):
        if isinstance(generator, int) and not isinstance(generator, bool) and 0 <= generator < 99:
            generator = torch.Generator().manual_seed(generator)
        made = pc.Chain(model, generator=generator, clamp=clamp, scan=scan, per_row=per_row, batch=batch, engine=engine)
        return made.run(**run)

    def check(found: Any, values: dict[str, Any]) -> None:
        in_family(value, found, rows)
        if clamp:
            assert torch.equal(found[name].double(), state[name].double()), f"{name!r} is clamped, and was changed"

    return Call("pc.Chain.run", function, args, check, [value.model])


class _Generators(hostile.Kind):
    """A generator; small whole numbers stand for a valid one."""

    def attack(self, rng: Random, valid: Any) -> tuple[str, Any, str]:
        label = rng.choice([k for k in hostile.JUNK if k not in ("0", "True", "False", "torch.Generator()")])
        value = hostile.JUNK[label]()
        number = isinstance(value, int) and 0 <= value < 99
        return ("None", None, "bad") if number else (label, value, "bad")


class _Observers(hostile.Kind):
    def judge(self, value: Any, valid: Any) -> str:
        if callable(value):
            return "fine"
        return (
            "fine"
            if isinstance(value, list | tuple | set | dict | Tensor | np.ndarray) and hostile._is_empty(value)
            else "bad"
        )

    def own(self, valid: Any) -> list[Attack]:
        return [
            Attack("()", tuple, "fine"),
            Attack("[3]", lambda: [3], "bad"),
            Attack("[None]", lambda: [None], "bad"),
            Attack("a function", lambda: lambda move: None, "fine"),
            Attack("iter", lambda: iter(valid), "same"),
        ]


# --- learning ---------------------------------------------------------------------------------------------------------


def _schedules() -> tuple[Attack, ...]:
    return (
        Attack("lambda step: 2", lambda: lambda step: 2, "fine"),
        Attack("lambda step: nan", lambda: lambda step: math.nan, "bad"),
        Attack("lambda step: 'word'", lambda: lambda step: "word", "bad"),
        Attack("lambda step: None", lambda: lambda step: None, "bad"),
        Attack("lambda step: -1", lambda: lambda step: -1, "bad"),
        Attack("lambda: 2", lambda: lambda: 2, "bad"),
        Attack("lambda step: tensor(2)", lambda: lambda step: torch.tensor(2.0), "fine"),
        Attack("lambda step: np.float32(2)", lambda: lambda step: np.float32(2), "fine"),
    )


class _Rate(hostile.Kind):
    """A number, or a function of the step."""

    def __init__(self, low: float, mapping: tuple[str, ...] = (), none: bool = False):
        self.number, self.mapping, self.none = Num(low, none=none), mapping, none

    def judge(self, value: Any, valid: Any) -> str:
        if callable(value) or (isinstance(value, Mapping) and not value and self.mapping):
            return "fine"
        return self.number.judge(value, valid)

    def own(self, valid: Any) -> list[Attack]:
        found = [*self.number.own(valid), *_schedules()]
        if self.mapping:
            name = self.mapping[0]
            wrong = [None, "word", -1, math.nan, math.inf, True, [1], 1j]
            found += [Attack(f"{{{name!r}: {w!r}}}", lambda w=w: {name: w}, "bad") for w in wrong]
            found += [
                Attack("{'typo': 1e-3}", lambda: {"typo": 1e-3}, "bad"),
                Attack("{name: 1e-3}", lambda: {name: 1e-3}, "fine"),
            ]
        return found


def _optimisers() -> tuple[Attack, ...]:
    return (
        Attack("torch.optim.Adam", lambda: torch.optim.Adam, "bad"),
        Attack("lambda p: 1", lambda: lambda p: 1, "bad"),
        Attack("lambda n, p: None", lambda: lambda n, p: None, "bad"),
        Attack("lambda n, p: 3", lambda: lambda n, p: 3, "bad"),
        Attack("'adam'", lambda: "adam", "bad"),
        Attack("an optimiser", lambda: torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), "bad"),
        Attack("SGD", lambda: lambda n, p: torch.optim.SGD(p, lr=0.01), "fine"),
        Attack("AdamW", lambda: lambda n, p: torch.optim.AdamW(p, lr=0.01), "fine"),
    )


def _augments() -> tuple[Attack, ...]:
    return (
        Attack("lambda s, g: None", lambda: lambda s, g: None, "bad"),
        Attack("lambda s, g: {}", lambda: lambda s, g: {}, "bad"),
        Attack("lambda s: s", lambda: lambda s: s, "bad"),
        Attack(
            "NaN", lambda: lambda s, g: {k: v * math.nan if v.is_floating_point() else v for k, v in s.items()}, "bad"
        ),
        Attack("fewer rows", lambda: lambda s, g: {k: v[1:] for k, v in s.items()}, "bad"),
        Attack("a typo", lambda: lambda s, g: {**s, "typo": torch.zeros(1)}, "bad"),
        Attack("identity", lambda: lambda s, g: s, "same"),
        Attack("in place", lambda: lambda s, g: [v.zero_() for v in s.values()] and s, "fine"),
    )


def _forms() -> tuple[Attack, ...]:
    return (
        Attack("RunningForm()", RunningForm, "fine"),
        Attack("LiteralForm()", LiteralForm, "fine"),
        Attack("RunningForm", lambda: RunningForm, "bad"),
        Attack("'Running'", lambda: "Running", "bad"),
    )


def _completions() -> tuple[Attack, ...]:
    return (
        Attack("CompletionOptions", lambda: pc.CompletionOptions, "bad"),
        Attack("parallel", lambda: pc.CompletionOptions(parallel=True), "fine"),
        Attack("average", lambda: pc.CompletionOptions(by="average"), "fine"),
        Attack("warm typo", lambda: pc.CompletionOptions(warm=("typo",)), "bad"),
        Attack("{'steps': 1}", lambda: {"steps": 1}, "bad"),
    )


def _masked_data(value: World, rng: Random, rows: int = 40) -> pc.Data:
    state = {k: v[:rows].clone() for k, v in value.data.items() if k not in value.latent}
    generator = torch.Generator().manual_seed(rng.randrange(999))
    share = rng.choice([1.0, 0.7])
    mask = {k: torch.rand(rows, generator=generator) < share for k, v in state.items() if k not in value.model.context}
    mask[next(iter(mask))][0] = True
    return pc.Data(state, mask)


@call(4)
def learner(rng: Random) -> Call:
    value = _pick(rng, "finite", "context", "mixed", "latent", "custom", "shared", "double", "image")
    model = copy.deepcopy(value.model)
    data = _masked_data(value, rng)
    first = value.model.names[0]
    way = rng.choice(["fit", "run", "step", "fit"])
    args = {
        "model": Arg(model, Is((pc.JointModel,), more=MODELS), ("model", "JointModel")),
        "data": Arg(data, Is((pc.Data,), more=DATA), ("data", "Data", "typo", *value.families)),
        "chain_length": Arg(rng.choice([4, 2.5, 1]), _Rate(1), ("chain_length", "chain length")),
        "batch_size": Arg(rng.choice([1, 8]), Count(huge=True), ("batch_size", "batch size")),
        "learning_rate": Arg(
            rng.choice([None, 1e-3]), _Rate(0, value.model.names, none=True), ("learning_rate", "learning rate", "typo")
        ),
        "augment": Arg(None, Is((), none=True, more=_augments()), ("augment",)),
        "completion": Arg(
            pc.CompletionOptions(), Is((pc.CompletionOptions,), none=True, more=_completions()), ("completion", "warm")
        ),
        "form": Arg(rng.choice(["running", "literal"]), Is((RunningForm,), more=_forms()), ("form", "scan")),
        "optimiser": Arg(pc.Learner.__init__.__kwdefaults__["optimiser"], Is((), more=_optimisers()), ("optimiser",)),
        "average": Arg(0.9, Num(0, 1), ("average",)),
        "engine": _engine(),
        "seed": _seed(rng),
        "steps": Arg(rng.choice([1, 4]), Count(0), ("steps",)),
        "progress": Arg(False, Flag(none=True), ("progress",)),
    }
    if way == "step":
        args = {k: v for k, v in args.items() if k not in ("steps", "progress")}

    def function(steps=2, progress=False, **options):
        made = pc.Learner(**options)
        if way == "fit":
            result = made.fit(steps, progress)
        elif way == "run":
            for _ in made.run(steps, progress):
                pass
            made.finish()
            result = made.result
        else:
            for _ in range(3):
                made.step()
            made.finish()
            result = made.result
        return {k: v.detach() for k, v in result.state_dict().items()}

    def check(found: Any, _: dict[str, Any]) -> None:
        finite_numbers(found)
        finite_numbers({k: v.detach() for k, v in model.state_dict().items()}, "model")

    del first
    return Call(
        f"pc.Learner.{way}", function, args, check, [value.model], draws_globally=True, compare=value.name != "mixed"
    )


class _Folder:
    """A folder that a trial may fill, removed after it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="fuzz"))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class _Paths(hostile.Kind):
    def __init__(self, folder: Path, exists: bool, bad: str = "bad", none: bool = False):
        self.folder, self.exists, self.bad, self.none = folder, exists, bad, none

    def attack(self, rng: Random, valid: Any) -> tuple[str, Any, str]:
        file = self.folder / "a file"
        file.write_text("x")
        empty = self.folder / "empty"
        empty.mkdir(exist_ok=True)
        choices: list[Attack] = [
            Attack(label, made, self.bad if label == "'x' * 10000" else "bad")
            for label, made in hostile.JUNK.items()
            if label not in ("'word'", "'1'", "pathlib.Path('nowhere')", "np.str_('word')", "''", "b'x'")
        ]
        special = [
            Attack("a file", lambda: file, "bad"),
            Attack("under a file", lambda: file / "x", "bad"),
            Attack("str(path)", lambda: str(valid), "same"),
            Attack("NUL inside", lambda: str(self.folder / "a\0b"), "bad"),
            Attack("a long name", lambda: self.folder / ("x" * 300), "bad"),
            Attack("bytes", lambda: str(valid).encode(), "fine"),
        ]
        if self.exists:
            special += [
                Attack("nowhere", lambda: self.folder / "nowhere", "bad"),
                Attack("an empty folder", lambda: empty, "bad"),
                Attack("empty text", lambda: "", "bad"),
            ]
        if rng.random() < 0.5:
            chosen = rng.choice(special)
            return chosen.label, chosen.make(), self.bad if chosen.verdict == "bad" else chosen.verdict
        chosen = rng.choice(choices)
        return chosen.label, chosen.make(), "fine" if chosen.label == "None" and self.none else chosen.verdict


@call(1.5)
def save_and_load(rng: Random) -> Call:
    value = _pick(rng, "finite", "context", "mixed", "latent", "image", "shared", "double", "custom")
    folder = _Folder()
    own = value.name == "custom"
    modules = {n: copy.deepcopy(value.model.conditional(n).network) for n in value.model.names} if own else None
    more = (
        Attack("{'typo': net}", lambda: {"typo": nn.Linear(1, 1)}, "bad"),
        Attack("{name: 3}", lambda: {value.model.names[0]: 3}, "bad"),
        Attack("{name: nn.Linear(1, 1)}", lambda: {value.model.names[0]: nn.Linear(1, 1)}, "bad"),
        Attack("{name: a class}", lambda: {value.model.names[0]: nn.Linear}, "bad"),
    )
    place = folder.path / "model"
    loading = rng.random() < 0.5
    if loading:
        value.model.save(place)
        args = {
            "folder": Arg(
                place,
                _Paths(folder.path, True),
                ("folder", "no model", "nowhere", "file", "path", "empty", "there is no"),
            ),
            "modules": Arg(modules, _Optional((), none=not own, more=more), ("modules", *value.families)),
        }
        function: Any = pc.JointModel.load
    else:
        dtypes = (
            Attack("torch.int8", lambda: torch.int8, "bad"),
            Attack("'float32'", lambda: "float32", "bad"),
            Attack("np.float32", lambda: np.float32, "bad"),
            Attack("float", lambda: float, "bad"),
            Attack("torch.complex64", lambda: torch.complex64, "bad"),
            Attack("torch.float8_e4m3fn", lambda: torch.float8_e4m3fn, "fine"),
            Attack("torch.bfloat16", lambda: torch.bfloat16, "fine"),
        )
        args = {
            "folder": Arg(place, _Paths(folder.path, False), ("folder", "file", "path", "there", "name")),
            "dtype": Arg(None, Is((torch.dtype,), none=True, more=dtypes), ("dtype",)),
            "max_bytes": Arg(rng.choice([None, 200, 10**6]), Count(none=True), ("max_bytes",)),
        }

        def function(folder, dtype, max_bytes):
            value.model.save(folder, dtype=dtype, max_bytes=max_bytes)
            return pc.JointModel.load(place if isinstance(folder, bytes) else folder, modules)

    def check(found: Any, values: dict[str, Any]) -> None:
        if values.get("dtype") is not None:
            return
        saved = value.model.state_dict()
        for key, tensor in found.state_dict().items():
            assert torch.equal(tensor, saved[key]), f"{key} differs"
        given = value.some(Random(3), 2)
        one, two = (pc.query(m, given, rows=2, stop=pc.Tours(16), chains=2) for m in (found, value.model))
        for name, p in one.decisions.items():
            assert torch.equal(p, two.decisions[name]), f"the loaded model answers otherwise about {name!r}"

    return Call(
        "pc.JointModel.load" if loading else "pc.JointModel.save",
        function,
        args,
        check,
        [value.model],
        draws_globally=True,
        compare=False,
        cleanup=folder.remove,
    )


class _Optional(Is):
    """A dictionary of which every entry may be left out, where there need not be one."""

    def judge(self, value: Any, valid: Any) -> str:
        none = self.none and isinstance(value, Mapping) and not value
        return "fine" if none else super().judge(value, valid)


@call(1.5)
def save_and_resume(rng: Random) -> Call:
    value = _pick(rng, "finite", "context", "latent", "double")
    folder, data = _Folder(), _masked_data(value, rng)
    place, way = folder.path / "run", rng.choice(["save", "resume", "fit", "exists", "load_state_dict"])

    def made() -> pc.Learner:
        return pc.Learner(copy.deepcopy(value.model), data, batch_size=4, seed=1)

    args: dict[str, Arg] = {}
    words = ("folder", "file", "path", "there is no checkpoint", "checkpoint", "name")
    if way == "load_state_dict":
        source = made()
        source.fit(2, False)
        state = source.state_dict()
        more = (
            Attack("{}", dict, "bad"),
            Attack("without 'model'", lambda: {k: v for k, v in state.items() if k != "model"}, "bad"),
            Attack("'step_count': 'word'", lambda: {**state, "step_count": "word"}, "bad"),
            Attack("'threads': -1", lambda: {**state, "threads": -1}, "bad"),
            Attack("'threads': 10**6", lambda: {**state, "threads": 10**6}, "bad"),
            Attack("'scan': None", lambda: {**state, "scan": None}, "bad"),
            Attack("'random': None", lambda: {**state, "random": None}, "bad"),
        )
        args["state"] = Arg(state, Free() if not more else _States(more), ("state", "checkpoint"))

        def function(state):
            other = made()
            other.load_state_dict(state)
            other.fit(2, False)
            return other.step_count

    elif way == "exists":
        args["folder"] = Arg(place, _Paths(folder.path, False, bad="fine"), words)
        function = checkpoints.exists
    elif way == "fit":
        args = {
            "learner": Arg(made(), Is(()), ("learner", "Learner")),
            "steps": Arg(2, Count(0), ("steps",)),
            "folder": Arg(place, _Paths(folder.path, False, none=True), words),
            "resume": Arg(False, Flag(), ("resume",)),
            "minutes": Arg(None, Num(none=True, open_high=False), ("minutes",)),
            "every": Arg(60.0, Num(open_high=False), ("every",)),
            "progress": Arg(False, Flag(none=True), ("progress",)),
            "on_step": Arg(None, Is((), none=True, callables=True), ("on_step", "argument", "callable")),
        }
        function = checkpoints.fit
    else:
        if way == "resume":
            source = made()
            source.fit(2, False)
            source.save(place)
        args["folder"] = Arg(place, _Paths(folder.path, way == "resume"), words)

        def function(folder):
            other = made()
            getattr(other, way)(folder)
            return other.step_count

    def check(found: Any, _: dict[str, Any]) -> None:
        expected = {"save": 0, "resume": 2, "fit": True, "exists": False, "load_state_dict": 4}[way]
        assert found == expected, f"{found}, not {expected}"

    return Call(
        f"learner.{way}",
        function,
        args,
        check,
        [value.model],
        draws_globally=True,
        compare=False,
        cleanup=folder.remove,
    )


class _States(hostile.Kind):
    """A dictionary that the user has no reason to make: only wholly wrong ones are tried."""

    def __init__(self, more: tuple[Attack, ...]):
        self.more = more

    def own(self, valid: Any) -> list[Attack]:
        return list(self.more)


# --- data -------------------------------------------------------------------------------------------------------------


@call(4)
def data(rng: Random) -> Call:
    families = {"smoker": pc.Binary(2), "city": pc.Categorical(3), "weight": pc.Real(()), "picture": pc.Real((1, 3, 3))}
    source = world("finite").data
    state: dict[str, Tensor] = {
        "smoker": source["smoker"][:5].clone(),
        "city": source["city"][:5].clone(),
        "weight": torch.arange(5.0) / 4,
        "picture": torch.arange(45.0).view(5, 1, 3, 3) / 8,
    }
    names = rng.sample(list(state), rng.randint(1, 4))
    state = {name: state[name] for name in names}
    masks = {name: torch.ones(5, dtype=torch.bool) for name in names if rng.random() < 0.5}
    bad = (
        Attack("{'nobody': mask}", lambda: {"nobody": torch.ones(5, dtype=torch.bool)}, "bad"),
        Attack("{1: mask}", lambda: {1: torch.ones(5, dtype=torch.bool)}, "bad"),
    )
    args = {
        "state": Arg(state, _Unjudged(families), ("state", "data", *names)),
        "mask": Arg(masks, _Masks(families, state, bad), ("mask", "nobody", *names)),
    }

    def function(state, mask):
        made = pc.Data(state, mask)
        repr(made)
        len(made)
        _ = made[0], made[:2], made[[0, 1]], made.to("cpu")
        return made.state, made.mask

    def check(found: Any, _: dict[str, Any]) -> None:
        for name, value in state.items():
            assert tuple(found[0][name].shape) == tuple(value.shape) and tuple(found[1][name].shape) == tuple(
                value.shape
            ), f"{name!r}: shape"

    return Call("pc.Data", function, args, check, compare=False)  # it keeps the types of its values


class _Unjudged(Groups):
    """Values of groups whose families are not known yet: only what can never be a number is wrong."""

    def attack(self, rng: Random, valid: Any) -> tuple[str, Any, str]:
        label, value, verdict = super().attack(rng, valid)
        outright = (
            "words",
            "None",
            "'a'",
            "list in",
            "complex",
            "strings",
            "bytes",
            "dates",
            "datetimes",
            "a string",
            "a class",
            "a function",
            "a generator",
            "a set",
            "dictionary",
            "Observed",
            "a family",
            "a number as name",
            "as pairs",
            "meta",
            "as a set",
            "as values",
            "a single number",
            "no rows",
            "a row less",
            "empty",
        )
        if verdict == "bad" and isinstance(value, Mapping) and not any(word in label for word in outright):
            verdict = "fine"
        if "no batch axis" in label or "one more axis" in label or "wider" in label or "with 'typo'" in label:
            verdict = "fine"
        if "Observed" in label or "as name" in label:
            verdict = "bad"
        return label, value, verdict


class _Masks(hostile.Kind):
    def __init__(self, families: Mapping[str, pc.Family], state: Mapping[str, Tensor], more: tuple[Attack, ...]):
        self.families, self.state, self.more = families, state, more

    def judge(self, value: Any, valid: Any) -> str:
        return "fine" if value is None or (isinstance(value, Mapping) and not value) else "bad"

    def attack(self, rng: Random, valid: Any) -> tuple[str, Any, str]:
        if not valid or rng.random() < 0.3:
            return super().attack(rng, valid)
        name = rng.choice(list(valid))
        label, mask, verdict = Mask(self.families[name], self.state[name]).attack(rng, valid[name])
        return f"{name!r}: {label}", {**valid, name: mask}, verdict

    def own(self, valid: Any) -> list[Attack]:
        return list(self.more)


@call(1)
def data_rows(rng: Random) -> Call:
    made = pc.Data({k: v[:5] for k, v in world("finite").data.items()})
    rows = rng.choice(
        [0, -1, slice(1, 3), [0, 2], torch.tensor([1, 1]), torch.tensor([True, False, True, False, False])]
    )
    wrong = (
        Attack("5", lambda: 5, "bad"),
        Attack("-6", lambda: -6, "bad"),
        Attack("[7]", lambda: [7], "bad"),
        Attack("slice(3, 3)", lambda: slice(3, 3), "bad"),
        Attack("a longer mask", lambda: torch.ones(9, dtype=torch.bool), "bad"),
        Attack("[0.5]", lambda: [0.5], "bad"),
        Attack("np.array([0, 1])", lambda: np.array([0, 1]), "fine"),
        Attack("np.int64(1)", lambda: np.int64(1), "fine"),
        Attack("range(2)", lambda: range(2), "fine"),
    )

    def function(rows):
        return made[rows].state

    def check(found: Any, _: dict[str, Any]) -> None:
        for name, value in found.items():
            assert value.ndim == made.state[name].ndim and len(value) > 0, f"{name!r}: shape {list(value.shape)}"

    def own_check(found: Any, values: dict[str, Any]) -> None:
        check(found, values)

    return Call("pc.Data[rows]", function, {"rows": Arg(rows, _Rows(wrong), ("rows", "row", "index"))}, own_check)


class _Rows(hostile.Kind):
    def __init__(self, more: tuple[Attack, ...]):
        self.more = more

    def judge(self, value: Any, valid: Any) -> str:
        if isinstance(value, slice | range | list | tuple | np.ndarray | Tensor) or hasattr(value, "dropna"):
            return "fine" if not hostile._is_empty(value) else "bad"
        return "fine" if Count(-5, 4).judge(value, None) != "bad" else "bad"

    def own(self, valid: Any) -> list[Attack]:
        return list(self.more)


@call(1)
def observed(rng: Random) -> Call:
    value = world("finite")
    family = value.families["smoker"]
    tensor = value.data["smoker"][:3].clone()
    args = {
        "value": Arg(tensor, Values(family), ("smoker", "value", "given")),
        "mask": Arg(torch.tensor([True, True, False]), Mask(family, tensor), ("mask", "smoker", "given")),
    }

    def function(value, mask):
        return pc.query(
            world("finite").model, {"smoker": pc.Observed(value, mask)}, stop=pc.Tours(16), chains=2
        ).decisions

    return Call("pc.Observed", function, args, lambda found, _: in_family(value, found, 3), [value.model])


@call(1.5)
def hide(rng: Random) -> Call:
    made = pc.Data({k: v.clone() for k, v in world("finite").data.items()})
    fractions = {"smoker": 0.5, "city": rng.choice([0, 1.0, 0.25])}
    wrong = [None, "word", -0.1, 1.1, math.nan, math.inf, [0.5], 1j, True]
    more = (
        *(Attack(f"{{'city': {w!r}}}", lambda w=w: {"city": w}, "bad") for w in wrong),
        Attack("{'typo': 0.5}", lambda: {"typo": 0.5}, "bad"),
        Attack("0.5", lambda: 0.5, "bad"),
        Attack("['city']", lambda: ["city"], "bad"),
        Attack("np.float32", lambda: {"smoker": np.float32(0.5)}, "fine"),
    )
    args = {
        "data": Arg(made, Is((pc.Data,), more=DATA[1:]), ("data", "Data")),
        "fractions": Arg(
            fractions, _Optional((), none=True, more=more), ("fraction", "smoker", "city", "typo", "hide")
        ),
        "coordinates": Arg(rng.random() < 0.5, Flag(), ("coordinates",)),
        "seed": _seed(rng),
    }

    def check(found: Any, values: dict[str, Any]) -> None:
        assert len(found) == ROWS, "rows"
        for name, fraction in fractions.items():
            share = 1 - float(found.mask[name].double().mean())
            assert abs(share - fraction) < 0.2, f"{name!r}: hidden {share}, asked for {fraction}"

    return Call("datasets.hide", pc.datasets.hide, args, check)


@call(0.7)
def keep_labels(rng: Random) -> Call:
    labels = torch.arange(40) % 4
    made = pc.Data({"x": torch.zeros(40, 2), "c": labels})
    args = {
        "data": Arg(
            made,
            Is((pc.Data,), more=(*DATA, Attack("Data without 'c'", lambda: pc.Data({"x": torch.zeros(4, 2)}), "bad"))),
            ("data", "Data", "'c'"),
        ),
        "count": Arg(8, Count(0), ("count", "labels")),
        "seed": _seed(rng),
    }

    def check(found: Any, values: dict[str, Any]) -> None:
        assert int(found.mask["c"].sum()) == 8, f"{int(found.mask['c'].sum())} labels, not 8"

    return Call("datasets.keep_labels", pc.datasets.keep_labels, args, check)


@call(0.5)
def digits(rng: Random) -> Call:
    args = {
        "split": Arg("test", Word(("train", "test")), ("split",)),
        "hide": Arg(
            {"c": 0.5},
            _Optional(
                (),
                none=True,
                more=(Attack("{'c': 2}", lambda: {"c": 2}, "bad"), Attack("{'c': 'x'}", lambda: {"c": "x"}, "bad")),
            ),
            ("hide", "hidden", "fraction", "typo"),
        ),
        "seed": _seed(rng),
    }
    return Call("datasets.digits", pc.datasets.digits, args, lambda found, _: finite_numbers(found.state))


@call(0.7)
def images(rng: Random) -> Call:
    folder = _Folder()
    which = rng.choice(["mnist", "fashion", "faces"])
    (folder.path / "broken.gz").write_bytes(b"\x1f\x8bnothing")
    args = {
        "split": Arg("train", Word(("train", "test")), ("split", "folder", "no file", "found", "data")),
        "folder": Arg(folder.path, _Paths(folder.path, False), ("folder", "file", "path", which, "data")),
    }
    return Call(
        f"datasets.{which}",
        getattr(pc.datasets, which),
        args,
        refuses=True,
        must_refuse=True,
        compare=False,
        words=("folder", "file", "data", which),
        cleanup=folder.remove,
    )


# --- settings ---------------------------------------------------------------------------------------------------------


@call(1)
def settings(rng: Random) -> Call:
    which = rng.choice(["Regeneration", "Precise", "Tours", "Converged", "Sweeps", "CompletionOptions", "Engine"])
    most = rng.choice([0, 64])
    made: dict[str, dict[str, Arg]] = {
        "Regeneration": {
            "rate": Arg(0.1, Num(0, 1, open_low=True, open_high=False), ("rate",)),
            "warmup": Arg(3, Count(0), ("warmup",)),
        },
        "Precise": {
            "error": Arg(0.1, Num(0, open_low=True), ("error",)),
            "least": Arg(4, Count(2, most or BIG), ("least", "most")),
            "most": Arg(most, _Most(), ("most", "least")),
        },
        "Tours": {"count": Arg(5, Count(2), ("count", "least", "most", "tours"))},
        "Converged": {
            "ess": Arg(10.0, Num(0), ("ess",)),
            "limit": Arg(5, Count(), ("limit",)),
            "r_hat": Arg(1.1, Num(1), ("r_hat",)),
        },
        "Sweeps": {
            "count": Arg(3, Count(), ("count", "sweeps")),
            "warmup": Arg(rng.choice([None, 2]), Count(0, none=True), ("warmup",)),
        },
        "CompletionOptions": {
            "steps": Arg(2, Count(0), ("steps",)),
            "by": Arg("model", Word(("model", "average")), ("by",)),
            "warm": Arg(("smoker",), _Warm(["smoker"], empty=True, one=False), ("warm",)),
            "parallel": Arg(False, Flag(), ("parallel",)),
        },
        "Engine": {
            "device": Arg("cpu", _Devices(), ("device", "cuda")),
            "mode": Arg("eager", Word(("auto", "eager", "rounded")), ("mode", "engine", "graphs")),
            "compile": Arg(False, Flag(), ("compile",)),
        },
    }

    def check(found: Any, values: dict[str, Any]) -> None:
        repr(found)

    return Call(f"pc.{which}", getattr(pc, which), made[which], check, compare=which != "Engine")


class _Most(Count):
    def judge(self, value: Any, valid: Any) -> str:
        none = Count(0).judge(value, valid) != "bad" and value == 0  # chosen by the library
        return "fine" if none else Count(4).judge(value, valid)

    def own(self, valid: Any) -> list[Attack]:
        return [Attack("1", lambda: 1, "bad"), Attack("-1", lambda: -1, "bad"), Attack("0.0", lambda: 0.0, "fine")]


class _Warm(Names):
    def judge(self, value: Any, valid: Any) -> str:
        return (
            "bad" if not (isinstance(value, list | tuple | set) and all(isinstance(v, str) for v in value)) else "fine"
        )

    def own(self, valid: Any) -> list[Attack]:
        return [
            Attack("'smoker'", lambda: "smoker", "bad"),
            Attack("['smoker']", lambda: ["smoker"], "fine"),
            Attack("(3,)", lambda: (3,), "bad"),
            Attack("(None,)", lambda: (None,), "bad"),
        ]


class _Devices(hostile.Kind):
    def judge(self, value: Any, valid: Any) -> str:
        return "bad"

    def own(self, valid: Any) -> list[Attack]:
        return [
            Attack("torch.device('cpu')", lambda: torch.device("cpu"), "fine"),
            Attack("'cuda'", lambda: "cuda", "fine"),
            Attack("'gpu'", lambda: "gpu", "bad"),
            Attack("'cuda:99'", lambda: "cuda:99", "bad"),
            Attack("'meta'", lambda: "meta", "bad"),
        ]


@call(2)
def families(rng: Random) -> Call:
    which = rng.choice(["Binary", "Categorical", "Real", "Real", "Context"])
    shape = Arg(rng.choice([(), 2, (2, 3), [2]]), Shape(), ("shape",))
    if which == "Binary":
        args = {"shape": shape}
    elif which == "Categorical":
        args = {"classes": Arg(3, Count(2, 2**31), ("classes",)), "shape": shape}
    elif which == "Real":
        scales = _Scales(("element", "coordinate", "learned"))
        ceiling = rng.choice([None, 1.0])
        args = {
            "shape": shape,
            "scale": Arg(rng.choice(["element", "learned", 0.5, 2]), scales, ("scale",)),
            "initial_scale": Arg(
                0.1, Num(0.001, ceiling or math.inf, open_low=True), ("initial_scale", "floor", "ceiling")
            ),
            "floor": Arg(0.001, Num(0, 0.1, open_low=True), ("floor",)),
            "ceiling": Arg(ceiling, Num(0.1, open_low=True, none=True), ("ceiling",)),
            "bounds": Arg(rng.choice([None, (-1.0, 1.0)]), _Bounds(), ("bounds",)),
        }
    else:
        family, default = rng.choice(
            [(pc.Binary(2), [0, 1]), (pc.Categorical(3), 2), (pc.Real(2), [0.5, -1.0]), (pc.Real(()), 1.5)]
        )
        args = {
            "family": Arg(family, Is((pc.Family,)), ("family", "Family", "default")),
            "default": Arg(default, _Defaults(family), ("default",)),
        }

    def function(**options):
        made = getattr(pc, which)(**options)
        repr(made)
        if which == "Context":
            made.describe()
            return made.values("region", 3, torch.float32, torch.device("cpu")) if made.default is not None else None
        drawn = made.random(2, torch.Generator().manual_seed(0), torch.float32)
        law = made.distribution(torch.zeros(2, *made.output_shape), **made.shared_parameters())
        made.describe()
        return drawn, law.log_prob(drawn), law.mean

    def check(found: Any, values: dict[str, Any]) -> None:
        for each in found if isinstance(found, tuple) else [found]:
            finite_numbers(each)

    return Call(f"pc.{which}", function, args, check)


class _Scales(hostile.Kind):
    def __init__(self, words: tuple[str, ...]):
        self.words = words

    def judge(self, value: Any, valid: Any) -> str:
        if isinstance(value, str):
            return "fine" if value in self.words else "bad"
        return Num(0, open_low=True).judge(value, valid)


class _Bounds(hostile.Kind):
    def judge(self, value: Any, valid: Any) -> str:
        if value is None:
            return "fine"
        try:
            pair = isinstance(value, tuple | list | np.ndarray) and len(value) == 2 and not np.ma.isMaskedArray(value)
            return "fine" if pair and -math.inf < value[0] < value[1] < math.inf else "bad"
        except Exception:
            return "bad"

    def own(self, valid: Any) -> list[Attack]:
        wrong = [
            (1, 1),
            (2, 1),
            (math.nan, 1),
            (0, math.nan),
            (0, math.inf),
            (0,),
            (0, 1, 2),
            ("a", "b"),
            (None, 1),
            (0, 10**400),
            (1j, 2),
            (False, True),
        ]
        return [Attack(repr(w)[:40], lambda w=w: w, "bad" if w != (False, True) else "fine") for w in wrong] + [
            Attack("[0, 1]", lambda: [0, 1], "fine"),
            Attack("(np.float32(0), np.float64(1))", lambda: (np.float32(0), np.float64(1)), "fine"),
        ]


class _Defaults(hostile.Kind):
    """A value of a family: the default of a context."""

    def __init__(self, family: pc.Family):
        self.family = family

    def judge(self, value: Any, valid: Any) -> str:
        if value is None:
            return "fine"
        try:
            tensor = torch.as_tensor(value.item() if isinstance(value, np.generic) else value)
            shape = tuple(tensor.shape)
        except Exception:
            return "bad"
        broadcasts = len(shape) <= len(self.family.event_shape) and all(
            a in (1, b) for a, b in zip(reversed(shape), reversed(self.family.event_shape), strict=False)
        )
        if not broadcasts or tensor.is_complex() or np.ma.isMaskedArray(value) or tensor.is_meta or tensor.is_sparse:
            return "bad"
        if not bool(tensor.double().float().isfinite().all()):
            return "bad"
        if isinstance(self.family, pc.Binary):
            return "fine" if bool(((tensor == 0) | (tensor == 1)).all()) else "bad"
        if isinstance(self.family, pc.Categorical):
            inside = (tensor >= 0) & (tensor < self.family.classes) & (tensor == tensor.double().round())
            return "fine" if bool(inside.all()) else "bad"
        return "fine"


@call(1.5)
def joint_model(rng: Random) -> Call:
    value = _pick(rng, "finite", "context", "mixed")
    parts = {n: value.model.conditional(n) for n in value.model.names}
    first = value.model.names[0]
    alpha = dict.fromkeys(parts, 1.0)
    wrong = [None, "word", -1, 0, math.nan, math.inf, True, [1], 1j, np.nan, torch.tensor(1.0), 10**400, 1e308]
    alphas = (
        *(
            Attack(
                f"{{{first!r}: {w!r:.20}}}",
                lambda w=w: {**alpha, first: w},
                "bad" if w not in (1e308,) and not isinstance(w, Tensor) else "fine",
            )
            for w in wrong
        ),
        Attack("{'typo': 1}", lambda: {**alpha, "typo": 1}, "bad"),
        Attack("{}", dict, "bad"),
        Attack("[1, 1, 1]", lambda: [1, 1, 1], "bad"),
        Attack("np.float64", lambda: {k: np.float64(1) for k in alpha}, "same"),
        Attack("np.int32", lambda: {k: np.int32(1) for k in alpha}, "same"),
    )
    conditionals = (
        Attack("{}", dict, "bad"),
        Attack("a list", lambda: list(parts.values()), "bad"),
        Attack("{name: None}", lambda: {**parts, first: None}, "bad"),
        Attack("{name: family}", lambda: {**parts, first: pc.Binary(2)}, "bad"),
        Attack("{name: network}", lambda: {**parts, first: parts[first].network}, "bad"),
        Attack("{3: conditional}", lambda: {**parts, 3: parts[first]}, "bad"),
        Attack("{None: conditional}", lambda: {**parts, None: parts[first]}, "bad"),
        Attack("{'': conditional}", lambda: {**parts, "": parts[first]}, "fine"),
    )
    contexts = (
        Attack("{'new': None}", lambda: {"new": None}, "bad"),
        Attack("{'new': family}", lambda: {"new": pc.Binary(2)}, "bad"),
        Attack("{name: Context}", lambda: {first: pc.Context(pc.Binary(2))}, "bad"),
        Attack("{3: Context}", lambda: {3: pc.Context(pc.Binary(2))}, "bad"),
        Attack("[Context]", lambda: [pc.Context(pc.Binary(2))], "bad"),
    )
    args = {
        "conditionals": Arg(parts, _States(conditionals), ("conditional", *parts)),
        "alpha": Arg(alpha, Is((), none=True, more=alphas), ("alpha",)),
        "context": Arg(
            dict(value.model.context), Is((), none=not value.model.context, more=contexts), ("context", first)
        ),
        "regeneration": Arg(REGENERATION, Is((pc.Regeneration,), none=True), ("regeneration", "Regeneration")),
    }
    if value.model.context:
        args["context"].kind = Free()

    def function(**options):
        made = pc.JointModel(**options)
        repr(made)
        given = {n: value.data[n][:2] for n in value.needed}
        return pc.query(made, given, rows=2, stop=pc.Tours(16), chains=2).decisions

    return Call("pc.JointModel", function, args, lambda found, _: in_family(value, found, 2), [value.model])


@call(1)
def conditional(rng: Random) -> Call:
    variables = {"smoker": pc.Binary(2), "city": pc.Categorical(3)}
    network = pc.networks.mlp(variables, "smoker", hidden=4)
    args = {
        "family": Arg(pc.Binary(2), Is((pc.Family,)), ("family",)),
        "network": Arg(network, Is((nn.Module,)), ("network", "must return", "Linear")),
        "init": Arg(
            None,
            Is((nn.Module,), none=True, more=(Attack("nn.Linear(1, 1)", lambda: nn.Linear(1, 1), "bad"),)),
            ("init",),
        ),
    }

    def function(**options):
        made = pc.Conditional(**options)
        return made.family.event_shape

    return Call("pc.Conditional", function, args)


@call(1)
def validate(rng: Random) -> Call:
    value = _pick(rng, "finite", "context", "mixed", "latent")
    state = value.some(rng, 5, all_groups=True)
    masks = {n: torch.ones(5, dtype=torch.bool) for n in state}
    args = {
        "state": Arg(
            state, Groups(value.families, spread=False, empty=True, observed=False), ("state", "rows", *value.families)
        ),
        "mask": Arg(masks, _Masks(value.families, state, ()), ("mask", *value.families)),
    }

    def check(found: Any, _: dict[str, Any]) -> None:
        assert set(found[0]) == set(value.families), "groups"
        finite_numbers(found[0])

    return Call("model.validate", value.model.validate, args, check, [value.model])


@call(0.7)
def forward(rng: Random) -> Call:
    value = _pick(rng, "finite", "context", "mixed", "latent")
    name, state = rng.choice(value.model.names), value.whole(rng, 3)
    args = {
        "name": Arg(name, Names(list(value.model.names), only_one=True), ("name", "variable", "context", "group")),
    }

    def function(name):
        return value.model(name, state).mean.detach()

    return Call(
        "model(name, state)",
        function,
        args,
        lambda found, _: finite_numbers(found),
        [value.model],
        draws_globally=True,
        compare=value.name != "mixed",
    )


# --- networks ---------------------------------------------------------------------------------------------------------


class _Sizes(hostile.Kind):
    """Sizes by the names of groups."""

    def __init__(self, empty: bool = True):
        self.empty = empty

    def judge(self, value: Any, valid: Any) -> str:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            return "bad"
        sizes = all(Count().judge(size, None) != "bad" for size in value.values())
        return "fine" if sizes and (value or self.empty) else "bad"

    def own(self, valid: Any) -> list[Attack]:
        wrong = [None, "word", -1, 0, 1.5, math.nan, 10**30, [1], True]
        return [Attack(f"{{'city': {w!r}}}", lambda w=w: {"city": w}, "bad") for w in wrong] + [
            Attack("{'city': np.int64(3)}", lambda: {"city": np.int64(3)}, "fine"),
            Attack("{3: 3}", lambda: {3: 3}, "bad"),
        ]


class _Variables(hostile.Kind):
    """Families by the names of groups."""

    def judge(self, value: Any, valid: Any) -> str:
        return "bad"

    def own(self, valid: Mapping[str, pc.Family]) -> list[Attack]:
        first = next(iter(valid))
        wrong: list[Any] = [None, "word", 3, pc.Binary, nn.Linear(1, 1)]
        return [Attack(f"{{{first!r}: {w!r:.20}}}", lambda w=w: {**valid, first: w}, "bad") for w in wrong] + [
            Attack("a list", lambda: list(valid.values()), "bad"),
            Attack("a model", lambda: world("finite").model, "bad"),
            Attack("{}", dict, "bad"),
        ]


def _reads(names: list[str], name: str) -> Arg:
    others = [n for n in names if n != name]
    return Arg(others, _Reads(others, none=True), ("reads", "read", *names))


class _Reads(Names):
    def own(self, valid: Any) -> list[Attack]:
        return [*super().own(valid), Attack("a number inside", lambda: [*valid, 3], "bad")]


@call(2.5)
def network(rng: Random) -> Call:
    which = rng.choice(
        [
            "mlp",
            "image_network",
            "scene_network",
            "MLP",
            "ImageEncoder",
            "ImageDecoder",
            "StackedMLP",
            "UNet",
            "SceneEncoder",
            "Pyramid",
        ]
    )
    flat = {"smoker": pc.Binary(2), "city": pc.Categorical(3)}
    pictures = {"picture": pc.Binary((1, 16, 16)), "city": pc.Categorical(3), "smoker": pc.Binary(2)}
    small = Count(1)
    name = rng.choice(["smoker", "city"])
    blocks = {"blocks": Arg(1, Count(0), ("blocks",))}
    width = {"width": Arg(4, small, ("width",))}
    hidden = {"hidden": Arg(4, small, ("hidden",))}
    jitter = {"jitter": Arg(1, Count(0), ("jitter",)), "mirrored": Arg(False, Flag(), ("mirrored",))}
    kind = {"kind": Arg(rng.choice(["plain", "residual"]), Word(("plain", "residual")), ("kind",))}
    mlp_options = {
        **hidden,
        "depth": Arg(1, Count(0), ("depth",)),
        "activation": Arg("relu", Word(("silu", "relu", "tanh")), ("activation",)),
        "noise": Arg(0.1, Num(), ("noise",)),
    }
    inputs = {"inputs": Arg({"city": 3}, _Sizes(), ("inputs", "city"))}
    output = {"output": Arg((2,), Shape(), ("output",))}
    size = Shape()
    out_image = {"output": Arg((1, 16, 16), size, ("output",))}
    sides = {
        "images": Arg({"picture": (1, 16, 16)}, _Images(), ("images", "picture", "image", "side")),
        "flat": Arg({"city": 3}, _Sizes(), ("flat", "city")),
    }
    made: dict[str, dict[str, Arg]] = {
        "mlp": {
            "variables": Arg(flat, _Variables(), ("variables", "smoker", "city")),
            "name": _one(name, flat),
            "reads": _reads(list(flat), name),
            **mlp_options,
        },
        "image_network": {
            "variables": Arg(pictures, _Variables(), ("variables", "picture")),
            "name": _one(rng.choice(["picture", "city"]), pictures),
            "image": Arg("picture", Names(["picture"], only_one=True), ("image",)),
            **width,
            **kind,
            **blocks,
        },
        "scene_network": {
            "variables": Arg(pictures, _Variables(), ("variables", "picture", "images")),
            "name": _one("city" if kind["kind"].value == "plain" else rng.choice(["picture", "city"]), pictures),
            **kind,
            **width,
            **hidden,
        },
        "MLP": {**inputs, **output, **mlp_options},
        "StackedMLP": {
            "names": Arg(["city"], _StackNames(["city"], one=False), ("names",)),
            "members": Arg(2, small, ("members",)),
            **hidden,
            "seed": _seed(rng),
        },
        "ImageEncoder": {
            "image": Arg("picture", Free(), ("image",)),
            "shape": Arg((1, 16, 16), size, ("shape", "image")),
            **inputs,
            **output,
            **width,
            **kind,
            **blocks,
            **jitter,
        },
        "ImageDecoder": {**inputs, **out_image, **width, **kind, **blocks},
        "UNet": {**sides, **out_image, **width, **hidden},
        "SceneEncoder": {**sides, **output, **width, **hidden},
        "Pyramid": {
            **sides,
            **output,
            "side": Arg(16, _Side(16), ("side", "images")),
            **width,
            "most": Arg(16, small, ("most",)),
            **blocks,
            **hidden,
            **jitter,
        },
    }
    constructor = getattr(pc.networks, which)

    @_own_randomness
    def function(**options):
        built = constructor(**options).eval()
        given = {"city": torch.zeros(2, 3), "smoker": torch.zeros(2, 2), "picture": torch.zeros(2, 1, 16, 16)}
        if which == "StackedMLP":
            given["city"] = torch.zeros(2, built.weight1.shape[0])
        with torch.no_grad():
            return built({k: given[k] if k in given else _read_by(k, options) for k in built.reads})

    def judge_image(found: Any, values: dict[str, Any]) -> None:
        finite_numbers(found)
        assert len(found) == 2, f"{len(found)} rows, not 2"

    return Call(f"networks.{which}", function, made[which], judge_image, draws_globally=True)


def _read_by(name: str, options: Mapping[str, Any]) -> Tensor:
    """What a network reads of a group that only its arguments name."""
    return (
        torch.zeros(2, 1, 16, 16)
        if name == options.get("image")
        else torch.zeros(2, (options.get("inputs") or options["flat"])[name])
    )


class _Images(hostile.Kind):
    def own(self, valid: Any) -> list[Attack]:
        wrong: list[Any] = [
            None,
            "word",
            3,
            (1, 16),
            (1, 16, 8),
            (1, 15, 15),
            (0, 16, 16),
            (1, -16, -16),
            (1, 16.5, 16),
            ("a", "b", "c"),
            (1, 0, 0),
        ]
        return [Attack(f"{{'picture': {w!r}}}", lambda w=w: {"picture": w}, "bad") for w in wrong]


class _Side(Count):
    def judge(self, value: Any, valid: Any) -> str:
        verdict = super().judge(value, valid)
        return verdict if verdict == "bad" or int(value) == 16 else "fine"


class _StackNames(Names):
    def judge(self, value: Any, valid: Any) -> str:
        return "bad"

    def own(self, valid: Any) -> list[Attack]:
        return [
            Attack("('city',)", lambda: ("city",), "same"),
            Attack("[3]", lambda: [3], "bad"),
            Attack("'city'", lambda: "city", "bad"),
        ]


def _one(name: str, variables: Mapping[str, pc.Family]) -> Arg:
    return Arg(name, Names([name], only_one=True), ("name", "group", "variable", "typo", *variables))


@call(1.5)
def misbehaving(rng: Random) -> Call:
    value = _pick(rng, "finite", "finite", "mixed", "custom", "image", "context")
    way = rng.choice([*WAYS, "edits inputs", "edits inputs", "drops inputs"])
    model = copy.deepcopy(value.model)
    name = rng.choice(model.names)
    part = model.conditional(name)
    part.network = Wrapped(part.network, way)
    reads = getattr(part.network.inner, "reads", None)
    if reads is not None:
        part.network.reads = reads
    task = rng.choice(
        [
            "query",
            "sample",
            "log_likelihood",
            "anomaly_score",
            "Learner",
            "Chain",
            "enumerate",
            "impute",
            "consistency",
            "mixing",
        ]
    )
    state = value.whole(rng, 3)
    given = {n: state[n] for n in value.needed}
    names = [n for n in model.names if n != name]
    given |= {n: state[n] for n in names[: rng.randint(0, len(names))]}
    if task == "enumerate" and not value.exact:
        task = "query"
    observed = {k: v for k, v in state.items() if k not in model.context}

    def ask(model: pc.JointModel, given: dict[str, Tensor]) -> Any:
        if task == "query":
            return pc.query(model, given, rows=3, stop=pc.Tours(16), chains=2).probabilities
        if task == "sample":
            return pc.sample(model, given, rows=3, sweeps=rng.choice([2]))
        if task == "log_likelihood":
            context = {n: state[n][:1] for n in value.needed}
            return pc.log_likelihood(model, observed, given=context or None, draws=16).value
        if task == "anomaly_score":
            return pc.anomaly_score(model, observed | {n: given[n] for n in value.needed}, draws=2, by="surprise")
        if task == "Learner":
            made = pc.Learner(copy.deepcopy(model), pc.Data(state), batch_size=4)
            return {k: v.detach() for k, v in made.fit(6, False).state_dict().items()}
        if task == "Chain":
            return pc.Chain(model, generator=torch.Generator().manual_seed(0), scan="systematic").run(state, 4)
        if task == "enumerate":
            return pc.exact.enumerate_model(model).limiting()
        if task == "impute":
            return pc.impute(
                model, pc.Data(given) if given else pc.Data({names[0]: state[names[0]]}), stop=pc.Tours(16)
            )
        if task == "consistency":
            return pc.diagnostics.consistency(model, chains=8, warmup=4, steps=8).gap
        return pc.diagnostics.mixing(model, chains=4, sweeps=8).r_hat

    if task in ("consistency", "mixing") and value.needed:
        task = "query"
    if task == "impute" and not given:
        given = {names[0]: state[names[0]]} if names else given

    def check(found: Any, _: dict[str, Any]) -> None:
        if way in RIGHT[-2:]:  # inputs must be the network's own
            right = ask(value.model, given)
            if task != "Learner":
                assert _same(found, right), f"a network that {way} changes the answer"
        if task not in ("log_likelihood", "mixing"):
            finite_numbers(found)

    right = way in (*RIGHT, "inf", "-inf")  # infinite logits are certain
    words = (
        "network",
        "Wrapped",
        name,
        "must return",
        "a network of the user raised this",
        "not finite",
        "NaN",
        "finite",
    )
    return Call(
        f"{task} with a network that returns: {way}",
        lambda given: ask(model, given),
        {"given": Arg(given, Free())},
        check,
        [model],
        attacked=False,
        refuses=True,
        must_refuse=not right,
        words=words,
        compare=False,
        draws_globally=True,
    )


def _same(a: Any, b: Any) -> bool:
    """Whether two results are the same, bit for bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and list(a) == list(b) and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, pc.Data):
        return _same(a.state, b.state) and _same(a.mask, b.mask)
    if isinstance(a, pc.Answer | Diagnostics) or type(a).__name__ == "LogLikelihood":
        return all(_same(vars(a)[k], vars(b)[k]) for k in vars(a))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b)
    if hasattr(a, "__dict__") and not callable(a):
        return True
    return bool(a == b)


# --- initializers -----------------------------------------------------------------------------------------------------


@call(2.5)
def initializers(rng: Random) -> Call:
    value = _pick(rng, "latent", "latent", "finite", "image")
    which = rng.choice(
        [
            "initial_state",
            "random_state",
            "fit",
            "with_init",
            "score",
            "draw_group",
            "has_init",
            "log_density",
            "pca",
            "PCA",
        ]
    )
    model, own = value.model, value.name in ("latent", "image")
    name = {"latent": "weight", "image": "picture"}.get(value.name, "smoker")
    if which in ("score", "draw_group", "log_density", "fit") and not own:
        value, model, name = world("latent"), world("latent").model, "weight"
    state = value.whole(rng, 3)
    full = {n: torch.ones(v.shape, dtype=torch.bool) for n, v in state.items()}
    place = Arg(name, Names([name], only_one=True), ("name", "variable", "initializer", *value.families))
    if which in ("score", "draw_group"):  # these read no other groups
        state = {n: v for n, v in state.items() if n in (name, *model.init_reads(name))}
    states = Arg(state, Groups(value.families, empty=False, spread=False, whole=True), ("state", *value.families))
    if which in ("score", "draw_group", "log_density"):
        states.kind = _Stored(value.families, empty=False, spread=False, whole=True)
    generator = Arg(rng.randrange(99), _Generators(), ("generator",))
    variables = {"weight": pc.Real(3), "city": pc.Categorical(3)}
    made: dict[str, dict[str, Arg]] = {
        "initial_state": {
            "model": _model(value),
            "rows": Arg(3, Count(huge=True), ("rows",)),
            "generator": generator,
            "known": Arg(None, Groups(value.families, none=True, empty=True), ("known", *value.families)),
            "fitted": Arg(True, Flag(), ("fitted",)),
            "again": Arg(False, Flag(), ("again",)),
        },
        "random_state": {"model": _model(value), "rows": Arg(3, Count(huge=True), ("rows",)), "generator": generator},
        "fit": {
            "model": Arg(copy.deepcopy(model), Is((pc.JointModel,), more=MODELS), ("model", "JointModel")),
            "data": Arg(
                pc.Data({k: v[:40] for k, v in value.data.items() if k not in value.latent}),
                Is((pc.Data,), more=DATA),
                ("data", "Data", "typo"),
            ),
            "seed": _seed(rng),
            "names": Arg([name], Names([name], none=True, empty=True), ("names", "variable", *value.families)),
        },
        "with_init": {
            "model": _model(value),
            "name": place,
            "init": Arg(
                None,
                Is((nn.Module,), none=True, more=(Attack("nn.Linear", lambda: nn.Linear(1, 1), "bad"),)),
                ("init",),
            ),
        },
        "score": {"model": _model(value), "name": place, "state": states},
        "draw_group": {
            "model": _model(value),
            "name": place,
            "state": states,
            "mask": Arg(full[name], Mask(value.families[name], state[name]), ("mask", name)),
            "generator": generator,
        },
        "has_init": {"model": _model(value)},
        "log_density": {
            "model": _model(value),
            "state": states,
            "mask": Arg(full, _Masks(value.families, state, ()), ("mask", *value.families)),
            "draws": Arg(4, Count(), ("draws",)),
            "seed": _seed(rng),
        },
        "pca": {
            "variables": Arg(variables, _Variables(), ("variables", "weight")),
            "name": _one("weight", variables),
            "reads": Arg(["city"], _Reads(["city"], empty=True), ("reads", "read", "typo", "weight")),
            "rank": Arg(2, Count(), ("rank",)),
            "learned": Arg(True, Flag(), ("learned",)),
            "redundancy": Arg(1.0, Num(1), ("redundancy",)),
            "band": Arg(None, Count(none=True, most=0), ("band",)),
        },
        "PCA": {
            "inputs": Arg({"city": 3}, _Sizes(), ("inputs", "city")),
            "shape": Arg((1, 4, 4), Shape(), ("shape", "band", "rank")),
            "rank": Arg(2, Count(0, 4), ("rank",)),
            "binary": Arg(False, Flag(), ("binary",)),
            "learned": Arg(True, Flag(), ("learned",)),
            "redundancy": Arg(1.0, Num(1), ("redundancy",)),
            "band": Arg(2, Count(1, 4, none=True), ("band", "rank")),
        },
    }
    target = getattr(pc.initializers, which)

    @_own_randomness
    def function(**options):
        if type(options.get("generator")) is int and 0 <= options["generator"] < 99:
            options["generator"] = torch.Generator().manual_seed(options["generator"])
        found = target(**options)
        return (
            {k: v.detach() for k, v in found.items()}
            if isinstance(found, dict)
            else found.detach()
            if isinstance(found, Tensor)
            else None
        )

    def check(found: Any, _: dict[str, Any]) -> None:
        finite_numbers(found)

    return Call(
        f"initializers.{which}",
        function,
        made[which],
        check,
        [value.model],
        draws_globally=True,
        compare=which != "fit",
    )


class _Stored(Groups):
    """Values as `JointModel.validate` returns them: functions of hot loops look at their shapes alone."""

    def attack(self, rng: Random, valid: Any) -> tuple[str, Any, str]:
        label, value, verdict = super().attack(rng, valid)
        return label, value, "fine" if " inside" in label or "uint8" in label else verdict


# --- exact and diagnostics --------------------------------------------------------------------------------------------


@call(2.5)
def exact(rng: Random) -> Call:
    value = _pick(rng, "finite", "double", "shared", "custom")
    finite: Any = value.finite
    which = rng.choice(
        ["tours", "clamped", "posterior", "marginal", "clamped_gap", "enumerate_model", "sweep", "Regenerative"]
    )
    name = rng.choice(value.model.names)
    given = {name: value.data[name][0].clone()}
    kind = Groups(value.families, none=which == "tours", rows=False, spread=False)
    begin = torch.ones(finite.kernel.shape, dtype=torch.float64)
    begin /= begin.sum()
    regeneration = Arg(REGENERATION, Is((pc.Regeneration,), none=True), ("regeneration",))
    scan = Arg("systematic", Word(("systematic", "random")), ("scan",))
    begins = Arg(begin, Probabilities(total=False, optional=True), ("begin",))
    named = Arg(given, kind, ("given", "mask", *value.families))
    made: dict[str, tuple[Any, dict[str, Arg]]] = {
        "tours": (
            lambda **o: pc.exact.limiting(finite.tours(**o)),
            {"given": named, "regeneration": regeneration, "scan": scan, "begin": begins},
        ),
        "clamped": (lambda given: pc.exact.limiting(finite.clamped(given)[0]), {"given": named}),
        "posterior": (finite.posterior, {"given": named}),
        "marginal": (
            finite.marginal,
            {
                "p": Arg(begin, Probabilities(), ("p",)),
                "name": Arg(name, Names([name], only_one=True), ("name", "variable")),
            },
        ),
        "clamped_gap": (
            pc.exact.clamped_gap,
            {
                "finite": Arg(finite, Is((pc.exact.Finite,)), ("finite",)),
                "names": Arg([name], Names([name], one=False, empty=True), ("names", "variable")),
                "regeneration": regeneration,
                "scan": scan,
            },
        ),
        "enumerate_model": (lambda model: pc.exact.enumerate_model(model).limiting(), {"model": _model(value)}),
        "sweep": (
            lambda **o: pc.exact.sweep(**o).matrix(),
            {"kernel": Arg(finite.kernel, Is((pc.exact.GibbsKernel,)), ("kernel", "Kernel")), "scan": scan},
        ),
        "Regenerative": (
            lambda **o: pc.exact.limiting(pc.exact.Regenerative(**o)),
            {
                "kernel": Arg(finite.kernel, Is((pc.exact.Kernel,)), ("kernel", "Kernel")),
                "begin": Arg(begin, Probabilities(), ("begin",)),
                "regeneration": Arg(REGENERATION, Is((pc.Regeneration,)), ("regeneration",)),
            },
        ),
    }
    function, args = made[which]

    def check(found: Any, _: dict[str, Any]) -> None:
        finite_numbers(found)
        if which in ("tours", "clamped", "posterior"):
            assert abs(float(found.sum()) - 1) < 1e-9 and bool((found >= 0).all()), "no distribution"

    return Call(f"exact.{which}", function, args, check, [value.model])


@call(2)
def kernels(rng: Random) -> Call:
    value = _pick(rng, "finite", "shared")
    finite: Any = value.finite
    kernel = finite.kernel
    law = pc.exact.limiting(kernel)
    n = Arg(2, Count(1), ("n ", "n:", "n=", "'n'"))
    data_law = Arg(law, Probabilities(), ("data",))
    k = Arg(kernel, Is((pc.exact.Kernel,)), ("kernel", "Kernel"))
    p, q = (Arg(kernel, Is((pc.exact.Kernel,)), (word + " ", word + ":", "Kernel", "kernel")) for word in "pq")
    matrix = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64)
    tables = list(kernel.tables)
    made: dict[str, dict[str, Arg]] = {
        "limiting": {"kernel": k},
        "mixing_rate": {"kernel": k},
        "reverse": {"kernel": k},
        "detailed_balance_gap": {"kernel": k},
        "consistency_gap": {"kernel": Arg(kernel, Is((pc.exact.GibbsKernel,)), ("kernel", "Kernel"))},
        "conditionals": {"p": Arg(law, Probabilities(total=False, shaped=False), ("p ", "p:", "probabilit"))},
        "kl": {
            "p": Arg(law, Probabilities(), ("p ", "p:", "probabilit")),
            "q": Arg(law, Probabilities(), ("q ", "q:", "probabilit")),
        },
        "likelihood": {"data": data_law, "kernel": k},
        "trajectory": {"q": q, "data": data_law, "n": Arg(2, Count(0), ("n ",))},
        "f": {"data": data_law, "p": p, "q": q, "n": n},
        "f_hat": {"data": data_law, "p": p, "q": q, "n": n},
        "lower_bound": {"data": data_law, "p": p, "q": q, "n": n},
        "MatrixKernel": {"transition": Arg(matrix, Probabilities(), ("transition",))},
        "GibbsKernel": {
            "tables": Arg(tables, _Tables(), ("tables", "table")),
            "alpha": Arg(list(kernel.alpha), _Tables(), ("alpha",)),
        },
        "Composed": {"kernels": Arg([kernel, kernel], _Tables(), ("kernel", "Kernel"))},
    }
    which = rng.choice(list(made))

    def function(**options):
        found = getattr(pc.exact, which)(**options)
        if isinstance(found, pc.exact.Kernel):
            found = found.matrix()
        return found

    return Call(
        f"exact.{which}",
        function,
        made[which],
        lambda found, _: finite_numbers(found if not isinstance(found, list) else dict(enumerate(found))),
        [value.model],
    )


class _Tables(hostile.Kind):
    """A list of numbers or tables."""

    def own(self, valid: Any) -> list[Attack]:
        return [
            Attack("too short", lambda: valid[:1], "fine" if not isinstance(valid[0], Tensor | float) else "bad"),
            Attack("with None", lambda: [None, *valid[1:]], "bad"),
            Attack("with a word", lambda: ["word", *valid[1:]], "bad"),
            Attack("empty", list, "bad"),
        ]


@call(1.5)
def diagnostics(rng: Random) -> Call:
    which = rng.choice(["latent_usage", "consistency", "mixing"])
    if which == "latent_usage":
        value = _pick(rng, "latent", "image")
        data = pc.Data({k: v[:20] for k, v in value.data.items() if k not in value.latent})
        args = {
            "model": _model(value),
            "data": Arg(data, Is((pc.Data,), more=DATA), ("data", "Data", "typo", "variable")),
            "latent": Arg("code", Names(["code"], only_one=True), ("latent", GROUP, "variable", "observed", "typo")),
            "sweeps": Arg(2, Count(0), ("sweeps",)),
            "seed": _seed(rng),
        }
    elif which == "consistency":
        value = _pick(rng, "finite", "mixed", "latent")
        args = {
            "model": _model(value),
            "chains": Arg(8, Count(2, huge=True), ("chains",)),
            "warmup": Arg(2, Count(0), ("warmup",)),
            "steps": Arg(3, Count(), ("steps",)),
            "seed": _seed(rng),
            "state": Arg(
                value.whole(rng, 8),
                Groups(value.families, none=True, empty=False, whole=True, spread=False),
                ("state", *value.families),
            ),
        }
    else:
        value = _pick(rng, "finite", "mixed", "latent")
        args = {
            "model": _model(value),
            "names": Arg(
                list(value.model.names),
                Names(value.model.names, none=True),
                ("names", "variable", "want", *value.families),
            ),
            "chains": Arg(4, Count(2, huge=True), ("chains",)),
            "sweeps": Arg(8, Count(), ("sweeps",)),
            "seed": _seed(rng),
        }

    def check(found: Any, _: dict[str, Any]) -> None:
        repr(found)
        if which == "consistency":
            finite_numbers(found.gap)

    return Call(f"diagnostics.{which}", getattr(pc.diagnostics, which), args, check, [value.model])


@call(1)
def schedules(rng: Random) -> Call:
    which = rng.choice(["linear", "cosine", "as_schedule"])
    if which == "as_schedule":
        args = {"value": Arg(0.5, _Rate(0), ("rate",))}

        def function(value):
            return float(pc.schedules.as_schedule("rate", value)(3))
    else:
        args = {
            "start": Arg(1.0, Num(-math.inf), ("start",)),
            "end": Arg(2.0, Num(-math.inf), ("end",)),
            "steps": Arg(4, Count(0), ("steps",)),
        }

        def function(**options):
            made = getattr(pc.schedules, which)(**options)
            return [made(0), made(2), made(10**6)]

    def check(found: Any, _: dict[str, Any]) -> None:
        finite_numbers({str(k): float(v) for k, v in enumerate(found if isinstance(found, list) else [found])})

    def check_ends(found: Any, values: dict[str, Any]) -> None:
        check(found, values)
        if which != "as_schedule":
            assert abs(found[0] - 1) < 1e-9 and abs(found[2] - 2) < 1e-9, f"the ends are {found}"

    return Call(f"schedules.{which}", function, args, check_ends)


@call(1)
def moved(rng: Random) -> Call:
    exchange = rng.choice([(), (1, 0)])
    masks = rng.random() < 0.5
    x = torch.arange(32.0).view(2, 1, 4, 4)
    s = torch.zeros(2, 2, 4, 4) if masks else torch.randint(3, (2, 4, 4), generator=torch.Generator().manual_seed(1))
    args = {
        "pixels": Arg(1, Count(0), ("pixels",)),
        "mirrored": Arg(True, Flag(), ("mirrored",)),
        "device": Arg("cpu", _Devices(), ("device", "cuda")),
        "share": Arg(0.5, Num(0, 1, open_high=False), ("share",)),
        "flag": Arg(False, Flag(), ("flag",)),
        "exchange": Arg(exchange, _Exchange(), ("exchange",)),
    }

    def function(**options):
        return Moved(**options)({"x": x, "s": s}, torch.Generator().manual_seed(0))

    return Call("training.augment.Moved", function, args, lambda found, _: finite_numbers(found))


class _Exchange(hostile.Kind):
    def judge(self, value: Any, valid: Any) -> str:
        return (
            "fine"
            if isinstance(value, list | tuple | Tensor | np.ndarray | set | dict | range) and hostile._is_empty(value)
            else "bad"
        )

    def own(self, valid: Any) -> list[Attack]:
        wrong: list[Any] = [(5, 0), (-1, 0), (0.5, 1), ("a", "b"), (None, 0), (0, 0)]
        return [Attack(repr(w), lambda w=w: w, "bad") for w in wrong]


@call(0.5)
def nonfinite_error(rng: Random) -> Call:
    def function():
        error = pc.NonFiniteError("weight", 3, "the loss")
        return str(error)

    def check(found: Any, _: dict[str, Any]) -> None:
        assert "weight" in found and "3" in found, "the message does not say what and when"

    return Call("pc.NonFiniteError", function, {}, check)
