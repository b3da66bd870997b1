"""Measures of answers about faces: PSNR inside places, and F1 of segmentations."""

from __future__ import annotations

import torch
from torch import Tensor

from paracond.datasets.faces import LABELS
from paracond.experiments.faces.tasks import Demixed
from paracond.metrics.scores import f1, psnr


def psnr_inside(found: Tensor, truth: Tensor, where: Tensor) -> float:
    """PSNR in dB over the places `[n, 64, 64]` of images, all together."""
    return psnr(found.cpu(), truth.cpu(), where.cpu().unsqueeze(1))


def mean_f1(decided: Tensor, truth: Tensor) -> tuple[float, list[str]]:
    """Mean F1 over the classes of 18 masks, and the names of classes that are left out because both sides are
    empty."""
    scores = f1(decided.cpu(), truth.cpu())
    absent = [name for name, score in zip(LABELS, scores.tolist(), strict=True) if score != score]
    return float(scores.nanmean()), absent


def f1_ratio(hidden: Tensor, whole: Tensor, truth: Tensor, where: Tensor) -> float:
    """Mean F1 inside `where` `[n, 64, 64]` of masks from images with `where` hidden, as a share of that of masks from
    whole images; over the classes that occur there."""
    there = _within(truth, where)
    present = there.transpose(0, 1).flatten(1).any(1)
    first, second = (f1(_within(each, where), there)[present].mean() for each in (hidden, whole))
    return float(first / second)


def _within(masks: Tensor, where: Tensor) -> Tensor:
    return masks.cpu().bool() & where.cpu().unsqueeze(1)


def demixing_psnr(found: Demixed, first: Tensor, second: Tensor, m: Tensor, ordered: bool = True) -> float:
    """PSNR of both images where the other is visible, all together. If the pairs are not `ordered`, each is taken in
    the order that fits better."""
    truth = torch.cat([first, second]).cpu()
    hidden = torch.cat([m, ~m]).squeeze(1).cpu()
    pair = torch.stack([found.first, found.second])
    if not ordered:
        gaps = [((each - torch.stack([first, second]).cpu()) ** 2).sum((0, 2, 3, 4)) for each in (pair, pair.flip(0))]
        pair = torch.where((gaps[1] < gaps[0]).view(1, -1, 1, 1, 1), pair.flip(0), pair)
    return psnr_inside(pair.flatten(0, 1), truth, hidden)
