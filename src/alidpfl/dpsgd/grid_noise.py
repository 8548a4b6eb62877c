"""Noise on a grid: a client releases whole numbers, and the privacy is that of real-valued Gaussian noise.

Every record's vector is clipped and rounded to whole numbers, and its norm is then checked in exact arithmetic. Adding
whole numbers does not round, in any order. The noise is round(G) for a real Gaussian G. For a whole n,
n + round(G) = round(n + G). So the result is the Gaussian mechanism over real numbers, rounded. Rounding is
post-processing, and every accountant of that mechanism holds without a correction: docs/explanation/floating-point.md.

round(G) with G ~ N(0, s²), s = 2^16, is drawn exactly, without floating point. A real number U, uniform in [0, 1),
falls between two values of F(k) = P(|round(G)| <= k) = erf((k + ½) / (s √2)). The k above it is the magnitude. Only the
first 64 bits of U are drawn, and F is a table of 64-bit whole numbers that are right to one unit. Once in 10^13 draws
the bits are too near an entry to decide. Then more bits are drawn, and F is computed as precisely as needed. So the
distribution has no error, given uniform bits.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from alidpfl.dpsgd import native
from alidpfl.dpsgd.clipping import check_clip_norm
from alidpfl.dpsgd.gradient_forms import LARGEST_NORM, finite
from alidpfl.dpsgd.randomness import RandomStream, check_stream
from alidpfl.errors import ConfigError

_LOG_DEVIATION: Final = 16
DEVIATION: Final = 1 << _LOG_DEVIATION
"""s, the standard deviation of the noise in steps of the grid, before rounding."""

_LEAST_NOISE: Final = 0.01  # with less, squared norms of whole numbers would be too large for float64 to add exactly
_TINY: Final = 1e-300  # in place of a norm of zero
_LEAST_CELLS: Final = 8  # steps in an average coordinate of a vector of norm C; with fewer, rounding removes much of it
_BITS: Final = 64
_WORKING_BITS: Final = 160  # precision of the table's arithmetic: its errors add up to less than 2^-90
_TABLE_DEVIATIONS: Final = 9.3  # end of the table: fewer than one in 2^64 draws lies beyond
_UNCLEAR: Final = 1  # largest error of a table entry
_DRAWN_AT_A_TIME: Final = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The grid for noise of σC. Its step is γ = σC / 2^16, so that the noise always has s = 2^16 steps.

    >>> grid = Grid(clip_norm=1.0, noise_multiplier=2.0)
    >>> grid.step, grid.largest_square == 2**30
    (3.0517578125e-05, True)
    """

    clip_norm: float
    """C, the most that a record can move the sum."""
    noise_multiplier: float
    """σ. Charge the release before you make it."""

    def __post_init__(self) -> None:
        check_clip_norm(self.clip_norm)
        if not (self.noise_multiplier >= _LEAST_NOISE and math.isfinite(self.noise_multiplier)):
            raise ConfigError(
                f"noise_multiplier={self.noise_multiplier} must be at least {_LEAST_NOISE:g} for noise on a grid; "
                'use noise="gaussian", or more noise: with this little, nothing is private'
            )

    @cached_property
    def step(self) -> float:
        """γ, the distance of neighbouring values."""
        return self.noise_multiplier * self.clip_norm / DEVIATION

    @cached_property
    def largest_square(self) -> int:
        """Largest squared norm of a record in steps, floor((s/σ)²). So s is at least σ times the norm."""
        return int((DEVIATION / Fraction(self.noise_multiplier)) ** 2)

    def check_size(self, size: int) -> None:
        """Raise ConfigError if rounding would remove most of a vector with `size` coordinates, at this much noise."""
        largest = DEVIATION / (_LEAST_CELLS * math.sqrt(size))
        if self.noise_multiplier > largest:
            raise ConfigError(
                f'noise_multiplier={self.noise_multiplier:g} is too much for noise="grid" with {size} parameters, '
                f'which takes at most {largest:.4g}: train a smaller model, lower the noise, or use noise="gaussian"'
            )

    def rounded(self, vector: Tensor) -> Tensor:
        """Clip a record's vector (P,) to C and round it. Return whole steps in float64, zeros to drop the record.

        The result depends on the vector only. Coordinates go to the nearest grid point, or toward zero if the vector
        would be too long. If it is still too long, by an error of float arithmetic, the record is dropped. The check is
        exact: float64 adds squares of whole numbers without rounding while the sum is below 2^53, and a sum of
        non-negative terms that passes 2^53 stays above the limit. All of it is computed for every vector, so that the
        time does not tell which case it was.
        """
        scaled = finite(vector).double().mul_(self._factor(vector))
        both = scaled.new_empty(2, len(vector))
        torch.round(scaled, out=both[0])
        np.trunc(scaled.numpy(), out=both[1].numpy())  # torch.trunc branches on each number
        is_nearest, is_shorter = (bool(whole @ whole <= self.largest_square) for whole in both)
        return both.new_tensor([is_nearest, is_shorter and not is_nearest]) @ both

    def _factor(self, vector: Tensor) -> float:
        """Return what brings a record's vector to steps of the grid and clips it, or 0 to drop it."""
        limit = math.sqrt(self.largest_square)
        longest = limit - 2 - len(vector) / (16 * limit)  # rounding adds about a twelfth to each square
        norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
        is_usable = norm <= LARGEST_NORM  # false for NaN
        return is_usable * min(1 / self.step, longest / max(norm, _TINY))  # min drops a NaN in the second place

    def _add(self, vector: Tensor, total: Tensor) -> None:
        """Add `rounded` to the total (P,), by the native kernel if it serves."""
        if native.is_available() and vector.dtype == torch.float32 and vector.is_contiguous():
            native.add_rounded(vector, self._factor(vector), self.largest_square, total)
        else:
            total += self.rounded(vector)

    def noised_total(self, vectors: Iterable[Tensor], size: int, random: RandomStream) -> Tensor:
        """Return the sum of all records' vectors, each (size,), with noise N(0, σ²C² I), as float32 on the grid."""
        check_stream(random)
        self.check_size(size)
        total = torch.zeros(size, dtype=torch.float64)  # exact: a record's coordinates are below 2^23
        for vector in vectors:
            self._add(vector, total)
        noised = total.long() + rounded_gaussian(size, random)
        return (noised.double() * self.step).float()  # post-processing of whole numbers: it costs no privacy


