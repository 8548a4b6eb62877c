"""Noise on a grid: what leaves a client is a vector of whole numbers, and its privacy is that of real numbers.

Every record's vector is clipped and rounded to whole numbers, whose length is then checked in exact arithmetic; whole
numbers are added without rounding, in any order; and the noise is the rounding of real Gaussian noise. Since
n + round(G) = round(n + G) for a whole n, the outcome is what rounding makes of the Gaussian mechanism over the real
numbers: post-processing. Every accountant of that mechanism holds, with nothing to add. docs/floating-point.md.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from alidpfl.dpsgd.clipping import check_clip_norm
from alidpfl.dpsgd.gradients import LARGEST_NORM
from alidpfl.dpsgd.randomness import RandomStream, check_stream
from alidpfl.dpsgd.rounded_gaussian import DEVIATION, rounded_gaussian
from alidpfl.errors import ConfigError

_LEAST_NOISE = 0.01  # below, squared norms of whole numbers would leave what float64 adds exactly
_LEAST_CELLS = 8  # on an average coordinate of a vector of norm C: on fewer, rounding would eat much of it


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The grid for noise of σC: its step is γ = σC / 2^16, so that in steps the noise always has s = 2^16.

    >>> grid = Grid(clip_norm=1.0, noise_multiplier=2.0)
    >>> grid.step, grid.largest_square == 2**30
    (3.0517578125e-05, True)
    """

    clip_norm: float
    """C, the most that a record moves the sum by."""
    noise_multiplier: float
    """σ; the release must have been charged before."""

    def __post_init__(self) -> None:
        check_clip_norm(self.clip_norm)
        if not (self.noise_multiplier >= _LEAST_NOISE and math.isfinite(self.noise_multiplier)):
            raise ConfigError(
                f"noise_multiplier={self.noise_multiplier} must be at least {_LEAST_NOISE:g} for noise on a grid; "
                'use noise="gaussian", or more noise: at so little nothing is private'
            )

    @cached_property
    def step(self) -> float:
        """γ, between two neighbouring values."""
        return self.noise_multiplier * self.clip_norm / DEVIATION

    @cached_property
    def largest_square(self) -> int:
        """The most that a record's squared norm may be, in steps: floor((s/σ)²), so that s is at least σ times it."""
        return int((DEVIATION / Fraction(self.noise_multiplier)) ** 2)

    def check_size(self, size: int) -> None:
        """Refuse vectors of so many coordinates that, at this much noise, most of them would be rounded away."""
        largest = DEVIATION / (_LEAST_CELLS * math.sqrt(size))
        if self.noise_multiplier > largest:
            raise ConfigError(
                f'noise_multiplier={self.noise_multiplier:g} is too much for noise="grid" with {size} parameters, '
                f'which takes at most {largest:.4g}: train a smaller model, lower the noise, or use noise="gaussian"'
            )

    def rounded(self, vector: Tensor) -> Tensor | None:
        """A record's vector (P,) clipped to C and rounded, in steps: whole numbers in float64; None to drop it.

        Depends on nothing but the vector. To the nearest grid point, or where that leaves it too long toward zero; if
        even that is too long, by an error of float arithmetic, the record is dropped. What decides is exact: whole
        numbers whose squares add up to less than 2^53 are added in float64 without rounding, and a sum that does not
        stay below it, adding what is not negative, ends above the limit.
        """
        scaled = vector.to(torch.float64, copy=True)
        norm = float(torch.linalg.vector_norm(scaled))
        if not norm <= LARGEST_NORM:  # also NaN
            return None
        limit = math.sqrt(self.largest_square)
        longest = limit - 2 - len(vector) / (16 * limit)  # rounding adds a twelfth to each square, give or take
        scaled *= min(1 / self.step, longest / norm if norm else math.inf)
        for rounding in (torch.round, torch.trunc):
            whole = rounding(scaled)
            if float(whole @ whole) <= self.largest_square:
                return whole
        return None

    def noised_total(self, vectors: Iterable[Tensor], size: int, random: RandomStream) -> Tensor:
        """(size,) float32: the sum of all records' vectors, each (size,), with noise N(0, σ²C² I), on the grid."""
        check_stream(random)
        self.check_size(size)
        total = torch.zeros(size, dtype=torch.int64)
        for vector in vectors:
            if (whole := self.rounded(vector)) is not None:
                total += whole.long()
        noised = total + rounded_gaussian(size, random)
        return (noised.double() * self.step).float()  # a function of the whole numbers: nothing to account for
