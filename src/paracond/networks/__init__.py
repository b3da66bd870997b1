"""Networks map the encoded other groups to the parameters of a group's family.

Any module with that signature works. One that derives from `Network` also stores its arguments, so that a saved model
can be rebuilt from its JSON, by class name, without pickle.
"""

from paracond.networks.base import Network, describe, rebuild
from paracond.networks.conv import ImageDecoder, ImageEncoder, image_network
from paracond.networks.mlp import MLP, StackedMLP, mlp
from paracond.networks.pyramid import Pyramid
from paracond.networks.unet import SceneEncoder, UNet, scene_network

__all__ = [
    "MLP",
    "ImageDecoder",
    "ImageEncoder",
    "Network",
    "Pyramid",
    "SceneEncoder",
    "StackedMLP",
    "UNet",
    "describe",
    "image_network",
    "mlp",
    "rebuild",
    "scene_network",
]
