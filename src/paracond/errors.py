"""What bad input is refused with, and how a message shows what was found."""

from __future__ import annotations

import reprlib

SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = 60
SHORT.maxlist = SHORT.maxtuple = SHORT.maxdict = 4
SHORT.maxlevel = 3


class InputError(ValueError):
    """Bad input is refused with this error, before anything is changed. The message names the argument."""


def shown(value: object) -> str:
    """A value as messages show it: short and on one line, whatever it is."""
    try:
        return " ".join(SHORT.repr(value).split())
    except Exception:  # a whole number with thousands of digits, say
        return f"a {type(value).__name__} that cannot be shown"
