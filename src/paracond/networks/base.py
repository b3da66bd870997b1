"""What a saved model needs to know of a network: its class and its arguments, as JSON."""

from __future__ import annotations

from torch import nn

from paracond.data import InputError
from paracond.serialization import class_named

REMOVED = ("levels",)  # arguments that networks of earlier versions had, and that saved models may name


class Network(nn.Module):
    """A module that can be rebuilt from `config`, the JSON-able keyword arguments of its constructor.

    `reads` names the groups that it looks at; None means that it may look at all of them.
    """

    reads: tuple[str, ...] | None = None

    def __init__(self, **config):
        super().__init__()
        self.config = config


def describe(network: object) -> dict | None:
    """A network as JSON, or None for a module that is not ours and must be supplied on load."""
    return {"class": type(network).__name__, **network.config} if isinstance(network, Network) else None


def rebuild(variable: str, description: dict | None) -> nn.Module:
    """The inverse of `describe`; finds every imported subclass of `Network`."""
    if description is None:
        raise InputError(
            f"the network of {variable!r} is not one of paracond's: pass it as modules={{{variable!r}: ...}}"
        )
    arguments = {k: v for k, v in description.items() if k != "class" and not (k in REMOVED and v is None)}
    return class_named(Network, description["class"])(**arguments)
