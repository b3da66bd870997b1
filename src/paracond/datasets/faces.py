"""CelebA faces at 64 x 64 pixels, with segmentations and attributes where they are known.

Two layouts are read:

- `faces64.npz`: pictures as WebP, label maps, attributes (255 where unknown) and a split into training and test rows;
- CelebAMask-HQ as it is published: `CelebA-HQ-img/0.jpg`, ..., one picture per part of every face under
  `CelebAMask-HQ-mask-anno/`, and `CelebAMask-HQ-attribute-anno.txt`. Pictures are reduced by averaging, label maps by
  the majority of each block; later parts are painted over earlier ones. Every tenth face is a test face. The result is
  saved in the same folder as `faces64.npz`, because reading 30,000 faces takes a while.

The pictures may be used for non-commercial research only.
"""

from __future__ import annotations

import io
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from paracond.data import Data, InputError, one_of
from paracond.datasets.images import ENVIRONMENT
from paracond.runtime.progress import track

SIZE = 64
FILE = "faces64.npz"
IMAGES, PARTS, ATTRIBUTES = "CelebA-HQ-img", "CelebAMask-HQ-mask-anno", "CelebAMask-HQ-attribute-anno.txt"
#: Labels 1 to 18; 0 is the background. Later ones are painted over earlier ones.
LABELS = (
    *("skin", "nose", "eye_g", "l_eye", "r_eye", "l_brow", "r_brow", "l_ear", "r_ear", "mouth", "u_lip", "l_lip"),
    *("hair", "hat", "ear_r", "neck_l", "neck", "cloth"),
)
UNKNOWN = 255


def _other_side(name: str) -> str:
    other = {"l_": "r_", "r_": "l_"}.get(name[:2], name[:2]) + name[2:]
    return other if other in LABELS else name  # "l_lip" is the lower lip


#: The index of each label's mirror image: left and right parts change places.
MIRRORED = tuple(LABELS.index(_other_side(name)) for name in LABELS)


@dataclass(frozen=True, eq=False)
class Faces:
    """All rows of a set of faces. Only the first rows have a segmentation; an attribute is 255 where unknown."""

    images: np.ndarray
    segmentation: np.ndarray
    attributes: np.ndarray
    attribute_names: tuple[str, ...]
    test: np.ndarray


def faces(split: str = "train", *, folder: str | os.PathLike[str] | None = None, segmentation: str = "masks") -> Data:
    """Load faces: images `x` `[rows, 3, 64, 64]` in [0, 1], segmentations `s` and attributes `c` `[rows, 40]`.

    Segmentations and attributes that are not known are not observed.

    split: "train" or "test".
    folder: where the files are (default: $PARACOND_DATA/faces, then $PARACOND_DATA).
    segmentation: "masks" for 18 binary masks `[rows, 18, 64, 64]`, "labels" for one label per pixel `[rows, 64, 64]`.
    """
    _check(split, segmentation)
    return of_split(load(folder), split, segmentation)


def _check(split: str, segmentation: str) -> None:
    one_of("split", split, ("train", "test"))
    one_of("segmentation", segmentation, ("masks", "labels"))


def of_split(found: Faces, split: str, segmentation: str) -> Data:
    """Return the rows of one split, as `faces` does."""
    _check(split, segmentation)
    rows = np.flatnonzero(found.test == (split == "test"))
    segmented, known = rows < len(found.segmentation), found.attributes[rows] != UNKNOWN
    labels = np.zeros((len(rows), SIZE, SIZE), np.uint8)
    labels[segmented] = found.segmentation[rows[segmented]]
    s = torch.from_numpy(labels)
    if segmentation == "masks":
        s = (s.unsqueeze(1) == torch.arange(1, len(LABELS) + 1).view(1, -1, 1, 1)).to(torch.uint8)
    state = {
        "x": torch.from_numpy(found.images[rows]).float().div_(255),
        "s": s if segmentation == "masks" else s.long(),
        "c": torch.from_numpy(np.where(known, found.attributes[rows], 0)).float(),
    }
    return Data(state, {"s": torch.from_numpy(segmented), "c": torch.from_numpy(known)})


def load(folder: str | os.PathLike[str] | None = None) -> Faces:
    """Load all rows from the folder, or else from $PARACOND_DATA/faces or $PARACOND_DATA."""
    root = os.environ.get(ENVIRONMENT)
    places = [Path(folder)] if folder is not None else [Path(root) / "faces", Path(root)] if root else []
    for place in (place.expanduser() for place in places):
        if os.path.isfile(place / FILE):  # also where the name is too long
            return _read_npz(place / FILE)
        if os.path.isdir(place / IMAGES):
            return _kept(place)
    none = f"no folder (give one, by folder= or --data, or set {ENVIRONMENT})"
    looked = ", ".join(f"{place!s:.120}" for place in places) or none
    raise InputError(f"neither {FILE} nor {IMAGES}/ was found; looked in {looked}")


# --- faces64.npz ------------------------------------------------------------------------------------------------


