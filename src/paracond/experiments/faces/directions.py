"""Measures of one model of faces and its baselines, in every direction (section 5.4).

All measures use held-out test faces. The FID compares generated images with the training images.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

import paracond as pc
from paracond.data import State
from paracond.experiments.common.pictures import label_map
from paracond.experiments.common.protocols import judge_protocols
from paracond.experiments.faces import baselines, measures, tasks
from paracond.experiments.faces import report as pictures
from paracond.experiments.faces.cartoon import Cartoon
from paracond.experiments.faces.runner import FacesRunner
from paracond.guidance import WEIGHT
from paracond.metrics.fid import FID
from paracond.metrics.scores import accuracy, psnr

TRIAL = 5000  # images for FIDs while training
SWITCHED = ("Eyeglasses", "Male", "Smiling")


def progress(runner: FacesRunner, model: pc.JointModel) -> dict[str, float]:
    """The numbers of a milestone."""
    found = {"attribute_accuracy": attribute_accuracy(runner, model), "f1": whole_f1(runner, model)}
    if runner.fid is not None:
        found["fid"] = runner.fid.score(tasks.portraits(model, runner.attributes(TRIAL))).value
    return found


def attribute_accuracy(runner: FacesRunner, model: pc.JointModel) -> float:
    rows = runner.test.mask["c"].all(1)
    return accuracy(tasks.attributes_of(model, runner.test.state["x"][rows]), runner.test.state["c"][rows])


def whole_f1(runner: FacesRunner, model: pc.JointModel) -> float:
    faces = runner.segmented
    found = tasks.segmentation_of(model, faces.state["x"], sweeps=runner.count(20, 2))
    return measures.mean_f1(found, tasks.masks(model, faces.state["s"]))[0]


def generation(runner: FacesRunner, model: pc.JointModel) -> None:
    if runner.fid is not None:
        count = runner.config.generated
        score = runner.fid.score(tasks.portraits(model, runner.attributes(count)))
        about = f"{count} generated, attributes of training faces, 100 sweeps, against {score.real_count}"
        runner.add("fid", score.value, "lower", about)
        reconstructions(runner, model, runner.fid)
        protocols(runner, model, runner.fid, count)
    state = tasks.generate(model, runner.attributes(runner.count(36, 12), seed=1), runner.count(100))
    figure = pictures.samples(tasks.shown(model, state), tasks.shown_masks(model, state))
    runner.show("Generated", "Images and segmentations, given attributes of training faces; 100 sweeps.", figure)


def reconstructions(runner: FacesRunner, model: pc.JointModel, fid: FID) -> None:
    """FIDs of decoded codes of real faces, which bound the rest, and of chains that begin there and drift."""
    real = runner.train.state["x"][:TRIAL].to(runner.device)
    coded = pc.sample(model, {"x": real}, sweeps=3, chunk=1000)
    runner.add("fid_reconstruction", fid.score(tasks.shown(model, coded)).value, "lower", f"{TRIAL} images")
    init = {name: value for name, value in coded.items() if name != "c"}
    moved = pc.sample(model, {"c": coded["c"]}, sweeps=100, init=init, chunk=1000)
    runner.add(
        "fid_from_data", fid.score(tasks.shown(model, moved)).value, "lower", f"{TRIAL} images, 100 sweeps later"
    )


def protocols(runner: FacesRunner, model: pc.JointModel, fid: FID, count: int) -> None:
    """The limit of tours, the paper's protocol and the Gibbs limit, given attributes of training faces."""
    state, known = runner.train.state, runner.train.mask["c"].all(1)
    rows = torch.randint(int(known.sum()), (count,), generator=torch.Generator().manual_seed(0))
    real = {name: state[name][known][rows].to(runner.device) for name in ("x", "c")}

    def fid_of(drawn: State) -> float:
        return fid.score(tasks.shown(model, drawn)).value

    chunk = tasks.MAX_ROWS[model.device.type]
    judge_protocols(runner, model, fid_of, real, ["c"], counts=(count, min(count, TRIAL)), chunk=chunk)


