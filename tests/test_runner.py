"""The runner of experiments: order, records of parts, resuming, and the time box."""

import json
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from paracond.experiments.common.config import PresetConfig
from paracond.experiments.common.runner import Runner, Unfinished


def make(config, **options):
    return Runner(name="test", title="A test", about="", config=config, device="cpu", goals={"a": 1.0}, **options)


def parts_of(runner, calls, stop_at=None):
    """Three parts that each add a metric, a figure and a detail."""

    def part(name, value):
        if name == stop_at:
            raise KeyboardInterrupt
        calls.append(name)
        runner.add(name, value, "lower", f"of {name}")
        runner.show(name, "caption", Figure(figsize=(1, 1)))
        runner.details[name] = value

    return {
        name: lambda name=name, value=value: part(name, value) for name, value in (("a", 1.5), ("b", 2.5), ("c", 3))
    }


def results(config):
    return json.loads((config.out / "results.json").read_text())


def test_a_run_that_was_interrupted_continues_with_the_missing_parts(tmp_path, capsys):
    config, calls = PresetConfig(out=tmp_path), []
    runner = make(config)
    with pytest.raises(KeyboardInterrupt):
        runner.run(parts_of(runner, calls, stop_at="c"))
    assert calls == ["a", "b"] and [m["name"] for m in results(config)["metrics"]] == ["a", "b"]
    again = make(replace(config, resume=True, minutes=60.0))  # which does not change what parts measure
    outcome = again.run(parts_of(again, calls))
    assert calls == ["a", "b", "c"] and capsys.readouterr().out.count("measured before") == 2
    assert [(m.name, m.value) for m in outcome.metrics] == [("a", 1.5), ("b", 2.5), ("c", 3)]
    assert outcome.metrics[0].goal == 1.0 and outcome.metrics[0].reached is False
    record = results(config)
    assert [record[name] for name in "abc"] == [1.5, 2.5, 3] and set(record["measured"]) == set("abc")
    assert (tmp_path / "report.html").read_text().count("<figure>") == 3


def test_parts_of_other_settings_or_another_model_are_measured_again(tmp_path, capsys):
    config, calls = PresetConfig(out=tmp_path), []
    runner = make(config)
    runner.run(parts_of(runner, calls))
    other = make(replace(config, resume=True, seed=3))
    other.run(parts_of(other, calls))
    assert "a: measured before, but with seed 0 instead of 3: once more" in capsys.readouterr().out
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "0123.safetensors").touch()
    third = make(replace(config, resume=True, seed=3))
    third.run(parts_of(third, calls))
    assert "a: measured before, but with another model: once more" in capsys.readouterr().out
    assert calls == [*"abc"] * 3


def test_no_part_starts_after_the_time_box(tmp_path, capsys):
    config, calls = PresetConfig(out=tmp_path, minutes=0.0), []
    runner = make(config)
    with pytest.raises(Unfinished, match="the time is over before a; continue with --resume"):
        runner.run(parts_of(runner, calls), timed=True)
    assert calls == [] and not (tmp_path / "results.json").exists()
    runner.run(parts_of(runner, calls))  # parts that keep the time themselves
    assert calls == [*"abc"]
    resumed = make(replace(config, resume=True))
    resumed.run(parts_of(resumed, calls), timed=True)  # records need no time
    assert calls == [*"abc"]


def test_minutes_count_from_the_beginning_of_the_run(tmp_path):
    runner = make(PresetConfig(out=tmp_path, minutes=10.0))
    runner.began -= 240
    assert runner.minutes == pytest.approx(6, abs=0.1)
    runner.began -= 1000
    assert runner.minutes == 0.0 and make(PresetConfig(out=tmp_path)).minutes is None


def test_quick_runs_have_smaller_sizes_and_no_goals(tmp_path, capsys):
    runner = make(PresetConfig(out=tmp_path, quick=True))
    assert runner.count(1000) == 4 and runner.count(1000, 7) == 7 and make(PresetConfig()).count(1000, 7) == 1000
    outcome = runner.run(parts_of(runner, []))
    assert all(metric.goal is None for metric in outcome.metrics)
