"""Image networks, context, augmentation, and the experiments that use them, on tiny shapes."""

import gzip
import json
import re
import struct
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import assert_fits, assert_mean
from matplotlib import image

import paracond as pc
from paracond import exact
from paracond.cli import main as cli
from paracond.experiments.common import milestones as milestones_module
from paracond.experiments.common import protocols
from paracond.experiments.common.images import shown
from paracond.experiments.common.learning import balanced
from paracond.experiments.common.milestones import Milestones
from paracond.experiments.images import experiment as images_experiment
from paracond.experiments.images import fashion, mnist
from paracond.experiments.images import model as images
from paracond.networks import image_network
from paracond.training.augment import Moved

KINDS = ("plain", "residual")


def make(size=(1, 12, 10), kind="residual", binary=True, **latents):
    torch.manual_seed(0)
    groups = {"x": pc.Binary(size) if binary else pc.Real(size, scale="learned"), "c": pc.Categorical(3), **latents}
    groups = groups if latents else groups | {"z": pc.Binary(5)}
    networks = {name: image_network(groups, name, kind=kind, width=4) for name in groups}
    return pc.JointModel({name: pc.Conditional(groups[name], network) for name, network in networks.items()})


# --- networks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(1, 28, 28), (3, 9, 6), (1, 12, 10)])
def test_networks_have_the_right_shapes_and_every_parameter_a_gradient(kind, size):
    quarter = tuple(-(-n // 4) for n in size[1:])
    model = make(size, kind, z=pc.Binary(5), y=pc.Binary((2, *quarter)), w=pc.Real(3))
    state = pc.initializers.initial_state(model, 4, model.generator(0))
    for name in model.names:
        distribution = model(name, state)
        assert distribution.scores(state[name]).shape == state[name].shape
        distribution.log_prob(state[name]).sum().backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.conditional(name).parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_the_encoder_adds_linear_terms(kind):
    """eq:mnist: logits(x, z) - logits(x, z') = (z - z')^T W, whatever x is."""
    model = make(kind=kind).double()
    state = {**pc.initializers.initial_state(model, 6, model.generator(0))}
    network = model.conditional("c").network
    weight = network.linear[0].weight
    other = {**state, "z": 1 - state["z"]}
    gap = model("c", state).logits - model("c", other).logits
    torch.testing.assert_close(gap, (state["z"] - other["z"]) @ weight.T)


def test_what_a_network_reads_is_all_it_reads():
    model = make(z=pc.Binary(5), y=pc.Binary((2, 3, 3)))
    state = pc.initializers.initial_state(model, 3, model.generator(0))
    for name in model.names:
        reads = model.conditional(name).network.reads
        assert set(reads) == set(model.names) - {name}
    groups = dict(model.variables)
    blind = pc.Conditional(groups["c"], image_network(groups, "c", reads=["x"], width=4))
    assert blind.network.reads == ("x",)
    assert blind({"x": state["x"]}).logits.shape == (3, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_in_bfloat16_and_loaded_as_float32(kind, tmp_path):
    model = make(kind=kind)
    model.save(tmp_path / "model", dtype=torch.bfloat16)
    again = pc.JointModel.load(tmp_path / "model")
    assert again.dtype == torch.float32
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a.to(torch.bfloat16).float(), b)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda v: image_network(v, "y"), "unknown variable 'y'"),
        (lambda v: image_network(v, "x", image="y"), "image: 'y' must be one of x"),
        (lambda v: image_network(v, "z", reads=["q"]), r"reads: 'z' can read x.*; found q"),
        (lambda v: image_network(v, "x", image="z"), r"'z' must have shape \(channels, height, width\)"),
        (lambda v: image_network(v, "x", kind="deep"), "kind must be one of plain, residual, found 'deep'"),
        (
            lambda v: image_network({**v, "x": pc.Real((1, 8, 8))}, "x"),
            "one number for every pixel.*shape .2, 1, 8, 8.",
        ),
        (lambda v: image_network({**v, "x": pc.Real((1, 8, 8))}, "x", kind="residual"), "one number for every pixel"),
    ],
)
def test_bad_networks_are_refused(call, message):
    with pytest.raises(pc.InputError, match=message):
        call({"x": pc.Binary((1, 8, 8)), "z": pc.Binary(4)})


# --- context ----------------------------------------------------------------------------------------------------


def with_context():
    variables = {"a": pc.Binary(1), "b": pc.Binary(1)}
    level = {"t": pc.Context(pc.Categorical(3), 1)}
    everything = variables | {"t": level["t"].family}
    torch.manual_seed(0)
    conditionals = {n: pc.Conditional(v, pc.networks.mlp(everything, n, hidden=8)) for n, v in variables.items()}
    return pc.JointModel(conditionals, context=level)


