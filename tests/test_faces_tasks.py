"""Questions to a model of faces, on a tiny one that knows nothing: what must hold exactly does. And what it is held
against, on cases made by hand."""

import functools
import sys

import pytest
import torch

import paracond as pc
from paracond.datasets.faces import LABELS, MIRRORED
from paracond.experiments.common.pictures import label_map
from paracond.experiments.faces import baselines, measures, tasks
from paracond.experiments.faces import report as pictures_of
from paracond.networks import scene_network
from paracond.training.augment import Moved

KINDS = {"masks": pc.Binary((18, 64, 64)), "labels": pc.Categorical(19, (64, 64))}
QUICK = {"sweeps": 1, "chains": 2}


@functools.cache
def tiny(kind="masks", networks="plain"):
    """s before x, a latent map and a flat latent with names of their own, and a condition."""
    torch.manual_seed(0)
    groups = {
        "s": KINDS[kind],
        "x": pc.Real((3, 64, 64), scale="element", ceiling=0.2),
        "c": pc.Binary(40),
        "u": pc.Real(4, ceiling=0.2),
    }
    variables = groups | {"t": pc.Categorical(2)}
    made = {n: scene_network(variables, n, width=8, hidden=16, kind=networks) for n in groups}
    conditionals = {n: pc.Conditional(f, made[n]) for n, f in groups.items()}
    return pc.JointModel(conditionals, context={"t": pc.Context(pc.Categorical(2), 0)})


def pictures(count, seed=0):
    return torch.rand(count, 3, 64, 64, generator=torch.Generator().manual_seed(seed))


def attributes(count):
    return (torch.rand(count, 40, generator=torch.Generator().manual_seed(1)) < 0.3).float()


@pytest.mark.parametrize("kind", KINDS)
def test_an_attribute_is_switched_and_nothing_else(kind):
    model = tiny(kind)
    off, on = tasks.switched(model, attributes(3), 15, sweeps=1, seed=5)
    assert (off["c"] != on["c"]).sum(0).tolist() == [3 * (k == 15) for k in range(40)]
    assert not off["c"][:, 15].any() and on["c"][:, 15].all()
    drawn = tasks.generate(model, off["c"], 1, seed=5)  # both are this, edited
    for state, value in ((off, 0.0), (on, 1.0)):
        change = pc.Observed(torch.full((3, 40), value), torch.arange(40) == 15)
        again = pc.edited(model, drawn, "c", change, sweeps=1, seed=5)
        assert all(torch.equal(again[name], state[name]) for name in state)
    images = tasks.shown(model, on)
    assert images.shape == (3, 3, 64, 64) and float(images.min()) >= 0 and float(images.max()) <= 1
    assert torch.equal(images, model("x", on).mean.clamp(0, 1))


def test_masks_of_either_kind_agree():
    labels = torch.randint(19, (2, 64, 64), generator=torch.Generator().manual_seed(0))
    found = tasks.masks(tiny("labels"), labels)
    assert found.shape == (2, 18, 64, 64) and found.dtype == torch.bool
    assert torch.equal(found.sum(1), (labels > 0).long())
    assert torch.equal(tasks.masks(tiny("masks"), found.to(torch.uint8)), found)
    assert torch.equal(label_map(found), labels)
    both = torch.zeros(1, 18, 64, 64)
    both[:, 0], both[:, 9] = 1, 1  # a mouth over skin
    assert label_map(both).unique().tolist() == [10]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_seen_stays_and_all_is_read_from_one_chain(kind):
    images, hidden = pictures(2), tasks.squares(2)
    found = tasks.segment(tiny(kind), images, ~hidden, **QUICK)
    seen = ~hidden.unsqueeze(1).expand_as(images)
    assert torch.equal(found.image[seen], images[seen]) and not torch.equal(found.image[~seen], images[~seen])
    assert found.masks.shape == (2, 18, 64, 64) and found.attributes.shape == (2, 40)
    whole = tasks.segment(tiny(kind), images, **QUICK)
    assert torch.equal(whole.image, images)
    once = tasks.segment(tiny(kind), images, ~hidden[0], **QUICK)
    assert torch.equal(once.image[1][:, ~hidden[0]], images[1][:, ~hidden[0]])
    assert set(tasks.attributes_of(tiny(kind), images, **QUICK).unique().tolist()) <= {0, 1}


