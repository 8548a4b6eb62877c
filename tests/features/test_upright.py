"""Set upright: a slanted, shifted copy of an image becomes nearly the same as the image."""

import pytest
import torch
from torch.nn import functional as F

from alidpfl.features import FeatureMap
from alidpfl.features.maps import upright


def letter():
    """An L with a foot: no symmetry of its own."""
    image = torch.zeros(1, 1, 28, 28)
    image[0, 0, 7:21, 12:15] = 1
    image[0, 0, 18:21, 12:20] = 1
    return F.avg_pool2d(F.pad(image, [1] * 4), 3, 1)


def moved(image, *, shear=0.0, right=0, down=0):
    """Seen from where the letter was: rows shifted in proportion to their height, then the whole."""
    turns = torch.tensor([[[1.0, shear, 0], [0, 1, 0]]])
    slanted = F.grid_sample(image, F.affine_grid(turns, [1, 1, 28, 28], align_corners=True), align_corners=True)
    return slanted.roll((down, right), (2, 3))


@pytest.mark.parametrize(
    "change", [{"shear": 0.4}, {"shear": -0.3}, {"right": 3, "down": -2}, {"shear": 0.3, "down": 3}]
)
def test_slant_and_place_are_taken_away(change):
    plain, other = letter(), moved(letter(), **change)
    before, after = (plain - other).norm(), (upright(plain) - upright(other)).norm()
    assert after < 0.3 * before


def test_what_is_upright_stays():
    straight = torch.zeros(1, 1, 28, 28)
    straight[0, 0, 6:22, 12:16] = 1
    torch.testing.assert_close(upright(straight), straight, rtol=0, atol=1e-5)


@pytest.mark.parametrize("image", [torch.zeros(1, 1, 28, 28), torch.ones(1, 3, 32, 32)])
def test_nothing_to_see_is_left_alone(image):
    torch.testing.assert_close(upright(image), image, rtol=0, atol=1e-5)


def test_a_single_bright_corner_is_no_slant():
    image = torch.zeros(1, 1, 28, 28)
    image[0, 0, 0, 27] = 1e-3
    assert bool(torch.isfinite(upright(image)).all())


def test_images_do_not_mix():
    images = torch.rand(5, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    changed = images.clone()
    changed[3] = 1 - changed[3].square()
    before, after = upright(images), upright(changed)
    assert torch.equal(before[[0, 1, 2, 4]], after[[0, 1, 2, 4]])
    assert not torch.equal(before[3], after[3])


def test_the_map_uses_it_and_its_cache_is_another():
    plain = FeatureMap(image_shape=(1, 28, 28), scattering_frequencies=6)
    straight = FeatureMap(image_shape=(1, 28, 28), scattering_frequencies=6, sets_upright=True)
    assert plain.value_key != straight.value_key
    images = (torch.cat([letter(), moved(letter(), shear=0.4)]) * 255).to(torch.uint8)
    distances = [
        float((features["scattering"][0] - features["scattering"][1]).norm())
        for features in (plain.compute(images), straight.compute(images))
    ]
    assert distances[1] < 0.5 * distances[0]
