"""How often a chain should begin anew: the rate and the warm-up of tours, chosen on held-out data.

The limit of tours, pi = sum_k eps (1 - eps)^k p_0 G^(w + k), depends on eps and w. Where the conditionals are right,
long tours forget p_0 and are best. Where the chain drifts away from the data, short ones are. Held-out rows tell which
case it is: they and draws from pi are compared in the activations of the model's own networks,

    D = mean over layers of F / d,     F = |m - m'|^2 + tr(S + S' - 2 (S S')^(1/2)),

with m and S the mean and covariance of the d activations of a layer (averaged over the places of an image, and scaled
to variance one for the held-out rows), and m' and S' those of the draws. This is the FID with the networks at hand in
the place of Inception's. It needs no labels: what is not observed is drawn given the rest.

The same chains serve all candidates. They run from p_0, their states at ages 0, 1, 2, 4, ... are kept, and a draw from
pi is the state of one chain at a geometric age. Chosen are the longest tours, by w + 1 / eps, whose D is no more than
one standard error over the smallest. The error of a difference is that of its linear part, over chains and rows:

    dF = 2 (m' - m)' dx + tr((1 - T) (dx dx' - S')),     dx = x - m',     T = S^1/2 (S^1/2 S' S^1/2)^-1/2 S^1/2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor, nn

from paracond.chain import Chain
from paracond.data import Data, InputError, Observed, State, as_count, named, row_count, seeded, shown, take
from paracond.inference import sample
from paracond.initializers.initial_state import initial_state
from paracond.memory import require_room, row_bytes
from paracond.model import JointModel, Regeneration, require_model
from paracond.runtime.engine import Engine
from paracond.tours import slots_of

#: The warm-up is at most three times as long as what follows.
CANDIDATES = tuple(Regeneration(r, w) for w in (0, 3, 10, 30, 100) for r in (0.3, 0.1, 0.03, 0.01) if w * r <= 3)
ROWS = (500, 4000)  # chains, on a CPU and on a GPU
WIDTH = 128  # activations of wider layers are projected at random
BEYOND = 0.005  # the share of draws whose age is cut
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)


@dataclass(frozen=True, eq=False)
class Distances:
    """How far limits of tours are from held-out data.

    candidates: the rates and warm-ups.
    distance: D of each.
    excess: by how much it is over the smallest one.
    error: the standard error of `excess`.
    """

    candidates: tuple[Regeneration, ...]
    distance: Tensor
    excess: Tensor
    error: Tensor

    @property
    def chosen(self) -> Regeneration:
        """The longest tours that are no worse than the best, up to one standard error."""
        rows = zip(self.candidates, self.excess.tolist(), self.error.tolist(), strict=True)
        return max((each for each, excess, error in rows if excess <= error), key=tour_length)

    def __repr__(self) -> str:
        rows = zip(self.candidates, self.distance.tolist(), self.excess.tolist(), self.error.tolist(), strict=True)
        lines = [f"rate {c.rate:g}, warmup {c.warmup}: {d:.4f} ({e:+.4f} +- {s:.4f})" for c, d, e, s in rows]
        return "\n".join([*lines, f"chosen: {self.chosen}"])


def tour_length(regeneration: Regeneration) -> float:
    """The mean number of sweeps of a tour."""
    return regeneration.warmup + 1 / regeneration.rate


def choose_regeneration(model: JointModel, held_out: Data | Mapping[str, Tensor], **options) -> Regeneration:
    """Choose the rate and the warm-up of tours: `model.regeneration = pc.choose_regeneration(model, held_out)`.

    model: a trained `JointModel`.
    held_out: examples that the model was not trained on, at least 100. More tell smaller differences.
    options: those of `regeneration.distances`: candidates, rows, engine, seed.
    """
    return distances(model, held_out, **options).chosen


@torch.no_grad()
def distances(
    model: JointModel,
    held_out: Data | Mapping[str, Tensor],
    *,
    candidates: Sequence[Regeneration] = CANDIDATES,
    rows: int | None = None,
    engine: str | Engine = "auto",
    seed: int = 0,
) -> Distances:
    """Measure how far the limits of tours are from held-out data, for several rates and warm-ups.

    model: a trained `JointModel`.
    held_out: examples that the model was not trained on, at least 100.
    candidates: what to compare.
    rows: the number of chains, and of held-out rows if there are as many (default: 500 on a CPU, 4,000 on a GPU).
    engine: how chains run.
    seed: fixes all randomness.
    """
    require_model(model)
    data = held_out if isinstance(held_out, Data) else Data(named("held_out", held_out))
    model.validate(data.state, data.mask)  # rows that are not chosen too
    count = as_count("rows", ROWS[model.device.type == "cuda"] if rows is None else rows, 100)
    require_room(f"rows={count} chains", 2 * count * row_bytes(model), model.device)
    if len(data) < 100:
        raise InputError(f"held_out must have at least 100 rows to compare with, found {len(data)}")
    kinds = isinstance(candidates, (list, tuple)) and all(isinstance(each, Regeneration) for each in candidates)
    if not kinds or not candidates:
        raise InputError(f"candidates must be a list of Regeneration(rate, warmup), found {shown(candidates)}")
    generator, engine = model.generator(seed), Engine.of(model.device, engine)
    host = seeded(seed)
    real = _completed(model, data[torch.randperm(len(data), generator=host)[:count]], engine, seed)
    ages = _ages(max(each.warmup + _longest(each.rate) for each in candidates))
    model = model.eval_copy()
    with _Activations(model) as activations:
        features = [_Reference(layer) for layer in activations(real)]
        drawn = _layers_by_age(model, real, activations, count, ages, engine, generator)
    places = [_places(each, ages, count, host).to(model.device) for each in candidates]
    return _compared(features, drawn, tuple(candidates), places)


def _compared(
    features: list[_Reference], drawn: list[Tensor], candidates: tuple[Regeneration, ...], places: list[Tensor]
) -> Distances:
    """D of every candidate, from the activations of each layer, `[ages, chains, d]`."""
    chains = torch.arange(len(places[0]), device=places[0].device)
    found, of_chains, of_rows = [], [], []
    for place in places:
        parts = [each.distance(layer[place, chains]) for each, layer in zip(features, drawn, strict=True)]
        value, by_chain, by_row = (torch.stack(each).mean(0) for each in zip(*parts, strict=True))
        found.append(value)
        of_chains.append(by_chain)
        of_rows.append(by_row)
    distance = torch.stack(found)
    best = int(distance.argmin())
    variance = torch.zeros_like(distance)
    for each in (torch.stack(of_chains), torch.stack(of_rows)):
        variance += (each - each[best]).var(1) / each.shape[1]
    return Distances(candidates, distance.cpu(), (distance - distance[best]).cpu(), variance.sqrt().cpu())


# --- rows and chains --------------------------------------------------------------------------------------------------


def _completed(model: JointModel, data: Data, engine: Engine, seed: int) -> State:
    """Held-out rows in which what is not observed is drawn given the rest."""
    known = {name: Observed(value, data.mask[name]) for name, value in data.state.items()}
    return sample(model, known, engine=engine, seed=seed)


def _layers_by_age(
    model: JointModel,
    real: State,
    activations: _Activations,
    count: int,
    ages: Sequence[int],
    engine: Engine,
    generator: torch.Generator,
) -> list[Tensor]:
    """Activations of chains from p_0 at these ages: for every layer `[ages, chains, d]`."""
    some = slots_of(model, 4 * count)
    every = torch.arange(count, device=model.device)
    parts = []
    for rows in every.split(some):
        context = take({name: real[name] for name in model.context}, rows % row_count(real))
        mask = {name: torch.ones_like(value, dtype=torch.bool) for name, value in context.items()}
        state = initial_state(model, len(rows), generator, context, mask)
        chain = Chain(model, clamp=mask, scan="systematic", engine=engine, generator=generator)
        seen, now = [], 0
        for age in ages:
            state, now = chain.advance(state, chain.sweeps(age - now), progress=False), age
            seen.append(activations(state))
        if chain.undefined is not None:
            chain.undefined.refuse()
        parts.append([torch.stack(layer) for layer in zip(*seen, strict=True)])
    return [torch.cat(layer, 1) for layer in zip(*parts, strict=True)]


def _longest(rate: float) -> float:
    """The age that a share `BEYOND` of draws exceeds."""
    return math.log(BEYOND) / math.log1p(-rate) if rate < 1 else 0.0


def _ages(last: float) -> list[int]:
    return [0, *(2**k for k in range(math.ceil(math.log2(max(2, last))))), math.ceil(max(2, last))]


def _places(candidate: Regeneration, ages: Sequence[int], count: int, generator: torch.Generator) -> Tensor:
    """For each chain the place, in `ages`, of an age drawn from w + Geometric(eps): of two neighbours, the nearer one
    more often."""
    k = torch.zeros(count, dtype=torch.float64)
    if candidate.rate < 1:
        k.geometric_(candidate.rate, generator=generator).sub_(1)
    grid = torch.tensor(ages, dtype=torch.float64)
    age = (k + candidate.warmup).clamp(max=ages[-1])
    low = (torch.searchsorted(grid, age, right=True) - 1).clamp(max=len(ages) - 2)
    share = (age - grid[low]) / (grid[low + 1] - grid[low])
    return low + (torch.rand(count, generator=generator, dtype=torch.float64) < share)


# --- activations ------------------------------------------------------------------------------------------------------


class _Activations:
    """What the layers of all networks return for a state: for every layer `[rows, d]`. A context manager.

    A network without known layers counts by the encoded values that it reads.
    """

    def __init__(self, model: JointModel):
        self.model, self.found = model, list[Tensor]()
        self.handles: list = []
        self.projections: dict[tuple[int, int], Tensor] = {}

    def __enter__(self) -> _Activations:
        for name in self.model.names:
            layers = [each for each in self.model.conditional(name).network.modules() if isinstance(each, LAYERS)]
            self.handles += [each.register_forward_hook(lambda layer, given, out: self._keep(out)) for each in layers]
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for handle in self.handles:
            handle.remove()

    def __call__(self, state: State) -> list[Tensor]:
        every = torch.arange(row_count(state), device=self.model.device)
        parts = [self._of_part(take(state, rows)) for rows in every.split(slots_of(self.model, 2**20))]
        return [torch.cat(layer) for layer in zip(*parts, strict=True)]

    def _of_part(self, state: State) -> list[Tensor]:
        self.found = []
        for name in self.model.names:
            before = len(self.found)
            self.model(name, state)
            if len(self.found) == before:
                for value in self.model.encode(self.model.reads(name), state).values():
                    self._keep(value.reshape(len(value), -1))
        return self.found

    def _keep(self, out: Tensor) -> None:
        pooled = (out.float() if out.ndim < 3 else out.float().flatten(2).mean(2)).reshape(len(out), -1)
        width = pooled.shape[1]
        if width > WIDTH:
            key = (len(self.found), width)
            if key not in self.projections:
                drawn = torch.randn(width, WIDTH, generator=torch.Generator().manual_seed(len(self.found)))
                self.projections[key] = drawn.to(pooled.device) / width**0.5
            pooled = pooled @ self.projections[key]
        self.found.append(pooled)


class _Reference:
    """The activations of one layer for held-out rows, with which those of draws are compared."""

    def __init__(self, rows: Tensor):
        self.keep = rows.std(0) > 1e-6 * (1 + rows.abs().amax(0))
        rows = rows[:, self.keep].double()
        self.shift, self.scale = rows.mean(0), rows.std(0)
        self.mean, self.covariance, self.centred = _moments((rows - self.shift) / self.scale)
        self.root = _root(self.covariance)

    def distance(self, draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """F / d, and its derivatives with respect to the weight of every draw, and of every held-out row."""
        if not bool(self.keep.any()):
            return self.scale.new_zeros(()), self.scale.new_zeros(len(draws)), self.scale.new_zeros(len(self.centred))
        draws = (draws[:, self.keep].double() - self.shift) / self.scale
        mean, covariance, centred = _moments(draws)
        middle = self.root @ covariance @ self.root
        values, vectors = torch.linalg.eigh(middle)
        roots = values.clamp(min=0).sqrt()
        gap, d = mean - self.mean, len(mean)
        value = gap.square().sum() + torch.trace(self.covariance + covariance) - 2 * roots.sum()
        inverse = torch.where(values > 1e-9 * values.amax(), 1 / roots.clamp(min=1e-30), 0)
        transport = self.root @ (vectors * inverse) @ vectors.T @ self.root
        by_draw = 2 * centred @ gap + _quadratic(centred, covariance, transport)
        back = torch.linalg.pinv(transport, hermitian=True, rtol=1e-6)
        by_row = -2 * self.centred @ gap + _quadratic(self.centred, self.covariance, back)
        return value / d, by_draw / d, by_row / d


def _quadratic(centred: Tensor, covariance: Tensor, transport: Tensor) -> Tensor:
    """tr((1 - T) (dx dx' - S)) for every row dx."""
    kernel = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device) - transport
    return ((centred @ kernel) * centred).sum(1) - (kernel * covariance).sum()


def _moments(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean = rows.mean(0)
    centred = rows - mean
    return mean, centred.T @ centred / max(1, len(rows) - 1), centred


def _root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T
