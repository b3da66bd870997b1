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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from paracond.chain import SCANS, Chain, max_rows, require_defined
from paracond.data import Data, InputError, Observed, State, as_count, one_of, row_count, shown, take, warn_caller
from paracond.gibbs import Chains, Converged, Sweeps, joined
from paracond.memory import require_room, row_bytes
from paracond.model import JointModel, Regeneration, require_model
from paracond.precision import Precise, Rounds
from paracond.question import Answer, Diagnostics, Given, Init, Moments, Question, require_finite
from paracond.runtime.engine import Engine
from paracond.runtime.progress import check_progress
from paracond.streams import RowStreams, as_keys, occurrences, rows_draw
from paracond.tours import Batch, Record, TourRunner, one_of_scans, passes, slots_of

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
    rows: int | None = None,
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
    given: values `[batch, *event]` by name, or `Observed(value, mask)` where only some coordinates are known, or
        `Data`. A single row is repeated to fit the others.
    want: the groups to answer about (default: all that are not wholly given).
    rows: the number of rows of the answer, where one row is given for all, or nothing (default: as many as are given).
    stop: when a row is answered: `Precise(error=0.03)` runs tours until standard errors are small, `Tours(count)` runs
        so many. `Converged(ess, limit)` and `Sweeps(count, warmup)` run chains that never begin anew.

    Other arguments:

    regeneration: how chains begin anew (default: as the model says); 0: never.
    chains: the number of samples per row, each the last state of a tour, or of a chain, of its own.
    init: where chains begin: "fitted" draws from the model's initializers given what is known, "random" does not; a
        mapping from names to values begins there.
    scan: the order of redraws. Learned conditionals are never quite consistent, so the limit depends on it: "random"
        has the limit of eq:gibbs_transition; "systematic" is faster, and its limit differs as much as the conditionals
        disagree.
    engine: how chains run, "auto", "eager", "rounded" or "graphs", or an `Engine`.
    seed: fixes all randomness.
    """
    chains = as_count("chains", chains)
    anew, stop = _way(model, stop, regeneration, chains)
    if isinstance(stop, Converged) and chains < 2:
        raise InputError("one chain cannot show whether it has converged: use chains=2 or more, or stop=Sweeps(count)")
    if isinstance(stop, Precise) and chains > stop.most:
        raise InputError(f"chains={chains} samples need as many tours, but stop={stop!r} allows {stop.most}")
    _check_scan(scan, anew)
    question = Question.of(model, given, want, rows, init)
    drawn = row_count(question.known) * chains
    require_room(f"chains={chains} samples of every row", drawn * row_bytes(model), model.device)
    if isinstance(stop, Precise):
        require_room(f"stop={stop!r:.80}: all tours of a row", stop.least * row_bytes(model), model.device)
    engine = Engine.of(model.device, engine)
    with rows_draw():
        matters, direct = question.relevant()
        if anew is not None or bool(direct.all()):
            answer = _by_rows(question, matters, direct, chains, anew, stop, scan, engine, seed)
        else:
            assert isinstance(stop, (Converged, Sweeps))
            relevant = {name for name, rows in matters.items() if bool(rows.any())}
            answer = _by_chains(question, relevant, chains, stop, scan, engine, seed)
    _warn(answer.diagnostics, stop)
    return answer


def sample(
    model: JointModel,
    given: Given | None = None,
    *,
    rows: int | None = None,
    sweeps: int | None = None,
    regeneration: Regeneration | float | None = None,
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
    rows: the number of draws, where one row is given for all, or nothing (default: as many as are given).
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
    chunk = None if chunk is None else as_count("chunk", chunk)
    check_progress(progress)
    sweeps = None if sweeps is None else as_count("sweeps", sweeps, 0)
    if _never(regeneration) and sweeps is None:
        raise InputError("regeneration=0 needs sweeps=, the length of a chain that never begins anew")
    if sweeps is not None and regeneration is not None and not _never(regeneration):
        raise InputError("sweeps and regeneration were both given: chains of a fixed length never begin anew")
    anew = None if sweeps is not None else _regeneration(model, regeneration)
    _check_scan(scan, anew)
    question = Question.of(model, given, None, rows, init)
    engine = Engine.of(model.device, engine)
    with rows_draw():
        if anew is not None:
            drawn, undefined = _drawn(question, anew, scan, engine, seed)
        else:
            assert sweeps is not None
            drawn, undefined = _advanced(question, sweeps, scan, engine, seed, chunk, progress)
    require_defined(question.model, undefined)
    for name, value in drawn.items():
        require_finite(name, value)
    return drawn


def impute(model: JointModel, data: Data, *, how: str = "decide", **options) -> State:
    """Fill in the missing values of data, and groups of the model that the data lack altogether.

    model: a trained `JointModel`.
    data: values and masks, `Data(values, mask)`.
    how: "decide" fills in decisions, "sample" one joint draw per row.
    options: those of `query`. A joint draw is the end of one tour, so it needs neither `stop` nor `chains`; where
        chains never begin anew, it is the last state of the first one.
    """
    one_of("how", how, ("decide", "sample"))
    if not isinstance(data, Data):
        raise InputError(f"data must be Data(values, mask) for impute, found {type(data).__name__}")
    given = {name: Observed(value, data.mask[name]) for name, value in data.state.items()}
    anew, _ = _way(model, options.get("stop"), options.get("regeneration"))
    if how == "sample" and (anew is not None or "sweeps" in options):
        return sample(model, given, **{k: v for k, v in options.items() if k not in ("stop", "chains")})
    answer = query(model, given, model.names, **options)
    return answer.decisions if how == "decide" else {name: drawn[:, 0] for name, drawn in answer.samples.items()}


# --- row by row: directly, or by tours --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Found:
    """What was found about some rows, by the names of the wanted groups.

    moments, samples: marginals and draws.
    tours: the number of tours of every row, 0 where no chain ran.
    error, drift: as in `Diagnostics`.
    undefined: as `first` of `Undefined`.
    """

    moments: dict[str, Moments]
    samples: State
    tours: torch.Tensor
    error: State
    drift: State
    undefined: torch.Tensor

    def rows(self, which: torch.Tensor) -> _Found:
        """What was found about these rows."""
        moments = {name: each.rows(which) for name, each in self.moments.items()}
        samples, error, drift = (take(each, which) for each in (self.samples, self.error, self.drift))
        return _Found(moments, samples, self.tours[which], error, drift, self.undefined[which])

    @classmethod
    def joined(cls, parts: Sequence[_Found]) -> _Found:
        """What was found about all rows, from some rows each."""
        names = parts[0].moments
        moments = {name: Moments.joined([part.moments[name] for part in parts]) for name in names}
        samples, error, drift = (
            {name: torch.cat([getattr(part, what)[name] for part in parts]) for name in names}
            for what in ("samples", "error", "drift")
        )
        tours, undefined = (torch.cat([getattr(part, what) for part in parts]) for what in ("tours", "undefined"))
        return cls(moments, samples, tours, error, drift, undefined)


def _by_rows(
    question: Question,
    matters: Mapping[str, torch.Tensor],
    direct: torch.Tensor,
    draws: int,
    anew: Regeneration | None,
    stop: Stop,
    scan: str,
    engine: Engine,
    seed: int,
) -> Answer:
    """Answer every row that differs from those before it, by its conditionals where that is exact, or by tours."""
    keys, first, same = _distinct(question, seed)
    asked, matters, direct = question.rows(first), take(matters, first), direct[first]
    easy, hard = direct.nonzero().squeeze(1), (~direct).nonzero().squeeze(1)
    found, sweeps, converged = [], 0, True
    if len(easy):
        found.append(_directly(asked.rows(easy), keys[easy.cpu().numpy()], draws))
    if len(hard):
        assert anew is not None and isinstance(stop, Precise)
        rounds = Rounds(asked.rows(hard), keys[hard.cpu().numpy()], stop, draws)
        sweeps = _run(rounds, take(matters, hard), anew, scan, engine)
        found.append(_toured(rounds))
        converged = rounds.converged
    every = _Found.joined(found).rows(torch.cat([easy, hard]).argsort()[same])
    require_defined(question.model, every.undefined)
    unknown = [name for name in question.wanted if not bool(question.mask[name].all())]
    error, drift = ({name: each[name] for name in unknown} for each in (every.error, every.drift))
    diagnostics = Diagnostics(converged, sweeps, question.init, every.tours, error, drift)
    if not len(hard):  # as after endless chains
        r_hat = {name: torch.ones_like(each) for name, each in error.items()}
        diagnostics = replace(diagnostics, r_hat=r_hat, ess={name: each / 0 for name, each in r_hat.items()})
    return question.answer(every.moments, every.samples, diagnostics)


def _run(rounds: Rounds, matters: Mapping[str, torch.Tensor], anew: Regeneration, scan: str, engine: Engine) -> int:
    """Run the tours of a query. Returns the number of sweeps."""
    question = rounds.question
    free = [name for name, rows in matters.items() if bool(rows.any())]
    slots = slots_of(question.model, len(rounds.keys) * rounds.least)
    return TourRunner(question, free, rounds.names, anew, scan, engine, slots, matters).run(rounds)


def _toured(rounds: Rounds) -> _Found:
    """What tours found, and what was known."""
    question, zero = rounds.question, torch.zeros_like(rounds.tours, dtype=torch.float64)
    known = [name for name in question.wanted if name not in rounds.names]
    samples = {name: question.repeatedly(name, rounds.draws) for name in known}
    zeros = dict.fromkeys(known, zero)
    return _Found(
        rounds.moments | {name: question.certain(name) for name in known},
        rounds.samples | samples,
        rounds.tours,
        rounds.worst | zeros,
        rounds.drift | zeros,
        rounds.undefined,
    )


def _directly(question: Question, keys: np.ndarray, draws: int) -> _Found:
    """The conditionals themselves, evaluated on as many rows at a time as tours would be, every row at its place."""
    model, parts, order = question.model, [], []
    slots, device = slots_of(model, 4 * len(keys)), model.device
    for rows, places in passes(keys if device.type == "cpu" else np.arange(len(keys)), slots):
        filled = np.full(slots, rows[0])
        filled[places] = rows
        streams = as_keys(keys[filled]).to(device)
        part = question.rows(torch.from_numpy(filled).to(device))
        moments, samples, undefined = part.directly(draws, RowStreams(streams, torch.zeros_like(streams)))
        zero = torch.zeros(slots, dtype=torch.float64, device=device)
        zeros = dict.fromkeys(question.wanted, zero)
        found = _Found(moments, samples, zero.long(), zeros, zeros, undefined)
        parts.append(found.rows(torch.from_numpy(places).to(device)))
        order.append(rows)
    return _Found.joined(parts).rows(torch.from_numpy(np.argsort(np.concatenate(order))).to(device))


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
        self.undefined = torch.full((len(keys),), -1, dtype=torch.int64, device=question.model.device)

    def take(self, count: int) -> Batch:
        taken, self.tours = self.tours[:count], self.tours[count:]
        return taken

    def wanted(self, tours: Batch) -> np.ndarray:
        return np.ones(len(tours), dtype=bool)

    def finish(self, tours: Batch, record: Record) -> None:
        rows = torch.from_numpy(tours.rows).to(self.undefined.device)
        for name, value in self.drawn.items():
            value.index_copy_(0, rows, record.state[name])
        self.undefined.index_copy_(0, rows, record.undefined)


def _drawn(question: Question, anew: Regeneration, scan: str, engine: Engine, seed: int) -> tuple[State, torch.Tensor]:
    """The last states of tours, and which are undefined."""
    model = question.model
    free = [name for name in model.names if not bool(question.mask[name].all())]
    each, slots = _OneEach(question, seed), slots_of(model, row_count(question.known))
    TourRunner(question, free, [], anew, scan, engine, slots).run(each)
    return each.drawn, each.undefined


# --- by chains that never begin anew ----------------------------------------------------------------------------------


def _by_chains(
    question: Question, relevant: set[str], chains: int, stop: Converged | Sweeps, scan: str, engine: Engine, seed: int
) -> Answer:
    model = question.model
    generator, answers, undefined = model.generator(seed), [], []
    chunk = max(1, max_rows(model, MAX_ROWS[model.device.type == "cuda"]) // chains)
    for part in question.parts(chunk):
        run = Chains(part, relevant, chains, scan, engine, generator)
        converged = stop.run(run)
        undefined.append(run.undefined)
        if bool((run.undefined < 0).all()):
            answers.append(run.answer(converged))
    require_defined(model, torch.cat(undefined))
    return answers[0] if len(answers) == 1 else joined(answers)


def _advanced(
    question: Question, sweeps: int, scan: str, engine: Engine, seed: int, chunk: int | None, progress: bool | None
) -> tuple[State, torch.Tensor]:
    model = question.model
    generator, drawn, undefined = model.generator(seed), [], []
    for part in question.parts(chunk or max_rows(model, 32_768 if model.device.type == "cuda" else 256)):
        state = part.first_state(generator)
        chain = Chain(model, clamp=part.mask, scan=scan, engine=engine, generator=generator)
        drawn.append(chain.advance(state, chain.sweeps(sweeps), progress=progress))
        assert chain.undefined is not None
        undefined.append(chain.undefined.first)
    return {name: torch.cat([part[name] for part in drawn]) for name in model.variables}, torch.cat(undefined)


# --- checks and warnings ----------------------------------------------------------------------------------------------


def _way(
    model: JointModel, stop: Stop | None, regeneration: Regeneration | float | None, chains: int = 1
) -> tuple[Regeneration | None, Stop]:
    """How chains begin anew (None: never), and when to stop."""
    if stop is not None and not isinstance(stop, Stop):
        kinds = "Precise(error), Tours(count), Converged(...) or Sweeps(count)"
        raise InputError(f"stop must be {kinds}, found {shown(stop)}")
    never = _never(regeneration)
    if isinstance(stop, Precise) and never:
        raise InputError(f"stop={stop!r} needs tours; with regeneration=0 use stop=Converged(...) or Sweeps(count)")
    if never or (isinstance(stop, (Converged, Sweeps)) and regeneration is None):
        return None, Converged() if stop is None else stop
    if isinstance(stop, (Converged, Sweeps)):
        raise InputError(f"stop={stop!r} is for chains that never begin anew: leave regeneration out, or make it 0")
    return _regeneration(model, regeneration), Precise(most=max(Precise().most, chains)) if stop is None else stop


def _never(regeneration: object) -> bool:
    return isinstance(regeneration, (int, float)) and not isinstance(regeneration, bool) and regeneration == 0


def _regeneration(model: JointModel, regeneration: object) -> Regeneration:
    require_model(model)
    found = model.regeneration if regeneration is None else regeneration
    if not isinstance(found, Regeneration):
        raise InputError(f"regeneration must be Regeneration(rate, warmup), or 0 for never, found {shown(found)}")
    return found


def _check_scan(scan: str, anew: Regeneration | None) -> None:
    if anew is None:
        one_of("scan", scan, SCANS)
    else:
        one_of_scans(scan)


def _warn(diagnostics: Diagnostics, stop: Stop) -> None:
    """Warn, once."""
    found = _complaint(diagnostics, stop)
    if found is not None:
        warn_caller(found)


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
