"""`names.json` beside a saved model: the names of the coordinates of its flat groups, for the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from paracond import serialization

NAMES = "names.json"
NAMES_FORMAT = "paracond names 1"


def write_names(folder: Path, names: Mapping[str, Sequence[str]]) -> None:
    """Write the names of coordinates, by group, with a digest of the file."""
    described = {"format": NAMES_FORMAT, "names": {name: list(called) for name, called in names.items()}}
    serialization.replace_file(folder / NAMES, serialization.seal(described))
