"""IDX files are read as written and refused by name when damaged; MNIST is found where the documentation says.

Most tests write data sets of a few rows and put their checksums in the place of the published ones.
"""

import functools
import gzip
import hashlib
import http.server
import os
import re
import struct
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import paracond as pc
from paracond.datasets import idx, images

pooch = pytest.importorskip("pooch")  # a GPU machine may not have it

NAMES = tuple(images.MNIST.content)
ROWS = 12


def encode(array, code=0x08):
    """An IDX file, written independently of the reader."""
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def tiny(seed):
    """Four files of a few rows: {name: content}."""
    random = np.random.default_rng(seed)
    return {
        name: encode(
            random.integers(0, 256, (ROWS, 28, 28), dtype=np.uint8)
            if "images" in name
            else np.arange(ROWS, dtype=np.uint8) % 10
        )
        for name in NAMES
    }


def pixels(content):
    return torch.tensor(list(content[16:]), dtype=torch.uint8).view(ROWS, 1, 28, 28)


def write(folder, files, packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    return folder


def refused(message, call, *arguments, **options):
    with pytest.raises(pc.InputError, match=re.escape(message)) as caught:
        call(*arguments, **options)
    return str(caught.value)


@pytest.fixture
def files(monkeypatch, tmp_path):
    """A tiny data set in the place of MNIST; nothing outside `tmp_path` is looked at, there are no mirrors."""
    files = tiny(0)
    content = {name: hashlib.sha256(value).hexdigest() for name, value in files.items()}
    packed = {name: hashlib.sha256(gzip.compress(value, mtime=0)).hexdigest() for name, value in files.items()}
    source = replace(images.MNIST, content=content, packed=packed, mirrors=())
    monkeypatch.setattr(images, "MNIST", source)
    monkeypatch.setattr(images, "FASHION", replace(source, title="Fashion-MNIST", name="fashion", folders=()))
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.delenv("PARACOND_DATA", raising=False)
    return files


# The format


def read_idx(path):
    return idx.parse(idx.unpack(path), path)


@pytest.mark.parametrize("code", idx.DTYPES)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 1, 3), (0, 4)])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_reads_every_type_and_shape(tmp_path, code, shape, packed):
    dtype = np.dtype(idx.DTYPES[code])
    values = np.arange(np.prod(shape)).reshape(shape) * (1 if dtype.itemsize == 1 else 100)
    content = encode(values.astype(dtype), code)
    path = tmp_path / "values"
    path.write_bytes(gzip.compress(content) if packed else content)
    read = read_idx(path)
    assert read.shape == shape
    assert str(read.dtype) == f"torch.{dtype.name}"
    assert read.tolist() == values.tolist()
    read += 1  # it owns its memory


