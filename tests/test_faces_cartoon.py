"""The cartoon that demixing begins at: against dense Gaussian arithmetic, and on faces drawn from it."""

import pytest
import torch

from paracond.datasets.faces import LABELS
from paracond.experiments.faces import cartoon
from paracond.experiments.faces.tasks import mix

SKIN, NOSE, HAIR, HAT = (LABELS.index(name) + 1 for name in ("skin", "nose", "hair", "hat"))


def label_maps(count, seed):
    """A disc of skin, of some size and place, with hair over it."""
    generator = torch.Generator().manual_seed(seed)
    row, column = torch.arange(64).view(1, 64, 1), torch.arange(64).view(1, 1, 64)
    middle = torch.randint(26, 38, (2, count, 1, 1), generator=generator)
    radius = torch.randint(12, 22, (count, 1, 1), generator=generator)
    disc = (row - middle[0]) ** 2 + (column - middle[1]) ** 2 < radius**2
    hair = (row < middle[0] - radius // 2) & (row > 6)
    return torch.where(hair.expand(count, 64, 64), HAIR, torch.where(disc, SKIN, 0))


def coloured(labels, seed, noise=0.03):
    """A colour for each label of each face, and noise."""
    generator = torch.Generator().manual_seed(seed)
    colours = torch.rand(len(labels), 19, 3, generator=generator)
    images = colours.gather(1, labels.flatten(1).unsqueeze(2).expand(-1, -1, 3)).transpose(1, 2).unflatten(2, (64, 64))
    return images + noise * torch.randn(images.shape, generator=generator)


def test_labels_of_like_colours_are_one_region():
    assert cartoon.REGION[SKIN] == cartoon.REGION[NOSE] != cartoon.REGION[HAIR] != cartoon.REGION[HAT]
    assert cartoon.REGION[0] == 0 and len(cartoon.REGION) == 19 and cartoon.COUNT == 12


def test_a_field_is_the_posterior_of_weighted_pixels():
    """Bayesian linear regression, written out: one row of the design for each colour of each pixel."""
    labels = label_maps(30, 0)
    found = cartoon.Cartoon.fit(coloured(labels, 1), labels)
    x, regions = cartoon._pixels(coloured(labels[:1], 2)), cartoon._region_of(labels[:1])
    weight = torch.rand(1, 4096, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    scores, _ = found._fit(x, regions, weight, found.noise.unsqueeze(0))
    b, k = cartoon.places(), int(cartoon.REGION[SKIN])
    inside = (regions[0] == k).nonzero().squeeze(1)
    design = torch.kron(b[inside].contiguous(), torch.eye(3, dtype=torch.float64))  # [pixels * 3, terms * 3]
    sharp = torch.block_diag(*(float(weight[0, i]) * torch.linalg.inv(found.noise[k]) for i in inside))
    precision = design.T @ sharp @ design + found.precision[k]
    mean = torch.linalg.solve(precision, design.T @ sharp @ x[0, inside].flatten() + found.precision[k] @ found.mean[k])
    for j in (0, 7, len(inside) - 1):
        rows = design[3 * j : 3 * j + 3]
        covariance = rows @ torch.linalg.solve(precision, rows.T) + found.noise[k]
        law = torch.distributions.MultivariateNormal(rows @ mean, covariance)
        wanted = law.log_prob(x[0, inside[j]]) + 1.5 * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
        torch.testing.assert_close(scores[0, inside[j]], wanted, rtol=1e-6, atol=1e-6)


def test_the_mask_is_found_where_colours_tell():
    labels = label_maps(60, 0)
    found = cartoon.Cartoon.fit(coloured(labels, 1), labels)
    first, second = label_maps(6, 10), label_maps(6, 11)
    one, other = coloured(first, 20), coloured(second, 21)
    mixed, m = mix(one, other, seed=5)
    chance = found.mask(mixed, first, second)
    assert chance.shape == (6, 1, 64, 64) and chance.dtype == mixed.dtype
    apart = (one - other).square().sum(1, keepdim=True).sqrt() > 0.3  # ten times the noise
    right = [float(((chance > 0.5) == m)[k][apart[k]].float().mean()) for k in range(6)]
    assert sorted(right)[1] > 0.99 and min(right) > 0.5, right  # one may have two regions the wrong way round
    turned = found.mask(mixed, second, first)  # first and second change places
    torch.testing.assert_close(turned, 1 - chance, rtol=0, atol=1e-6)


def test_a_region_that_no_face_has_says_little():
    labels = torch.zeros(3, 64, 64, dtype=torch.long)
    found = cartoon.Cartoon.fit(coloured(labels, 1), labels)
    k = int(cartoon.REGION[HAT])
    assert found.mean[k].view(-1, 3)[0].tolist() == pytest.approx([0.5] * 3)
    assert found.noise[k].diagonal().tolist() == pytest.approx([0.01] * 3)
