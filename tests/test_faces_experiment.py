"""The faces experiment, from a file to its report; its model and its designs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import image
from test_faces import write_npz

import paracond as pc
from paracond.cli import main as cli
from paracond.experiments.faces import experiment as faces
from paracond.experiments.faces import model as faces_model
from paracond.experiments.faces import tasks
from paracond.experiments.faces.model import BEST, PAPER, finished, make_learner, make_model, small, variables_of
from paracond.experiments.faces.runner import few, hold_out

NAMES = {
    *("training_minutes", "f1", "f1_control", "f1_hidden_ratio", "attribute_accuracy", "inpainting_psnr"),
    *("inpainting_psnr_gain", "demixing_psnr_gain"),
}


@pytest.fixture
def faces_variants(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "research"))
    import faces_variants

    return faces_variants


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


def test_the_experiment_from_a_file_to_a_report(folder, tmp_path, capsys):
    cli.main(["reproduce", "faces", "--quick", "--device", "cpu", "--data", str(folder), "--out", str(tmp_path)])
    record = json.loads((tmp_path / "results.json").read_text())
    metrics = {metric["name"]: metric for metric in record["metrics"]}
    assert set(metrics) >= NAMES | {"switch_success", "switch_success_male"}
    assert all(metric["goal"] is None for metric in metrics.values())  # a quick run has none
    page = (tmp_path / "report.html").read_text()
    assert all(heading in page for heading in ("Generated", "Demixing", "Eyeglasses off and on", "Super-resolution"))
    again = ["reproduce", "faces", "--quick", "--device", "cpu", "--data", str(folder)]
    cli.main([*again, "--out", str(tmp_path / "again"), "--model", str(tmp_path / "model")])
    record = json.loads((tmp_path / "again" / "results.json").read_text())
    found = {metric["name"]: metric["value"] for metric in record["metrics"]}
    for name, close in {"f1": 0.002, "inpainting_psnr": 0.02, "attribute_accuracy": 0.01}.items():  # rounded weights
        assert found[name] == pytest.approx(metrics[name]["value"], abs=close)
    assert "training_minutes" not in found


def test_what_was_measured_of_a_model_is_not_measured_again(folder, tmp_path, capsys, monkeypatch):
    """A run that was cut off goes on with the parts that it lacks, from its saved model alone; another model is
    measured anew."""
    run = ["reproduce", "faces", "--quick", "--device", "cpu", "--data", str(folder), "--out", str(tmp_path)]
    last = faces.DIRECTIONS[-1]

    def cut_off(session, model):
        raise KeyboardInterrupt

    cut_off.__name__ = last.__name__
    monkeypatch.setattr(faces, "DIRECTIONS", (*faces.DIRECTIONS[:2], cut_off))
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        cli.main(run)
    before = {m["name"]: m["value"] for m in json.loads((tmp_path / "results.json").read_text())["metrics"]}
    monkeypatch.setattr(faces, "DIRECTIONS", (*faces.DIRECTIONS[:2], last))
    capsys.readouterr()
    cli.main([*run, "--resume", "--model", str(tmp_path / "model")])
    printed = capsys.readouterr().out
    assert "reading: measured before" in printed and f"{last.__name__}: measured before" not in printed
    record = json.loads((tmp_path / "results.json").read_text())
    found = {m["name"]: m["value"] for m in record["metrics"]}
    assert {name: found[name] for name in before} == before and "training_minutes" in before
    assert "super_resolution_psnr_gain" in found and set(record["measured"]) >= {"training", "reading"}
    assert (tmp_path / "report.html").read_text().count("<figure>") == 4
    monkeypatch.setattr(faces, "DIRECTIONS", faces.DIRECTIONS[1:2])
    pc.JointModel.load(tmp_path / "model").save(tmp_path / "other", dtype=torch.float16)
    other = [*run, "--resume", "--model", str(tmp_path / "other")]
    cli.main(other)
    assert "reading: measured before, but with another model: once more" in capsys.readouterr().out
    cli.main([*other, "--seed", "5"])
    assert "reading: measured before, but with seed 0 instead of 5: once more" in capsys.readouterr().out


def test_a_model_of_something_else_is_refused(folder, tmp_path, capsys):
    pc.JointModel(
        {"x": pc.Conditional(pc.Real(2), pc.networks.mlp({"x": pc.Real(2), "c": pc.Binary(1)}, "x"))},
        context={"c": pc.Context(pc.Binary(1), 0)},
    ).save(tmp_path / "other")
    with pytest.raises(SystemExit, match="is no model of faces: it has x"):
        cli.main(["reproduce", "faces", "--quick", "--data", str(folder), "--model", str(tmp_path / "other")])


@pytest.mark.parametrize("design", [BEST, PAPER])
def test_designs_are_small_enough_and_whole(design):
    """At most 16 million parameters; every group but those left out on purpose is read."""
    model = make_model(design)
    assert sum(p.numel() for p in model.parameters()) <= 16e6
    assert tuple(model.names) == ("x", "s", "c", "y", "z")
    assert set(model.reads("x")) - set(model.context) == {"s", "c", "y", "z"}
    if design is PAPER:
        assert all(set(model.reads(name)) == set(model.names) - {name} for name in model.names)
        assert variables_of(design)["s"] == pc.Binary((18, 64, 64)) and variables_of(design)["y"] == pc.Binary((256,))


@pytest.mark.parametrize("design", [BEST, PAPER])
def test_what_is_missing_is_completed(design, folder):
    """Rows without segmentations or attributes are learned from; what is known of them stays as it is."""
    data = pc.datasets.faces(folder=folder, segmentation=design.segmentation)
    learner = make_learner(replace(small(design), mirrored=False, shifts=0), data, pc.Engine("cpu"), 0)
    learner.fit(6)
    source = learner.completion
    for name in ("x", "s", "c"):
        known = source.observed[name][source.index]
        assert torch.equal(source.pool[name][known], source.examples[name][source.index][known])
        assert bool(source.observed[name].all()) == (name == "x")
    assert set(learner.completion.missing) == {"s", "c", "y", "z"}
    fitted = [init is not None for init in (learner.model.conditional(n).init for n in "xscyz")]
    assert fitted == [bool(design.init), False, bool(design.init), False, False]
    assert sum(learner.updates.values()) == 6
    init = finished(small(design), learner.averaged, data, 0).conditional("x").init
    assert (init is None) if design is PAPER else (init.waves.band == small(design).finer[1])


def test_caches_do_not_fit_moved_faces(folder, faces_variants):
    data = pc.datasets.faces(folder=folder, segmentation="labels")
    for moving in ({"mirrored": False}, {"shifts": 0}):
        with pytest.raises(pc.InputError, match="do not fit it once it moves"):
            make_learner(replace(small(BEST), warm=("y",), **moving), data, pc.Engine("cpu"), 0)
    still = replace(small(BEST), warm=("s", "c", "y"), mirrored=False, shifts=0)
    learner = make_learner(still, data, pc.Engine("cpu"), 0)
    assert set(learner.completion.kept) == {"s", "c", "y"}
    learner = make_learner(still, data[faces_variants.complete_rows(data)], pc.Engine("cpu"), 0)
    assert set(learner.completion.kept) == {"y"}  # of these faces, s and c are known


@pytest.mark.parametrize("sparse, steps, same", [(True, 2, True), (True, 1, False), (False, 2, False)])
def test_two_steps_forget_where_completion_began(folder, sparse, steps, same):
    """Where no face lacks both s and c and groups read little: caches then change nothing, not a digit."""
    data = pc.datasets.faces(folder=folder, segmentation="labels")
    assert bool((data.mask["s"].flatten(1).all(1) | data.mask["c"].all(1)).all())
    still = {"mirrored": False, "shifts": 0, "jitter": 0, "init_rows": (), "sparse": sparse, "completion_steps": steps}
    weights = []
    for warm in ((), ("s", "c", "y", "z")):
        learner = make_learner(replace(small(BEST), warm=warm, **still), data, pc.Engine("cpu"), 0)
        learner.fit(20, progress=False)  # each face comes round several times
        weights.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
    assert torch.equal(*weights) == same


def test_segmentations_are_stored_as_a_design_has_them(folder, faces_variants):
    labels, masks = (pc.datasets.faces(folder=folder, segmentation=kind) for kind in ("labels", "masks"))
    for data in (labels, masks):
        for kind, wanted in (("labels", labels), ("masks", masks)):
            found = faces_variants.stored(data, replace(BEST, segmentation=kind))
            known = wanted.mask["s"]
            assert torch.equal(found.mask["s"], known)
            assert torch.equal(found.state["s"][known], wanted.state["s"][known])
    assert len(faces_variants.complete_rows(labels)) == len(faces_variants.complete_rows(masks)) > 0


def test_variants_give_gains_and_reuse_trainings(folder, tmp_path, capsys, faces_variants):
    """A side may be trained by itself; the comparison then uses it. A design of several pairs is trained once."""
    options = {"out": tmp_path, "data": folder, "device": "cpu", "quick": True}
    faces_variants.main(faces_variants.Config(only=("complete",), **options))
    capsys.readouterr()
    faces_variants.main(faces_variants.Config(resume=True, **options))
    printed = [line.strip() for line in capsys.readouterr().out.splitlines() if "measured before" in line]
    assert len(printed) == 1 and printed[0].startswith("learning_complete_20_")
    record = json.loads((tmp_path / "results.json").read_text())
    gains = {f"{pair}_gain_{metric}" for pair in faces_variants.PAIRS for metric in ("f1", "accuracy")}
    assert gains <= {metric["name"] for metric in record["metrics"]}
    assert sum(name.startswith("learning_") for name in record["measured"]) == 7
    with pytest.raises(pc.InputError, match="no pair or side is called 'magic'; there are union, masks, warm"):
        faces_variants.main(faces_variants.Config(only=("magic",), **options))


@pytest.mark.parametrize("option", ["--updates", "--generated"])
def test_impossible_numbers_are_refused(option, folder, tmp_path):
    with pytest.raises(SystemExit, match=f"{option} must be a whole number, at least [012], found -1"):
        cli.main(["reproduce", "faces", option, "-1", "--data", str(folder), "--out", str(tmp_path)])


def test_single_attributes_by_name_on_the_command_line(tmp_path, monkeypatch, capsys):
    """Coordinates by name or number; the others are drawn. Pictures keep their colours."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    make_model(small(BEST)).save("faces")
    (tmp_path / "faces" / "names.json").write_text(json.dumps({"c": [f"a{k}" for k in range(39)] + ["Glasses"]}))
    options = ["--rows", "12", "--sweeps", "1", "--device", "cpu", "--out", "drawn", "--overwrite"]
    cli.main(["sample", "faces", "--given", "c[Glasses]=1", "c[3]=0,1,1,1,1,1,1,1,1,1,1,1", *options])
    drawn = np.load("drawn/samples.npz")
    assert (drawn["c"][:, 39] == 1).all() and drawn["c"][:, 3].tolist() == [0] + [1] * 11
    assert 0 < drawn["c"][:, [0, 1, 2]].mean() < 1
    cli.main(["sample", "faces", "--edit", "c[Glasses]=1", "c[3]=0", "--edit-sweeps", "1", "--seed", "3", *options])
    before, after = (np.load(f"drawn/{name}.npz")["c"] for name in ("samples", "edited"))
    assert (after[:, 39] == 1).all() and (after[:, 3] == 0).all() and 0 < before[:, 39].mean() < 1
    assert (np.delete(after, [3, 39], 1) == np.delete(before, [3, 39], 1)).all()
    assert image.imread("drawn/edited.png").shape == image.imread("drawn/samples.png").shape
    found = image.imread("drawn/samples_s.png")[..., :3].reshape(-1, 3)
    assert len(np.unique(found.round(2), axis=0)) > 5  # labels have colours
    with pytest.raises(SystemExit, match="--edit changes one binary group, found x: Real"):
        cli.main(["sample", "faces", "--edit", "x=1"])
    red = np.zeros((64, 64, 3), np.uint8)
    red[..., 0] = 255
    image.imsave("red.png", red)
    cli.main(["sample", "faces", "--given", "x=red.png", *options[2:]])
    assert np.load("drawn/samples.npz")["x"][:, :, 5, 5].tolist() == [[1, 0, 0]]  # of a whole picture, one row
    image.imsave("mask.png", np.eye(64), cmap="gray")
    cli.main(["sample", "faces", "--given", "x=red.png", "--seen", "mask.png", *options])
    drawn, diagonal = np.load("drawn/samples.npz")["x"][:, 0], np.eye(64, dtype=bool)
    assert (drawn[:, diagonal] == 1).all() and not (drawn[:, ~diagonal] == 1).any() and len(drawn) == 12
    cli.main(["sample", "faces", "--given", "x=red.png", *options[2:]])
    assert image.imread("drawn/samples.png")[..., 0].mean() > image.imread("drawn/samples.png")[..., 1].mean()
    cli.main(["classify", "faces", "--given", "x=red.png", "--want", "c", "--sweeps", "2", "--device", "cpu"])
    header, row = (tmp_path / "runs" / "decisions.csv").read_text().splitlines()
    assert header.split(",")[-1] == "Glasses" and len(row.split(",")) == 42 and row.split(",")[1] == "red.png"
    with pytest.raises(SystemExit, match=r"c\[Hat\]: a coordinate is a number from 0 to 39 or one of a0, a1"):
        cli.main(["sample", "faces", "--given", "c[Hat]=1"])
    with pytest.raises(SystemExit, match=r"c\[glasses\] \(do you mean Glasses\?\): a coordinate"):
        cli.main(["sample", "faces", "--given", "c[glasses]=1"])
    with pytest.raises(SystemExit, match=r"'Glasses' is a coordinate of 'c': say c\[Glasses\]=1"):
        cli.main(["sample", "faces", "--given", "Glasses=1"])


