"""Noise on a grid: what leaves a client is a vector of whole numbers, and its privacy is that of real numbers.

Every record's vector is clipped and rounded to whole numbers, whose length is then checked in exact arithmetic; whole
numbers are added without rounding, in any order; and the noise is the rounding of real Gaussian noise. Since
n + round(G) = round(n + G) for a whole n, the outcome is what rounding makes of the Gaussian mechanism over the real
numbers: post-processing. Every accountant of that mechanism holds, with nothing to add. docs/explanation/floating-point.md.
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

from alidpfl.dpsgd.clipping import check_clip_norm
from alidpfl.dpsgd.gradient_forms import LARGEST_NORM
from alidpfl.dpsgd.randomness import RandomStream, check_stream
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


_LOG_DEVIATION: Final = 16
DEVIATION: Final = 1 << _LOG_DEVIATION
"""s, the standard deviation before rounding."""

_BITS: Final = 64
_WORKING_BITS: Final = 160  # of the table's arithmetic: its errors add up to less than 2^-90
_TABLE_DEVIATIONS: Final = 9.3  # of the table's reach: beyond, fewer than one in 2^64 draws
_UNCLEAR: Final = 1  # how far an entry of the table may be off
_DRAWN_AT_A_TIME: Final = 1 << 16


def rounded_gaussian(count: int, random: RandomStream) -> Tensor:
    """(count,) int64, independent, each round(G) with G ~ N(0, 2^32).

    >>> rounded_gaussian(3, RandomStream.seeded(0)).dtype
    torch.int64
    """
    drawn = np.empty(count, dtype=np.int64)
    for start in range(0, count, _DRAWN_AT_A_TIME):
        part = drawn[start : start + _DRAWN_AT_A_TIME]
        signs = random.words((len(part) + 63) // 64)
        bits = np.unpackbits(signs.view(np.uint8))[: len(part)].astype(np.int64)
        np.multiply(_magnitudes(random.words(len(part)), random), 1 - 2 * bits, out=part)  # of 0, the sign is nothing
    return torch.from_numpy(drawn)


def _magnitudes(words: NDArray[np.uint64], random: RandomStream) -> NDArray[np.int64]:
    """For each 64 bits of a U, the least k with U < F(k)."""
    table = thresholds()
    found = np.searchsorted(table, words)  # table[found - 1] < words <= table[found]
    below, above = table[np.maximum(found, 1) - 1], table[np.minimum(found, len(table) - 1)]
    unclear = (found == len(table)) | (above - words <= _UNCLEAR) | ((found > 0) & (words - below <= _UNCLEAR))
    for place in np.flatnonzero(unclear):
        found[place] = _resolved(int(words[place]), random)
    return found.astype(np.int64)


def _resolved(first_bits: int, random: RandomStream) -> int:
    """The least k with U < F(k), where U begins with these 64 bits; draws as many more as it takes to tell."""
    drawn, bits = first_bits, _BITS
    while True:
        low, high = -1, DEVIATION  # the least k whose threshold is not below `drawn` is in (low, high]
        while threshold(high, bits) < drawn:
            high *= 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if threshold(middle, bits) < drawn else (low, middle)
        if threshold(high, bits) > drawn:
            return high
        drawn, bits = drawn << _BITS | int(random.words(1)[0]), bits + _BITS  # equal: U is below F(high), or above


@lru_cache(maxsize=1)
def thresholds() -> NDArray[np.uint64]:
    """2^64 F(k) for k = 0, 1, ... to within one unit, as far as it is below 2^64; read-only, 5 MB, takes a second.

    P(round(G) = k) is the integral of the density over [k - ½, k + ½]. With x = k/s and h = 1/(2s) it is 2h φ(x) times
    1 + He₂(x) h²/3! + He₄(x) h⁴/5! + He₆(x) h⁶/7!, φ the standard normal density and He Hermite's polynomials; what
    that leaves out is below 2^-128 of it. φ(k/s) follows from φ((k - 1)/s) by two multiplications.
    """
    one, bits = 1 << _WORKING_BITS, _WORKING_BITS
    a, b, c, d = (int(coefficient * one) for coefficient in _coefficients())
    ratio = one - (one >> (2 * _LOG_DEVIATION + 1)) + _exponential_rest(one)  # e^(-1/2s²): φ(1/s) / φ(0)
    ratio_of_ratios = ratio * ratio >> bits
    density = _root_of_two_over_pi(bits) >> (_LOG_DEVIATION + 1)  # 2h φ(0)
    entries, total = [], 0
    for k in range(int(_TABLE_DEVIATIONS * DEVIATION)):
        square = k * k << (bits - 2 * _LOG_DEVIATION)  # x²
        factor = (((d * square >> bits) + c) * square >> bits) + b
        probability = density * ((factor * square >> bits) + a) >> bits
        total += 2 * probability if k else probability  # of either sign
        entries.append(total >> (bits - _BITS))
        density = density * ratio >> bits
        ratio = ratio * ratio_of_ratios >> bits
    table = np.array(entries, dtype=np.uint64)
    table.flags.writeable = False
    return table


def _coefficients() -> tuple[Fraction, Fraction, Fraction, Fraction]:
    """Of 1, x², x⁴, x⁶ in 1 + He₂(x) h²/3! + He₄(x) h⁴/5! + He₆(x) h⁶/7!."""
    square = Fraction(1, 4 * DEVIATION**2)
    u, v, w = square / 6, square**2 / 120, square**3 / 5040
    return 1 - u + 3 * v - 15 * w, u - 6 * v + 45 * w, v - 15 * w, w


def _exponential_rest(one: int) -> int:
    """e^-y - 1 + y in units of 1 / `one`, for y = 1/2s² = 2^-33: seven terms reach 2^-297."""
    y = Fraction(1, 2 * DEVIATION**2)
    return int(sum((-y) ** n / math.factorial(n) for n in range(2, 9)) * one)


def threshold(k: int, bits: int) -> int:
    """floor(2^bits F(k)), exactly.

    With a = (k + ½)/s, F(k) = √(2/π) Σ (-1)^n a^(2n+1) / (2^n n! (2n + 1)). Terms grow up to e^(a²/2) before they
    fall, and so do the errors that rounding down leaves in them: of N terms, at most N (e^(a²/2) + 1) + 8 last places
    altogether. As many guard bits as that takes and 48 more, and again more in case they do not decide.
    """
    half_square = (2 * k + 1) ** 2  # a²/2 in units of 1/8s²
    guard = 3 * half_square // (16 * DEVIATION**2) + 64  # above a²/2 · log₂e
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
    """√(2/π) in units of 2^-bits, to within two of them."""
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
