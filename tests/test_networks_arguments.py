"""Networks, initializers and augmentations refuse wrong arguments in words, and take numbers of numpy."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import paracond as pc
from paracond.networks import MLP, ImageDecoder, ImageEncoder, Pyramid, SceneEncoder, StackedMLP, UNet, describe
from paracond.training.augment import Moved

FAMILIES = {"a": pc.Binary(2), "b": pc.Categorical(3), "x": pc.Real((1, 16, 16), scale="learned")}
IMAGES = {"x": (1, 16, 16)}
VALID = {
    MLP: {"inputs": {"a": 2}, "output": (3,), "hidden": 4, "depth": 1, "noise": 0.1},
    StackedMLP: {"names": ["a"], "members": 2, "hidden": 4},
    ImageEncoder: {"image": "x", "shape": (1, 16, 16), "inputs": {"a": 2}, "output": (3,), "width": 4, "blocks": 1},
    ImageDecoder: {"inputs": {"a": 2}, "output": (1, 16, 16), "width": 4, "blocks": 1},
    UNet: {"images": IMAGES, "flat": {"a": 2}, "output": (1, 16, 16), "width": 4, "hidden": 4},
    SceneEncoder: {"images": IMAGES, "flat": {"a": 2}, "output": (3,), "width": 4, "hidden": 4},
    Pyramid: {"images": IMAGES, "flat": {"a": 2}, "output": (3,), "side": 16, "width": 4, "hidden": 4, "most": 8},
}
WRONG = [None, True, "word", -1, 1.5, math.nan, 10**30, [None], {"a": None}, {1: 2}, torch.zeros(2), nn.Linear]
RIGHT = {("noise", 4), ("noise", 6), ("image", 2)}  # places of what is no mistake
PAIRS = [(kind, name) for kind, arguments in VALID.items() for name in arguments]


@pytest.mark.parametrize(("kind", "name"), PAIRS, ids=lambda v: getattr(v, "__name__", v))
def test_networks_refuse_wrong_arguments_by_name(kind, name):
    state = torch.get_rng_state()
    for wrong in [wrong for place, wrong in enumerate(WRONG) if (name, place) not in RIGHT]:
        with pytest.raises(pc.InputError, match=name) as refused:
            kind(**{**VALID[kind], name: wrong})
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 300
    assert torch.equal(state, torch.get_rng_state()), "a network that is refused draws nothing"


@pytest.mark.parametrize("kind", VALID, ids=lambda kind: kind.__name__)
def test_numbers_of_numpy_are_pythons_in_a_network(kind):
    """Sums of unsigned bytes would overflow, and JSON does not know them."""
    numbers = {k: np.uint8(v) if isinstance(v, int) else v for k, v in VALID[kind].items()}
    torch.manual_seed(0)
    plain = kind(**VALID[kind])
    torch.manual_seed(0)
    found = kind(**numbers)
    assert json.dumps(describe(found)) == json.dumps(describe(plain))
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize("make", [pc.networks.mlp, pc.networks.image_network, pc.networks.scene_network])
@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (({**FAMILIES, "a": None}, "b"), "variables"),
        (([1, 2], "b"), "variables"),
        ((FAMILIES, ["b"]), "name"),
        ((FAMILIES, "typo"), "name"),
        ((FAMILIES, "b", "a"), "reads"),
        ((FAMILIES, "b", 3), "reads"),
    ],
)
def test_factories_of_networks_refuse_wrong_groups(make, arguments, word):
    variables, name, *reads = arguments
    options = {"reads": reads[0]} if reads else {}
    if make is pc.networks.image_network:
        options["image"] = "x"
    with pytest.raises(pc.InputError, match=word):
        make(variables, name, **options)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("inputs", {"b": 1.5}),
        ("inputs", [3]),
        ("shape", (2, 0)),
        ("shape", "22"),
        ("rank", 1.5),
        ("binary", "yes"),
        ("learned", 1),
        ("redundancy", math.nan),
        ("redundancy", 0.5),
        ("band", 2.5),
        ("band", 9),
    ],
)
def test_an_initializer_refuses_wrong_arguments(name, wrong):
    valid = {"inputs": {"b": 3}, "shape": (1, 4, 4), "rank": 2, "band": 2}
    with pytest.raises(pc.InputError, match=name):
        pc.initializers.PCA(**{**valid, name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("pixels", 1.5),
        ("pixels", np.float32(3)),
        ("mirrored", torch.zeros(2)),
        ("device", "gpu"),
        ("share", 1.5),
        ("share", math.nan),
        ("flag", "no"),
        ("exchange", (5, 0)),
        ("exchange", ("a", "b")),
        ("exchange", 3),
    ],
)
def test_an_augmentation_refuses_wrong_arguments(name, wrong):
    valid = {"pixels": 1, "mirrored": True, "device": "cpu", "exchange": (1, 0)}
    with pytest.raises(pc.InputError, match=name):
        Moved(**{**valid, name: wrong})


@pytest.fixture(scope="module")
def model():
    families = {"a": pc.Binary(3), "b": pc.Categorical(3)}
    parts = {
        name: pc.Conditional(
            family,
            pc.networks.mlp(families, name, hidden=4),
            pc.initializers.pca(families, "a", ["b"], rank=1) if name == "a" else None,
        )
        for name, family in families.items()
    }
    return pc.JointModel(parts)


def state():
    return {"a": torch.zeros(4, 3), "b": torch.zeros(4, dtype=torch.long)}


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda m: pc.initializers.initial_state(None, 2, torch.Generator()), "model"),
        (lambda m: pc.initializers.initial_state(m, 1.5, torch.Generator()), "rows"),
        (lambda m: pc.initializers.initial_state(m, 2, 3), "generator"),
        (lambda m: pc.initializers.initial_state(m, 2, torch.Generator(), fitted="no"), "fitted"),
        (lambda m: pc.initializers.initial_state(m, 4, torch.Generator(), known=state()), "mask of 'a'"),
        (lambda m: pc.initializers.initial_state(m, 4, torch.Generator(), known=3), "known"),
        (lambda m: pc.initializers.random_state(m, 2, None), "generator"),
        (lambda m: pc.initializers.fit(m, {"a": [[0, 1, 0]]}), "data"),
        (lambda m: pc.initializers.fit(m, pc.Data(state()), names=[3]), "names"),
        (lambda m: pc.initializers.with_init(m, "a", nn.Linear(1, 1)), "init"),
        (lambda m: pc.initializers.score(m, "a", {"a": torch.zeros(4, 3)}), "'b'"),
        (lambda m: pc.initializers.score(m, "a", {**state(), "a": torch.zeros(4, 2)}), "'a'"),
        (lambda m: pc.initializers.score(m, "a", {**state(), "b": [0, 1]}), "'b'"),
        (lambda m: pc.initializers.draw_group(m, "a", state(), torch.zeros(3), torch.Generator()), "mask of 'a'"),
        (lambda m: pc.initializers.log_density(m, state(), {}, 4, 0), "mask of 'a'"),
        (lambda m: pc.initializers.has_init(3), "model"),
    ],
)
def test_functions_of_initializers_refuse_wrong_arguments(model, call, word):
    with pytest.raises(pc.InputError, match=word):
        call(model)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"steps": 1.5}, "steps"),
        ({"minutes": "1"}, "minutes"),
        ({"minutes": math.nan}, "minutes"),
        ({"every": -1}, "every"),
        ({"every": math.nan}, "every"),
        ({"resume": "no"}, "resume"),
        ({"progress": 3}, "progress"),
        ({"on_step": 3}, "on_step"),
        ({"learner": None}, "learner"),
    ],
)
def test_a_run_with_checkpoints_refuses_wrong_arguments(options, word):
    from paracond.training.checkpoints import fit

    families = {"a": pc.Binary(3), "b": pc.Categorical(3)}
    parts = {n: pc.Conditional(f, pc.networks.mlp(families, n, hidden=4)) for n, f in families.items()}
    learner = pc.Learner(pc.JointModel(parts), pc.Data(state()), batch_size=2)
    with pytest.raises(pc.InputError, match=word):
        fit(**{"learner": learner, "steps": 1} | options)
    assert learner.step_count == 0


def test_labels_are_kept_of_data_alone():
    data = pc.Data({"x": torch.zeros(4, 2), "c": torch.tensor([0, 1, 0, 1])})
    with pytest.raises(pc.InputError, match="data must be"):
        pc.datasets.keep_labels({"c": [0, 1]}, 1)
    with pytest.raises(pc.InputError, match="count"):
        pc.datasets.keep_labels(data, True)
    assert pc.initializers.PCA({"b": 3}, (3,), 1, learned=np.bool_(True)).learned is True