def test_many_faces_are_asked_about_in_parts(monkeypatch):
    images = pictures(3)
    monkeypatch.setitem(tasks.MAX_ROWS, "cpu", 2)
    parts = tasks.segment(tiny(), images, sweeps=1, chains=1)
    assert parts.masks.shape[0] == 3
    alone = tasks.segment(tiny(), images[2:], sweeps=1, chains=1, seed=1)
    assert torch.equal(parts.attributes[2:], alone.attributes)
    assert tasks.portraits(tiny(), attributes(3), sweeps=1).shape == (3, 3, 64, 64)


def test_squares_lie_over_the_face():
    found = tasks.squares(500)
    assert torch.equal(found, tasks.squares(500)) and not torch.equal(found, tasks.squares(500, seed=1))
    assert (found.sum((1, 2)) == 24 * 24).all()
    rows, columns = (found.any(axis).float().argmax(1) for axis in (2, 1))
    assert (rows.min(), rows.max()) == (16, 34) and (columns.min(), columns.max()) == (15, 25)


@pytest.mark.parametrize("kind", KINDS)
def test_demixing_holds_to_the_mixture(kind):
    model, (first, second) = tiny(kind), (pictures(2), pictures(2, 1))
    mixed, m = tasks.mix(first, second, seed=3)
    assert torch.equal(mixed, torch.where(m.expand_as(first), second, first)) and 0.4 < float(m.float().mean()) < 0.6
    joint = tasks.demixing(model)
    assert joint.names[:2] == ("m", "first.x")
    state = pc.sample(joint, {"x": mixed}, sweeps=2)
    back = torch.where(state["m"] == 0, state["first.x"], state["second.x"])
    assert torch.equal(back, mixed)  # so x' is the mixed image where m = 0
    pair = tuple(model.variables["s"].random(2, model.generator(k), torch.float32) for k in (0, 1))
    known = tasks.demix(model, mixed, pair, mask=m, **QUICK)
    there = m.expand_as(first)
    assert torch.equal(known.first[~there], first[~there]) and torch.equal(known.second[there], second[there])
    assert torch.equal(known.mask, m.squeeze(1).float())
    held = tasks._held(
        model, joint, {"x": mixed, "m": m.float()}, seed=0
    )  # where the chain begins if the mask is known
    assert "x" not in held and torch.equal(torch.where(m, held["second.x"], held["first.x"]), mixed)
    both = tasks.demix(model, mixed, pair, mask=m, init_mask=1 - m.float(), **QUICK)
    assert torch.equal(both.mask, m.squeeze(1).float()) and torch.equal(both.first[~there], first[~there])
    moved = tasks.demix(model, mixed, pair, init_mask=m.float(), **QUICK)
    assert not torch.equal(moved.mask, known.mask)  # and then it is free
    free = tasks.demix(model, mixed, **QUICK)
    assert free.first.shape == (2, 3, 64, 64) and 0 < float(free.mask.mean()) < 1


def test_each_mixed_image_begins_as_if_it_were_alone(monkeypatch):
    """Seen where the mask says so, with what else is known of it."""
    monkeypatch.setattr(tasks, "HOLD", 0)
    model = tiny()
    mixed, m = tasks.mix(pictures(2), pictures(2, 1))
    given = {"x": mixed, "m": m.float(), "second.c": attributes(2)}
    held = tasks._held(model, tasks.demixing(model), given, seed=4)
    seen = m.expand_as(mixed)
    first = pc.sample(model, {"x": pc.Observed(mixed, ~seen)}, sweeps=0, seed=4)
    second = pc.sample(model, {"x": pc.Observed(mixed, seen), "c": attributes(2)}, sweeps=0, seed=5)
    assert all(torch.equal(held[f"first.{name}"], first[name]) for name in model.names)
    assert all(torch.equal(held[f"second.{name}"], second[name]) for name in model.names if name != "c")
    assert "second.c" not in held


def test_the_logit_of_the_mask_is_the_likelihood_ratio():
    model, mixed = tiny(), pictures(2)
    joint = tasks.demixing(model)
    state = pc.sample(joint, {"x": mixed}, sweeps=1)
    scores = []
    for each in ("second", "first"):
        own = {name: state[f"{each}.{name}"] for name in model.variables}
        scores.append(model("x", own).scores(mixed).sum(1, keepdim=True))  # of a pixel: over its three colours
    torch.testing.assert_close(joint("m", state).logits, scores[0] - scores[1])


