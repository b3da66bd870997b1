"""The base class of networks: it stores class and arguments as JSON, for saved models."""

from __future__ import annotations

from torch import nn

from paracond.data import InputError
from paracond.serialization import class_named

REMOVED = ("levels",)  # arguments of networks in earlier versions, which saved models may name


class Network(nn.Module):
    """The base class of networks that a saved model can rebuild.

    `reads` are the groups that the network reads; None means that it may read all of them.

    config: the arguments of the constructor, which JSON can hold.
    """

    reads: tuple[str, ...] | None = None

    def __init__(self, **config):
        super().__init__()
        self.config = config


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
