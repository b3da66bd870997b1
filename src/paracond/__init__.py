"""paracond: joint probability models from parametric conditionals.

A joint model is a set of named conditionals; learning and every kind of inference are runs of one Markov chain with
some coordinates clamped.

- A model: `JointModel`, `Conditional`, `Context`, `Regeneration`.
- Kinds of values: `Binary`, `Categorical`, `Real`, `Truncated`; your own derive from `Family` and `Distribution`.
- Data: `Data`, `Observed`, `datasets`.
- Networks, and where chains begin: `networks`, `initializers`.
- Learning: `Learner`, `CompletionOptions`, `schedules`, `choose_regeneration`.
- Questions: `query` (returns an `Answer`), `sample`, `impute`, `log_likelihood`, `anomaly_score`.
- When questions are answered: `Precise`, `Tours`, `Converged`, `Sweeps`.
- Joined models, guidance, edits: `compose`, `guided`, `edited`.
- Checks: `exact`, `diagnostics`.
- What runs all this: `Chain`, `Engine`.
- Errors: `InputError`, `NonFiniteError`. Warnings: `ImpreciseWarning`, `NotMixedWarning`, `RoughWarning`.

`help(pc.Learner)` describes one of them.

Names are imported when they are first used, so that `import paracond` and `paracond --help` do not wait for torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paracond.short_help import names_of

if TYPE_CHECKING:
    from paracond import datasets, diagnostics, exact, initializers, networks
    from paracond.chain import Chain
    from paracond.composition import compose
    from paracond.conditional import Conditional
    from paracond.data import Data, InputError, Observed
    from paracond.distributions import Distribution
    from paracond.families import Binary, Categorical, Family, Real, Truncated
    from paracond.gibbs import Converged, Sweeps
    from paracond.guidance import edited, guided
    from paracond.inference import ImpreciseWarning, NotMixedWarning, impute, query, sample
    from paracond.likelihood import RoughWarning, anomaly_score, log_likelihood
    from paracond.model import Context, JointModel, Regeneration
    from paracond.precision import Precise, Tours
    from paracond.question import Answer
    from paracond.regeneration import choose_regeneration
    from paracond.runtime.engine import Engine
    from paracond.runtime.nonfinite import NonFiniteError
    from paracond.training import schedules
    from paracond.training.completion import CompletionOptions
    from paracond.training.learner import Learner

__version__ = "0.1.0"

_MODULES = {
    "chain": ["Chain"],
    "composition": ["compose"],
    "conditional": ["Conditional"],
    "data": ["Data", "InputError", "Observed"],
    "distributions": ["Distribution"],
    "families": ["Binary", "Categorical", "Family", "Real", "Truncated"],
    "guidance": ["edited", "guided"],
    "gibbs": ["Converged", "Sweeps"],
    "inference": ["ImpreciseWarning", "NotMixedWarning", "impute", "query", "sample"],
    "likelihood": ["RoughWarning", "anomaly_score", "log_likelihood"],
    "model": ["Context", "JointModel", "Regeneration"],
    "precision": ["Precise", "Tours"],
    "question": ["Answer"],
    "regeneration": ["choose_regeneration"],
    "runtime.engine": ["Engine"],
    "runtime.nonfinite": ["NonFiniteError"],
    "training.completion": ["CompletionOptions"],
    "training.learner": ["Learner"],
}
_PACKAGES = {
    "datasets": "datasets",
    "diagnostics": "diagnostics",
    "exact": "exact",
    "initializers": "initializers",
    "networks": "networks",
    "schedules": "training.schedules",
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Answer",
    "Binary",
    "Categorical",
    "Chain",
    "CompletionOptions",
    "Conditional",
    "Context",
    "Converged",
    "Data",
    "Distribution",
    "Engine",
    "Family",
    "ImpreciseWarning",
    "InputError",
    "JointModel",
    "Learner",
    "NonFiniteError",
    "NotMixedWarning",
    "Observed",
    "Precise",
    "Real",
    "Regeneration",
    "RoughWarning",
    "Sweeps",
    "Tours",
    "Truncated",
    "anomaly_score",
    "choose_regeneration",
    "compose",
    "datasets",
    "diagnostics",
    "edited",
    "exact",
    "guided",
    "impute",
    "initializers",
    "log_likelihood",
    "networks",
    "query",
    "sample",
    "schedules",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        found = import_module(f"paracond.{_PACKAGES[name]}")
    elif name in _WHERE:
        found = getattr(import_module(f"paracond.{_WHERE[name]}"), name)
    else:
        raise AttributeError(  # `obj`: Python then asks "Did you mean: 'Learner'?"
            f"module 'paracond' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    globals()[name] = found
    return found


__dir__ = names_of(__name__)
