"""Outlines: networks as their arguments describe them, with the shapes of their tensors and without any number.

A file may describe a network of any size in a few bytes. Its outline is compared with the tensors that the file holds
before the network is built, and is given up as soon as it has more tensors than these.

Tensors are on the meta device, which has no memory. Its arithmetic takes seconds to import, so what constructors do to
first weights (random numbers, a factor) is replaced by what it does to shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from paracond.data import InputError

SPARE = 16  # tensors that a file need not have
RANDOM: tuple[Callable, ...] = (torch.rand, torch.randn)
FACTORIES: tuple[Callable, ...] = (
    *RANDOM,
    torch.empty,
    torch.zeros,
    torch.ones,
    torch.full,
    torch.eye,
    torch.arange,
    torch.linspace,
    torch.tensor,
    torch.as_tensor,
    torch.randint,
    torch.randperm,
)
ARITHMETIC = {"add", "sub", "mul", "div", "pow", "neg", "exp", "log", "sqrt", "cos", "sin", "abs", "rsub", "truediv"}
IN_PLACE = {"uniform_", "normal_", "fill_", "zero_", "copy_", "trunc_normal_", "constant_", "zeros_", "ones_"}
IN_PLACE |= {f"{kind}_{law}_" for kind in ("kaiming", "xavier") for law in ("uniform", "normal")}
IN_PLACE |= {f"{name}_" for name in ARITHMETIC} | {f"__i{name}__" for name in ARITHMETIC} | {"__setitem__"}


class Outline(TorchFunctionMode):
    """Within it, tensors have shapes and no memory. After too many of them, no more are made.

    held: how many tensors the file has or shares. Layers of torch, which are all that loops in our networks make, call
        `torch.empty` once for each; `exact` counts them so. Other tensors may be steps on the way to first weights.
    """

    exact = True

    def __init__(self, held: int):
        super().__init__()
        self.layers, self.left = held + SPARE, 16 * (held + SPARE)

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if function in FACTORIES:
            self._count(function is torch.empty and self.exact)
            named = {k: v for k, v in named.items() if k != "generator"} | {"device": "meta"}
            if function is torch.arange and not named.keys() & {"start", "end", "step"}:
                function, args = torch.empty, (len(range(*args)),)
            return (torch.empty if function in RANDOM else function)(*args, **named)
        if name in IN_PLACE:
            return args[0] if args else named.get("tensor")
        tensors = [value for value in args if isinstance(value, Tensor)]
        if name.strip("_") in ARITHMETIC and tensors and not named:
            self._count()
            shape = _broadcast([tuple(tensor.shape) for tensor in tensors])
            dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())
            return torch.empty(shape, dtype=dtype, device="meta")
        return function(*args, **named)

    def _count(self, layer: bool = False) -> None:
        self.layers, self.left = self.layers - layer, self.left - 1
        if min(self.layers, self.left) < 0:
            raise InputError("it describes networks of more tensors than the weights files hold")


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """`torch.broadcast_shapes`, which takes a second to import."""
    columns = itertools.zip_longest(*[reversed(shape) for shape in shapes], fillvalue=1)
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in columns)[::-1]


def beyond_state(module: nn.Module) -> int:
    """The bytes of tensors that a saved model does not hold: they are computed from arguments."""
    held = module.state_dict().keys()
    return sum(buffer.nbytes for name, buffer in module.named_buffers() if name not in held)
