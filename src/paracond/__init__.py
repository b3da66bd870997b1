"""paracond: joint probability models from parametric conditionals.

A joint model is a set of named conditionals; learning and every kind of inference are runs of one Markov chain with
some coordinates clamped.
"""

from paracond import datasets, diagnostics, exact, initializers, networks, observers
from paracond.baselines import directed
from paracond.baselines import harmonium as harmoniums
from paracond.baselines import special_cases as known
from paracond.baselines.directed import VAE, Symmetric
from paracond.chain import Chain
from paracond.compose import Pinned, Summing, compose
from paracond.conditional import Conditional
from paracond.data import Data, InputError, Mask, Observed, State
from paracond.distributions import Distribution
from paracond.families import Binary, Categorical, Family, Real
from paracond.guidance import edited, guided
from paracond.inference import Answer, NotMixedWarning, impute, query, sample
from paracond.model import Condition, JointModel
from paracond.runtime.engine import Engine
from paracond.runtime.nonfinite import NonFiniteError
from paracond.theory import kernels
from paracond.theory import noise_kernels as noise
from paracond.training import holds, schedules
from paracond.training.learner import Learner
from paracond.training.restarts import Restart
from paracond.training.slow_rows import Lasting

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
    "initializers",
    "kernels",
    "known",
    "networks",
    "noise",
    "observers",
    "query",
    "sample",
    "schedules",
]
