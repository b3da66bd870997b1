"""A joint model: one conditional per group of variables, and how often each is redrawn (section 4).

The conditionals p_theta_i(x_i | x_-i) and the scan weights alpha define the kernel (eq:gibbs_transition)

    p_theta(x | x') = sum_i alpha_i p_theta_i(x_i | x_-i) [x_-i = x'_-i],

and the joint is its limiting distribution. `chain` runs that chain, `initializers` draws its first state.

A model may also have context: groups that are always given (a default value, if the user gives none). Networks read
them like any other group, and the chain never redraws them. The joint is then a joint given the context.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from paracond import serialization
from paracond.conditional import Conditional
from paracond.data import (
    InputError,
    Mask,
    State,
    as_float,
    as_numbers,
    at_least,
    expand_mask,
    named,
    row_count,
    seeded,
    separated,
    shown,
)
from paracond.distributions import Distribution
from paracond.families import Family, family_from
from paracond.html_table import html_table
from paracond.networks.base import Network, describe, rebuild, require_sizes
from paracond.networks.outline import Outline, beyond_state
from paracond.runtime.engine import lay_out
from paracond.runtime.eval_copy import eval_copy
from paracond.serialization import Entry

FORMAT = "paracond model 2"
FORMATS = (FORMAT, "paracond model 1")  # the first had no digest of the description, and names of classes alone
MOST_LISTED = 6  # groups in a line of `repr`
SPARE = 2**23  # bytes of tensors that a network may compute from its arguments, besides twice those of its file
MOST_GROUPS, MOST_TENSORS, MOST_NUMBERS = 2**13, 2**15, 2**27  # of a saved model; the last in one value of a group
MOST_SWEEPS = 10**6  # of a tour; a question would not end
SMALLEST_SHARE = 1e-9  # of a group in the scan
Item = TypeVar("Item")
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Context:
    """Declares a group that is always given and never redrawn.

    family: what values the group takes.
    default: one value of the family, used where the user gives none; None if the user must give one.
    """

    family: Family
    default: float | int | list | None = 0

    def __post_init__(self) -> None:
        if not isinstance(self.family, Family):
            raise InputError(f"family of Context must be a Family, found {shown(self.family)}")
        if self.default is None:
            return
        what, event = "the default of a context group", self.family.event_shape
        value = as_numbers(what, self.default)
        default = _plain(self.default)
        self.family.check_known(what, as_numbers(what, np.asarray(default)).flatten())  # with all its digits
        try:
            value.expand(event)
        except RuntimeError:
            raise InputError(f"{what} must have shape {list(event)}, found {list(value.shape)}") from None
        object.__setattr__(self, "default", default)

    def values(self, name: str, rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The default in every row."""
        if self.default is None:
            raise InputError(f"{name!r} must be given: it is a context group without a default")
        value = torch.as_tensor(self.default, device=device)
        stored = self.family.store(value.expand(1, *self.family.event_shape), dtype)
        self.family.check_stored(name, stored)
        return stored.expand(rows, *self.family.event_shape).clone()

    def describe(self) -> dict:
        return {"family": self.family.describe(), "default": self.default}


@dataclass(frozen=True)
class Regeneration:
    """Says how the chain begins anew: with probability `rate` after every sweep, and then with `warmup` sweeps that do
    not count (see `tours`).

    rate: eps, more than 0 (at least 1e-6) and at most 1.
    warmup: w, at most 10^6.
    """

    rate: float = 0.04
    warmup: int = 60

    def __post_init__(self) -> None:
        kind = "a number over 0 and at most 1"
        try:
            rate = as_float("rate of Regeneration", self.rate)
        except InputError:
            rate = math.nan
        if not 0 < rate <= 1:
            raise InputError(f"rate of Regeneration must be {kind}, found {shown(self.rate)}")
        at_least({"warmup of Regeneration": (self.warmup, 0)})
        if 1 / self.rate > MOST_SWEEPS or self.warmup > MOST_SWEEPS:
            raise InputError(f"a tour of Regeneration must have at most {MOST_SWEEPS:,} sweeps, found {self!r:.120}")
        object.__setattr__(self, "rate", float(self.rate))  # not numbers of numpy, which JSON does not know
        object.__setattr__(self, "warmup", int(self.warmup))


