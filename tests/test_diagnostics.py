"""Diagnostics against exact values, and the collapse of latents: it must be seen, and the defaults must hold it off."""

import pytest
import torch
from helpers import SIGMAS, Linear, Pairwise, random_joint, random_tables, table_model

import paracond as pc
from paracond import exact
from paracond.diagnostics import consistency, latent_usage, mixing


@pytest.mark.parametrize("alpha", [None, [0.6, 0.3, 0.1]])
def test_the_consistency_estimate_is_the_detailed_balance_gap(alpha):
    model = table_model(random_tables((2, 3, 2), seed=1, strength=1.5), alpha)
    gap = exact.detailed_balance_gap(exact.enumerate_model(model).kernel)
    found = consistency(model, chains=4000, warmup=60, steps=60)
    assert gap > 0.05
    assert abs(found.gap - gap) < SIGMAS * found.error and found.error < 0.1 * gap
    assert sum(found.by_group.values()) == pytest.approx(found.gap, abs=1e-6)
    assert "consistency gap" in repr(found)


def test_consistent_conditionals_have_no_gap():
    model = table_model(exact.conditionals(random_joint((2, 3, 2), 0)))
    found = consistency(model, chains=4000, warmup=60, steps=60)
    assert abs(found.gap) < SIGMAS * found.error and found.error < 0.01
    mixed = Pairwise({"u": pc.Binary(2), "x": pc.Real(2, scale=1.0)}, seed=0, strength=0.5).model
    found = consistency(mixed, chains=4000, warmup=60, steps=60)
    assert abs(found.gap) < SIGMAS * found.error and found.error < 0.01


def test_counts_that_measure_nothing_are_refused():
    model = table_model(random_tables((2, 2), 0))
    for options in ({"chains": 1}, {"steps": 0}, {"warmup": -1}):
        with pytest.raises(pc.InputError, match=f"{next(iter(options))} must be a whole number, at least"):
            pc.diagnostics.consistency(model, **options)
    with pytest.raises(pc.InputError, match="sweeps must be a whole number, at least 0, found -1"):
        pc.diagnostics.latent_usage(model, pc.Data({"a": torch.zeros(3)}), "b", sweeps=-1)


def test_latent_usage_is_the_mutual_information():
    """z -> x with both conditionals exact: I(z_j; x) by enumeration, for a strong, a weak and an unused coordinate."""
    variables = {"x": pc.Binary(6), "z": pc.Binary(3)}
    pair = Pairwise(variables, seed=0)
    with torch.no_grad():
        strength = torch.tensor([3.0, 0.7, 0.0], dtype=torch.float64)
        w = strength[:, None] * torch.sign(
            torch.randn(3, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        )
        for (a, b), weight in {("z", "x"): w, ("x", "z"): w.T}.items():
            pair.weights[a, b] = weight
        for name in variables:
            other = "z" if name == "x" else "x"
            pair.bias[name] = -0.5 * pair.weights[other, name].sum(0)
    model = pc.JointModel({n: pair._conditional(n) for n in variables}).double()
    finite = exact.enumerate_model(model)
    p = finite.limiting()  # [x, z]
    index = torch.multinomial(p.sum(1), 20_000, replacement=True, generator=torch.Generator().manual_seed(0))
    data = pc.Data({"x": finite.values["x"][index]})
    usage = latent_usage(model, data, "z")
    for j in range(3):
        bit = finite.values["z"][:, j].bool()
        joint = torch.stack([p[:, ~bit].sum(1), p[:, bit].sum(1)], 1)
        independent = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
        information = float((torch.xlogy(joint, joint) - torch.xlogy(joint, independent)).sum())
        assert float(usage.information[j]) == pytest.approx(information, abs=0.01)
        # The exact decoder passes on everything: reading back gives the same.
        assert float(usage.read_back[j]) == pytest.approx(information, abs=0.03)
    assert usage.active.tolist() == [True, True, False] and usage.count == 2
    assert "2 of 3 latent coordinates active" in repr(usage)


def test_a_decoder_that_ignores_its_latents_is_seen():
    """The encoder still varies with x, but nothing of it survives a redraw."""
    pair = Pairwise({"x": pc.Binary(6), "z": pc.Binary(3)}, seed=0)
    pair.model.conditional("x").network.weights[0].data.zero_()
    index = torch.rand(5000, 6, generator=torch.Generator().manual_seed(0)).round()
    usage = latent_usage(pair.model, pc.Data({"x": index}), "z")
    assert float(usage.information.max()) > 0.1 and usage.count == 0


def test_latents_that_only_repeat_the_class_are_not_in_use():
    """z is a code of c, which x depends on too: much information of x, and none beyond the class."""
    variables = {"x": pc.Binary(6), "c": pc.Categorical(4), "z": pc.Binary(2)}
    codes = 8.0 * (torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]) - 0.5)
    pictures = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    model = pc.JointModel(
        {
            "x": pc.Conditional(variables["x"], Linear(torch.zeros(6), {"c": pictures})),
            "c": pc.Conditional(variables["c"], Linear(torch.zeros(4), {"x": pictures.T})),
            "z": pc.Conditional(variables["z"], Linear(torch.zeros(2), {"c": codes})),
        }
    )
    c = torch.arange(8000) % 4
    x = torch.bernoulli(torch.sigmoid(pictures[c]), generator=torch.Generator().manual_seed(1))
    usage = latent_usage(model, pc.Data({"x": x, "c": c}), "z")
    assert usage.count == 0 and float(usage.information.abs().max()) < 0.01


