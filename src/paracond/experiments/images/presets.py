"""The experiments on images, by the name of their data set."""

from paracond.experiments.images import fashion, mnist

EXPERIMENTS = {"mnist": mnist.EXPERIMENT, "fashion": fashion.EXPERIMENT}