def test_quick_sets_have_enough_of_everything():
    """Also where the first faces with segmentations have no attributes."""
    known, named = torch.arange(400) < 200, torch.arange(400) >= 150
    values = {"x": torch.zeros(400, 1), "s": torch.zeros(400, 2), "c": torch.zeros(400, 2)}
    masks = {"s": known.view(-1, 1).expand(-1, 2), "c": named.view(-1, 1).expand(-1, 2)}
    learned, _ = hold_out(few(pc.Data(values, masks)))
    both = learned.mask["s"].all(1) & learned.mask["c"].all(1)
    alone = learned.mask["s"].all(1) & ~learned.mask["c"].all(1)
    assert int(both.sum()) > 8 and bool(alone.any()) and bool((~learned.mask["s"].all(1)).any())


def test_quick_sets_have_both_kinds(folder):
    config = faces.Config(data=folder, quick=True, device="cpu")
    session = faces.open_runner(config, faces.chosen(config))
    known = session.train.mask["s"].flatten(1).all(1)
    assert bool(known.any()) and not bool(known.all()) and len(session.segmented) > 0
    drawn = session.attributes(50)
    real = session.train.state["c"][session.train.mask["c"].all(1)]
    assert all(bool((real == row).all(1).any()) for row in drawn.cpu())