def reading(runner: FacesRunner, model: pc.JointModel) -> None:
    """Segmentation, attributes and hidden pixels, from whole images and with a hidden square."""
    runner.add("attribute_accuracy", attribute_accuracy(runner, model), "higher", "whole test images, 40 attributes")
    faces = runner.segmented
    images, truth = faces.state["x"], tasks.masks(model, faces.state["s"])
    hidden = tasks.squares(len(images))
    sweeps, chains = runner.count(6, 2), runner.count(64, 2)
    whole = tasks.segmentation_of(model, images, sweeps=runner.count(20, 2))
    part = tasks.segment(model, images, ~hidden, sweeps=sweeps, chains=chains)
    value, absent = measures.mean_f1(whole, truth)
    about = f"{len(images)} test faces, maximum marginals" + (f"; none has {', '.join(absent)}" if absent else "")
    runner.add("f1", value, "higher", about)
    ratio = measures.f1_ratio(part.masks, whole, truth, hidden)
    runner.add("f1_hidden_ratio", ratio, "higher", "inside hidden 24 x 24 squares, as a share of that of whole images")
    known = faces.mask["c"].all(1)
    found = accuracy(part.attributes[known], faces.state["c"][known])
    runner.add("attribute_accuracy_hidden", found, "higher", "with the square hidden")
    inpainting(runner, images, hidden, part.image)
    some = slice(0, 12)
    shown = tasks.Reading(part.masks[some], part.image[some], part.attributes[some])
    figure = pictures.incomplete(images[some], hidden[some], truth[some], shown)
    runner.show("From incomplete images", "Maximum and mean marginals of one chain (fig:celeba_segming).", figure)


def inpainting(runner: FacesRunner, images: Tensor, hidden: Tensor, found: Tensor) -> None:
    ours = measures.psnr_inside(found, images, hidden)
    mean = measures.psnr_inside(baselines.mean_filled(images, hidden, runner.train.state["x"]), images, hidden)
    runner.add("inpainting_psnr", ours, "higher", f"dB inside hidden 24 x 24 squares of {len(images)} test faces")
    runner.add("inpainting_psnr_gain", ours - mean, "higher", f"dB ahead of the training mean ({mean:.2f} dB)")
    telea = baselines.telea_filled(images, hidden)
    if telea is None:
        print(f"  Telea's in-painting {baselines.TELEA}")
        return
    value = measures.psnr_inside(telea, images, hidden)
    runner.add("inpainting_psnr_telea", value, "higher", "OpenCV's Telea")
    runner.add("inpainting_over_telea", ours - value, "higher", "dB ahead of it")


def segmentation_control(runner: FacesRunner, model: pc.JointModel) -> None:
    """A network like the model's own for s, trained for segmentation alone."""
    training = task_training(runner)
    value = whole_f1(runner, baselines.control(model, runner.train, training))
    ours = next(m.value for m in runner.metrics if m.name == "f1")
    about = f"a network of that size for segmentation alone, {training.updates} updates"
    runner.add("f1_control", value, "higher", about)
    runner.add("f1_gap", ours - value, "higher", "ours minus the control")


def task_training(runner: FacesRunner) -> baselines.Training:
    return baselines.Training(runner.count(12_000, 20), runner.count(128, 16), engine=runner.engine())


def demixing(runner: FacesRunner, model: pc.JointModel) -> None:
    """Pairs of test faces, each pixel from one of them."""
    faces = runner.segmented
    half = len(faces) // 2
    first, second = faces[:half], faces[half : 2 * half]
    mixed, m = tasks.mix(first.state["x"], second.state["x"])
    with_mask, blind = baselines.neighbours_demixed(mixed, m), baselines.smoothed_demixed(mixed)
    pair = first.state["x"], second.state["x"]
    filled, smoothed = (measures.demixing_psnr(each, *pair, m) for each in (with_mask, blind))
    segmentations = first.state["s"], second.state["s"]
    ask = partial(tasks.demix, model, mixed, sweeps=runner.count(5, 2), chains=runner.count(16, 1))
    masks = first_masks(runner, model, mixed, segmentations)
    known = ask(segmentations, init_mask=masks)
    value = measures.demixing_psnr(known, *pair, m)
    runner.add("demixing_psnr", value, "higher", f"dB where the other is visible, {half} pairs, known segmentations")
    right, before = (float(((mask > 0.5) == m.squeeze(1)).float().mean()) for mask in (known.mask, masks.squeeze(1)))
    runner.add("demixing_mask", right, "higher", f"accuracy per pixel; of the init: {before:.3f}")
    about = f"dB ahead of the mean of visible neighbours ({filled:.2f} dB), which knows the mask"
    runner.add("demixing_psnr_gain", value - filled, "higher", about)
    about = f"dB ahead of the mean of all neighbours ({smoothed:.2f} dB), which does not know it either"
    runner.add("demixing_psnr_gain_blind", value - smoothed, "higher", about)
    unknown = ask(sweeps=runner.count(100, 2), chains=runner.count(4, 1))  # random masks need longer chains
    value = measures.demixing_psnr(unknown, *pair, m, ordered=False)
    runner.add("demixing_psnr_unknown", value, "higher", "dB, unknown segmentations")
    value = measures.demixing_psnr(ask(segmentations, mask=m), *pair, m)
    runner.add("demixing_psnr_gain_told", value - filled, "higher", "dB ahead, if ours knows the mask too")
    some = slice(0, 10)
    pairs = (("known s", known), ("unknown s", unknown))
    rows = [(name, tasks.Demixed(each.first[some], each.second[some], each.mask[some])) for name, each in pairs]
    figure = pictures.demixed(first.state["x"][some], second.state["x"][some], mixed[some], rows)
    runner.show("Demixing", "Two copies of the model and a mask in one chain (fig:celeba_demix).", figure)


