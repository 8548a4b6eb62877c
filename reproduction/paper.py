"""The accounting setting behind the paper's tables (arXiv 2308.10457), recovered from its iteration counts."""

from typing import Final

SAMPLE_RATE: Final = 0.015
NOISE_MULTIPLIER: Final = 1.1
DELTA: Final = 1e-5

ITERATIONS: Final[dict[float, int]] = {
    1.55: 79,
    1.75: 177,
    2.0: 317,
    2.5: 598,
    2.75: 775,
    3.25: 1123,
    3.75: 1585,
    5.25: 2990,
}
"""ε to the number of iterations that the paper prints for it; most overspend by the paper's own accountant."""
