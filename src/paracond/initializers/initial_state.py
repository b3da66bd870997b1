"""The first state of a chain, x ~ p_0(x | x_K), given what is known, x_K.

Groups without an initializer begin at random values of their family. Where at least one group has an initializer
p_0(x_i | x_r), with r the groups that it reads, the first state is drawn in this order:

1. classes g that initializers read and that are not known: p_0(g | x_K) is proportional to the product of p_0(x_K | g)
   over all groups x that are known in part (all g are equally probable a priori; of several classes, each is drawn
   given the current values of the others);
2. groups with an initializer, x_i ~ p_0(x_i | x_iK, x_r), those first that others read. A group that another
   initializer reads is drawn given the known parts of both;
3. all other groups, each once from its conditional.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paracond.chain import transition
from paracond.conditional import Conditional, Initializer
from paracond.data import Data, InputError, Mask, State, as_count, at_least, merge, named, seeded, shown, true_or_false
from paracond.distributions import Distribution
from paracond.families import is_class
from paracond.memory import require_room, row_bytes
from paracond.model import JointModel
from paracond.networks.arguments import names_of
from paracond.streams import Generator, RowStreams, at

USES = ("random", "class", "init", "rest")  # what the first state draws of a group


@torch.no_grad()
def initial_state(
    model: JointModel,
    rows: int,
    generator: Generator,
    known: State | None = None,
    mask: Mask | None = None,
    *,
    fitted: bool = True,
    again: bool = False,
) -> State:
    """Draw a whole state of `rows` rows: `known` where `mask` is true, context groups at their defaults, the rest
    drawn.

    known, mask: values and full masks by name, as `JointModel.validate` returns them.
    fitted: draw from the initializers of the model; False begins at random values.
    again: redraw groups without an initializer once, even if no group has one.
    """
    _require_model(model)
    rows = as_count("rows", rows)
    require_room(f"rows={rows}", 2 * rows * row_bytes(model), model.device)
    true_or_false("fitted", fitted)
    true_or_false("again", again)
    known, mask = (named(what, {} if found is None else found) for what, found in (("known", known), ("mask", mask)))
    model.check_names([*known, *mask])
    _require_whole(model, "known", known, known, rows)
    for name, value in known.items():
        _require_mask(name, mask.get(name), value)
    state = merge(mask, known, blank_state(model, rows, generator, known))
    missing = [name for name in model.names if name not in mask or not bool(mask[name].all())]
    seen = {name: one_row(m) for name, m in mask.items() if bool(m.any())}
    drawn = draw_groups(model, state, seen, missing, generator) if fitted else set()
    if drawn or again:
        redraw_rest(model, state, mask, [name for name in missing if name not in drawn], generator)
    return state


def blank_state(model: JointModel, rows: int, generator: Generator, known: State) -> State:
    """Random values of every group that has a conditional; context groups as they are known, or at their defaults."""
    state = random_state(model, rows, generator)
    for name, context in model.context.items():  # known everywhere, if at all
        state[name] = known[name] if name in known else context.values(name, rows, model.dtype, model.device)
    return state


def redraw_rest(model: JointModel, state: State, mask: Mask, names: Sequence[str], generator: Generator) -> None:
    """Redraw these groups once each, in place, where `mask` is not true."""
    for name in names:
        state[name] = transition(model, name, state, mask.get(name), _place(model, "rest", name, generator)).value


def random_state(model: JointModel, rows: int, generator: Generator) -> State:
    """Random values of every group that has a conditional. Copies nothing from the host, so it can be recorded."""
    _require_model(model)
    rows = as_count("rows", rows)
    require_room(f"rows={rows}", rows * row_bytes(model), model.device)
    if not isinstance(generator, (torch.Generator, RowStreams)):
        raise InputError(f"generator must be a torch.Generator, found {shown(generator)}")
    found = {}
    for name in model.names:
        found[name] = model.variables[name].random(rows, _place(model, "random", name, generator), model.dtype)
    return found


def draw_groups(model: JointModel, state: State, mask: Mask, missing: Sequence[str], generator: Generator) -> set[str]:
    """Draw the `missing` groups that have an initializer, and classes that these read, in place.

    mask: of each group, full or one row for all rows; absent where nothing is known.
    Returns the names of all groups that need no further draw. Never waits for the host, so it can be recorded.
    """
    initialized = [n for n in model.names if model.conditional(n).init is not None]
    read = {k for n in initialized for k in model.init_reads(n)}
    classes = [k for k in missing if k in read and is_class(model.variables[k])]
    needed = [n for n in initialized if n in missing or any(k in classes for k in model.init_reads(n))]
    parts = {n: _init(model, n).observe(state[n], mask[n]) for n in needed if n in mask}
    for name in classes:
        posterior = _class_posterior(
            model, name, {n: p for n, p in parts.items() if name in model.init_reads(n)}, state
        )
        if posterior is not None:
            stream = _place(model, "class", name, generator)
            state[name] = posterior.redraw(state[name], mask.get(name), stream)
    for name in _parents_first(model, [n for n in initialized if n in missing]):
        stream = _place(model, "init", name, generator)
        reader = next((n for n in parts if n in missing and name in model.init_reads(n)), None)
        if reader is None:
            others, rows = model.encode(model.init_reads(name), state), len(state[name])
            drawn = _init(model, name).sample(others, stream, rows, parts.get(name))
        else:
            own = (state[name], mask[name]) if name in mask else None
            drawn = _draw_parent(model, reader, name, state, parts[reader], own, stream)
        state[name] = drawn.to(state[name].dtype)
    return {*initialized, *classes}


def draw_group(model: JointModel, name: str, state: State, mask: Tensor, generator: Generator) -> Tensor:
    """Draw group `name` from its initializer, given its own values where `mask` is true and the groups that it
    reads."""
    init, others = _given(model, name, state)
    _require_mask(name, mask, state[name])
    if not isinstance(generator, (torch.Generator, RowStreams)):
        raise InputError(f"generator must be a torch.Generator, found {shown(generator)}")
    return init.sample(others, generator, len(state[name]), init.observe(state[name], mask))


def score(model: JointModel, name: str, state: Mapping[str, Tensor]) -> Tensor:
    """log p_0(x_name | the rest of the state), `[batch]`, or a lower bound of it."""
    init, others = _given(model, name, state)
    return init.score(model.variables[name].store(state[name], model.dtype), others)


@torch.no_grad()
def log_density(model: JointModel, state: State, mask: Mask, draws: int, seed: int) -> Tensor:
    """log p_0 of what is observed of the groups that have an initializer, `[batch]`, float64.

    mask: full masks of all groups.
    draws: groups that initializers read and that are not observed are summed out, by so many draws from p_0 itself.
    """
    _require_model(model)
    at_least({"draws": (draws, 1)})
    seeded(seed)
    state, mask = named("state", state), named("mask", mask)
    model.check_names([*state, *mask], "state")
    _require_whole(model, "state", state, model.variables)
    for name in model.variables:
        _require_mask(name, mask.get(name), state[name])
    names = [name for name in model.names if model.conditional(name).init is not None and bool(mask[name].any())]
    if not names:
        raise InputError("no observed group of the model has an initializer: pass init= to a Conditional")
    read = {k for name in names for k in model.init_reads(name)}
    parts = {name: _init(model, name).observe(state[name], one_row(mask[name])) for name in names}
    hidden = [k for k in model.names if k in read and not bool(mask[k].all())]
    first = initial_state(model, draws, seeded(seed, model.device)) if hidden else {}
    drawn = torch.cat([first[k].reshape(draws, -1).double() for k in hidden], 1) if hidden else None
    rows = len(next(iter(state.values())))
    if drawn is None:
        places, weights = torch.zeros(1, dtype=torch.long), torch.ones(1, dtype=torch.float64)
    else:  # equal draws count together: of a class there are few
        _, which, counts = drawn.unique(dim=0, return_inverse=True, return_counts=True)
        places = torch.stack([(which == k).nonzero()[0, 0] for k in range(len(counts))])
        weights = counts.double() / draws
    scores = []
    for place in places.tolist():
        supposed = dict(state)
        for k in hidden:
            supposed[k] = torch.where(mask[k], state[k], first[k][place].expand(rows, *first[k].shape[1:]))
        found = [_init(model, n).log_density(model.encode(model.init_reads(n), supposed), parts[n]) for n in names]
        scores.append(torch.stack(found).double().sum(0).expand(rows))
    return torch.stack(scores, 1).add(weights.log().to(scores[0].device)).logsumexp(1)


def fit(model: JointModel, data: Data, seed: int = 0, names: Sequence[str] | None = None) -> None:
    """Fit the initializers of a model to data; they do not change in training after that.

    data: each initializer is fitted to the rows in which its group, and all that it reads, are known.
    names: fit only these groups (default: all that have an initializer). Others learn with their conditionals.
    """
    _require_model(model)
    if not isinstance(data, Data):
        raise InputError(f"data must be Data(values, mask), found {shown(data)}")
    seeded(seed)
    chosen = model.names if names is None else names_of("names", names)
    model.check_names(chosen)
    values, mask = model.validate(data.state, data.mask)
    for name in [n for n in model.names if model.conditional(n).init is not None and n in chosen]:
        reads = model.init_reads(name)
        known = torch.stack([mask[k].reshape(len(data), -1).all(1) for k in (name, *reads)]).all(0)
        rows = {k: values[k][known] for k in (name, *reads)}
        _init(model, name).fit(rows[name], model.encode(reads, rows), model.generator(seed))


def with_init(model: JointModel, name: str, init: Initializer | None) -> JointModel:
    """Copy a model, with another initializer for group `name`. The limiting distribution is the same."""
    _require_model(model)
    own = model.conditional(name)
    Conditional(own.family, own.network, init)  # refuses what is no initializer
    other = copy.deepcopy(model)
    other.conditional(name).init = init
    return other.to(model.device, model.dtype)


def has_init(model: JointModel) -> bool:
    """Whether any group of the model has an initializer."""
    _require_model(model)
    return any(model.conditional(name).init is not None for name in model.names)


def one_row(mask: Tensor) -> Tensor:
    """The first row of a mask that is the same in all rows; else the mask itself."""
    return mask[:1] if bool((mask == mask[:1]).all()) else mask


def _require_model(model: JointModel) -> None:
    if not isinstance(model, JointModel):
        raise InputError(f"model must be a JointModel, found {shown(model)}")


def _require_whole(
    model: JointModel, what: str, state: Mapping[str, Tensor], names: Iterable[str], rows: int | None = None
) -> None:
    """Refuse a state that lacks groups, or has them in another form. Values are not read: this can be recorded."""
    for name in names:
        value = state.get(name)
        if not isinstance(value, Tensor) or not _readable(value, model.device):
            raise InputError(f"{what} must have a tensor of {name!r} on the model's device, found {shown(value)}")
        model.variables[name].check_shape(name, value)
        rows = len(value) if rows is None else rows
        if len(value) != rows:
            raise InputError(f"{what} of {name!r} must have {rows} rows, found {len(value)}")


def _readable(value: Tensor, device: torch.device) -> bool:
    simple = value.dtype.itemsize == 1 or value.dtype.is_signed  # torch hardly computes with unsigned ones
    return simple and value.layout == torch.strided and not value.is_complex() and value.device.type == device.type


def _require_mask(name: str, mask: Tensor | None, value: Tensor) -> None:
    fits = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.device == value.device
    if mask is None or not fits or mask.shape not in (value.shape, (1, *value.shape[1:])):
        raise InputError(f"mask of {name!r} must be boolean, of shape {list(value.shape)}, found {shown(mask)}")


def _given(model: JointModel, name: str, state: Mapping[str, Tensor]) -> tuple[Initializer, State]:
    """The initializer of a group, and what it reads of a state."""
    _require_model(model)
    init, read = _init(model, name), model.init_reads(name)
    model.check_names(named("state", state), "state")
    _require_whole(model, "state", state, (name, *read))
    return init, model.encode(read, state)


def _init(model: JointModel, name: str) -> Initializer:
    found = model.conditional(name).init
    if found is None:
        raise InputError(f"{name!r} has no initializer: pass init= to its Conditional")
    return found


def _place(model: JointModel, use: str, name: str, generator: Generator) -> Generator:
    """The generator for one use of a group, so that no draw depends on which other groups are drawn."""
    return at(generator, USES.index(use) * len(model.names) + model.names.index(name))


def _class_posterior(model: JointModel, name: str, parts: Mapping[str, Any], state: State) -> Distribution | None:
    """p_0(g | x_K), from the evidence for every class; None where nothing that is known depends on g."""
    if not parts:
        return None
    family = model.variables[name]
    scores = []
    for k in range(family.output_shape[0]):
        supposed = {**state, name: torch.full_like(state[name], k)}
        found = [_init(model, n).evidence(model.encode(model.init_reads(n), supposed), p) for n, p in parts.items()]
        scores.append(torch.stack(found).sum(0))
    return family.distribution(torch.stack(scores, 1))


def _draw_parent(
    model: JointModel,
    reader: str,
    name: str,
    state: State,
    part: Any,
    own: tuple[Tensor, Tensor] | None,
    generator: Generator,
) -> Tensor:
    """Draw `name`, which the initializer of `reader` reads, given what is known of both."""
    besides = {"x": tuple(n for n in model.init_reads(reader) if n != name), "g": model.init_reads(name)}
    others = {key: model.encode(names, state) for key, names in besides.items()}
    return _init(model, reader).sample_parent(name, _init(model, name), others, part, own, generator)


def _parents_first(model: JointModel, names: Sequence[str]) -> list[str]:
    """Groups after those that their initializers read (in the given order where they read each other)."""
    ordered, left = [], list(names)
    while left:
        name = next((n for n in left if not set(model.init_reads(n)) & set(left)), left[0])
        ordered.append(name)
        left.remove(name)
    return ordered
