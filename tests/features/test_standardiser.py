"""Features made into vectors of fixed length: each from its own image and the two statistics."""

import math

import pytest
import torch

from alidpfl.errors import DataError
from alidpfl.features import FeatureMap, Standardiser

from .test_maps import pixels

MAP = FeatureMap(image_shape=(1, 16, 16), scattering_frequencies=3)
SIZE = sum(block.size for block in MAP.blocks)
SCATTERING = MAP.blocks[0]


def standardiser(variance=None, mean=None):
    mean = torch.zeros(SIZE) if mean is None else mean
    variance = torch.ones(SCATTERING.size) if variance is None else variance
    return Standardiser.from_statistics(MAP, mean=mean, variance=variance)


def test_every_vector_has_the_same_length():
    mean = torch.cat([values.mean(0) for values in MAP.compute(pixels(8, seed=1)).values()])
    vectors = standardiser(torch.rand(SCATTERING.size), mean).vectors(MAP.compute(pixels(20)))
    assert vectors.shape == (20, standardiser().size)
    torch.testing.assert_close(vectors.norm(dim=1), torch.full((20,), math.sqrt(1.01)))
    low = int(SCATTERING.low.sum())
    parts = vectors.split([low, MAP.blocks[1].size, MAP.blocks[2].size, 1], dim=1)
    for part, squared in zip(parts, (0.5, 0.15, 0.35, 0.01), strict=True):
        torch.testing.assert_close(part.square().sum(1), torch.full((20,), squared))


def test_a_vector_depends_on_its_own_image_only():
    images = pixels(6)
    changed = images.clone()
    changed[2] = 255 - changed[2]
    before, after = (standardiser().vectors(MAP.compute(part)) for part in (images, changed))
    assert not torch.equal(before[2], after[2])
    others = [0, 1, 3, 4, 5]
    assert torch.equal(before[others], after[others])


def test_an_image_at_the_mean_gives_zeros_not_nan():
    features = MAP.compute(pixels(1))
    mean = torch.cat([values[0] for values in features.values()])
    vector = standardiser(mean=mean).vectors(features)[0]
    assert torch.equal(vector[:-1], torch.zeros(len(vector) - 1))


def test_what_varies_more_is_scaled_less():
    """Path by path: rank two, and a floor of a tenth of the mean under the fourth root."""
    paths = torch.rand(SCATTERING.grid[0], 1) + 0.1
    grid = paths.expand(SCATTERING.grid)
    found = standardiser(SCATTERING.from_grid(grid)).scale
    expected = (SCATTERING.from_grid(grid) + 0.1 * grid.mean()).pow(-0.25)[SCATTERING.low]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variance", [0.0, -1.0])
def test_noise_may_have_left_no_variance_at_all(variance):
    found = standardiser(torch.full((SCATTERING.size,), variance))
    assert bool(torch.isfinite(found.scale).all())
    assert bool(torch.isfinite(found.vectors(MAP.compute(pixels(3)))).all())


def test_noise_of_the_variances_is_averaged_out():
    random = torch.Generator().manual_seed(0)
    true = torch.rand(SCATTERING.grid[0], 1, generator=random) + 0.5
    true = SCATTERING.from_grid(true * (torch.rand(1, SCATTERING.grid[1], generator=random) + 0.5))
    noised = true + 0.3 * torch.randn(len(true), generator=random)
    with_noise, without = (standardiser(v).scale for v in (noised, true))
    plain = (noised.clamp(min=0) + 0.1 * noised.mean()).pow(-0.25)[SCATTERING.low]
    assert (with_noise - without).norm() < 0.7 * (plain - without).norm()


def test_other_sizes_are_refused():
    with pytest.raises(DataError, match="3 and 4"):
        Standardiser(feature_map=MAP, mean=torch.zeros(3), scale=torch.zeros(4))
