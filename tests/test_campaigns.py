"""What campaigns share: bounds, counts, and a result file that keeps the numbers of other campaigns."""

import json

from common import Tally, trials, write

from paracond.experiments.common.results import Metric


def test_trials_are_bounded_in_count_and_time(capsys):
    assert list(trials(3)) == [0, 1, 2]
    assert list(trials(3, seconds=-1)) == []
    assert "stopped after 0 of 3 trials" in capsys.readouterr().out


def test_bad_outcomes_come_with_reproducers(capsys):
    tally = Tally("calls", bad=["raw"], shown=1)
    tally.add("refused")
    for seed in range(2):
        tally.add("raw", f"seed {seed}")
    assert (tally.total, tally.failures) == (3, 2)
    assert capsys.readouterr().out == "calls: RAW: seed 0\n"
    assert tally.found == {"raw": ["seed 0", "seed 1"]}
    assert str(tally) == "calls: 3 trials: raw 2, refused 1"


def test_a_campaign_keeps_the_numbers_of_the_others(tmp_path):
    write("fuzz", [Metric("api_raw", 3, "lower", goal=0)], 1.0, {"seed": 0}, tmp_path)
    write("faults", [Metric("kills", 9, "higher")], 2.0, {"seed": 1}, tmp_path)
    path = write("fuzz", [Metric("api_raw", 0, "lower", goal=0)], 3.0, {"seed": 2}, tmp_path)
    found = json.loads(path.read_text())
    assert {metric["name"]: metric["value"] for metric in found["metrics"]} == {"kills": 9, "api_raw": 0}
    assert {part: run["config"]["seed"] for part, run in found["runs"].items()} == {"fuzz": 2, "faults": 1}
    assert all(run["commit"] and run["torch"] for run in found["runs"].values())