def test_context_is_read_never_redrawn_and_has_a_default(tmp_path):
    model = with_context()
    assert model.names == ("a", "b")
    state = pc.initializers.initial_state(model, 5, model.generator(0))
    assert torch.equal(state["t"], torch.ones(5).long())
    other = model("a", {**state, "t": torch.full((5,), 2)}).logits
    assert not torch.equal(model("a", state).logits, other)
    given = pc.sample(model, {"t": torch.tensor([0, 2, 2])}, sweeps=3)
    assert given["t"].tolist() == [0, 2, 2]
    model.save(tmp_path / "m")
    again = pc.JointModel.load(tmp_path / "m")
    assert again.context == model.context
    assert torch.equal(again("a", state).logits, model("a", state).logits)


def test_the_joint_given_context_is_exact():
    """The chain with t given, and by default, against the enumerated kernel."""
    model, rows = with_context(), 20_000
    for t in (1, 2):
        context = {"t": pc.Context(pc.Categorical(3), t)}
        fixed = pc.JointModel({n: model.conditional(n) for n in model.names}, context=context)
        law = exact.enumerate_model(fixed).limiting()
        generator = model.generator(t)
        state = pc.initializers.initial_state(model, rows, generator)
        state = state if t == 1 else {**state, "t": torch.full((rows,), t)}  # 1 is the default
        state = pc.Chain(model, generator=generator, per_row=True, batch=rows).run(state, 40)
        code = torch.stack([state["a"][:, 0], state["b"][:, 0]], 1).long() @ torch.tensor([2, 1])
        assert_fits(torch.bincount(code, minlength=4), law)


def test_a_learner_learns_for_every_context():
    """a and b are independent given t; the chain's limit at each t has the shares of the data there."""
    model = with_context()
    t = torch.arange(3).repeat(2000)
    generator = torch.Generator().manual_seed(0)
    data = {"t": t}
    for name, shares in (("a", [0.2, 0.5, 0.9]), ("b", [0.7, 0.5, 0.1])):
        data[name] = torch.bernoulli(torch.tensor(shares)[t], generator=generator).unsqueeze(1)
    learner = pc.Learner(
        model, pc.Data(data), chain_length=2, learning_rate=pc.schedules.cosine(0.02, 0.0, 600), average=0.99
    )
    learner.fit(600)
    for k in range(3):
        fixed = {"t": pc.Context(pc.Categorical(3), k)}
        again = pc.JointModel({n: learner.averaged.conditional(n) for n in model.names}, context=fixed)
        law = exact.enumerate_model(again).limiting()
        joint = torch.stack([data["a"][t == k, 0], data["b"][t == k, 0]], 1).long() @ torch.tensor([2, 1])
        share = torch.bincount(joint, minlength=4) / 2000
        assert exact.kl(share.double(), law.flatten()) < 0.01


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda m: m("t", pc.initializers.initial_state(m, 2, m.generator(0))),
            "'t' is a context group: it is always given",
        ),
        (lambda m: m.validate({"t": torch.tensor([3])}), "'t' has classes 0 to 2, found 3"),
        (
            lambda m: m.validate({"t": torch.tensor([1])}, {"t": torch.tensor([False])}),
            "'t' is a context group: it must be observed everywhere",
        ),
        (
            lambda m: pc.JointModel({"a": m.conditional("a")}, context={"a": pc.Context(pc.Binary(1))}),
            "'a' is both a context group and a group",
        ),
        (lambda m: pc.Context(pc.Categorical(3), 7), "'the default of a context group' has classes 0 to 2, found 7"),
    ],
)
def test_bad_use_of_context_is_refused(call, message):
    with pytest.raises(pc.InputError, match=message):
        call(with_context())


# --- augmentation -----------------------------------------------------------------------------------------------


def test_shifts_are_those_of_a_roll_with_empty_borders():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(300, 2, 6, 5) + 0.1
    moved = Moved(2, False, "cpu", share=0.7, flag=True)({"x": x}, generator)
    seen = set()
    for row in range(300):
        found = [
            (i, j) for i in range(-2, 3) for j in range(-2, 3) if torch.equal(moved["x"][row], rolled(x[row], i, j))
        ]
        assert len(found) == 1
        seen.add(found[0])
        assert int(moved["moved"][row]) or found[0] == (0, 0)
    assert len(seen) == 25
    assert_mean(moved["moved"].double(), 0.7)


def rolled(image, down, right):
    out = torch.zeros_like(image)
    height, width = image.shape[-2:]
    for i in range(height):
        for j in range(width):
            if 0 <= i - down < height and 0 <= j - right < width:
                out[:, i, j] = image[:, i - down, j - right]
    return out


