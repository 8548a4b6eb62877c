"""Bases: orthonormal, and with the parity they claim."""

import pytest
import torch

from alidpfl.features.blocks import angle_basis, dct_basis, low_frequencies, on_both_axes, path_basis, plane_basis
from alidpfl.features.scattering import PATHS, Scattering


@pytest.mark.parametrize(
    "basis",
    [dct_basis(1), dct_basis(3), dct_basis(28), plane_basis(7), angle_basis()[0], path_basis()[0]],
    ids=["colour 1", "colour 3", "side 28", "plane 7", "angles", "paths"],
)
def test_bases_are_orthonormal(basis):
    torch.testing.assert_close(basis @ basis.t(), torch.eye(len(basis)), rtol=0, atol=1e-6)


def test_cosines_are_even_or_odd():
    basis = dct_basis(8)
    sign = torch.tensor([1.0, -1.0]).repeat(4)[:, None]
    torch.testing.assert_close(basis.flip(1), sign * basis)
    assert (basis[0] > 0).all()


def test_the_plane_is_the_product_of_both_axes():
    images = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    expected = on_both_axes(dct_basis(5), images)
    torch.testing.assert_close(images.flatten(-2) @ plane_basis(5).t(), expected.flatten(-2))


def test_frequencies_of_angles_ascend():
    """Sign changes around the circle of angles: none, then two for each frequency."""
    basis, _ = angle_basis()
    basis = torch.where(basis.abs() < 1e-6, 0.0, basis)
    changes = []
    for row in basis:
        signs = row[row != 0].sign()
        changes.append(int((signs != signs.roll(1)).sum()))
    assert changes == [0, 2, 2, 4, 4, 6, 6, 8]


def test_parity_is_what_a_flip_does_to_scattering():
    """Coefficients in the basis keep or change their sign, as told, when the image is flipped from left to right."""
    image = torch.rand(1, 32, 32, generator=torch.Generator().manual_seed(1))
    basis, parity = path_basis()
    # What is kept is every fourth pixel from the first, so the flip must be one about such a pixel.
    flipped = image.flip(-1).roll(1, -1)
    image[..., 0], flipped[..., 0] = 0, 0
    values, mirrored = ((basis @ Scattering(32)(x)[0].flatten(1)).view(PATHS, 8, 8)[:, 3:5] for x in (image, flipped))
    sign = 1 - 2 * parity[:, None, None].float()
    inner, expected = mirrored[..., 3:6], (sign * values.flip(-1))[..., 2:5]
    assert torch.nn.functional.cosine_similarity(inner.flatten(), expected.flatten(), 0) > 0.999
    odd = parity == 1
    assert torch.nn.functional.cosine_similarity(inner[odd].flatten(), expected[odd].flatten(), 0) > 0.99


def test_low_frequencies_count():
    assert [int(low_frequencies(7, highest).sum()) for highest in (0, 6, 8, 12)] == [1, 28, 39, 49]