class JointModel(nn.Module):
    """Models the joint distribution of named groups of variables, by one conditional per group.

    `model(name, state)` returns the distribution p(x_name | the rest of the state).

    conditionals: a `Conditional` for every group, by name.
    alpha: how often each group is redrawn, by name (default: all equally often). Weights are normalised.
    context: groups that are always given, by name.
    regeneration: how the chain begins anew when the model is asked. `choose_regeneration` finds one for a model.
    """

    def __init__(
        self,
        conditionals: Mapping[str, Conditional],
        alpha: Mapping[str, float] | None = None,
        context: Mapping[str, Context] | None = None,
        regeneration: Regeneration | None = None,
    ):
        super().__init__()
        conditionals = named("conditionals", conditionals)
        if not conditionals:
            raise InputError("conditionals must have at least one group, found none")
        _require_kinds(conditionals, Conditional, "Conditional(family, network)")
        self.names = tuple(conditionals)
        self.context = named("context", {} if context is None else context)
        _require_kinds(self.context, Context, "Context(family, default)")
        if regeneration is not None and not isinstance(regeneration, Regeneration):
            raise InputError(f"regeneration must be Regeneration(rate, warmup), found {shown(regeneration)}")
        twice = [name for name in self.context if name in conditionals]
        if twice:
            raise InputError(f"{twice[0]!r} is both a context group and a group with a conditional")
        # A list, so that any text can name a group (table columns are called "values" or "a.b").
        self.conditionals = nn.ModuleList(conditionals.values())
        self.variables: dict[str, Family] = {name: c.family for name, c in conditionals.items()}
        self.variables |= {name: group.family for name, group in self.context.items()}
        self.alpha = _normalised(self.names, alpha)
        self.regeneration = Regeneration() if regeneration is None else regeneration
        lay_out(self)
        # One parameter that shows type and device (in a tuple, so that it is not registered again).
        self._probe = (next(self.parameters(), None),)

    def __repr__(self) -> str:
        lines = [self._headline()]
        for name, family, reads, network, notes in self._summary():
            parts = [f"{name}: {family}", reads and f"given {reads}", network and f"by {network}"]
            lines.append(", ".join(filter(None, [" ".join(filter(None, parts)), notes])))
        return "\n  ".join(lines)

    def _repr_html_(self) -> str:
        return html_table(self._headline(), ("group", "family", "given", "network", "notes"), self._summary())

    def _headline(self) -> str:
        groups = "1 group" if len(self.names) == 1 else f"{len(self.names)} groups"
        place = f"{str(self.dtype).removeprefix('torch.')} on {self.device}"
        return f"{type(self).__name__} of {groups}: {_size(self)}, {place}, {self.regeneration}"

    def _summary(self) -> list[tuple[str, str, str, str, str]]:
        """A line for every group: its name, family, what it reads, its network, and what is special."""
        equal = len(set(self.alpha.values())) == 1
        lines = []
        for name in self.names:
            each = self.conditional(name)
            network = f"{type(each.network).__name__} ({_size(each.network)})"
            notes = [] if equal else [f"alpha {self.alpha[name]:.3g}"]
            notes += [] if each.init is None else [f"init {type(each.init).__name__}"]
            reads = self._reads_in_short(name, each.network)
            lines.append((name, _in_short(each.family), reads, network, ", ".join(notes)))
        for name, group in self.context.items():
            default = "must be given" if group.default is None else f"default {group.default!r:.40}"
            lines.append((name, _in_short(group.family), "", "", f"context, {default}"))
        return lines

    def _reads_in_short(self, name: str, network: object) -> str:
        others, reads = [k for k in self.variables if k != name], getattr(network, "reads", None)
        reads = list(reads) if isinstance(reads, tuple) else others
        if len(reads) <= MOST_LISTED:
            return ", ".join(map(str, reads)) or "nothing"
        return "all others" if set(reads) == set(others) else f"{len(reads)} of {len(others)} others"

    def forward(self, name: str, state: Mapping[str, Tensor]) -> Distribution:
        """Return the distribution p(x_name | the rest of the state)."""
        return self.conditional(name)(self.encode(self.reads(name), state))

    def encode(self, names: Sequence[str], state: Mapping[str, Tensor]) -> State:
        """The values of these groups as networks read them."""
        for name in [name for name in names if name not in state]:
            raise InputError(f"the state lacks {name!r}, which is read here (it has {', '.join(map(str, state))})")
        return {k: self.variables[k].encode(state[k]).to(self.dtype) for k in names}

    def reads(self, name: str) -> tuple[str, ...]:
        """The groups that p(x_name | .) may depend on: those that its network declares, or all others."""
        return self._declared_reads(name, self.conditional(name).network)

    def init_reads(self, name: str) -> tuple[str, ...]:
        """The groups that the initializer of `name` may depend on."""
        return self._declared_reads(name, self.conditional(name).init)

    def _declared_reads(self, name: str, module: object) -> tuple[str, ...]:
        others = tuple(k for k in self.variables if k != name)
        declared = getattr(module, "reads", None)
        if not isinstance(declared, tuple):
            return others
        unknown = [k for k in declared if k not in others]
        if unknown:
            raise InputError(f"the network of {name!r} reads {unknown[0]!r}, which is none of {', '.join(others)}")
        return declared

    def conditional(self, name: str) -> Conditional:
        """The conditional of a group."""
        found = self.conditionals[self.index(name)]
        assert isinstance(found, Conditional)
        return found

    def index(self, name: str) -> int:
        """The place of a group among `names`."""
        self.check_names([name])
        if name in self.context:
            raise InputError(f"{name!r} is a context group: it is always given, and has no conditional")
        return self.names.index(name)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters."""
        (parameter,) = self._probe
        return torch.get_default_dtype() if parameter is None else parameter.dtype

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        (parameter,) = self._probe
        return torch.device("cpu") if parameter is None else parameter.device

    def generator(self, seed: int) -> torch.Generator:
        """A source of randomness on the model's device."""
        return seeded(seed, self.device)

    def eval_copy(self) -> JointModel:
        """The model as questions evaluate it: in evaluation mode (no dropout, no noise), with the same weights.

        This model does not change, so it may be trained, or asked by other threads, at the same time. Weights that are
        NaN or infinite are refused.
        """
        self.require_finite()
        return eval_copy(self)

    def require_finite(self) -> None:
        """Refuse weights that are NaN or infinite, by their group."""
        numbers = {key: tensor for key, tensor in self.state_dict().items() if tensor.is_floating_point()}
        if not numbers or bool(torch.stack([tensor.sum().double() for tensor in numbers.values()]).isfinite().all()):
            return
        for key in [key for key, tensor in numbers.items() if not bool(tensor.isfinite().all())]:
            _, number, rest = key.split(".", 2)
            raise InputError(
                f"the model has NaN or infinite weights, {rest} of {self.names[int(number)]!r}: load or train it again"
            )

    # --- checks -------------------------------------------------------------------------------------------------

    def check_names(self, names: Iterable[str], what: str = "names") -> None:
        """Refuse names that are no group of the model; `what` is the name of the argument."""
        if not isinstance(names, Iterable):
            raise InputError(f"{what} must be names of groups, found {shown(names)}")
        for name in names:
            if not isinstance(name, str):
                raise InputError(f"{what}: the name of a group must be text, found {shown(name)}")
            if name not in self.variables:
                close = difflib.get_close_matches(name, self.variables, 1)
                hint = f"; do you mean {close[0]!r}?" if close else ""
                raise InputError(f"unknown variable {shown(name)} (the model has {', '.join(self.variables)}{hint})")

    def validate(
        self, state: Mapping[str, Tensor], mask: Mapping[str, Tensor] | None = None, rows: int | None = None
    ) -> tuple[State, Mask]:
        """Return values and full masks of all groups on the model's device, or refuse what is wrong.

        state, mask: values and masks by name. Groups that are absent are not observed; context has its default.
        rows: the number of rows; needed only where the state is empty.
        """
        state, mask = named("state", state), named("mask", {} if mask is None else mask)
        self.check_names([*state, *mask])
        state, mask = separated(state, mask)
        for name, value in state.items():
            self.variables[name].check_shape(name, value)
        rows = row_count(state) if rows is None or state else rows
        for name in [n for n in self.context if n not in state]:
            state[name] = self.context[name].values(name, rows, self.dtype, self.device)
        values, masks = {}, {}
        for name, family in self.variables.items():
            shape = (rows, *family.event_shape)
            value = state[name] if name in state else torch.zeros(shape)
            known = mask.get(name) if name in state else torch.zeros(shape, dtype=torch.bool)
            masks[name] = expand_mask(name, known, shape, self.device)
            everywhere, value = bool(masks[name].all()), value.to(self.device)
            if name in self.context and not everywhere:
                raise InputError(f"{name!r} is a context group: it must be observed everywhere")
            family.check_known(name, value.flatten() if everywhere else value[masks[name]])
            values[name] = stored = family.store(value, self.dtype)
            if stored is not value and value.dtype.itemsize > 1:  # a value of 64 bits may be infinite in 32
                family.check_stored(name, stored if everywhere else stored[masks[name]])
        return values, masks

    def whole_state(self, state: Mapping[str, Tensor]) -> State:
        """The values of a whole state, in which every group is known, or refuse it. Context has its default.

        state: values by name.
        """
        state = named("state", state)
        self.check_names(state)
        missing = [name for name in self.names if name not in state]
        if missing:
            hint = "pc.sample(model) returns a whole one, and so does initializers.initial_state"
            raise InputError(f"the state lacks {', '.join(missing)}; {hint}")
        values, _ = self.validate({name: as_numbers(name, value) for name, value in state.items()})
        return {name: value.clone() for name, value in values.items()}  # a network may change what it reads

    # --- saving -------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, dtype: torch.dtype | None = None, max_bytes: int | None = None) -> None:
        """Write the model to a folder, as JSON and safetensors.

        dtype: store floating-point weights in this type. bfloat16 halves the file; such a model loads as float32.
        max_bytes: the largest size of one weights file; several are written where one would be larger.

        Networks that derive from `networks.Network` are rebuilt on load. A parameter that several networks share is
        written once, and shared again on load.
        """
        if dtype is not None and not (
            isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize > 1
        ):
            raise InputError(f"dtype must be a floating-point type such as torch.bfloat16, found {shown(dtype)}")
        at_least({"max_bytes": (1 if max_bytes is None else max_bytes, 1)}, most=2**63 - 1)
        serialization.require_place(folder, FORMAT)  # a checkpoint that was saved here must not be lost
        description = self._description()
        _require_bounds(self)
        once = {k: v for k, v in self.state_dict().items() if k not in description["tied"]}
        tensors = {k: v.to(dtype) if dtype and v.is_floating_point() else v for k, v in once.items()}
        serialization.write(folder, description, tensors, max_bytes)

    def _description(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "variables": {name: self.variables[name].describe() for name in self.names},
            "networks": {name: describe(self.conditional(name).network) for name in self.names},
            "init": {name: describe(i) for name in self.names if (i := self.conditional(name).init)},
            "alpha": self.alpha,
            "context": {name: group.describe() for name, group in self.context.items()},
            "regeneration": asdict(self.regeneration),
            "tied": _tied(self),
        }

    @classmethod
    def load(cls, folder: str | Path, modules: Mapping[str, nn.Module] | None = None) -> JointModel:
        """Read a saved model.

        modules: the networks that are not paracond's own, by group (an initializer: by "init of GROUP").
        """
        given = named("modules", {} if modules is None else modules)
        for name, module in given.items():
            if not isinstance(module, nn.Module):
                raise InputError(f"{name!r} of modules must be an nn.Module, found {shown(module)}")

        def check(found: dict, entries: dict[str, Entry]) -> None:
            with _refusing(folder):
                description, entries = _upgraded(found, entries)
                _require_few("tensors", len(entries), MOST_TENSORS)
                outline = cls._rebuilt(description, given, Outline(len(entries) + len(description["tied"])))
                with _naming(given):
                    _require_fit(outline, description, entries)

        description, tensors = _upgraded(*serialization.read(folder, FORMATS, check))
        serialization.require_finite(tensors, str(folder))
        with _refusing(folder):
            model = cls._rebuilt(description, given)
            tensors = {k: t.float() if t.dtype in HALF else t for k, t in tensors.items()}
            dtypes = {t.dtype for t in tensors.values() if t.is_floating_point()}
            model.to(dtypes.pop() if len(dtypes) == 1 else None)
            model.load_state_dict(tensors | {key: tensors[source] for key, source in description["tied"].items()})
        return model.eval()

    @classmethod
    def _rebuilt(
        cls, description: dict, modules: Mapping[str, nn.Module], outline: Outline | None = None
    ) -> JointModel:
        """A model with new weights, shared where the file says so; with `outline`, its networks have shapes only."""
        made = nn.ModuleList()
        _require_few("groups", len(description["variables"]) + len(description["context"]), MOST_GROUPS)
        ties = _ties(description["tied"])
        possible = {*description["variables"], *(f"init of {name}" for name in description["variables"])}
        for name in [name for name in modules if name not in possible]:
            raise InputError(f"modules: {name!r} is none of {', '.join(sorted(possible))}")
        for name, about in description["variables"].items():
            family = family_from(about)
            own = modules.get(name)
            network = rebuild(name, description["networks"][name], outline) if own is None else own
            init: Any = None
            if name in description["init"]:
                key = f"init of {name}"
                own = modules.get(key)
                init = rebuild(key, description["init"][name], outline) if own is None else own
            with _naming(modules), nullcontext() if outline is None else outline:
                made.append(Conditional(family, network, init))
            if outline is None:  # now: before the next network takes memory
                _tie(made, ties.get(str(len(made) - 1), {}))
        conditionals = dict(zip(description["variables"], made, strict=True))
        context = {n: Context(family_from(c["family"]), c["default"]) for n, c in description["context"].items()}
        return cls(conditionals, description["alpha"], context, Regeneration(**description.get("regeneration", {})))


