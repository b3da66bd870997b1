"""A run of the faces experiment: settings, data, the paper's results and our goals."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

import paracond as pc
from paracond.datasets.faces import load, of_split
from paracond.experiments.common.config import PresetConfig
from paracond.experiments.common.images import make_fid
from paracond.experiments.common.results import choose_device
from paracond.experiments.common.runner import Runner
from paracond.experiments.faces.model import Design
from paracond.metrics.fid import FID

PAPER_RESULTS = {"fid": 46.45}
GOALS = {
    "fid": 46.0,
    "f1_gap": -0.02,
    "f1_hidden_ratio": 0.85,
    "attribute_accuracy": 0.89,
    "inpainting_psnr_gain": 5.0,
    "inpainting_over_telea": 0.0,
    "demixing_psnr_gain": 5.0,
    "switch_success": 0.8,
    "training_minutes": 60.0,
}


@dataclass(frozen=True)
class Config(PresetConfig):
    """Faces: images, segmentations, attributes and latents in one model (section 5.4)."""

    out: Path = Path("runs/faces")
    data: Path | None = None
    """folder with faces64.npz or CelebAMask-HQ (default: $PARACOND_DATA)"""
    compile: bool = False
    """fuse the networks with torch.compile (on CUDA only): takes minutes once"""
    generated: int = 20_000
    """number of images for the FID"""


@dataclass(kw_only=True)
class FacesRunner(Runner):
    """One run with its data.

    held_out: training faces that no model learns from, used for choices instead of test faces.
    names: of the attributes.
    fid: None in a quick run.
    """

    config: Config
    train: pc.Data
    held_out: pc.Data
    test: pc.Data
    names: tuple[str, ...]
    fid: FID | None

    @property
    def segmented(self) -> pc.Data:
        """Test faces with segmentations."""
        return self.test[self.test.mask["s"].flatten(1).all(1).nonzero().squeeze(1)[: self.count(400, 8)]]

    def attributes(self, count: int, seed: int = 0) -> Tensor:
        """Attributes of random training faces."""
        known = self.train.state["c"][self.train.mask["c"].all(1)]
        rows = torch.randint(len(known), (count,), generator=torch.Generator().manual_seed(seed))
        return known[rows].to(self.device)


def open_runner(config: Config, design: Design) -> FacesRunner:
    device, began = choose_device(config.device), time.perf_counter()
    faces = load(config.data)
    train_set, test_set = (of_split(faces, split, design.segmentation) for split in ("train", "test"))
    if config.quick:
        train_set, test_set = few(train_set), few(test_set)
    train_set, held_out = hold_out(train_set)
    runner = FacesRunner(
        name="faces",
        title="Faces: five groups, three kinds of supervision, every direction (section 5.4)",
        about=f"p(x, s, c, y, z) of {len(train_set):,} faces, preset {config.preset}: {design}",
        config=config,
        device=device,
        paper=PAPER_RESULTS,
        goals=GOALS,
        details={"design": asdict(design), "milestones": []},
        began=began,
        train=train_set,
        held_out=held_out,
        test=test_set,
        names=faces.attribute_names,
        fid=None if config.quick else make_fid(device),
    )
    if runner.fid is not None:
        floors(runner, runner.fid)
        runner.details["fid_protocol"] = runner.fid.extractor.protocol
    return runner


def few(data: pc.Data) -> pc.Data:
    """Some faces with everything, some with segmentations alone, some without segmentations."""
    known, named = data.mask["s"].flatten(1).all(1), data.mask["c"].all(1)
    kinds = ((known & named, 12), (known & ~named, 8), (~known, 40))
    return data[torch.cat([rows.nonzero()[:count, 0] for rows, count in kinds])]


def hold_out(data: pc.Data, limit: int = 300) -> tuple[pc.Data, pc.Data]:
    """Faces to learn from, and faces to hold out: a tenth of those with segmentations and of those without, at most
    `limit` of each, the same every time."""
    known, generator = data.mask["s"].flatten(1).all(1), torch.Generator().manual_seed(0)
    chosen = torch.zeros(len(data), dtype=torch.bool)
    for rows in (known.nonzero().squeeze(1), (~known).nonzero().squeeze(1)):
        some = torch.randperm(len(rows), generator=generator)[: min(limit, -(-len(rows) // 10))]
        chosen[rows[some]] = True
    return data[~chosen], data[chosen]


def floors(runner: FacesRunner, fid: FID) -> None:
    """FIDs of real faces: between two halves of all, and of test faces against training faces. The FID then keeps the
    training faces."""
    training = torch.cat([runner.train.state["x"], runner.held_out.state["x"]])
    real = torch.cat([training, runner.test.state["x"]])
    order = torch.randperm(len(real), generator=torch.Generator().manual_seed(0))
    first, second = order.chunk(2)
    cache = runner.config.out / "cache"
    halves = fid.real(real[first], cache=cache).score(real[second])
    runner.add("fid_floor", halves.value, "lower", f"{len(second)} real faces against {len(first)} others")
    floor = fid.real(training, cache=cache).score(runner.test.state["x"])
    runner.add("fid_floor_test", floor.value, "lower", f"{floor.generated_count} test faces against all training faces")
