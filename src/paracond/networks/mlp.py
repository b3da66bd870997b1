"""Multilayer perceptrons on the concatenated encodings of the other groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from paracond.data import InputError, as_float, one_of, seeded
from paracond.families import Family
from paracond.networks.arguments import counts, names_of, shape_of, sizes_of
from paracond.networks.base import Network, read_groups

ACTIVATIONS = {"silu": nn.SiLU, "relu": nn.ReLU, "tanh": nn.Tanh}


class MLP(Network):
    """A multilayer perceptron on the concatenated encodings of some groups.

    inputs: the encoded size of every group that it reads, by name.
    output: the shape of its output, without the batch.
    hidden: the width of hidden layers.
    depth: the number of hidden layers.
    activation: "silu", "relu" or "tanh".
    noise: the standard deviation of noise on all inputs in training mode. It smooths this conditional, and leaves the
        data and the other conditionals as they are.
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
        super().__init__()
        one_of("activation", activation, tuple(ACTIVATIONS))
        inputs, output = sizes_of("inputs", inputs), shape_of("output", output)
        hidden, depth = counts({"hidden": (hidden, 1), "depth": (depth, 0)})
        noise = as_float("noise", noise)
        if noise < 0:
            raise InputError(f"noise must not be negative, found {noise}")
        width = sum(inputs.values())
        layers: list[nn.Module] = []
        for _ in range(depth):  # one by one: a file may ask for more layers than memory holds
            layers += [nn.Linear(width, hidden), ACTIVATIONS[activation]()]
            width = hidden
        self.layers = nn.Sequential(*layers, nn.Linear(width, math.prod(output)))
        self.names = self.reads = tuple(inputs)
        self.output, self.noise = tuple(output), noise

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        flat = torch.cat([others[name].reshape(len(others[name]), -1) for name in self.names], 1)
        if self.training and self.noise:
            flat = flat + self.noise * torch.randn_like(flat)
        return self.layers(flat).view(-1, *self.output)


class StackedMLP(Network):
    """One small MLP per coordinate: coordinate r of the output reads coordinate r of every other group.

    A model whose groups have `members` coordinates is then that many independent models, trained together.

    names: the groups that it reads.
    members: the number of coordinates of each group.
    hidden: the width of the hidden layer.
    seed: fixes the initial weights.
    """

    def __init__(self, names: Sequence[str], members: int, hidden: int = 16, seed: int = 0):
        super().__init__()
        self.names = self.reads = names_of("names", names)
        members, hidden = counts({"members": (members, 1), "hidden": (hidden, 1)})
        if not self.names:
            raise InputError("names is empty: the network must read at least one group")
        generator = seeded(seed)

        def uniform(*shape: int, fan_in: int) -> nn.Parameter:
            bound = 1 / math.sqrt(fan_in)
            return nn.Parameter((2 * torch.rand(shape, generator=generator) - 1) * bound)

        inputs = len(self.names)
        self.weight1 = uniform(members, inputs, hidden, fan_in=inputs)
        self.bias1 = uniform(members, 1, hidden, fan_in=inputs)
        self.weight2 = uniform(members, hidden, 1, fan_in=hidden)
        self.bias2 = uniform(members, 1, 1, fan_in=hidden)

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        stacked = torch.stack([others[name].T for name in self.names], -1)  # [members, batch, inputs]
        hidden = torch.tanh(torch.baddbmm(self.bias1, stacked, self.weight1))
        return torch.baddbmm(self.bias2, hidden, self.weight2).squeeze(-1).T


def mlp(variables: Mapping[str, Family], name: str, reads: Sequence[str] | None = None, **options) -> MLP:
    """Make the MLP of one group of a model.

    variables: the families of all groups, by name.
    name: the group.
    reads: the groups that the network reads (default: all others). The model assumes that, given these, the group does
        not depend on the rest.
    options: those of `MLP`: hidden, depth, activation, noise.
    """
    inputs = {k: math.prod(variables[k].encoding_shape) for k in read_groups(variables, name, reads)}
    return MLP(inputs, variables[name].output_shape, **options)
