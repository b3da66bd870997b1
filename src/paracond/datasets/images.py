"""MNIST and Fashion-MNIST, read from the IDX files in which they were published.

Only original files are read: the SHA-256 of the unpacked content must be the published one. So plain files and files
that were gzipped again pass, and a single altered byte does not.

Files are looked up in the given folder; or else in $PARACOND_DATA/mnist (or /fashion), in $PARACOND_DATA, for
Fashion-MNIST in Debian's package dataset-fashion-mnist, and in the download cache, in this order. Files that are in
none of them are downloaded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

import torch
from torch import Tensor

from paracond.data import Data, InputError, one_of, seeded, shown
from paracond.datasets import idx

ENVIRONMENT = "PARACOND_DATA"
CLASSES = 10
SIZE = (28, 28)
PREFIX = {"train": "train", "test": "t10k"}


@dataclass(frozen=True)
class Source:
    """A published data set: its files with their checksums, and where they can be found."""

    title: str
    name: str  # of its folder
    content: Mapping[str, str]  # SHA-256 of each file, unpacked
    packed: Mapping[str, str]  # SHA-256 of each .gz file as the mirrors have it
    mirrors: tuple[str, ...]
    folders: tuple[str, ...] = ()  # where a system's package puts it


MNIST = Source(
    title="MNIST",
    name="mnist",
    content={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    packed={
        "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://raw.githubusercontent.com/fgnt/mnist/master/",
    ),
)

FASHION = Source(
    title="Fashion-MNIST",
    name="fashion",
    content={
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    packed={
        "train-images-idx3-ubyte": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    folders=("/usr/share/datasets/fashion-mnist",),
)


def mnist(
    split: str = "train",
    *,
    folder: str | os.PathLike[str] | None = None,
    binary: bool = True,
    verify: bool = True,
) -> Data:
    """Load MNIST: images `x` `[rows, 1, 28, 28]` and digits `c` `[rows]`.

    split: "train" (60,000 rows) or "test" (10,000 rows).
    folder: where the files are (default: the places in the head of this module, or a download).
    binary: whether pixels are 0 or 1 (grey value above one half), and not grey in [0, 1].
    verify: whether files must be the original ones; False accepts other files of the same format.
    """
    images, labels = _load(MNIST, split, folder, verify)
    pixels = (images > 127).float() if binary else images.float().div_(255)
    return Data({"x": pixels.unsqueeze(1), "c": labels})


def fashion(
    split: str = "train",
    *,
    folder: str | os.PathLike[str] | None = None,
    verify: bool = True,
) -> Data:
    """Load Fashion-MNIST: images `x` `[rows, 1, 28, 28]`, grey in [0, 1], and kinds of clothing `c` `[rows]`.

    split: "train" (60,000 rows) or "test" (10,000 rows).
    folder: where the files are (default: the places in the head of this module, or a download).
    verify: whether files must be the original ones; False accepts other files of the same format.
    """
    images, labels = _load(FASHION, split, folder, verify)
    return Data({"x": images.float().div_(255).unsqueeze(1), "c": labels})


def keep_labels(data: Data, count: int, seed: int = 0) -> Data:
    """Keep some of the observed labels `c`, as equally many of each class as the data allow. The others are hidden.

    With the same seed, fewer labels are always a subset of more: rows are ordered by (rank within their class, class),
    both at random, and the first `count` are kept.

    data: the data set.
    count: the number of labels to keep.
    seed: fixes which ones are kept.
    """
    if not isinstance(data, Data):
        raise InputError(f"data must be Data(values, mask), found {shown(data)}")
    if "c" not in data.state:
        raise InputError(f"cannot keep labels: the data has no 'c', only {', '.join(data.state)}")
    value = data.state["c"].cpu()
    if value.ndim != 1 or value.is_floating_point():
        raise InputError(f"labels of 'c' must be integers [rows], found {value.dtype} {list(value.shape)}")
    generator = seeded(seed)
    rows = data.mask["c"].cpu().nonzero().squeeze(1)
    if not isinstance(count, Integral) or isinstance(count, bool) or not 0 <= count <= len(rows):
        raise InputError(f"count: the number of labels to keep must be in 0..{len(rows)}, found {shown(count)}")
    rows = rows[torch.randperm(len(rows), generator=generator)]
    classes, label, sizes = value[rows].unique(return_inverse=True, return_counts=True)
    grouped = label.argsort(stable=True)  # class after class, at random within each
    rank = torch.arange(len(rows)) - (sizes.cumsum(0) - sizes)[label[grouped]]
    place = torch.randperm(len(classes), generator=generator)[label[grouped]]
    first = (rank * len(classes) + place).argsort()[: int(count)]
    kept = torch.zeros(len(value), dtype=torch.bool)
    kept[rows[grouped[first]]] = True
    return Data(data.state, {**data.mask, "c": kept.to(data.state["c"].device)})


def _load(source: Source, split: str, folder: str | os.PathLike[str] | None, verify: bool) -> tuple[Tensor, Tensor]:
    """Load images, bytes `[rows, 28, 28]`, and labels `[rows]`."""
    one_of("split", split, tuple(PREFIX))
    names = (f"{PREFIX[split]}-images-idx3-ubyte", f"{PREFIX[split]}-labels-idx1-ubyte")
    paths = _locate(source, names, folder)
    images, labels = (_read(source, name, path, verify) for name, path in zip(names, paths, strict=True))
    _check(paths[0], images, 3)
    _check(paths[1], labels, 1)
    if images.shape[1:] != SIZE:
        raise InputError(f"images of {paths[0]} must have {list(SIZE)} pixels, found {list(images.shape[1:])}")
    if len(images) != len(labels):
        raise InputError(f"{paths[0]} has {len(images)} images, but {paths[1]} has {len(labels)} labels")
    if len(labels) and int(labels.max()) >= CLASSES:
        raise InputError(f"labels of {paths[1]} must be in 0..{CLASSES - 1}, found {int(labels.max())}")
    return images, labels.long()


def _check(path: Path, value: Tensor, axes: int) -> None:
    if value.dtype != torch.uint8 or value.ndim != axes:
        raise InputError(f"{path} must hold unsigned bytes with {axes} axes, found {value.dtype} with {value.ndim}")


def _read(source: Source, name: str, path: Path, verify: bool) -> Tensor:
    """Read the tensor of a file, which must be the original one."""
    content = idx.unpack(path)
    value = idx.parse(content, path)
    if not verify:
        return value
    digest = hashlib.sha256(content).hexdigest()
    if digest != source.content[name]:
        known = {sha: f"{s.title}'s {file}" for s in (MNIST, FASHION) for file, sha in s.content.items()}
        raise InputError(
            f"{path} is not {source.title}'s {name}: it is {known.get(digest, 'altered')} (SHA-256 of the content "
            f"{digest}, expected {source.content[name]}); in Python, verify=False reads it all the same"
        )
    return value


def _locate(source: Source, names: tuple[str, str], folder: str | os.PathLike[str] | None) -> tuple[Path, Path]:
    """Find both files of a split in the first folder that has both, or download them."""
    if folder is not None:
        return _given(source, names, Path(folder).expanduser())
    for place in _places(source):
        first, second = (_find(place, name) for name in names)
        if first and second:
            return first, second
    return _fetch(source, names[0]), _fetch(source, names[1])


def _given(source: Source, names: tuple[str, str], folder: Path) -> tuple[Path, Path]:
    """Find both files in the folder of the caller, or in the data set's own folder within it. Nothing is downloaded."""
    if not os.path.isdir(folder):  # also where the name is too long
        raise InputError(f"there is no folder {folder!s:.120} for {source.title}")
    for place in (folder / source.name, folder):
        first, second = (_find(place, name) for name in names)
        if first and second:
            return first, second
    missing = names[1] if first else names[0]
    raise InputError(f"{folder} has no {missing} of {source.title}: looked for {', '.join(_spellings(missing))}")


