"""Orthonormal bases in which neighbouring features are nearly uncorrelated, whatever the images.

Neighbouring pixels, angles and colours of natural images are alike, so a cosine or Fourier basis over them concentrates
the variance in few coordinates and separates what a noised linear model has to tell apart. The bases are fixed: using
them costs no privacy.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from alidpfl.features.morlet import ANGLES, FIRST_ANGLE


def dct_basis(size: int) -> Tensor:
    """(size, size) orthonormal cosine basis (DCT-II), one frequency a row, from the constant up.

    An odd frequency changes its sign when its axis is flipped, an even one does not.

    >>> dct_basis(1).tolist()
    [[1.0]]
    """
    frequency = torch.arange(size, dtype=torch.float64)[:, None]
    place = torch.arange(size, dtype=torch.float64)[None]
    waves = torch.cos(math.pi * (place + 0.5) * frequency / size)
    return F.normalize(waves).float()


def plane_basis(size: int) -> Tensor:
    """(size², size²) orthonormal cosine basis of small square images, flattened: products of `dct_basis` on both axes.

    One large matrix product is several times as fast as one along each axis of many images of 7x7 or 8x8.
    """
    return torch.kron(dct_basis(size), dct_basis(size))


def angle_basis() -> tuple[Tensor, Tensor]:
    """(8, 8) orthonormal Fourier basis over the angles of a filter bank, and the parity of each row.

    Flipping an image from left to right turns the angle θ into −θ. Angles are counted from the filter that is its own
    mirror image, so cosines stay as they are (parity 0) and sines change their sign (parity 1).
    """
    steps = torch.arange(ANGLES, dtype=torch.float64) - FIRST_ANGLE
    rows, parities = [torch.ones_like(steps)], [0]
    for frequency in range(1, ANGLES // 2):
        turn = 2 * math.pi * frequency * steps / ANGLES
        rows += [turn.cos(), turn.sin()]
        parities += [0, 1]
    rows.append(torch.cos(math.pi * steps))
    parities.append(0)
    return F.normalize(torch.stack(rows)).float(), torch.tensor(parities)


def path_basis() -> tuple[Tensor, Tensor]:
    """(81, 81) orthonormal basis over the paths of `scattering`, and the parity of each row under a left-right flip.

    The path without a wavelet stays; the eight paths of each scale are transformed over their angle, the 64 of second
    order over both angles.
    """
    angles, parity = angle_basis()
    basis = torch.block_diag(torch.ones(1, 1), angles, angles, torch.kron(angles, angles))
    second_order = (parity[:, None] ^ parity[None]).flatten()
    return basis, torch.cat([torch.zeros(1, dtype=parity.dtype), parity, parity, second_order])


def low_frequencies(size: int, highest: int) -> Tensor:
    """(size, size) bool: pairs of row and column frequency that sum to at most `highest`.

    >>> low_frequencies(3, 1).int().tolist()
    [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    """
    frequency = torch.arange(size)
    return frequency[:, None] + frequency[None] <= highest


def on_both_axes(matrix: Tensor, images: Tensor) -> Tensor:
    """(..., s, s) -> (..., r, r): the (r, s) `matrix` along the rows and along the columns of every image."""
    return matrix @ (images @ matrix.t())
