"""The comparison of section 5.5: its measures against exact answers, its runs in small, in one piece and in two."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from test_images import write_idx

import paracond as pc
from paracond.baselines import directed
from paracond.baselines.priors import Fixed, Vamp
from paracond.cli import main as cli
from paracond.experiments.comparison import evaluation as compare_evaluation
from paracond.experiments.comparison import experiment as compare
from paracond.experiments.comparison import measures
from paracond.experiments.comparison import model as compare_model
from paracond.experiments.comparison import report as compare_report
from paracond.experiments.comparison import setup as compare_setup
from paracond.experiments.comparison import table as compare_table
from paracond.experiments.comparison.model import DESIGNS, Pictures, make_learner, make_model, rates_of, small, steps_of
from paracond.experiments.comparison.table import Run
from paracond.metrics.fid import Extractor


def bits_model(scale=0.5, seed=0):
    """x in R^(1, 4, 3) given 3 bits and a class of two."""
    torch.manual_seed(seed)
    groups = {"x": pc.Real((1, 4, 3), scale=scale), "z": pc.Binary(3)}
    context = pc.Context(pc.Categorical(2), None)
    nets = {n: pc.networks.mlp({**groups, "c": context.family}, n, hidden=8, depth=1) for n in groups}
    return pc.JointModel({n: pc.Conditional(f, nets[n]) for n, f in groups.items()}, context={"c": context}).double()


def all_codes():
    z = pc.Binary(3).values().double()
    return {"z": z.repeat(2, 1), "c": torch.arange(2).repeat_interleave(8), "x": torch.zeros(16, 1, 4, 3).double()}


def test_the_class_of_a_half_is_that_of_bayes_rule():
    """Every code once: the Monte Carlo mean is then p(x_K | c) for the uniform prior, which enumeration gives too."""
    model, codes = bits_model(), all_codes()
    visible = measures.top_half((1, 4, 3))
    assert visible.sum() == 6 and bool(visible[0, :2].all())
    images = torch.randn(5, 1, 4, 3, generator=torch.Generator().manual_seed(1)).double()
    means = model("x", codes).mean
    found = measures.class_evidence(means, 0.5, codes["c"], images, 2)
    for row, image in enumerate(images):
        each = (
            torch.distributions.Normal(means[:, visible], 0.5).log_prob(image[visible]).sum(1).view(2, 8).exp().mean(1)
        )
        torch.testing.assert_close(found[row].softmax(0), each / each.sum())


def test_a_half_tells_the_class_where_it_can():
    """Images of the model itself: the accuracy is the one that the exact posterior has, on average over images."""
    model, codes = bits_model(scale=0.3, seed=4), all_codes()
    rows = 2000
    c = torch.arange(rows) % 2
    state = directed.random_code(model, "z", {"c": c}, seed=2)
    data = pc.Data({"x": state["x"].float(), "c": c})
    pictures = Pictures(data, data, pc.Categorical(2), lambda c: c, 2)
    found = measures.half_accuracy(model, pictures, codes, rows)
    evidence = measures.class_evidence(model("x", codes).mean.detach(), 0.3, codes["c"], state["x"], 2)
    expected = float(evidence.softmax(1).max(1).values.mean())  # what the posterior says of its own decisions
    assert 0.55 < expected < 0.99 and abs(found - expected) < 5 * (0.25 / rows) ** 0.5
    often = {name: value.repeat(70, *[1] * (value.ndim - 1)) for name, value in codes.items()}  # more than go at once
    assert measures.half_accuracy(model, pictures, often, rows) == found


def test_classes_of_unlike_size_are_weighed_by_the_prior_and_not_by_their_codes():
    """Eight codes of one class and two of the other at known means, classes .2 and .8 of the training images, and a
    wide sigma: the decision is that of p(k) (1/N_k) sum_n N(x_K; mu_n, sigma), which is neither that without p(k) nor
    that without 1/N_k."""
    generator = torch.Generator().manual_seed(5)
    means, of_class = torch.rand(10, 1, 4, 3, generator=generator), torch.tensor([0] * 8 + [1] * 2)
    images = torch.rand(400, 1, 4, 3, generator=generator)
    train = pc.Data({"x": torch.zeros(100, 1, 4, 3), "c": (torch.arange(100) >= 20).long()})
    sigma, visible = 0.6, measures.top_half((1, 4, 3))
    log_p = torch.distributions.Normal(means[None, :, visible], sigma).log_prob(images[:, None, visible]).sum(2)
    scores = torch.stack([log_p[:, of_class == k].exp().sum(1) for k in (0, 1)], 1)
    prior, size = torch.tensor([0.2, 0.8]), torch.tensor([8.0, 2.0])
    exact, blind, crowded = ((scores * weight).argmax(1) for weight in (prior / size, 1 / size, prior))
    assert float((exact != blind).float().mean()) > 0 and float((exact != crowded).float().mean()) > 0
    pictures = Pictures(train, pc.Data({"x": images, "c": exact}), pc.Categorical(2), lambda c: c, 2)
    assert measures.bayes_accuracy(means, of_class, sigma, pictures, 400) == 1.0


def test_contexts_are_those_of_the_training_images_each_as_often():
    data = pc.Data({"x": torch.zeros(5, 1, 4, 3), "c": torch.arange(5)})
    pictures = Pictures(data, data, pc.Categorical(5), lambda c: c, 5)
    assert sorted(measures.contexts_of(pictures, 10, seed=1).tolist()) == sorted([*range(5), *range(5)])


def test_a_class_that_no_code_has_is_never_decided():
    found = measures.class_evidence(torch.randn(8, 1, 4, 3), 0.5, torch.zeros(8).long(), torch.zeros(3, 1, 4, 3), 2)
    assert found.argmax(1).tolist() == [0, 0, 0]


def test_a_sigma_of_its_own_for_every_pixel_is_refused():
    groups = {"x": pc.Real((1, 4, 3)), "z": pc.Binary(3)}
    model = pc.JointModel({n: pc.Conditional(f, pc.networks.mlp(groups, n)) for n, f in groups.items()})
    data = pc.Data({"x": torch.zeros(4, 1, 4, 3), "c": torch.zeros(4).long()})
    codes = {name: all_codes()[name].float() for name in groups}
    with pytest.raises(pc.InputError, match="needs a Real x with one sigma for all"):
        measures.half_accuracy(model, Pictures(data, data, pc.Categorical(2), lambda c: c, 2), codes, 4)


def test_real_images_tell_as_much_as_their_nearest_neighbours():
    """With a narrow sigma Bayes' rule decides for the class of the nearest image; and what deciding blindly gives."""
    generator = torch.Generator().manual_seed(3)
    train, test = (
        pc.Data({"x": torch.rand(n, 1, 4, 3, generator=generator), "c": torch.arange(n) % 3 % 2}) for n in (90, 60)
    )
    pictures = Pictures(train, test, pc.Categorical(2), lambda c: c, 2)
    found = measures.bayes_accuracy(train.state["x"], train.state["c"], 1e-3, pictures, 60)
    upper = [data.state["x"][:, :, :2].flatten(1) for data in (train, test)]
    nearest = torch.cdist(upper[1], upper[0]).argmin(1)
    assert found == pytest.approx(float((train.state["c"][nearest] == test.state["c"]).float().mean()))
    assert measures.majority(pictures) == pytest.approx(2 / 3)


