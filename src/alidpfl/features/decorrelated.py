"""Scattering coefficients, normalised for each image and turned into a basis where they are nearly uncorrelated."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from alidpfl.features.bases import dct_basis, low_frequencies, path_basis, plane_basis
from alidpfl.features.block import Block
from alidpfl.features.scattering import PATHS, STRIDE, Scattering

_PATHS_A_GROUP = 3


def scattering_block(channels: int, side: int, highest_frequency: int, *, flip_even: bool) -> Block:
    """Colours x paths x positions, each in its own orthonormal basis.

    Args:
        channels: of the images.
        side: of the images, in pixels.
        highest_frequency: coordinates are low up to this sum of row and column frequency.
        flip_even: keep only coordinates that stay as they are when the image is flipped from left to right. Not quite
            as they are: scattering is read at every fourth pixel from the first, and the flip has them 1.5 pixels off
            the middle of their cells.
    """
    cells = side // STRIDE
    paths, parity = path_basis()
    low = low_frequencies(cells, highest_frequency).expand(channels, PATHS, cells, cells).flatten()
    kept = torch.ones(channels, PATHS, cells, cells, dtype=torch.bool)
    if flip_even:  # a path's parity and that of the column frequency must cancel
        kept &= ((parity[:, None] + torch.arange(cells)) % 2 == 0)[:, None, :]
    places = kept.flatten().nonzero()[:, 0]
    transform, space, colours = Scattering(side), plane_basis(cells), dct_basis(channels)

    def compute(images: Tensor) -> Tensor:
        values = _normalised(transform(images).view(len(images), channels * PATHS, cells**2))
        values = paths @ (values @ space.t()).view(-1, PATHS, cells**2)
        values = (colours @ values.view(len(images), channels, -1)).flatten(1)
        return values.index_select(1, places) if flip_even else values

    return Block(name="scattering", grid=(channels * PATHS, cells**2), places=places, low=low[places], compute=compute)


def _normalised(values: Tensor) -> Tensor:
    """Mean 0 and variance 1 over three paths at a time, within one image: brightness and contrast go; norm below 1."""
    values = F.group_norm(values, values.shape[1] // _PATHS_A_GROUP, eps=1e-5)
    return values.div_(math.sqrt(values[0].numel()))
