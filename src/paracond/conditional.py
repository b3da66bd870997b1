"""A conditional p_theta_i(x_i | x_-i): a family and a network (section 4).

    p_theta_i(x_i | x_-i) = family(network(encoded x_-i)).

The network reads the encoded values of the other groups, as a dictionary, and returns the family's parameters. One
forward pass gives a distribution that serves both the score and the draw. A group may also have an initializer,
p_0(x_i | some others), from which the first state of a chain is drawn (see `initializers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from paracond.data import InputError
from paracond.distributions import Distribution
from paracond.families import Family
from paracond.streams import Generator


class Initializer(Protocol):
    """A module that is p_0(x_i | some other groups). `reads` names these groups."""

    def score(self, value: Tensor, others: Mapping[str, Tensor]) -> Tensor:
        """log p_0(x_i | others), or a lower bound of it, `[batch]`."""

    def fit(self, value: Tensor, others: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """Go to the best p_0 for these examples, and stop learning (parameters require no gradient)."""

    def observe(self, value: Tensor, mask: Tensor) -> Any:
        """What `value`, where `mask` is true, implies for the rest of x_i: the `part` that other methods take."""

    def sample(self, others: Mapping[str, Tensor], generator: Generator, rows: int, part: Any = None) -> Tensor:
        """One draw per row, `[rows, *event]`, given the known part of x_i if there is one."""

    def sample_parent(
        self, name: str, group: Any, others: Mapping, part: Any, own: Any, generator: Generator
    ) -> Tensor:
        """A draw of the group `name` that this initializer reads, given the known parts of both groups.

        group, own: the initializer of `name`, and its known values and mask (or None).
        """

    def evidence(self, others: Mapping[str, Tensor], part: Any) -> Tensor:
        """log p_0(known part of x_i | others), `[batch]`, up to terms that do not depend on the others."""

    def log_density(self, others: Mapping[str, Tensor], part: Any) -> Tensor:
        """log p_0(known part of x_i | others), `[batch]`."""


class Conditional(nn.Module):
    """Models one group given the others: p(x_i | x_-i) = family(network(x_-i)).

    family: what values the group takes (`Binary`, `Categorical`, `Real`, ...).
    network: any module that maps `{name: [batch, *encoding_shape]}` of the other groups to `[batch, *output_shape]`.
    init: an initializer such as `initializers.pca(...)`; it should read groups that are known, or can be inferred, when
        a chain begins, such as a class.
    """

    init: Initializer | None

    def __init__(self, family: Family, network: nn.Module, init: Initializer | None = None):
        super().__init__()
        if not isinstance(family, Family) or not isinstance(network, nn.Module):
            found = f"{type(family).__name__} and {type(network).__name__}"
            raise InputError(f"Conditional takes a family and a network, found {found}")
        if init is not None and not (isinstance(init, nn.Module) and hasattr(init, "evidence")):
            raise InputError(f"init must be a module such as initializers.pca(...), found {type(init).__name__}")
        self.family = family
        self.network = network
        self.shared = nn.ParameterDict(family.shared_parameters())
        self.init = init

    def forward(self, others: Mapping[str, Tensor]) -> Distribution:
        """Return the distribution given the encoded values of the other groups."""
        before = _versions(others)
        output = self._checked(self.network(others), others)
        if _versions(others) != before:
            raise InputError(
                f"{type(self.network).__name__} changes what it reads in place, which is not its own: copy it first"
            )
        # By attribute: torch.compile of torch 2.11 would break the graph at a whole ParameterDict.
        shared = {name: getattr(self.shared, name) for name in self.family.shared_parameters()}
        return self.family.distribution(output, **shared)

    def _checked(self, output: Tensor, others: Mapping[str, Tensor]) -> Tensor:
        """Refuse what a network may not return: a row for every row that it read, of the family's shape."""
        read = next(iter(others.values()), None)
        plain = isinstance(output, Tensor) and output.is_floating_point() and output.layout == torch.strided
        plain = plain and output.device == (output.device if read is None else read.device)
        rows = output.shape[:1] if read is None and plain else () if read is None else read.shape[:1]
        if not (plain and output.ndim and tuple(output.shape) == (*rows, *self.family.output_shape)):
            wanted = ", ".join([*map(str, rows or ["batch"]), *map(str, self.family.output_shape)])
            found = f"{output.dtype} {list(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            if isinstance(output, Tensor) and not plain:
                found += f" ({output.layout} on {output.device})"
            raise InputError(
                f"{type(self.network).__name__} must return [{wanted}] for {self.family}, found {found}".replace(
                    "torch.", ""
                )
            )
        half = output.dtype in (torch.bfloat16, torch.float16)  # under autocast: draws and scores need more digits
        double = output.dtype == torch.float64 and read is not None and read.dtype != torch.float64
        return output.float() if half or double else output


def _versions(others: Mapping[str, Tensor]) -> list[int]:
    """How often each tensor was changed in place. Compiled code and inference tensors do not count that."""
    if torch.compiler.is_compiling():
        return []
    return [0 if value.is_inference() else value._version for value in others.values()]