def test_mirrored_images_are_mirrored():
    x = torch.rand(400, 1, 4, 4) + 0.1
    state = Moved(0, True, "cpu")({"x": x}, torch.Generator().manual_seed(0))
    mirrored = torch.tensor([torch.equal(a, b.flip(-1)) for a, b in zip(state["x"], x, strict=True)])
    same = torch.tensor([torch.equal(a, b) for a, b in zip(state["x"], x, strict=True)])
    assert bool((mirrored ^ same).all())
    assert_mean(mirrored.double(), 0.5)


def test_a_jittered_network_sees_moved_images_while_it_learns():
    groups = {"x": pc.Real((1, 8, 8)), "c": pc.Categorical(3)}
    network = image_network(groups, "c", width=4, kind="residual", jitter=1, mirrored=True)
    x = torch.rand(1, 1, 8, 8)
    views = [rolled(flipped, i, j) for flipped in (x[0], x[0].flip(-1)) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    possible = network.eval()({"x": torch.stack(views)})
    with torch.no_grad():
        seen = network.train()({"x": x.expand(2000, -1, -1, -1)})
    which = (seen[:, None] - possible[None]).abs().sum(2).argmin(1)
    torch.testing.assert_close(seen, possible[which], atol=1e-5, rtol=1e-4)
    # The last nine are mirrored and then moved; moved right and then mirrored comes to the same set.
    assert_fits(torch.bincount(which, minlength=18), torch.full((18,), 1 / 18, dtype=torch.float64))
    assert torch.equal(network.eval()({"x": x}), network({"x": x}))


def test_a_binary_init_draws_zeros_and_ones():
    variables = {"x": pc.Binary((1, 2, 2)), "c": pc.Categorical(2)}
    init = pc.initializers.pca(variables, "x", ["c"], rank=1)
    init.means.data[1:] = torch.tensor([[0.0], [1.0]])
    drawn = init.sample({"c": torch.eye(2).repeat(2000, 1)}, torch.Generator().manual_seed(0), 4000)
    assert set(drawn.unique().tolist()) == {0.0, 1.0} and drawn.shape == (4000, 1, 2, 2)
    deviation = (init.directions[0].square() + 0.09).sqrt().detach()
    ones = torch.special.ndtr(0.5 / deviation).double()  # mean 1: over one half
    assert_mean(drawn[1::2].double().flatten(1) - ones, 0.0)


# --- answers without a chain ------------------------------------------------------------------------------------


def test_what_is_all_given_is_answered_by_the_conditional_itself():
    groups = {"x": pc.Binary((1, 8, 8)), "c": pc.Categorical(3), "z": pc.Binary(4)}
    torch.manual_seed(0)
    networks = {n: image_network(groups, n, width=4, reads=["x"] if n == "c" else None) for n in groups}
    model = pc.JointModel({n: pc.Conditional(groups[n], networks[n]) for n in groups}).double()
    x = (torch.rand(2000, 1, 8, 8) < 0.5).double()
    answer = pc.query(model, {"x": x}, ["c"], chains=3)
    expected = model("c", {"x": x, "c": torch.zeros(2000).long(), "z": torch.zeros(2000, 4)}).mean.detach()
    torch.testing.assert_close(answer.probabilities["c"], expected)
    assert answer.diagnostics.converged and answer.diagnostics.sweeps == 0
    assert answer.samples["c"].shape == (2000, 3)
    drawn = torch.nn.functional.one_hot(answer.samples["c"], 3).double().mean(1)
    for k in range(3):  # draws have the conditional's law
        assert_mean(drawn[:, k] - expected[:, k], 0.0)
    # with z wanted too there is a chain: it reads c
    assert pc.query(model, {"x": x[:2]}, ["z"], chains=2, stop=pc.Sweeps(3)).diagnostics.sweeps > 0


def test_direct_answers_honour_what_is_partly_known():
    """Factorising coordinates keep their known value; the rest has the conditional's law."""
    variables = {"a": pc.Binary(2), "b": pc.Binary(1)}
    torch.manual_seed(0)
    model = pc.JointModel({n: pc.Conditional(v, pc.networks.mlp(variables, n)) for n, v in variables.items()})
    given = {"a": pc.Observed(torch.ones(1, 2), torch.tensor([True, False])), "b": torch.ones(1, 1)}
    answer = pc.query(model, given, ["a"], chains=10_000)
    exact = model("a", {"a": torch.ones(1, 2), "b": torch.ones(1, 1)}).mean.detach()
    assert bool((answer.samples["a"][..., 0] == 1).all() and (answer.mean["a"][:, 0] == 1).all())
    torch.testing.assert_close(answer.mean["a"][:, 1], exact[:, 1])
    assert_mean(answer.samples["a"][0, :, 1], exact[0, 1])


def test_a_network_sees_only_what_it_says_that_it_reads():
    class Liar(pc.networks.Network):
        reads = ("b",)

        def forward(self, others):
            return others["c"]

    class Stranger(torch.nn.Module):
        reads = "everything"

        def forward(self, others):
            return others["b"] + others["c"]

    binary = pc.Binary(1)
    for network, fine in ((Liar(), False), (Stranger(), True)):
        rest = {n: pc.Conditional(binary, Stranger()) for n in "bc"}
        model = pc.JointModel({"a": pc.Conditional(binary, network), **rest})
        state = pc.initializers.initial_state(model, 2, model.generator(0))
        if fine:
            assert model("a", state).logits.shape == (2, 1)
        else:
            with pytest.raises(KeyError):
                model("a", state)


def test_a_loaded_model_is_for_inference(tmp_path):
    variables = {"a": pc.Real(3, scale=1.0), "b": pc.Binary(1)}
    torch.manual_seed(0)
    networks = {n: pc.networks.mlp(variables, n, noise=0.5) for n in variables}
    pc.JointModel({n: pc.Conditional(variables[n], networks[n]) for n in variables}).save(tmp_path / "m")
    model = pc.JointModel.load(tmp_path / "m")
    one, two = (pc.query(model, {"a": torch.ones(1, 3)}, ["b"]).probabilities["b"] for _ in range(2))
    assert torch.equal(one, two)


def test_moved_images_must_be_observed_whole():
    data = pc.Data({"x": torch.zeros(4, 1, 12, 10)}, {"x": torch.rand(4, 1, 12, 10) < 0.5})
    with pytest.raises(pc.InputError, match="'x' is moved by an augmentation, but some rows are observed only in part"):
        pc.Learner(make(), data, augment=Moved(2, False, "cpu", share=0.5, flag=True))


def test_a_sample_begins_at_its_init():
    model = make()
    init = pc.initializers.initial_state(model, 7, model.generator(3))
    state = pc.sample(model, {"c": torch.arange(7) % 3}, init=init, sweeps=0)
    assert torch.equal(state["x"], init["x"]) and torch.equal(state["z"], init["z"])
    assert torch.equal(state["c"], torch.arange(7) % 3)
    one = pc.sample(model, rows=10, sweeps=2, seed=1, chunk=4)
    two = pc.sample(model, rows=10, sweeps=2, seed=1, chunk=4)
    assert all(torch.equal(one[n], two[n]) for n in one) and len(one["x"]) == 10


# --- experiments ----------------------------------------------------------------------------------------------------


def write_idx(path, array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes(), 1))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data set in the original layout, whose classes differ in where they are bright."""
    generator = np.random.default_rng(0)
    for split, rows in (("train", 1200), ("t10k", 100)):
        labels = np.arange(rows) % 10
        pictures = generator.integers(0, 60, (rows, 28, 28))
        for row, label in enumerate(labels):
            pictures[row, 2 * label : 2 * label + 6, 4:24] += 180
        write_idx(tmp_path / f"{split}-images-idx3-ubyte.gz", pictures)
        write_idx(tmp_path / f"{split}-labels-idx1-ubyte.gz", labels)
    for module, load in ((mnist, pc.datasets.mnist), (fashion, pc.datasets.fashion)):
        unchecked = lambda split, folder=None, load=load: load(split, folder=folder, verify=False)  # noqa: E731
        changed = images_experiment.replace(module.EXPERIMENT, load=unchecked)
        monkeypatch.setattr(module, "EXPERIMENT", changed)
        monkeypatch.setattr(pc.datasets, changed.name, unchecked)
    return tmp_path


@pytest.mark.parametrize("name", ["mnist", "fashion"])
@pytest.mark.parametrize("preset", ["best", "paper"])
def test_the_experiments_run_in_small(name, preset, folder, capsys):
    out = folder / "out"
    options = ["--data", str(folder), "--out", str(out), "--device", "cpu", "--preset", preset]
    cli.main(["reproduce", name, "--quick", *options])
    record = json.loads((out / "results.json").read_text())
    found = {metric["name"] for metric in record["metrics"]}
    assert {"accuracy", "accuracy_top_half", "bits", "active_latents"} <= found
    assert {"accuracy_100_labels", "accuracy_1000_labels", "accuracy_tenth_of_labels"} <= found
    assert (name == "mnist") == ("accuracy_half_pixels" in found)
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert pc.JointModel.load(out / "model").dtype == torch.float32
    again = folder / "again"
    cli.main(
        ["reproduce", name, "--quick", "--model", str(out / "model"), "--no-extras", *options[:2], "--out", str(again)]
    )
    metrics = json.loads((again / "results.json").read_text())["metrics"]
    values = [next(m["value"] for m in found if m["name"] == "accuracy") for found in (metrics, record["metrics"])]
    assert values[0] == pytest.approx(values[1], abs=0.05) and not (again / "model").exists()
    other = {"mnist": "fashion", "fashion": "mnist"}[name]
    with pytest.raises(SystemExit, match=f"is no model of {other}: 'x' is"):
        cli.main(["reproduce", other, "--quick", "--model", str(out / "model"), *options[:2], "--out", str(again)])


@pytest.mark.parametrize("option", ["--updates", "--generated"])
def test_impossible_numbers_are_refused_before_anything_is_read(option, tmp_path):
    with pytest.raises(SystemExit, match=f"{option} must be a whole number, at least [12], found 0"):
        cli.main(["reproduce", "mnist", option, "0", "--data", str(tmp_path), "--out", str(tmp_path / "out")])


class MeanColour(torch.nn.Module):
    """Stands in for Inception: the means of 3 x 3 patches."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(x, [3, 3]).mean(1).flatten(1)


