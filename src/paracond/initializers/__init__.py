"""Initializers say where chains begin: the first state of any chain, and the distributions p_0 that it is drawn from.

A group may have an initializer p_0(x_i | some other groups) (`Conditional(family, network, init=...)`). It puts the
first state of a chain near the data. The limiting distribution of the chain does not depend on it.

- `pca` makes a `PCA`, an initializer by principal components. `fit` fits those of a model to data.
- `with_init` and `has_init`: a model with another initializer, and whether it has any.
- `initial_state`, `random_state`, `draw_group`, `draw_groups`: first states of chains, and parts of them.
- `score` and `log_density`: log p_0 of a group, and of all that is observed.

`help(pc.initializers.PCA)` describes the class and its arguments.
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
from paracond.short_help import names_of

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

__dir__ = names_of(__name__)
