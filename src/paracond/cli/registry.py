"""The commands and experiments of the command line, by name. A table: nothing is imported until one of them is used.

Every module here has a dataclass `Config`, which becomes its options, and a function `main(config)`. An experiment
returns an `Outcome`, a command the text to print.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import NamedTuple


class Entry(NamedTuple):
    """One line of the table: what it does, and the module that does it."""

    help: str
    module: str

    def load(self) -> ModuleType:
        """Import the module, and with it torch."""
        return import_module(self.module)


_DEMO = Entry(
    "The demo: one model classifies, completes and generates digits, also with few labels.",
    "paracond.experiments.digits.experiment",
)
COMMANDS = {
    "list": Entry("List the experiments.", ""),
    "demo": _DEMO,
    "reproduce": Entry("Run an experiment: prints a table, writes DIR/results.json and DIR/report.html.", ""),
    "train": Entry("Train the model of an experiment and save it in OUT/model.", "paracond.experiments.images.train"),
    "sample": Entry("Draw from a saved model, given any part of it.", "paracond.cli.sample"),
    "classify": Entry("Decide a group of a saved model by its maximum marginal.", "paracond.cli.classify"),
}
EXPERIMENTS = {
    "demo": _DEMO,
    "ising": Entry(
        "Three nodes: KL of the learned joint, from complete and from incomplete data (section 5.1).",
        "paracond.experiments.ising",
    ),
    "chain-length": Entry(
        "Chain length and detailed balance: asymmetry and the objective along n (section 5.2, appendix B).",
        "paracond.experiments.detailed_balance.experiment",
    ),
    "mnist": Entry(
        "MNIST: images, classes and latents in one model (section 5.3).", "paracond.experiments.images.mnist"
    ),
    "fashion": Entry(
        "Fashion-MNIST: grey images, classes and latents in one model (section 5.3).",
        "paracond.experiments.images.fashion",
    ),
    "faces": Entry(
        "Faces: images, segmentations, attributes and latents in one model (section 5.4).",
        "paracond.experiments.faces.experiment",
    ),
    "compare": Entry(
        "VAE, symmetric equilibrium learning and ours on the same conditionals (section 5.5).",
        "paracond.experiments.comparison.experiment",
    ),
}


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that is not in the table, with the closest one that is."""
    known = list(known)
    close = difflib.get_close_matches(name, known, 1)
    hint = f" (do you mean {close[0]}?)" if close else ""
    return f"there is no {kind} {name!r}{hint}; choose one of {', '.join(known)}"
