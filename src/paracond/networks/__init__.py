"""Networks map the encoded other groups to the parameters of a group's family.

Any module with that signature works. One that derives from `Network` also stores its arguments, so that a saved model
can be rebuilt from its JSON, by class name, without pickle.

- `mlp` makes an `MLP`, for numbers, bits and classes. `StackedMLP` is one small MLP per coordinate.
- `image_network` makes an `ImageEncoder` or `ImageDecoder`, between one image and flat groups.
- `scene_network` makes a `SceneEncoder` or `UNet`, for several images of one size. `Pyramid` reads images of several
  sizes.
- `Network` is the base class of all these, and of your own. `describe` and `rebuild` write and read its JSON.

`help(pc.networks.MLP)` describes one class and its arguments.
"""

from paracond.networks.base import Network, describe, rebuild
from paracond.networks.conv import ImageDecoder, ImageEncoder, image_network
from paracond.networks.mlp import MLP, StackedMLP, mlp
from paracond.networks.pyramid import Pyramid
from paracond.networks.unet import SceneEncoder, UNet, scene_network
from paracond.short_help import names_of

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

__dir__ = names_of(__name__)
