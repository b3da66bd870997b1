"""Data sets: each function returns `Data`, values and which of them are observed."""

from paracond.datasets.digits import digits
from paracond.datasets.missing import hide

__all__ = ["digits", "hide"]
