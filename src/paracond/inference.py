"""Any question: clamp what is known, run the chain, read off the rest (sections 4 and 5.4).

For every row of what is given, `chains` chains begin at random values of the unknown, or where the model says that they
should (`networks.starts`), with the known clamped. In the limit they draw from p(x_-o | x_o). From one run come

- samples: the last state of every chain, one independent draw each;
- marginals: averages of the conditionals along the chains (Rao-Blackwell, see `observers`);
- decisions: arg max of the marginal for discrete coordinates, its mean for real ones (maximum and mean marginal);
- imputations: the known values, completed by decisions or by a sample.

How long to run is decided by the chains themselves (`until="converged"`): stretches of doubled length are run, each
measured afresh so that the former ones are its warm-up, until one has R-hat and effective sample size in bounds.

Only groups that matter are redrawn: the wanted ones, what their networks read, and so on. Where what they read is all
given, the conditional itself is the answer, exactly, and no chain is needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.chain import Chain, Observer, at_once, full_clamp, redraw
from paracond.data import Data, InputError, Mask, Observed, State, as_numbers, at_least, merge, named, row_count, take
from paracond.model import JointModel
from paracond.observers import Marginals, Monitor, summary
from paracond.runtime.engine import Engine

Given = Mapping[str, Tensor | Observed]

R_HAT_CONVERGED = 1.05  # until="converged" stops when every row is under this
R_HAT_MIXED = 1.1  # above this the answer carries a warning
FIRST_STRETCH = 32  # sweeps
AT_ONCE = (4096, 65_536)  # rows of chains, on a CPU and on a GPU, at most: more only cost memory


class NotMixedWarning(UserWarning):
    """The chains of a query disagree: its marginals are not yet those of the limiting distribution."""


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """How far the chains of an answer are to be trusted."""

    r_hat: dict[str, Tensor]  # [batch]: worst over the variable's coordinates
    ess: dict[str, Tensor]  # [batch]: smallest over the variable's coordinates
    sweeps: int  # sweeps over all unknown groups, warm-up included
    measured: int  # sweeps that the marginals average over
    converged: bool
    begin: str = "random"  # or "likely": then R-hat cannot tell of values where no chain began

    def __repr__(self) -> str:
        worst = {name: f"R-hat <= {v.max():.3f}, ess >= {self.ess[name].min():.0f}" for name, v in self.r_hat.items()}
        listed = "; ".join(f"{name}: {text}" for name, text in worst.items())
        began = ", begun at likely values" if self.begin == "likely" else ""
        return f"<{'converged' if self.converged else 'not converged'} after {self.sweeps} sweeps{began}; {listed}>"


@dataclass(frozen=True, eq=False)
class Answer:
    """What a query returns: for each wanted variable, by name."""

    probabilities: dict[str, Tensor]  # Binary [batch, *event], Categorical [batch, *event, classes]
    mean: dict[str, Tensor]  # Binary and Real, [batch, *event]
    std: dict[str, Tensor]  # Binary and Real: the standard deviation of the marginal
    decisions: dict[str, Tensor]  # [batch, *event]: maximum marginal (discrete) or mean marginal (real)
    samples: dict[str, Tensor]  # [batch, chains, *event]
    diagnostics: Diagnostics


def query(
    model: JointModel,
    given: Given | None = None,
    want: Iterable[str] | None = None,
    *,
    rows: int = 1,
    chains: int = 8,
    until: int | str = "converged",
    warmup: int | None = None,
    limit: int = 2000,
    ess: float = 200,
    begin: str = "likely",
    start: Mapping[str, Tensor] | None = None,
    scan: str = "systematic",
    engine: str | Engine = "auto",
    seed: int = 0,
    progress: bool | None = None,
) -> Answer:
    """p(want | given).

    `given` maps names to values `[batch, *event]`, or to `Observed(value, mask)` where only some coordinates are
    known; a single row is repeated to fit the others. With nothing given, `rows` unconditional answers are drawn.
    `want` defaults to every variable that is not wholly given.
    `until` is "converged" (R-hat at most 1.05 and at least `ess` effective draws in every row, at most `limit` sweeps)
    or a number of sweeps to average over, after `warmup` more (as many as `until` if not said).

    Where the model has a start, chains `begin` there, given what is known. They are then near the answer sooner, but
    R-hat, which compares chains, cannot tell of values where none of them began: `begin="random"` tests for that. Nor
    can it of modes that are left once in hundreds of sweeps (half a digit that may be a 3 or a 9): ask with more
    `chains`, or for more sweeps. All chains of a row begin at its values of `start`, where there are any.

    Where conditionals are not quite consistent, which is so for every learned model, the limit depends on the scan:
    "random" has that of eq:gibbs_transition; "systematic", the default, is faster and as near as they are consistent.
    """
    if not isinstance(model, JointModel):
        raise InputError(f"a question is asked of a JointModel, found {type(model).__name__}")
    _check_numbers(until, rows, chains, warmup, limit)
    if begin not in ("likely", "random"):
        raise InputError(f'begin must be "likely" or "random", found {begin!r}')
    known, mask = _known(model, {} if given is None else given, rows)
    wanted = _wanted(model, mask, want)
    full_clamp(model, mask)  # refuses what a family cannot honour, also where no chain will run
    relevant, direct = _relevant(model, mask, wanted)
    generator, answers, values = model.generator(seed), [], _start(model, known, start)
    chunk = max(1, at_once(model, AT_ONCE[model.device.type == "cuda"]) // chains)
    with model.asked():
        for first in range(0, row_count(known), chunk):
            part = slice(first, first + chunk)
            some, where = take(known, part), take(mask, part)
            if direct:
                answers.append(_direct_answer(model, some, where, wanted, chains, generator))
                continue
            places = begin, take(values, part)
            run = _Run(model, some, where, wanted, relevant, chains, places, scan, engine, generator, progress)
            answers.append(run.answer(run.until(until, warmup, limit, ess)))
    answer = answers[0] if len(answers) == 1 else _joined(answers)
    _warn(answer.diagnostics, until == "converged")
    return answer


def _joined(answers: list[Answer]) -> Answer:
    """One answer from those of some rows each."""

    def rows(name: str, source: list) -> dict[str, Tensor]:
        parts = [getattr(each, name) for each in source]
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}

    found = [answer.diagnostics for answer in answers]
    diagnostics = Diagnostics(
        rows("r_hat", found),
        rows("ess", found),
        max(each.sweeps for each in found),
        min(each.measured for each in found),
        all(each.converged for each in found),
        found[0].begin,
    )
    probabilities, mean, std = (rows(name, answers) for name in ("probabilities", "mean", "std"))
    return Answer(probabilities, mean, std, rows("decisions", answers), rows("samples", answers), diagnostics)


def _check_numbers(until: int | str, rows: int, chains: int, warmup: int | None, limit: int) -> None:
    whole = isinstance(until, int) and not isinstance(until, bool) and until > 0
    if not whole and until != "converged":
        raise InputError(f'until must be "converged" or a positive number of sweeps, found {until!r}')
    at_least({"rows": (rows, 1), "chains": (chains, 1), "warmup": (warmup or 0, 0), "limit": (limit, 1)})
    if until == "converged" and chains < 2:
        raise InputError("one chain cannot tell whether it has converged: use chains=2 or more, or until=<sweeps>")


def sample(
    model: JointModel,
    given: Given | None = None,
    *,
    rows: int = 1,
    sweeps: int = 100,
    start: Mapping[str, Tensor] | None = None,
    scan: str = "systematic",
    chunk: int | None = None,
    engine: str | Engine = "auto",
    seed: int = 0,
    progress: bool | None = None,
) -> State:
    """One draw of everything per row of what is given: the last state of a chain of `sweeps` sweeps.

    It begins at random, or at the model's start if it has one, or at the values of `start`. `chunk` rows run at a time
    (as many as suit the device).
    `model(name, state).mean` is then what a picture usually shows: the mean of p(x | z) at the last z.
    """
    at_least({"rows": (rows, 1), "sweeps": (sweeps, 0), "chunk": (1 if chunk is None else chunk, 1)})
    known, mask = _known(model, {} if given is None else given, rows)
    begin, generator = _start(model, known, start), model.generator(seed)
    chunk = chunk or at_once(model, 32_768 if model.device.type == "cuda" else 256)
    parts = []
    for first in range(0, row_count(known), chunk):
        part = slice(first, first + chunk)
        clamp, values = take(mask, part), take(known, part)
        with model.asked():
            state = _begun(model, generator, values, clamp, take(begin, part))
            chain = Chain(model, clamp=clamp, scan=scan, engine=engine, generator=generator)
            parts.append(chain.run(state, chain.sweeps(sweeps), progress=progress))
    return {name: torch.cat([part[name] for part in parts]) for name in model.variables}


def impute(model: JointModel, data: Data, *, how: str = "decide", **options) -> State:
    """`data` with its missing values filled in: by decisions, or by one joint draw per row (`how="sample"`).

    Options are those of `query`. Groups of the model that `data` lacks altogether are filled in too.
    """
    if how not in ("decide", "sample"):
        raise InputError(f'how must be "decide" or "sample", found {how!r}')
    if not isinstance(data, Data):
        raise InputError(f"impute takes Data(values, mask), found {type(data).__name__}")
    known, mask = model.admit(data.state, data.mask)
    given = {name: Observed(value, mask[name]) for name, value in known.items()}
    answer = query(model, given, model.names, **options)
    filled = answer.decisions if how == "decide" else {k: v[:, 0] for k, v in answer.samples.items()}
    return merge(mask, known, filled)


def _start(model: JointModel, known: State, start: Mapping[str, Tensor] | None) -> State:
    """Values to begin at, admitted."""
    found, _ = model.admit({n: known[n] for n in model.conditions} | dict(start or {}), rows=row_count(known))
    return {name: found[name] for name in start or {}}


def _begun(
    model: JointModel, generator: torch.Generator, known: State, mask: Mask, begin: State, starts: bool = True
) -> State:
    """A whole state: what is known, else the values to `begin` at, and all else given these."""
    placed = mask | {name: torch.ones_like(mask[name]) for name in begin}
    return model.start(row_count(known), generator, known | merge(mask, known, begin), placed, starts, bool(begin))


def _known(model: JointModel, given: Given, rows: int) -> tuple[State, Mask]:
    """What is given, as values and full masks of all variables; single rows are repeated."""
    parts = named("what is given", given)
    observed = {k: v if isinstance(v, Observed) else Observed(v) for k, v in parts.items()}
    values = {k: as_numbers(k, v.value) for k, v in observed.items()}
    masks = {k: as_numbers(f"the mask of {k}", v.mask) for k, v in observed.items() if v.mask is not None}
    model.check_names(values)
    for name, value in values.items():
        model.variables[name].check_shape(name, value)
    whole = [m for k, m in masks.items() if m.ndim == values[k].ndim]  # masks that have rows of their own
    batch = max([len(t) for t in [*values.values(), *whole]], default=rows)
    if batch == 0:
        raise InputError("what is given has no rows")
    spread = {k: v.expand(batch, *v.shape[1:]) if len(v) == 1 else v for k, v in values.items()}
    return model.admit(spread, masks, batch)


def _wanted(model: JointModel, mask: Mask, want: Iterable[str] | None) -> list[str]:
    if want is None:
        return [name for name in model.names if not bool(mask[name].all())]
    if not isinstance(want, Iterable):
        raise InputError(f"want must be names of groups, found {want!r}")
    wanted = [want] if isinstance(want, str) else list(want)
    model.check_names(wanted)
    return wanted


@torch.no_grad()
def _direct_answer(model: JointModel, known: State, mask: Mask, wanted, chains: int, generator) -> Answer:
    """The conditionals themselves, where all that they read is given."""
    state = model.start(row_count(known), generator, known, mask, starts=False)
    moments, samples = {}, {}
    for name in wanted:
        moments[name] = _certain(model, name, known[name])
        samples[name] = known[name].unsqueeze(1).expand(-1, chains, *known[name].shape[1:])
        if not bool(mask[name].all()):
            move = redraw(model, name, state, mask[name], generator)
            moments[name] = summary(model.variables[name], move)
            draws = [move.distribution.redraw(state[name], mask[name], generator) for _ in range(chains)]
            samples[name] = torch.stack(draws, 1)
    certain = torch.ones(row_count(known), dtype=torch.float64, device=model.device)
    unknown = [name for name in wanted if not bool(mask[name].all())]
    r_hat, ess = dict.fromkeys(unknown, certain), dict.fromkeys(unknown, certain * torch.inf)
    return _assembled(model, known, mask, moments, samples, Diagnostics(r_hat, ess, 0, 0, True))


def _certain(model: JointModel, name: str, value: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of encode(x) for a value that is known."""
    encoded = model.variables[name].encode(value).to(model.dtype)
    return encoded, torch.zeros_like(encoded)


