"""The benchmarks beside scikit-learn and of the time of updates: what they count and what they write."""

import json

import pytest
import rbm
import torch
import tours
import updates
from test_faces import write_npz

import paracond as pc
from paracond.datasets.faces import load, of_split
from paracond.experiments.common.results import Metric
from paracond.experiments.faces import model as faces
from paracond.experiments.images import mnist
from paracond.experiments.images import model as images

TIMES = ("update_ms", "update_ms_eager", "update_ms_floor")


@pytest.fixture
def digits():
    """Random images and classes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(2, (500, 1, 28, 28), generator=generator).float()
    return pc.Data({"x": x, "c": torch.arange(500) % 10})


# --- beside scikit-learn ----------------------------------------------------------------------------------------


def test_digits_are_learned_as_well_as_by_scikit_learn():
    train, test = (pc.datasets.digits(split).state["x"] > 0.5 for split in ("train", "test"))
    found = rbm.compare_with_sklearn(train.float(), test.float(), hidden=64, batch_size=20, passes=30)
    assert found.pseudo_likelihood >= found.sklearn_pseudo_likelihood
    assert -0.69 < found.pseudo_likelihood < 0


def test_what_the_comparison_with_scikit_learn_says_of_its_repeats():
    for repeats, said in ((1, "2.00 s, one core"), (3, "2.00 s, shortest of 3, one core")):
        rows = rbm.metrics(rbm.Comparison(1.0, 2.0, -0.1, -0.2, repeats))
        assert rows[0].value == 0.5 and rows[0].about.endswith(said)
        assert rows[1].value == pytest.approx(0.1)
        assert [row.goal for row in rows] == [1.0, 0.0] and all(row.reached for row in rows)


def test_the_comparison_with_scikit_learn_is_shown_and_written(tmp_path, capsys):
    rbm.main(["--quick", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "rbm.json").read_text())
    names = [metric["name"] for metric in record["metrics"]]
    assert names == ["rbm_seconds_ratio", "rbm_pseudo_likelihood_gain"]
    assert all(metric["goal"] is None for metric in record["metrics"])  # a quick run has none
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)


# --- updates ----------------------------------------------------------------------------------------------------


def test_work_is_counted():
    """One linear layer: 2 B n m operations forward, twice that backward less the input's gradient."""
    variables = {"a": pc.Binary(7), "b": pc.Binary(11)}
    networks = {n: pc.networks.mlp(variables, n, hidden=5, depth=0) for n in variables}
    model = pc.JointModel({n: pc.Conditional(variables[n], networks[n]) for n in variables})
    work = updates.count_work(model, 32)
    assert work.operations == 2 * 2 * 32 * 7 * 11  # forward, and the weight's gradient
    assert work.bytes == 3 * 2 * 32 * (7 + 11) + updates.BYTES_PER_PARAMETER * (77 + (7 + 11) / 2)


@pytest.fixture
def clock(monkeypatch):
    """Instead of a GPU's clock: each learner is made, makes one update, and is noted."""
    noted = []

    def fast_update(make, compile):
        learner = make(pc.Engine("cpu"))
        learner.step()
        noted.append(learner)
        return 10.0 + len(noted), 1.0

    def update_times(make, compile):
        fast_update(make, compile)
        return updates.UpdateTime(fast=2.0, eager=8.0, floor=0.5, set_up=1.0)

    monkeypatch.setattr(updates, "fast_update", fast_update)
    monkeypatch.setattr(updates, "update_times", update_times)
    monkeypatch.setattr(updates, "COUNT", 2)
    return noted


def test_the_times_of_images(digits, clock):
    design = images.small(mnist.BEST)
    model = images.make_model(design, binary=True)
    rows = updates.with_goals("fashion", updates.time_images(design, digits, model, compile=False))
    found = {row.name: row.value for row in rows}
    assert [found.pop(name) for name in TIMES] == [2.0, 8.0, 0.5]
    assert found.pop("seconds_30k_images") > 0
    assert found == {"update_speedup": 4.0, "update_over_floor": 4.0}
    assert {row.name: row.goal for row in rows if row.goal is not None} == updates.GOALS["fashion"]


def test_the_times_of_faces(clock, tmp_path):
    """Four trainings: the paper's, completion before training, cached values, and the model's own settings."""
    write_npz(tmp_path, rows=12, segmented=8, test=[0] * 12)
    design = faces.small(faces.BEST)
    train = of_split(load(tmp_path), "train", design.segmentation)
    rows = updates.with_goals("faces", updates.time_faces(design, train, faces.make_model(design), compile=False))
    found = {row.name: row.value for row in rows}
    assert [found.pop(name) for name in TIMES] == [2.0, 8.0, 0.5]
    assert found.pop("minutes_30k_images") > 0
    assert found == {"update_ms_before": 12.0, "update_ms_warm": 13.0, "update_ms_own": 14.0}
    assert [learner.batch_size for learner in clock] == [64, 64, 64, design.batch_size]
    assert {row.name: row.goal for row in rows if row.goal is not None} == updates.GOALS["faces"]


def test_times_are_shown_and_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(updates, "choose_device", lambda wanted: wanted)
    monkeypatch.setattr("paracond.experiments.common.results.hardware", lambda device: device)
    calls = []

    def measured(*arguments):
        calls.append(arguments)
        return [Metric("update_ms", 5.0, "lower")], {"width": 8}

    monkeypatch.setattr(updates, "measured", measured)
    updates.main(["faces", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "updates_faces.json").read_text())
    assert record["experiment"] == "updates_faces" and record["design"] == {"width": 8}
    assert record["metrics"][0]["goal"] == 6.0 and "update_ms" in capsys.readouterr().out
    updates.main(["mnist", "--out", str(tmp_path)])
    assert [compile for *_, compile in calls] == [False, True]
    assert [str(folder) for _, _, folder, *_ in calls] == ["models/faces", "models/mnist"]


def test_another_model_and_another_device_are_refused(tmp_path, monkeypatch):
    model = images.make_model(images.small(mnist.BEST), binary=True)
    updates.check(model, pc.Binary((1, 28, 28)), tmp_path)
    with pytest.raises(pc.InputError, match="no model of these images: 'x' is Binary"):
        updates.check(model, pc.Real((1, 28, 28)), tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no CUDA device"):
        updates.main(["mnist", "--out", str(tmp_path)])


@pytest.mark.gpu
def test_the_stopwatch(digits):
    """Every line of it, of a small design."""
    design = images.small(mnist.BEST)
    model = images.make_model(design, binary=True).to("cuda")
    found = {row.name: row.value for row in updates.time_images(design, digits, model, compile=True)}
    assert all(found[name] > 0 for name in (*TIMES, "update_speedup", "update_over_floor", "seconds_30k_images"))


# --- answers by tours -------------------------------------------------------------------------------------------


def test_the_coverage_is_shown_and_written_beside_former_numbers(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tours, "SEEDS", 1)
    former = {"metrics": [{"name": "query_speedup", "value": 3.0}]}
    (tmp_path / "tours.json").write_text(json.dumps(former))
    tours.main(["coverage", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "tours.json").read_text())
    assert [metric["name"] for metric in record["metrics"]] == ["query_speedup", "coverage"]
    assert 0.7 < record["metrics"][1]["value"] <= 1 and "coverage" in capsys.readouterr().out