@pytest.mark.parametrize("name", ["mnist", "fashion"])
def test_the_whole_experiment_with_a_stand_in_for_inception(name, folder, monkeypatch, capsys):
    """Everything that a full run does off CUDA: FIDs, milestones, few labels, missing pixels, and resuming."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(MeanColour()).save(str(folder / "stand-in.pt"))
    monkeypatch.setenv("PARACOND_INCEPTION", str(folder / "stand-in.pt"))
    monkeypatch.setattr(images_experiment, "TRIAL", 30)
    monkeypatch.setattr(images_experiment, "chosen_regeneration", lambda runner, model: pc.Regeneration(0.5, 1))
    monkeypatch.setattr(protocols, "AGES", (1, 2))
    monkeypatch.setattr(protocols, "PAPER_SWEEPS", 2)
    module = {"mnist": mnist, "fashion": fashion}[name]
    tiny = {k: images.small(design) for k, design in module.EXPERIMENT.presets.items()}
    changed = images_experiment.replace(module.EXPERIMENT, presets=tiny, few_labels={"updates": 30})
    monkeypatch.setattr(module, "EXPERIMENT", changed)
    short = lambda model, classes, sweeps=100, seed=0, **rest: pc.sample(  # noqa: E731
        model, {"c": classes}, sweeps=min(sweeps, 2), seed=seed, **rest
    )
    monkeypatch.setattr(images_experiment, "generate", short)
    monkeypatch.setattr(images, "generate", short)
    half = images.from_top_half
    monkeypatch.setattr(images_experiment, "from_top_half", lambda model, x, sweeps: half(model, x, 2))
    monkeypatch.setattr(images_experiment, "accuracy", lambda decided, truth: float(len(decided) == 100))
    out = folder / "out"
    options = ["--data", str(folder), "--out", str(out), "--device", "cpu", "--generated", "40"]
    cli.main(["reproduce", name, *options, "--minutes", "0"])
    assert "continue with --resume" in capsys.readouterr().out and not (out / "results.json").exists()
    cli.main(["reproduce", name, *options, "--resume"])
    results = json.loads((out / "results.json").read_text())
    assert [point["updates"] for point in results["milestones"]][-1:] == [30]  # a busy machine has more
    metrics = {m["name"]: m for m in results["metrics"]}
    assert {
        "fid",
        "fid_floor",
        "fid_reconstruction",
        "fid_from_random_100",
        "fid_from_init_400",
        "fid_limit",
        "fid_paper_protocol",
        "fid_gibbs_random",
        "fid_gibbs_data",
        "minutes_to_paper",
    } <= set(metrics)
    assert ("fid_draws" in metrics) == (name == "mnist") == ("fid_half_pixels" in metrics)
    assert "accuracy_100_labels" in metrics
    assert metrics["fid"]["paper"] == changed.paper["fid"] and metrics["fid"]["goal"] == changed.goals["fid"]
    assert (out / "report.html").read_text().count("data:image/png;base64,") == 5
    assert {"fid_unconditional", "class_share_error"} <= set(metrics)
    kept = (out / "milestones.json").read_bytes()
    with pytest.raises(SystemExit, match=r"has a checkpoint: continue it with .*--resume"):
        cli.main(["reproduce", name, *options])
    assert (out / "milestones.json").read_bytes() == kept  # a run that was refused leaves them as they were


class Clock:
    """A clock that moves only when told to."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