def _assembled(model: JointModel, known: State, mask: Mask, moments, samples: State, diagnostics) -> Answer:
    """An answer from means and variances of encode(x), and draws."""
    probabilities, mean, std, decisions = {}, {}, {}, {}
    for name, (first, variance) in moments.items():
        family = model.variables[name]
        decided = family.decide(first).to(known[name].dtype)
        decisions[name] = torch.where(mask[name], known[name], decided)
        if family.finite:
            probabilities[name] = first
        if family.encoding_shape == family.event_shape:
            mean[name], std[name] = first, variance.sqrt()
    return Answer(probabilities, mean, std, decisions, samples, diagnostics)


def _relevant(model: JointModel, mask: Mask, wanted: Iterable[str]) -> tuple[set[str], bool]:
    """The unknown groups that matter for the wanted ones, and whether none of them reads another unknown one."""
    unknown = {name for name in model.names if not bool(mask[name].all())}
    relevant: set[str] = set()
    waiting, direct = [name for name in wanted if name in unknown], True
    while waiting:
        name = waiting.pop()
        if name in relevant:
            continue
        relevant.add(name)
        uncertain = unknown & set(model.reads(name))
        direct = direct and not uncertain
        waiting += uncertain
    return relevant, direct


class _Run:
    """The chains of one query, run in stretches; marginals are those of the last stretch."""

    def __init__(self, model, known, mask, wanted, relevant, chains, places, scan, engine, generator, progress):
        self.model, self.known, self.mask, self.wanted, self.chains = model, known, mask, wanted, chains
        self.progress = progress
        tiled = {k: v.repeat_interleave(chains, 0) for k, v in known.items()}
        clamp = {k: v.repeat_interleave(chains, 0) for k, v in mask.items()}
        begin, start = places
        self.begin = "likely" if start else begin if model.has_starts else "random"
        values = {k: v.repeat_interleave(chains, 0) for k, v in start.items()}
        self.state = _begun(model, generator, tiled, clamp, values, starts=begin == "likely")
        clamp |= {name: torch.ones_like(clamp[name]) for name in model.names if name not in relevant}
        self.chain = Chain(model, clamp=clamp, scan=scan, engine=engine, generator=generator)
        self.open = [name for name in wanted if name in self.chain.free]
        self.marginals: dict[str, Marginals] = {}
        self.monitors: dict[str, Monitor] = {}
        self.sweeps = self.measured = 0

    def stretch(self, sweeps: int) -> None:
        variables = self.model.variables
        self.marginals = {n: Marginals(variables[n], n) for n in self.open}
        self.monitors = {n: Monitor(variables[n], n, self.chains, sweeps) for n in self.open}
        observers: list[Observer] = [*self.marginals.values(), *self.monitors.values()]
        self.state = self.chain.run(self.state, self.chain.sweeps(sweeps), observers, self.progress)
        self.sweeps += sweeps
        self.measured = sweeps

    def until(self, until: int | str, warmup: int | None, limit: int, ess: float) -> bool:
        """Run as long as was asked for; whether the chains have converged."""
        if until == "converged":
            return self.until_converged(limit, ess)
        self.stretch(int(until) if warmup is None else warmup)
        self.stretch(int(until))
        return self.converged(ess)

    def until_converged(self, limit: int, ess: float) -> bool:
        length = min(FIRST_STRETCH, max(1, limit))
        while True:
            self.stretch(length)
            if self.converged(ess):
                return True
            if self.sweeps >= limit:
                return False
            length = min(2 * length, limit - self.sweeps)

    def converged(self, ess: float) -> bool:
        reports = [monitor.report() for monitor in self.monitors.values()]
        return all(bool((r <= R_HAT_CONVERGED).all() and (e >= ess).all()) for r, e in reports)

    def answer(self, converged: bool) -> Answer:
        reports = {name: monitor.report() for name, monitor in self.monitors.items()}
        diagnostics = Diagnostics(
            {n: r for n, (r, _) in reports.items()},
            {n: e for n, (_, e) in reports.items()},
            self.sweeps,
            self.measured,
            converged,
            self.begin,
        )
        moments = {name: self._marginal(name) for name in self.wanted}
        samples = {name: self.state[name].unflatten(0, (-1, self.chains)) for name in self.wanted}
        return _assembled(self.model, self.known, self.mask, moments, samples, diagnostics)

    def _marginal(self, name: str) -> tuple[Tensor, Tensor]:
        """Mean and variance of encode(x), over chains and steps, `[batch, *encoding]`."""
        if name not in self.marginals:
            return _certain(self.model, name, self.known[name])
        marginal = self.marginals[name]
        means = marginal.mean.unflatten(0, (-1, self.chains))
        variances = marginal.variance.unflatten(0, (-1, self.chains))
        mean, variance = means.mean(1), variances.mean(1) + means.var(1, correction=0)
        return mean.to(self.model.dtype), variance.to(self.model.dtype)


def _warn(diagnostics: Diagnostics, must_converge: bool) -> None:
    warned = False
    for name, r_hat in diagnostics.r_hat.items():
        bad = int((r_hat > R_HAT_MIXED).sum())
        if bad:
            warned = True
            warnings.warn(
                f"{name!r} has not mixed in {bad} of {len(r_hat)} rows (R-hat up to {r_hat.max():.2f}, "
                f"over {R_HAT_MIXED}) after {diagnostics.sweeps} sweeps: run longer, or see `diagnostics`",
                NotMixedWarning,
                stacklevel=3,
            )
    if must_converge and not diagnostics.converged and not warned:
        warnings.warn(
            f"stopped at the limit of {diagnostics.sweeps} sweeps: {diagnostics!r}", NotMixedWarning, stacklevel=3
        )
