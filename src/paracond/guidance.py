"""Guidance: some coordinates of a group count for more than they did in learning.

Where latents describe an image completely, an attribute has little influence: if it is changed, the chain soon returns
to the image it had. A guided model evaluates each conditional twice, with the group g as it is and with some of its
coordinates flipped, g', and draws from

    p_w(x_i | x_-i)  ~  p(x_i | g, ...) [p(x_i | g, ...) / p(x_i | g', ...)]^w.

By Bayes' rule the ratio is, up to a constant, p(g | x_i, ...) / p(g' | x_i, ...): the odds for g given x_i, which
count w times more. For logits, and for means of Gaussians whose scale does not depend on g, the outputs of networks are

    o_w = o(g) + w (o(g) - o(g')).

(For `Real(scale="element")` this is an approximation: log-scales are moved in the same way.) w = 0 is the model itself.
For w > 0 the chain has another limiting distribution than the model, one that shows the coordinates clearly: good for
pictures, not for probabilities.

An edit changes such coordinates and continues the guided chain for a while. Chains move slowly, so most of the rest
stays as it is. With a fixed w some rows show the change at once and then turn into caricatures, while others need
more. So every row has its own weight, renewed in every sweep,

    w = weight sqrt(1 - p(g | rest)),

with the model's own p(g | rest) of the changed coordinates. A row with p(g | rest) > 1 - SURE is done and stays as it
is. (The root, because a rare attribute shows while its p is still small.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from paracond.chain import Chain, max_rows
from paracond.conditional import Conditional
from paracond.data import (
    InputError,
    Observed,
    State,
    as_count,
    as_float,
    as_numbers,
    row_count,
    shown,
    take,
    wide,
)
from paracond.families import Binary, Real
from paracond.model import Context, JointModel, require_model
from paracond.runtime.engine import Engine

HEAVIEST = 1e6  # any type of numbers has it
WEIGHT, SWEEPS = 15.0, 30  # of edits: a changed attribute then shows in most faces (RESULTS)
SURE = 0.05  # an edit of a row is done when 1 - p(g | rest) is below this
GUIDANCE = "guidance of {}"  # the context group of a guided model with w, a number per row


class Guided(nn.Module):
    """A network whose output is moved away from its output for `flipped` coordinates of group `name`."""

    flipped: Tensor

    def __init__(self, network: nn.Module, reads: Sequence[str], name: str, flipped: Tensor):
        super().__init__()
        self.network, self.name, self.weight = network, name, GUIDANCE.format(name)
        self.reads = (*reads, self.weight)
        self.register_buffer("flipped", flipped)

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        value = others[self.name]
        other = torch.where(self.flipped, 1 - value, value)
        found: Tensor = self.network(others)
        weight = others[self.weight].view(-1, *[1] * (found.ndim - 1))
        return found + weight * (found - self.network({**others, self.name: other}))


def guided(model: JointModel, name: str, where: Sequence[int] | Tensor, weight: float) -> JointModel:
    """Make a model in which some coordinates of a binary group count for more than they did in learning.

    It shares all parameters with `model`. For one weight per row, give the context group "guidance of NAME".

    model: a trained `JointModel`.
    name: the binary group.
    where: its coordinates, as numbers or as a Bool mask `[*event]`.
    weight: how much more they count; 0 is the model itself.
    """
    require_model(model)
    model.check_names([name], "name")
    family, context = model.variables[name], GUIDANCE.format(name)
    if not isinstance(family, Binary):
        raise InputError(f"guidance is for Binary groups, found {name!r}: {family}")
    weight = check_weight(weight)
    if context in model.variables:
        raise InputError(f"this model is guided by {name!r} already: name all its coordinates at once")
    flipped = _mask(name, family, where).to(model.device)
    conditionals = {group: model.conditional(group) for group in model.names}
    for group in [group for group in model.names if name in model.reads(group)]:
        own = conditionals[group]
        if type(own).forward is not Conditional.forward:
            raise InputError(f"{group!r} follows a rule, which cannot be guided: guide models before they are composed")
        network = Guided(own.network, model.reads(group), name, flipped)
        conditionals[group] = Conditional(own.family, network, own.init)
        conditionals[group].shared = own.shared
    return JointModel(conditionals, dict(model.alpha), {**model.context, context: Context(Real(1), weight)})


def check_weight(weight: float) -> float:
    """A weight, or refuse what is not a number from 0 to `HEAVIEST`."""
    kind = f"a number from 0 to {HEAVIEST:g}"
    number = as_float("the weight of guidance", weight, kind)
    if not 0 <= number <= HEAVIEST:
        raise InputError(f"the weight of guidance must be {kind}, found {shown(weight)}")
    return number


def edited(
    model: JointModel,
    state: State,
    name: str,
    change: Observed,
    *,
    weight: float = WEIGHT,
    sweeps: int = SWEEPS,
    chunk: int | None = None,
    engine: str | Engine = "auto",
    seed: int = 0,
) -> State:
    """Change some coordinates of a binary group in states, and continue the guided chain until the change shows.

    Main arguments:

    model: a trained `JointModel`.
    state: whole states, drawn by `sample(model)` or completed by `sample(model, {"x": images})`.
    name: the binary group to change.
    change: `Observed(value, mask)`: the new values, `[rows, *event]` or one row for all, and their mask `[*event]`.
    weight: how much more the changed coordinates count than they did in learning.
    sweeps: the largest number of sweeps. A row stops when the model is sure of the change.

    Other arguments:

    chunk: rows that run at a time (default: as many as suit the device).
    engine: how chains run, as in `query`.
    seed: fixes all randomness.
    """
    require_model(model)
    sweeps, chunk = as_count("sweeps", sweeps, 0), None if chunk is None else as_count("chunk", chunk)
    weight = check_weight(weight)
    whole, mask = _changed(model, state, name, change)
    strong, generator, parts = guided(model, name, mask, weight).eval_copy(), model.generator(seed), []
    asked, size = model.eval_copy(), chunk or max_rows(model, 4096 if model.device.type == "cuda" else 256)
    for first in range(0, row_count(whole), size):
        clamp = {name: torch.ones_like(mask)}
        chain = Chain(strong, clamp=clamp, scan="systematic", engine=engine, generator=generator)
        parts.append(_driven(asked, chain, take(whole, slice(first, first + size)), name, mask, weight, sweeps))
    return {group: torch.cat([part[group] for part in parts]) for group in model.variables}


def _changed(model: JointModel, state: Mapping[str, Tensor], name: str, change: Observed) -> tuple[State, Tensor]:
    """Return the changed state, and a mask `[*event]` of the changes."""
    model.check_names([name], "name")
    whole = model.whole_state(state)
    if not isinstance(change, Observed):
        change = Observed(change)
    new, mask = as_numbers("change.value", change.value), change.mask
    mask = torch.ones_like(whole[name][0], dtype=torch.bool) if mask is None else as_numbers("change.mask", mask)
    mask = mask.to(model.device)
    model.variables[name].check_shape(name, new)
    if mask.dtype != torch.bool:
        raise InputError(f"change.mask must be boolean, found {mask.dtype}")
    if mask.ndim and tuple(mask.shape) != model.variables[name].event_shape:
        shape, found = list(whole[name].shape[1:]), list(mask.shape)
        raise InputError(f"change.mask must have the shape {shape} of one row of {name!r}, found {found}")
    if len(new) not in (1, len(whole[name])):
        raise InputError(f"change.value of {name!r} must have 1 or {len(whole[name])} rows, found {len(new)}")
    mask = mask.expand(whole[name].shape[1:])
    value = model.validate({name: new, **_context_rows(model, whole, len(new))}, {name: mask})[0][name]
    return {**whole, name: torch.where(mask, value, whole[name])}, mask


def _context_rows(model: JointModel, state: State, rows: int) -> State:
    return {name: state[name][:1].expand(rows, *state[name].shape[1:]) for name in model.context}


def _driven(model: JointModel, chain: Chain, rows: State, name: str, mask: Tensor, weight: float, sweeps: int) -> State:
    """Run sweeps of the guided chain, in rows that are not done."""
    for _ in range(sweeps):
        doubts = doubt(model, rows, name, mask)
        if bool((doubts < SURE).all()):
            break
        rows[GUIDANCE.format(name)] = weight * doubts.sqrt()
        moved, open = chain.advance(rows, chain.sweeps(1)), doubts.flatten() >= SURE
        rows = {group: torch.where(wide(open, value), moved[group], value) for group, value in rows.items()}
    if chain.undefined is not None:
        chain.undefined.refuse()
    return rows


@torch.no_grad()
def doubt(model: JointModel, state: State, name: str, mask: Tensor) -> Tensor:
    """Return 1 - p(the coordinates `mask` of the binary group `name` | rest), `[batch, 1]`."""
    p = model(name, state).mean
    right = torch.where(state[name] > 0.5, p, 1 - p)
    return 1 - torch.where(mask, right, 1).flatten(1).prod(1, keepdim=True)


def _mask(name: str, family: Binary, where: Sequence[int] | Tensor) -> Tensor:
    shape = family.event_shape
    try:
        where = as_numbers("where", where)
    except InputError:
        wanted = f"numbers of coordinates of {name!r}, or a Bool mask"
        raise InputError(f"where must be {wanted}, found {shown(where)}") from None
    if where.dtype == torch.bool and tuple(where.shape) != tuple(shape):
        raise InputError(f"the mask for {name!r} must have shape {list(shape)}, found {list(where.shape)}")
    count = math.prod(shape)
    if not where.numel() or (where.dtype == torch.bool and not bool(where.any())):
        raise InputError(f"`where` is empty: pass at least one coordinate of {name!r} to guide")
    if where.dtype == torch.bool:
        return where
    if where.is_floating_point() or not bool(((where >= 0) & (where < count)).all()):
        raise InputError(f"{name!r} has coordinates 0 to {count - 1}, found {where.tolist()}")
    mask = torch.zeros(count, dtype=torch.bool)
    mask[where.long().flatten()] = True
    return mask.view(shape)
