"""The three protocols of generated images, on a joint whose limit is known."""

import json

import torch
from helpers import Pairwise

import paracond as pc
from paracond.experiments.common.config import ResumableConfig
from paracond.experiments.common.protocols import along, judge_protocols
from paracond.experiments.common.runner import Runner


def test_all_protocols_are_measured_and_shown(tmp_path):
    """The score is the share of ones: all three agree with the exact conditional of a consistent joint."""
    joint = Pairwise({"u": pc.Binary(3), "c": pc.Categorical(2)}, seed=1)
    states, p, _ = joint.joint()
    exact = [(states["u"].mean(1) * p)[states["c"] == k].sum() / p[states["c"] == k].sum() for k in range(2)]
    config = ResumableConfig(out=tmp_path, seed=0)
    runner = Runner(name="x", title="x", about="x", config=config, device="cpu")
    real = {"u": torch.ones(20_000, 3), "c": torch.arange(20_000) % 2}
    joint.model.regeneration = pc.Regeneration(0.05, 50)
    judge_protocols(
        runner, joint.model, lambda s: float(s["u"].mean()), real, ["c"], counts=(20_000, 10_000), ages=(5, 60)
    )
    found = {metric.name: metric for metric in runner.metrics}
    assert list(found) == ["fid_limit", "fid_paper_protocol", "fid_gibbs_random", "fid_gibbs_data"]
    for metric in found.values():
        assert abs(metric.value - float(sum(exact) / 2)) < 0.02
    assert found["fid_limit"].std is not None and found["fid_gibbs_data"].std is None
    lines = runner.details["fid_along_sweeps"]
    assert json.loads(json.dumps(lines)) == lines and set(lines) == {"random", "data", "fitted"}
    assert [heading for heading, _, _ in runner.figures] == ["Along the chain"]


def test_one_chain_goes_on_along_the_sweeps():
    """Each state continues the one before: a chain that cannot move keeps its first values."""
    variables = {"u": pc.Binary(4), "c": pc.Categorical(2)}

    class Copy(torch.nn.Module):
        reads = ("c",)

        def forward(self, others):
            return torch.zeros(len(others["c"]), 4)

    model = pc.JointModel({"u": pc.Conditional(variables["u"], Copy()), "c": pc.Conditional(variables["c"], Still())})
    given = {"c": torch.zeros(6, dtype=torch.long)}
    states = dict(along(model, given, "random", (1, 2, 5), {}))
    assert list(states) == [1, 2, 5]
    assert all(bool((state["c"] == 0).all()) for state in states.values())
    begun = {"u": torch.ones(6, 4)}
    (first,) = [state for _, state in along(model, given, begun, (0,), {})]
    assert bool((first["u"] == 1).all())


class Still(torch.nn.Module):
    reads = ("u",)

    def forward(self, others):
        return torch.zeros(len(others["u"]), 2)
