"""A conditional p_theta_i(x_i | x_-i): a family and a network (section 4).

The network reads the encoded values of all other groups, as a dictionary, and puts out the family's
parameters. One forward pass gives a distribution that serves both the score and the draw.

A group may also have a start, p_0(x_i | some others), with which chains begin (see `networks.starts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from paracond.data import InputError
from paracond.distributions import Distribution
from paracond.families import Family


class Start(Protocol):
    """A module that is p_0(x_i | x_-i)."""

    def score(self, value: Tensor, others: Mapping[str, Tensor]) -> Tensor:
        """log p_0(x_i | x_-i), or a lower bound of it, `[batch]`."""

    def fit(self, value: Tensor, others: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """The best p_0 for these examples; it learns no more (its parameters want no gradient)."""

    def known(self, value: Tensor, mask: Tensor) -> Any:
        """What `value`, where `mask` is true, says of the rest of x_i: for `sample` and `evidence`."""

    def sample(self, others: Mapping[str, Tensor], generator: torch.Generator, rows: int, part: Any = None) -> Tensor:
        """One draw per row, `[rows, *event]`, given the known part of x_i if there is one."""

    def told(self, name: str, group: Any, others: Mapping, part: Any, own: Any, generator: torch.Generator) -> Tensor:
        """A draw of the group `name` that this start reads, with its own start `group`, given what is known of both."""

    def evidence(self, others: Mapping[str, Tensor], part: Any) -> Tensor:
        """log p_0(known part of x_i | x_-i), `[batch]`, but for what does not depend on x_-i."""


class Conditional(nn.Module):
    """p(x_i | x_-i) = family(network(x_-i)).

    `network` is any module that maps `{name: [batch, *encoding_shape]}` to `[batch, *output_shape]`. `start` should
    read what is known, or can be guessed, when a chain begins, such as a class.
    """

    start: Start | None

    def __init__(self, family: Family, network: nn.Module, start: Start | None = None):
        super().__init__()
        if not isinstance(family, Family) or not isinstance(network, nn.Module):
            found = f"{type(family).__name__} and {type(network).__name__}"
            raise InputError(f"Conditional takes a family and a network, found {found}")
        if start is not None and not (isinstance(start, nn.Module) and hasattr(start, "evidence")):
            raise InputError(f"a start is a module like initializers.components, found {type(start).__name__}")
        self.family = family
        self.network = network
        self.shared = nn.ParameterDict(family.shared_parameters())
        self.start = start

    @property
    def reads(self) -> tuple[str, ...] | None:
        """The groups that the distribution depends on; None if that is not known, so possibly all others."""
        return getattr(self.network, "reads", None)

    def forward(self, others: Mapping[str, Tensor]) -> Distribution:
        output = self.network(others)
        if tuple(output.shape[1:]) != self.family.output_shape:
            raise InputError(
                f"{type(self.network).__name__} must put out [batch, {str(self.family.output_shape)[1:-1]}] "
                f"for {self.family}, found {list(output.shape)}"
            )
        if output.dtype in (torch.bfloat16, torch.float16):  # under autocast: draws and scores want more digits
            output = output.float()
        # By attribute: torch.compile of torch 2.11 would break the graph at a whole ParameterDict.
        shared = {name: getattr(self.shared, name) for name in self.family.shared_parameters()}
        return self.family.distribution(output, **shared)
