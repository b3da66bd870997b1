"""The rate and the warm-up that are chosen: long tours where conditionals are right, short ones where chains drift."""

import math

import pytest
import torch
from helpers import Pairwise
from torch import nn

import paracond as pc
from paracond import initializers, regeneration
from paracond.regeneration import CANDIDATES, choose_regeneration, distances, tour_length


def draws(joint, rows, seed):
    """Exact draws from a known joint, by enumeration."""
    states, p, means = joint.joint()
    generator = torch.Generator().manual_seed(seed)
    at = torch.multinomial(p, rows, replacement=True, generator=generator)
    noise = joint.variables["x"].scale * torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    return {name: value[at] for name, value in states.items()} | {"x": means[at] + noise}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tours_of_a_consistent_joint_are_long_and_its_answers_right(seed):
    """The chosen bias is not seen: marginals of 40 clamped questions are within 4.5 standard errors of the joint."""
    groups = {"u": pc.Binary(4), "c": pc.Categorical(4), "x": pc.Real(3, scale=0.8)}
    joint = Pairwise(groups, seed=seed)
    joint.model.regeneration = choose_regeneration(joint.model, draws(joint, 2000, seed), rows=1000, seed=seed)
    assert tour_length(joint.model.regeneration) >= 100
    states, p, means = joint.joint()
    given = {name: value[:40] for name, value in draws(joint, 40, seed + 10).items()}
    answer = pc.query(joint.model, {"x": given["x"]}, ["u", "c"], stop=pc.Tours(200))
    law = torch.distributions.Normal(means, torch.tensor(0.8, dtype=torch.float64))
    posterior = (law.log_prob(given["x"][:, None]).sum(2) + p.log()).softmax(1)
    for name in ("u", "c"):
        exact = posterior @ groups[name].encode(states[name]).double().reshape(len(p), -1)
        gap = (answer.probabilities[name].reshape(exact.shape) - exact).abs()
        assert bool((gap <= 4.5 * answer.error[name].reshape(exact.shape) + 1e-3).all())


class Slope(nn.Module):
    """The mean a x_other of a real group."""

    def __init__(self, other, slope):
        super().__init__()
        self.other, self.reads = other, (other,)
        self.line = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.line.weight.copy_(slope * torch.eye(2))

    def forward(self, others):
        return self.line(others[self.other])


def drifting(excess):
    """Two correlated pairs of numbers with standard deviation one. Both conditionals have slope rho, and standard
    deviation sqrt(1 - rho^2) times `excess`: chains widen slowly to a standard deviation of `excess`."""
    rho = 0.95
    groups = {name: pc.Real(2, scale=excess * math.sqrt(1 - rho**2)) for name in "xz"}
    init = {name: initializers.pca(groups, name, list(other), rank=1) for name, other in (("x", ""), ("z", "x"))}
    parts = {"x": Slope("z", rho), "z": Slope("x", rho)}
    model = pc.JointModel({name: pc.Conditional(groups[name], parts[name], init[name]) for name in "xz"})
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6000, 2, generator=generator)
    z = rho * x + math.sqrt(1 - rho**2) * torch.randn(6000, 2, generator=generator)
    data = pc.Data({"x": x, "z": z})
    initializers.fit(model, data[:3000])
    return model, data[3000:]


def test_tours_of_a_chain_that_drifts_are_short():
    """Beginnings are right and the chain is wrong: its variance grows to 1.5^2 with a time constant of ten sweeps."""
    model, held_out = drifting(1.5)
    found = distances(model, held_out, rows=3000)
    chosen = found.chosen
    assert tour_length(chosen) <= 15
    variance = float(pc.sample(model, rows=20_000, regeneration=chosen)["x"].var())
    limit = float(pc.sample(model, rows=20_000, regeneration=pc.Regeneration(0.01, 100))["x"].var())
    assert variance < 1.4 < 2.0 < limit
    model, held_out = drifting(1.0)  # and where the chain is right, they are long
    assert tour_length(choose_regeneration(model, held_out, rows=3000)) >= 100


