"""How probable is a row? Its likelihood under the limit of tours, and scores of anomaly for rows that are too large.

Likelihood. Let pi be the limit of tours with w sweeps of warm-up, and pi' that of tours with w - 1 (`tours`). One more
sweep G leads from pi' to pi, and a sweep is scored group by group, in the order of the model:

    pi(x) = E_{y ~ pi'} G(x | y),     G(x | y) = prod_i p_i(x_i | x_1 .. x_i-1, y_i+1 .. y_m).

Tours draw y exactly. Coordinates that are not observed are drawn where others are scored, so the mean over y is right
for any missing values, latents included. Its logarithm has an interval by the delta method. The mean is dominated by
the few y that lie near x; ess = (sum G)^2 / sum G^2 counts them. With fewer than `ENOUGH` there is no number.

Anomaly. For images no y lies near x. Two scores need only chains in which x is clamped, or none:

- evidence: -log p_0(x), of the observed groups with an initializer. K begins anew at p_0, so where p_0 has no mass, pi
  has only what G brings there;
- surprise: E [log p_i(x'_i | x_-i) - log p_i(x_i | x_-i)], x'_i ~ p_i(. | x_-i), summed over the observed groups: by
  how much a redraw is more probable than the value that it replaces. For x ~ pi its mean is the loss per sweep of
  eq:chain_kl, which is zero where conditionals are consistent. A row that the model never draws back has a large one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paracond.chain import full_clamp, max_rows
from paracond.data import (
    Data,
    InputError,
    Mask,
    Observed,
    State,
    as_count,
    named,
    one_of,
    row_count,
    seeded,
    shown,
    take,
    warn_caller,
    wide,
)
from paracond.exact import enumerate_model, limiting
from paracond.families import Categorical, Family
from paracond.inference import sample
from paracond.initializers.initial_state import has_init, log_density
from paracond.memory import require_room, row_bytes
from paracond.model import JointModel, Regeneration, require_model
from paracond.question import Given, Question
from paracond.runtime.engine import Engine
from paracond.streams import RowStreams, as_keys, numbered, row_digests

ENOUGH = 30  # draws near a row
NORMAL = 1.96  # of a 95% interval
DRAWS = 4096
STATES = 4096  # so many are enumerated
PAIRS = (2**14, 2**17)  # pairs of a row and a draw that are scored at a time, on a CPU and on a GPU
LOWEST = -1e300  # the logarithm of a probability that is zero


class RoughWarning(UserWarning):
    """Some likelihoods are too rough to mean anything, and are NaN."""


@dataclass(frozen=True, eq=False)
class LogLikelihood:
    """Log-likelihoods in nats, one per row, float64; NaN where the estimate is too rough.

    value: log pi(x).
    error: its standard error.
    ess: the effective number of draws; infinite where the value is exact.
    """

    value: Tensor
    error: Tensor
    ess: Tensor

    @property
    def interval(self) -> tuple[Tensor, Tensor]:
        """The ends of a 95% interval for every row."""
        return self.value - NORMAL * self.error, self.value + NORMAL * self.error


def log_likelihood(
    model: JointModel,
    data: Data | Mapping[str, Tensor],
    *,
    given: Mapping[str, Tensor | Observed] | None = None,
    draws: int | None = None,
    regeneration: Regeneration | None = None,
    engine: str | Engine = "auto",
    seed: int = 0,
) -> LogLikelihood:
    """Return the log-likelihood of what is observed in every row, log pi(x).

    Main arguments:

    model: a trained `JointModel`.
    data: `Data(values, mask)`, or values by name. What is missing is summed out.

    Other arguments:

    given: values of one row to clamp. Then log pi(x | given) is returned, of the limit of the clamped chain.
    draws: the number of draws of y. By default the answer is exact where the states can be enumerated (at most 4,096,
        chains that begin at random values, nothing given), and otherwise comes from 4,096 draws.
    regeneration: how chains begin anew (default: as the model says).
    engine: how chains run, as in `query`.
    seed: fixes all randomness.
    """
    draws = None if draws is None else as_count("draws", draws, 2)
    require_model(model)
    anew, engine, seed = _checked(model, regeneration, engine, seed)
    given = {} if given is None else named("given", given)
    data = data if isinstance(data, Data) else Data(data)
    for name in [name for name in model.context if name in data.state]:
        raise InputError(f"{name!r} is a context group: pass it in given, one value for all rows")
    values, mask = _observed(model, data, given)
    if draws is None and not given and _enumerable(model):
        exactly = _enumerated(model, values, mask, anew)
        return LogLikelihood(exactly, torch.zeros_like(exactly), torch.full_like(exactly, torch.inf))
    if anew.warmup < 1:
        raise InputError(
            "a likelihood needs a sweep of warm-up: pass regeneration=Regeneration(rate, warmup=1) or more"
        )
    needed = (draws or DRAWS) * max(8 * row_count(values), 2 * row_bytes(model))  # every row is scored by every draw
    require_room(f"draws={draws or DRAWS}", needed, model.device)
    count, before = draws or DRAWS, Regeneration(anew.rate, anew.warmup - 1)
    known, clamp = _one_row(model, given, mask)
    many = {name: Observed(known[name].expand(count, *known[name].shape[1:]), clamp[name]) for name in known}
    first = sample(model, many, rows=count, regeneration=before, engine=engine, seed=seed)
    scores = _sweep_scores(model.eval_copy(), values, mask, first, clamp, seed)
    _require_numbers(scores.isnan().any(1))
    found = _averaged(scores)
    rough = int(found.value.isnan().sum())
    if rough:
        more = f"ask for more, as in draws={16 * count}, or use anomaly_score"
        warn_caller(
            RoughWarning(
                f"{rough} of {len(found.value)} likelihoods are NaN: fewer than {ENOUGH} draws near them; {more}"
            )
        )
    return found


def anomaly_score(
    model: JointModel,
    data: Data | Mapping[str, Tensor],
    *,
    by: str | None = None,
    draws: int | None = None,
    regeneration: Regeneration | None = None,
    engine: str | Engine = "auto",
    seed: int = 0,
) -> Tensor:
    """Return how unusual every row is, `[batch]`, float64: a score that is larger for what the model does not expect.

    Main arguments:

    model: a trained `JointModel`.
    data: `Data(values, mask)`, or values by name.
    by: "evidence" (of the initializers, in nats; no chain runs) or "surprise" (of the conditionals, in nats; see the
        head of this module). By default "evidence", where an observed group has an initializer.

    Other arguments:

    draws: the number of draws that are averaged (default: 256 of what initializers read, 8 of what else is unknown).
    regeneration: how chains begin anew (default: as the model says).
    engine: how chains run, as in `query`.
    seed: fixes all randomness.

    Scores of rows are comparable where the same coordinates are observed.
    """
    draws = None if draws is None else as_count("draws", draws)
    require_model(model)
    anew, engine, seed = _checked(model, regeneration, engine, seed)
    values, mask = _observed(model, data)
    possible = any(model.conditional(name).init is not None and bool(mask[name].any()) for name in model.names)
    by = ("evidence" if possible else "surprise") if by is None else by
    one_of("by", by, ("evidence", "surprise"))
    if by == "evidence" and not possible:
        raise InputError('by="evidence" needs an observed group with an initializer: use by="surprise"')
    asked = model.eval_copy()
    if by == "surprise":
        found = _surprise(asked, values, mask, 8 if draws is None else draws, anew, engine, seed)
    else:
        found = -log_density(asked, values, mask, 256 if draws is None else draws, seed)
    _require_numbers(found.isnan())
    return found


def _require_numbers(bad: Tensor) -> None:
    """Refuse rows whose score is not a number."""
    rows = bad.nonzero().squeeze(1).tolist()
    if rows:
        listed = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise InputError(
            f"data: {len(rows)} of {len(bad)} rows have no score ({listed}), because the model's conditionals are not "
            "finite there: leave these rows out"
        )


# --- likelihood -------------------------------------------------------------------------------------------------------


def _averaged(scores: Tensor) -> LogLikelihood:
    """The logarithm of the mean of exp(scores) over draws, `[batch, draws]`, and its error."""
    count = scores.shape[1]
    top = scores.amax(1, keepdim=True)
    weights = (scores - top.clamp(min=LOWEST)).exp()
    mean = weights.mean(1)
    value = mean.log() + top.squeeze(1)
    ess = weights.sum(1).square() / weights.square().sum(1).clamp(min=1e-300)
    error = weights.std(1) / mean.clamp(min=1e-300) / count**0.5
    rough = ess < min(ENOUGH, count)
    return LogLikelihood(torch.where(rough, torch.nan, value), torch.where(rough, torch.nan, error), ess)


@torch.no_grad()
def _sweep_scores(model: JointModel, values: State, mask: Mask, first: State, clamp: Mask, seed: int) -> Tensor:
    """log G(x | y) for every row x and every y in `first`, `[batch, draws]`, float64; what is missing of x is drawn."""
    digests = _keys(values, mask, seed)
    rows, count = len(digests), len(next(iter(first.values())))
    most = max_rows(model, PAIRS[model.device.type == "cuda"])
    scores = torch.empty(rows, count, dtype=torch.float64, device=model.device)
    some, width = max(1, most // count), min(most, count)
    for begin in range(0, rows, some):
        for left in range(0, count, width):
            part, ys = slice(begin, begin + some), slice(left, left + width)
            numbers = np.arange(count)[ys]
            keys = numbered(np.repeat(digests[part], len(numbers)), np.tile(numbers, len(digests[part])))
            scores[part, ys] = _scored_sweep(model, take(values, part), take(mask, part), take(first, ys), clamp, keys)
    return scores


def _scored_sweep(model: JointModel, values: State, mask: Mask, first: State, clamp: Mask, keys: np.ndarray) -> Tensor:
    rows, count = len(next(iter(values.values()))), len(next(iter(first.values())))
    state = {name: value.repeat(rows, *[1] * (value.ndim - 1)) for name, value in first.items()}
    at = as_keys(keys).to(model.device)
    streams, total = RowStreams(at, torch.zeros_like(at)), torch.zeros(rows * count, dtype=torch.float64).to(at.device)
    scored = [name for name in model.names if bool(mask[name].any())]
    for place, name in enumerate(model.names):
        still = [other for other in scored if model.index(other) >= place]
        if not still:
            break
        seen, held = (mask[name].repeat_interleave(count, 0), clamp.get(name))
        if name not in scored and not any(name in model.reads(other) for other in still):
            continue  # nobody reads it any more
        target = torch.where(seen, values[name].repeat_interleave(count, 0), state[name])
        distribution = model(name, state)
        if name in scored:
            scores = distribution.scores(target)
            seen_scores = seen if scores.shape == seen.shape else seen.reshape(len(seen), -1).all(1)
            total += torch.where(seen_scores, scores, 0).reshape(len(total), -1).double().sum(1)
        fixed = seen if held is None else seen | held
        state[name] = target if bool(fixed.all()) else distribution.redraw(target, fixed, streams.at(place))
    return total.view(rows, count)


def _observed(model: JointModel, data: Data | Mapping[str, Tensor], given: Given | None = None) -> tuple[State, Mask]:
    """The values of the data, and full masks of what is observed; context that is given is that of all rows."""
    data = data if isinstance(data, Data) else Data(data)
    context = Question.of(model, given, None, None, "fitted").known if given and model.context else {}
    same = {name: context[name][:1].expand(len(data), *context[name].shape[1:]) for name in model.context if context}
    values, mask = model.validate(data.state | same, data.mask)
    full_clamp(model, {name: mask[name] for name in model.names})  # refuses masks that a family cannot honour
    return values, mask


def _checked(
    model: JointModel, regeneration: Regeneration | None, engine: str | Engine, seed: int
) -> tuple[Regeneration, Engine, int]:
    """How chains begin anew and run, and the seed: valid, also where no chain will run."""
    anew = model.regeneration if regeneration is None else regeneration
    if not isinstance(anew, Regeneration):
        raise InputError(f"regeneration must be Regeneration(rate, warmup), found {shown(anew)}")
    seeded(seed)
    return anew, Engine.of(model.device, engine), int(seed)


def _one_row(model: JointModel, given: Mapping[str, Tensor | Observed], mask: Mask) -> tuple[State, Mask]:
    """What is given, one row, and what that clamps; it must not be what is scored."""
    question = Question.of(model, given, None, None, "fitted")
    known = {name: question.known[name] for name in given}
    if known and len(next(iter(known.values()))) != 1:
        raise InputError("given must have one row, which all rows of the data share")
    clamp = {name: question.mask[name] for name in given}
    for name in [name for name in clamp if name in model.names and bool((clamp[name] & mask[name]).any())]:
        raise InputError(f"{name!r} is given and also in the data, which is what is scored: leave it out of one")
    return known, clamp


def _enumerable(model: JointModel) -> bool:
    if model.context or has_init(model) or not all(family.finite for family in model.variables.values()):
        return False
    return math.prod(_size(family) for family in model.variables.values()) <= STATES


def _size(family: Family) -> float:
    """The number of values of a finite family."""
    classes = family.classes if isinstance(family, Categorical) else 2
    return float(classes) ** math.prod(family.event_shape)


def _enumerated(model: JointModel, values: State, mask: Mask, anew: Regeneration) -> Tensor:
    finite = enumerate_model(model)
    left = limiting(finite.tours(None, anew)).expand(len(next(iter(values.values()))), *finite.kernel.shape)
    for name in finite.names:
        every, value = finite.values[name], values[name].cpu()
        same = (every == value.unsqueeze(1)) | ~mask[name].cpu().unsqueeze(1)
        fits = same.reshape(len(value), len(every), -1).all(2).to(left.dtype)
        left = (left * wide(fits, left)).sum(1)
    return left.log().to(model.device)


# --- anomaly ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _surprise(
    model: JointModel,
    values: State,
    mask: Mask,
    draws: int,
    regeneration: Regeneration | None,
    engine: str | Engine,
    seed: int,
) -> Tensor:
    """E [log p_i(x'_i | x_-i) - log p_i(x_i | x_-i)], summed over observed groups; only what is observed is redrawn."""
    known = {name: Observed(values[name], mask[name]) for name in model.names if bool(mask[name].any())}
    context = {name: Observed(values[name]) for name in model.context}
    total = torch.zeros(len(next(iter(mask.values()))), dtype=torch.float64, device=model.device)
    for draw in range(draws):
        own = (seed + draw + 2**63) % 2**64 - 2**63  # of 64 bits
        state = sample(model, known | context, regeneration=regeneration, engine=engine, seed=own)
        at = as_keys(_keys(values, mask, own)).to(model.device)
        for part in torch.arange(len(total), device=model.device).split(max_rows(model, PAIRS[total.is_cuda])):
            streams, some = RowStreams(at[part], torch.zeros_like(at[part])), take(state, part)
            for place, name in enumerate(known):
                distribution, seen = model(name, some), mask[name][part]
                again = distribution.redraw(some[name], ~seen, streams.at(place))
                gap = distribution.scores(again) - distribution.scores(some[name])
                total[part] += torch.where(seen, gap, 0).reshape(len(part), -1).double().sum(1) / draws
    return total


def _keys(values: State, mask: Mask, seed: int) -> np.ndarray:
    """The key of every row, from what is observed of it."""
    content = dict(mask) | {f"value {name}": torch.where(seen, values[name], 0) for name, seen in mask.items()}
    return row_digests(content, seed)[:, 0]
