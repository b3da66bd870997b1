"""Several models, and hand-written factors, in one chain (section 5.4).

The groups of model A are called "A.name", those of B "B.name", and so on. New groups and given ones (context) join
them. A rule is the conditional of one group written by hand,

    rule(law, others) -> Distribution,

where `others` holds the encoded values of all other groups, and law(name) returns the learned conditional p(x_name |
the rest of its own model). A new group needs a rule; a group of a model may have one. The result is a `JointModel`, and
`query` and `sample` take it like any other.

Demixing, for example. Pixel by pixel, x is x' where m = 0 and x'' where m = 1; x is given, m uniform a priori:

    def mask(law, others):       # ln p(x | second) - ln p(x | first), pixel by pixel, is the logit of m
        scores = [law(name).scores(others["x"]).sum(1, keepdim=True) for name in ("second.x", "first.x")]
        return Binary().distribution(scores[0] - scores[1])

    def first(law, others):      # as learned, but x where m = 0
        return Pinned(law("first.x"), others["x"], others["m"] == 0)

    def second(law, others):
        return Pinned(law("second.x"), others["x"], others["m"] == 1)

    joint = compose(
        {"first": model, "second": model},
        groups={"m": Binary((1, 64, 64))},
        given={"x": model.variables["x"]},
        rules={"m": mask, "first.x": first, "second.x": second},
    )
    query(joint, {"x": mixed}, ["first.x", "second.x", "m"])

Here m is drawn without reading x' and x'', because it could never change otherwise. That is right if both are redrawn
before any group that reads them, as in systematic scans, the default of `query` and `sample`: new groups come first,
then the groups of each model in their order (x must come before the groups that read it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paracond.conditional import Conditional
from paracond.data import InputError, State, at_least, named, shown
from paracond.distributions import Distribution, Gaussian
from paracond.families import Family
from paracond.model import Context, JointModel, Regeneration
from paracond.streams import Generator

Law = Callable[[str], Distribution]
Rule = Callable[[Law, State], Distribution]


def compose(
    models: Mapping[str, JointModel],
    *,
    groups: Mapping[str, Family] | None = None,
    given: Mapping[str, Family] | None = None,
    rules: Mapping[str, Rule] | None = None,
    regeneration: Regeneration | None = None,
) -> JointModel:
    """Join several models, and rules written by hand, into one `JointModel`.

    Its groups are called "prefix.name". Parameters stay shared with the models.

    models: the models by prefix; the same model may come twice.
    rules: the conditionals that are written by hand, `rule(law, others)` by group. `others` has the encoded values of
        all other groups, `law(name)` returns a learned conditional, and the rule returns a `Distribution`.
    groups: the families of new groups, by name. Each needs a rule.
    given: the families of groups that are always given (context), by name.
    regeneration: how the joint chain begins anew (default: the smallest rate and the longest warm-up of the models,
        because it mixes no faster than any of them).
    """
    models = each_a("models", models, JointModel)
    groups, given = each_a("groups", groups, Family), each_a("given", given, Family)
    rules = named("rules", {} if rules is None else rules)
    for name, rule in rules.items():
        if not callable(rule):
            raise InputError(f"{name!r} of rules must be a function rule(law, others), found {shown(rule)}")
    if regeneration is not None and not isinstance(regeneration, Regeneration):
        raise InputError(f"regeneration must be Regeneration(rate, warmup), found {shown(regeneration)}")
    if not models and not groups:
        raise InputError("compose needs at least one model or group, found none")
    _require_alike(models)
    learned, context = _renamed(models), {name: Context(family, None) for name, family in given.items()}
    for prefix, model in models.items():
        context |= {f"{prefix}.{name}": group for name, group in model.context.items()}
    families = dict(groups) | {name: conditional.family for name, conditional in learned.items()}
    _check(learned, groups, context, rules)
    conditionals = {name: learned[name] for name in learned if name not in rules}
    conditionals |= {name: Ruled(name, families[name], rules[name], learned) for name in rules}
    regeneration = _longest(models.values()) if regeneration is None else regeneration
    return JointModel({name: conditionals[name] for name in families}, context=context, regeneration=regeneration)


def each_a(what: str, found: Mapping | None, kind: Any) -> dict[str, Any]:
    """A dictionary of which every value is of a kind; `what` is the name of the argument."""
    values = named(what, {} if found is None else found)
    for name, value in values.items():
        if not isinstance(value, kind):
            article = "an" if kind.__name__[0] in "AEIO" else "a"
            raise InputError(f"{name!r} of {what} must be {article} {kind.__name__}, found {shown(value)}")
    return values


def _require_alike(models: Mapping[str, JointModel]) -> None:
    """Refuse models of several types, or on several devices: what one returns, others could not read."""
    kinds = {f"{model.dtype} on {model.device}".removeprefix("torch."): prefix for prefix, model in models.items()}
    if len(kinds) > 1:
        found = " and ".join(f"{prefix!r} has {kind}" for kind, prefix in kinds.items())
        raise InputError(f"models must have weights of one type on one device, but {found}: convert them by model.to()")


def _longest(models: Iterable[JointModel]) -> Regeneration | None:
    each = [model.regeneration for model in models]
    return Regeneration(min(r.rate for r in each), max(r.warmup for r in each)) if each else None


def _renamed(models: Mapping[str, JointModel]) -> dict[str, Conditional]:
    """Collect all conditionals under their new names. They share their parameters with the models."""
    found = {}
    for prefix, model in models.items():
        for name in model.names:
            conditional = model.conditional(name)
            init = None if conditional.init is None else Renamed(prefix, model.init_reads(name), conditional.init)
            new = Conditional(conditional.family, Renamed(prefix, model.reads(name), conditional.network), init)
            new.shared = conditional.shared
            found[f"{prefix}.{name}"] = new
    return found


def _check(learned: Mapping, groups: Mapping, context: Mapping, rules: Mapping) -> None:
    names = [*learned, *groups, *context]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"two groups are called {twice[0]!r}: give `groups` and `given` other names than the models'")
    unruled = [name for name in groups if name not in rules]
    if unruled:
        raise InputError(f"the new group {unruled[0]!r} needs a rule: there is no model of it")
    unknown = [name for name in rules if name not in learned and name not in groups]
    if unknown:
        raise InputError(f"there is a rule for {unknown[0]!r}, which is none of {', '.join([*learned, *groups])}")


class Renamed(nn.Module):
    """Wraps a network or an initializer, which knows groups by their names in its own model."""

    def __init__(self, prefix: str, reads: Iterable[str], inner):
        super().__init__()
        self.names = {f"{prefix}.{name}": name for name in reads}
        self.reads = tuple(self.names)
        self.inner = inner

    def _own(self, others: Mapping[str, Tensor]) -> State:
        return {name: others[full] for full, name in self.names.items()}

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        return self.inner(self._own(others))

    def score(self, value: Tensor, others: Mapping[str, Tensor]) -> Tensor:
        return self.inner.score(value, self._own(others))

    def fit(self, value: Tensor, others: Mapping[str, Tensor], generator: torch.Generator) -> None:
        self.inner.fit(value, self._own(others), generator)

    def observe(self, value: Tensor, mask: Tensor):
        return self.inner.observe(value, mask)

    def sample(self, others: Mapping[str, Tensor], generator: Generator, rows: int, part=None) -> Tensor:
        return self.inner.sample(self._own(others), generator, rows, part)

    def sample_parent(self, name: str, group, others: Mapping, part, own, generator: Generator) -> Tensor:
        besides = {"x": {self.names[full]: value for full, value in others["x"].items()}, "g": group._own(others["g"])}
        return self.inner.sample_parent(self.names[name], group.inner, besides, part, own, generator)

    def evidence(self, others: Mapping[str, Tensor], part) -> Tensor:
        return self.inner.evidence(self._own(others), part)

    def log_density(self, others: Mapping[str, Tensor], part) -> Tensor:
        return self.inner.log_density(self._own(others), part)


class Ruled(Conditional):
    """A conditional that is given by a rule. `learned` are the conditionals that the rule may call."""

    def __init__(self, name: str, family: Family, rule: Rule, learned: Mapping[str, Conditional]):
        own = learned.get(name)
        super().__init__(family, nn.Identity(), None if own is None else own.init)
        self.shared = nn.ParameterDict()  # the learned laws have their own
        self.name, self.rule = name, rule
        self.names, self.learned = tuple(learned), nn.ModuleList(learned.values())

    def forward(self, others: Mapping[str, Tensor]) -> Distribution:
        def law(name: str) -> Distribution:
            if name not in self.names:
                raise InputError(f"the rule of {self.name!r} asks for {name!r}; there are {', '.join(self.names)}")
            conditional = self.learned[self.names.index(name)]
            assert isinstance(conditional, Conditional)
            if self.name in (getattr(conditional.network, "reads", None) or ()):
                raise InputError(f"the rule of {self.name!r} asks for {name!r}, which reads {self.name!r} itself")
            return conditional(others)

        found = self.rule(law, dict(others))
        if not isinstance(found, Distribution):
            raise InputError(f"the rule of {self.name!r} must return a Distribution, found {type(found).__name__}")
        return found


# --- conditionals with hand-written factors ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pinned(Distribution):
    """A law of independent coordinates, fixed to `value` in `where`. Both broadcast to the shape of a draw."""

    law: Distribution
    value: Tensor
    where: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.law, Distribution):
            raise InputError(f"law of Pinned must be a Distribution, found {shown(self.law)}")
        if not (isinstance(self.where, Tensor) and self.where.dtype == torch.bool):
            raise InputError(f"where of Pinned must be a boolean tensor, found {shown(self.where)}")

    def scores(self, value: Tensor) -> Tensor:
        certain = torch.where(value == self.value, 0.0, -torch.inf).to(value.dtype)
        return torch.where(self.where, certain, self.law.scores(value))

    def sample(self, generator: Generator) -> Tensor:
        return torch.where(self.where, self.value, self.law.sample(generator))

    def witness(self) -> Tensor:
        return self.law.witness()

    @property
    def mean(self) -> Tensor:
        return torch.where(self.where, self.value, self.law.mean)

    @property
    def variance(self) -> Tensor:
        return torch.where(self.where, 0, self.law.variance)

    @property
    def entropy(self) -> Tensor:
        return torch.where(self.where, 0, self.law.entropy)


@dataclass(frozen=True, eq=False)
class Summing(Distribution):
    """A Gaussian law of images `[batch, channels, height, width]`, given the sums of weights * x over blocks.

    With weights 1 / size^2 the sums are a smaller image (super-resolution); with size 1, `channels` and one weight per
    channel they are a grey image (colourisation). In a block with variances v and weights w

        x | sum w x = t   =   x + v w (t - sum w x) / sum w^2 v,      x ~ law.

    `scores` are those of `law`, without the factor of the constraint.
    """

    law: Gaussian
    total: Tensor
    weights: Tensor
    size: int = 1
    channels: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.law, Gaussian):
            raise InputError(f"law: Summing is for a Gaussian law, found {type(self.law).__name__}")
        if self.law.mean.ndim != 4:
            raise InputError(f"law: Summing is for images, found a mean of shape {list(self.law.mean.shape)}")
        at_least({"size of Summing": (self.size, 1)})
        *_, channels, height, width = self.law.mean.shape
        if height % self.size or width % self.size:
            raise InputError(f"blocks of {self.size} x {self.size} pixels do not fill images of {height} x {width}")
        wanted = (1 if self.channels else channels, height // self.size, width // self.size)
        if tuple(self.total.shape[1:]) != wanted:
            raise InputError(f"the sums of blocks must have shape {list(wanted)}, found {list(self.total.shape[1:])}")

    def _sums(self, x: Tensor) -> Tensor:
        pooled = nn.functional.avg_pool2d(x, self.size) * self.size**2 if self.size > 1 else x
        return pooled.sum(1, keepdim=True) if self.channels else pooled

    def _spread(self, x: Tensor) -> Tensor:
        wide = x.repeat_interleave(self.size, -1).repeat_interleave(self.size, -2) if self.size > 1 else x
        return wide.expand_as(self.law.mean)

    def _moved(self, x: Tensor) -> Tensor:
        """Move x onto the constraint."""
        pull = self.law.variance * self.weights
        gap = (self.total - self._sums(self.weights * x)) / self._sums(self.weights * pull)
        return x + pull * self._spread(gap)

    def scores(self, value: Tensor) -> Tensor:
        return self.law.scores(value)

    @torch.no_grad()
    def sample(self, generator: Generator) -> Tensor:
        return self._moved(self.law.sample(generator))

    @property
    def mean(self) -> Tensor:
        return self._moved(self.law.mean)

    @property
    def variance(self) -> Tensor:
        pull = self.law.variance * self.weights
        return self.law.variance - pull.square() / self._spread(self._sums(self.weights * pull))

    @property
    def entropy(self) -> Tensor:
        raise InputError("the entropy of one coordinate is not defined under a constraint on several")