def test_what_is_missing_of_held_out_rows_is_drawn():
    """A latent group, and labels of some rows."""
    joint = Pairwise({"u": pc.Binary(4), "c": pc.Categorical(4), "x": pc.Real(3, scale=0.8)}, seed=0)
    state = draws(joint, 800, 0)
    holes = pc.Data({"x": state["x"], "c": state["c"]}, {"c": torch.arange(800) % 2 == 0})
    assert tour_length(choose_regeneration(joint.model, holes, rows=800)) >= 30


def test_the_distance_is_that_of_gaussians_and_its_error_is_right():
    """The Frechet distance by its definition, and the standard error of a difference by repetition."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    real = torch.randn(4000, 6, generator=generator, dtype=torch.float64) @ mix
    near, far = 1.05 * torch.eye(6, dtype=torch.float64), 1.15 * torch.eye(6, dtype=torch.float64)
    reference = regeneration._Reference(real)
    one = torch.randn(3000, 6, generator=generator, dtype=torch.float64) @ mix @ near + 0.1
    value, _, _ = reference.distance(one)
    scaled, s = (one - real.mean(0)) / real.std(0), (real - real.mean(0)) / real.std(0)
    a, b = torch.cov(s.T), torch.cov(scaled.T)
    roots = torch.linalg.eigvals(a @ b).sqrt().real.sum()
    exact = (scaled.mean(0).square().sum() + torch.trace(a) + torch.trace(b) - 2 * roots) / 6
    torch.testing.assert_close(value, exact)
    differences, errors = [], []
    for _ in range(60):
        rows = torch.randn(1000, 6, generator=generator, dtype=torch.float64) @ mix
        noise = torch.randn(2, 1000, 6, generator=generator, dtype=torch.float64) @ mix
        layers = torch.stack([noise[0] @ near, noise[1] @ far])  # two ages
        places = [torch.zeros(1000, dtype=torch.long), torch.ones(1000, dtype=torch.long)]
        found = regeneration._compared([regeneration._Reference(rows)], [layers], CANDIDATES[:2], places)
        differences.append(float(found.distance[1] - found.distance[0]))
        errors.append(float(found.error.max()))
    spread = torch.tensor(differences).std()
    assert 0.75 < float(torch.tensor(errors).mean() / spread) < 1.33  # 60 repetitions know it within 10%


def test_ages_are_geometric_after_the_warm_up():
    ages = regeneration._ages(700)
    assert ages[:4] == [0, 1, 2, 4] and ages[-1] >= 700
    for candidate in (pc.Regeneration(0.1, 0), pc.Regeneration(0.03, 10), pc.Regeneration(1.0, 3)):
        places = regeneration._places(candidate, ages, 200_000, torch.Generator().manual_seed(0))
        mean = float(torch.tensor(ages, dtype=torch.float64)[places].mean())
        assert mean == pytest.approx(candidate.warmup + 1 / candidate.rate - 1, rel=0.01)  # the grid keeps the mean


def test_fit_chooses_and_the_model_remembers(tmp_path):
    data = pc.datasets.digits()
    groups = {"x": pc.Real(64, scale="coordinate"), "c": pc.Categorical(10)}
    torch.manual_seed(0)
    model = pc.JointModel({n: pc.Conditional(f, pc.networks.mlp(groups, n, hidden=16)) for n, f in groups.items()})
    learner = pc.Learner(model, data[:1000])
    found = learner.fit(20, held_out=data[1000:])
    assert found.regeneration in CANDIDATES and learner.model.regeneration == found.regeneration
    found.save(tmp_path / "model")
    assert pc.JointModel.load(tmp_path / "model").regeneration == found.regeneration


def test_bad_arguments_are_refused():
    model, held_out = drifting(1.0)
    with pytest.raises(pc.InputError, match="at least 100 rows to compare with, found 50"):
        choose_regeneration(model, held_out[:50])
    with pytest.raises(pc.InputError, match="rows must be a whole number, at least 100"):
        choose_regeneration(model, held_out, rows=10)
    with pytest.raises(pc.InputError, match=r"candidates must be a list of Regeneration.*found \[\]"):
        choose_regeneration(model, held_out, candidates=[])
