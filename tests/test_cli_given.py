"""What a command line is given: nothing is forgotten, no file is trusted, and white is 1 in every picture."""

import contextlib
import csv
import io
import json
import os
import re
import resource
import shutil
import stat
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzz_cli import NAMES, prepare
from PIL import Image
from test_datasets import real

import paracond as pc
from paracond.cli import files, pictures, polarity
from paracond.cli import main as cli
from paracond.experiments.common.names import write_names
from paracond.experiments.common.results import choose_device

QUICK = ["--sweeps", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("cli")
    with contextlib.chdir(place):
        prepare()
    return place


@pytest.fixture
def saved(folder, monkeypatch):
    """A folder with a saved model, good files and hostile ones, where commands run. It is left as it was."""
    monkeypatch.chdir(folder)
    before, names = set(os.listdir()), Path("saved/names.json").read_text()
    yield
    for name in set(os.listdir()) - before:
        shutil.rmtree(name) if os.path.isdir(name) else os.unlink(name)
    Path("saved/names.json").write_text(names)


def refused(message, *words):
    with pytest.raises(SystemExit, match=message) as caught:
        cli.main(list(words))
    assert str(caught.value).startswith("paracond: ") and str(caught.value).isprintable()


def drawn(*words, out="drawn"):
    cli.main(["sample", "saved", *words, *QUICK, "--out", out])
    return dict(np.load(Path(out, "samples.npz")))


# --- nothing is forgotten ---------------------------------------------------------------------------------------------


def test_repeated_options_are_joined_and_all_of_them_count(saved):
    found = drawn("--given", "c=2", "--rows", "3", "--given=a[Hat]=1", "a[3]=0,1,0", "--given", "r=0.5")
    assert found["c"].tolist() == [2, 2, 2] and found["a"][:, 0].tolist() == [1, 1, 1]
    assert found["a"][:, 3].tolist() == [0, 1, 0] and (found["r"] == 0.5).all()
    again = drawn("--given", "c=2", "r=0.5", "a[a=b]=0,1,0", "a[0]=1", out="again")
    assert all((found[name] == again[name]).all() for name in ("c", "r"))  # the engine is chosen by time, so not all
    assert (found["a"][:, [0, 3]] == again["a"][:, [0, 3]]).all()
    cli.main(
        ["sample", "saved", "--edit", "a[0]=1", "--edit", "a[1]=0", *QUICK, "--edit-sweeps", "0", "--out", "edited"]
    )
    assert np.load("edited/edited.npz")["a"][:, :2].tolist() == [[1, 0]] * 100


@pytest.mark.parametrize(
    "words, message",
    [
        (["--given", "a=1", "a[0]=0"], "'a' is given twice"),
        (["--given", "a=1", "--given", "a[0]=0"], "'a' is given twice"),
        (["--given", "x=x.png", "--given", "x=x.png"], "'x' is given twice"),
        (["--seed", "1", "--seed", "2"], "--seed is given twice: give it once"),
        (["--edit_sweeps", "1", "--edit-sweeps=2"], "--edit-sweeps is given twice"),
        (["--invert", "--no-invert"], "--invert is given twice"),
        (["--given", "a[0]=1,0", "a[1]=1,0,1"], "coordinates of 'a' have 2 and 3 values"),
        (["--given", "c=1,0", "--rows", "5"], "--rows 5, but 'c' is given in 2 rows: leave out --rows"),
        (["--given", "c=1,0", "a[0]=1,0,1"], "'c' is given in 2 rows, but another group in 3"),
        (["--guidance", "2"], "--guidance is about --edit, which is not given"),
        (["--edit-sweeps", "2"], "--edit-sweeps is about --edit"),
        (["--invert", "--given", "c=1"], "--invert needs a .png picture"),
        (["--edit", "a=a.npy"], "a.npy cannot be read: No such file"),
        (["--given", "c=1_0"], "c=1_0: neither numbers nor"),
        (["--given", "c=1e-50"], "classes are whole numbers"),
        (["--given", "r=1e39"], "the model computes in torch.float32, in which this is not a finite number"),
        (["--given", "a[٣]=1"], "a coordinate is a number from 0 to 3"),
        (["--given", "a[" + "9" * 5000 + "]=1"], "a coordinate is a number from 0 to 3"),
        (["--rows", "10" + "0" * 12], "--rows must be at most"),
        (["--rows", "2000000000"], "so many draws take .* GB"),
        (["--given", "q\n\x1b=1"], r"unknown variable 'q\\n\\x1b'"),
        (["--out", "a\0b"], "--out must not hold a zero byte"),
        (["--device", "gpu"], "--device must be auto, cpu, cuda or cuda:NUMBER, found 'gpu'"),
    ],
)  # fmt: skip
def test_what_would_be_forgotten_is_refused(words, message, saved):
    refused(message, "sample", "saved", *words)
    assert not Path("runs").exists()


def test_as_many_rows_as_coordinates(saved):
    """A mask of four could then mean rows."""
    assert drawn("--given", "a[0]=1,0,1,0")["a"][:, 0].tolist() == [1, 0, 1, 0]


def test_classify_ignores_nothing(saved):
    refused("zero byte", "classify", "saved", "--given", "a=1", "--overwrite", "--out", "\0")
    refused("--data is the folder of a data set", "classify", "saved", "--given", "a=1", "--data", "nowhere")


# --- files ------------------------------------------------------------------------------------------------------------


LEVELS = np.random.default_rng(3).integers(0, 256, (6, 5), dtype=np.uint8)


def png(depth, colour, rows, *more):
    """A picture written by hand: rows of bytes, chunks between header and pixels."""
    head = struct.pack(">IIBBBBB", 5, 6, depth, colour, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = [(b"IHDR", head), *more, (b"IDAT", body), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def packed(bits, depth):
    """Rows of values with some bits each."""
    rows = ["".join(f"{v:0{depth}b}" for v in row) for row in bits]
    return [int(row.ljust(-(-len(row) // 8) * 8, "0"), 2).to_bytes(-(-len(row) // 8), "big") for row in rows]


DEEP = np.random.default_rng(4).integers(0, 2**16, (6, 5))
COLOURS = np.random.default_rng(5).integers(0, 256, (6, 5, 3), dtype=np.uint8)
OPAQUE = np.full((6, 5, 1), 255, np.uint8)
FORMS = {
    "8 bits": (png(8, 0, map(bytes, LEVELS)), LEVELS / 255),
    "16 bits": (png(16, 0, [row.astype(">u2").tobytes() for row in DEEP]), DEEP / 65535),
    "4 bits": (png(4, 0, packed(LEVELS >> 4, 4)), (LEVELS >> 4) / 15),
    "2 bits": (png(2, 0, packed(LEVELS >> 6, 2)), (LEVELS >> 6) / 3),
    "1 bit": (png(1, 0, packed(LEVELS >> 7, 1)), LEVELS >> 7),
    "palette": (
        png(2, 3, packed(LEVELS >> 6, 2), (b"PLTE", bytes(range(0, 120, 10)))),
        np.arange(0, 120, 10).reshape(4, 3)[LEVELS >> 6] / 255,
    ),
    "grey and alpha": (png(8, 4, map(bytes, np.dstack([LEVELS, OPAQUE]).reshape(6, -1))), LEVELS / 255),
    "colours": (png(8, 2, map(bytes, COLOURS.reshape(6, -1))), COLOURS / 255),
    "colours and alpha": (png(8, 6, map(bytes, np.dstack([COLOURS, OPAQUE]).reshape(6, -1))), COLOURS / 255),
}


@pytest.mark.parametrize("form", FORMS)
def test_pictures_of_all_forms_are_read_exactly(form, tmp_path):
    payload, expected = FORMS[form]
    path = tmp_path / "some.png"
    path.write_bytes(payload)
    expected = torch.as_tensor(np.float32(expected))
    expected = expected[None] if expected.ndim == 2 else expected.permute(2, 0, 1)
    for invert in (False, True):
        found = files.pixels("x", path, (6, 5), invert)
        torch.testing.assert_close(found, 1 - expected if invert else expected, rtol=0, atol=1e-7)


def test_transparent_pixels_have_no_brightness(tmp_path):
    forms = (
        png(8, 4, map(bytes, np.dstack([LEVELS, OPAQUE - 1]).reshape(6, -1))),
        png(16, 0, [row.astype(">u2").tobytes() for row in DEEP], (b"tRNS", struct.pack(">H", DEEP[0, 0]))),
        png(8, 0, map(bytes, LEVELS), (b"tRNS", struct.pack(">H", LEVELS[0, 0]))),
        png(2, 3, packed(LEVELS >> 6, 2), (b"PLTE", bytes(12)), (b"tRNS", bytes(4))),
    )
    for payload in forms:
        (tmp_path / "some.png").write_bytes(payload)
        with pytest.raises(pc.InputError, match="transparent pixels; save it without transparency"):
            files.pixels("x", tmp_path / "some.png", (6, 5))


def test_a_colour_picture_of_greys_is_the_grey_picture(saved):
    Image.fromarray(np.dstack([LEVELS] * 3)).save("rgb.png")
    Image.fromarray(LEVELS).save("grey.png")
    found = [drawn("--given", f"x={name}.png", out=name)["x"][0, 0] for name in ("rgb", "grey")]
    assert (found[0] == found[1]).all() and (found[0] == (LEVELS > 127)).all()


@pytest.mark.parametrize(
    "word, message",
    [
        ("x=hostile/bomb.png", r"has \[50000, 50000\] pixels, the model wants \[6, 5\]"),
        ("x=hostile/twice.png", "cannot be read"),
        ("x=hostile/bytes.png", "it is not a PNG picture; save it as one"),
        ("x=jpeg.png", "it is not a PNG picture; save it as one"),
        ("x=hostile/empty.png", "it is not a PNG picture"),
        ("x=hostile/folder.png", "it is not a file"),
        ("x=hostile/pipe.png", "it is not a file"),
        ("x=long.png", "bytes, a picture of this size at most"),
        ("x=hostile/pipe.npy", "it is not a file"),
        ("x=hostile/folder.npy", "it is not a file"),
        ("r=x.png", "'r' is Real.*: give its numbers as a .npy file"),
        ("a=hostile/nothing.npy", r"must have shape \[rows, 4\], found \[\]"),
        ("a=hostile/none.npy", "has no rows"),
        ("c=hostile/texts.npy", "must hold numbers, found <U1"),
        ("c=hostile/complex.npy", "must hold numbers, found complex128"),
        ("c=hostile/structured.npy", r"must hold numbers, found \[\('a'"),
        ("c=hostile/dates.npy", "must hold numbers, found datetime64"),
        ("x=hostile/wide.npy", "must hold numbers, found (float128|float64)|binary"),
        ("c=hostile/objects.npy", "holds Python objects, which are never read"),
        ("c=hostile/huge.npy", "numbers of more than 63 bits"),
        ("x=hostile/absurd.npy", r"must have shape \[rows, 1, 6, 5\]"),
        ("x=rows.npy", "is damaged: shape .* needs .* bytes, found 0"),
        ("c=hostile/negative.npy", "is damaged: it declares the shape"),
        ("c=hostile/deep.npy", "cannot be read"),
        ("c=hostile/text.npy", "cannot be read"),
        ("c=more.npy", "is damaged: shape .* needs 24 bytes, found 176"),
        ("a=row.npy", "a single row needs its axis of rows too"),
        ("r=hostile/large.npy", "values that are not finite numbers in torch.float32"),
        ("a=hostile/nan.npy", "values that are not finite numbers"),
        ("y=hostile/bytes.npy", "whole numbers up to 255: pixels are from 0 to 1"),
    ],
)
def test_hostile_files_get_one_sentence_and_no_memory(word, message, saved):
    Image.fromarray(LEVELS).save("jpeg.png", format="jpeg")
    Path("long.png").write_bytes(Path("x.png").read_bytes() + bytes(2 * files.SPARE))
    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000, 1, 6, 5), }\n"
    Path("rows.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
    with open("more.npy", "wb") as file:
        np.save(file, np.zeros(3))
        np.save(file, np.zeros(3))
    np.save("row.npy", np.zeros(4))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(message, "sample", "saved", "--given", word, *QUICK)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_arrays_of_all_kinds_are_read(tmp_path):
    values = np.arange(12).reshape(3, 4)
    for kind in ("<i2", ">i4", "u1", ">u2", "<u8", "<f4", ">f8", "<f2"):
        for order in "CF":
            np.save(tmp_path / "some.npy", np.asarray(values.astype(kind), order=order))
            found = files.array("a", tmp_path / "some.npy", (4,))
            assert found.double().tolist() == values.tolist() and found.is_contiguous()
    np.save(tmp_path / "some.npy", values > 5)
    assert files.array("a", tmp_path / "some.npy", (4,)).tolist() == (values > 5).tolist()


@pytest.mark.parametrize(
    "text, message",
    [
        ("[" * 100_000, "names.json"),
        ('{"a": ["1", "2", "3"]}', r"must have a list of \[4\] different names for 'a'"),
        ('{"a": ["1", "2", "3", "3"]}', "different names"),
        ('{"a": [1, 2, 3, 4]}', "different names"),
        ('{"c": ["1"]}', "different names for 'c'"),
        ('{"q": ["1"]}', "names 'q', which is no group of the model"),
        ('["a"]', "must hold an object, found a list"),
        ('{"a": ' + "9" * 5000 + "}", "names.json is damaged"),
        ('{"a": "' + "b" * 2**23 + '"}', "bytes, at most"),
        ("\udcff", "names.json is damaged"),
    ],
)
def test_names_of_coordinates_are_checked(text, message, saved):
    Path("saved/names.json").write_text(text, errors="surrogateescape")
    refused(message, "sample", "saved", *QUICK)


@pytest.mark.parametrize("place", [25, 60, 100, -30])
def test_a_changed_character_of_sealed_names_is_refused(place, saved):
    write_names(Path("saved"), {"a": ["one", "two", "three", "four"]})
    drawn("--given", "a[two]=1")
    text = Path("saved/names.json").read_text()
    at = place % len(text)
    Path("saved/names.json").write_text(f"{text[:at]}{'x' if text[at] != 'x' else 'y'}{text[at + 1 :]}")
    refused("names", "sample", "saved", *QUICK)


# --- what is written --------------------------------------------------------------------------------------------------


def test_a_picture_that_was_written_can_be_given_again(saved):
    """With the polarity and the pixels of the model, one draw or several."""
    found = drawn("--given", "y=y.png", "c=1")
    assert np.allclose(found["y"], np.load("y.npy"))
    assert (np.asarray(Image.open("drawn/samples_y.png")) == np.asarray(Image.open("y.png"))).all()
    again = drawn("--given", "x=drawn/samples.png", "y=drawn/samples_y.png", out="again")
    assert (again["y"] == found["y"]).all()
    assert (again["x"][0, 0] == (np.asarray(Image.open("drawn/samples.png")) > 127)).all()
    drawn("--given", "x=x.png", "--rows", "11", "--separate", out="many")
    single = sorted(Path("many/samples").iterdir())
    assert [path.name for path in single] == [f"{k:02}.png" for k in range(11)]
    white = (np.asarray(Image.open("x.png")) > 127) * 255
    assert all((np.asarray(Image.open(path)) == white).all() for path in single)
    assert len(list(Path("many/samples_y").iterdir())) == 11
    assert np.asarray(Image.open("many/samples.png")).shape[0] > 40  # a sheet


def test_white_is_one_on_sheets():
    levels = np.asarray(Image.open(io.BytesIO(pictures.as_png(torch.cat([torch.zeros(2, 1, 9, 9)] * 5))))).astype(int)
    assert levels[levels.shape[0] // 2, levels.shape[1] // 2, 0] == 0


def test_no_file_is_replaced_unasked(saved):
    drawn("--rows", "2")
    before = Path("drawn/samples.npz").read_bytes()
    refused("drawn/samples.npz is there already: add --overwrite", "sample", "saved", *QUICK, "--out", "drawn")
    assert Path("drawn/samples.npz").read_bytes() == before
    drawn("--rows", "3", "--overwrite")
    assert len(np.load("drawn/samples.npz")["c"]) == 3
    Path("other").mkdir()
    Path("other/edited.npz").touch()
    edit = ["sample", "saved", "--edit", "a[0]=1", *QUICK, "--out", "other"]
    refused("other/edited.npz is there already", *edit)
    assert [path.name for path in Path("other").iterdir()] == ["edited.npz"]
    table = ["classify", "saved", "--given", "a=1", *QUICK, "--out", "table.csv"]
    Path("table.csv").write_text("mine")
    refused("table.csv is there already", *table)
    assert Path("table.csv").read_text() == "mine"
    cli.main([*table, "--overwrite"])
    assert Path("table.csv").read_text().startswith("row,decision,probability")


def test_places_that_cannot_be_written_are_found_before_the_work(saved, monkeypatch):
    monkeypatch.setattr(pc, "sample", lambda *_, **__: pytest.fail("it worked before it looked"))
    Path("folder/samples.npz").mkdir(parents=True)
    refused("samples.npz cannot be written: it is a folder", "sample", "saved", "--overwrite", "--out", "folder")
    Path("table.csv").touch()
    os.chmod("table.csv", stat.S_IRUSR)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the user may be root, who may do all
    refused("it is read-only", "classify", "saved", "--given", "a=1", "--overwrite", "--out", "table.csv")
    for command in (["demo"], ["reproduce", "ising", "--quick"], ["train", "mnist"]):
        for name in ("model", "checkpoint", "parts"):
            Path(name).mkdir()
            Path(name, name).touch()  # a file where a folder will be
            refused(f"{name} is a file", *command, "--out", name)
            Path(name, name).unlink()
            Path(name).rmdir()
        Path("done/results.json").mkdir(parents=True, exist_ok=True)
        refused("results.json is a folder", *command, "--out", "done")


def test_a_full_disk_gets_one_line(saved, monkeypatch):
    def full(path, payload):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(pictures, "replace_file", full)
    refused("No space left on device: 'drawn/samples.npz'", "sample", "saved", *QUICK, "--out", "drawn")


def test_the_table_names_the_files(saved):
    Image.fromarray(LEVELS).save("other.png")
    cli.main(["classify", "saved", "--given", "x=x.png,other.png", "y=y.npy", *QUICK])
    with open("runs/decisions.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["file"] for row in table] == ["x.png y.npy", "other.png y.npy"]
    model, pixels = pc.JointModel.load("saved"), [np.load("x.npy")[0], np.float32(LEVELS > 127)[None]]
    given = {"x": torch.tensor(np.stack(pixels)), "y": torch.tensor(np.load("y.npy"))}
    exact = pc.query(model, given, ["c"], stop=pc.Sweeps(1)).probabilities["c"].amax(-1)
    assert [float(row["probability"]) for row in table] == pytest.approx(exact.tolist(), abs=2e-3)


def test_any_name_of_a_group_can_be_drawn_and_given(saved):
    """As columns of tables have them."""
    names = ("file", "a=b", "a[0]", "a/b", "größe" * 9)
    variables = {name: pc.Binary((1, 2, 2)) for name in names}
    parts = {name: pc.Conditional(family, pc.networks.mlp(variables, name)) for name, family in variables.items()}
    pc.JointModel(parts).save("odd names")
    for name in names:
        cli.main(["sample", "odd names", "--given", f"{name}=1", *QUICK, "--out", "odd", "--overwrite"])
        found = np.load("odd/samples.npz")
        assert set(found) == set(names) and (found[name] == 1).all()


# --- polarity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, errors", [("mnist", 0), ("fashion", 2)])
def test_negatives_of_the_test_images_are_recognised(name, errors):
    """All of MNIST's, and all but one of Fashion-MNIST's; of the lower halves, all but 4 in 10,000."""
    model = pc.JointModel.load(Path(__file__).parents[1] / "models" / name)
    images = getattr(pc.datasets, name)("test", folder=real(name)).state["x"]
    own, lower = polarity.own_images(model, "x"), torch.arange(28).view(1, 28, 1).expand(1, 28, 28) >= 14
    for mask, most in ((None, errors), (lower, 4 * errors)):
        right, negative = (polarity.looks_inverted(each, own, mask) for each in (images, 1 - images))
        assert int(right.sum()) <= most and int((~negative).sum()) <= most


def test_an_inverted_picture_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = str(Path(__file__).parents[1] / "models" / "mnist")
    cli.main(["sample", model, "--given", "c=3", "--rows", "1", *QUICK, "--out", "drawn"])
    white_on_black = np.asarray(Image.open("drawn/samples.png"))
    assert white_on_black.shape == (28, 28) and white_on_black.mean() < 90
    Image.fromarray(255 - white_on_black).save("negative.png")
    capsys.readouterr()
    tables = []
    for word, option, message in (
        ("drawn/samples.png", [], ""),
        ("negative.png", [], "x=negative.png looks inverted: white is read as 1, .*; add --invert\n"),
        ("negative.png", ["--invert"], ""),
        ("drawn/samples.png", ["--invert"], "x=drawn/samples.png looks inverted: black .*; leave out --invert\n"),
    ):
        cli.main(["classify", model, "--given", f"x={word}", *option, *QUICK, "--out", "table.csv", "--overwrite"])
        said = capsys.readouterr().err
        assert re.fullmatch(message and f"paracond: {message}", said)
        tables.append(Path("table.csv").read_text().replace(word, ""))
    assert tables[0] == tables[2] != tables[1]


def test_where_it_cannot_be_told_the_polarity_is_named(saved, capsys):
    drawn("--given", "x=x.png")
    assert "x=x.png is read with white as 1; with --invert black is" in capsys.readouterr().err
    found = drawn("--given", "x=x.png", "--invert", out="inverted")
    assert "x=x.png is read with black as 1; without --invert white is" in capsys.readouterr().err
    assert (found["x"][0, 0] == (np.asarray(Image.open("x.png")) < 128)).all()


# --- devices ----------------------------------------------------------------------------------------------------------


def test_devices_have_numbers(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert [choose_device(each) for each in ("auto", "cpu", "cuda", "cuda:1")] == ["cuda", "cpu", "cuda", "cuda"]
    assert chosen == [1]
    with pytest.raises(pc.InputError, match="--device cuda:2, but the CUDA devices are cuda:0 to cuda:1"):
        choose_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    with pytest.raises(pc.InputError, match="--device cuda:1, but torch finds no CUDA device"):
        choose_device("cuda:1")
    for wrong in ("gpu", "cuda:", "cuda:-1", "cuda:x", "", "CPU"):
        with pytest.raises(pc.InputError, match="--device must be auto, cpu, cuda or cuda:NUMBER"):
            choose_device(wrong)


def test_a_device_is_no_engine(monkeypatch):
    for device in ("cuda", "cuda:1", torch.device("cuda", 1), "cpu"):
        with pytest.raises(
            pc.InputError, match=rf'engine must be one of .*, found the device .*model.to\("{device}"\)'
        ):
            pc.Engine("cpu", device)
    with pytest.raises(pc.InputError, match="device must be such as"):
        pc.Engine("nonsense")
    assert NAMES[3] == "a=b" and json.loads(json.dumps(NAMES))  # names with any sign are in the model of these tests


def test_runs_without_a_place_have_one_each(saved):
    for _ in range(2):
        cli.main(["sample", "saved", *QUICK])
    assert sorted(path.name for path in Path("runs").iterdir()) == ["sample", "sample-2"]