def test_chains_of_exchangeable_images_are_turned_round():
    a, b = torch.zeros(1, 1, 3, 2, 2), torch.ones(1, 1, 3, 2, 2)
    first, second = torch.cat([a, b + 0.1, a], 1), torch.cat([b, a, b + 0.1], 1)
    m = torch.tensor([0.2, 0.9, 0.3]).view(1, 3, 1, 1, 1).expand(1, 3, 1, 2, 2)
    found = tasks._in_order(first, second, m)
    assert torch.equal(found[0], torch.cat([a, a, a], 1)) and torch.equal(found[1], torch.cat([b, b + 0.1, b + 0.1], 1))
    torch.testing.assert_close(found[2][0, :, 0, 0, 0], torch.tensor([0.2, 0.1, 0.3]))


def test_factors_hold_exactly():
    images, model = pictures(2) * 0.02 + 0.49, tiny()
    small = tasks.shrunk(images)
    large = tasks.super_resolved(model, small, **QUICK)
    torch.testing.assert_close(tasks.shrunk(large), small, atol=1e-4, rtol=0)
    grey = tasks.greyed(images)
    colours = tasks.colourised(model, grey, **QUICK)
    inside = ((colours > 0) & (colours < 1)).all(1, keepdim=True)  # where nothing was clamped
    assert float(inside.float().mean()) > 0.9 and float(colours.std(1).mean()) > 0.001
    torch.testing.assert_close(tasks.greyed(colours)[inside], grey[inside], atol=1e-4, rtol=0)


def test_measures_by_hand():
    truth, decided = torch.zeros(1, 18, 64, 64), torch.zeros(1, 18, 64, 64)
    truth[:, 0, :2], decided[:, 0, 1:3] = 1, 1  # one row of two shared: F1 1/2
    truth[:, 1, 0], decided[:, 1, 0] = 1, 1  # F1 1
    value, absent = measures.mean_f1(decided, truth)
    assert value == pytest.approx(0.75) and absent == list(LABELS[2:])
    where = torch.zeros(1, 64, 64, dtype=torch.bool)
    where[:, 1:] = True  # the second class is not there; of the first, one row is right and one too many: F1 2/3
    assert measures.f1_ratio(decided, truth, truth, where) == pytest.approx(2 / 3)
    found, image = torch.full((1, 3, 64, 64), 0.6), torch.full((1, 3, 64, 64), 0.5)
    found[:, :, 0] = 9.0
    assert measures.psnr_inside(found, image, where) == pytest.approx(20, abs=1e-4)


def test_demixing_is_measured_where_the_other_was_seen():
    first, second = torch.full((1, 3, 64, 64), 0.2), torch.full((1, 3, 64, 64), 0.7)
    _, m = tasks.mix(first, second)
    there = m.expand_as(first)
    guess = tasks.Demixed(torch.where(there, first + 0.1, 9.0), torch.where(there, 9.0, second + 0.1), m)
    assert measures.demixing_psnr(guess, first, second, m) == pytest.approx(20, abs=1e-4)
    swapped = tasks.Demixed(second + 0.1, first + 0.1, 1 - m.float())
    assert measures.demixing_psnr(swapped, first, second, m) < 8
    assert measures.demixing_psnr(swapped, first, second, m, ordered=False) == pytest.approx(20, abs=1e-4)


# --- baselines --------------------------------------------------------------------------------------------------


def test_neighbours_fill_from_the_visible_parts_inwards():
    image = torch.tensor([1.0, 9.0, 9.0, 9.0, 3.0]).view(1, 1, 1, 5).expand(1, 3, 1, 5)
    visible = torch.tensor([True, False, False, False, True]).view(1, 1, 1, 5)
    assert baselines.neighbours_filled(image, visible)[0, 0, 0].tolist() == [1, 1, 2, 3, 3]
    cross = torch.tensor([[1.0, 2.0, 3.0], [4.0, 9.0, 5.0], [6.0, 7.0, 8.0]]).expand(1, 3, 3, 3)
    middle = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    middle[..., 1, 1] = False
    assert baselines.neighbours_filled(cross, middle)[0, 0, 1, 1] == 4.5  # the mean of all eight
    with pytest.raises(pc.InputError, match="visible has an image without a visible pixel"):
        baselines.neighbours_filled(image, torch.zeros_like(visible))
    first, second = torch.full((1, 3, 64, 64), 0.2), torch.full((1, 3, 64, 64), 0.7)
    mixed, m = tasks.mix(first, second)
    found = baselines.neighbours_demixed(mixed, m)
    torch.testing.assert_close(found.first, first)
    torch.testing.assert_close(found.second, second)
    blind = baselines.smoothed_demixed(cross)
    assert torch.equal(blind.first, blind.second) and blind.first[0, 0, 1, 1] == 4.5
    assert blind.first[0, 0, 0, 0] == 5  # of 2, 4 and 9


