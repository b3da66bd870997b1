"""paracond: joint probability models from parametric conditionals.

A joint model is a set of named conditionals; learning and every kind of inference are runs of one Markov chain with
some coordinates clamped.
"""

from paracond import (
    datasets,
    diagnostics,
    directed,
    exact,
    harmoniums,
    holds,
    kernels,
    known,
    networks,
    noise,
    observers,
    schedules,
)
from paracond.chain import Chain
from paracond.compose import Pinned, Summing, compose
from paracond.conditionals import Conditional
from paracond.directed import VAE, Symmetric
from paracond.distributions import Distribution
from paracond.engine import Engine
from paracond.families import Binary, Categorical, Family, Real
from paracond.faults import NonFiniteError
from paracond.guidance import edited, guided
from paracond.joint import Condition, JointModel
from paracond.lasting import Lasting
from paracond.learner import Learner
from paracond.queries import Answer, NotMixedWarning, impute, query, sample
from paracond.restarts import Restart
from paracond.state import Data, InputError, Mask, Observed, State

__version__ = "0.1.0"

__all__ = [
    "VAE",
    "Answer",
    "Binary",
    "Categorical",
    "Chain",
    "Condition",
    "Conditional",
    "Data",
    "Distribution",
    "Engine",
    "Family",
    "InputError",
    "JointModel",
    "Lasting",
    "Learner",
    "Mask",
    "NonFiniteError",
    "NotMixedWarning",
    "Observed",
    "Pinned",
    "Real",
    "Restart",
    "State",
    "Summing",
    "Symmetric",
    "compose",
    "datasets",
    "diagnostics",
    "directed",
    "edited",
    "exact",
    "guided",
    "harmoniums",
    "holds",
    "impute",
    "kernels",
    "known",
    "networks",
    "noise",
    "observers",
    "query",
    "sample",
    "schedules",
]
