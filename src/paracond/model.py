"""A joint model: one conditional per group of variables, and how often each is redrawn (section 4).

The conditionals p_theta_i(x_i | x_-i) and the scan weights alpha define the kernel (eq:gibbs_transition)

    p_theta(x | x') = sum_i alpha_i p_theta_i(x_i | x_-i) [x_-i = x'_-i],

and the joint is its limiting distribution. Nothing here runs that chain (see `chain`).

A model may also have conditions: groups that are always given (a default, if nothing else is said), which networks
read like any other and the chain never redraws. The joint is then one given the conditions.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paracond import networks
from paracond import serialization as storage
from paracond.conditional import Conditional, Start
from paracond.data import Data, InputError, Mask, State, as_numbers, expand_mask, merge, row_count
from paracond.distributions import Distribution
from paracond.families import Categorical, Family, family_from

FORMAT = "paracond model 1"
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Condition:
    """A group that is always given: `default`, one value of its family, where nothing is said; None if it must be."""

    family: Family
    default: float | int | list | None = 0

    def __post_init__(self) -> None:
        if self.default is not None:
            self.family.check_known("the default of a condition", torch.as_tensor(self.default).flatten())

    def values(self, name: str, rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if self.default is None:
            raise InputError(f"{name!r} must be given")
        shape = (rows, *self.family.event_shape)
        return self.family.store(torch.as_tensor(self.default, device=device).expand(shape).clone(), dtype)

    def describe(self) -> dict:
        return {"family": self.family.describe(), "default": self.default}


class JointModel(nn.Module):
    """Named conditionals and scan weights. `model(name, state)` is p(x_name | the rest of the state)."""

    def __init__(
        self,
        conditionals: Mapping[str, Conditional],
        alpha: Mapping[str, float] | None = None,
        conditions: Mapping[str, Condition] | None = None,
    ):
        super().__init__()
        if not conditionals:
            raise InputError("a joint model needs at least one conditional")
        wrong = [name for name, c in conditionals.items() if not isinstance(c, Conditional)]
        if wrong:
            raise InputError(f"{wrong[0]!r} must be a Conditional(family, network), found {conditionals[wrong[0]]!r}")
        self.names = tuple(conditionals)
        self.conditions = dict(conditions or {})
        twice = [name for name in self.conditions if name in conditionals]
        if twice:
            raise InputError(f"{twice[0]!r} is both a condition and a group with a conditional")
        # A list, so that any text can name a group (table columns are called "values" or "a.b").
        self.conditionals = nn.ModuleList(conditionals.values())
        self.variables: dict[str, Family] = {name: c.family for name, c in conditionals.items()}
        self.variables |= {name: condition.family for name, condition in self.conditions.items()}
        self.alpha = _normalised(self.names, alpha)
        # One parameter that tells type and device (in a tuple, so that it is not registered again).
        self._probe = (next(self.parameters(), None),)

    def forward(self, name: str, state: Mapping[str, Tensor]) -> Distribution:
        return self.conditional(name)(self._encoded(self.reads(name), state))

    def start_score(self, name: str, state: Mapping[str, Tensor]) -> Tensor | None:
        """log p_0(x_name | the rest of the state), `[batch]`, or a lower bound of it; None for a group without."""
        start = self.conditional(name).start
        return None if start is None else start.score(state[name], self._encoded(self.start_reads(name), state))

    def fit_starts(self, data: Data, seed: int = 0, names: Sequence[str] | None = None) -> None:
        """Fit every start (or those of `names`) to the rows of `data` in which its group, and all that it reads, are
        known; it learns no more after that. (Starts that are not fitted learn beside their conditionals.)"""
        values, mask = self.admit(data.state, data.mask)
        self.check_names(names or ())
        for name in [n for n in self.names if self.conditional(n).start is not None and (not names or n in names)]:
            reads = self.start_reads(name)
            known = torch.stack([mask[k].reshape(len(data), -1).all(1) for k in (name, *reads)]).all(0)
            rows = {k: values[k][known] for k in (name, *reads)}
            self._start(name).fit(rows[name], self._encoded(reads, rows), self.generator(seed))

    def with_start(self, name: str, start: Start | None) -> JointModel:
        """A copy in which chains begin with `name` elsewhere; where they tend to stays the same."""
        other = copy.deepcopy(self)
        other.conditional(name).start = start
        return other.to(self.device, self.dtype)

    def _encoded(self, names: tuple[str, ...], state: Mapping[str, Tensor]) -> State:
        return {k: self.variables[k].encode(state[k]).to(self.dtype) for k in names}

    def reads(self, name: str) -> tuple[str, ...]:
        """The groups that p(x_name | .) may depend on: what its network says that it reads, or all others."""
        return self._said(name, self.conditional(name).network)

    def start_reads(self, name: str) -> tuple[str, ...]:
        """The groups that the start of `name` may depend on."""
        return self._said(name, self.conditional(name).start)

    def _said(self, name: str, network: object) -> tuple[str, ...]:
        others = tuple(k for k in self.variables if k != name)
        said = getattr(network, "reads", None)
        if not isinstance(said, tuple):
            return others
        unknown = [k for k in said if k not in others]
        if unknown:
            raise InputError(f"the network of {name!r} reads {unknown[0]!r}, which is none of {', '.join(others)}")
        return said

    def conditional(self, name: str) -> Conditional:
        found = self.conditionals[self.index(name)]
        assert isinstance(found, Conditional)
        return found

    def index(self, name: str) -> int:
        self.check_names([name])
        if name in self.conditions:
            raise InputError(f"{name!r} is a condition: it is given, and has no conditional of its own")
        return self.names.index(name)

    @property
    def dtype(self) -> torch.dtype:
        (parameter,) = self._probe
        return torch.get_default_dtype() if parameter is None else parameter.dtype

    @property
    def device(self) -> torch.device:
        (parameter,) = self._probe
        return torch.device("cpu") if parameter is None else parameter.device

    def generator(self, seed: int) -> torch.Generator:
        """A source of randomness on the model's device."""
        return torch.Generator(self.device).manual_seed(seed)

    @torch.no_grad()
    def start(
        self,
        batch: int,
        generator: torch.Generator,
        known: State | None = None,
        mask: Mask | None = None,
        starts: bool = True,
        rest: bool = False,
    ) -> State:
        """A whole state, as chains begin: `known` where the full `mask` is true, and conditions at their defaults.

        All else is random; where groups have a start (and `starts` is true), they are drawn from it given what is
        known, and then (or with `rest`, without such too) the others given them.
        """
        known, mask = known or {}, mask or {}
        state = self.start_groups(batch, generator)
        for name, condition in self.conditions.items():  # known everywhere, if at all
            state[name] = known[name] if name in known else condition.values(name, batch, self.dtype, self.device)
        state = merge(mask, known, state)
        missing = [name for name in self.names if name not in mask or not bool(mask[name].all())]
        seen = {name: one_row(m) for name, m in mask.items() if bool(m.any())}
        begun = self.begin(state, seen, missing, generator) if starts else set()
        for name in [n for n in missing if n not in begun] if begun or rest else []:
            state[name] = self(name, state).redraw(state[name], mask.get(name), generator)
        return state

    def begin(self, state: State, mask: Mask, missing: Sequence[str], generator: torch.Generator) -> set[str]:
        """Draw those `missing` groups that have a start from it, in place, given what `mask` (of each group: full, or
        one row for all; none if nothing is known) says is known. Returns the groups that are begun now.

        Before that, missing classes g that starts read: p_0(g | x_K) is proportional to the product of the p_0(x_K | g)
        of all groups x that are known in part (all g are equally probable at first; of several classes, each is drawn
        given the others as they are). Groups with a start of their own that another's start reads are drawn given what
        is known of that one (of the first, if there are several) and of themselves. Nothing here waits for the host, so
        that this can be recorded.
        """
        begun = [n for n in self.names if self.conditional(n).start is not None]
        read = [k for k in missing if _is_class(self.variables[k]) and any(k in self.start_reads(n) for n in begun)]
        needed = [n for n in begun if n in missing or any(k in read for k in self.start_reads(n))]
        parts = {n: self._start(n).known(state[n], mask[n]) for n in needed if n in mask}
        for name in read:
            likely = self._likely(name, {n: p for n, p in parts.items() if name in self.start_reads(n)}, state)
            if likely is not None:
                state[name] = likely.redraw(state[name], mask.get(name), generator)
        for name in self._in_order([n for n in begun if n in missing]):
            reader = next((n for n in parts if n in missing and name in self.start_reads(n)), None)
            if reader is None:
                others, rows = self._encoded(self.start_reads(name), state), len(state[name])
                drawn = self._start(name).sample(others, generator, rows, parts.get(name))
            else:
                own = (state[name], mask[name]) if name in mask else None
                drawn = self._told(reader, name, state, parts[reader], own, generator)
            state[name] = drawn.to(state[name].dtype)
        return {*begun, *read}

    def _told(
        self, reader: str, name: str, state: State, part: Any, own: tuple[Tensor, Tensor] | None, generator
    ) -> Tensor:
        """A draw of `name`, of which the start of `reader` reads, given what is known of both."""
        besides = {"x": tuple(n for n in self.start_reads(reader) if n != name), "g": self.start_reads(name)}
        others = {key: self._encoded(names, state) for key, names in besides.items()}
        return self._start(reader).told(name, self._start(name), others, part, own, generator)

    def restart(self, name: str, state: State, mask: Tensor, generator: torch.Generator) -> Tensor:
        """Group `name` from its start, given the part of it where `mask` is true."""
        start, others = self._start(name), self._encoded(self.start_reads(name), state)
        return start.sample(others, generator, len(state[name]), start.known(state[name], mask))

    def _in_order(self, names: Sequence[str]) -> list[str]:
        """Groups after those that their starts read (where they read each other, as they come)."""
        ordered, left = [], list(names)
        while left:
            name = next((n for n in left if not set(self.start_reads(n)) & set(left)), left[0])
            ordered.append(name)
            left.remove(name)
        return ordered

    @property
    def has_starts(self) -> bool:
        return any(self.conditional(name).start is not None for name in self.names)

    def _start(self, name: str) -> Start:
        start = self.conditional(name).start
        assert start is not None
        return start

    def _likely(self, name: str, parts: Mapping[str, Any], state: State) -> Distribution | None:
        """p_0(g | x_K), by the evidence for every class; None if nothing speaks for any."""
        if not parts:
            return None
        family = self.variables[name]
        scores = []
        for k in range(family.output_shape[0]):
            supposed = {**state, name: torch.full_like(state[name], k)}
            found = [self._start(n).evidence(self._encoded(self.start_reads(n), supposed), p) for n, p in parts.items()]
            scores.append(torch.stack(found).sum(0))
        return family.distribution(torch.stack(scores, 1))

    def start_groups(self, batch: int, generator: torch.Generator) -> State:
        """Random values for every group; nothing is copied from the host, so that this can be recorded."""
        return {name: self.variables[name].start(batch, generator, self.dtype) for name in self.names}

    @contextmanager
    def asked(self) -> Iterator[None]:
        """While a model is asked, its layers are in evaluation mode (no dropout, no noise); then as they were."""
        former = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            yield
        finally:
            for module, training in former:
                module.training = training

    # --- checks -------------------------------------------------------------------------------------------------

    def check_names(self, names) -> None:
        for name in names:
            if name not in self.variables:
                raise InputError(f"unknown variable {name!r} (the model has {', '.join(self.variables)})")

    def admit(
        self, state: Mapping[str, Tensor], mask: Mapping[str, Tensor] | None = None, rows: int | None = None
    ) -> tuple[State, Mask]:
        """Values and full masks of all groups, as the chain takes them, on the model's device; refuses what is wrong.

        Groups that are not given are not observed, conditions have their default. `rows` is needed only where nothing
        at all is given.
        """
        mask = mask or {}
        self.check_names([*state, *mask])
        state = {name: as_numbers(name, value) for name, value in state.items()}
        for name, value in state.items():
            self.variables[name].check_shape(name, value)
        rows = row_count(state) if rows is None or state else rows
        for name in [n for n in self.conditions if n not in state]:
            state[name] = self.conditions[name].values(name, rows, self.dtype, self.device)
        values, masks = {}, {}
        for name, family in self.variables.items():
            shape = (rows, *family.event_shape)
            value = state[name] if name in state else torch.zeros(shape)
            known = mask.get(name) if name in state else torch.zeros(shape, dtype=torch.bool)
            masks[name] = expand_mask(name, known, shape, self.device)
            everywhere, value = bool(masks[name].all()), value.to(self.device)
            if name in self.conditions and not everywhere:
                raise InputError(f"{name!r} is a condition: it must be observed everywhere")
            family.check_known(name, value.flatten() if everywhere else value[masks[name]])
            values[name] = family.store(value, self.dtype)
        return values, masks

    # --- saving -------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, dtype: torch.dtype | None = None, at_most: int | None = None) -> None:
        """Write the model as JSON and safetensors. Networks that are `networks.Network`s can be rebuilt on load.

        `dtype=torch.bfloat16` halves the file; such a model is loaded as float32. A parameter that several networks
        share is written once, and is shared again on load. `at_most` is the size of weights files in bytes.
        """
        tied = _tied(self)
        description = {
            "format": FORMAT,
            "variables": {name: self.variables[name].describe() for name in self.names},
            "networks": {name: networks.describe(self.conditional(name).network) for name in self.names},
            "starts": {name: networks.describe(s) for name in self.names if (s := self.conditional(name).start)},
            "alpha": self.alpha,
            "conditions": {name: condition.describe() for name, condition in self.conditions.items()},
            "tied": tied,
        }
        once = {k: v for k, v in self.state_dict().items() if k not in tied}
        tensors = {k: v.to(dtype) if dtype and v.is_floating_point() else v for k, v in once.items()}
        storage.require_format(folder, FORMAT)  # a checkpoint that was saved here must not be lost
        storage.write(folder, description, tensors, at_most)

    @classmethod
    def load(cls, folder: str | Path, modules: Mapping[str, nn.Module] | None = None) -> JointModel:
        """Read a saved model. `modules` supplies the networks that are not paracond's own, by variable."""
        description, tensors = storage.read(folder, FORMAT)
        try:
            model = cls._rebuilt(description, modules or {})
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise InputError(f"{folder}/{storage.DESCRIPTION} does not describe a model: {error!r}") from None
        tensors = {k: t.float() if t.dtype in HALF else t for k, t in tensors.items()}
        dtypes = {t.dtype for t in tensors.values() if t.is_floating_point()}
        model.to(dtypes.pop() if len(dtypes) == 1 else None)
        tied = description.get("tied", {})
        try:
            _tie(model, tied)
            model.load_state_dict(tensors | {key: tensors[source] for key, source in tied.items()})
        except (RuntimeError, AttributeError, KeyError) as error:
            raise InputError(f"{folder}: the weights do not fit the networks: {error}") from None
        return model.eval()

    @classmethod
    def _rebuilt(cls, description: dict, modules: Mapping[str, nn.Module]) -> JointModel:
        conditionals = {}
        for name, family in description["variables"].items():
            network = modules.get(name) or networks.rebuild(name, description["networks"][name])
            start: Any = None
            if name in description.get("starts", {}):
                key = f"start of {name}"
                start = modules.get(key) or networks.rebuild(key, description["starts"][name])
            conditionals[name] = Conditional(family_from(family), network, start)
        conditions = {
            name: Condition(family_from(found["family"]), found["default"])
            for name, found in description.get("conditions", {}).items()
        }
        return cls(conditionals, description["alpha"], conditions)