def test_milestones_count_training_alone_and_are_kept(tmp_path, monkeypatch):
    """Measuring stops the clock; what was found survives a crash and a resumed run; passed milestones are skipped."""
    clock = Clock()
    monkeypatch.setattr(milestones_module.time, "perf_counter", clock.perf_counter)
    engine = types.SimpleNamespace(synchronise=lambda: None)
    learner = types.SimpleNamespace(step_count=0, averaged=None, engine=engine, losses={"x": torch.tensor(0.25)})

    def measure(model):
        clock.now += 1000
        return {"accuracy": 0.5}

    def run(milestones, seconds):
        for _ in range(seconds):
            learner.step_count += 20
            clock.now += 1
            milestones(learner)

    path = tmp_path / "milestones.json"
    milestones = Milestones(measure, path, seconds=(10, 20, 30, 50, 80))
    clock.now += 25  # a slow first update
    run(milestones, 7)
    assert all(each["loss_x"] == 0.25 for each in milestones.points)
    assert [point["seconds"] for point in milestones.points] == [26, 30]
    again = Milestones(measure, path, seconds=milestones.seconds, resume=True)  # after a crash
    assert again.points == milestones.points and again.trained == 30
    run(again, 21)
    assert [point["seconds"] for point in again.points] == [26, 30, 50]
    run(again, 5)
    again.pause(learner)
    assert json.loads(path.read_text())["trained"] == again.trained == 56


