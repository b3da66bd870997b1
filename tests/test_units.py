"""The units of real latents: against moments in closed form, and in a learner whose codes begin far too large."""

import pytest
import torch
from helpers import DEVICES
from torch import nn

import paracond as pc
from paracond.families import Gaussian
from paracond.units import EVERY, PULL, Units

MEAN = torch.tensor([3.0, -1.0, 0.5])
SIZES = torch.tensor([9.0, 1.0, 0.04])  # variances along three directions


def turned():
    """Three directions at right angles."""
    return torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))[0]


def codes_of(rows, generator):
    return MEAN + torch.randn(rows, 3, generator=generator) * SIZES.sqrt() @ turned().T


def latent_model(family=None):
    groups = {"x": pc.Real(4, scale=0.2), "z": family or pc.Real(3, scale=0.1)}
    nets = {name: pc.networks.mlp(groups, name, hidden=16, depth=1) for name in groups}
    return pc.JointModel({name: pc.Conditional(f, nets[name]) for name, f in groups.items()})


def unobserved(model, rows=1):
    return {name: torch.zeros(rows, *f.event_shape, dtype=torch.bool) for name, f in model.variables.items()}


def test_moments_follow_and_what_exceeds_one_is_found():
    """Codes of known moments: P = V diag(max(0, 1 - 1/l)) V^T."""
    model, generator = latent_model(), torch.Generator().manual_seed(1)
    units = Units(model, ["z"], unobserved(model))
    for _ in range(300):
        units.watch({"z": codes_of(4000, generator)})
    units.renew()
    directions = turned()
    torch.testing.assert_close(units.mean["z"], MEAN, atol=0.05, rtol=0)
    torch.testing.assert_close(units.covariance["z"], directions * SIZES @ directions.T, atol=0.15, rtol=0)
    exact = directions * torch.tensor([8 / 9, 0.0, 0.0]) @ directions.T
    torch.testing.assert_close(units.excess["z"], exact, atol=0.02, rtol=0)


def test_the_gradient_of_the_term():
    """In mu: PULL (P (mu - m) + m), over the rows; nothing where all variances are under one and the mean is zero."""
    model, generator = latent_model(), torch.Generator().manual_seed(1)
    units = Units(model, ["z"], unobserved(model))
    mu = torch.randn(5, 3, generator=generator, requires_grad=True)
    given = Gaussian(mu, torch.zeros(()))
    assert units.term("x", given) is None and float(units.term("z", given).detach()) == 0.0
    units.mean["z"].copy_(MEAN)
    units.covariance["z"].copy_(turned() * SIZES @ turned().T)
    units.renew()
    units.term("z", given).backward()
    excess = turned() * torch.tensor([8 / 9, 0.0, 0.0]) @ turned().T
    torch.testing.assert_close(mu.grad, PULL * ((mu.detach() - MEAN) @ excess + MEAN) / 5)


class Line(nn.Module):
    """b + W v of the one other group."""

    def __init__(self, weight):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(torch.zeros(len(weight)))

    def forward(self, others):
        (value,) = others.values()
        return value @ self.weight.T + self.bias


def line_learner(device, **options):
    """x = D u + noise, u ~ N(0, 1) in R^2, and a model that is right but for its units: codes z = 6 u + 5."""
    generator = torch.Generator().manual_seed(0)
    decoder = torch.randn(8, 2, generator=generator)
    u = torch.randn(4000, 2, generator=generator)
    x = u @ decoder.T + 0.1 * torch.randn(4000, 8, generator=generator)
    encoder = Line(6 * torch.linalg.pinv(decoder))
    encoder.bias.data += 5
    decoding = Line(decoder / 6)
    decoding.bias.data -= (decoder / 6) @ torch.full((2,), 5.0)
    groups = {"x": pc.Real(8, scale=0.1), "z": pc.Real(2, scale=0.3)}
    model = pc.JointModel({"x": pc.Conditional(groups["x"], decoding), "z": pc.Conditional(groups["z"], encoder)})
    data = pc.Data({"x": x})
    options = {"chain_length": 2} | options
    learner = pc.Learner(model.to(device), data, batch_size=256, learning_rate=0.01, **options)
    return learner, data


def codes_after(learner, data, steps):
    learner.fit(steps, progress=False)
    state = pc.sample(learner.averaged, data.state, sweeps=1)
    codes = state["z"].cpu()
    error = learner.averaged("x", state).mean.cpu() - data.state["x"]
    return codes.mean(0), torch.linalg.eigvalsh(torch.cov(codes.T)), float(error.square().mean().sqrt())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("beside", [False, True])
def test_a_conditional_comes_to_draw_codes_in_their_units(device, beside):
    """From codes with mean 5 and variances of 36: without units both stay, with them they fall towards zero and one
    (ever more slowly), and images (of deviation 1.5) are decoded either way."""
    mean, sizes, error = codes_after(*line_learner(device, units=["z"], beside=beside), 3000)
    assert float(mean.abs().max()) < 0.5 and 0.5 < float(sizes[-1]) < 4 and error < 0.3
    mean, sizes, error = codes_after(*line_learner(device, beside=beside), 3000)
    assert float(mean.abs().min()) > 3 and float(sizes[-1]) > 10 and error < 0.3


def test_the_units_are_looked_at_every_so_often():
    learner, _ = line_learner("cpu", units=["z"], form="literal", chain_length=1)
    zero = torch.zeros(2, 2)
    learner.fit(EVERY - 1, progress=False)
    assert torch.equal(learner.units.excess["z"], zero) and not torch.equal(learner.units.covariance["z"], torch.eye(2))
    learner.fit(1, progress=False)
    assert not torch.equal(learner.units.excess["z"], zero) and learner.pools == EVERY


def test_units_are_of_real_latents():
    for family, seen, message in (
        (pc.Binary(3), False, "'z' has no units to hold: these are of Real groups"),
        (None, True, "'z' has no units to hold: these are of Real groups that are observed nowhere"),
    ):
        model = latent_model(family)
        observed = {**unobserved(model), "z": torch.tensor([[seen, False, False]])}
        with pytest.raises(pc.InputError, match=message):
            Units(model, ["z"], observed)
