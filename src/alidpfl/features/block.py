"""What a block of features is: coordinates cut out of a grid of paths x positions."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from alidpfl.errors import ConfigError


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
