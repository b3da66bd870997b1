"""A conditional p_theta_i(x_i | x_-i): a family and a network (section 4).

The network reads the encoded values of all other groups, as a dictionary, and puts out the family's
parameters. One forward pass gives a distribution that serves both the score and the draw.

A group may also have a start network, p_0(x_i | some others): where chains begin. Informative latents move slowly, so a
chain from uniform ones can take very long to reach what the model has learned; p_0 learns what they usually are.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from paracond.families import Distribution, Family
from paracond.state import InputError


class Conditional(nn.Module):
    """p(x_i | x_-i) = family(network(x_-i)), and, with a network `start`, p_0(x_i | x_-i) = family(start(x_-i)).

    `network` is any module that maps `{name: [batch, *encoding_shape]}` to `[batch, *output_shape]`. `start` should
    read only what is known when a chain begins, such as a class.
    """

    def __init__(self, family: Family, network: nn.Module, start: nn.Module | None = None):
        super().__init__()
        modules = isinstance(network, nn.Module) and isinstance(start, (nn.Module, type(None)))
        if not isinstance(family, Family) or not modules:
            found = f"{type(family).__name__} and {type(network).__name__}"
            raise InputError(f"Conditional takes a family and a network, found {found}")
        self.family = family
        self.network = network
        self.shared = nn.ParameterDict(family.shared_parameters())
        self.start = start
        self.start_shared = nn.ParameterDict(family.shared_parameters() if start is not None else {})

    @property
    def reads(self) -> tuple[str, ...] | None:
        """The groups that the distribution depends on; None if that is not known, so possibly all others."""
        return getattr(self.network, "reads", None)

    def forward(self, others: Mapping[str, Tensor]) -> Distribution:
        return self._distribution(self.network, others, self.shared)

    def begin(self, others: Mapping[str, Tensor]) -> Distribution:
        """p_0(x_i | x_-i), where there is a start network."""
        assert self.start is not None
        return self._distribution(self.start, others, self.start_shared)

    def _distribution(self, network: nn.Module, others: Mapping[str, Tensor], shared: nn.ParameterDict) -> Distribution:
        output = network(others)
        if tuple(output.shape[1:]) != self.family.output_shape:
            raise InputError(
                f"{type(network).__name__} must put out [batch, {str(self.family.output_shape)[1:-1]}] "
                f"for {self.family}, found {list(output.shape)}"
            )
        if output.dtype in (torch.bfloat16, torch.float16):  # under autocast: draws and scores want more digits
            output = output.float()
        return self.family.distribution(output, **shared)
