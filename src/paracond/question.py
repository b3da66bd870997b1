"""A question p(want | given), valid and ready to be asked, and its answer.

`Question.of` checks everything once: the groups and values that are given, which coordinates of them are known, the
groups that are wanted, and where chains begin. `inference` then asks it, in parts if there are many rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from paracond.chain import Undefined, full_clamp, transition
from paracond.data import (
    Data,
    InputError,
    Mask,
    Observed,
    State,
    as_count,
    as_numbers,
    merge,
    named,
    one_of,
    row_count,
    seeded,
    separated,
    shown,
    take,
)
from paracond.html_table import html_table
from paracond.initializers.initial_state import has_init, initial_state
from paracond.memory import require_room, row_bytes
from paracond.model import JointModel, require_model
from paracond.observers import summary
from paracond.streams import Generator, RowStreams, row_digests

Given = Mapping[str, Tensor | Observed] | Data
Init = str | Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """Says how far to trust an answer. By tours there are `tours`, `error` and `drift`; by chains that never begin anew
    (`regeneration=0`) there are `r_hat`, `ess` and `measured`. An answer without a chain has all of them, and is exact.

    converged: whether every row is in the bounds of `stop`.
    sweeps: sweeps over all unknown groups, warm-up included; with tours, those of all slots.
    init: where chains began: "random", "fitted" or "given".
    tours: the number of tours of each row, `[batch]`.
    error: the largest standard error of a row by group, `[batch]`: of a probability, or of a mean in units of two
        standard deviations.
    drift: how much early and late parts of tours disagree, by group, `[batch]`: about 1 where they do not.
    r_hat: R-hat by group, `[batch]`; the worst over its coordinates. It cannot detect values where no chain began.
    ess: the effective sample size by group, `[batch]`; the smallest over its coordinates.
    measured: sweeps that the marginals average over.
    """

    converged: bool
    sweeps: int
    init: str = "random"
    tours: Tensor | None = None
    error: dict[str, Tensor] = field(default_factory=dict)
    drift: dict[str, Tensor] = field(default_factory=dict)
    r_hat: dict[str, Tensor] = field(default_factory=dict)
    ess: dict[str, Tensor] = field(default_factory=dict)
    measured: int = 0

    def __repr__(self) -> str:
        if self.tours is not None and not bool(self.tours.any()):
            return "<exact, without a chain>"
        parts = [f"{name}: R-hat <= {r.max():.3f}, ess >= {self.ess[name].min():.0f}" for name, r in self.r_hat.items()]
        parts += [f"{name}: error <= {error.max():.3f}" for name, error in self.error.items()]
        began = "" if self.init == "random" else f", from {self.init} initial values"
        ran = f"after {self.sweeps} sweeps{began}"
        if self.tours is not None:
            least, most = int(self.tours.min()), int(self.tours.max())
            tours = f"{least}" if least == most else f"{least} to {most}"
            ran = f"after {tours} tours per row{began}"
        return f"<{'converged' if self.converged else 'not converged'} {ran}; {'; '.join(parts)}>"


@dataclass(frozen=True, eq=False)
class Answer:
    """Holds the answer to a query. All but `diagnostics` are dictionaries from names of wanted groups to tensors.

    The shape of a group's values is `*event`: `64` for `Real(64)`, nothing for `Categorical(10)`. `batch` is the number
    of rows of the question, `chains` that argument of `query`.

    probabilities: of being 1, `[batch, *event]`, for Binary groups; of each class, `[batch, *event, classes]`, for
        Categorical ones. Real groups are not in it.
    mean: means of the marginals, `[batch, *event]`. Categorical groups are not in it.
    std: standard deviations of the marginals, `[batch, *event]`. Categorical groups are not in it.
    decisions: the most probable class or value, or the mean of a Real group, `[batch, *event]`.
    samples: independent draws, `[batch, chains, *event]`.
    diagnostics: how far to trust all this, `Diagnostics`.
    error: standard errors of `probabilities`, and of `mean` for Real groups, of the same shapes. Chains that never
        begin anew give none.
    error_of_std: standard errors of `std`, of the same shapes. Chains that never begin anew give none.

    Values that were given are their own decisions and samples, with errors of 0.
    """

    probabilities: dict[str, Tensor]
    mean: dict[str, Tensor]
    std: dict[str, Tensor]
    decisions: dict[str, Tensor]
    samples: dict[str, Tensor]
    diagnostics: Diagnostics
    error: dict[str, Tensor] = field(default_factory=dict)
    error_of_std: dict[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self._title()}>"

    def _repr_html_(self) -> str:
        kept = ("probabilities", "mean", "std", "decisions", "samples")
        lines = []
        for name in self.samples:
            found = [getattr(self, each).get(name) for each in kept]
            shapes = ["" if value is None else list(value.shape) for value in found]
            error = f"{float(self.error[name].max()):.2g}" if name in self.error else ""
            lines.append((name, *shapes, error))
        return html_table(self._title(), ("group", *kept, "largest error"), lines)

    def _title(self) -> str:
        trust = repr(self.diagnostics)[1:-1]
        if not self.samples:
            return f"Answer about nothing: {trust}"
        rows = row_count(self.samples)
        return f"Answer about {', '.join(self.samples)} of {rows:,} {'row' if rows == 1 else 'rows'}: {trust}"


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and standard deviation of encode(x), `[batch, *encoding]`, and their standard errors where known."""

    mean: Tensor
    std: Tensor
    error: Tensor | None = None
    error_of_std: Tensor | None = None

    def rows(self, which: Tensor) -> Moments:
        """The moments of these rows."""
        error, of_std = (None if each is None else each[which] for each in (self.error, self.error_of_std))
        return Moments(self.mean[which], self.std[which], error, of_std)

    @classmethod
    def joined(cls, parts: list[Moments]) -> Moments:
        """The moments of all rows, from those of some rows each, with errors."""
        names = ("mean", "std", "error", "error_of_std")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, eq=False)