def _places(source: Source) -> list[Path]:
    """List the folders that may hold the files, in order."""
    root = os.environ.get(ENVIRONMENT)
    own = [Path(root).expanduser() / source.name, Path(root).expanduser()] if root else []
    return own + [Path(folder) for folder in source.folders]


def _find(folder: Path, name: str) -> Path | None:
    return next((folder / spelling for spelling in _spellings(name) if (folder / spelling).is_file()), None)


def _spellings(name: str) -> list[str]:
    """List the names that a file may have, plain ones first because they need no unpacking.

    >>> _spellings("t10k-labels-idx1-ubyte")[1:3]
    ['t10k-labels.idx1-ubyte', 't10k-labels-idx1-ubyte.gz']
    """
    plain = [name, name.replace("-idx", ".idx")]
    return plain + [f"{spelling}.gz" for spelling in plain]


def _fetch(source: Source, name: str) -> Path:
    """Return a file of the download cache. A missing or damaged one is downloaded from the first mirror that has it."""
    import pooch  # type: ignore[import-untyped]  # here: local files need no downloader

    cache = Path(pooch.os_cache("paracond")) / source.name
    failures: list[str] = []
    for mirror in source.mirrors:
        url = f"{mirror}{name}.gz"
        try:
            return Path(pooch.retrieve(url, f"sha256:{source.packed[name]}", fname=f"{name}.gz", path=cache))
        except (OSError, ValueError) as error:  # no connection, no such file; another checksum
            cause = getattr(next(iter(error.args), None), "reason", error)  # without the wrapping of requests
            failures.append(f"{url} ({cause})")
    places = [*map(str, _places(source)), str(cache)]
    why = failures[-1].partition(" (")[2].removesuffix(")") if failures else "there is none"
    refusal = InputError(
        f"give the folder of {source.title}'s files, by --data or folder=, or by {ENVIRONMENT}: {name} is in none of "
        f"the {len(places)} places searched, and no mirror could be read ({why:.60})"
    )
    for note in (*(f"not in {place}" for place in places), *(f"not at {failure}" for failure in failures)):
        refusal.add_note(note)
    raise refusal