def _read_npz(path: Path) -> Faces:
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
        packed, offsets = found["webp"].tobytes(), found["offsets"].tolist()
        names = tuple(found["attribute_names"].tolist())
        arrays = found["segmentation"], found["attributes"]
        test = found["test"].astype(bool)
    except Exception as error:  # damaged archives raise many kinds
        raise InputError(f"{path} is not a set of faces: {type(error).__name__}: {error!s:.200}") from None
    parts = [packed[a:b] for a, b in itertools.pairwise(offsets)]
    with ThreadPoolExecutor() as threads:  # decoding releases the interpreter lock
        pictures = [threads.submit(_decoded, path, row, part) for row, part in enumerate(parts)]
        images = np.stack([picture.result() for picture in track(pictures, "reading faces")])
    segmentation, attributes = arrays
    if not len(images) == len(attributes) == len(test) >= len(segmentation):
        counts = f"{len(images)} pictures, {len(attributes)} rows of attributes, {len(test)} of the split"
        raise InputError(f"{path} is damaged: {counts}, {len(segmentation)} segmentations")
    if len(segmentation) and int(segmentation.max()) > len(LABELS):
        raise InputError(f"{path}: labels must be in 0..{len(LABELS)}, found {int(segmentation.max())}")
    return Faces(images, segmentation, attributes, names, test)


def _decoded(path: Path, row: int, part: bytes) -> np.ndarray:
    from PIL import Image

    try:
        picture = np.asarray(Image.open(io.BytesIO(part)).convert("RGB"))
    except Exception as error:  # damaged pictures raise many kinds
        raise InputError(f"{path}: picture {row} cannot be read: {error}") from None
    if picture.shape != (SIZE, SIZE, 3):
        raise InputError(f"{path}: picture {row} must have {SIZE} x {SIZE} pixels, found {picture.shape[:2]}")
    return picture.transpose(2, 0, 1)


# --- CelebAMask-HQ ------------------------------------------------------------------------------------------------


def _kept(folder: Path) -> Faces:
    """Read the published folders, and save the result there as `faces64.npz` if the folder can be written."""
    found, pictures = _read_folders(folder)
    offsets = np.cumsum([0, *(len(picture) for picture in pictures)])
    content = {
        "webp": np.frombuffer(b"".join(pictures), np.uint8),
        "offsets": offsets,
        "segmentation": found.segmentation,
        "attributes": found.attributes,
        "attribute_names": np.array(found.attribute_names),
        "test": found.test.astype(np.uint8),
    }
    partial = folder / f"{FILE}.partial"
    try:
        with open(partial, "wb") as file:
            np.savez(file, **content)  # type: ignore[arg-type]
        os.replace(partial, folder / FILE)
    except OSError:  # a folder that can only be read is read again each time
        partial.unlink(missing_ok=True)
    return found


def _read_folders(folder: Path) -> tuple[Faces, list[bytes]]:
    from PIL import Image

    names, attributes = _read_attributes(folder / ATTRIBUTES)
    rows = sorted(attributes)
    images, maps, packed = [], [], []
    for row in track(rows, "reading faces"):
        path = folder / IMAGES / f"{row}.jpg"
        if not path.is_file():
            raise InputError(f"{folder / ATTRIBUTES} names the face {row}, but there is no {path}")
        picture = Image.open(path).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BOX)
        buffer = io.BytesIO()
        picture.save(buffer, "webp", lossless=True)
        packed.append(buffer.getvalue())
        images.append(np.asarray(picture).transpose(2, 0, 1))
        maps.append(_label_map(folder / PARTS / str(row // 2000), row))
    values = np.stack([attributes[row] for row in rows])
    test = np.array([row % 10 == 0 for row in rows])
    return Faces(np.stack(images), np.stack(maps), values, names, test), packed


def _read_attributes(path: Path) -> tuple[tuple[str, ...], dict[int, np.ndarray]]:
    """Read the names of the attributes, and their values 0 or 1 by the number of the face."""
    if not path.is_file():
        raise InputError(f"there is no {path}")
    lines = path.read_text().splitlines()
    names = tuple(lines[1].split()) if len(lines) > 1 else ()
    found = {}
    for number, line in enumerate(lines[2:], start=3):
        file, *values = line.split() or ("", "")
        if len(values) != len(names) or not set(values) <= {"-1", "1"} or not file.removesuffix(".jpg").isdigit():
            raise InputError(f"{path}, line {number}: expected FACE.jpg and {len(names)} times -1 or 1")
        found[int(file.removesuffix(".jpg"))] = (np.array(values, np.int8) > 0).astype(np.uint8)
    if not found:
        raise InputError(f"{path} names no face")
    return names, found


def _label_map(folder: Path, row: int) -> np.ndarray:
    """Labels `[64, 64]` of one face. There is no file for a part that the face lacks."""
    from PIL import Image

    full: np.ndarray | None = None
    for label, name in enumerate(LABELS, start=1):
        path = folder / f"{row:05d}_{name}.png"
        if path.is_file():
            part = np.asarray(Image.open(path).convert("L")) > 127
            full = np.zeros(part.shape, np.uint8) if full is None else full
            full[part] = label
    return np.zeros((SIZE, SIZE), np.uint8) if full is None else majority(full)


def majority(labels: np.ndarray) -> np.ndarray:
    """Return the most frequent label of each block, `[64, 64]`; of equally frequent ones the smallest."""
    height, width = labels.shape
    if height % SIZE or width % SIZE:
        raise InputError(f"label maps must have a multiple of {SIZE} pixels each way, found {height} x {width}")
    blocks = labels.reshape(SIZE, height // SIZE, SIZE, width // SIZE)
    counts = np.stack([(blocks == label).sum((1, 3)) for label in range(len(LABELS) + 1)])
    return counts.argmax(0).astype(np.uint8)