def test_hidden_places_are_filled_and_others_kept(monkeypatch):
    images, hidden = pictures(3), tasks.squares(3)
    found = baselines.mean_filled(images, hidden, pictures(5, 9))
    places = hidden.unsqueeze(1).expand_as(images)
    assert torch.equal(found[~places], images[~places])
    assert torch.equal(found[places], pictures(5, 9).mean(0).expand_as(images)[places])
    monkeypatch.setitem(sys.modules, "cv2", None)  # as if it were not installed
    assert baselines.telea_filled(images, hidden) is None


def test_telea_fills_what_is_hidden():
    pytest.importorskip("cv2")
    images, hidden = torch.full((2, 3, 64, 64), 0.4), tasks.squares(2)
    broken = torch.where(hidden.unsqueeze(1), 0.9, images)
    torch.testing.assert_close(baselines.telea_filled(broken, hidden), images, atol=0.02, rtol=0)


def test_in_a_mirror_left_is_right():
    labels = torch.randint(19, (16, 64, 64), generator=torch.Generator().manual_seed(0))
    found = {}
    for kind, s in (("labels", labels), ("masks", tasks.masks(tiny("labels"), labels).float())):
        moved = Moved(0, True, "cpu", exchange=MIRRORED)
        found[kind] = moved({"x": pictures(16), "s": s}, torch.Generator().manual_seed(1))
        assert found[kind]["s"].dtype == s.dtype
    assert torch.equal(tasks.masks(tiny("labels"), found["labels"]["s"]).float(), found["masks"]["s"])
    mirrored = (found["labels"]["x"] != pictures(16)).flatten(1).any(1)
    assert 0 < int(mirrored.sum()) < 16
    assert torch.equal(found["labels"]["s"][~mirrored], labels[~mirrored])
    new, old = found["labels"]["s"][mirrored], labels[mirrored].flip(-1)
    exchanged = {old[new == k].unique().item() for k in range(19)}
    assert exchanged == set(range(19))
    pairs = {LABELS[k - 1]: LABELS[old[new == k][0].item() - 1] for k in range(1, 19)}
    sides = {"eye", "brow", "ear"}
    assert {a for a, b in pairs.items() if a != b} == {f"{side}_{part}" for side in "lr" for part in sides}
    assert pairs["l_eye"] == "r_eye" and pairs["r_ear"] == "l_ear"


def test_the_flag_says_which_were_moved():
    x = pictures(40)
    moved = Moved(3, False, "cpu", share=0.5, flag=True)({"x": x}, torch.Generator().manual_seed(0))
    said = moved["moved"] == 1
    changed = (moved["x"] != x).flatten(1).any(1)
    assert 5 < int(said.sum()) < 35 and not bool((changed & ~said).any())
    assert int((said & ~changed).sum()) < 5  # one in 49 is moved by nothing


def test_images_and_masks_move_together():
    x = pictures(8)
    s = (x[:, :1] > 0.5).float().expand(-1, 18, -1, -1).clone()
    moved = Moved(3, False, "cpu")({"x": x, "s": s}, torch.Generator().manual_seed(0))
    assert torch.equal((moved["x"][:, :1] > 0.5).float().expand_as(s), moved["s"]) and not torch.equal(moved["x"], x)


QUICKLY = baselines.Training(updates=60, batch_size=8, learning_rate=5e-3, average=0.9, jitter=0, mirrored=False)


