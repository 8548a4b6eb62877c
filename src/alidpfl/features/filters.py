"""Edges and lines by direction: rectified oriented filters at two scales, pooled, normalised by contrast, low pass.

Scattering takes the modulus, which forgets the sign: light-to-dark and dark-to-light look alike. These filters keep it.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from alidpfl.features.blocks import Block, dct_basis, low_frequencies, on_both_axes, path_basis, plane_basis
from alidpfl.features.scattering import PATHS, STRIDE, Scattering

FILTERS = 16
"""Eight edges, a turn in steps of 45 degrees; four bright lines, a half turn, each followed by the dark one."""

_SCALES = ((5, 1.0), (9, 2.0))  # width in pixels, standard deviation
_POOL, _STRIDE = 8, 4  # pixels that are averaged, and from one average to the next
_DARK = 0.02  # added to the contrast: in an image without any, rounding errors must not become features
_DIRECTIONS = 4
# An edge turned by 180 degrees is the same filter with the other sign, and so is a dark line. So there are eight
# convolutions (four edges, four lines), rectified with either sign: this is where in (positive, negative) each stands.
_ORDER = torch.tensor([0, 1, 2, 3, 8, 9, 10, 11, 4, 12, 5, 13, 6, 14, 7, 15])
# What each of the 16 becomes when the image is flipped from left to right: an angle θ becomes π − θ.
_FLIPPED = torch.tensor(
    [(4 - i) % 8 for i in range(8)] + [8 + 2 * (-i % 4) + sign for i in range(4) for sign in (0, 1)]
)


def oriented_block(channels: int, side: int, highest_frequency: int, *, flip_even: bool) -> Block:
    """Two scales x colours x 16 filters x positions; with `flip_even`, the mean with the flipped image's."""
    cells = side // _STRIDE
    kept = low_frequencies(cells, highest_frequency)
    paths = len(_SCALES) * channels * FILTERS
    places = kept.expand(paths, cells, cells).flatten().nonzero()[:, 0]
    banks = [filter_bank(width, deviation) for width, deviation in _SCALES]
    pool, space, colours = pooling(side), plane_basis(cells)[kept.flatten()], dct_basis(channels)

    def compute(images: Tensor) -> Tensor:
        coloured = (colours @ images.flatten(2)).view(-1, 1, side, side)
        scales = []
        for bank in banks:
            pooled = _rectified(coloured, bank, pool).view(-1, channels, FILTERS, cells, cells)
            if flip_even:
                pooled = (pooled + pooled[:, :, _FLIPPED].flip(-1)) / 2
            contrast = pooled.flatten(1).norm(dim=1).view(-1, 1, 1, 1, 1)
            scales.append((pooled / (contrast + _DARK)).sqrt_())
        values = torch.stack(scales, 1).flatten(-2) @ space.t()  # (n, scales, channels, 16, kept)
        return values.flatten(1) * (2 / math.sqrt(paths * cells**2))

    return Block.all_low(name="oriented", grid=(paths, cells**2), places=places, compute=compute)


def filter_bank(width: int, deviation: float) -> Tensor:
    """(8, 1, width, width): edges, then lines, in four directions; mean 0, sum of sizes 1."""
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
    """(side / 4, side): along one axis, means over windows of 8 pixels, every 4; at the borders, of what is inside."""
    start = torch.arange(side // _STRIDE)[:, None] * _STRIDE - (_POOL - _STRIDE) // 2
    place = torch.arange(side)[None]
    inside = ((place >= start) & (place < start + _POOL)).float()
    return inside / inside.sum(1, keepdim=True)


def _rectified(images: Tensor, bank: Tensor, pool: Tensor) -> Tensor:
    """(m, 1, s, s) -> (m, 16, s/4, s/4)."""
    margin = bank.shape[-1] // 2
    response = F.conv2d(F.pad(images, [margin] * 4, mode="replicate"), bank)  # (m, 8, s, s)
    signs = [on_both_axes(pool, signed.relu()) for signed in (response, -response)]
    return torch.cat(signs, 1)[:, _ORDER]


_GREY = 0.5  # images are in [0, 1]: without it, their norm would mostly be their brightness


def raw_block(channels: int, side: int, highest_frequency: int, *, flip_even: bool) -> Block:
    """Low frequencies of the image; with `flip_even` only those that a left-right flip leaves as they are."""
    kept = low_frequencies(side, highest_frequency)
    if flip_even:
        kept &= torch.arange(side) % 2 == 0
    places = kept.expand(channels, side, side).flatten().nonzero()[:, 0]
    rows = min(side, highest_frequency + 1)
    space, colours, cut = dct_basis(side)[:rows], dct_basis(channels), kept[:rows, :rows]

    def compute(images: Tensor) -> Tensor:
        values = on_both_axes(space, images - _GREY).flatten(2)[:, :, cut.flatten()]
        return (colours @ values).flatten(1) / side

    return Block.all_low(name="raw", grid=(channels, side**2), places=places, compute=compute)


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
