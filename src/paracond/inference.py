"""Any question: clamp what is known, run the chain, read off the rest (sections 4 and 5.4).

For every row of what is given, `chains` chains begin at the first state that `initializers` draws, with the known
values clamped. In the limit they draw from p(x_-o | x_o). One run gives

- samples: the last state of every chain, one independent draw each;
- marginals: averages of the conditionals along the chains (Rao-Blackwell, see `observers`);
- decisions: arg max of the marginal for discrete coordinates, its mean for real ones (maximum and mean marginal);
- imputations: the known values, completed by decisions or by a sample.

`stop` says how long chains run. With `Converged`, stretches of doubled length are run, each measured afresh so that the
earlier ones are its warm-up, until one has R-hat and effective sample size in bounds.

Only groups that matter are redrawn: the wanted ones, what their networks read, and so on. Where everything that they
read is given, the conditional itself is the answer, exactly, and no chain runs.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from paracond.chain import SCANS, Chain, Observer, max_rows
from paracond.data import Data, InputError, Observed, State, at_least, one_of
from paracond.initializers.initial_state import has_init
from paracond.model import JointModel
from paracond.observers import Marginals, Monitor
from paracond.question import Answer, Diagnostics, Given, Init, Question, joined
from paracond.runtime.engine import Engine

R_HAT_MIXED = 1.1  # above this the answer carries a warning
FIRST_STRETCH = 32  # sweeps
MAX_ROWS = (4096, 65_536)  # rows of chains that run at a time, on a CPU and on a GPU: more only cost memory


class NotMixedWarning(UserWarning):
    """The chains of a query disagree: its marginals are not yet those of the limiting distribution."""


@dataclass(frozen=True)
class Converged:
    """Runs chains until they agree.

    ess: the effective sample size that every row must reach.
    limit: the largest number of sweeps.
    r_hat: the largest R-hat that counts as agreement.
    """

    ess: float = 200
    limit: int = 2000
    r_hat: float = 1.05

    def __post_init__(self) -> None:
        at_least({"limit": (self.limit, 1)})
        for name, least in (("ess", 0.0), ("r_hat", 1.0)):
            found = getattr(self, name)
            if not isinstance(found, (int, float)) or isinstance(found, bool) or not found >= least:
                raise InputError(f"{name} must be a number, at least {least:g}, found {found!r}")

    def run(self, chains: _Chains) -> bool:
        """Run; whether the chains have converged."""
        length = min(FIRST_STRETCH, self.limit)
        while True:
            chains.stretch(length)
            if chains.converged(self):
                return True
            if chains.sweeps >= self.limit:
                return False
            length = min(2 * length, self.limit - chains.sweeps)


@dataclass(frozen=True)
class Sweeps:
    """Runs chains for a fixed number of sweeps.

    count: sweeps to average over.
    warmup: sweeps before these (default: as many).
    """

    count: int
    warmup: int | None = None

    def __post_init__(self) -> None:
        at_least({"sweeps": (self.count, 1), "warmup": (self.warmup or 0, 0)})

    def run(self, chains: _Chains) -> bool:
        """Run; whether the chains have converged."""
        chains.stretch(self.count if self.warmup is None else self.warmup)
        chains.stretch(self.count)
        return chains.converged(Converged())


def query(
    model: JointModel,
    given: Given | None = None,
    want: Iterable[str] | None = None,
    *,
    rows: int = 1,
    chains: int = 8,
    stop: Converged | Sweeps | None = None,
    init: Init = "fitted",
    scan: str = "systematic",
    engine: str | Engine = "auto",
    seed: int = 0,
) -> Answer:
    """Answer the question p(want | given): marginals, decisions, samples and how far to trust them.

    Main arguments:

    model: a trained `JointModel`.
    given: values `[batch, *event]` by name, or `Observed(value, mask)` where only some coordinates are known. A single
        row is repeated to fit the others.
    want: the groups to answer about (default: all that are not wholly given).
    rows: the number of rows of the answer where nothing is given.
    stop: when to stop, `Converged(ess=200, limit=2000)` or `Sweeps(count, warmup)`.

    Other arguments:

    chains: the number of chains per row.
    init: where chains begin: "fitted" draws from the model's initializers given what is known, "random" does not; a
        mapping from names to values begins there. Fitted chains are near the answer sooner, but R-hat, which compares
        chains, cannot detect values where none of them began; "random" and more `chains` look for these.
    scan: the order of redraws. Learned conditionals are never quite consistent, so the limit depends on it: "random"
        has the limit of eq:gibbs_transition; "systematic" is faster, and its limit differs as much as the conditionals
        disagree.
    engine: how chains run, "auto", "eager", "rounded" or "graphs", or an `Engine`.
    seed: fixes all randomness.
    """
    stop = Converged() if stop is None else stop
    at_least({"rows": (rows, 1), "chains": (chains, 1)})
    if not isinstance(stop, (Converged, Sweeps)):
        raise InputError(f"stop must be Converged(...) or Sweeps(count), found {stop!r}")
    if isinstance(stop, Converged) and chains < 2:
        raise InputError("one chain cannot show whether it has converged: use chains=2 or more, or stop=Sweeps(count)")
    one_of("scan", scan, SCANS)
    question = Question.of(model, given, want, rows, init)
    engine = Engine.of(model.device, engine)
    relevant, direct = question.relevant()
    generator, answers = model.generator(seed), []
    chunk = max(1, max_rows(model, MAX_ROWS[model.device.type == "cuda"]) // chains)
    with model.eval_mode():
        for part in question.parts(chunk):
            if direct:
                answers.append(part.direct_answer(chains, generator))
                continue
            run = _Chains(part, relevant, chains, scan, engine, generator)
            answers.append(run.answer(stop.run(run)))
    answer = answers[0] if len(answers) == 1 else joined(answers)
    _warn(answer.diagnostics, isinstance(stop, Converged))
    return answer


def sample(
    model: JointModel,
    given: Given | None = None,
    *,
    rows: int = 1,
    sweeps: int = 100,
    init: Init = "fitted",
    scan: str = "systematic",
    chunk: int | None = None,
    engine: str | Engine = "auto",
    seed: int = 0,
    progress: bool | None = None,
) -> State:
    """Draw all groups given some of them: one draw per row of what is given, the last state of a chain.

    Main arguments:

    model: a trained `JointModel`.
    given: as in `query`.
    rows: the number of draws where nothing is given.
    sweeps: the length of the chain.

    Other arguments:

    init: where chains begin, as in `query`.
    scan: the order of redraws, as in `query`.
    engine: how chains run, as in `query`.
    seed: fixes all randomness.
    chunk: rows that run at a time (default: as many as suit the device).
    progress: True or False shows a bar or not; None shows one on long runs in a terminal.

    `model(name, state).mean` of the returned state is what a picture usually shows: the mean of p(x | z) at the last z.
    """
    at_least({"rows": (rows, 1), "sweeps": (sweeps, 0), "chunk": (1 if chunk is None else chunk, 1)})
    one_of("scan", scan, SCANS)
    question, generator = Question.of(model, given, None, rows, init), model.generator(seed)
    engine = Engine.of(model.device, engine)
    chunk = chunk or max_rows(model, 32_768 if model.device.type == "cuda" else 256)
    drawn = []
    for part in question.parts(chunk):
        with model.eval_mode():
            state = part.first_state(generator)
            chain = Chain(model, clamp=part.mask, scan=scan, engine=engine, generator=generator)
            drawn.append(chain.advance(state, chain.sweeps(sweeps), progress=progress))
    return {name: torch.cat([part[name] for part in drawn]) for name in model.variables}


def impute(model: JointModel, data: Data, *, how: str = "decide", **options) -> State:
    """Fill in the missing values of data, and groups of the model that the data lack altogether.

    model: a trained `JointModel`.
    data: values and masks, `Data(values, mask)`.
    how: "decide" fills in decisions, "sample" one joint draw per row.
    options: those of `query`: chains, stop, init, scan, engine, seed.
    """
    one_of("how", how, ("decide", "sample"))
    if not isinstance(data, Data):
        raise InputError(f"impute takes Data(values, mask), found {type(data).__name__}")
    given = {name: Observed(value, data.mask[name]) for name, value in data.state.items()}
    answer = query(model, given, model.names, **options)
    return answer.decisions if how == "decide" else {name: drawn[:, 0] for name, drawn in answer.samples.items()}


class _Chains:
    """The chains of one question, run in stretches; marginals are those of the last stretch."""

    def __init__(
        self,
        question: Question,
        relevant: set[str],
        chains: int,
        scan: str,
        engine: str | Engine,
        generator: torch.Generator,
    ):
        self.question, self.model, self.chains = question, question.model, chains
        fitted = question.fitted and has_init(self.model)
        self.init = "given" if question.values else "fitted" if fitted else "random"
        each = question.repeated(chains)
        self.state = each.first_state(generator)
        irrelevant = [name for name in self.model.names if name not in relevant]
        clamp = each.mask | {name: torch.ones_like(each.mask[name]) for name in irrelevant}
        self.chain = Chain(self.model, clamp=clamp, scan=scan, engine=engine, generator=generator)
        self.open = [name for name in question.wanted if name in self.chain.free]
        self.marginals: dict[str, Marginals] = {}
        self.monitors: dict[str, Monitor] = {}
        self.sweeps = self.measured = 0

    def stretch(self, sweeps: int) -> None:
        """Run on, and measure this stretch alone."""
        variables = self.model.variables
        self.marginals = {n: Marginals(variables[n], n) for n in self.open}
        self.monitors = {n: Monitor(variables[n], n, self.chains, sweeps) for n in self.open}
        observers: list[Observer] = [*self.marginals.values(), *self.monitors.values()]
        self.state = self.chain.advance(self.state, self.chain.sweeps(sweeps), observers)
        self.sweeps += sweeps
        self.measured = sweeps

    def converged(self, bounds: Converged) -> bool:
        """Whether the last stretch is in bounds, in every row."""
        reports = [monitor.report() for monitor in self.monitors.values()]
        return all(bool((r <= bounds.r_hat).all() and (e >= bounds.ess).all()) for r, e in reports)

    def answer(self, converged: bool) -> Answer:
        reports = {name: monitor.report() for name, monitor in self.monitors.items()}
        diagnostics = Diagnostics(
            {n: r for n, (r, _) in reports.items()},
            {n: e for n, (_, e) in reports.items()},
            self.sweeps,
            self.measured,
            converged,
            self.init,
        )
        moments = {name: self._marginal(name) for name in self.question.wanted}
        samples = {name: self.state[name].unflatten(0, (-1, self.chains)) for name in self.question.wanted}
        return self.question.assembled(moments, samples, diagnostics)

    def _marginal(self, name: str) -> tuple[Tensor, Tensor]:
        """Mean and variance of encode(x), over chains and steps, `[batch, *encoding]`."""
        if name not in self.marginals:
            return self.question.certain(name)
        marginal = self.marginals[name]
        means = marginal.mean.unflatten(0, (-1, self.chains))
        variances = marginal.variance.unflatten(0, (-1, self.chains))
        mean, variance = means.mean(1), variances.mean(1) + means.var(1, correction=0)
        return mean.to(self.model.dtype), variance.to(self.model.dtype)


def _warn(diagnostics: Diagnostics, must_converge: bool) -> None:
    """Warn at the line of the user who asked, who may have called `impute` or another function of the package."""
    warned, level, frame = False, 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("paracond."):
        level, frame = level + 1, frame.f_back
    for name, r_hat in diagnostics.r_hat.items():
        bad = int((r_hat > R_HAT_MIXED).sum())
        if bad:
            warned = True
            warnings.warn(
                f"{name!r} has not mixed in {bad} of {len(r_hat)} rows (R-hat up to {r_hat.max():.2f}, "
                f"over {R_HAT_MIXED}) after {diagnostics.sweeps} sweeps: run longer (stop=), or see `diagnostics`",
                NotMixedWarning,
                stacklevel=level,
            )
    if must_converge and not diagnostics.converged and not warned:
        warnings.warn(
            f"stopped at the limit of {diagnostics.sweeps} sweeps: {diagnostics!r}", NotMixedWarning, stacklevel=level
        )