@pytest.mark.parametrize("kind", KINDS)
def test_the_control_learns_to_segment(kind):
    """Skin is where the first channel is bright (yes everywhere would have an F1 of 2 / 3). Half of the faces are
    segmented; the others must not be read."""
    coarse = pictures(24)[:, :, :4, :4].repeat_interleave(16, 2).repeat_interleave(16, 3)
    labels = (coarse[:, 0] > 0.5).long()
    s = labels if kind == "labels" else tasks.masks(tiny("labels"), labels).float()
    known = torch.arange(24) < 12
    wrong = s.clone()
    wrong[~known] = 5 if kind == "labels" else 1
    data = pc.Data({"x": coarse, "s": wrong}, {"s": known})
    found = baselines.control(tiny(kind, "residual"), data, QUICKLY)
    network = found.conditional("s").network
    assert network.reads == ("x",) and network.config["width"] == 8 and found.variables["s"] == KINDS[kind]
    decided = tasks.segmentation_of(found, coarse[12:])
    value, absent = measures.mean_f1(decided, tasks.masks(found, s[12:]))
    assert value > 0.8 and absent == list(LABELS[1:])


def test_the_judge_sees_rare_attributes():
    """One in eight is bright; the second attribute cannot be seen, and is left to its frequency."""
    bright = torch.arange(64) % 8 == 0
    x = pictures(64) * 0.3 + 0.7 * bright.view(-1, 1, 1, 1)
    c = torch.stack([bright, torch.arange(64) % 2 == 0], 1).float()
    found = baselines.judge(pc.Data({"x": x, "c": c}), training=QUICKLY, width=8, hidden=16)
    assert found.frequency.tolist() == [0.125, 0.5]
    assert baselines.balanced_accuracy(found.decide(x)[:, 0], bright) == 1
    off, on = pictures(8, 5) * 0.3, pictures(8, 6) * 0.3 + 0.7
    assert baselines.switch_success(found, off, on, 0) == 1
    assert baselines.switch_success(found, off, off, 0) == 0
    sure = baselines.Judge(found.model, torch.zeros(2))  # a frequency of zero: everything is more probable
    assert baselines.switch_success(sure, off, on, 0) == 0 and bool(sure.decide(off).all())


def test_what_is_right_in_either_class_counts_alike():
    truth = torch.tensor([1, 0, 0, 0])
    assert baselines.balanced_accuracy(torch.tensor([0, 0, 0, 0]), truth) == 0.5
    assert baselines.balanced_accuracy(torch.tensor([1, 1, 0, 0]), truth) == pytest.approx((1 + 2 / 3) / 2)


# --- pictures ---------------------------------------------------------------------------------------------------


def shown_in(figure):
    """The canvas [height, width, channels] of a figure of rows of images."""
    return torch.as_tensor(figure.axes[0].images[0].get_array())


def test_segmentations_have_one_colour_per_label():
    labels = torch.arange(19).repeat(64, 4)[:, :64].expand(1, 64, 64)
    colours = pictures_of.coloured(tasks.masks(tiny("labels"), labels))
    assert colours.shape == (1, 3, 64, 64) and len(set(pictures_of.COLOURS)) == 19
    assert torch.equal(colours[0, :, 0, 1], torch.tensor([0xF2, 0xC9, 0xA1]) / 255)  # skin
    assert not colours[0, :, 0, 0].any()  # background


def test_the_figures_of_the_paper_have_their_rows():
    images, hidden = pictures(4), tasks.squares(4)
    masks = tasks.masks(tiny("labels"), torch.randint(19, (4, 64, 64)))
    figure = pictures_of.switch((images, masks), (images.flip(0), masks), "Eyeglasses")
    canvas = shown_in(figure)
    assert canvas.shape == (4 * 64, 4 * 64, 3) and len(figure.legends[0].get_texts()) == 19
    assert torch.equal(canvas[128:192, :64], images[3].permute(1, 2, 0))
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == ["Eyeglasses off", "segmentation", "Eyeglasses on", "segmentation"]
    found = tasks.Reading(masks, images, attributes(4))
    canvas = shown_in(pictures_of.incomplete(images, hidden, masks, found))
    assert canvas.shape == (5 * 64, 4 * 64, 3) and not canvas[:64, :64][hidden[0]].any()
    mixed, m = tasks.mix(images, images.flip(0))
    both = tasks.Demixed(images, images.flip(0), m)
    assert shown_in(pictures_of.demixed(images, images, mixed, [("known", both), ("unknown", both)])).shape[0] == 7 * 64
    figure = pictures_of.restored(tasks.shrunk(images), images, tasks.greyed(images), images, images)
    assert torch.equal(shown_in(figure)[64:128, :64], images[0].permute(1, 2, 0))
    assert shown_in(pictures_of.samples(images, masks, each=2)).shape == (4 * 64, 2 * 64, 3)