def test_read_back_is_a_bound_when_marginals_shift():
    """An encoder that tells a rare pixel, a decoder that ignores z and draws that pixel often: nothing is read back,
    though z varies with x under both. (The entropy must be that of the z that were drawn.)"""
    variables = {"x": pc.Binary(1), "z": pc.Binary(1)}
    zero = torch.zeros(1, 1)
    model = pc.JointModel(
        {
            "x": pc.Conditional(variables["x"], Linear(torch.tensor([-0.4]), {"z": zero})),
            "z": pc.Conditional(variables["z"], Linear(torch.tensor([-6.0]), {"x": torch.tensor([[6.0]])})),
        }
    )
    x = (torch.rand(20_000, 1, generator=torch.Generator().manual_seed(0)) < 0.06).float()
    usage = latent_usage(model, pc.Data({"x": x}), "z")
    assert float(usage.information) > 0.05
    assert float(usage.read_back) < 0
    assert usage.count == 0


def test_real_and_categorical_latents_have_usage_too():
    """Against the exact joint: H(k) - E H(k | x, z) for the label; for the real latent the entropy of the Gaussian with
    its exact variance, less that of its noise."""
    variables = {"x": pc.Binary(6), "z": pc.Real(2, scale=0.5), "k": pc.Categorical(3)}
    pair = Pairwise(variables, seed=1, strength=0.6)
    states, p, means = pair.joint()
    rows, generator = 40_000, torch.Generator().manual_seed(0)
    index = torch.multinomial(p, rows, replacement=True, generator=generator)
    drawn = {n: v[index].to(torch.float64) if n == "x" else v[index] for n, v in states.items()}
    noise = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    drawn["z"] = means[index] + 0.5 * noise
    data = pc.Data({"x": drawn["x"]})
    label = latent_usage(pair.model, data, "k")
    share = torch.zeros(3, dtype=torch.float64).index_add_(0, states["k"], p)
    entropy = pair.model("k", drawn).entropy.detach()
    expected = float(-(share * share.log()).sum() - entropy.mean())
    error = 2**0.5 * float(entropy.std()) / rows**0.5  # of the estimate, and of what it is compared with
    assert expected > 0.05 and abs(float(label.information) - expected) < 2 * SIGMAS * error
    real = latent_usage(pair.model, data, "z")
    variance = (p[:, None] * means**2).sum(0) - ((p[:, None] * means).sum(0)) ** 2 + 0.25
    spread = (drawn["z"] - drawn["z"].mean(0)) ** 2
    error = 0.5 * spread.std(0) / rows**0.5 / variance  # half the relative error of a variance
    assert bool(((real.information - 0.5 * (variance / 0.25).log()).abs() < 2 * SIGMAS * error).all())
    with pytest.raises(pc.InputError, match="'x' is observed in the data"):
        latent_usage(pair.model, data, "x")


def test_mixing_of_a_good_and_a_stuck_chain():
    good = Pairwise({"u": pc.Binary(2), "w": pc.Binary(2)}, seed=0, strength=0.5).model
    assert float(mixing(good).r_hat["u"]) < 1.05
    stuck = Pairwise({"u": pc.Binary(1), "w": pc.Binary(1)}, seed=0, strength=0.0)
    for name in ("u", "w"):
        stuck.model.conditional(name).network.weights[0].data.fill_(40.0)
        stuck.model.conditional(name).network.bias.data.fill_(-20.0)
    with pytest.warns(pc.NotMixedWarning):
        assert float(mixing(stuck.model).r_hat["u"]) > 1.5


def trained_on_digits(initial_scale, scale="learned", steps=1500):
    torch.manual_seed(0)
    variables = {
        "x": pc.Real(64, scale=scale, initial_scale=initial_scale),
        "c": pc.Categorical(10),
        "z": pc.Binary(32),
    }
    model = pc.JointModel(
        {n: pc.Conditional(f, pc.networks.mlp(variables, n, hidden=128, depth=1)) for n, f in variables.items()}
    )
    data = pc.datasets.digits()
    learned = pc.Learner(model, data, batch_size=128, learning_rate=3e-3).fit(steps)
    return latent_usage(learned, data, "z")


def test_the_default_scale_holds_off_the_collapse_of_latents():
    """While the noise is wide, every latent is dead; with the default small initial scale most of them live."""
    wide = trained_on_digits(initial_scale=1.0, scale=1.0)
    assert wide.count < 8 and float(wide.information.sum()) < 1
    default = trained_on_digits(initial_scale=pc.Real.initial_scale)
    assert default.count >= 8 and float(default.information.sum()) > 3
