"""Files that the command line writes of a drawn state: its numbers, and pictures of images and segmentations.

White is 1, as in pictures that are read. One image is written with the model's own pixels, so that it can be given
again; several images are a sheet.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

import paracond as pc
from paracond.cli.places import require_free
from paracond.data import State
from paracond.serialization import replace_file


@dataclass(frozen=True)
class Files:
    """The files of a drawn state: TITLE.npz, and a picture of every image and segmentation.

    out: their folder.
    title: what their names begin with.
    rows: the number of draws.
    separate: whether every image has a file of its own too, in the folder OUT/NAME_OF_THE_SHEET.
    """

    model: pc.JointModel
    out: Path
    title: str
    rows: int
    separate: bool = False

    @property
    def numbers(self) -> Path:
        return self.out / f"{self.title}.npz"

    @property
    def images(self) -> dict[str, Path]:
        """The pictures of images, by group. The first one has no group in its name."""
        names = [name for name in self.model.names if is_picture(self.model.variables[name])]
        return {name: self.out / f"{self.title}{f'_{_plain(name)}' if k else ''}.png" for k, name in enumerate(names)}

    @property
    def segmentations(self) -> dict[str, Path]:
        """The pictures of segmentations, by group."""
        return {name: self.out / f"{self.title}_{_plain(name)}.png" for name in _segmentations(self.model)}

    def singles(self, sheet: Path) -> list[Path]:
        """The files of single images, if they are wanted."""
        digits = len(str(self.rows - 1))
        return [sheet.with_suffix("") / f"{k:0{digits}}.png" for k in range(self.rows if self.separate else 0)]

    def require_free(self, overwrite: bool) -> None:
        """Refuse to replace files, unless that is wanted."""
        singles = [path for sheet in self.images.values() for path in self.singles(sheet)]
        require_free([self.numbers, *self.images.values(), *self.segmentations.values(), *singles], overwrite)

    def write(self, state: State, parts: dict[str, Tensor]) -> list[Path]:
        """Write them; returns what to tell the user.

        Pictures show means of the conditionals, but the values themselves where a mask of `parts` is true.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        replace_file(self.numbers, _as_npz(state))
        written, asked = [self.numbers], self.model.eval_copy()
        for name, path in self.images.items():
            with torch.no_grad():
                shown = asked(name, state).mean.cpu().clamp(0, 1)
            if name in parts:
                shown = torch.where(parts[name], state[name].cpu(), shown).clamp(0, 1)
            written += [path, *self._write_images(path, shown)]
        for name, path in self.segmentations.items():
            with torch.no_grad():
                decided = asked.variables[name].decide(asked(name, state).mean).cpu()
            replace_file(path, as_png(_painted(decided)))
            written.append(path)
        return written

    def _write_images(self, sheet: Path, shown: Tensor) -> list[Path]:
        replace_file(sheet, as_png(shown))
        singles = self.singles(sheet)
        if singles:
            singles[0].parent.mkdir(exist_ok=True)
        for path, image in zip(singles, shown, strict=False):
            replace_file(path, as_png(image[None]))
        return [singles[0].parent] if singles else []


def _as_npz(state: State) -> bytes:
    """The values as a .npz file. (`np.savez` has arguments of its own, which may be names of groups.)"""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, value in state.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as part:
                np.lib.format.write_array(part, value.cpu().numpy(), allow_pickle=False)
    return buffer.getvalue()


def is_picture(family: pc.Family) -> bool:
    """Whether a group is an image, grey or in colour."""
    return (
        len(family.event_shape) == 3 and family.event_shape[0] in (1, 3) and family.encoding_shape == family.event_shape
    )


def as_png(shown: Tensor) -> bytes:
    """Images `[n, 1 or 3, height, width]` in [0, 1] as a file: one with its own pixels, several as a sheet."""
    buffer = io.BytesIO()
    if len(shown) > 1:
        picture(shown).savefig(buffer, format="png", dpi=150, bbox_inches="tight")
        return buffer.getvalue()
    from PIL import Image

    levels = (shown[0].float() * 255).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels).save(buffer, format="png")
    return buffer.getvalue()


def picture(shown: Tensor):
    """A figure of rows of ten images, at most twenty rows; the last is filled up with blanks."""
    from paracond.experiments.common.pictures import grid

    columns = min(10, len(shown))
    some = shown[: 20 * columns]
    blanks = some.new_ones((-len(some) % columns, *some.shape[1:]))  # as white as the page
    return grid(torch.cat([some, blanks]).split(columns))


def _plain(name: str) -> str:
    """The name of a group as a part of the name of a file."""
    return (
        quote(name, safe="")[:80] if len(name) < 27 else f"{quote(name[:9], safe='')}-{zlib.crc32(name.encode()):08x}"
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
