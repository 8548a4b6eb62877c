"""The blocks of fixed features: scattering, low frequencies of the image, and oriented filters.

Scattering takes the modulus, which loses the sign: light-to-dark and dark-to-light look alike. Oriented filters keep
it. They find edges and lines by direction at two scales. Their outputs are rectified, pooled, normalised by contrast
and cut to low frequencies. With `flip_even`, a block has only features that an image shares with its mirror image.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from alidpfl.features.blocks import Block, dct_basis, low_frequencies, on_both_axes, path_basis, plane_basis
from alidpfl.features.scattering import PATHS, STRIDE, Scattering

FILTERS = 16
"""Eight edges, a turn in steps of 45 degrees; four bright lines, a half turn, each followed by the dark one."""

_PATHS_A_GROUP = 3
_GREY = 0.5  # images are in [0, 1]; without it, their norm would mostly be their brightness
_SCALES = ((5, 1.0), (9, 2.0))  # width in pixels, standard deviation
_POOL, _STRIDE = 8, 4  # pixels that are averaged, and from one average to the next
_DARK = 0.02  # added to the contrast, so that rounding errors of an image without contrast do not become features
_DIRECTIONS = 4
# An edge turned by 180 degrees is the same filter with the other sign, and so is a dark line. So eight convolutions
# (four edges, four lines) are rectified with either sign. This gives each filter's place in (positive, negative).
_ORDER = torch.tensor([0, 1, 2, 3, 8, 9, 10, 11, 4, 12, 5, 13, 6, 14, 7, 15])
# Flipping the image from left to right turns an angle θ into π − θ, and each of the 16 filters into this one.
_FLIPPED = torch.tensor(
    [(4 - i) % 8 for i in range(8)] + [8 + 2 * (-i % 4) + sign for i in range(4) for sign in (0, 1)]
)


def scattering_block(image_shape: tuple[int, int, int], highest_frequency: int, *, flip_even: bool) -> Block:
    """Return colours x paths x positions, each in its own orthonormal basis. All frequencies are computed.

    `low` are those up to the sum `highest_frequency` of row and column frequency. With `flip_even`, features are only
    nearly equal for the mirror image: scattering is read at every fourth pixel from the first, and the flip moves them
    1.5 pixels off the middle of their cells.
    """
    channels, side, _ = image_shape
    cells = side // STRIDE
    paths, parity = path_basis()
    low = low_frequencies(cells, highest_frequency).expand(channels, PATHS, cells, cells).flatten()
    kept = torch.ones(channels, PATHS, cells, cells, dtype=torch.bool)
    if flip_even:  # a path's parity and that of the column frequency must cancel
        kept &= ((parity[:, None] + torch.arange(cells)) % 2 == 0)[:, None, :]
    places = kept.flatten().nonzero()[:, 0]
    transform, space, colours = Scattering(side), plane_basis(cells), dct_basis(channels)

    def compute(images: Tensor) -> Tensor:
        values = transform(images).view(len(images), channels * PATHS, cells**2)
        # Every three paths of an image get mean 0 and variance 1: no brightness, no contrast. Then the norm is below 1.
        values = F.group_norm(values, channels * PATHS // _PATHS_A_GROUP, eps=1e-5)
        values = values.div_(math.sqrt(values[0].numel()))
        values = paths @ (values @ space.t()).view(-1, PATHS, cells**2)
        values = (colours @ values.view(len(images), channels, -1)).flatten(1)
        return values.index_select(1, places) if flip_even else values

    return Block(name="scattering", grid=(channels * PATHS, cells**2), places=places, low=low[places], compute=compute)


def raw_block(image_shape: tuple[int, int, int], highest_frequency: int, *, flip_even: bool) -> Block:
    """Return the image in a basis of colours x cosines, up to a sum of row and column frequency."""
    channels, side, _ = image_shape
    kept = low_frequencies(side, highest_frequency)
    if flip_even:
        kept &= torch.arange(side) % 2 == 0
    rows = min(side, highest_frequency + 1)
    space, colours, cut = dct_basis(side)[:rows], dct_basis(channels), kept[:rows, :rows]

    def compute(images: Tensor) -> Tensor:
        values = on_both_axes(space, images - _GREY).flatten(2)[:, :, cut.flatten()]
        return (colours @ values).flatten(1) / side

    return _low_block("raw", kept, channels, compute)


def oriented_block(image_shape: tuple[int, int, int], highest_frequency: int, *, flip_even: bool) -> Block:
    """Return two scales x colours x 16 filters x positions. With `flip_even`, average with the flipped image."""
    channels, side, _ = image_shape
    cells = side // _STRIDE
    kept = low_frequencies(cells, highest_frequency)
    paths = len(_SCALES) * channels * FILTERS
    banks = [filter_bank(width, deviation) for width, deviation in _SCALES]
    pool, space, colours = pooling(side), plane_basis(cells)[kept.flatten()], dct_basis(channels)

    def compute(images: Tensor) -> Tensor:
        coloured = (colours @ images.flatten(2)).view(-1, 1, side, side)
        scales = []
        for bank in banks:
            response = F.conv2d(F.pad(coloured, [bank.shape[-1] // 2] * 4, mode="replicate"), bank)  # (m, 8, s, s)
            signs = [on_both_axes(pool, signed.relu()) for signed in (response, -response)]
            pooled = torch.cat(signs, 1)[:, _ORDER].view(-1, channels, FILTERS, cells, cells)
            if flip_even:
                pooled = (pooled + pooled[:, :, _FLIPPED].flip(-1)) / 2
            contrast = pooled.flatten(1).norm(dim=1).view(-1, 1, 1, 1, 1)
            scales.append((pooled / (contrast + _DARK)).sqrt_())
        values = torch.stack(scales, 1).flatten(-2) @ space.t()  # (n, scales, channels, 16, kept)
        return values.flatten(1) * (2 / math.sqrt(paths * cells**2))

    return _low_block("oriented", kept, paths, compute)


def _low_block(name: str, kept: Tensor, paths: int, compute: Callable[[Tensor], Tensor]) -> Block:
    """Return a block of the frequencies `kept` for every path. All of them count as low."""
    places = kept.expand(paths, *kept.shape).flatten().nonzero()[:, 0]
    low = torch.ones(len(places), dtype=torch.bool)
    return Block(name=name, grid=(paths, kept.numel()), places=places, low=low, compute=compute)


def filter_bank(width: int, deviation: float) -> Tensor:
    """Return edges, then lines, in four directions (8, 1, width, width), with mean 0 and absolute sum 1."""
    place = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    gaussian = torch.exp(-(place[:, None] ** 2 + place[None] ** 2) / (2 * deviation**2))
    edges, lines = [], []
    for step in range(_DIRECTIONS):
        turn = math.pi * step / _DIRECTIONS
        along = place[None] * math.cos(turn) + place[:, None] * math.sin(turn)
        edges.append(along * gaussian)
        line = (along**2 / deviation**2 - 1) * gaussian
        lines.append(line - gaussian * (line.sum() / gaussian.sum()))
    filters = torch.stack(edges + lines)
    return (filters / filters.abs().sum((1, 2), keepdim=True)).float()[:, None]


def pooling(side: int) -> Tensor:
    """Return the matrix (side / 4, side) of means over 8 pixels, every 4 pixels; at the borders over fewer."""
    start = torch.arange(side // _STRIDE)[:, None] * _STRIDE - (_POOL - _STRIDE) // 2
    place = torch.arange(side)[None]
    inside = ((place >= start) & (place < start + _POOL)).float()
    return inside / inside.sum(1, keepdim=True)
