"""Baselines and judges of the faces experiment, each made or trained for one task.

In-painting: the mean of the training images; Telea's fast marching (OpenCV).

Demixing with a known mask: an unknown pixel gets the mean of its known neighbours, from the visible parts inwards.
Demixing without a mask, as the model does it: the mean of all eight neighbours.

Segmentation: p(s | x) by a network like the model's own for s, trained on segmented faces alone.

Attributes: p(c | x). As the judge of an attribute switch it says yes where p(c_k = 1 | x) > pi_k, the frequency of the
attribute, which is where p(x | c_k = 1) > p(x | c_k = 0): the fair decision if half of the images have the attribute.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import paracond as pc
from paracond.data import InputError
from paracond.datasets.faces import MIRRORED
from paracond.experiments.common.learning import adam
from paracond.experiments.faces.tasks import Demixed, marginals
from paracond.training.augment import Moved

TELEA = 'not measured: pip install -e ".[faces]"'


# --- in-painting and demixing -------------------------------------------------------------------------------------


def mean_filled(images: Tensor, hidden: Tensor, training: Tensor) -> Tensor:
    """Fill the hidden places `[n, 64, 64]` from the mean of the training images."""
    return torch.where(hidden.unsqueeze(1), training.mean(0), images)


def telea_filled(images: Tensor, hidden: Tensor, radius: float = 3) -> Tensor | None:
    """Fill the hidden places by Telea's method; None if OpenCV is not installed."""
    try:
        import cv2
    except ImportError:
        return None
    pictures = (images.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).cpu().contiguous().numpy()
    places = hidden.to(torch.uint8).cpu().numpy()
    filled = [cv2.inpaint(*pair, radius, cv2.INPAINT_TELEA) for pair in zip(pictures, places, strict=True)]
    result = torch.stack([torch.from_numpy(each) for each in filled]).permute(0, 3, 1, 2).float() / 255
    return torch.where(hidden.unsqueeze(1).cpu(), result, images.cpu())


def neighbours_filled(images: Tensor, visible: Tensor) -> Tensor:
    """Fill all that is not `visible` (Bool `[n, 1, 64, 64]`) by means of known neighbours, inwards."""
    if not bool(visible.flatten(1).any(1).all()):
        raise InputError("visible has an image without a visible pixel: neighbours cannot fill it")
    around = images.new_ones(1, 1, 3, 3)
    known, value = visible.to(images.dtype), torch.where(visible, images, 0)
    while bool((known == 0).any()):
        count = F.conv2d(known, around, padding=1)
        total = F.conv2d(value.flatten(0, 1).unsqueeze(1), around, padding=1).view_as(value)
        new = (known == 0) & (count > 0)
        value, known = torch.where(new, total / count.clamp(min=1), value), torch.where(new, 1, known)
    return value


def neighbours_demixed(mixed: Tensor, m: Tensor) -> Demixed:
    """Both images from their visible pixels; `m` `[n, 1, 64, 64]` is true where the second is visible."""
    return Demixed(neighbours_filled(mixed, ~m), neighbours_filled(mixed, m), m.squeeze(1).float())


def smoothed_demixed(mixed: Tensor) -> Demixed:
    """Both images as the mean of the eight neighbours in the mixed image, without the mask."""
    around = mixed.new_ones(1, 1, 3, 3)
    around[..., 1, 1] = 0
    total = F.conv2d(mixed.flatten(0, 1).unsqueeze(1), around, padding=1).view_as(mixed)
    mean = total / F.conv2d(torch.ones_like(mixed[:1, :1]), around, padding=1)
    return Demixed(mean, mean, torch.full_like(mixed[:, 0], 0.5))


# --- networks for one task ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """Training of a network for one task: Adam with weight decay, a cosine schedule, averaged weights."""

    updates: int = 12_000
    batch_size: int = 128
    learning_rate: float = 1e-3
    average: float = 0.999
    jitter: int = 2
    """examples move by up to this many pixels each way"""
    mirrored: bool = True
    engine: str | pc.Engine = "auto"


def control(model: pc.JointModel, data: pc.Data, training: Training | None = None) -> pc.JointModel:
    """p(s | x) by a network of the same class and size as the model's for s, trained on segmented faces."""
    family, own = model.variables["s"], pc.networks.describe(model.conditional("s").network)
    if own is None:
        raise InputError("the network of 's' is not one of paracond.networks: a control of its kind cannot be made")
    images = {"x": list(model.variables["x"].event_shape)}

    def network() -> torch.nn.Module:
        return pc.networks.rebuild("s", {**own, "images": images, "flat": {}})

    return _learned("s", family, network, data, model.device, training or Training())


@dataclass(frozen=True, eq=False)
class Judge:
    """p(c | x), and the frequency of each attribute, `[40]`."""

    model: pc.JointModel
    frequency: Tensor

    def decide(self, images: Tensor, balanced: bool = True) -> Tensor:
        """Attributes `[n, 40]`, Bool: at their frequency if `balanced` (see above), else at one half."""
        probability = marginals(self.model, {"x": images}, ["c"])["c"]
        return probability > (self.frequency if balanced else 0.5)


def judge(
    data: pc.Data, device: torch.device | str = "cpu", training: Training | None = None, width: int = 48, **options
) -> Judge:
    """A classifier of attributes, trained on all faces that have them; `options` are those of `scene_network`."""
    families = {"x": pc.Real(tuple(data.state["x"].shape[1:])), "c": pc.Binary(data.state["c"].shape[1])}

    def network() -> torch.nn.Module:
        return pc.networks.scene_network(families, "c", ["x"], width=width, **options)

    model = _learned("c", families["c"], network, data, torch.device(device), training or Training())
    known = data.mask["c"].all(1)
    return Judge(model, data.state["c"][known].mean(0).cpu())


def _learned(name: str, family: pc.Family, network, data: pc.Data, device, training: Training) -> pc.JointModel:
    """A model of one group given x, trained by cross-entropy on the rows of the data that have it."""
    torch.manual_seed(0)
    given = {"x": pc.Context(pc.Real(tuple(data.state["x"].shape[1:])), None)}
    model = pc.JointModel({name: pc.Conditional(family, network())}, context=given).to(device)
    rows = data.mask[name].flatten(1).all(1)
    if not bool(rows.any()):
        raise InputError(f"the data have no row with {name!r}: give some")
    learner = pc.Learner(
        model,
        pc.Data({key: data.state[key][rows] for key in ("x", name)}),
        chain_length=1,
        completion=pc.CompletionOptions(steps=0),
        batch_size=training.batch_size,
        learning_rate=pc.schedules.cosine(training.learning_rate, 1e-5, training.updates),
        optimiser=lambda name, parameters: adam(name, parameters, 0.05),
        average=training.average,
        augment=Moved(training.jitter, training.mirrored, device, exchange=MIRRORED),
        engine=training.engine,
    )
    return learner.fit(training.updates)


# --- judging ------------------------------------------------------------------------------------------------------


def balanced_accuracy(decided: Tensor, truth: Tensor) -> float:
    """The mean of the accuracies among rows with an attribute and among rows without it, `[n]` each."""
    right = (decided.bool() == truth.bool()).double()
    return float((right[truth.bool()].mean() + right[~truth.bool()].mean()) / 2)


def switch_success(judge: Judge, without: Tensor, with_it: Tensor, index: int, balanced: bool = True) -> float:
    """The share of pairs in which the judge sees the attribute in the second image and not in the first."""
    off, on = (judge.decide(images, balanced)[:, index] for images in (without, with_it))
    return float((~off & on).double().mean())