def test_the_hidden_half_is_what_is_measured():
    truth = torch.full((2, 1, 28, 28), 0.5)
    found = truth.clone()
    found[..., :14, :] = 9.0  # what was seen does not count
    found[..., 14:, :] += 0.1
    added = {}
    session = types.SimpleNamespace(
        train=types.SimpleNamespace(state={"x": torch.zeros(3, 1, 28, 28)}),
        add=lambda name, value, better, about: added.update({name: value, "about": about}),
    )
    images_experiment.inpainting(session, truth, found)
    assert added["inpainting_psnr"] == pytest.approx(20, abs=1e-4)
    assert added["about"].endswith("the training mean has 6.02")  # an error of one half


def test_the_paper_is_passed_when_both_numbers_are():
    session = types.SimpleNamespace(paper=mnist.EXPERIMENT.paper)

    def minutes(*points):
        found = [{"seconds": 60.0 * k, "fid": fid, "accuracy": right} for k, (fid, right) in enumerate(points)]
        return images_experiment.minutes_to_paper(session, types.SimpleNamespace(points=found))

    assert minutes((9.0, 0.999), (5.0, 0.98), (5.87, 0.9904), (1.0, 1.0)) == 2.0
    assert minutes((9.0, 0.999), (5.0, 0.98)) == float("inf")


def test_levers_are_tried_one_at_a_time(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "research"))
    import levers

    monkeypatch.setitem(levers.EXPERIMENTS, "fashion", fashion.EXPERIMENT)
    options = {"data": folder, "out": folder / "levers", "device": "cpu", "quick": True}
    levers.main(levers.Config(only=("base", "shifts"), **options))
    names = {m["name"] for m in json.loads((folder / "levers" / "results.json").read_text())["metrics"]}
    assert {"base_accuracy", "shifts_accuracy", "base_bits", "shifts_active"} <= names
    with pytest.raises(pc.InputError, match="no lever is called 'magic'; there are base"):
        levers.main(levers.Config(only=("magic",), **options))
    for change in levers.CHANGES.values():  # every lever is a design that can be built
        images.make_model(images.small(images_experiment.replace(fashion.BEST, **change)), binary=False)


