"""Any question: clamp what is known, run the chain, read off the rest (sections 4 and 5.4).

By default the chain begins anew at a known rate (`tours`), so that it has one limiting distribution, whatever the
conditionals are. `sample` returns exact, independent draws from it. `query` runs as many tours as every row needs
(`precision`) and returns

- marginals: averages of the conditionals along tours (Rao-Blackwell), with standard errors;
- decisions: arg max of the marginal for discrete coordinates, its mean for real ones (maximum and mean marginal);
- samples: last states of tours, independent draws;
- imputations (`impute`): the known values, completed by decisions or by a sample.

The answer about a row depends on the row, the model and the seed, not on the other rows: every row has its own streams
of random numbers (`streams`). Equal rows have equal answers, and different draws.

With `regeneration=0` chains never begin anew (`gibbs`). That is the kernel of the paper, for as long as `stop` says.

Only groups that matter are redrawn: the wanted ones, what their networks read, and so on. Where everything that they
read is given, the conditional itself is the answer, exactly, and no chain runs.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable

import numpy as np
import torch

from paracond.chain import SCANS, Chain, max_rows
from paracond.data import Data, InputError, Observed, State, at_least, one_of, row_count
from paracond.gibbs import Chains, Converged, Sweeps, joined
from paracond.model import JointModel, Regeneration
from paracond.precision import Precise, Rounds
from paracond.question import Answer, Diagnostics, Given, Init, Moments, Question
from paracond.runtime.engine import Engine
from paracond.streams import RowStreams, as_keys, occurrences
from paracond.tours import Batch, Record, TourRunner, one_of_scans, slots_of

R_HAT_MIXED = 1.1  # above this the answer carries a warning
MAX_ROWS = (4096, 65_536)  # rows of chains that run at a time, on a CPU and on a GPU: more only cost memory
Stop = Precise | Converged | Sweeps


class NotMixedWarning(UserWarning):
    """Chains that never begin anew disagree: their marginals are not yet those of the limiting distribution."""


class ImpreciseWarning(UserWarning):
    """Standard errors are over what was asked for."""


def query(
    model: JointModel,
    given: Given | None = None,
    want: Iterable[str] | None = None,
    *,
    rows: int = 1,
    stop: Stop | None = None,
    regeneration: Regeneration | float | None = None,
    chains: int = 8,
    init: Init = "fitted",
    scan: str = "systematic",
    engine: str | Engine = "auto",
    seed: int = 0,
) -> Answer:
    """Answer the question p(want | given): marginals with standard errors, decisions and samples.

    Main arguments:

    model: a trained `JointModel`.
    given: values `[batch, *event]` by name, or `Observed(value, mask)` where only some coordinates are known. A single
        row is repeated to fit the others.
    want: the groups to answer about (default: all that are not wholly given).
    rows: the number of rows of the answer where nothing is given.
    stop: when a row is answered: `Precise(error=0.03)` runs tours until standard errors are small, `Tours(count)` runs
        so many. `Converged(ess, limit)` and `Sweeps(count, warmup)` run chains that never begin anew.

    Other arguments:

    regeneration: how chains begin anew (default: as the model says); 0: never.
    chains: the number of samples per row, each from a chain of its own.
    init: where chains begin: "fitted" draws from the model's initializers given what is known, "random" does not; a
        mapping from names to values begins there.
    scan: the order of redraws. Learned conditionals are never quite consistent, so the limit depends on it: "random"
        has the limit of eq:gibbs_transition; "systematic" is faster, and its limit differs as much as the conditionals
        disagree.
    engine: how chains run, "auto", "eager", "rounded" or "graphs", or an `Engine`.
    seed: fixes all randomness.
    """
    at_least({"rows": (rows, 1), "chains": (chains, 1)})
    anew, stop = _way(model, stop, regeneration)
    if isinstance(stop, Converged) and chains < 2:
        raise InputError("one chain cannot show whether it has converged: use chains=2 or more, or stop=Sweeps(count)")
    _check_scan(scan, anew)
    question = Question.of(model, given, want, rows, init)
    engine = Engine.of(model.device, engine)
    with model.eval_mode():
        relevant, direct = question.relevant()
        if direct:
            answer = _directly(question, chains, seed)
        elif isinstance(stop, Precise) and anew is not None:
            answer = _by_tours(question, relevant, chains, anew, stop, scan, engine, seed)
        else:
            assert isinstance(stop, (Converged, Sweeps))
            answer = _by_chains(question, relevant, chains, stop, scan, engine, seed)
    _warn(answer.diagnostics, stop)
    return answer


def sample(
    model: JointModel,
    given: Given | None = None,
    *,
    rows: int = 1,
    sweeps: int | None = None,
    regeneration: Regeneration | None = None,
    init: Init = "fitted",
    scan: str = "systematic",
    chunk: int | None = None,
    engine: str | Engine = "auto",
    seed: int = 0,
    progress: bool | None = None,
) -> State:
    """Draw all groups given some of them: one draw per row of what is given, exactly from the limiting distribution.

    Main arguments:

    model: a trained `JointModel`.
    given: as in `query`.
    rows: the number of draws where nothing is given.
    sweeps: if it is given, chains never begin anew, and the draw is the state after so many sweeps.

    Other arguments:

    regeneration: how chains begin anew (default: as the model says).
    init: where chains begin, as in `query`.
    scan: the order of redraws, as in `query`.
    engine: how chains run, as in `query`.
    seed: fixes all randomness.
    chunk: rows that run at a time, with `sweeps` (default: as many as suit the device).
    progress: with `sweeps`: True or False shows a bar or not; None shows one on long runs in a terminal.

    `model(name, state).mean` of the returned state is what a picture usually shows: the mean of p(x | z) at the last z.
    """
    at_least({"rows": (rows, 1), "chunk": (1 if chunk is None else chunk, 1)})
    at_least({"sweeps": (0 if sweeps is None else sweeps, 0)})
    if sweeps is not None and regeneration is not None:
        raise InputError("sweeps and regeneration were both given: chains of a fixed length never begin anew")
    anew = None if sweeps is not None else _regeneration(model, regeneration)
    _check_scan(scan, anew)
    question = Question.of(model, given, None, rows, init)
    engine = Engine.of(model.device, engine)
    with model.eval_mode():
        if anew is not None:
            return _drawn(question, anew, scan, engine, seed)
        assert sweeps is not None
        return _advanced(question, sweeps, scan, engine, seed, chunk, progress)


def impute(model: JointModel, data: Data, *, how: str = "decide", **options) -> State:
    """Fill in the missing values of data, and groups of the model that the data lack altogether.

    model: a trained `JointModel`.
    data: values and masks, `Data(values, mask)`.
    how: "decide" fills in decisions, "sample" one joint draw per row.
    options: those of `query` to decide, those of `sample` to sample.
    """
    one_of("how", how, ("decide", "sample"))
    if not isinstance(data, Data):
        raise InputError(f"impute takes Data(values, mask), found {type(data).__name__}")
    given = {name: Observed(value, data.mask[name]) for name, value in data.state.items()}
    return query(model, given, model.names, **options).decisions if how == "decide" else sample(model, given, **options)


# --- by tours ---------------------------------------------------------------------------------------------------------


def _by_tours(
    question: Question,
    relevant: set[str],
    draws: int,
    anew: Regeneration,
    stop: Precise,
    scan: str,
    engine: Engine,
    seed: int,
) -> Answer:
    """Run tours for every row that differs from those before it."""
    model = question.model
    keys, first, same = _distinct(question, seed)
    asked = question.rows(first)
    free = [name for name in model.names if name in relevant]
    unknown = [name for name in question.wanted if name in relevant]
    rounds = Rounds(asked, unknown, keys, stop, draws)
    slots = slots_of(model, len(keys) * stop.least)
    sweeps = TourRunner(asked, free, unknown, anew, scan, engine, slots).run(rounds)
    diagnostics = Diagnostics(
        rounds.converged,
        sweeps,
        question.init,
        rounds.tours[same],
        {name: worst[same] for name, worst in rounds.worst.items()},
        {name: drift[same] for name, drift in rounds.drift.items()},
    )
    moments, samples = {}, {}
    for name in question.wanted:
        if name in rounds.moments:
            moments[name], samples[name] = rounds.moments[name].rows(same), rounds.samples[name][same]
        else:
            known = question.known[name]
            moments[name] = question.certain(name)
            samples[name] = known.unsqueeze(1).expand(-1, draws, *known.shape[1:])
    return question.answer(moments, samples, diagnostics)


def _directly(question: Question, draws: int, seed: int) -> Answer:
    """The conditionals themselves, evaluated on as many rows at a time as tours would be."""
    keys, first, same = _distinct(question, seed)
    count, slots = len(keys), slots_of(question.model, 4 * len(keys))
    parts = []
    for begin in range(0, count, slots):
        places = np.minimum(np.arange(begin, begin + slots), count - 1)
        at = as_keys(keys[places]).to(question.model.device)
        rows = first[torch.from_numpy(places).to(first.device)]
        parts.append(question.rows(rows).directly(draws, RowStreams(at, torch.zeros_like(at))))
    moments = {name: Moments.joined([part[0][name] for part in parts]).rows(same) for name in question.wanted}
    samples = {name: torch.cat([part[1][name] for part in parts])[same] for name in question.wanted}
    certain = torch.zeros(row_count(question.known), dtype=torch.float64, device=question.model.device)
    unknown = [name for name in question.wanted if not bool(question.mask[name].all())]
    zeros = dict.fromkeys(unknown, certain)
    exactly = Diagnostics(True, 0, question.init, certain.long(), zeros, zeros)
    return question.answer(moments, samples, exactly)


def _distinct(question: Question, seed: int) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    """The keys of the rows that differ, one such row for each key, and for every row the index of its key."""
    digests = question.digests(seed)
    _, first, same = np.unique(digests, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)  # in the order of the question
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    first, device = first[order], question.model.device
    return digests[first, 0], torch.from_numpy(first).to(device), torch.from_numpy(place[same.reshape(-1)]).to(device)


class _OneEach:
    """One tour per row, for its last state: a `Schedule`. Equal rows have tours of their own."""

    def __init__(self, question: Question, seed: int):
        keys = question.digests(seed)[:, 0]
        self.tours = Batch.of(np.arange(len(keys)), occurrences(keys), keys)
        self.drawn = {name: torch.empty_like(value) for name, value in question.known.items()}

    def take(self, count: int) -> Batch:
        taken, self.tours = self.tours[:count], self.tours[count:]
        return taken

    def wanted(self, tours: Batch) -> np.ndarray:
        return np.ones(len(tours), dtype=bool)

    def finish(self, tours: Batch, record: Record) -> None:
        for name, value in self.drawn.items():
            value.index_copy_(0, torch.from_numpy(tours.rows).to(value.device), record.state[name])


def _drawn(question: Question, anew: Regeneration, scan: str, engine: Engine, seed: int) -> State:
    """The last states of tours."""
    model = question.model
    free = [name for name in model.names if not bool(question.mask[name].all())]
    each, slots = _OneEach(question, seed), slots_of(model, row_count(question.known))
    TourRunner(question, free, [], anew, scan, engine, slots).run(each)
    return each.drawn


# --- by chains that never begin anew ----------------------------------------------------------------------------------


def _by_chains(
    question: Question, relevant: set[str], chains: int, stop: Converged | Sweeps, scan: str, engine: Engine, seed: int
) -> Answer:
    model = question.model
    generator, answers = model.generator(seed), []
    chunk = max(1, max_rows(model, MAX_ROWS[model.device.type == "cuda"]) // chains)
    for part in question.parts(chunk):
        run = Chains(part, relevant, chains, scan, engine, generator)
        answers.append(run.answer(stop.run(run)))
    return answers[0] if len(answers) == 1 else joined(answers)


def _advanced(
    question: Question, sweeps: int, scan: str, engine: Engine, seed: int, chunk: int | None, progress: bool | None
) -> State:
    model = question.model
    generator, drawn = model.generator(seed), []
    for part in question.parts(chunk or max_rows(model, 32_768 if model.device.type == "cuda" else 256)):
        state = part.first_state(generator)
        chain = Chain(model, clamp=part.mask, scan=scan, engine=engine, generator=generator)
        drawn.append(chain.advance(state, chain.sweeps(sweeps), progress=progress))
    return {name: torch.cat([part[name] for part in drawn]) for name in model.variables}


# --- checks and warnings ----------------------------------------------------------------------------------------------


def _way(
    model: JointModel, stop: Stop | None, regeneration: Regeneration | float | None
) -> tuple[Regeneration | None, Stop]:
    """How chains begin anew (None: never), and when to stop."""
    if stop is not None and not isinstance(stop, Stop):
        raise InputError(f"stop must be Precise(error), Tours(count), Converged(...) or Sweeps(count), found {stop!r}")
    never = isinstance(regeneration, (int, float)) and not isinstance(regeneration, bool) and regeneration == 0
    if isinstance(stop, Precise) and never:
        raise InputError(f"stop={stop!r} needs tours; with regeneration=0 use stop=Converged(...) or Sweeps(count)")
    if never or (isinstance(stop, (Converged, Sweeps)) and regeneration is None):
        return None, Converged() if stop is None else stop
    if isinstance(stop, (Converged, Sweeps)):
        raise InputError(f"stop={stop!r} is for chains that never begin anew: leave regeneration out, or make it 0")
    return _regeneration(model, regeneration), Precise() if stop is None else stop


def _regeneration(model: JointModel, regeneration: object) -> Regeneration:
    if not isinstance(model, JointModel):
        raise InputError(f"the model must be a JointModel, found {type(model).__name__}")
    found = model.regeneration if regeneration is None else regeneration
    if not isinstance(found, Regeneration):
        raise InputError(f"regeneration must be Regeneration(rate, warmup), found {found!r}")
    return found


def _check_scan(scan: str, anew: Regeneration | None) -> None:
    if anew is None:
        one_of("scan", scan, SCANS)
    else:
        one_of_scans(scan)


def _warn(diagnostics: Diagnostics, stop: Stop) -> None:
    """Warn once, at the line of the user who asked, who may have called another function of the package."""
    found = _complaint(diagnostics, stop)
    if found is None:
        return
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("paracond."):
        level, frame = level + 1, frame.f_back
    warnings.warn(found, stacklevel=level)


def _complaint(diagnostics: Diagnostics, stop: Stop) -> UserWarning | None:
    if isinstance(stop, Precise):
        if diagnostics.converged:
            return None
        name, error = max(diagnostics.error.items(), key=lambda each: float(each[1].max()))
        bad = int((error > stop.error).sum())
        return ImpreciseWarning(
            f"{name!r} has a standard error up to {error.max():.2g}, over {stop.error:g}, in {bad} of {len(error)} "
            f"rows after {stop.most} tours: allow more, as in stop=Precise(error={stop.error:g}, most={4 * stop.most})"
        )
    mixed = {name: r_hat for name, r_hat in diagnostics.r_hat.items() if bool((r_hat > R_HAT_MIXED).any())}
    if mixed:
        name, r_hat = max(mixed.items(), key=lambda each: float(each[1].max()))
        bad = int((r_hat > R_HAT_MIXED).sum())
        return NotMixedWarning(
            f"{name!r} has not mixed in {bad} of {len(r_hat)} rows (R-hat up to {r_hat.max():.2f}, "
            f"over {R_HAT_MIXED}) after {diagnostics.sweeps} sweeps: run longer (stop=), or leave out regeneration=0"
        )
    if isinstance(stop, Converged) and not diagnostics.converged:
        return NotMixedWarning(f"stopped at the limit of {diagnostics.sweeps} sweeps: {diagnostics!r}")
    return None