def first_masks(
    runner: FacesRunner, model: pc.JointModel, mixed: Tensor, segmentations: tuple[Tensor, Tensor]
) -> Tensor:
    """Probabilities that pixels are from the second face, by a cartoon of the training faces."""
    rows = runner.train.mask["s"].flatten(1).all(1)
    learned = runner.train[rows.nonzero().squeeze(1)[: runner.count(2000, 20)]]
    cartoon = Cartoon.fit(learned.state["x"].to(runner.device), label_maps(model, learned.state["s"], runner.device))
    first, second = (label_maps(model, s, runner.device) for s in segmentations)
    return cartoon.mask(mixed.to(runner.device), first, second).cpu()


def label_maps(model: pc.JointModel, s: Tensor, device: str) -> Tensor:
    return label_map(tasks.masks(model, s.to(device)))


def switching(runner: FacesRunner, model: pc.JointModel) -> None:
    """Pairs that differ in one attribute, judged by a classifier trained on real images."""
    judge = baselines.judge(runner.train, runner.device, task_training(runner))
    rows = runner.test.mask["c"].all(1)
    decided = judge.decide(runner.test.state["x"][rows]).cpu()
    attributes = runner.attributes(runner.count(1000, 8), seed=2)
    for name in [n for n in SWITCHED if n in runner.names]:
        index = runner.names.index(name)
        right = baselines.balanced_accuracy(decided[:, index], runner.test.state["c"][rows][:, index])
        key = "switch_success" if name == SWITCHED[0] else f"switch_success_{name.lower()}"
        about = f"{name} off and on, {len(attributes)} pairs; the judge is right in {right:.1%}"
        for guidance in (WEIGHT, 0.0):
            pair = tasks.switched(model, attributes, index, runner.count(100, 2), guidance=guidance)
            images = [tasks.shown(model, state) for state in pair]
            judged(runner, judge, images, index, key if guidance else f"{key}_unguided", about)
            show_switch(runner, model, name, guidance, pair, images)


def judged(runner: FacesRunner, judge: baselines.Judge, images: list[Tensor], index: int, key: str, about: str) -> None:
    """Whether the attribute `index` changes, and how much the whole image changes."""
    off, on = images
    runner.add(key, baselines.switch_success(judge, off, on, index), "higher", about)
    half = baselines.switch_success(judge, off, on, index, balanced=False)
    runner.add(f"{key}_at_half", half, "higher", "the same, with the judge's threshold at one half")
    gap = float((on - off).square().mean().sqrt())
    runner.add(f"{key}_rms", gap, "lower", "distance of the two images")


def show_switch(runner: FacesRunner, model: pc.JointModel, name: str, guidance: float, pair, images) -> None:
    some = slice(0, 12)
    seen = [{k: v[some] for k, v in state.items()} for state in pair]
    shown = [(image[some].cpu(), tasks.shown_masks(model, s)) for image, s in zip(images, seen, strict=True)]
    about = f"All other attributes alike (fig:celeba_cond), the rest redrawn; guidance {guidance:g}."
    runner.show(f"{name} off and on, guidance {guidance:g}", about, pictures.switch(shown[0], shown[1], name))


def other_factors(runner: FacesRunner, model: pc.JointModel) -> None:
    """Super-resolution and colourisation, which are not in the paper."""
    truth = runner.segmented.state["x"][: runner.count(200, 4)]
    small, grey = tasks.shrunk(truth), tasks.greyed(truth)
    options = {"sweeps": runner.count(5, 2), "chains": runner.count(16, 1)}
    large, colours = tasks.super_resolved(model, small, **options), tasks.colourised(model, grey, **options)
    gain = psnr(large, truth) - psnr(tasks.enlarged(small), truth)
    runner.add("super_resolution_psnr_gain", gain, "higher", "dB ahead of bicubic, 16 x 16 to 64 x 64")
    gain = psnr(colours, truth) - psnr(grey.expand_as(truth), truth)
    runner.add("colourisation_psnr_gain", gain, "higher", "dB ahead of grey")
    some = slice(0, 12)
    figure = pictures.restored(small[some], large[some], grey[some], colours[some], truth[some])
    runner.show("Super-resolution, colourisation", "One deterministic factor each, by `compose`.", figure)


DIRECTIONS = (generation, reading, segmentation_control, demixing, switching, other_factors)