def test_faces_hold_out_are_not_learned_from(folder):
    data = pc.datasets.faces(folder=folder, segmentation="labels")
    learned, apart = hold_out(data)
    assert len(learned) + len(apart) == len(data)
    assert not bool((learned.state["x"].flatten(1)[:, None] == apart.state["x"].flatten(1)).all(-1).any())
    known = apart.mask["s"].flatten(1).all(1)
    assert bool(known.any()) and not bool(known.all())
    assert torch.equal(hold_out(data)[1].state["x"], apart.state["x"])
    assert len(hold_out(data, limit=1)[1]) == 2


def test_the_last_look_that_drew_well_is_kept():
    points = [{"fid": 40.0, "f1": 0.7}, {"fid": 38.0, "f1": 0.6}]
    assert faces.draws_well({"fid": 41.7}, points) and faces.draws_well({"fid": 30.0}, [])
    assert not faces.draws_well({"fid": 42.0, "f1": 0.9}, points)
    assert faces.draws_well({"f1": 0.1}, [{"f1": 0.5}])  # without a FID, the last
    assert faces.last_kept([*points, {"fid": 39.5}, {"fid": 43.0}]) == {"fid": 39.5}
    assert faces.last_kept(points[:1]) == points[0]


def test_what_draws_images_settles_before_attributes():
    rates = {name: faces_model.rate_of(BEST, name) for name in "xscyz"}
    for name, last in (*((name, 27_000) for name in "xyz"), ("s", 45_000)):
        assert rates[name](last) == rates[name](50_000) == 0 < rates[name](last - 500)
    assert rates["c"](60_000) == BEST.last_learning_rate < rates["c"](59_000)
    assert faces_model.settled_after(BEST) == 27_000
    short = replace(BEST, updates=1000)  # all settle in the end
    assert [faces_model.rate_of(short, name)(1000) for name in "xsyz"] == [0.0] * 4
    assert faces_model.settled_after(short) == faces_model.settled_after(replace(short, settled={})) == 1000