def _in_short(family: Family) -> str:
    """A family with those settings that are not its defaults."""
    settings = [(each.name, repr(getattr(family, each.name)), repr(each.default)) for each in fields(family)]
    special = [f"{name}={value}" for name, value, default in settings if value != default]
    return f"{type(family).__name__}({', '.join(special)})"


def _size(module: nn.Module) -> str:
    """The number of its parameters, without those of lazy modules that have not run yet."""
    count = sum(p.numel() for p in module.parameters() if not nn.parameter.is_lazy(p))
    return f"{count:,} parameters"


def _require_kinds(groups: Mapping[str, object], kind: type, form: str) -> None:
    for name, found in groups.items():
        if not isinstance(found, kind):
            what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
            raise InputError(f"{name!r} must be a {form}, found {what}")


def require_model(model: object) -> None:
    """Refuse what is no joint model; the first thing that functions about a model do."""
    if not isinstance(model, JointModel):
        found = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        hint = ": pass what its fit returned, or learner.averaged" if hasattr(model, "averaged") else ""
        raise InputError(f"the model must be a JointModel, found {found}{hint}")


@contextmanager
def _refusing(folder: str | Path) -> Iterator[None]:
    """Refuse a description of which something cannot be made, whatever the error."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{folder}: {error!s:.600}") from None
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{Path(folder) / serialization.DESCRIPTION} does not describe a model: {why:.200}") from None


@contextmanager
def _naming(modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Refuse networks that a user gave, by the name of the argument."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{error}; modules has {', '.join(modules)}" if modules else str(error)) from None


def _require_fit(model: JointModel, description: Mapping, entries: Mapping[str, Entry]) -> None:
    """Refuse weights whose names, shapes or kinds are not those of the networks, and networks that read or return other
    sizes than the groups have."""
    _require_bounds(model)
    own, tied = model.state_dict(), description["tied"]
    wanted = {key: tensor for key, tensor in own.items() if key not in tied}
    if not tied.keys() <= own.keys() or not set(tied.values()) <= wanted.keys():
        raise InputError("the weights do not fit the networks: names of shared weights are unknown")
    for key in sorted(wanted.keys() ^ entries.keys()):
        raise InputError(f"the weights do not fit the networks: {key!r:.120} is in only one of them")
    for key, tensor in own.items():
        entry = entries[tied.get(key, key)]
        alike = tensor.is_floating_point() == entry.dtype.is_floating_point
        if tuple(tensor.shape) != entry.shape or not alike:
            found = f"{entry.dtype} {list(entry.shape)} in the file and {tensor.dtype} {list(tensor.shape)} there"
            raise InputError(f"the weights do not fit the networks: {key!r:.120} is {found}".replace("torch.", ""))
    held = sum(entry.nbytes for entry in entries.values())
    if beyond_state(model) > SPARE + 2 * held:
        raise InputError("its networks compute tensors that are much larger than the weights files")
    for part in model.conditionals:  # built one after the other, with parameters that are not shared yet
        if sum(tensor.nbytes for tensor in part.parameters()) > SPARE + 4 * held:
            raise InputError("one of its networks is much larger than the weights files, of which it shares parts")


def _require_few(what: str, found: int, most: int) -> None:
    if found > most:
        raise InputError(f"it has {found:,} {what}, at most {most:,} can be read")


def _require_bounds(model: JointModel) -> None:
    """Refuse a model that could not be read from a file."""
    _require_few("groups", len(model.variables), MOST_GROUPS)
    _require_few("tensors", len(model.state_dict()), MOST_TENSORS)
    for name, family in model.variables.items():
        for shape in (family.encoding_shape, family.output_shape):
            if len(shape) > 64 or math.prod(shape) > MOST_NUMBERS:
                raise InputError(f"a value of {name!r:.80} has over {MOST_NUMBERS:,} numbers, or over 64 axes")
    for name, part in zip(model.names, model.conditionals, strict=True):
        for module in (part.network, part.init):
            if isinstance(module, Network):
                require_sizes(module, name, model.variables)


def _upgraded(description: dict, tensors: dict[str, Item]) -> tuple[dict, dict[str, Item]]:
    """A description and weights under the names of today: earlier versions had "starts" and "conditions"."""
    description = {"init": description.get("starts", {}), "context": description.get("conditions", {})} | description
    tied = {_upgraded_key(name): _upgraded_key(first) for name, first in description.get("tied", {}).items()}
    upgraded = {_upgraded_key(key): tensor for key, tensor in tensors.items()}
    if len(upgraded) < len(tensors):
        raise InputError("the weights have a tensor twice, by a former name and that of today")
    return description | {"tied": tied}, upgraded


def _upgraded_key(key: str) -> str:
    kind, _, rest_of_it = key.partition(".")
    number, *rest = rest_of_it.split(".")
    if rest[:1] == ["start"]:
        rest[0] = "init"
    if rest[:2] == ["network", "told"]:
        rest[1] = "flat_features"
    return ".".join([kind, number, *rest]) if rest else key


def _tied(module: nn.Module) -> dict[str, str]:
    """Parameters that are known by several names: each further name, and the first."""
    first: dict[int, str] = {}
    named = list(module.named_parameters(remove_duplicate=False))
    for name, parameter in named:
        first.setdefault(id(parameter), name)
    return {name: first[id(parameter)] for name, parameter in named if first[id(parameter)] != name}


def _ties(tied: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """What each conditional, by its number, shares with former ones: names within the list of conditionals."""
    found: dict[str, dict[str, str]] = {}
    for name, first in tied.items():
        _, number, _ = name.split(".", 2)
        found.setdefault(number, {})[name.partition(".")[2]] = first.partition(".")[2]
    return found


def _tie(module: nn.Module, tied: Mapping[str, str]) -> None:
    """The inverse of `_tied`: make each name the parameter that its first name is."""
    for name, first in tied.items():
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, module.get_parameter(first))


def _normalised(names: tuple[str, ...], alpha: Mapping[str, float] | None) -> dict[str, float]:
    if alpha is None:
        return {name: 1 / len(names) for name in names}
    alpha = named("alpha", alpha)
    if set(alpha) != set(names):
        raise InputError(f"alpha must weigh exactly {', '.join(names)}, found {', '.join(alpha)}")
    weights = {name: as_float(f"alpha of {name!r}", alpha[name]) for name in names}
    total = sum(weights[name] for name in alpha)
    for name, weight in weights.items():
        if not (weight > 0 and weight / total > SMALLEST_SHARE):
            raise InputError(f"alpha of {name!r} must be over 0, and not vanish beside the others, found {weight:g}")
    return {name: weight / total for name, weight in weights.items()}


def _plain(default: Any) -> Any:
    """A default as JSON has it: numbers and lists."""
    if isinstance(default, (list, tuple)):
        return [_plain(each) for each in default]
    if isinstance(default, (torch.Tensor, np.ndarray, np.generic)):
        return default.tolist()
    return default
