"""Where chains begin."""

from paracond.initializers.pca import Components, components

__all__ = ["Components", "components"]
