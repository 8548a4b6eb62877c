"""Blocks of features, and the orthonormal bases in which neighbouring features are nearly uncorrelated.

Neighbouring pixels, angles and colours of natural images are alike. A cosine or Fourier basis over them concentrates
the variance in few coordinates, and separates what a noised linear model must tell apart. The bases are fixed, so that
using them costs no privacy.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from alidpfl.errors import ConfigError

SCALES, ANGLES = 2, 8
FIRST_ANGLE = ANGLES // 2 - 1
"""Filter i has the angle (FIRST_ANGLE − i) π / ANGLES, so that this one lies along the rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """One block of features: coordinates of a grid of paths x positions, and how to compute them.

    A path is one filter or colour, and a position is one spatial frequency. The coordinates are known before any image
    is seen. Only `compute` takes images.
    """

    name: str
    grid: tuple[int, int]
    """(paths, positions) of the whole grid."""
    places: Tensor
    """(size,) int64: each coordinate's place in the flattened grid, ascending."""
    low: Tensor
    """(size,) bool: coordinates of low spatial frequency, which a model uses."""
    compute: Callable[[Tensor], Tensor]
    """Maps images (n, channels, side, side) float32 in [0, 1] to features (n, size)."""

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return len(self.places)

    def to_grid(self, values: Tensor) -> Tensor:
        """Map (size,) to (paths, positions), with zeros where the block has no coordinate."""
        if values.shape != self.places.shape:
            raise ConfigError(f"values of shape {tuple(values.shape)}: block {self.name!r} needs ({self.size},)")
        flat = torch.zeros(self.grid[0] * self.grid[1], dtype=values.dtype)
        flat[self.places] = values
        return flat.view(self.grid)

    def from_grid(self, values: Tensor) -> Tensor:
        """Map (paths, positions) to (size,), the inverse of `to_grid`."""
        if values.shape != self.grid:
            raise ConfigError(f"values of shape {tuple(values.shape)}: block {self.name!r} needs {self.grid}")
        return values.flatten()[self.places]


def dct_basis(size: int) -> Tensor:
    """Return the orthonormal cosine basis (size, size), DCT-II, constant first. A flip negates odd frequencies."""
    place = torch.arange(size, dtype=torch.float64)
    waves = torch.cos(math.pi * (place + 0.5) * place[:, None] / size)
    return F.normalize(waves).float()


def plane_basis(size: int) -> Tensor:
    """Return the orthonormal cosine basis (size², size²) of flattened square images: products of `dct_basis`."""
    # For many images of 7x7 or 8x8, one large matrix product is several times as fast as one along each axis.
    return torch.kron(dct_basis(size), dct_basis(size))


def angle_basis() -> tuple[Tensor, Tensor]:
    """Return the orthonormal Fourier basis (8, 8) over the angles of a filter bank, and the parity of each row.

    Flipping an image from left to right turns the angle θ into −θ. Angles are counted from the filter that is its own
    mirror image. So cosines stay the same (parity 0) and sines change their sign (parity 1).
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
    """Return the orthonormal basis (81, 81) over the paths of `Scattering`, and each row's parity under a flip."""
    # The first path stays. The 8 paths of each scale are transformed over their angle, the 64 pairs over both angles.
    angles, parity = angle_basis()
    basis = torch.block_diag(torch.ones(1, 1), angles, angles, torch.kron(angles, angles))
    second_order = (parity[:, None] ^ parity[None]).flatten()
    return basis, torch.cat([torch.zeros(1, dtype=parity.dtype), parity, parity, second_order])


def low_frequencies(size: int, highest: int) -> Tensor:
    """Return the mask (size, size) of row and column frequencies with a sum of at most `highest`."""
    frequency = torch.arange(size)
    return frequency[:, None] + frequency[None] <= highest


def on_both_axes(matrix: Tensor, images: Tensor) -> Tensor:
    """Map (..., s, s) to (..., r, r): apply the (r, s) matrix along rows and columns of every image."""
    return matrix @ (images @ matrix.t())