class Question:
    """What is known, with full masks, what is wanted, and where chains begin: all valid, checked once."""

    model: JointModel
    known: State
    mask: Mask
    wanted: list[str]
    fitted: bool
    values: State  # to begin at

    @classmethod
    def of(
        cls, model: JointModel, given: Given | None, want: Iterable[str] | None, rows: int | None, init: Init
    ) -> Question:
        require_model(model)
        if isinstance(init, str):
            one_of("init", init, ("fitted", "random"))
        model = model.eval_copy()
        known, mask = _known(model, {} if given is None else given, rows)
        wanted = _wanted(model, mask, want)
        full_clamp(model, mask)  # refuses masks that a family cannot honour, also where no chain will run
        places = {} if isinstance(init, str) else named("init", init)
        found: State = {}
        if places:
            places = {name: as_numbers(name, value) for name, value in places.items()}
            found, _ = model.validate({name: known[name] for name in model.context} | places)
            if row_count(found) != row_count(known):
                raise InputError(f"init has {row_count(found)} rows, the question has {row_count(known)}")
        return cls(model, known, mask, wanted, init != "random", {name: found[name] for name in places})

    def parts(self, chunk: int) -> list[Question]:
        """The same question about `chunk` rows at a time."""
        return [self.rows(slice(first, first + chunk)) for first in range(0, row_count(self.known), chunk)]

    def rows(self, which: slice | Tensor) -> Question:
        """The same question about some of the rows."""
        known, mask, values = (take(each, which) for each in (self.known, self.mask, self.values))
        return replace(self, known=known, mask=mask, values=values)

    def repeated(self, times: int) -> Question:
        """The same question with every row repeated."""
        known, mask, values = (
            {k: v.repeat_interleave(times, 0) for k, v in each.items()} for each in (self.known, self.mask, self.values)
        )
        return replace(self, known=known, mask=mask, values=values)

    def placed(self) -> tuple[State, Mask]:
        """What is known, else the values to begin at, with masks of where either is."""
        placed = self.mask | {name: torch.ones_like(self.mask[name]) for name in self.values}
        return self.known | merge(self.mask, self.known, self.values), placed

    def first_state(self, generator: Generator) -> State:
        """What is known, else the values to begin at, and all else given these."""
        known, placed = self.placed()
        rows, again = row_count(self.known), bool(self.values)
        return initial_state(self.model, rows, generator, known, placed, fitted=self.fitted, again=again)

    @property
    def init(self) -> str:
        """Where chains begin: "random", "fitted" or "given"."""
        return "given" if self.values else "fitted" if self.fitted and has_init(self.model) else "random"

    def digests(self, seed: int) -> np.ndarray:
        """128 bits for every row, uint64 `[batch, 2]`, from its content and the seed; equal rows have the same."""
        seeded(seed)  # refuses what is no seed
        content = dict(self.mask)
        for name, mask in self.mask.items():
            content[f"known {name}"] = torch.where(mask, self.known[name], 0)
        for name, value in self.values.items():
            content[f"begin {name}"] = value
        return row_digests(content, seed)

    def relevant(self) -> tuple[dict[str, Tensor], Tensor]:
        """What a chain must redraw in every row, Bool `[batch]` by group, and in which rows no chain is needed.

        The unknown groups matter that are wanted, that these read, and so on. If none of them reads another unknown
        group, their conditionals are the answer.
        """
        count, names = row_count(self.known), self.model.names
        unknown = {name: ~self.mask[name].reshape(count, -1).all(1) for name in names}
        reads = {name: [other for other in self.model.reads(name) if other in unknown] for name in names}
        matters = {name: unknown[name] & (name in self.wanted) for name in names}
        uncertain = {name: torch.zeros_like(matters[name]) for name in names}
        for _ in names:  # the longest path
            for name, others in reads.items():
                for other in others:
                    uncertain[name] = uncertain[name] | (matters[name] & unknown[other])
                    matters[other] = matters[other] | (matters[name] & unknown[other])
        return matters, ~torch.stack(list(uncertain.values())).any(0)

    @torch.no_grad()
    def directly(self, draws: int, streams: RowStreams) -> tuple[dict[str, Moments], State, Tensor]:
        """Marginals and draws where everything that the wanted groups read is given: those of their conditionals.

        The last is `first` of `Undefined`.
        """
        model, known, mask = self.model, self.known, self.mask
        undefined = Undefined(model, row_count(known))
        state = initial_state(model, row_count(known), streams, known, mask, fitted=False)
        moments, samples = {}, {}
        for name in self.wanted:
            moments[name], samples[name] = self.certain(name), self.repeatedly(name, draws)
            if not bool(mask[name].all()):
                own = streams.at(model.index(name), 1)
                move = transition(model, name, state, mask[name], own)
                undefined.see(move)
                mean, variance = summary(model.variables[name], move)
                moments[name] = Moments(mean, variance.sqrt(), torch.zeros_like(mean), torch.zeros_like(mean))
                drawn = [move.distribution.redraw(state[name], mask[name], own) for _ in range(draws)]
                samples[name] = torch.stack(drawn, 1)
        return moments, samples, undefined.first

    def certain(self, name: str) -> Moments:
        """The moments of a value that is known."""
        encoded = self.model.variables[name].encode(self.known[name]).to(self.model.dtype)
        none = torch.zeros_like(encoded)
        return Moments(encoded, none, none, none)

    def repeatedly(self, name: str, draws: int) -> Tensor:
        """Draws of a value that is known, `[batch, draws, *event]`."""
        known = self.known[name].unsqueeze(1)
        return known.expand(-1, draws, *known.shape[2:])

    def answer(self, moments: Mapping[str, Moments], samples: State, diagnostics: Diagnostics) -> Answer:
        """An answer from moments and draws of every wanted group."""
        found: dict[str, dict[str, Tensor]] = {key: {} for key in ("probabilities", "mean", "std", "decisions")}
        errors: dict[str, dict[str, Tensor]] = {"error": {}, "error_of_std": {}}
        for name, each in moments.items():
            require_finite(name, each.mean, each.std, each.error, each.error_of_std)
            family = self.model.variables[name]
            decided = family.decide(each.mean).to(self.known[name].dtype)
            found["decisions"][name] = torch.where(self.mask[name], self.known[name], decided)
            numbers = family.encoding_shape == family.event_shape
            if family.finite:
                found["probabilities"][name] = each.mean
            if numbers:
                found["mean"][name], found["std"][name] = each.mean, each.std
            if each.error is not None and (numbers or family.finite):
                errors["error"][name] = each.error
            if each.error_of_std is not None and numbers:
                errors["error_of_std"][name] = each.error_of_std
        return Answer(**found, samples=samples, diagnostics=diagnostics, **errors)


