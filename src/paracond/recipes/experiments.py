"""The experiments on images, by the name of their data set."""

from paracond.recipes import fashion, mnist

EXPERIMENTS = {"mnist": mnist.EXPERIMENT, "fashion": fashion.EXPERIMENT}