def rounded_gaussian(count: int, random: RandomStream) -> Tensor:
    """Return `count` independent int64 numbers, each round(G) with G ~ N(0, 2^32)."""
    drawn = np.empty(count, dtype=np.int64)
    for start in range(0, count, _DRAWN_AT_A_TIME):
        part = drawn[start : start + _DRAWN_AT_A_TIME]
        signs = random.words((len(part) + 63) // 64)
        bits = np.unpackbits(signs.view(np.uint8))[: len(part)].astype(np.int64)
        np.multiply(_magnitudes(random.words(len(part)), random), 1 - 2 * bits, out=part)  # 0 has no sign
    return torch.from_numpy(drawn)


def _magnitudes(words: NDArray[np.uint64], random: RandomStream) -> NDArray[np.int64]:
    """Return the least k with U < F(k), for each U given by its first 64 bits."""
    table = thresholds()
    found = np.searchsorted(table, words)  # table[found - 1] < words <= table[found]
    below, above = table[np.maximum(found, 1) - 1], table[np.minimum(found, len(table) - 1)]
    unclear = (found == len(table)) | (above - words <= _UNCLEAR) | ((found > 0) & (words - below <= _UNCLEAR))
    for place in np.flatnonzero(unclear):
        found[place] = _resolved(int(words[place]), random)
    return found.astype(np.int64)


def _resolved(first_bits: int, random: RandomStream) -> int:
    """Return the least k with U < F(k), where U begins with these 64 bits. Draw as many more bits as are needed."""
    drawn, bits = first_bits, _BITS
    while True:
        low, high = -1, DEVIATION  # the least k with a threshold of at least `drawn` is in (low, high]
        while threshold(high, bits) < drawn:
            high *= 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if threshold(middle, bits) < drawn else (low, middle)
        if threshold(high, bits) > drawn:
            return high
        drawn, bits = drawn << _BITS | int(random.words(1)[0]), bits + _BITS  # equal: more bits must decide


@lru_cache(maxsize=1)
def thresholds() -> NDArray[np.uint64]:
    """Return 2^64 F(k) for k = 0, 1, ... to within one unit, while it is below 2^64. Read-only, 5 MB, takes a second.

    P(round(G) = k) is the integral of the density over [k - ½, k + ½]. With x = k/s and h = 1/(2s) it is 2h φ(x) times
    1 + He₂(x) h²/3! + He₄(x) h⁴/5! + He₆(x) h⁶/7!. Here φ is the standard normal density, and He are the Hermite
    polynomials. The remainder is below 2^-128 of it. φ(k/s) follows from φ((k - 1)/s) by two multiplications.
    """
    one, bits = 1 << _WORKING_BITS, _WORKING_BITS
    square = Fraction(1, 4 * DEVIATION**2)  # h²
    u, v, w = square / 6, square**2 / 120, square**3 / 5040
    exact = 1 - u + 3 * v - 15 * w, u - 6 * v + 45 * w, v - 15 * w, w  # coefficients of 1, x², x⁴, x⁶
    a, b, c, d = (int(coefficient * one) for coefficient in exact)
    y = 2 * square  # 1/2s² = 2^-33
    rest = sum((-y) ** n / math.factorial(n) for n in range(2, 9))  # e^-y - 1 + y: seven terms reach 2^-297
    ratio = one - (one >> (2 * _LOG_DEVIATION + 1)) + int(rest * one)  # e^-y = φ(1/s) / φ(0)
    ratio_of_ratios = ratio * ratio >> bits
    density = _root_of_two_over_pi(bits) >> (_LOG_DEVIATION + 1)  # 2h φ(0)
    entries, total = [], 0
    for k in range(int(_TABLE_DEVIATIONS * DEVIATION)):
        x2 = k * k << (bits - 2 * _LOG_DEVIATION)  # x²
        factor = (((d * x2 >> bits) + c) * x2 >> bits) + b
        probability = density * ((factor * x2 >> bits) + a) >> bits
        total += 2 * probability if k else probability  # both signs
        entries.append(total >> (bits - _BITS))
        density = density * ratio >> bits
        ratio = ratio * ratio_of_ratios >> bits
    table = np.array(entries, dtype=np.uint64)
    table.flags.writeable = False
    return table


def threshold(k: int, bits: int) -> int:
    """Return floor(2^bits F(k)), exactly.

    With a = (k + ½)/s, F(k) = √(2/π) Σ (-1)^n a^(2n+1) / (2^n n! (2n + 1)). Terms grow up to e^(a²/2) before they
    fall, and so do their rounding errors. For N terms these are at most N (e^(a²/2) + 1) + 8 last places in total. The
    guard bits cover that, with 48 to spare. If they do not decide, more are added.
    """
    half_square = (2 * k + 1) ** 2  # a²/2 in units of 1/8s²
    guard = 3 * half_square // (16 * DEVIATION**2) + 64  # more than a²/2 · log₂e
    error = 1 << (guard - 16)
    while True:
        working = bits + guard
        term = (2 * k + 1) << (working - _LOG_DEVIATION - 1)  # a
        total, n = 0, 0
        while term:
            total += (-1) ** n * (term // (2 * n + 1))
            n += 1
            term = (term * half_square >> (2 * _LOG_DEVIATION + 3)) // n
        value = total * _root_of_two_over_pi(working) >> working
        if (value - error) >> guard == (value + error) >> guard:
            return (value - error) >> guard
        guard += _BITS


@lru_cache(maxsize=64)
def _root_of_two_over_pi(bits: int) -> int:
    """Return √(2/π) in units of 2^-bits, to within two of them."""
    working = bits + 32
    pi = 4 * (4 * _arctangent_of_inverse(5, working) - _arctangent_of_inverse(239, working))  # Machin 1706
    return math.isqrt((2 << (3 * working)) // pi) >> 32


def _arctangent_of_inverse(x: int, bits: int) -> int:
    power, total, n = (1 << bits) // x, 0, 1
    while power:
        total += power // n if n % 4 == 1 else -(power // n)
        power //= x * x
        n += 2
    return total
