"""The base class of networks: it stores class and arguments as JSON, for saved models."""

from __future__ import annotations

import copy
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from paracond.data import InputError, shown
from paracond.families import Family
from paracond.networks.arguments import families_of, names_of, plain
from paracond.networks.outline import Outline
from paracond.serialization import class_named, is_ours, name_of

REMOVED = ("levels",)  # arguments of networks in earlier versions, which saved models may name


class Network(nn.Module):
    """The base class of networks that a saved model can rebuild.

    `reads` are the groups that the network reads; None means that it may read all of them. `config` are the arguments
    of the constructor.

    arguments, named: arguments of the constructor, which must be values that JSON can hold.
    """

    reads: tuple[str, ...] | None = None
    config: dict[str, Any]

    def __new__(cls, *arguments: Any, **named: Any) -> Network:
        network = super().__new__(cls)
        signature = inspect.signature(cls.__init__)
        bound = signature.bind_partial(network, *arguments, **named)
        bound.apply_defaults()
        network.config = {}
        for name, value in list(bound.arguments.items())[1:]:  # the first is the network
            kind = signature.parameters[name].kind
            if kind == inspect.Parameter.VAR_KEYWORD:
                network.config |= value
            elif kind == inspect.Parameter.POSITIONAL_ONLY or (kind == inspect.Parameter.VAR_POSITIONAL and value):
                raise InputError(f"{cls.__name__} must take its argument {name!r} by name, to be rebuilt from a file")
            elif kind != inspect.Parameter.VAR_POSITIONAL:
                network.config[name] = copy.copy(value) if isinstance(value, (dict, list)) else plain(value)
        return network


def describe(network: object) -> dict | None:
    """Describe a network as JSON; None for a foreign module, which must be supplied on load.

    network: the module.
    """
    if not isinstance(network, Network):
        return None
    for name, value in network.config.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            wanted = "a value that JSON can hold, for the network to be saved"
            raise InputError(f"{name!r} of {type(network).__name__} must be {wanted}, found {value!r:.60}") from None
    return {"class": name_of(type(network)), **network.config}


def rebuild(variable: str, description: dict | None, outline: Outline | None = None) -> nn.Module:
    """Rebuild a network from its description; any imported subclass of `Network` is found.

    variable: the group of the network, for messages.
    description: the JSON of `describe`.
    outline: make an outline of it only (see `networks.outline`).
    """
    if description is None:
        raise InputError(
            f"the network of {variable!r} is not one of paracond's: pass it as modules={{{variable!r}: ...}}"
        )
    arguments = {k: v for k, v in description.items() if k != "class" and not (k in REMOVED and v is None)}
    kind = class_named(Network, description["class"])
    if is_ours(kind):
        _require_short(arguments)
    if outline is None:
        return kind(**arguments)
    outline.exact = is_ours(kind)
    try:
        with outline:
            return kind(**arguments)
    except InputError:
        raise
    except Exception:
        if is_ours(kind):
            raise
        return kind(**arguments)  # a user's own may need numbers where it is made


def _require_short(arguments: Mapping[str, Any]) -> None:
    """Tensors have at most 64 axes. The product of many more sizes would take minutes."""
    for argument, value in arguments.items():
        for found in value.values() if isinstance(value, dict) else [value]:
            if isinstance(found, list) and len(found) > 64 and not all(isinstance(item, str) for item in found):
                raise InputError(f"{argument} has {len(found):,} sizes, expected at most 64")


def require_sizes(network: Network, group: str, families: Mapping[str, Family]) -> None:
    """Refuse a network that reads unknown groups, or one of ours whose arguments have other sizes than the groups.

    network: the network or the initializer of `group`.
    families: those of all groups, by name.
    """
    family, kind = families[group], type(network).__name__
    for name in network.reads if isinstance(network.reads, tuple) else ():
        if name not in families or name == group:
            raise InputError(f"the {kind} of {group!r:.80} reads {name!r:.80}, which is not another group")
    if not is_ours(type(network)):
        return
    output = network.config.get("output")
    if output is not None and tuple(output) != family.output_shape:
        raise InputError(f"the {kind} of {group!r:.80} returns {list(output)}, not {list(family.output_shape)}")
    shape, image = network.config.get("shape"), network.config.get("image")
    wanted = family.event_shape if image is None else families[image].event_shape
    if shape is not None and tuple(shape) != wanted:
        raise InputError(f"the {kind} of {group!r:.80} is for values of shape {list(shape)}, not {list(wanted)}")
    for argument in ("inputs", "flat", "images"):
        found = network.config.get(argument) or {}
        for name, size in found.items() if isinstance(found, dict) else ():
            sizes, wanted = (size if isinstance(size, (list, tuple)) else [size]), families[name].encoding_shape
            if math.prod(sizes) != math.prod(wanted) or min(sizes, default=1) < 1:
                raise InputError(f"the {kind} of {group!r:.80} reads {size} of {name!r:.80}, which has {list(wanted)}")


def read_groups(variables: Mapping[str, Family], name: str, reads: Sequence[str] | None, least: int = 1) -> list[str]:
    """Return the groups that the network of `name` reads (default: all others), or refuse them.

    variables: the families of all groups, by name.
    least: how many groups it must read.
    """
    families = families_of(variables)
    if not isinstance(name, str) or name not in families:
        raise InputError(f"name: unknown variable {shown(name)} (variables has {', '.join(families) or 'none'})")
    others = [k for k in families if k != name]
    found = others if reads is None else list(names_of("reads", reads))
    wrong = ", ".join(k for k in found if k not in others)
    if wrong or len(found) < least:
        listed = ", ".join(others) or "nothing: it is the only group"
        raise InputError(f"reads: {name!r} can read {listed}; found {wrong or 'nothing to read'}")
    return found
