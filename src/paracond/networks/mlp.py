"""Multilayer perceptrons on the concatenated encodings of the other groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from paracond.data import InputError, as_float, one_of, seeded, shown
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
    limits: a low and a high limit (or None) for each channel of the output, its first axis. Half way to them nothing
        changes; beyond that the output bends towards them. `mlp` takes those of the group's family.
    """

    def __init__(
        self,
        inputs: Mapping[str, int],
        output: Sequence[int],
        hidden: int = 256,
        depth: int = 2,
        activation: str = "silu",
        noise: float = 0.0,
        limits: Sequence[Sequence[float | None]] | None = None,
    ):
        super().__init__()
        one_of("activation", activation, tuple(ACTIVATIONS))
        inputs, output = sizes_of("inputs", inputs), shape_of("output", output)
        if not inputs:
            raise InputError("inputs is empty: the network must read at least one group")
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
        self.limits = None if limits is None else _checked(limits, self.output)

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        flat = torch.cat([others[name].reshape(len(others[name]), -1) for name in self.names], 1)
        if self.training and self.noise:
            flat = flat + self.noise * torch.randn_like(flat)
        output = self.layers(flat).view(-1, *self.output)
        if self.limits is None:
            return output
        channels = zip(output.unbind(1), self.limits, strict=True)
        return torch.stack([_limited(channel, *ends) for channel, ends in channels], 1)


def _limited(raw: Tensor, low: float | None, high: float | None) -> Tensor:
    """Numbers as they are up to half of a limit, and beyond that smoothly bounded by it."""
    found = raw.clamp(None if low is None else low / 2, None if high is None else high / 2)
    for end in [end for end in (low, high) if end is not None]:
        over = (raw - end / 2) * (2 / end)  # in halves of the limit, beyond its half
        found = found + end / 2 * torch.tanh(over.clamp(min=0))
    return found


def _checked(
    limits: Sequence[Sequence[float | None]], output: Sequence[int]
) -> list[tuple[float | None, float | None]]:
    """Limits that fit the output, or refuse them."""
    wanted = "a low limit under 0 and a high one over 0, or None, for each channel of the output"
    pairs = isinstance(limits, (list, tuple)) and all(isinstance(e, (list, tuple)) and len(e) == 2 for e in limits)
    if not pairs or not output or len(limits) != output[0]:
        raise InputError(f"limits must be {wanted}, found {shown(limits)}")
    found = []
    for low, high in limits:
        low, high = (None if end is None else as_float("limits", end) for end in (low, high))
        if (low is not None and low >= 0) or (high is not None and high <= 0):
            raise InputError(f"limits must be {wanted}, found {shown(limits)}")
        found.append((low, high))
    return found


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
    options: those of `MLP`: hidden, depth, activation, noise, limits (None: none).
    """
    inputs = {k: math.prod(variables[k].encoding_shape) for k in read_groups(variables, name, reads)}
    options.setdefault("limits", variables[name].output_limits())
    return MLP(inputs, variables[name].output_shape, **options)
