"""Short `help` of packages: their docstring, which lists all names, and their functions.

pydoc writes all members of every class that it finds in a package, and a class that derives from `torch.nn.Module` has
a thousand lines of them. So pydoc finds no classes in our packages; `help` of one class is as it was.
"""

import sys
from collections.abc import Callable
from types import FrameType


def names_of(package: str) -> Callable[[], list[str]]:
    """Make the `__dir__` of a package: all its names, but for pydoc those in `__all__` that are not classes.

    package: its full name.
    """

    def names() -> list[str]:
        module = sys.modules[package]
        if _pydoc_asks():
            return [name for name in module.__all__ if not isinstance(getattr(module, name), type)]
        return sorted({*vars(module), *module.__all__})

    return names


def _pydoc_asks() -> bool:
    """Whether pydoc is writing about a module (by the name of its method: under `python -m pydoc` it is `__main__`)."""
    frame: FrameType | None = sys._getframe()
    while frame and frame.f_code.co_name != "docmodule":
        frame = frame.f_back
    return frame is not None
