"""The experiments and the command line, in their quick versions."""

import itertools
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import SIGMAS, assert_fits

import paracond as pc
from paracond import exact
from paracond.cli import main as cli
from paracond.experiments import ising
from paracond.experiments.common.config import ExperimentConfig, plain
from paracond.experiments.common.results import Metric, Outcome, commit
from paracond.experiments.common.results import command as recorded_command
from paracond.experiments.detailed_balance import experiment as chain_length
from paracond.experiments.digits import experiment as demo
from paracond.theory.noise_kernels import Flips

ROOT = Path(__file__).parents[1]
FIELDS = {"experiment", "command", "commit", "hardware", "seconds", "metrics"}
NAMES = {
    "ising": {"kl_complete", "kl_complete_exact", "kl_missing", "kl_missing_exact"},
    "demo": {
        "accuracy",
        "accuracy_tenth_of_labels",
        "accuracy_half_image",
        "accuracy_half_image_control",
        "diversity_min",
        "diversity_max",
        "active_latents",
    },
    "chain-length": {
        "asymmetry_n1",
        "asymmetry_n8",
        "slope_loglinear_n10",
        "slope_mlp_n1",
        "slope_mlp_n10",
        "slope_symmetric_sigmas",
        "diffusion_gap_error",
        "omitted_rate_error",
    },
}


def check_results(path, experiment):
    record = json.loads(path.read_text())
    assert set(record) >= FIELDS
    assert record["experiment"] == experiment
    metrics = {metric["name"]: metric for metric in record["metrics"]}
    assert NAMES[experiment] <= set(metrics)
    for metric in metrics.values():
        assert {"name", "value", "std", "paper", "goal", "better"} <= set(metric)
        assert metric["better"] in ("lower", "higher")
        assert isinstance(metric["value"], (int, float))
    return record


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_run_writes_results_and_a_report(name, tmp_path, capsys):
    cli.main(["reproduce", name, "--quick", "--out", str(tmp_path), "--device", "cpu"])
    printed = capsys.readouterr().out
    record = check_results(tmp_path / "results.json", name)
    assert record["seconds"] < 60
    assert all(metric in printed for metric in NAMES[name])
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") >= 1
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)  # self-contained


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_results_are_whole(name):
    record = check_results(ROOT / "results" / f"{name}.json", name)
    assert record["commit"]
    assert name in record["command"]