def test_train_in_time_boxes_then_sample_and_classify(folder, capsys, monkeypatch):
    tiny = images.small(mnist.EXPERIMENT.presets["best"])
    from paracond.cli import pictures as use_pictures

    monkeypatch.setattr(mnist, "EXPERIMENT", images_experiment.replace(mnist.EXPERIMENT, presets={"best": tiny}))
    out = folder / "run"
    train = ["train", "mnist", "--data", str(folder), "--out", str(out), "--device", "cpu"]
    cli.main([*train, "--minutes", "0"])
    assert re.search(r"stopped at update \d+ of 30; continue with --resume", capsys.readouterr().out)
    assert not (out / "model").exists()  # nothing learned, nothing to ask
    with pytest.raises(SystemExit, match="--resume"):
        cli.main(train)
    cli.main([*train, "--resume"])
    assert "model:" in capsys.readouterr().out
    model = str(out / "model")
    assert pc.JointModel.load(model).names == ("x", "c", "z")
    learned = pc.JointModel.load(model).state_dict()

    def interrupted(learner, folder):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # Ctrl-C while the checkpoint is read
        patch.setattr(milestones_module.checkpoints, "restore", interrupted)
        with pytest.raises(SystemExit, match="interrupted"):
            cli.main([*train, "--resume"])
    assert all(torch.equal(value, learned[name]) for name, value in pc.JointModel.load(model).state_dict().items())
    with pytest.raises(SystemExit, match="--resume"):
        cli.main(train)
    assert all(torch.equal(value, learned[name]) for name, value in pc.JointModel.load(model).state_dict().items())
    with pytest.raises(SystemExit, match="minutes must not be negative, found -1"):
        cli.main([*train, "--resume", "--minutes", "-1"])
    cli.main(["sample", model, "--given", "c=9", "--rows", "20", "--sweeps", "2", "--out", str(out)])
    drawn = dict(np.load(out / "samples.npz"))
    assert drawn["x"].shape == (20, 1, 28, 28) and set(drawn["c"]) == {9}
    assert (out / "samples.png").stat().st_size > 1000
    canvas = use_pictures.picture(torch.zeros(13, 1, 28, 28)).axes[0].images[0].get_array()
    assert canvas.shape == (2 * 28, 10 * 28) and canvas.sum() == 7 * 28 * 28  # none is left out; blanks are white
    table = out / "decisions.csv"
    cli.main(["classify", model, "--dataset", "mnist", "--data", str(folder), "--out", str(table)])
    assert "accuracy: " in capsys.readouterr().out
    assert len(table.read_text().splitlines()) == 101
    with pytest.raises(SystemExit, match="--sweeps must be a whole number, at least 1, found 0"):
        cli.main(["classify", model, "--given", "x=0", "--sweeps", "0"])
    np.save(out / "x.npy", drawn["x"])
    again = ["--overwrite", "--out", str(table)]
    cli.main(["classify", model, "--given", f"x={out / 'x.npy'}", *again])
    assert len(table.read_text().splitlines()) == 21
    half = ["classify", model, "--given", f"x={out / 'x.npy'}", "--seen", "top", "--sweeps", "4", *again]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pc.NotMixedWarning)  # four sweeps of a model that has learned nothing
        cli.main(half)
    assert len(table.read_text().splitlines()) == 21
    again = ["--overwrite", "--out", str(out)]
    cli.main(["sample", model, "--given", f"x={out / 'x.npy'}", "--seen", "left", "--sweeps", "2", *again])
    filled = np.load(out / "samples.npz")["x"]
    assert np.array_equal(filled[..., :14], drawn["x"][..., :14])
    assert not np.array_equal(filled[..., 14:], drawn["x"][..., 14:])