def test_the_model_of_the_repository_can_be_asked(tmp_path):
    """It loads, its files are small, its card names the licence; its draws are read back as what was asked for."""
    folder = Path(__file__).parents[1] / "models" / "faces"
    assert all(path.stat().st_size <= 8 * 2**20 for path in folder.iterdir())
    card = (folder / "README.md").read_text()
    words = ("command", "commit", "hardware", "minutes", "FID", "non-commercial research")
    assert all(word in card for word in words)
    male = [0, 1] * 8
    given = "c[Male]=" + ",".join(map(str, male))
    where = ["--device", "cpu", "--out", str(tmp_path)]
    cli.main(["sample", str(folder), "--given", given, "--sweeps", "2", *where])
    names = json.loads((folder / "names.json").read_text())["names"]["c"]
    model, index = pc.JointModel.load(folder), names.index("Male")
    drawn = {name: torch.as_tensor(value) for name, value in np.load(tmp_path / "samples.npz").items()}
    assert drawn["x"].shape == (16, 3, 64, 64) and drawn["c"][:, index].tolist() == male
    read = pc.query(model, {"x": tasks.shown(model, drawn)}, ["c"]).probabilities["c"][:, index]
    assert float(read[1::2].mean() - read[::2].mean()) > 0.1  # by chance: 0


