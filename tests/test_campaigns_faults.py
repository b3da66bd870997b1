"""A small seeded part of `campaigns/faults.py`: nothing is silently wrong, and the campaign can see it where it is."""

import faults
import pytest

from paracond import serialization


def run(part, count, folder, seed=0):
    work, _ = faults.PARTS[part]
    found = {metric.name: metric for metric in work(count, 60, seed, folder)}
    return {name: metric.value for name, metric in found.items()}


def test_damaged_bytes_are_refused(tmp_path):
    assert run("damage", 60, tmp_path) == {"damaged_files": 60, "damaged_silent": 0}


def test_runs_go_on_after_kills(tmp_path):
    assert run("kills", 3, tmp_path) == {"kills": 3, "kills_differ": 0}


def test_writers_and_readers_of_one_folder(tmp_path):
    assert run("writers", 3, tmp_path) == {"writers": 3, "writers_broken": 0}


def test_a_system_that_fails(tmp_path):
    found = run("full", 1, tmp_path)
    assert found["full"] > 50 and found["full_broken"] == 0


def test_hostile_folders_are_refused(tmp_path):
    found = run("hostile", 20, tmp_path)
    assert found["hostile_folders"] == 40 and found["hostile_bad"] == 0
    assert found["hostile_peak_mb"] < faults.MOST_MB


# --- the campaign itself ----------------------------------------------------------------------------------------


def test_silent_damage_is_seen(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(serialization, "_require_undamaged", lambda *_: None)
    assert run("damage", 60, tmp_path)["damaged_silent"] > 0
    assert "damage: SILENT: seed 0, trial" in capsys.readouterr().out


def test_runs_that_forget_are_seen(tmp_path, monkeypatch):
    """Each process makes another learner, and takes nothing but the step count from the checkpoint."""

    def restore(learner, folder):
        learner.step_count = 30

    monkeypatch.setattr(faults.checkpoints, "restore", restore)
    assert run("kills", 2, tmp_path)["kills_differ"] > 0


def test_mixtures_are_seen(tmp_path, monkeypatch):
    """Weights of one model, and after a while those of another, under a name that does not say which."""
    things = faults.things

    def mixed(folder):
        found = things(folder)
        return {kind: [faults.Written(each.save, "0") for each in written] for kind, written in found.items()}

    monkeypatch.setattr(faults, "things", mixed)
    assert run("writers", 1, tmp_path)["writers_broken"] == 1


def test_a_leftover_is_seen(tmp_path, monkeypatch):
    for what in ("_on_small_disks", "_where_nothing_is_written", "_commands"):
        monkeypatch.setattr(faults, what, lambda *_: None)
    monkeypatch.setattr(faults, "CALLS", {"replace": 28})
    monkeypatch.setattr(serialization.Path, "unlink", lambda path, missing_ok=False: None)
    assert run("full", 1, tmp_path)["full_broken"] > 0


def test_memory_and_endless_work_are_seen(monkeypatch):
    large = faults.forked(lambda: len(bytearray(b"x") * 150_000_000))
    small = faults.forked(lambda: 3)
    assert small.value == 3 and not small.killed and large.peak - small.peak > 100
    assert faults.forked(lambda: faults.time.sleep(60), kill_after=0.05).killed
    failed = faults.forked(lambda: 1 / 0)
    assert failed.value is None and "ZeroDivisionError" in failed.error


def test_an_unknown_part_is_refused():
    with pytest.raises(SystemExit):
        faults.main(["demage"])