class Formula(pc.networks.Network):
    """What a function says of one group."""

    def __init__(self, reads, formula):
        super().__init__()
        self.reads, self.formula = (reads,), formula

    def forward(self, others):
        return self.formula(others[self.reads[0]])


def formula_model(x_scale, z_scale, x_of_z, z_of_x, codes=1):
    groups = {"x": pc.Real((1, 2, 1), scale=x_scale), "z": pc.Real(codes, scale=z_scale)}
    networks = {"x": Formula("z", x_of_z), "z": Formula("x", z_of_x)}
    conditionals = {name: pc.Conditional(family, networks[name]) for name, family in groups.items()}
    return pc.JointModel(conditionals, context={"c": pc.Context(pc.Categorical(2), None)})


@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_the_hidden_half_is_what_the_chain_says(shift):
    """Two pixels are z with noise of .2, z is their mean with noise of .1. With the upper one, a, clamped, z' - a is
    half of z - a and noise of variance .1^2 + .1^2, so that in the limit z has the mean a and this variance over
    1 - 1/4; the mean of 400 chains is off by a twentieth of its deviation. The lower pixel is a + shift."""
    model = formula_model(
        0.2,
        0.1,
        lambda z: z.view(-1, 1, 1, 1).expand(-1, 1, 2, 1),
        lambda x: x.flatten(1).mean(1, keepdim=True),
    )
    deviation = (0.02 / (1 - 1 / 4)) ** 0.5 / 20
    upper = torch.linspace(0.4, 0.6, 200)
    data = pc.Data({"x": torch.stack([upper, upper + shift], 1).view(-1, 1, 2, 1), "c": torch.zeros(200).long()})
    pictures = Pictures(data, data, pc.Categorical(2), lambda c: c, 2)
    found = measures.half_error(model, pictures, 200, sweeps=30, seed=1, chains=400)
    assert found == pytest.approx((shift**2 + deviation**2) ** 0.5, rel=0.2)