@pytest.mark.parametrize(
    "words, message",
    [
        (["sample", "{model}", "--given", "c"], "--given and --edit take NAME=VALUE, found 'c'"),
        (["sample", "{model}", "--given", "q=1"], "unknown variable 'q'"),
        (["sample", "{model}", "--given", "c=11"], "'c' has classes 0 to 2, found 11"),
        (["sample", "{model}", "--given", "c=nine"], "c=nine: neither numbers nor a .npy or .png file"),
        (["sample", "{model}", "--given", "c=some.png"], "c=some.png is a picture, and 'c' has labels"),
        (["sample", "{model}", "--given", "x=nowhere.npy"], "x=nowhere.npy cannot be read: .*No such file"),
        (["sample", "nowhere"], "nowhere/model.json does not exist: is nowhere a saved model?"),
        (["sample", "{model}", "--given", "c=1", "--seen", "top"], "--seen top needs a picture among what is given"),
        (["sample", "{model}", "--seen", "middle", "--given", "x=0"], "--seen is one of all, top, .* found 'middle'"),
        (["sample", "{model}", "--seen", "large.png", "--given", "x=0"], r"--seen=large.png has \[5, 7\] pixels"),
        (["sample", "{model}", "--guidance", "-1"], "weight of guidance must be a number from 0 to 1e.06, found -1"),
        (["sample", "{model}", "--edit", "z[0]=1,0,1", "--rows", "2"], "--edit has 3 values of 'z' for 2 rows"),
        (["sample", "{model}", "--rows", "-3"], "--rows must be a whole number, at least 1, found -3"),
        (["sample", "{model}", "--given", "x=bad.npy"], "x=bad.npy cannot be read"),
        (["sample", "{model}", "--given", "x=bad.png"], "x=bad.png cannot be read"),
        (["sample", "{model}", "--given", "x=large.png"], r"x=large.png has \[5, 7\] pixels, the model wants"),
        (["sample", "{model}", "--given", "x[3]=1"], r"x\[3\]: only flat groups have such coordinates; 'x' is Binary"),
        (["sample", "{model}", "--given", "z[99]=1"], r"z\[99\]: a coordinate is a number from 0 to \d+$"),
        (["sample", "{model}", "--given", "z[²]=1"], r"z\[²\]: a coordinate is a number from 0 to \d+$"),
        (["sample", "{model}", "--given", "z[big]=1"], r"z\[big\]: a coordinate is a number from 0 to \d+$"),
        (["sample", "{model}", "--given", "z[0]=much"], r"z\[0\]=much: neither numbers nor"),
        (["sample", "{model}", "--given", "c=1", "c=2"], "'c' is given twice: give each group"),
        (["sample", "{model}", "--given", "z[0]=1", "z[0]=0"], "'z' is given twice: give each group"),
        (["sample", "{model}", "--given", "z=1", "z[0]=0"], "'z' is given twice: give each group"),
        (["sample", "{model}", "--given", "x=empty.npy"], "x=empty.npy cannot be read"),
        (["sample", "{model}", "--seed", "9" * 30], "seed must be a whole number of at most 64 bits"),
        (["classify", "{model}", "--given", "c=1"], "--given says 'c', which is the group to decide"),
        (["classify", "{model}"], "nothing is given: say --given NAME=VALUE, or --dataset"),
        (["classify", "{model}", "--given", "c=1", "--want", "x"], "'x' is Binary.* only a class or flat"),
    ],
)
def test_bad_commands_name_what_is_wrong(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make().save("saved")
    for name in ("bad.npy", "bad.png"):
        Path(name).write_text("no picture")
    Path("empty.npy").touch()
    image.imsave("large.png", np.zeros((5, 7)), cmap="gray")
    with pytest.raises(SystemExit, match=message):
        cli.main([word.format(model="saved") for word in words])


def test_models_whose_context_must_be_given_can_be_asked(tmp_path, monkeypatch, capsys):
    """Also while it is tried out how fast they are; the answer is that of the model's only conditional."""
    monkeypatch.chdir(tmp_path)
    variables = {"c": pc.Categorical(3), "t": pc.Binary(4)}
    torch.manual_seed(0)
    conditionals = {"c": pc.Conditional(variables["c"], pc.networks.mlp(variables, "c"))}
    model = pc.JointModel(conditionals, context={"t": pc.Context(variables["t"], None)})
    model.save("saved")
    with pytest.raises(SystemExit, match="'t' must be given"):
        cli.main(["sample", "saved"])
    with pytest.raises(SystemExit, match="--dataset gives images x, and the model has c: use --given"):
        cli.main(["classify", "saved", "--dataset", "mnist"])
    cli.main(["sample", "saved", "--given", "t=1", "--rows", "5"])
    assert np.load("runs/sample/samples.npz")["c"].shape == (5,)
    cli.main(["classify", "saved", "--given", "t=1"])
    row = Path("runs/decisions.csv").read_text().splitlines()[1].split(",")
    exact = model("c", {"t": torch.ones(1, 4), "c": torch.zeros(1).long()}).mean[0]
    assert int(row[1]) == int(exact.argmax()) and float(row[2]) == pytest.approx(float(exact.detach().max()), abs=1e-4)


def test_labelled_examples_are_repeated():
    data = pc.Data({"x": torch.zeros(1000, 2), "c": torch.arange(1000) % 10})
    few = pc.datasets.keep_labels(data, 20, 0)
    more = balanced(few, 0.25)
    assert float(more.mask["c"].float().mean()) == pytest.approx(0.25, abs=0.01)
    assert set(more.state["c"][more.mask["c"]].tolist()) == set(range(10))
    assert balanced(data, 0.25) is data


MODELS = Path(__file__).parents[1] / "models"


@pytest.mark.parametrize("name, shape", [("mnist", (1, 28, 28)), ("fashion", (1, 28, 28))])
def test_the_models_of_the_repository_can_be_asked(name, shape, capsys, tmp_path):
    """They load, are small, have a card, draw what they are asked for, and their encoders read it back."""
    folder = MODELS / name
    assert all(path.stat().st_size <= 8 * 2**20 for path in folder.iterdir())
    card = (folder / "README.md").read_text()
    assert all(word in card for word in ("command", "commit", "hardware", "minutes", "FID", "Licence"))
    classes = 2 * list(range(10))
    given = "c=" + ",".join(map(str, classes))
    cli.main(["sample", str(folder), "--given", given, "--sweeps", "5", "--device", "cpu", "--out", str(tmp_path)])
    drawn = {key: torch.as_tensor(value) for key, value in np.load(tmp_path / "samples.npz").items()}
    assert drawn["x"].shape == (20, *shape) and drawn["c"].tolist() == classes
    model = pc.JointModel.load(folder)
    again = pc.query(model, {"x": shown(model, drawn)}, ["c"])  # one pass: p(c | x) reads the image alone
    assert sum(again.decisions["c"].tolist()[k] == classes[k] for k in range(20)) >= 14  # by chance: 2


@pytest.mark.parametrize("name", ["mnist", "fashion"])
def test_committed_results_have_what_was_asked_for(name):
    record = json.loads((MODELS.parent / "results" / f"{name}.json").read_text())
    metrics = {metric["name"]: metric["value"] for metric in record["metrics"]}
    names = ("fid", "fid_floor", "accuracy", "minutes_to_paper", "accuracy_100_labels", "accuracy_1000_labels")
    times = ("update_ms", "update_ms_eager", "update_ms_floor", "seconds_30k_images")
    assert all(isinstance(metrics[key], float) for key in (*names, *times))
    assert record["commit"] and "H200" in str(record["hardware"])
