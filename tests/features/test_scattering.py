"""Scattering: kymatio's values, contractive, each image for itself."""

import numpy as np
import pytest
import torch

from alidpfl.errors import ConfigError
from alidpfl.features import scattering
from alidpfl.features.scattering import PATHS, Scattering
from tests.features import make_reference


@pytest.fixture(scope="module")
def reference():
    with np.load(make_reference.FILE, allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.mark.parametrize(("channels", "side"), make_reference.SHAPES)
def test_the_values_are_those_of_kymatio(reference, channels, side):
    pixels, expected = (reference[f"{what}_{channels}x{side}"] for what in ("images", "scattering"))
    values = Scattering(side)(torch.from_numpy(pixels).float() / 255)
    assert values.shape == expected.shape == (2, channels, PATHS, side // 4, side // 4)
    np.testing.assert_allclose(values, expected, rtol=2e-5, atol=1e-7)


def test_the_reference_tells_all_paths_apart(reference):
    """Otherwise two paths could change places unnoticed."""
    paths = torch.from_numpy(reference["scattering_1x28"]).transpose(0, 2).flatten(1)  # (81, values)
    distance = torch.cdist(paths, paths).fill_diagonal_(1)
    assert distance.min() > 1e-3


@pytest.mark.parametrize("side", [12, 28])
def test_the_transform_is_contractive(side):
    """‖S(x) − S(y)‖ ≤ ‖x − y‖: no change of a pixel is blown up, whichever images and however close."""
    draw = torch.Generator().manual_seed(0)
    transform = Scattering(side)
    ones = torch.rand(40, side, side, generator=draw)
    for others in (
        torch.rand(40, side, side, generator=draw),
        ones + 1e-3 * torch.randn(40, side, side, generator=draw),
        ones.flip(-1),
        ones + 0.1,
        torch.zeros(40, side, side),
    ):
        moved = (transform(ones) - transform(others)).flatten(1).norm(dim=1)
        assert (moved <= (ones - others).flatten(1).norm(dim=1)).all()
        assert (moved > 0).all()


def test_a_flat_image_has_only_its_mean():
    values = Scattering(16)(torch.full((1, 16, 16), 0.7))
    assert values[:, 0].sub(0.7).abs().max() < 1e-3  # 3.1415 for π, and a Gaussian that is cut off
    assert values[:, 1:].abs().max() < 1e-6


@pytest.mark.parametrize("scale", [0, 1])
def test_wavelets_turn_and_flip_into_one_another(scale):
    spectra = torch.from_numpy(scattering.wavelet_spectra(20, scale))
    negated = -torch.arange(20) % 20
    for i in range(8):
        quarter_turn = spectra[i].t()[negated] if i >= 4 else spectra[i].t()[:, negated]  # (k, l) -> ±(l, -k)
        torch.testing.assert_close(spectra[(i - 4) % 8], quarter_turn)
        # Angle θ becomes -θ; half a turn more is the complex conjugate, which has the same modulus.
        flipped = spectra[i][:, negated] if i < 7 else spectra[i][negated]
        torch.testing.assert_close(spectra[(6 - i) % 8], flipped)


def test_images_do_not_meet():
    images = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    changed = images.clone()
    changed[2] = 1 - changed[2]
    before, after = Scattering(8)(images), Scattering(8)(changed)
    assert not torch.equal(before[2], after[2])
    others = [0, 1, 3, 4]
    assert torch.equal(before[others], after[others])


def test_how_images_are_shared_out_does_not_matter(monkeypatch):
    images = torch.rand(10, 12, 12, generator=torch.Generator().manual_seed(3))
    whole = Scattering(12)(images)
    monkeypatch.setattr(scattering, "_IMAGES_AT_A_TIME", 3)
    torch.testing.assert_close(Scattering(12)(images), whole, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("side", [0, 2, 30])
def test_a_side_that_is_no_multiple_of_four_is_refused(side):
    with pytest.raises(ConfigError, match=f"side {side}"):
        Scattering(side)
