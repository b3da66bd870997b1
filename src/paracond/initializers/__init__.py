"""Initializers say where chains begin: the first state of any chain, and the distributions p_0 that it is drawn from.

A group may have an initializer p_0(x_i | some other groups) (`Conditional(family, network, init=...)`). It puts the
first state of a chain near the data. The limiting distribution of the chain does not depend on it.
"""

from paracond.initializers.initial_state import (
    draw_group,
    draw_groups,
    fit,
    has_init,
    initial_state,
    log_density,
    random_state,
    score,
    with_init,
)
from paracond.initializers.pca import PCA, pca

__all__ = [
    "PCA",
    "draw_group",
    "draw_groups",
    "fit",
    "has_init",
    "initial_state",
    "log_density",
    "pca",
    "random_state",
    "score",
    "with_init",
]
