"""Faces: both layouts, what is missing, and what is damaged."""

import importlib
import io

import numpy as np
import pytest
import torch
from PIL import Image

import paracond as pc

module = importlib.import_module("paracond.datasets.faces")  # the function has its name


def write_npz(folder, rows=6, segmented=3, **changes):
    generator = np.random.default_rng(0)
    pictures, packed = generator.integers(0, 256, (rows, 64, 64, 3), dtype=np.uint8), []
    for picture in pictures:
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "webp", lossless=True)
        packed.append(buffer.getvalue())
    attributes = generator.integers(0, 2, (rows, 40), dtype=np.uint8)
    attributes[1] = 255
    content = {
        "webp": np.frombuffer(b"".join(packed), np.uint8),
        "offsets": np.cumsum([0, *map(len, packed)]),
        "segmentation": generator.integers(0, 19, (segmented, 64, 64), dtype=np.uint8),
        "attributes": attributes,
        "attribute_names": np.array([f"A{k}" for k in range(40)]),
        "test": np.array([0, 0, 1, 0, 0, 1], np.uint8)[:rows],
    }
    content |= changes
    np.savez(folder / "faces64.npz", **{name: value for name, value in content.items() if value is not None})
    return pictures, content


def test_rows_have_what_is_known_of_them(tmp_path):
    pictures, content = write_npz(tmp_path)
    data = pc.datasets.faces(folder=tmp_path)
    rows = [0, 1, 3, 4]
    assert torch.equal((data.state["x"] * 255).round().byte(), torch.from_numpy(pictures[rows].transpose(0, 3, 1, 2)))
    assert data.mask["s"].flatten(1).all(1).tolist() == [True, True, False, False]
    assert data.mask["c"].all(1).tolist() == [True, False, True, True]
    assert torch.equal(data.state["c"][2], torch.from_numpy(content["attributes"][3]).float())
    masks = data.state["s"][:2]
    assert masks.shape == (2, 18, 64, 64) and masks.dtype == torch.uint8
    labels = pc.datasets.faces(folder=tmp_path, segmentation="labels").state["s"][:2]
    assert torch.equal(labels, torch.from_numpy(content["segmentation"][:2]).long())
    assert torch.equal((masks.long() * torch.arange(1, 19).view(1, 18, 1, 1)).sum(1), labels)
    test = pc.datasets.faces("test", folder=tmp_path)
    assert len(test) == 2 and test.mask["s"].flatten(1).all(1).tolist() == [True, False]


def write_layout(folder, faces=12):
    """CelebAMask-HQ as it is published, with tiny contents: a grey ramp, skin everywhere, hair above, one has a hat."""
    for name in (module.IMAGES, f"{module.PARTS}/0"):
        (folder / name).mkdir(parents=True)
    lines = [str(faces), "Bald Smiling"]
    for row in range(faces):
        Image.fromarray(np.full((128, 128, 3), 10 * row, np.uint8)).save(
            folder / module.IMAGES / f"{row}.jpg", quality=95
        )
        skin, hair, hat = (np.zeros((128, 128), np.uint8) for _ in range(3))
        skin[:], hair[:40], hat[:10] = 255, 255, 255
        parts = {"skin": skin, "hair": hair} | ({"hat": hat} if row == 5 else {})
        for part, mask in parts.items():
            Image.fromarray(mask).save(folder / module.PARTS / "0" / f"{row:05d}_{part}.png")
        lines.append(f"{row}.jpg  {'1' if row % 2 else '-1'} {'1' if row % 3 else '-1'}")
    (folder / module.ATTRIBUTES).write_text("\n".join(lines) + "\n")


def test_the_published_layout_is_read_and_kept(tmp_path):
    write_layout(tmp_path)
    data = pc.datasets.faces(folder=tmp_path, segmentation="labels")
    rows = [row for row in range(12) if row % 10]
    assert len(data) == 10 and len(pc.datasets.faces("test", folder=tmp_path)) == 2
    torch.testing.assert_close(data.state["x"].mean((1, 2, 3)), torch.tensor(rows) * 10 / 255, atol=0.01, rtol=0)
    assert data.state["c"].tolist() == [[float(row % 2), float(row % 3 > 0)] for row in rows]
    labels = data.state["s"][rows.index(5)]
    hat, hair, skin = (module.LABELS.index(name) + 1 for name in ("hat", "hair", "skin"))
    assert labels[:, 0].tolist() == [hat] * 5 + [hair] * 15 + [skin] * 44
    assert bool(data.mask["s"].all()) and bool(data.mask["c"].all())
    (tmp_path / module.ATTRIBUTES).unlink()  # it is read from what was kept
    again = pc.datasets.faces(folder=tmp_path, segmentation="labels")
    assert all(torch.equal(again.state[name], value) for name, value in data.state.items())


def test_a_block_has_the_label_of_its_majority():
    labels = np.zeros((128, 128), np.uint8)
    labels[0, 0:2] = 7  # two of four: a tie with the background, which is smaller
    labels[2, 0:2] = labels[3, 0] = 9
    found = module.majority(labels)
    assert found[0, 0] == 0 and found[1, 0] == 9 and int(found.sum()) == 9


@pytest.mark.parametrize(
    "change, message",
    [
        ({"webp": None}, "is not a set of faces"),
        ({"test": np.zeros(5, np.uint8)}, "is damaged: 6 pictures, 6 rows of attributes, 5 of the split"),
        ({"segmentation": np.full((2, 64, 64), 19, np.uint8)}, r"labels must be in 0\.\.18, found 19"),
        ({"webp": np.zeros(50_000, np.uint8)}, "picture 0 cannot be read"),
    ],
)
def test_damaged_sets_are_refused_by_name(change, message, tmp_path):
    write_npz(tmp_path, **change)
    with pytest.raises(pc.InputError, match=message) as found:
        pc.datasets.faces(folder=tmp_path)
    assert "faces64.npz" in str(found.value)


def test_what_is_missing_in_the_layout_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("PARACOND_DATA", raising=False)
    with pytest.raises(pc.InputError, match=r"neither faces64.npz nor CelebA-HQ-img/ was found; looked in no folder"):
        pc.datasets.faces()
    with pytest.raises(pc.InputError, match="split must be one of train, test"):
        pc.datasets.faces("all", folder=tmp_path)
    with pytest.raises(pc.InputError, match="segmentation must be one of masks, labels"):
        pc.datasets.faces(folder=tmp_path, segmentation="colours")
    write_layout(tmp_path, 2)
    path = tmp_path / module.ATTRIBUTES
    text = path.read_text()
    path.write_text(text.replace("1.jpg  1", "1.jpg  2"))
    with pytest.raises(pc.InputError, match=r"attribute-anno.txt, line 4: expected FACE.jpg and 2 times -1 or 1"):
        pc.datasets.faces(folder=tmp_path)
    path.write_text(text + "7.jpg 1 1\n")
    with pytest.raises(pc.InputError, match="names the face 7, but there is no"):
        pc.datasets.faces(folder=tmp_path)
    path.unlink()
    with pytest.raises(pc.InputError, match=r"there is no .*attribute-anno\.txt"):
        pc.datasets.faces(folder=tmp_path)
