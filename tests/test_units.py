"""The units of real latents: against moments in closed form, and in a learner whose codes begin far too large."""

import pytest
import torch
from helpers import DEVICES
from torch import nn

import paracond as pc
from paracond.units import EVERY, Units

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


def test_no_direction_has_a_variance_over_one_and_others_stay():
    """Codes of known moments: the map is V diag(min(1, l^-1/2)) V^T, and what comes out has variances min(1, l)."""
    model, generator = latent_model(), torch.Generator().manual_seed(1)
    units, rows = Units(model, ["z"], unobserved(model)), 4000
    pool = {"x": torch.empty(rows, 4), "z": torch.empty(rows, 3)}
    for _ in range(300):
        pool["z"].copy_(codes_of(rows, generator))
        raw = pool["z"].clone()
        units.renew()
        units.hold(pool)
    directions, expected = turned(), SIZES.clamp(min=1).rsqrt()
    exact = directions * expected @ directions.T
    torch.testing.assert_close(units.map["z"], exact, atol=0.02, rtol=0)
    torch.testing.assert_close(pool["z"], (raw - MEAN) @ exact, atol=0.2, rtol=0)
    found = torch.cov(pool["z"].T)
    torch.testing.assert_close(found, directions * SIZES.clamp(max=1) @ directions.T, atol=0.1, rtol=0)


def test_codes_that_are_small_are_only_centred():
    model, generator = latent_model(), torch.Generator().manual_seed(1)
    units = Units(model, ["z"], unobserved(model))
    for _ in range(400):
        pool = {"z": 0.1 * torch.randn(500, 3, generator=generator) + 2}
        raw = pool["z"].clone()
        units.renew()
        units.hold(pool)
    torch.testing.assert_close(pool["z"], raw - 2, atol=0.01, rtol=0)


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
    groups = {"x": pc.Real(8, scale=0.1), "z": pc.Real(2, scale=0.01)}
    model = pc.JointModel({"x": pc.Conditional(groups["x"], decoding), "z": pc.Conditional(groups["z"], encoder)})
    data = pc.Data({"x": x})
    learner = pc.Learner(model.to(device), data, chain_length=2, batch_size=256, learning_rate=0.01, **options)
    return learner, data


def codes_after(learner, data, steps):
    learner.fit(steps, progress=False)
    state = pc.sample(learner.averaged, data.state, sweeps=1)
    codes = state["z"].cpu()
    error = learner.averaged("x", state).mean.cpu() - data.state["x"]
    return codes.mean(0), torch.linalg.eigvalsh(torch.cov(codes.T)), float(error.square().mean().sqrt())


@pytest.mark.parametrize("device", DEVICES)
def test_a_conditional_comes_to_draw_codes_in_their_units(device):
    """From codes with mean 5 and variances of 36: without units both stay, with them both are of the order of one, and
    images (of deviation 1.5) are decoded either way."""
    learner, data = line_learner(device, units=["z"])
    mean, sizes, error = codes_after(learner, data, 3000)
    torch.testing.assert_close(learner.completion.units.map["z"].cpu(), torch.eye(2), atol=0.05, rtol=0)
    assert float(mean.abs().max()) < 0.3 and 0.5 < float(sizes[-1]) < 1.3 and error < 0.2
    mean, sizes, error = codes_after(*line_learner(device), 3000)
    assert float(mean.abs().min()) > 3 and float(sizes[-1]) > 10 and error < 0.2


def test_codes_in_their_units_are_not_what_their_conditional_learns_from():
    """They count as drawn afresh, so the learner leaves them out where they have just been completed."""
    learner, _ = line_learner("cpu", units=["z"], completion_steps=1)
    learner.completion.fill()
    assert learner.completion.redrawn["z"].all() and not learner.completion.redrawn["x"].any()
    learner, _ = line_learner("cpu", units=["z"], form="literal", scan="systematic")
    before = [p.clone() for p in learner.model.conditional("z").parameters()]
    learner._replace_due(2.0)
    learner.update["z"]()
    after = learner.model.conditional("z").parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_maps_follow_every_so_often():
    learner, _ = line_learner("cpu", units=["z"], completion_steps=1)
    source, one = learner.completion, torch.eye(2)
    for _ in range(EVERY - 1):
        source.fill()
    assert torch.equal(source.units.map["z"], one)
    source.fill()
    assert not torch.equal(source.units.map["z"], one) and source.fills == EVERY


def test_units_are_of_real_latents():
    for family, seen, message in (
        (pc.Binary(3), False, "'z' has no units to hold: these are of Real groups"),
        (None, True, "'z' has no units to hold: these are of Real groups that are observed nowhere"),
    ):
        model = latent_model(family)
        observed = {**unobserved(model), "z": torch.tensor([[seen, False, False]])}
        with pytest.raises(pc.InputError, match=message):
            Units(model, ["z"], observed)
