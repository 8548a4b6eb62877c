"""Whole numbers round(G), G ~ N(0, s²) with s = 2^16, drawn exactly: no floating-point number takes part.

A real number U, uniform in [0, 1), falls between two values of F(k) = P(|round(G)| <= k) = erf((k + ½) / (s √2)), and
the k above it is the magnitude drawn. Of U only the first 64 bits are drawn, and F is kept as a table of 64-bit whole
numbers that are right to one unit. Where the bits lie so near to an entry that they do not tell on which side of it U
is (once in 10^13 draws), more bits are drawn and F is computed as precisely as it takes. So the distribution has no
error at all, given uniform bits.

Noise that is the rounding of a real Gaussian number needs no accounting of its own: docs/floating-point.md.
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from alidpfl.dpsgd.randomness import RandomStream

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