def test_list_names_every_experiment(capsys):
    cli.main(["list"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in NAMES)


@pytest.mark.parametrize(
    "arguments", [["reproduce", "nothing"], ["dance"], ["demo", "--updates", "many"], ["demo", "--device", "gpu"]]
)
def test_bad_commands_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(arguments)
    assert error.value.code not in (0, None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_named(tmp_path):
    with pytest.raises(SystemExit, match="paracond: --device cuda, but torch finds no CUDA device"):
        cli.main(["reproduce", "ising", "--quick", "--out", str(tmp_path), "--device", "cuda"])


def test_the_environment_overrides_the_commit(monkeypatch):
    monkeypatch.delenv("PARACOND_COMMIT", raising=False)
    found = commit()
    assert found is None or re.fullmatch(r"[0-9a-f]{12}\+?", found)
    monkeypatch.setenv("PARACOND_COMMIT", "0123456789ab")
    assert commit() == "0123456789ab" == Outcome("x", [], 1.0).record()["commit"]


def test_recorded_commands_name_no_folder_of_the_machine(tmp_path, monkeypatch):
    """Paths outside the current folder are DIR, those inside it are relative; other words stay."""
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    words = ["reproduce", "mnist", "--data", str(tmp_path / "a=b"), f"--out={inside / 'runs'}", "--model", "../model"]
    words += ["--given", f"x={tmp_path / 'x.npy'}", "c[Hat]=1", "--lengths", "1", "~/data", "runs/faces", str(inside)]
    expected = "reproduce mnist --data DIR --out=runs --model DIR --given x=DIR c[Hat]=1 --lengths 1 DIR runs/faces ."
    for program in ("/opt/bin/paracond", "/opt/paracond/__main__.py", "-c"):
        monkeypatch.setattr(sys, "argv", [program, *words])
        assert recorded_command() == f"paracond {expected}"
    monkeypatch.setattr(sys, "argv", [str(inside / "research" / "trial.py"), "--quick"])
    assert recorded_command() == "python research/trial.py --quick"
    assert plain(ExperimentConfig(out=tmp_path / "out"))["out"] == "DIR"
    assert (
        plain(ExperimentConfig(out=inside / "out"))["out"] == plain(ExperimentConfig(out=Path("out")))["out"] == "out"
    )


def test_a_run_leaves_no_folder_of_the_machine_in_its_results(tmp_path, monkeypatch, capsys):
    arguments = ["reproduce", "ising", "--quick", "--device", "cpu", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["paracond", *arguments])
    cli.main()
    text = (tmp_path / "results.json").read_text()
    assert str(tmp_path) not in text + (tmp_path / "report.html").read_text()
    record = json.loads(text)
    assert record["command"] == "paracond reproduce ising --quick --device cpu --out DIR"
    assert record["config"]["out"] == "DIR"


def test_goals_have_a_direction():
    low, high = Metric("a", 1.0, "lower", goal=2.0), Metric("b", 1.0, "higher", goal=2.0)
    assert low.reached
    assert not high.reached
    assert Metric("c", 1.0, "lower").reached is None
    assert Outcome("x", [low], 1.0).record()["metrics"][0]["goal"] == 2.0


# --- the parts of the experiments that can be exact -----------------------------------------------------------------


def test_the_truth_of_the_ising_model():
    p = ising.truth(-1.0, 1.0)
    z = ising.STATES.double()
    energy = -z.sum(1) + z[:, 0] * z[:, 1] + z[:, 0] * z[:, 2] + z[:, 1] * z[:, 2]
    torch.testing.assert_close(p, energy.exp() / energy.exp().sum())


def test_em_on_complete_data_is_the_table_of_frequencies():
    generator = torch.Generator().manual_seed(0)
    z = ising.draw(ising.truth(-1.0, 1.0), 3, 500, generator)
    found = ising.exact_solution(z, torch.ones(z.shape, dtype=torch.bool))
    index = (z * torch.tensor([4.0, 2.0, 1.0])).sum(-1).long()
    for r in range(3):
        torch.testing.assert_close(found[r], torch.bincount(index[:, r], minlength=8).double() / 500)


def test_em_on_incomplete_data_is_a_maximum():
    """At the solution no small step in the table raises the likelihood of what is observed."""
    generator = torch.Generator().manual_seed(0)
    z = ising.draw(ising.truth(-1.0, 1.0), 1, 300, generator)
    known = torch.rand(z.shape, generator=generator) >= 1 / 3
    found = ising.exact_solution(z, known)[0]

    def likelihood(p):
        fits = ((z[:, 0, None] == ising.STATES[None]) | ~known[:, 0, None]).all(-1).double()
        return (fits @ p).log().sum()

    best = likelihood(found)
    for _ in range(200):
        step = torch.softmax(found.log() + 0.02 * torch.randn(8, generator=generator, dtype=torch.float64), 0)
        assert float(likelihood(step)) < float(best)


def test_stacked_models_are_independent_models():
    """The limiting distribution of each member is that of a model with its weights alone."""
    names = ising.NAMES
    nets = {n: pc.networks.StackedMLP([o for o in names if o != n], 4, hidden=5, seed=i) for i, n in enumerate(names)}
    stacked = pc.JointModel({n: pc.Conditional(pc.Binary(4), net) for n, net in nets.items()})
    found = ising.limiting_of_members(stacked)
    for r in range(4):
        single = {n: pc.networks.StackedMLP(net.names, 1, hidden=5) for n, net in nets.items()}
        for n in names:
            single[n].load_state_dict({k: v[r : r + 1] for k, v in nets[n].state_dict().items()})
        model = pc.JointModel({n: pc.Conditional(pc.Binary(1), net) for n, net in single.items()})
        torch.testing.assert_close(found[r], exact.enumerate_model(model).limiting().flatten(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("hide_labels, hidden", [(0.9, 0.5), (0.0, 0.8)])
def test_the_demo_hides_halves_and_labels(hide_labels, hidden):
    config = demo.Config()
    data = demo.training_data(config, hide_labels, hidden)
    seen = data.mask["x"].sum(1)
    assert set(seen.tolist()) == {32, 64}
    assert float((seen == 32).double().mean()) == pytest.approx(hidden, abs=0.02)
    top = (data.mask["x"] == demo.TOP).all(1)
    assert float(top[seen == 32].double().mean()) == pytest.approx(config.top_halves, abs=0.02)
    # A tenth of the examples is labelled, and repeated until it makes up the share that was asked for.
    labelled = config.labelled_share if hide_labels else 1.0
    assert float(data.mask["c"].double().mean()) == pytest.approx(labelled, abs=0.03)


def test_the_demo_shifts_by_less_than_it_is_told():
    """A linear ramp moved by d pixels changes by d everywhere but at the borders; by none, it stays as it is."""
    ramp = torch.arange(8.0).repeat(50, 8)
    generator = torch.Generator().manual_seed(0)
    torch.testing.assert_close(demo.shifted(ramp, 0.0, generator), ramp)
    moved = (demo.shifted(ramp, 0.7, generator) - ramp).view(50, 8, 8)[:, 1:-1, 1:-1]
    torch.testing.assert_close(moved, moved[:, :1, :1].expand_as(moved), rtol=0, atol=1e-5)
    assert 0.5 < float(moved.abs().max()) <= 0.7 + 1e-5


# --- the command line -------------------------------------------------------------------------------------------


COMMANDS = (["reproduce", "ising", "--quick"], ["train", "mnist"], ["sample", "nowhere"], ["demo", "--quick"])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_is_no_folder_for_results(command, tmp_path, capsys):
    """Which is said before anything is read or learned."""
    (tmp_path / "taken").write_text("mine")
    for out in (tmp_path / "taken", tmp_path / "taken" / "deeper"):
        with pytest.raises(SystemExit, match=r"--out .*taken.* cannot be written: .*taken is a file"):
            cli.main([*command, "--out", str(out)])
    assert (tmp_path / "taken").read_text() == "mine" and not capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_refused_and_none_is_left(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match=r"--out /proc/1/x/y cannot be written: "):
        cli.main(["reproduce", "ising", "--out", "/proc/1/x/y"])
    with pytest.raises(SystemExit, match="nowhere"):
        cli.main(["sample", "nowhere", "--out", str(tmp_path / "a" / "b")])
    assert not (tmp_path / "a").exists()

    def full(config):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ising, "main", full)
    with pytest.raises(SystemExit, match="No space left on device"):
        cli.main(["reproduce", "ising", "--out", str(tmp_path)])


def test_a_table_has_a_file_and_a_folder_around_it(tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(SystemExit, match=r"--out .* is a folder: give the name of a table, such as .*decisions\.csv"):
        cli.main(["classify", "nowhere", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"cannot be written: .*taken is a file"):
        cli.main(["classify", "nowhere", "--out", str(tmp_path / "taken" / "a.csv")])
    with pytest.raises(SystemExit, match="taken is there already: add --overwrite"):
        cli.main(["classify", "nowhere", "--out", str(tmp_path / "taken")])
    with pytest.raises(SystemExit, match="is nowhere a saved model"):
        cli.main(["classify", "nowhere", "--out", str(tmp_path / "taken"), "--overwrite"])


def test_the_rate_of_a_decay_is_read_off():
    n = torch.arange(1, 41, dtype=torch.float64)
    assert chain_length.rate_error(3 * 0.6**n, 0.6) < 1e-9
    assert chain_length.rate_error(3 * 0.6**n + 1e-13, 0.5) == pytest.approx(0.2, abs=0.01)


def small_chain(chance, bits):
    """p, q (flips) and the data of `chain_length.exact_gaps`, and p's limit, by a high power."""
    generator = torch.Generator().manual_seed(0)
    states = pc.Binary(bits).values().double()
    p = torch.softmax(torch.randn(len(states), len(states), generator=generator, dtype=torch.float64), 1)
    same = (states[:, None] == states[None]).double()
    q = (same * (1 - chance) + (1 - same) * chance).prod(2)
    data = torch.softmax(torch.randn(len(states), generator=generator, dtype=torch.float64), 0)
    return p, q, data, torch.linalg.matrix_power(p, 500)[0]


def test_the_exact_gaps_are_those_of_all_paths():
    """L - L_B with L_B summed over every path x_1, ..., x_n+1 (eq:chain), and the rate as the KL from p^r."""
    p, q, data, limit = small_chain(0.25, 2)
    gaps, rate = chain_length.exact_gaps(chance=0.25, bits=2, n=3)
    for n in (1, 2, 3):
        bound = 0.0
        for path in itertools.product(range(4), repeat=n + 1):
            steps = list(itertools.pairwise(path))
            weight = data[path[0]] * math.prod(q[a, b] for a, b in steps)
            bound += weight * (limit[path[-1]].log() + sum(p[b, a].log() - q[a, b].log() for a, b in steps))
        assert float(gaps[n - 1]) == pytest.approx(float((data * limit.log()).sum() - bound), abs=1e-10)
    reverse = p.T * limit / limit[:, None]
    assert rate == pytest.approx(float((q * (q / reverse).log()).sum()) / 4, abs=1e-10)


def test_the_omitted_gradients_are_those_of_the_fundamental_matrix():
    """d p = p dP Z with Z = (I - P + 1 p)^-1, so grad_P sum_x w(x) log p(x) = p (x) Z (w / p); then the softmax."""
    size, steps = 4, 6
    norms, rate = chain_length.omitted_gradients(5, size=size, n=steps)
    generator = torch.Generator().manual_seed(5)
    matrix = torch.softmax(torch.randn(size, size, generator=generator, dtype=torch.float64), 1)
    law = torch.softmax(3 * torch.randn(size, generator=generator, dtype=torch.float64), 0)
    limit = torch.linalg.matrix_power(matrix, 500)[0]
    fundamental = torch.linalg.inv(torch.eye(size, dtype=torch.float64) - matrix + limit)
    for norm in norms:
        gradient = torch.outer(limit, fundamental @ (law / limit))
        gradient = matrix * (gradient - (matrix * gradient).sum(1, keepdim=True))
        assert float(norm) == pytest.approx(float(gradient.abs().sum()), abs=1e-10)
        law = law @ matrix
    assert len(norms) == steps
    assert rate == pytest.approx(float(torch.linalg.eigvals(matrix).abs().sort().values[-2]), abs=1e-10)


def test_the_growth_of_the_diffusion_gap_is_predicted():
    """On three bits: the estimate and the measured growth, against the KL from the exact reverse."""
    config = chain_length.Config(updates=100, horizon=40, chains=2000)
    z = (torch.rand(500, 3, generator=torch.Generator().manual_seed(0)) < 0.8).float()
    found = chain_length.diffusion(z, config, chance=0.25)
    kernel, q = chain_length.make_kernel("MLP", 3, config.spread, config.seed), Flips("z", 0.25)
    chain_length.make_learner(kernel, z, 10, config, config.seed, q=q).fit(config.updates)  # learns the same again
    states = pc.Binary(3).values().double()

    def matrix(kernel):
        rows = [kernel.log_prob({"z": states}, {"z": state.expand_as(states)}).exp() for state in states]
        return torch.stack(rows).detach()

    forward, reverse = matrix(q), exact.reverse(exact.MatrixKernel(matrix(kernel.double()))).transition
    growth = float((forward * (forward / reverse).log()).sum()) / 8
    assert growth > 0.01
    for estimate, error in (found.predicted, found.growth):
        assert abs(estimate - growth) < SIGMAS * error


def test_the_largest_of_many_sizes():
    """P(max of k standard normal sizes < quantile) = 0.99."""
    for count in (1, 32):
        inside = torch.special.erf(torch.tensor(chain_length.quantile(count) / 2**0.5, dtype=torch.float64)) ** count
        assert float(inside) == pytest.approx(0.99, abs=1e-9)


def test_flips_are_scored_as_they_are_drawn():
    q, start = Flips("z", 0.2), {"z": torch.zeros(50_000, 3)}
    drawn = q.sample(start, torch.Generator().manual_seed(0))
    values = pc.Binary(3).values()
    law = q.log_prob({"z": values}, {"z": torch.zeros(8, 3)}).exp()
    index = (drawn["z"] @ torch.tensor([4.0, 2.0, 1.0])).long()
    assert_fits(torch.bincount(index, minlength=8), law)


def test_the_second_part_of_the_demo_moves_the_class_alone():
    config = replace(demo.Config(), hidden=16, hidden_class=16, latents=4, copies=1, updates_class=20)
    torch.manual_seed(0)
    model = demo.make_model(config).requires_grad_(False)
    before = {n: [p.clone() for p in model.conditional(n).parameters()] for n in model.names}
    after = demo.train_class(model, config)
    moved = {
        n: any(not torch.equal(a, b) for a, b in zip(before[n], after.conditional(n).parameters(), strict=True))
        for n in model.names
    }
    assert moved == {"x": False, "z": False, "c": True}
