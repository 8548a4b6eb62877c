"""Drawn things set upright: the slant of a hand and the place on the paper say nothing about a digit."""

import torch
from torch import Tensor
from torch.nn import functional as F

_STEEPEST = 1.0  # columns a row: 45 degrees
_LEAST_HEIGHT = 0.1  # squared pixels, so that a dot or a flat line has no slant


def upright(images: Tensor) -> Tensor:
    """Each image moved so that its brightness is centred, and sheared so that its rows' centres lie above each other.

    Args:
        images: (n, channels, side, side) float32 in [0, 1], bright on dark. Each is moved by its own moments only.

    >>> upright(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 1, 28, 28])
    """
    side = images.shape[-1]
    brightness = images.sum(1)
    at = torch.arange(side) - (side - 1) / 2
    total = brightness.sum((1, 2)).clamp(min=torch.finfo(torch.float32).tiny)
    rows, columns = brightness.sum(2), brightness.sum(1)
    y, x = (((line * at).sum(1) / total)[:, None] for line in (rows, columns))
    height = (rows * (at - y).square()).sum(1) / total
    slant = torch.einsum("nyx,ny,nx->n", brightness, at - y, at - x) / total
    shear = (slant / height.clamp(min=_LEAST_HEIGHT)).clamp(-_STEEPEST, _STEEPEST)
    half = (side - 1) / 2
    moves = images.new_zeros(len(images), 2, 3)
    moves[:, 0, 0] = moves[:, 1, 1] = 1
    moves[:, 0, 1], moves[:, 0, 2], moves[:, 1, 2] = shear, x[:, 0] / half, y[:, 0] / half
    grid = F.affine_grid(moves, list(images.shape), align_corners=True)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=True)
