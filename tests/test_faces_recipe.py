"""The recipe for faces, from a file to its report; its model and its designs."""

import json

import pytest
import torch
from test_faces import write_npz

import paracond as pc
from paracond import cli
from paracond.recipes import faces
from paracond.recipes.faces_model import BEST, PAPER, make_learner, make_model, small, variables_of

NAMES = {
    *("training_minutes", "f1", "f1_control", "f1_hidden_ratio", "attribute_accuracy", "inpainting_psnr"),
    *("inpainting_psnr_gain", "demixing_psnr_gain", "union_gain_f1", "union_gain_accuracy"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve segmented faces, of which two have no attributes, and eight others; noise instead of faces."""
    place = tmp_path_factory.mktemp("faces")
    generator = torch.Generator().manual_seed(0)
    attributes = torch.randint(2, (20, 40), generator=generator, dtype=torch.uint8).numpy()
    attributes[:2] = 255
    names = [f"A{k}" for k in range(38)] + ["Eyeglasses", "Male"]
    test = [k % 3 == 0 for k in range(20)]
    write_npz(place, rows=20, segmented=12, attributes=attributes, attribute_names=names, test=test)
    return place


def test_the_recipe_from_a_file_to_a_report(folder, tmp_path, capsys):
    cli.main(["reproduce", "faces", "--quick", "--device", "cpu", "--data", str(folder), "--out", str(tmp_path)])
    record = json.loads((tmp_path / "results.json").read_text())
    metrics = {metric["name"]: metric for metric in record["metrics"]}
    assert set(metrics) >= NAMES | {"switch_success", "switch_success_male"}
    assert all(metric["goal"] is None for metric in metrics.values())  # a quick run has none
    page = (tmp_path / "report.html").read_text()
    assert all(heading in page for heading in ("Generated", "Demixing", "Eyeglasses off and on", "Super-resolution"))
    again = ["reproduce", "faces", "--quick", "--device", "cpu", "--data", str(folder), "--union", "0"]
    cli.main([*again, "--out", str(tmp_path / "again"), "--model", str(tmp_path / "model")])
    asked = json.loads((tmp_path / "again" / "results.json").read_text())
    found = {metric["name"]: metric["value"] for metric in asked["metrics"]}
    assert found["f1"] == pytest.approx(metrics["f1"]["value"], abs=0.05)  # its weights were rounded
    assert "training_minutes" not in found and "union_gain_f1" not in found


def test_a_model_of_something_else_is_refused(folder, tmp_path, capsys):
    pc.JointModel(
        {"x": pc.Conditional(pc.Real(2), pc.networks.mlp({"x": pc.Real(2), "c": pc.Binary(1)}, "x"))},
        conditions={"c": pc.Condition(pc.Binary(1), 0)},
    ).save(tmp_path / "other")
    with pytest.raises(SystemExit, match="is no model of faces: it has x"):
        cli.main(["reproduce", "faces", "--quick", "--data", str(folder), "--model", str(tmp_path / "other")])


@pytest.mark.parametrize("design", [BEST, PAPER])
def test_designs_are_small_enough_and_whole(design):
    """At most 16 million parameters; every group but those left out on purpose is read."""
    model = make_model(design)
    assert sum(p.numel() for p in model.parameters()) <= 16e6
    assert tuple(model.names) == ("x", "s", "c", "y", "z")
    assert set(model.reads("x")) == {"s", "c", "y", "z"}
    if design is PAPER:
        assert all(set(model.reads(name)) == set(model.names) - {name} for name in model.names)
        assert variables_of(design)["s"] == pc.Binary((18, 64, 64)) and variables_of(design)["y"] == pc.Binary((256,))


@pytest.mark.parametrize("design", [BEST, PAPER])
def test_what_is_missing_is_completed(design, folder):
    """Rows without segmentations or attributes are learned from; what is known of them stays as it is."""
    data = pc.datasets.faces(folder=folder, segmentation=design.segmentation)
    learner = make_learner(small(design), data, pc.Engine("cpu"), 0)
    learner.fit(6)
    assert set(learner.completion.missing) == {"s", "c", "y", "z"}
    started = [start is not None for start in (learner.model.conditional(n).start for n in "xscyz")]
    assert started == [bool(design.start), False, False, False, False]
    assert sum(learner.updates.values()) == 6


def test_quick_sets_have_both_kinds(folder):
    config = faces.Config(data=folder, quick=True, device="cpu")
    session = faces.open_session(config, faces.chosen(config))
    known = session.train.mask["s"].flatten(1).all(1)
    assert bool(known.any()) and not bool(known.all()) and len(session.segmented) > 0
    drawn = session.attributes(50)
    real = session.train.state["c"][session.train.mask["c"].all(1)]
    assert all(bool((real == row).all(1).any()) for row in drawn.cpu())
