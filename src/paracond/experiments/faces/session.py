"""A run of the recipe for faces: its settings, its data, what the paper reports and what must be reached."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

import paracond as pc
from paracond.datasets.faces import load, of_split
from paracond.experiments.common.notebook import Notebook
from paracond.experiments.common.results import PresetConfig, choose_device
from paracond.experiments.faces.model import Design
from paracond.metrics.fid import FID, Extractor

PAPER_REPORTS = {"fid": 46.45}
GOALS = {
    "fid": 46.0,
    "f1_gap": -0.02,
    "f1_hidden_ratio": 0.85,
    "attribute_accuracy": 0.89,
    "inpainting_psnr_gain": 5.0,
    "inpainting_over_telea": 0.0,
    "demixing_psnr_gain": 5.0,
    "switch_success": 0.8,
    "update_ms": 6.0,
    "training_minutes": 60.0,
    "minutes_30k_images": 3.0,
    "union_gain_f1": 0.0,
    "union_gain_accuracy": 0.0,
    "union_gain_fid": 0.0,
}


@dataclass(frozen=True)
class Config(PresetConfig):
    """Faces: images, segmentations, attributes and latents in one model (section 5.4)."""

    out: Path = Path("runs/faces")
    data: Path | None = None
    """folder with faces64.npz or CelebAMask-HQ (if not given: $PARACOND_DATA)"""
    compile: bool = False
    """fuse the networks with torch.compile (on CUDA only): takes minutes once"""
    generated: int = 20_000
    """images for the FID"""
    variants: tuple[str, ...] = ("union", "masks", "warm", "warm_all", "parallel")
    """which single choices are measured: some of union, masks, warm, warm_all, parallel; all of them are seven more
    trainings, about two minutes each on an H200 (none: --variants and nothing)"""
    variant_updates: int = 30_000
    """of each of these"""


@dataclass(kw_only=True)
class Session(Notebook):
    """One run: the data, and what has been found so far."""

    config: Config
    train: pc.Data
    apart: pc.Data
    """training faces that are not learned from: by these, and not by test faces, one may choose"""
    test: pc.Data
    names: tuple[str, ...]
    fid: FID | None

    def most(self, count: int, quick: int = 4) -> int:
        """How many of something, which are few in a quick run."""
        return quick if self.config.quick else count

    @property
    def segmented(self) -> pc.Data:
        """Test faces with segmentations."""
        return self.test[self.test.mask["s"].flatten(1).all(1).nonzero().squeeze(1)[: self.most(400, 8)]]

    def attributes(self, count: int, seed: int = 0) -> Tensor:
        """Attributes of training faces, drawn at random."""
        known = self.train.state["c"][self.train.mask["c"].all(1)]
        rows = torch.randint(len(known), (count,), generator=torch.Generator().manual_seed(seed))
        return known[rows].to(self.device)


def open_session(config: Config, design: Design) -> Session:
    device, began = choose_device(config.device), time.perf_counter()
    found = load(config.data)
    train_set, test_set = (of_split(found, split, design.segmentation) for split in ("train", "test"))
    if config.quick:
        train_set, test_set = few(train_set), few(test_set)
    train_set, apart = set_apart(train_set)
    session = Session(
        name="faces",
        title="Faces: five groups, three kinds of supervision, every direction (section 5.4)",
        about=f"p(x, s, c, y, z) of {len(train_set):,} faces, preset {config.preset}: {design}",
        settings=config,
        device=device,
        paper=PAPER_REPORTS,
        goals=GOALS,
        details={"design": asdict(design), "milestones": []},
        began=began,
        config=config,
        train=train_set,
        apart=apart,
        test=test_set,
        names=found.attribute_names,
        fid=None if config.quick else FID(Extractor.load(tf32=True), device, batch=1000 if device == "cuda" else 100),
    )
    if session.fid is not None:
        floors(session, session.fid)
        session.details["fid_protocol"] = session.fid.extractor.protocol
    return session


def few(data: pc.Data) -> pc.Data:
    """Some with everything, some with segmentations alone, some without these."""
    known, named = data.mask["s"].flatten(1).all(1), data.mask["c"].all(1)
    kinds = ((known & named, 12), (known & ~named, 8), (~known, 40))
    return data[torch.cat([rows.nonzero()[:most, 0] for rows, most in kinds])]


def set_apart(data: pc.Data, most: int = 300) -> tuple[pc.Data, pc.Data]:
    """What is learned from, and some that is not: of faces with segmentations and of those without, one in ten, at most
    `most`. They are the same every time."""
    known, generator = data.mask["s"].flatten(1).all(1), torch.Generator().manual_seed(0)
    chosen = torch.zeros(len(data), dtype=torch.bool)
    for rows in (known.nonzero().squeeze(1), (~known).nonzero().squeeze(1)):
        some = torch.randperm(len(rows), generator=generator)[: min(most, -(-len(rows) // 10))]
        chosen[rows[some]] = True
    return data[~chosen], data[chosen]


def floors(session: Session, fid: FID) -> None:
    """What real faces have: two halves of all of them; and test faces against training faces, with which it stays."""
    training = torch.cat([session.train.state["x"], session.apart.state["x"]])
    real = torch.cat([training, session.test.state["x"]])
    order = torch.randperm(len(real), generator=torch.Generator().manual_seed(0))
    first, second = order.chunk(2)
    cache = session.config.out / "cache"
    halves = fid.real(real[first], cache=cache).score(real[second])
    session.add("fid_floor", halves.value, "lower", f"{len(second)} real faces against {len(first)} others")
    floor = fid.real(training, cache=cache).floor(session.test.state["x"])
    session.add(
        "fid_floor_test", floor.value, "lower", f"{floor.generated_count} test faces against all training faces"
    )
