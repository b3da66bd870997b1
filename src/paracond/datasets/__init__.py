"""Data sets: each function returns `Data`, values and which of them are observed."""

from paracond.datasets import idx
from paracond.datasets.digits import digits
from paracond.datasets.faces import faces
from paracond.datasets.images import fashion, keep_labels, mnist
from paracond.datasets.missing import hide

__all__ = ["digits", "faces", "fashion", "hide", "idx", "keep_labels", "mnist"]
