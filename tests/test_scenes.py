"""Networks of several images and flat groups."""

import pytest
import torch

import paracond as pc
from paracond.networks import scene_network

GROUPS = {
    "x": pc.Real((3, 32, 32), scale="element"),
    "s": pc.Binary((4, 32, 32)),
    "l": pc.Categorical(5, (32, 32)),
    "c": pc.Binary(6),
    "z": pc.Real(3, scale="element"),
}


def make(kind="residual"):
    torch.manual_seed(0)
    networks = {n: scene_network(GROUPS, n, width=4, hidden=16, kind=kind) for n in GROUPS}
    return pc.JointModel({n: pc.Conditional(f, networks[n]) for n, f in GROUPS.items()})


@pytest.mark.parametrize("kind", ["plain", "residual"])
def test_every_group_is_read_by_every_other(kind, tmp_path):
    model = make(kind)
    state = model.start(3, model.generator(0))
    for name in GROUPS:
        before = model(name, state).mean
        assert before.shape == (3, *GROUPS[name].encoding_shape)
        assert torch.equal(
            model(name, {**state, name: GROUPS[name].start(3, model.generator(9), torch.float32)}).mean, before
        )
        for other in set(GROUPS) - {name}:
            moved = {**state, other: GROUPS[other].start(3, model.generator(9), torch.float32)}
            assert not torch.equal(model(name, moved).mean, before), (name, other)
    model.save(tmp_path / "model")
    again = pc.JointModel.load(tmp_path / "model")
    assert all(torch.equal(again(n, state).mean, model(n, state).mean) for n in GROUPS)


def test_labels_are_channels():
    """A label map is read as the stack of its one-hot channels."""
    network = scene_network(GROUPS, "c", reads=["l"], width=4)
    labels = torch.randint(5, (2, 32, 32))
    onehot = GROUPS["l"].encode(labels)
    assert network._seen({"l": onehot}).shape == (2, 5, 32, 32)
    assert torch.equal(network._seen({"l": onehot}).argmax(1), labels)


def test_a_unet_learns_a_segmentation():
    """Which of two colours a pixel has: a way for detail from input to output must exist."""
    torch.manual_seed(0)
    groups = {"x": pc.Real((1, 16, 16)), "s": pc.Categorical(2, (16, 16)), "c": pc.Binary(2)}
    model = pc.JointModel(
        {n: pc.Conditional(f, scene_network(groups, n, width=8, hidden=16)) for n, f in groups.items()}
    )
    s = torch.randint(2, (256, 16, 16))
    x = s.unsqueeze(1) + 0.1 * torch.randn(256, 1, 16, 16)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    state = {"x": x, "s": s, "c": torch.zeros(256, 2)}
    for _ in range(150):
        loss = -model("s", state).log_prob(s).mean() / 256
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0.05  # at first log 2


def test_what_scenes_cannot_be():
    with pytest.raises(pc.InputError, match="reads at least one image"):
        scene_network(GROUPS, "c", reads=["z"])
    with pytest.raises(pc.InputError, match="'q' must be among the variables"):
        scene_network(GROUPS, "q")
    with pytest.raises(pc.InputError, match="kind must be one of plain, residual, found 'flat'"):
        scene_network(GROUPS, "c", kind="flat")
    with pytest.raises(pc.InputError, match="images must be square, of one size, a multiple of 16"):
        scene_network({"x": pc.Real((3, 20, 20)), "c": pc.Binary(2)}, "c")


@pytest.mark.parametrize("kind", ["plain", "residual"])
def test_a_unet_may_read_images_alone(kind):
    network = scene_network(GROUPS, "l", reads=["x"], width=4, hidden=16, kind=kind)
    assert network.reads == ("x",)
    assert network({"x": torch.rand(2, 3, 32, 32)}).shape == (2, 32, 32, 5)
