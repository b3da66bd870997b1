"""Guidance: some coordinates of a group count for more than they did in learning.

Where latents know all of an image, an attribute has little to say: told otherwise, the chain soon goes on as if it had
not been told. A guided model asks each conditional twice, with the group g as it is and with the coordinates in
question flipped, g', and draws from

    p_w(x_i | x_-i)  ~  p(x_i | g, ...) [p(x_i | g, ...) / p(x_i | g', ...)]^w.

By Bayes' rule the ratio is, up to a constant, p(g | x_i, ...) / p(g' | x_i, ...): the odds for g that x_i gives, which
count w times more. With logits, and with means of Gaussians whose scale does not depend on g, this is

    o_w = o(g) + w (o(g) - o(g'))

of what networks put out, and that is what is done. (So it is not exact for `Real(scale="element")`, whose log-scales
are moved in the same way.) w = 0 is the model itself. For w > 0 the chain tends to another distribution than the
model's, one that shows what the coordinates stand for: good for pictures, not for probabilities.

To edit a state is to change such coordinates and let the guided chain go on from there, for a while: much else stays as
it is, because chains move slowly, which is a vice elsewhere. With a fixed w some rows show what they were told at once,
and are then driven on into caricature, while others need more. So in edits every row has, and every sweep renews, a
weight of its own,

    w = weight sqrt(1 - p(g | rest)),

with the model's own p(g | rest) of the coordinates in question, and a row of which p(g | rest) > 1 - SURE is done: it
stays as it is. (The root, because a rare attribute shows while its p is still small.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from paracond.chain import Chain
from paracond.conditional import Conditional
from paracond.data import InputError, Observed, State, at_least, row_count, take, wide
from paracond.families import Binary, Real
from paracond.model import Context, JointModel
from paracond.runtime.engine import Engine

WEIGHT, SWEEPS = 15.0, 30  # of edits: what faces are told then shows in most of them (RESULTS)
SURE = 0.05  # the doubt with which a row of an edit is done
GUIDANCE = "guidance of {}"  # the context group that a guided model has besides: w, a number per row


class Guided(nn.Module):
    """A network whose output is moved away from what it would be with `flipped` coordinates of group `name`."""

    flipped: Tensor

    def __init__(self, network: nn.Module, reads: Sequence[str], name: str, flipped: Tensor):
        super().__init__()
        self.network, self.name, self.weight = network, name, GUIDANCE.format(name)
        self.reads = (*reads, self.weight)
        self.register_buffer("flipped", flipped)

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        asked = others[self.name]
        other = torch.where(self.flipped, 1 - asked, asked)
        found: Tensor = self.network(others)
        weight = others[self.weight].view(-1, *[1] * (found.ndim - 1))
        return found + weight * (found - self.network({**others, self.name: other}))


def guided(
    model: JointModel, name: str, where: Sequence[int] | Tensor, weight: float, groups: Sequence[str] | None = None
) -> JointModel:
    """`model`, with coordinates `where` (numbers, or a Bool mask) of the binary group `name` counted `weight` times
    more, in the conditionals of `groups` (or all that read it). It shares all parameters with the model. `weight` is
    the default of a context group, "guidance of NAME": where that is given, every row has its own."""
    model.check_names([name])
    family, context = model.variables[name], GUIDANCE.format(name)
    if not isinstance(family, Binary):
        raise InputError(f"guidance is for Binary groups, found {name!r}: {family}")
    check_weight(weight)
    if context in model.variables:
        raise InputError(f"this model is guided by {name!r} already: name all its coordinates at once")
    flipped = _mask(name, family, where).to(model.device)
    readers = _readers(model, name, groups)
    conditionals = {group: model.conditional(group) for group in model.names}
    for group in readers:
        own = conditionals[group]
        if type(own).forward is not Conditional.forward:
            raise InputError(f"{group!r} follows a rule, which cannot be guided: guide models before they are composed")
        network = Guided(own.network, model.reads(group), name, flipped)
        conditionals[group] = Conditional(own.family, network, own.init)
        conditionals[group].shared = own.shared
    return JointModel(conditionals, dict(model.alpha), {**model.context, context: Context(Real(1), weight)})


def check_weight(weight: float) -> None:
    number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    if not (number and 0 <= weight < math.inf):
        raise InputError(f"the weight of guidance must be a number, 0 or more, found {weight!r}")


def edited(
    model: JointModel,
    state: State,
    name: str,
    change: Observed,
    *,
    weight: float = WEIGHT,
    sweeps: int = SWEEPS,
    scan: str = "systematic",
    chunk: int | None = None,
    engine: str | Engine = "auto",
    seed: int = 0,
) -> State:
    """`state` (of drawn rows, or real ones: `sample(model, {"x": images})`) with other values of the binary group
    `name`: those of `change`, where its mask `[*event]` is true. `chunk` rows are edited at a time, each until the
    model hardly doubts that it shows them, `sweeps` at most.
    """
    at_least({"sweeps": (sweeps, 0), "chunk": (1 if chunk is None else chunk, 1)})
    whole, mask = _changed(model, state, name, change)
    asked, generator, parts = guided(model, name, mask, weight), model.generator(seed), []
    size = chunk or (4096 if model.device.type == "cuda" else 256)
    for first in range(0, row_count(whole), size):
        chain = Chain(asked, clamp={name: torch.ones_like(mask)}, scan=scan, engine=engine, generator=generator)
        with asked.eval_mode():
            parts.append(_driven(model, chain, take(whole, slice(first, first + size)), name, mask, weight, sweeps))
    return {group: torch.cat([part[group] for part in parts]) for group in model.variables}


def _changed(model: JointModel, state: Mapping[str, Tensor], name: str, change: Observed) -> tuple[State, Tensor]:
    """The state with its changes, and where they are, `[*event]`."""
    model.check_names([name, *state])
    missing = [group for group in model.variables if group not in state]
    if missing:
        raise InputError(f"the state that is edited lacks {missing[0]!r}: pc.sample draws a whole one")
    if not isinstance(change, Observed):
        change = Observed(change)
    whole, _ = model.validate(state)
    value, mask = torch.as_tensor(change.value).to(whole[name]), change.mask
    mask = torch.ones_like(whole[name][0], dtype=torch.bool) if mask is None else torch.as_tensor(mask).to(model.device)
    model.variables[name].check_shape(name, value)
    if mask.ndim >= whole[name].ndim:
        raise InputError(f"the same coordinates of {name!r} change in every row: its mask has shape [*event]")
    if len(value) not in (1, len(whole[name])):
        raise InputError(f"{len(value)} values of {name!r} for {len(whole[name])} rows that are edited")
    return {**whole, name: torch.where(mask, value, whole[name])}, mask


def _driven(model: JointModel, chain: Chain, rows: State, name: str, mask: Tensor, weight: float, sweeps: int) -> State:
    """Sweeps of the guided chain, of rows that are not done."""
    for _ in range(sweeps):
        doubts = doubt(model, rows, name, mask)
        if bool((doubts < SURE).all()):
            break
        rows[GUIDANCE.format(name)] = weight * doubts.sqrt()
        moved, open = chain.run(rows, chain.sweeps(1)), doubts.flatten() >= SURE
        rows = {group: torch.where(wide(open, value), moved[group], value) for group, value in rows.items()}
    return rows


@torch.no_grad()
def doubt(model: JointModel, state: State, name: str, mask: Tensor) -> Tensor:
    """1 - p(the coordinates `mask` of the binary group `name`, as they are | rest), `[batch, 1]`."""
    p = model(name, state).mean
    right = torch.where(state[name] > 0.5, p, 1 - p)
    return 1 - torch.where(mask, right, 1).flatten(1).prod(1, keepdim=True)


def _readers(model: JointModel, name: str, groups: Sequence[str] | None) -> list[str]:
    readers = [group for group in model.names if name in model.reads(group)]
    if isinstance(groups, str):
        raise InputError(f"groups are a list of names, found {groups!r}")
    deaf = [group for group in groups or () if group not in readers]
    if deaf:
        raise InputError(f"{deaf[0]!r} does not read {name!r}; {', '.join(readers) or 'none'} can be guided by it")
    return readers if groups is None else list(groups)


def _mask(name: str, family: Binary, where: Sequence[int] | Tensor) -> Tensor:
    shape = family.event_shape
    try:
        where = torch.as_tensor(where)
    except (TypeError, ValueError):
        raise InputError(f"where are numbers of coordinates of {name!r}, or a Bool mask, found {where!r}") from None
    if where.dtype == torch.bool:
        if tuple(where.shape) != tuple(shape):
            raise InputError(f"the mask for {name!r} must have shape {list(shape)}, found {list(where.shape)}")
        return where
    count = math.prod(shape)
    if not where.numel():
        raise InputError(f"`where` is empty: pass at least one coordinate of {name!r} to guide")
    if where.is_floating_point() or not bool(((where >= 0) & (where < count)).all()):
        raise InputError(f"{name!r} has coordinates 0 to {count - 1}, found {where.tolist()}")
    mask = torch.zeros(count, dtype=torch.bool)
    mask[where.long().flatten()] = True
    return mask.view(shape)
