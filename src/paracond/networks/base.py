"""The base class of networks: it stores class and arguments as JSON, for saved models."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from paracond.data import InputError
from paracond.serialization import class_named

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
        bound = inspect.signature(cls.__init__).bind_partial(network, *arguments, **named)
        bound.apply_defaults()
        del bound.arguments["self"]
        options = bound.arguments.pop("options", {})
        network.config = bound.arguments | options
        return network


def describe(network: object) -> dict | None:
    """Describe a network as JSON; None for a foreign module, which must be supplied on load.

    network: the module.
    """
    return {"class": type(network).__name__, **network.config} if isinstance(network, Network) else None


def rebuild(variable: str, description: dict | None) -> nn.Module:
    """Rebuild a network from its description; any imported subclass of `Network` is found.

    variable: the group of the network, for messages.
    description: the JSON of `describe`.
    """
    if description is None:
        raise InputError(
            f"the network of {variable!r} is not one of paracond's: pass it as modules={{{variable!r}: ...}}"
        )
    arguments = {k: v for k, v in description.items() if k != "class" and not (k in REMOVED and v is None)}
    return class_named(Network, description["class"])(**arguments)


def read_groups(variables: Iterable[str], name: str, reads: Sequence[str] | None, least: int = 1) -> list[str]:
    """Return the groups that the network of `name` reads (default: all others), or refuse them.

    variables: the names of all groups.
    least: how many groups it must read.
    """
    others = [k for k in variables if k != name]
    if name not in variables:
        raise InputError(f"unknown variable {name!r} (there are {', '.join(others)})")
    found = others if reads is None else list(reads)
    wrong = ", ".join(k for k in found if k not in others)
    if wrong or len(found) < least:
        listed = ", ".join(others) or "nothing: it is the only group"
        raise InputError(f"reads: {name!r} can read {listed}; found {wrong or 'nothing to read'}")
    return found