def _is_class(family: Family) -> bool:
    return isinstance(family, Categorical) and family.event_shape == ()


def one_row(mask: Tensor) -> Tensor:
    """One row of a mask that is the same in all."""
    return mask[:1] if bool((mask == mask[:1]).all()) else mask


def _tied(module: nn.Module) -> dict[str, str]:
    """Parameters that are known by several names: each further name, and the first."""
    first: dict[int, str] = {}
    named = list(module.named_parameters(remove_duplicate=False))
    for name, parameter in named:
        first.setdefault(id(parameter), name)
    return {name: first[id(parameter)] for name, parameter in named if first[id(parameter)] != name}


def _tie(module: nn.Module, tied: Mapping[str, str]) -> None:
    """The inverse of `_tied`: make each name the parameter that its first name is."""
    for name, first in tied.items():
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, module.get_parameter(first))


def _normalised(names: tuple[str, ...], alpha: Mapping[str, float] | None) -> dict[str, float]:
    if alpha is None:
        return {name: 1 / len(names) for name in names}
    if set(alpha) != set(names):
        raise InputError(f"alpha must weigh exactly {', '.join(names)}, found {', '.join(alpha)}")
    if any(not isinstance(weight, (int, float)) or not weight > 0 for weight in alpha.values()):
        raise InputError(f"every alpha must be positive, found {dict(alpha)}")
    total = sum(alpha.values())
    return {name: alpha[name] / total for name in names}