def test_committed_results_have_what_was_asked_for():
    """... and what README and the card say of them is what they say."""
    root = Path(__file__).parents[1]
    record = json.loads((root / "results" / "faces.json").read_text())
    metrics = {metric["name"]: metric["value"] for metric in record["metrics"]}
    names = ("fid", "fid_floor", "f1", "f1_control", "f1_hidden_ratio", "attribute_accuracy", "inpainting_psnr_gain")
    others = ("inpainting_psnr_telea", "inpainting_psnr", "demixing_psnr_gain", "switch_success", "update_ms")
    unions = ("union_gain_f1", "union_gain_accuracy", "union_gain_fid")
    wanted = (*names, *others, *unions, "training_minutes", "minutes_30k_images")
    assert all(isinstance(metrics[key], float) for key in wanted)
    readme, card = ((root / place / "README.md").read_text() for place in (".", "models/faces"))
    ratio = f"{metrics['f1_hidden_ratio']:.3f}".lstrip("0")
    assert f"| {metrics['fid']:.1f} |" in readme and f"| {metrics['fid']:.1f} (floor" in card
    assert f"| {ratio} |" in readme and f"| {ratio} |" in card
    assert f"| {metrics['switch_success']:.1%} |" in readme
    assert f"| {metrics['demixing_psnr_gain']:+.1f}: **missed**" in readme
    assert f"{metrics['union_gain_fid']:+.1f}" in readme
    assert f"| {metrics['inpainting_psnr']:.2f} dB" in card
