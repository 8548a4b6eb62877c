"""What a block of features is: coordinates cut out of a grid of paths x positions."""

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
    """One block of features: its coordinates, where they come from, and how they are computed.

    A feature is one spatial frequency ("position") of one filter or colour ("path"). Which coordinates there are is
    known before any image is seen; only `compute` takes images.
    """

    name: str
    grid: tuple[int, int]
    """(paths, positions) of the whole grid."""
    places: Tensor
    """(size,) int64: each coordinate's place in the flattened grid, ascending."""
    low: Tensor
    """(size,) bool: coordinates of low spatial frequency, those that a model is meant to use."""
    compute: Callable[[Tensor], Tensor]
    """(n, channels, side, side) float32 in [0, 1] -> (n, size)."""

    @classmethod
    def all_low(
        cls, *, name: str, grid: tuple[int, int], places: Tensor, compute: Callable[[Tensor], Tensor]
    ) -> "Block":
        """Build a block that a model uses in full."""
        return cls(name=name, grid=grid, places=places, low=torch.ones(len(places), dtype=torch.bool), compute=compute)

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return len(self.places)

    def to_grid(self, values: Tensor) -> Tensor:
        """(size,) -> (paths, positions), zero where the block has no coordinate."""
        if values.shape != self.places.shape:
            raise ConfigError(f"values of shape {tuple(values.shape)}: block {self.name!r} needs ({self.size},)")
        flat = torch.zeros(self.grid[0] * self.grid[1], dtype=values.dtype)
        flat[self.places] = values
        return flat.view(self.grid)

    def from_grid(self, values: Tensor) -> Tensor:
        """(paths, positions) -> (size,): the inverse of `to_grid`."""
        if values.shape != self.grid:
            raise ConfigError(f"values of shape {tuple(values.shape)}: block {self.name!r} needs {self.grid}")
        return values.flatten()[self.places]


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