WHOLE = encode(np.arange(6, dtype=np.uint8).reshape(2, 3))
PACKED = gzip.compress(WHOLE, mtime=0)  # the time would be part of the tests' names


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is not an IDX file: it must start with the bytes 00 00, type and axes, found nothing"),
        (b"<!DOCTYPE html>", "must start with the bytes 00 00, type and axes, found 3c 21 44 4f"),
        (b"\1" + WHOLE[1:], "must start with the bytes 00 00, type and axes, found 01 00 08 02"),
        (b"\0\0\7" + WHOLE[3:], "the code of its type must be one of 08, 09, 0b, 0c, 0d, 0e, found 07"),
        (b"\0\0\10\0", "it must have 1 to 64 axes, found 0"),
        (b"\0\0\10\377" + bytes(1020), "it must have 1 to 64 axes, found 255"),
        (WHOLE[:9], "is damaged: its header of 2 axes needs 12 bytes, found 9"),
        (WHOLE[:-1], "is damaged: shape [2, 3] of type uint8 needs 18 bytes, found 17"),
        (WHOLE + b"\0", "is damaged: shape [2, 3] of type uint8 needs 18 bytes, found 19"),
        (b"\0\0\16\2" + b"\377" * 8, "is damaged: shape [4294967295, 4294967295] of type float64 needs"),
        (PACKED[:-9], "is damaged: it cannot be unpacked (Compressed file ended"),
        (PACKED[:12] + b"\377" + PACKED[13:], "is damaged: it cannot be unpacked (Error -3"),
        (PACKED[:-8] + bytes(4) + PACKED[-4:], "is damaged: it cannot be unpacked (CRC check failed"),
        (PACKED + b"more", "is damaged: it cannot be unpacked (Not a gzipped file"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "values.gz"
    path.write_bytes(content)
    assert refused(message, read_idx, path).startswith(str(path))


def test_a_missing_file_is_named(tmp_path):
    refused(f"there is no file {tmp_path / 'none'}", read_idx, tmp_path / "none")
    refused(f"there is no file {tmp_path}", read_idx, tmp_path)


# The data sets


@pytest.mark.parametrize("split, prefix", [("train", "train"), ("test", "t10k")])
def test_values(files, tmp_path, split, prefix):
    write(tmp_path, files)
    grey = pixels(files[f"{prefix}-images-idx3-ubyte"])
    binary = pc.datasets.mnist(split, folder=tmp_path)
    assert binary.state["x"].dtype == torch.float32 and binary.state["c"].dtype == torch.int64
    assert torch.equal(binary.state["x"], (grey.double() / 255 > 0.5).float())
    assert binary.state["c"].tolist() == [row % 10 for row in range(ROWS)]
    assert all(mask.all() for mask in binary.mask.values())
    for data in (
        pc.datasets.mnist(split, folder=str(tmp_path), binary=False),
        pc.datasets.fashion(split, folder=tmp_path),
    ):
        assert data.state["x"].dtype == torch.float32
        torch.testing.assert_close(data.state["x"], grey / 255, rtol=0, atol=1e-7)


def test_split_is_checked():
    refused("split must be one of train, test, found 'valid'", pc.datasets.mnist, "valid")


def test_one_altered_byte_is_refused(files, tmp_path):
    for name in NAMES[:2]:
        altered = files[name][:-1] + bytes([files[name][-1] ^ 1])
        folder = write(tmp_path / name, {**files, name: altered})
        digest = hashlib.sha256(altered).hexdigest()
        refused(
            f"{folder / name}.gz is not MNIST's {name}: it is altered (SHA-256 of the content {digest}, expected "
            f"{images.MNIST.content[name]}); in Python, verify=False reads it all the same",
            pc.datasets.mnist,
            folder=folder,
        )
        assert len(pc.datasets.mnist(folder=folder, verify=False)) == ROWS


def test_a_file_under_another_name_is_recognised(files, tmp_path):
    train, test = NAMES[0], NAMES[2]
    folder = write(tmp_path, {**files, train: files[test]}, packed=False)
    message = refused(f"{folder / train} is not MNIST's {train}: it is ", pc.datasets.mnist, folder=folder)
    assert f"MNIST's {test} (SHA-256" in message


@pytest.mark.parametrize("verify", [True, False])
def test_a_truncated_file_is_refused(files, tmp_path, verify):
    for name in NAMES[:2]:
        folder = write(tmp_path / name, {**files, name: files[name][:-1]})
        refused(f"{folder / name}.gz is damaged: shape", pc.datasets.mnist, folder=folder, verify=verify)
        path = folder / f"{name}.gz"
        path.write_bytes(gzip.compress(files[name])[:-20])
        refused(f"{path} is damaged: it cannot be unpacked", pc.datasets.mnist, folder=folder, verify=verify)


@pytest.mark.parametrize(
    "which, array, code, message",
    [
        (0, np.zeros((2, 28, 28), ">f4"), 0x0D, "must hold unsigned bytes with 3 axes, found torch.float32 with 3"),
        (0, np.zeros((2, 28), np.uint8), 0x08, "must hold unsigned bytes with 3 axes, found torch.uint8 with 2"),
        (1, np.zeros(ROWS, np.int8), 0x09, "must hold unsigned bytes with 1 axes, found torch.int8 with 1"),
        (0, np.zeros((ROWS, 28, 20), np.uint8), 0x08, "must have [28, 28] pixels, found [28, 20]"),
        (0, np.zeros((2, 28, 28), np.uint8), 0x08, "has 2 images, but"),
        (1, np.zeros(3, np.uint8), 0x08, "has 12 images, but"),
        (1, np.full(ROWS, 10, np.uint8), 0x08, "must be in 0..9, found 10"),
    ],
)
def test_unfit_content_is_refused(files, tmp_path, which, array, code, message):
    write(tmp_path, {**files, NAMES[which]: encode(array, code)})
    assert f"{tmp_path / NAMES[which]}.gz" in refused(message, pc.datasets.mnist, folder=tmp_path, verify=False)


def test_no_rows(files, tmp_path):
    empty = {NAMES[0]: encode(np.zeros((0, 28, 28), np.uint8)), NAMES[1]: encode(np.zeros(0, np.uint8))}
    refused("the data is empty", pc.datasets.mnist, folder=write(tmp_path, empty), verify=False)


# Where files are looked for


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("separator", ["-", "."])
def test_spellings(files, tmp_path, ending, separator):
    renamed = {name.replace("-idx", f"{separator}idx"): content for name, content in files.items()}
    write(tmp_path, renamed, packed=bool(ending))
    assert (tmp_path / f"train-images{separator}idx3-ubyte{ending}").is_file()
    assert len(pc.datasets.mnist(folder=tmp_path)) == ROWS


def test_a_given_folder_is_the_only_one(files, tmp_path, monkeypatch):
    monkeypatch.setenv("PARACOND_DATA", str(write(tmp_path / "elsewhere", files)))
    refused(f"there is no folder {tmp_path / 'none'} for MNIST", pc.datasets.mnist, folder=tmp_path / "none")
    folder = write(tmp_path / "given", {})
    for name in NAMES[:2]:
        dotted = name.replace("-idx", ".idx")
        refused(
            f"{folder} has no {name} of MNIST: looked for {name}, {dotted}, {name}.gz, {dotted}.gz",
            pc.datasets.mnist,
            folder=folder,
        )
        write(folder, {name: files[name]})
    assert len(pc.datasets.mnist(folder=folder)) == ROWS
    write(tmp_path / "root" / "mnist", files)  # or the data set's folder in it
    assert len(pc.datasets.mnist(folder=tmp_path / "root")) == ROWS


def test_search_order(files, tmp_path, monkeypatch):
    """Each place is preferred to the next; what is read tells which one it was."""
    root = tmp_path / "root"
    places = [tmp_path / "given", root / "fashion", root, tmp_path / "system", tmp_path / "cache/paracond/fashion"]
    sets = [tiny(seed) for seed in range(5)]
    packed = {name: hashlib.sha256(gzip.compress(value, mtime=0)).hexdigest() for name, value in sets[4].items()}
    source = replace(images.FASHION, folders=(str(places[3]),), packed=packed, mirrors=("http://mirror.invalid/",))
    monkeypatch.setattr(images, "FASHION", source)
    monkeypatch.setenv("PARACOND_DATA", str(root))
    for place, content in zip(places, sets, strict=True):
        place.mkdir(parents=True, exist_ok=True)
        for name, value in content.items():
            (place / f"{name}.gz").write_bytes(gzip.compress(value, mtime=0))
    for number, place in enumerate(places):
        data = pc.datasets.fashion(folder=None if number else place, verify=False)
        assert torch.equal((data.state["x"] * 255).round().byte(), pixels(sets[number][NAMES[0]]))
        (place / f"{NAMES[1]}.gz").unlink()  # a folder with one file of two is passed over


def test_home_is_expanded_and_an_empty_variable_is_none(files, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "data" / "mnist", files)
    assert len(pc.datasets.mnist(folder="~/data/mnist")) == ROWS
    monkeypatch.setenv("PARACOND_DATA", "~/data")
    assert len(pc.datasets.mnist("test")) == ROWS
    monkeypatch.setenv("PARACOND_DATA", "")
    monkeypatch.chdir(write(tmp_path / "here", files))
    refused("give the folder of MNIST's files", pc.datasets.mnist)


# Downloads, from a server in this process


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def mirror(files, tmp_path, monkeypatch):
    """The address of a server with three mirrors: `good`, `bad` (damaged files) and, missing, `none`."""
    for folder, end in (("good", b""), ("bad", b"more")):
        (tmp_path / "served" / folder).mkdir(parents=True)
        for name, content in files.items():
            packed = gzip.compress(content, mtime=0)
            (tmp_path / "served" / folder / f"{name}.gz").write_bytes(packed + end)
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(variable, "127.0.0.1")
    handler = functools.partial(Quiet, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def use_mirrors(monkeypatch, *mirrors):
    monkeypatch.setattr(images, "MNIST", replace(images.MNIST, mirrors=mirrors))


def test_mirrors_are_tried_in_turn_and_the_cache_is_used(mirror, files, tmp_path, monkeypatch):
    use_mirrors(monkeypatch, f"{mirror}none/", f"{mirror}bad/", f"{mirror}good/")
    assert len(pc.datasets.mnist("test")) == ROWS
    cache = tmp_path / "cache" / "paracond" / "mnist"
    assert sorted(os.listdir(cache)) == sorted(f"{name}.gz" for name in NAMES[2:])  # no others, and no remains
    use_mirrors(monkeypatch, f"{mirror}none/")
    assert len(pc.datasets.mnist("test")) == ROWS


def test_a_damaged_cache_is_downloaded_anew(mirror, files, tmp_path, monkeypatch):
    use_mirrors(monkeypatch, f"{mirror}good/")
    pc.datasets.mnist()
    path = tmp_path / "cache" / "paracond" / "mnist" / f"{NAMES[0]}.gz"
    path.write_bytes(path.read_bytes()[:-5])
    assert len(pc.datasets.mnist()) == ROWS


def test_every_failure_is_named(mirror, files, tmp_path, monkeypatch):
    use_mirrors(monkeypatch, f"{mirror}none/", f"{mirror}bad/")
    monkeypatch.setenv("PARACOND_DATA", str(tmp_path / "root"))
    with pytest.raises(pc.InputError) as caught:
        pc.datasets.mnist()
    message, notes = str(caught.value), caught.value.__notes__
    assert message.startswith("give the folder of MNIST's files, by --data or folder=, or by PARACOND_DATA: ")
    assert f"{NAMES[0]} is in none of the 3 places" in message and len(message) <= 300
    assert [f"not in {tmp_path}/root/mnist", f"not in {tmp_path}/root"] == notes[:2]
    assert f"not at {mirror}none/{NAMES[0]}.gz (404" in notes[3]
    assert re.search(rf"{mirror}bad/{NAMES[0]}.gz \(SHA256 hash .* does not match", notes[4])
    assert not list((tmp_path / "cache").rglob("*ubyte*"))  # a damaged download is not kept


# A number of labels


def labelled(*sizes):
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return pc.Data({"x": torch.zeros(len(labels), 2), "c": labels})


def kept(data):
    return data.state["c"][data.mask["c"]].bincount(minlength=int(data.state["c"].max()) + 1).tolist()


def test_labels_are_balanced():
    data = labelled(50, 60, 70)
    assert kept(pc.datasets.keep_labels(data, 30)) == [10, 10, 10]
    assert sorted(kept(pc.datasets.keep_labels(data, 32))) == [10, 11, 11]
    assert kept(pc.datasets.keep_labels(data, 0)) == [0, 0, 0]
    assert kept(pc.datasets.keep_labels(data, 180)) == [50, 60, 70]
    assert kept(pc.datasets.keep_labels(labelled(2, 0, 40, 5), 17)) == [2, 0, 10, 5]  # as equal as the data allow
    assert pc.datasets.keep_labels(data, 30).mask["x"].all()
    assert data.mask["c"].all()  # the data given are left as they were


def test_labels_are_kept_at_random_and_nested():
    data = labelled(50, 60, 70)
    few, more, other = (
        pc.datasets.keep_labels(data, count, seed).mask["c"] for count, seed in ((30, 0), (100, 0), (30, 1))
    )
    assert bool((more | ~few).all())
    assert not torch.equal(few, other)
    assert torch.equal(few, pc.datasets.keep_labels(data, 30, 0).mask["c"])
    share = torch.stack([pc.datasets.keep_labels(labelled(5, 5), 5, seed).mask["c"] for seed in range(400)]).float()
    # 5 of 10 labels, every row alike: a mean of 400 draws has deviation 0.025; seven of them, and seeds are fixed
    assert bool(((share.mean(0) - 0.5).abs() < 0.175).all())


def test_only_observed_labels_are_kept():
    data = labelled(50, 60, 70)
    hidden = pc.datasets.hide(data, {"c": 0.5})
    few = pc.datasets.keep_labels(hidden, 30)
    assert kept(few) == [10, 10, 10]
    assert bool((hidden.mask["c"] | ~few.mask["c"]).all())
    refused("to keep must be in 0..90, found 91", pc.datasets.keep_labels, hidden, 91)


def test_keep_labels_refuses():
    data = labelled(3, 3)
    for count in (-1, 7, 2.5, 0.5):
        refused(f"the number of labels to keep must be in 0..6, found {count}", pc.datasets.keep_labels, data, count)
    x = torch.zeros(6, 2)
    refused("cannot keep labels: the data has no 'c', only x", pc.datasets.keep_labels, pc.Data({"x": x}), 1)
    refused("labels of 'c' must be integers [rows], found torch.float32", pc.datasets.keep_labels, pc.Data({"c": x}), 1)


# The real files


def real(name):
    """The folder of the original files on this machine."""
    roots = (os.environ.get("PARACOND_DATA"), Path(__file__).parents[2] / "shared" / "data")
    folder = next((Path(root, name) for root in roots if root and Path(root, name).is_dir()), None)
    return folder or pytest.skip(f"the files of {name} are not on this machine (set PARACOND_DATA)")


DIGITS = {
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}


@pytest.mark.parametrize("split", ["train", "test"])
def test_mnist(split):
    data = pc.datasets.mnist(split, folder=real("mnist"))
    assert data.state["x"].shape == (sum(DIGITS[split]), 1, 28, 28)
    ones = data.state["x"] == 1
    assert bool(ones.any()) and bool((ones | (data.state["x"] == 0)).all())
    assert data.state["c"].bincount().tolist() == DIGITS[split]
    for count in (100, 1000):
        assert kept(pc.datasets.keep_labels(data, count)) == [count // 10] * 10


def test_grey_mnist():
    data = pc.datasets.mnist(folder=real("mnist"), binary=False)
    assert float(data.state["x"].min()) == 0 and float(data.state["x"].max()) == 1
    assert float(data.state["x"].mean()) == pytest.approx(0.1307, abs=1e-4)  # the published mean


@pytest.mark.parametrize("split, rows", [("train", 60000), ("test", 10000)])
def test_fashion(split, rows):
    data = pc.datasets.fashion(split, folder=real("fashion"))
    assert data.state["x"].shape == (rows, 1, 28, 28)
    assert float(data.state["x"].min()) == 0 and float(data.state["x"].max()) == 1
    assert data.state["c"].bincount().tolist() == [rows // 10] * 10
    if split == "train":
        assert float(data.state["x"].mean()) == pytest.approx(0.2860, abs=1e-4)  # the published mean


def test_one_set_is_not_taken_for_the_other():
    folder = real("fashion")
    refused(
        f"{folder / NAMES[2]}.gz is not MNIST's {NAMES[2]}: it is Fashion-MNIST's",
        pc.datasets.mnist,
        "test",
        folder=folder,
    )
