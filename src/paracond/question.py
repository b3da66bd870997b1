"""A question p(want | given), valid and ready to be asked, and its answer.

`Question.of` checks everything once: the groups and values that are given, which coordinates of them are known, the
groups that are wanted, and where chains begin. `inference` then asks it, in parts if there are many rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paracond.chain import full_clamp, transition
from paracond.data import InputError, Mask, Observed, State, as_numbers, merge, named, one_of, row_count, take
from paracond.initializers.initial_state import initial_state
from paracond.model import JointModel
from paracond.observers import summary

Given = Mapping[str, Tensor | Observed]
Init = str | Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """Says how well the chains of an answer have converged.

    r_hat: R-hat by group, `[batch]`; the worst over its coordinates.
    ess: the effective sample size by group, `[batch]`; the smallest over its coordinates.
    sweeps: sweeps over all unknown groups, warm-up included.
    measured: sweeps that the marginals average over.
    converged: whether every row is in bounds.
    init: where chains began: "random", "fitted" or "given". R-hat cannot detect values where no chain began.
    """

    r_hat: dict[str, Tensor]
    ess: dict[str, Tensor]
    sweeps: int
    measured: int
    converged: bool
    init: str = "random"

    def __repr__(self) -> str:
        worst = {name: f"R-hat <= {v.max():.3f}, ess >= {self.ess[name].min():.0f}" for name, v in self.r_hat.items()}
        listed = "; ".join(f"{name}: {text}" for name, text in worst.items())
        began = "" if self.init == "random" else f", from {self.init} initial values"
        return f"<{'converged' if self.converged else 'not converged'} after {self.sweeps} sweeps{began}; {listed}>"


@dataclass(frozen=True, eq=False)
class Answer:
    """Holds the answer to a query, in dictionaries by the names of the wanted groups.

    probabilities: marginal probabilities, `[batch, *event]` for Binary, `[batch, *event, classes]` for Categorical.
    mean: means of the marginals of Binary and Real groups, `[batch, *event]`.
    std: standard deviations of the same marginals, `[batch, *event]`.
    decisions: the most probable class or value, or the mean of a Real group, `[batch, *event]`.
    samples: one draw per chain, `[batch, chains, *event]`.
    diagnostics: how well the chains have converged.
    """

    probabilities: dict[str, Tensor]
    mean: dict[str, Tensor]
    std: dict[str, Tensor]
    decisions: dict[str, Tensor]
    samples: dict[str, Tensor]
    diagnostics: Diagnostics

    def __repr__(self) -> str:
        return f"<Answer about {', '.join(self.samples)}: {self.diagnostics!r}>"


def joined(answers: list[Answer]) -> Answer:
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
        found[0].init,
    )
    probabilities, mean, std = (rows(name, answers) for name in ("probabilities", "mean", "std"))
    return Answer(probabilities, mean, std, rows("decisions", answers), rows("samples", answers), diagnostics)


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
    def of(cls, model: JointModel, given: Given | None, want: Iterable[str] | None, rows: int, init: Init) -> Question:
        if not isinstance(model, JointModel):
            raise InputError(f"the model must be a JointModel, found {type(model).__name__}")
        if isinstance(init, str):
            one_of("init", init, ("fitted", "random"))
        known, mask = _known(model, {} if given is None else given, rows)
        wanted = _wanted(model, mask, want)
        full_clamp(model, mask)  # refuses masks that a family cannot honour, also where no chain will run
        places = {} if isinstance(init, str) else named("init", init)
        found: State = {}
        if places:
            found, _ = model.validate({name: known[name] for name in model.context} | places)
            if row_count(found) != row_count(known):
                raise InputError(f"init has {row_count(found)} rows, the question has {row_count(known)}")
        return cls(model, known, mask, wanted, init != "random", {name: found[name] for name in places})

    def parts(self, chunk: int) -> list[Question]:
        """The same question about `chunk` rows at a time."""
        slices = [slice(first, first + chunk) for first in range(0, row_count(self.known), chunk)]
        pieces = [(take(self.known, rows), take(self.mask, rows), take(self.values, rows)) for rows in slices]
        return [replace(self, known=known, mask=mask, values=values) for known, mask, values in pieces]

    def repeated(self, times: int) -> Question:
        """The same question with every row repeated."""
        known, mask, values = (
            {k: v.repeat_interleave(times, 0) for k, v in each.items()} for each in (self.known, self.mask, self.values)
        )
        return replace(self, known=known, mask=mask, values=values)

    def first_state(self, generator: torch.Generator) -> State:
        """What is known, else the values to begin at, and all else given these."""
        placed = self.mask | {name: torch.ones_like(self.mask[name]) for name in self.values}
        known, rest = self.known | merge(self.mask, self.known, self.values), bool(self.values)
        rows = row_count(self.known)
        return initial_state(self.model, rows, generator, known, placed, fitted=self.fitted, redraw_rest=rest)

    def relevant(self) -> tuple[set[str], bool]:
        """The unknown groups that matter for the wanted ones, and whether none of them reads another unknown one."""
        unknown = {name for name in self.model.names if not bool(self.mask[name].all())}
        relevant: set[str] = set()
        waiting, direct = [name for name in self.wanted if name in unknown], True
        while waiting:
            name = waiting.pop()
            if name in relevant:
                continue
            relevant.add(name)
            uncertain = unknown & set(self.model.reads(name))
            direct = direct and not uncertain
            waiting += uncertain
        return relevant, direct

    @torch.no_grad()
    def direct_answer(self, chains: int, generator: torch.Generator) -> Answer:
        """The conditionals themselves, where everything that they read is given."""
        model, known, mask = self.model, self.known, self.mask
        state = initial_state(model, row_count(known), generator, known, mask, fitted=False)
        moments, samples = {}, {}
        for name in self.wanted:
            moments[name] = self.certain(name)
            samples[name] = known[name].unsqueeze(1).expand(-1, chains, *known[name].shape[1:])
            if not bool(mask[name].all()):
                move = transition(model, name, state, mask[name], generator)
                moments[name] = summary(model.variables[name], move)
                draws = [move.distribution.redraw(state[name], mask[name], generator) for _ in range(chains)]
                samples[name] = torch.stack(draws, 1)
        certain = torch.ones(row_count(known), dtype=torch.float64, device=model.device)
        unknown = [name for name in self.wanted if not bool(mask[name].all())]
        r_hat, ess = dict.fromkeys(unknown, certain), dict.fromkeys(unknown, certain * torch.inf)
        return self.assembled(moments, samples, Diagnostics(r_hat, ess, 0, 0, True))

    def certain(self, name: str) -> tuple[Tensor, Tensor]:
        """Mean and variance of encode(x) for a value that is known."""
        encoded = self.model.variables[name].encode(self.known[name]).to(self.model.dtype)
        return encoded, torch.zeros_like(encoded)

    def assembled(
        self, moments: Mapping[str, tuple[Tensor, Tensor]], samples: State, diagnostics: Diagnostics
    ) -> Answer:
        """An answer from means and variances of encode(x), and draws."""
        probabilities, mean, std, decisions = {}, {}, {}, {}
        for name, (first, variance) in moments.items():
            family = self.model.variables[name]
            decided = family.decide(first).to(self.known[name].dtype)
            decisions[name] = torch.where(self.mask[name], self.known[name], decided)
            if family.finite:
                probabilities[name] = first
            if family.encoding_shape == family.event_shape:
                mean[name], std[name] = first, variance.sqrt()
        return Answer(probabilities, mean, std, decisions, samples, diagnostics)


def _known(model: JointModel, given: Given, rows: int) -> tuple[State, Mask]:
    """What is given, as values and full masks of all variables; single rows are repeated."""
    parts = named("given", given)
    observed = {k: v if isinstance(v, Observed) else Observed(v) for k, v in parts.items()}
    values = {k: as_numbers(k, v.value) for k, v in observed.items()}
    masks = {k: as_numbers(f"the mask of {k}", v.mask) for k, v in observed.items() if v.mask is not None}
    model.check_names(values)
    for name, value in values.items():  # before rows are repeated
        model.variables[name].check_shape(name, value)
    whole = [m for k, m in masks.items() if m.ndim == values[k].ndim]  # masks that have rows of their own
    batch = max([len(t) for t in [*values.values(), *whole]], default=rows)
    if batch == 0:
        raise InputError("given must have at least one row, found none")
    spread = {k: v.expand(batch, *v.shape[1:]) if len(v) == 1 else v for k, v in values.items()}
    return model.validate(spread, masks, batch)


def _wanted(model: JointModel, mask: Mask, want: Iterable[str] | None) -> list[str]:
    if want is None:
        return [name for name in model.names if not bool(mask[name].all())]
    if not isinstance(want, Iterable):
        raise InputError(f"want must be names of groups, found {want!r}")
    wanted = [want] if isinstance(want, str) else list(want)
    if not wanted:
        raise InputError("want is empty: name at least one group")
    model.check_names(wanted)
    return wanted
