"""Files that the command line writes of a drawn state: its numbers, and pictures of images and segmentations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import paracond as pc
from paracond.data import State


def written(model: pc.JointModel, state: State, out: Path, title: str, parts: dict[str, Tensor]) -> list[Path]:
    """Write TITLE.npz and a picture of every image and segmentation; returns the files.

    Pictures show means of the conditionals, but the values themselves where a mask of `parts` is true.
    """
    out.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {name: value.cpu().numpy() for name, value in state.items()}
    np.savez_compressed(out / f"{title}.npz", **arrays)
    files = [out / f"{title}.npz"]
    for name in [name for name in model.names if is_picture(model.variables[name])]:
        with torch.no_grad():
            shown = model(name, state).mean.cpu().clamp(0, 1)
        if name in parts:
            shown = torch.where(parts[name], state[name].cpu(), shown)
        files.append(out / f"{title if len(files) == 1 else f'{title}_{name}'}.png")
        picture(shown).savefig(files[-1], dpi=150, bbox_inches="tight")
    for name in _segmentations(model):
        with torch.no_grad():
            decided = model.variables[name].decide(model.eval_copy()(name, state).mean).cpu()
        files.append(out / f"{title}_{name}.png")
        picture(_painted(decided)).savefig(files[-1], dpi=150, bbox_inches="tight")
    return files


def is_picture(family: pc.Family) -> bool:
    """Whether a group is an image, grey or in colour."""
    return (
        len(family.event_shape) == 3 and family.event_shape[0] in (1, 3) and family.encoding_shape == family.event_shape
    )


def _segmentations(model: pc.JointModel) -> list[str]:
    """Groups that are maps of labels, or masks of the size of a picture."""
    families = {name: model.variables[name] for name in model.names}
    sizes = [family.event_shape[-2:] for family in families.values() if is_picture(family)]
    masks = [n for n, f in families.items() if isinstance(f, pc.Binary) and len(f.event_shape) == 3]
    maps = [n for n, f in families.items() if isinstance(f, pc.Categorical) and len(f.event_shape) == 2]
    return [*maps, *(n for n in masks if not is_picture(families[n]) and families[n].event_shape[1:] in sizes)]


def _painted(decided: Tensor) -> Tensor:
    """Labels `[n, height, width]`, or masks `[n, masks, height, width]` (later ones over earlier ones), as colours
    `[n, 3, height, width]`. 0, or no mask, is black."""
    from paracond.experiments.common.pictures import COLOURS, coloured_labels, label_map

    labels = label_map(decided) if decided.ndim == 4 else decided.long()
    return coloured_labels(torch.where(labels > 0, (labels - 1) % (len(COLOURS) - 1) + 1, 0))


def picture(shown: Tensor):
    """A figure of rows of ten images, at most twenty rows; the last is filled up with blanks."""
    from paracond.experiments.common.pictures import grid

    columns = min(10, len(shown))
    some = shown[: 20 * columns]
    blanks = some.new_full((-len(some) % columns, *some.shape[1:]), float(some.shape[1] == 3))  # white, either way
    return grid(torch.cat([some, blanks]).split(columns))