def require_finite(name: str, *numbers: Tensor | None) -> None:
    """Refuse rows in which something about a group is NaN or infinite."""
    for each in [each for each in numbers if each is not None and each.is_floating_point()]:
        bad = ~each.reshape(len(each), -1).isfinite().all(1)
        if bool(bad.any()):
            rows = bad.nonzero().squeeze(1).tolist()
            listed = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
            raise InputError(
                f"{name!r} is NaN or infinite in {len(rows)} of {len(bad)} rows ({listed}): leave these rows out, or "
                "give the group bounds or a ceiling"
            )


def _known(model: JointModel, given: Given, rows: int | None) -> tuple[State, Mask]:
    """What is given, as values and full masks of all variables; single rows are repeated."""
    rows = None if rows is None else as_count("rows", rows)
    if isinstance(given, Data):
        given = {name: Observed(value, given.mask[name]) for name, value in given.state.items()}
    observed = {k: v if isinstance(v, Observed) else Observed(v) for k, v in named("given", given).items()}
    model.check_names(observed)
    values, masks = separated({k: v.value for k, v in observed.items()}, {k: v.mask for k, v in observed.items()})
    for name, value in values.items():  # before rows are repeated
        model.variables[name].check_shape(name, value)
    whole = [m for k, m in masks.items() if m.ndim == values[k].ndim]  # masks that have rows of their own
    batch = max([len(t) for t in [*values.values(), *whole]], default=1)
    if batch == 0:
        raise InputError("given must have at least one row, found none")
    if rows not in (None, 1) and batch not in (1, rows):
        raise InputError(f"rows={rows}, and given has {batch} rows: leave out rows, or give one row for all")
    batch = batch if rows is None else max(batch, rows)
    require_room(f"rows={batch}", 2 * batch * row_bytes(model), model.device)  # what is known, and what is drawn
    spread = {k: v.expand(batch, *v.shape[1:]) if len(v) == 1 else v for k, v in values.items()}
    of_row = {k for k, m in masks.items() if tuple(m.shape) == (1,) and len(values[k]) == 1 < values[k].ndim}
    masks |= {k: masks[k].expand(batch) for k in of_row if tuple(values[k].shape[1:]) != (1,)}
    return model.validate(spread, masks, batch)


def _wanted(model: JointModel, mask: Mask, want: Iterable[str] | None) -> list[str]:
    if want is None:
        return [name for name in model.names if not bool(mask[name].all())]
    if not isinstance(want, Iterable) or isinstance(want, (torch.Tensor, np.ndarray)):
        raise InputError(f"want must be names of groups, found {shown(want)}")
    wanted = [want] if isinstance(want, str) else list(want)
    if not wanted:
        raise InputError("want is empty: name at least one group")
    model.check_names(wanted, "want")
    return wanted
