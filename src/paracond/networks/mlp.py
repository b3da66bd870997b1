"""Multilayer perceptrons on the concatenated encodings of the other groups."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from paracond.data import InputError, at_least
from paracond.families import Family
from paracond.networks.base import Network

ACTIVATIONS = {"silu": nn.SiLU, "relu": nn.ReLU, "tanh": nn.Tanh}


class MLP(Network):
    """`depth` hidden layers. `inputs` gives the encoded size of every group that is read, by name.

    `noise` is the standard deviation of what is added to all inputs while the module is in training mode: it smooths
    this conditional and leaves the data, and so the other conditionals, as they are.
    """

    def __init__(
        self,
        inputs: Mapping[str, int],
        output: Sequence[int],
        hidden: int = 256,
        depth: int = 2,
        activation: str = "silu",
        noise: float = 0.0,
    ):
        super().__init__(
            inputs=dict(inputs), output=list(output), hidden=hidden, depth=depth, activation=activation, noise=noise
        )
        if activation not in ACTIVATIONS:
            raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}, found {activation!r}")
        at_least({"hidden": (hidden, 1), "depth": (depth, 0)})
        if not noise >= 0:
            raise InputError(f"noise must not be negative, found {noise}")
        widths = [sum(inputs.values()), *[hidden] * depth]
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), ACTIVATIONS[activation]()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], math.prod(output)))
        self.names = self.reads = tuple(inputs)
        self.output, self.noise = tuple(output), noise

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        flat = torch.cat([others[name].reshape(len(others[name]), -1) for name in self.names], 1)
        if self.training and self.noise:
            flat = flat + self.noise * torch.randn_like(flat)
        return self.layers(flat).view(-1, *self.output)


class StackedMLP(Network):
    """One small MLP per coordinate: coordinate r of the output reads coordinate r of every other group.

    So a model whose groups have `members` coordinates is that many independent models, trained together.
    """

    def __init__(self, names: Sequence[str], members: int, hidden: int = 16, seed: int = 0):
        super().__init__(names=list(names), members=members, hidden=hidden, seed=seed)
        self.names = self.reads = tuple(names)
        generator = torch.Generator().manual_seed(seed)

        def uniform(*shape: int, fan_in: int) -> nn.Parameter:
            bound = 1 / math.sqrt(fan_in)
            return nn.Parameter((2 * torch.rand(shape, generator=generator) - 1) * bound)

        inputs = len(names)
        self.weight1 = uniform(members, inputs, hidden, fan_in=inputs)
        self.bias1 = uniform(members, 1, hidden, fan_in=inputs)
        self.weight2 = uniform(members, hidden, 1, fan_in=hidden)
        self.bias2 = uniform(members, 1, 1, fan_in=hidden)

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        stacked = torch.stack([others[name].T for name in self.names], -1)  # [members, batch, inputs]
        hidden = torch.tanh(torch.baddbmm(self.bias1, stacked, self.weight1))
        return torch.baddbmm(self.bias2, hidden, self.weight2).squeeze(-1).T


def mlp(variables: Mapping[str, Family], name: str, reads: Sequence[str] | None = None, **options) -> MLP:
    """The MLP for group `name` of a model with these variables; options are those of `MLP`.

    `reads` names the groups it sees (all others, if not given): leaving some out states that, given those it
    reads, the group does not depend on them.
    """
    if name not in variables:
        raise InputError(f"unknown variable {name!r} (there are {', '.join(variables)})")
    reads = [k for k in variables if k != name] if reads is None else reads
    unknown = [k for k in reads if k not in variables or k == name]
    if unknown or not reads:
        others = ", ".join(k for k in variables if k != name) or "nothing: it is the only group"
        raise InputError(f"the network of {name!r} can read {others}; found {', '.join(unknown) or 'nothing to read'}")
    inputs = {k: math.prod(variables[k].encoding_shape) for k in reads}
    return MLP(inputs, variables[name].output_shape, **options)