def test_disagreement_is_a_distance_in_units_of_the_clamped_codes():
    """Two Gaussians of known moments: (1 + (2 - 1)^2 + (3 - 1)^2) / 2 for means (0, 0), (1, 0) and deviations (1, 1),
    (2, 3); and the same in any other units."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(200_000, 2, generator=generator) for _ in range(2))
    assert measures.disagreement(pc.Real(2), a, a) == pytest.approx(0, abs=1e-9)
    moved = b * torch.tensor([2.0, 3.0]) + torch.tensor([1.0, 0.0])
    assert measures.disagreement(pc.Real(2), a, moved) == pytest.approx((1 + 1 + 4) / 2, rel=0.02)
    units = torch.tensor([[30.0, 1.0], [0.0, 0.2]])
    assert measures.disagreement(pc.Real(2), a @ units + 7, moved @ units + 7) == pytest.approx(
        measures.disagreement(pc.Real(2), a, moved), rel=1e-3
    )


@pytest.mark.parametrize(("family", "least"), [(pc.Real(2), 0.25 / 2 / 1000), (pc.Binary(2), 0.01)])
def test_a_code_that_is_always_the_same_disagrees_by_what_a_rare_one_would(family, least):
    """Variances 1/4 and 0, against twice the same coin: the second direction, in its units, has mean 1/2 / sqrt(least)
    and variance 1/4 / least. (The two coins are the same, so the distance has a cross term: no more than the sum.)"""
    clamped = torch.tensor([[0.0, 0.0], [1.0, 0.0]]).repeat(500, 1)
    other = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).repeat(500, 1)
    assert measures.disagreement(family, clamped, clamped) == pytest.approx(0, abs=1e-6)
    expected = (0.25 / least + 0.25 / least) / 2
    assert measures.disagreement(family, clamped, other) == pytest.approx(expected, rel=0.1)


def test_bits_are_those_of_the_encoder_and_disagreement_is_from_the_clamped_codes():
    """Of bits, the sum over coordinates of H(E p) - E H(p), given the class; and the distance is not symmetric."""
    model = bits_model()
    generator = torch.Generator().manual_seed(0)
    x, c = torch.randn(64, 1, 4, 3, generator=generator).double(), torch.zeros(64).long()
    p = model("z", {"x": x, "c": c}).mean.detach()
    entropy = lambda p: -(p * p.log2() + (1 - p) * (1 - p).log2())  # noqa: E731
    exact = (entropy(p.mean(0)) - entropy(p).mean(0)).sum()
    assert measures.bits(model, pc.Data({"x": x, "c": c})) == pytest.approx(float(exact), rel=1e-3)
    a, b = torch.randn(20_000, 1, generator=generator), 3 * torch.randn(20_000, 1, generator=generator)
    assert measures.disagreement(pc.Real(1), a, b) == pytest.approx((3 - 1) ** 2, rel=0.05)
    assert measures.disagreement(pc.Real(1), b, a) == pytest.approx((1 - 1 / 3) ** 2, rel=0.05)


def test_bits_of_correlated_codes_are_counted_once():
    """Codes A u + noise of deviation s, u ~ N(0, 1) in one dimension, and c that shifts them all: given c they say
    log(1 + |A|^2 / s^2) / 2 nats, however many coordinates say the same."""
    rows, s = 20_000, 0.1
    generator = torch.Generator().manual_seed(0)
    u, c = torch.randn(rows, generator=generator), torch.arange(rows) % 2
    model = formula_model(
        1.0,
        s,
        lambda z: z[:, :1].view(-1, 1, 1, 1).expand(-1, 1, 2, 1),
        lambda x: x[:, 0, 0] * torch.tensor([1.0, 2.0, 3.0]) + x[:, 0, 1],
        codes=3,
    )
    data = pc.Data({"x": torch.stack([u, 5.0 * c], 1).view(-1, 1, 2, 1), "c": c})
    exact = 0.5 * torch.log2(torch.tensor(1 + (1 + 4 + 9) / s**2))
    assert measures.bits(model, data) == pytest.approx(float(exact), rel=0.01)


@pytest.mark.parametrize("name", ["fashion", "faces"])
def test_all_methods_have_the_same_networks_weights_and_updates(name):
    design = small(DESIGNS[name])
    context = pc.Categorical(10) if name == "fashion" else pc.Binary(40)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, *design.image, generator=generator)
    data = pc.Data({"x": x, "c": context.random(40, generator, torch.float32)})
    pictures = Pictures(data, data, context, lambda c: c.reshape(len(c), -1)[:, 0].long(), 10)
    learners = {m: make_learner(design, pictures, m, pc.Engine("cpu"), seed=3) for m in compare_model.OWN}
    weights = {m: torch.cat([p.flatten() for p in learner.model.parameters()]) for m, learner in learners.items()}
    assert len(weights) == 4 and all(torch.equal(weights["vae"], each) for each in weights.values())
    for method, learner in learners.items():
        learner.fit(steps_of(design, method), progress=False)
        assert learner.updates == {"x": design.updates, "z": design.updates}
        assert not torch.equal(torch.cat([p.flatten() for p in learner.model.parameters()]), weights[method])
    rates = {method: rates_of(design, method) for method in learners}
    assert rates["vae"]["x"](5) == rates["ours"]["x"](10) == rates["symmetric"]["x"](5)
    assert rates["vae"]["z"](1) == rates["ours"]["z"](2) == rates["symmetric"]["z"](1)
    assert rates["ours"]["x"](0) == design.learning_rate
    assert rates["ours"]["z"](0) == 0
    grown = int(design.encoder_warm_up * steps_of(design, "vae")) + 1  # from here on both learn at the same rate
    assert rates["vae"]["z"](grown) == rates["vae"]["x"](grown) > 0
    with pytest.raises(pc.InputError, match="a method must be one of vae, symmetric, ours, vamp, found 'gan'"):
        make_learner(design, pictures, "gan", pc.Engine("cpu"), seed=3)
    assert make_model(design, context).context["c"].default is None
    assert rates["vae"]["z"](1) == pytest.approx(rates["vae"]["x"](1) * min(1, 1 / (design.encoder_warm_up * 10)) ** 2)
    assert learners["symmetric"].by is learners["symmetric"].averaged  # completes the data
    other = replace(design, completed_by="model", chain_length=7.0, average=0.5, batch_size=8)
    other = replace(other, estimator="disarm" if name == "fashion" else None)
    again = {m: make_learner(other, pictures, m, pc.Engine("cpu"), seed=3) for m in learners}
    assert again["symmetric"].by is again["symmetric"].model and again["ours"].completion.model is again["ours"].model
    assert learners["ours"].completion.model is learners["ours"].averaged and again["ours"].chain_length(0) == 7.0
    assert again["vae"].estimator == ("disarm" if name == "fashion" else "pathwise")
    assert isinstance(learners["vae"].prior, Fixed) and isinstance(learners["vamp"].prior, Vamp)
    chosen, kept = compare_model.prior_of(design, pictures, "vamp", 3), learners["vamp"].prior.examples
    assert torch.equal(chosen.state["x"], kept["x"]) and len(kept["x"]) == design.pseudo == 12
    assert not torch.equal(compare_model.prior_of(design, pictures, "vamp", 4).state["x"], kept["x"])
    assert learners["vae"].estimator == ("gumbel" if name == "fashion" else "pathwise")
    for learner in again.values():
        assert learner.decay == 0.5 and learner.batch_size == 8
        assert (learner.completion.augment is not None) == (name == "faces")
    scales = {learner.model.variables["x"].scale for learner in learners.values()}
    assert scales == {DESIGNS[name].scale} and isinstance(DESIGNS[name].scale, float)


@pytest.mark.parametrize("latent", [*(replace(DESIGNS["faces"].latent, shape=s) for s in (6, (2, 8, 8), (1, 8, 8))),
                                    pc.Binary(5), pc.Binary((3, 7, 7))], ids=str)  # fmt: skip
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_codes_of_images_begin_with_the_moments_asked_for(latent, spread):
    """Mean zero and covariance spread^2, over images or over images and places; exactly, but for the floor."""
    design = DESIGNS["fashion" if isinstance(latent, pc.Binary) else "faces"]
    design = replace(small(design), width=16, most=16, latent=latent)
    torch.manual_seed(0)
    model = make_model(design, pc.Binary(3))
    data = pc.Data({"x": torch.rand(300, *design.image), "c": torch.randint(2, (300, 3)).float()})

    def means():
        q = model("z", data.state)
        mu = (q.logits if isinstance(latent, pc.Binary) else q.mu).detach()
        return q, mu.flatten(2).transpose(1, 2).flatten(0, 1) if mu.ndim == 4 else mu

    before, _ = means()
    compare_model.whiten(model, data, spread, floor=0.0)
    q, mu = means()
    torch.testing.assert_close(mu.mean(0), torch.zeros(mu.shape[1]), atol=1e-3 * spread, rtol=0)
    covariance = torch.atleast_2d(torch.cov(mu.T))
    torch.testing.assert_close(covariance, spread**2 * torch.eye(mu.shape[1]), atol=0.02 * spread**2, rtol=0)
    if isinstance(latent, pc.Real):
        torch.testing.assert_close(q.log_scale, before.log_scale)
    compare_model.whiten(model, data, spread, floor=1.0)  # S = 1 by now: what is added to it halves every variance
    torch.testing.assert_close(means()[1].var() / mu.var(), torch.tensor(0.5), atol=0.02, rtol=0)


@pytest.fixture
def folder(tmp_path):
    """Fashion-MNIST in small: noise."""
    generator = np.random.default_rng(0)
    target = tmp_path / "data" / "fashion"
    target.mkdir(parents=True)
    for split, rows in (("train", 60), ("t10k", 40)):
        write_idx(target / f"{split}-images-idx3-ubyte.gz", generator.integers(0, 256, (rows, 28, 28), dtype=np.uint8))
        write_idx(target / f"{split}-labels-idx1-ubyte.gz", np.arange(rows, dtype=np.uint8) % 10)
    return tmp_path


@pytest.fixture
def unverified(monkeypatch):
    """The real loader refuses files that are not the original ones."""
    monkeypatch.setattr(compare_model.datasets, "fashion", partial(pc.datasets.fashion, verify=False))


def command(folder, *more):
    """Where the results will be, and the command for them."""
    out = folder / "out"
    places = ["--only", "fashion", "--data", str(folder / "data"), "--out", str(out), "--device", "cpu"]
    return out, ["reproduce", "compare", *places, *more]


def test_a_run_in_two_time_boxes(folder, unverified, capsys):
    out, options = command(folder, "--quick", "--seeds", "2", "--lengths", "1", "2")
    cli.main([*options, "--minutes", "0"])
    assert "the time is over before fashion vae-4; continue with --resume" in capsys.readouterr().out
    cli.main([*options, "--methods", "vae"])
    with pytest.raises(SystemExit, match="vae-4 has results: continue with --resume"):
        cli.main(options)
    before = (out / "fashion" / "vae-4" / "found.json").read_text()
    cli.main([*options, "--resume"])
    assert (out / "fashion" / "vae-4" / "found.json").read_text() == before
    with pytest.raises(SystemExit, match="vae-4 was trained with updates 10 instead of 7: choose another --out"):
        cli.main([*options, "--resume", "--updates", "7"])
    record = json.loads((out / "results.json").read_text())
    names = {metric["name"]: metric for metric in record["metrics"]}
    for method in ("vae", "symmetric", "ours"):
        for column in ("gap", "disagreement", "half_accuracy", "bits", "seconds_train", "seconds_10k_limiting"):
            assert names[f"fashion_{method}_{column}"]["std"] is not None
    assert "fashion_vae_seconds_10k_random" in names and "fashion_ours_seconds_10k_random" not in names
    first, length = (json.loads((out / "fashion" / run / "found.json").read_text()) for run in ("ours-4", "length-1-4"))
    assert names["fashion_ours_length_2_gap"]["value"] == first["gap"]  # the usual one, of the first seed
    assert names["fashion_ours_length_1_gap"]["value"] == length["gap"] and length["settings"]["chain_length"] == "1.0"
    assert not list(out.glob("fashion/*/checkpoint"))
    assert (out / "report.html").read_text().count("data:image/png;base64,") == 1


class MeanColour(torch.nn.Module):
    """Stands in for Inception: the means of 3 x 3 patches."""

    def forward(self, images):
        return torch.nn.functional.adaptive_avg_pool2d(images, 3).flatten(1)


@pytest.fixture
def measured_small(unverified, monkeypatch):
    """All but the size, and the network of the FID."""
    load = classmethod(lambda cls, **_: Extractor(MeanColour(), "a test"))
    monkeypatch.setattr(Extractor, "load", load)
    monkeypatch.setattr(compare_setup, "DESIGNS", {k: small(d) for k, d in DESIGNS.items()})
    monkeypatch.setattr(compare, "TRIAL", 20)
    monkeypatch.setattr(compare.measures, "SWEEPS", 2)


def test_with_a_fid_the_table_has_its_cells_and_orders(folder, measured_small, monkeypatch, capsys):
    """The names that are asked for, with spreads over seeds; both orders; all figures."""
    monkeypatch.setattr(compare, "MILESTONES", (0.01,))
    sizes = ["--seeds", "2", "--generated", "50", "--updates", "20", "--lengths", "1", "4"]
    out, options = command(folder, *sizes)
    cli.main(options)
    metrics = {m["name"]: m for m in json.loads((out / "results.json").read_text())["metrics"]}
    for name in ("vae_random", "vae_limiting", "symmetric_random", "symmetric_limiting", "ours_limiting"):
        assert metrics[f"fashion_{name}"]["std"] is not None
        assert metrics[f"fashion_{name}"]["paper"] == compare_table.PAPER[f"fashion_{name}"]
    assert "fashion_ours_random" not in metrics
    assert {"fashion_ours_before_symmetric", "fashion_symmetric_before_vae", "fashion_floor"} <= set(metrics)
    assert {"fashion_vae_limiting_from_data", "fashion_ours_limiting_from_random"} <= set(metrics)
    assert (out / "report.html").read_text().count("data:image/png;base64,") == 3

    def missing(cls, **_):
        raise AssertionError("the page is made from what was found, without any Inception weights")

    monkeypatch.setattr(Extractor, "load", classmethod(missing))
    (out / "results.json").unlink()
    for pictures in out.glob("fashion/*/pictures.safetensors"):  # numbers may travel without them
        pictures.unlink()
    cli.main([*options, "--resume"])
    assert (out / "report.html").read_text().count("data:image/png;base64,") == 2
    record = json.loads((out / "results.json").read_text())
    assert {m["name"]: m for m in record["metrics"]} == metrics
    assert {"command", "commit", "hardware", "torch"} == set(record["runs"]["fashion vae-4"]["origin"])
    assert record["runs"]["fashion vae-4"]["features"].startswith("Inception features of a test")
    page = (out / "report.html").read_text()
    assert "learned in 3 ways: as a VAE, by symmetric equilibrium learning, by the paper" in page
    for what, sweeps, alone in (("real images", 100, True), ("random codes", 100, False), ("random codes", 400, True)):
        assert (f"{sweeps} sweeps from {what}; first seed alone" in page) == alone
    from_random = {run for run, numbers in record["runs"].items() if "limiting_from_random" in numbers}
    assert from_random == {f"fashion {method}-{seed}" for method in ("vae", "symmetric", "ours") for seed in (4, 5)}
    saved = {model.parent.name: pc.JointModel.load(model) for model in out.glob("fashion/*/model")}
    assert set(saved) == {"vae-4", "symmetric-4", "ours-4"}
    assert set(pc.sample(saved["ours-4"], {"c": torch.tensor([9])}, sweeps=1)) == {"x", "z", "c"}
    drawn = ["sample", str(out / "fashion" / "ours-4" / "model"), "--sweeps", "1", "--out", str(out / "drawn")]
    with pytest.raises(SystemExit, match="'c' must be given"):
        cli.main(drawn)
    cli.main([*drawn, "--given", "c=9", "--rows", "3"])
    assert np.load(out / "drawn" / "samples.npz")["x"].shape == (3, 1, 28, 28)


def test_a_vampprior_is_one_more_column(folder, measured_small, monkeypatch):
    """Its random codes are of its own prior, wherever they are drawn: of images that are not measured or shown."""
    monkeypatch.setattr(compare, "MILESTONES", (0.001,))
    out, options = command(folder, "--seeds", "1", "--generated", "30", "--updates", "20", "--lengths")
    priors, draw = [], directed.random_code

    def noted(model, latent, given, *, prior, seed):
        priors.append(prior)
        return draw(model, latent, given, prior=prior, seed=seed)

    bounds, elbo = [], directed.elbo

    def bounded(*what, prior, **options):
        bounds.append(prior)
        return elbo(*what, prior=prior, **options)

    monkeypatch.setattr(directed, "random_code", noted)
    monkeypatch.setattr(directed, "elbo", bounded)
    cli.main([*options, "--methods", "vae", "vamp"])
    assert bounds[0] is None and torch.equal(bounds[1].state["x"], priors[-1].state["x"])
    half = len(priors) // 2  # on the way, at the end, and for chains from there
    assert half >= 3 and priors[:half] == [None] * half and [len(prior) for prior in priors[half:]] == [12] * half
    config = compare.Config(data=folder / "data", only="fashion", device="cpu", generated=30)
    session = compare_setup.load_setup(config, "fashion")
    shown = compare_evaluation.examples(session, 30, 4).state["x"].flatten(1)
    assert not (priors[-1].state["x"].flatten(1)[:, None] == shown).all(2).any()
    metrics = {m["name"] for m in json.loads((out / "results.json").read_text())["metrics"]}
    assert {"fashion_vamp_random", "fashion_vamp_limiting", "fashion_vae_random"} <= metrics
    page = (out / "report.html").read_text()
    assert "<th>VAE</th><th>VAE, VampPrior</th></tr>" in page
    assert "in 2 ways: as a VAE, as a VAE whose prior is made of the codes of some training images" in page


def test_rows_of_fewer_seeds_say_so():
    """Where a method has fewer than others have, or than the same has of other numbers."""
    found = {Run("fashion", m, k): {"gap": 1.0, "bits": 2.0} for m in ("vae", "ours") for k in (4, 5, 6)}
    for (method, seed), keys in {
        ("vae", 4): ("elbo", "gap_longer"),
        ("vae", 5): ("elbo",),
        ("ours", 4): ("elbo",),
    }.items():
        found[Run("fashion", method, seed)] |= dict.fromkeys(keys, 3.0)
    ends = {key: about for key in ("gap", "elbo", "bits", "gap_longer") for about in [compare_table.COLUMNS[key][1]]}
    ends["elbo"] += "; 1 to 2 of 3 seeds"
    ends["gap_longer"] += "; first seed alone"
    assert [row[0] for row in compare_table.beyond_the_paper(found, "fashion")] == list(ends.values())
    assert compare_table.COLUMNS["elbo"][0] == "higher"


def test_orders_are_in_standard_errors():
    """Means 10 and 14, variances 1 over 3 seeds and 4 over 2: 4 / sqrt(1 / 3 + 4 / 2)."""
    values = {"ours": [9.0, 10.0, 11.0], "symmetric": [14 - 2**0.5, 14 + 2**0.5], "vae": [20.0]}
    found = {Run("fashion", m, k): {"limiting": v} for m, each in values.items() for k, v in enumerate(each)}
    (order,) = compare_table.orders(found, "fashion")
    assert order.name == "fashion_ours_before_symmetric" and order.goal == 2.0
    assert order.value == pytest.approx(4 / (1 / 3 + 4 / 2) ** 0.5)
    row = ["fashion, limiting", "20.00 (52.66)", "14.00 ± 2 (47.24)", "10.00 ± 1 (35.87)"]
    assert compare_table.beside_the_paper(found)[1] == row
    found = {
        run: {"gap": 10 * n["limiting"], "half_error": 0.2} for run, n in found.items() if run.method != "symmetric"
    }
    table = {about.split(" ")[0]: cells for about, *cells in compare_table.beyond_the_paper(found, "fashion")}
    assert table == {"inconsistency,": ["200", "100 ± 10"], "error": ["0.200", "0.200 ± 0"]}


@pytest.mark.parametrize(("low", "high", "ticks"), [(0.9, 60.0, [1, 2, 5, 10, 20, 50]), (31.2, 33.3, [32, 33])])
def test_a_logarithmic_axis_has_few_round_numbers(low, high, ticks):
    axes = Figure().subplots()
    axes.set_ylim(low, high)
    compare_report.logarithmic(axes, "y")
    shown = [value for value in axes.get_yticks() if low <= value <= high]
    assert set(shown) >= set(ticks) and len(shown) < 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ("gan",)}, "each of --methods must be one of vae, symmetric, ours, vamp, found 'gan'"),
        ({"methods": ()}, "--methods needs some of vae, symmetric, ours, vamp, found none"),
        ({"seeds": 0}, "--seeds must be a whole number, at least 1, found 0"),
        ({"lengths": (0, 2)}, "each of --lengths must be a whole number, at least 1, found 0"),
        ({"updates": 0}, "--updates must be a whole number, at least 1, found 0"),
        ({"generated": 1}, "--generated must be a whole number, at least 2, found 1"),
        ({"minutes": -1.0}, "--minutes must not be negative, found -1.0"),
        ({"estimator": "foo"}, "--estimator must be one of gumbel, straight-through, disarm, found 'foo'"),
        ({"estimator": "disarm", "only": "faces"}, "--estimator needs binary codes; the codes of faces are real"),
    ],
)
def test_what_is_refused(change, message, tmp_path):
    with pytest.raises(pc.InputError, match=message):
        compare.main(compare.Config(out=tmp_path, **change))


def test_a_training_goes_on_as_it_was_begun(folder, unverified, capsys):
    """Cut off in the middle, too, where there are no results yet; and what is refused changes nothing."""
    out, options = command(folder, "--quick", "--seeds", "1", "--lengths")
    ours = [*options, "--methods", "ours"]
    cli.main([*ours, "--resume", "--updates", "100000", "--minutes", "0.02"])
    assert "continue with --resume" in capsys.readouterr().out
    assert (out / "fashion" / "ours-4" / "checkpoint").is_dir()
    wrong = "ours-4 was trained with updates 100000 instead of 300, compile False instead of True: choose another --out"
    with pytest.raises(SystemExit, match="ours-4 has a checkpoint: continue with --resume, or choose another --out"):
        cli.main([*ours, "--updates", "300"])
    for _ in range(2):
        with pytest.raises(SystemExit, match=wrong):
            cli.main([*ours, "--resume", "--updates", "300", "--compile"])
    with pytest.raises(SystemExit, match=r"trained with updates 100000 instead of 10: choose"):
        cli.main([*options, "--resume"])  # all methods: said before the first of them is learned
    assert not (out / "fashion" / "vae-4").exists()
    of_others = ["--estimator", "disarm"]  # which ours does not depend on
    cli.main([*ours, *of_others, "--resume", "--updates", "100000", "--minutes", "0.02"])
    assert "continue with --resume" in capsys.readouterr().out


def test_settings_of_a_run_are_those_that_its_method_has(folder, unverified):
    config = compare.Config(data=folder / "data", only="fashion", quick=True, device="cpu", generated=50)
    session = compare_setup.load_setup(config, "fashion")
    own = {"vae": {"estimator"}, "symmetric": {"completed_by"}, "ours": {"completed_by", "chain_length"}}
    for method, names in {**own, "vamp": {"estimator", "pseudo"}}.items():
        settings = session.settings(Run("fashion", method, 4))
        assert set(settings) & {"estimator", "completed_by", "chain_length", "pseudo"} == names
        assert {"latent", "scale", "updates", "batch_size", "generated", "extras"} <= set(settings)
        assert settings.get("estimator", "gumbel") == "gumbel"


def test_numbers_are_those_of_the_machine_that_made_them():
    origins = [{"command": k, "commit": k, "hardware": "H200", "torch": "2.11"} for k in ("b", "a")]
    found = {Run("fashion", "vae", seed): {"origin": origin} for seed, origin in enumerate(origins)}
    assert compare.made_on(found) == {"commit": "a, b", "hardware": "H200", "torch": "2.11"}


def test_a_quick_run_is_of_few_trainings():
    config = compare_setup.reduced(compare.Config(quick=True))
    assert (config.seeds, config.lengths) == (2, (1, 2))
    assert compare_setup.reduced(compare.Config()) == compare.Config()


def test_a_crash_after_the_training_leaves_its_curve_alone(folder, measured_small, monkeypatch, capsys):
    """And that has updates of each conditional, which the learner of ours makes two steps for."""
    out, options = command(folder, "--seeds", "1", "--generated", "50", "--lengths", "--methods", "ours")
    evaluate = compare.evaluate
    monkeypatch.setattr(compare, "evaluate", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(options)
    monkeypatch.setattr(compare, "evaluate", evaluate)
    kept = json.loads((out / "fashion" / "ours-4" / "milestones.json").read_text())
    cli.main([*options, "--resume"])
    found = json.loads((out / "fashion" / "ours-4" / "found.json").read_text())
    assert [point["updates"] for point in found["curve"]] == [10] and kept["found"][-1]["updates"] == 20
    assert found["seconds_train"] == kept["trained"]


def test_every_number_is_of_what_its_name_says(folder, unverified, monkeypatch):
    """The states that FIDs and classes are measured on, told apart by what makes them."""
    out = folder / "out"
    config = compare.Config(out=out, data=folder / "data", only="fashion", quick=True, device="cpu", generated=50)
    session = compare.load_setup(config, "fashion")
    calls = []

    def limiting(model, c, seed, sweeps, init=None):
        calls.append((c, sweeps, init))
        return {**drawn, "c": c, "x": drawn["x"] + len(calls)}

    design = session.design
    model = make_model(design, session.pictures.context)
    count = 50
    real = {"x": torch.full((count, 1, 28, 28), 0.25), "z": torch.ones(count, *design.latent.event_shape)}
    real["c"] = torch.zeros(count).long()
    drawn = {name: torch.zeros_like(value) for name, value in real.items()}
    codes = {**drawn, "x": drawn["x"] - 5}
    monkeypatch.setattr(measures, "limiting", limiting)
    monkeypatch.setattr(measures, "coded", lambda *_: real)
    monkeypatch.setattr(measures, "random_codes", lambda *_: codes)
    monkeypatch.setattr(measures, "shown", lambda model, state: state["x"])
    monkeypatch.setattr(measures, "half_accuracy", lambda model, pictures, state, images: float(state["x"].mean()))
    gap = partial(pc.diagnostics.Consistency, error=0.0, by_group={})
    monkeypatch.setattr(measures, "gap", lambda model, state, **_: gap(float(state["x"].mean())))
    monkeypatch.setattr(measures, "disagreement", lambda family, clamped, other: float((clamped - 2 * other).mean()))
    monkeypatch.setattr(measures, "timed", lambda model, make: ((state := make()), state["x"], 3.0))
    monkeypatch.setattr(compare.Setup, "score", lambda self, name, images: {name: float(images.mean())})
    monkeypatch.setattr(compare.Config, "count", lambda self, count, quick: {10_000: 50, 100: 7}.get(count, count))
    found, pictures = compare_evaluation.evaluate(session, Run("fashion", "vae", config.seed), model)
    assert (found["limiting"], found["random"], found["reconstruction"]) == (1, -5, 0.25)
    assert (found["half_accuracy"], found["half_accuracy_random"], found["gap"]) == (1, -5, 1)
    bound = directed.elbo(model, session.pictures.test, seed=config.seed)
    assert found["elbo"] == pytest.approx(float(bound.mean()))
    names = ("from_random", "longer", "one_sweep", "from_data", "from_random_longer")
    assert [found[f"limiting_{name}"] for name in names] == [2, 3, 4, 5, 6]
    assert (found["gap_longer"], found["disagreement"]) == (3, 1)
    assert found["seconds_10k_limiting"] == found["seconds_10k_random"] == 3 * 10_000 / count
    assert [sweeps for _, sweeps, _ in calls] == [7, 7, 28, 1, 7, 28]
    assert calls[0][2] is calls[2][2] is calls[3][2] is None
    assert calls[1][2]["z"] is calls[5][2]["z"] is codes["z"]
    assert calls[4][2]["z"] is real["z"] and calls[4][0] is real["c"]
    assert set(pictures) == {"real", "reconstruction", "limiting", "random"}


def test_trials_of_designs_are_measured_once(folder, unverified, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "research"))
    import compare_trial

    trials = ("flat", "vae", '{"bits": 6, "updates": 4}', "again", "ours", '{"updates": 4}')
    config = compare_trial.Config("fashion", trials, out=tmp_path / "out", data=folder / "data", quick=True)
    compare_trial.main(config)
    lines = [json.loads(line) for line in (tmp_path / "out" / "trials.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == ["flat", "again"] and lines[0]["changes"]["bits"] == 6
    assert "elbo" in lines[0] and "elbo" not in lines[1]
    assert all(line["sigma"] > 0 and (tmp_path / "out" / line["name"] / "images.png").is_file() for line in lines)
    capsys.readouterr()
    compare_trial.main(config)
    assert capsys.readouterr().out.count("was begun before") == 2
    assert compare_trial.changed(DESIGNS["fashion"], {"codes": [2, 8, 8]}).latent.event_shape == (2, 8, 8)
    with pytest.raises(SystemExit, match="a design has no units"):
        compare_trial.changed(DESIGNS["fashion"], {"units": True})
