"""What the command line writes of a state that was drawn: its numbers, and pictures of images and segmentations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import paracond as pc
from paracond.data import State
from paracond.experiments.common.pictures import COLOURS, coloured_labels, grid, label_map


def written(model: pc.JointModel, state: State, out: Path, title: str, parts: dict[str, Tensor]) -> list[Path]:
    """The state and its pictures, the first by the `title` alone; they show means, and `parts` of them as they are."""
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
        with torch.no_grad(), model.eval_mode():
            decided = model.variables[name].decide(model(name, state).mean).cpu()
        files.append(out / f"{title}_{name}.png")
        picture(_painted(decided)).savefig(files[-1], dpi=150, bbox_inches="tight")
    return files


def is_picture(family: pc.Family) -> bool:
    return (
        len(family.event_shape) == 3 and family.event_shape[0] in (1, 3) and family.encoding_shape == family.event_shape
    )


def _segmentations(model: pc.JointModel) -> list[str]:
    """Maps of labels, and masks that have the size of a picture."""
    families = {name: model.variables[name] for name in model.names}
    sizes = [family.event_shape[-2:] for family in families.values() if is_picture(family)]
    masks = [n for n, f in families.items() if isinstance(f, pc.Binary) and len(f.event_shape) == 3]
    maps = [n for n, f in families.items() if isinstance(f, pc.Categorical) and len(f.event_shape) == 2]
    return [*maps, *(n for n in masks if not is_picture(families[n]) and families[n].event_shape[1:] in sizes)]


def _painted(decided: Tensor) -> Tensor:
    """Labels `[n, height, width]`, or masks (later ones over earlier ones), as colours `[n, 3, height, width]`, those
    of faces; 0, or none, is black."""
    labels = label_map(decided) if decided.ndim == 4 else decided.long()
    return coloured_labels(torch.where(labels > 0, (labels - 1) % (len(COLOURS) - 1) + 1, 0))


def picture(shown: Tensor):
    """Rows of ten, at most twenty of them; the last is filled up with blanks."""
    columns = min(10, len(shown))
    some = shown[: 20 * columns]
    blanks = some.new_full((-len(some) % columns, *some.shape[1:]), float(some.shape[1] == 3))  # white, either way
    return grid(torch.cat([some, blanks]).split(columns))
