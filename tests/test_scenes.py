"""Networks of several images and flat groups."""

import pytest
import torch

import paracond as pc
from paracond.networks import scene_network
from paracond.networks.pyramid import patches, whole

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
    state = pc.initializers.initial_state(model, 3, model.generator(0))
    for name in GROUPS:
        before = model(name, state).mean
        assert before.shape == (3, *GROUPS[name].encoding_shape)
        assert torch.equal(
            model(name, {**state, name: GROUPS[name].random(3, model.generator(9), torch.float32)}).mean, before
        )
        for other in set(GROUPS) - {name}:
            moved = {**state, other: GROUPS[other].random(3, model.generator(9), torch.float32)}
            assert not torch.equal(model(name, moved).mean, before), (name, other)
    model.save(tmp_path / "model")
    again = pc.JointModel.load(tmp_path / "model")
    assert all(torch.equal(again(n, state).mean, model(n, state).mean) for n in GROUPS)


def test_labels_are_channels():
    """A label map is read as the stack of its one-hot channels."""
    network = scene_network(GROUPS, "c", reads=["l"], width=4, kind="plain")
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


def test_patches_keep_channels_last():
    image = torch.randn(2, 8, 6, 3)
    small = patches(image)
    assert small.shape == (2, 4, 3, 12)
    assert torch.equal(small[:, 1, 2], image[:, 2:4, 4:6].flatten(1))  # a patch is two rows of two pixels
    assert torch.equal(whole(small), image)


MAPS = {
    "x": pc.Real((3, 32, 32), scale="element"),
    "l": pc.Categorical(5, (32, 32)),
    "y": pc.Binary((3, 8, 8)),
    "u": pc.Real((2, 4, 4)),
    "t": pc.Categorical(3, (16, 16)),
    "c": pc.Binary(6),
}


@pytest.mark.parametrize("reads", [None, ["c"], ["y", "t"], ["u", "c"], ["l"]])
def test_a_pyramid_leads_from_any_groups_to_any_group(reads, tmp_path):
    """Images, maps of lower resolution, label maps and flat groups, on either side; all that is read matters."""
    torch.manual_seed(0)
    state = {n: f.random(2, torch.Generator().manual_seed(1), torch.float32) for n, f in MAPS.items()}
    other = {n: f.random(2, torch.Generator().manual_seed(2), torch.float32) for n, f in MAPS.items()}
    for name, family in MAPS.items():
        used = [k for k in (reads or MAPS) if k != name]
        if not used:
            continue
        network = scene_network(MAPS, name, reads=used, width=8, most=16, hidden=8)
        encoded = {k: MAPS[k].encode(v) for k, v in state.items()}
        before = network({k: encoded[k] for k in used})
        assert before.shape == (2, *family.output_shape)
        for k in used:
            assert not torch.equal(network({**encoded, k: MAPS[k].encode(other[k])}), before), (name, k)
        again = pc.networks.rebuild(name, pc.networks.describe(network))
        again.load_state_dict(network.state_dict())
        assert torch.equal(again(encoded), before)


def test_a_pyramid_keeps_places():
    """A code at one place of a map changes the image there more than far away."""
    torch.manual_seed(0)
    groups = {"x": pc.Real((1, 64, 64), scale="learned"), "y": pc.Binary((4, 16, 16))}
    network = scene_network(groups, "x", width=8, most=16)
    y = torch.zeros(1, 4, 16, 16)
    near = y.clone()
    near[:, :, 2, 3] = 1
    with torch.no_grad():
        change = (network({"y": near}) - network({"y": y})).abs()[0, 0]
    assert float(change[8:12, 12:16].mean()) > 5 * float(change[48:, 48:].mean())


def test_images_are_moved_only_while_learning():
    torch.manual_seed(0)
    network = scene_network(MAPS, "c", reads=["x"], width=8, jitter=2, mirrored=True)
    x = {"x": torch.randn(4, 3, 32, 32)}
    assert not torch.equal(network(x), network(x))
    network.eval()
    assert torch.equal(network(x), network(x))
    torch.testing.assert_close(network(x), network({"x": x["x"].flip(-1)}))  # the mean over both
    with pytest.raises(pc.InputError, match="mirrored is for flat groups; 'x' is an image"):
        scene_network(MAPS, "x", reads=["c"], mirrored=True)
    with pytest.raises(pc.InputError, match="only images of 32 x 32 pixels can be moved; 'c' reads others too"):
        scene_network(MAPS, "c", reads=["x", "y"], jitter=1)


def test_what_scenes_cannot_be():
    with pytest.raises(pc.InputError, match="must read at least one, found none"):
        scene_network(GROUPS, "c", reads=["z"], kind="plain")
    with pytest.raises(pc.InputError, match="a residual network needs an image"):
        scene_network({"c": pc.Binary(2), "z": pc.Real(3)}, "c")
    with pytest.raises(pc.InputError, match="unknown variable 'q'"):
        scene_network(GROUPS, "q")
    for reads, found in ((["q"], "q"), ([], "nothing to read")):
        with pytest.raises(pc.InputError, match=f"reads: 'c' can read .*; found {found}"):
            scene_network(GROUPS, "c", reads=reads)
    with pytest.raises(pc.InputError, match="kind must be one of plain, residual, found 'flat'"):
        scene_network(GROUPS, "c", kind="flat")
    with pytest.raises(pc.InputError, match="images must be square, of one size, a multiple of 16"):
        scene_network({"x": pc.Real((3, 20, 20)), "c": pc.Binary(2)}, "c", kind="plain")
    with pytest.raises(pc.InputError, match="a multiple of 16, found 20"):
        scene_network({"x": pc.Real((3, 20, 20)), "c": pc.Binary(2)}, "c")
    with pytest.raises(pc.InputError, match="'y' must be square, of side 32, 16, 8, 4, 2; found 10 x 10"):
        scene_network({"x": pc.Real((3, 32, 32)), "y": pc.Binary((2, 10, 10))}, "x")
