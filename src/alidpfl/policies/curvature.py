"""The private curvature: a secant of noised gradients, corrected for bias, pooled over clients, smoothed over rounds.

⟨∇F(w') − ∇F(w), w' − w⟩ / ‖w' − w‖² lies in [μ, L]. It is the curvature along the path of training. The paper divides
norms instead, ‖∇F(w') − ∇F(w)‖ / ‖w' − w‖, which lies in [μ, L] as well. With noised gradients the two differ:

- The bias of the product is known. A step w' − w = −c(g + n) contains the noise n of the first gradient. The product
  therefore gains c s² d on average for any loss, where s² is the noise's variance in each of d coordinates.
- The bias of the norms is not known. ‖g̃' − g̃‖² gains 2 s² d, and for the same reason 2 c s² tr(H), with H unknown.
  Where noise makes most of the move, it reads 0.53 for 0.07.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from alidpfl.types import SecantSums

SMOOTHING = 0.9
"""Weight of the past in the moving averages: a memory of about ten observations, of which a round has up to two."""

RESOLUTION = 3.0
"""z: the signal is believed if it exceeds this many standard deviations of its own noise."""

TRIM_FROM, TRIM_SHARE = 5, 0.1
"""With 5 clients or more, a tenth of them, at least one, is cut from each end. With fewer, too little would remain."""

_LARGEST = 1e100
"""A larger number is a lie or a bug. Up to here, products and quotients of what clients send stay finite."""


@dataclass(frozen=True, kw_only=True)
class CurvatureEstimate:
    """Moving averages over rounds, as plain numbers that JSON can hold. `observe` returns the next state.

    All averages start at 0, so they are too small by a common factor 1 − 0.9^count (by its square for the variance).
    The factor cancels in both uses, the value signal/displacement and the test signal/sqrt(variance). So the start
    needs no further correction.

    >>> sums = SecantSums(product=5.0, displacement=100.0, noise=1.0, noise_variance=1.0)
    >>> CurvatureEstimate().value, CurvatureEstimate().observe(sums).value < 0.041
    (None, True)
    """

    signal: float = 0.0
    """Average of product − noise."""
    displacement: float = 0.0
    noise_variance: float = 0.0
    """Variance of `signal` from noise alone. The terms are independent, so the average's weights enter squared."""
    count: int = 0

    def observe(self, sums: SecantSums) -> "CurvatureEstimate":
        """Return the estimate after one more round. Ignores sums that are out of range."""
        if not _plausible(sums):
            return self
        new, kept = 1 - SMOOTHING, SMOOTHING
        return CurvatureEstimate(
            signal=kept * self.signal + new * (sums.product - sums.noise),
            displacement=kept * self.displacement + new * sums.displacement,
            noise_variance=kept**2 * self.noise_variance + new**2 * sums.noise_variance,
            count=self.count + 1,
        )

    @property
    def value(self) -> float | None:
        """The curvature signal / displacement; None if the signal is within 3 standard deviations of zero."""
        if self.count == 0 or not self.signal > RESOLUTION * math.sqrt(self.noise_variance):
            return None
        ratio = self.signal / self.displacement
        return ratio if 0 < ratio < math.inf else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "CurvatureEstimate":
        """Return the estimate that `to_json` wrote."""
        return cls(**values)


def pool(sums: Sequence[tuple[float, SecantSums]]) -> SecantSums | None:
    """Combine one round's sums of all clients; None if no client sent usable ones.

    A client counts by its weight, which the server knows, and not by the size of the numbers that it sent: its sums are
    first divided by its own displacement. With 5 clients or more, those with the largest and the smallest ratio
    (product − noise)/displacement are then left out. The noises and variances of the others are clipped to the range
    without their largest and smallest. So one lying client in five or more can move each number no further than the
    most extreme honest client could.

    The result is multiplied by the median displacement, so that a round with longer or more steps has more weight in
    the moving average. Where noise dominates, the ratios of all clients have similar variances, whatever their noise.
    So little is lost by not weighting with the variances, which a client could fake.

    Args:
        sums: Weight p_i and sums of each client that sent some.
    """
    ratios = [_Ratio.of(weight, s) for weight, s in sums if 0 < weight < _LARGEST and _plausible(s)]
    if not ratios:
        return None
    cut = max(1, int(TRIM_SHARE * len(ratios))) if len(ratios) >= TRIM_FROM else 0
    # Sorted by value alone: the order in which the clients answered must not matter.
    kept = sorted(ratios, key=lambda ratio: (ratio.signal, ratio.weight))[cut : len(ratios) - cut]
    typical = median(ratio.displacement for ratio in ratios)
    total = math.fsum(ratio.weight for ratio in kept)
    signal = math.fsum(ratio.weight / total * ratio.signal for ratio in kept)
    least, most = _trimmed_range([ratio.noise for ratio in ratios], cut)
    noise = math.fsum(ratio.weight / total * min(max(ratio.noise, least), most) for ratio in kept)
    least, most = _trimmed_range([ratio.variance for ratio in ratios], cut)
    # Clients are independent: Var Σ w x = Σ w² Var x.
    variance = math.fsum((ratio.weight / total) ** 2 * min(max(ratio.variance, least), most) for ratio in kept)
    return SecantSums(
        product=typical * (noise + signal),
        displacement=typical,
        noise=typical * noise,
        noise_variance=typical * typical * variance,
    )


@dataclass(frozen=True)
class _Ratio:
    """A client's sums, divided by its own displacement."""

    weight: float
    displacement: float
    signal: float
    noise: float
    variance: float

    @classmethod
    def of(cls, weight: float, sums: SecantSums) -> "_Ratio":
        # The noise is subtracted before anything is added: two equal huge numbers must leave nothing behind.
        signal, scale = (sums.product - sums.noise) / sums.displacement, sums.displacement
        return cls(weight, scale, signal, sums.noise / scale, sums.noise_variance / scale / scale)


def _plausible(sums: SecantSums) -> bool:
    """Return whether a client's sums, which may be lies, are in range, hence finite, with a displacement above 0."""
    others = (abs(sums.product), sums.noise, sums.noise_variance)
    return 1 / _LARGEST < sums.displacement < _LARGEST and all(0 <= value < _LARGEST for value in others)


def _trimmed_range(values: list[float], cut: int) -> tuple[float, float]:
    """Return the smallest and the largest value after leaving out `cut` values at each end."""
    ordered = sorted(values)
    return ordered[cut], ordered[len(ordered) - 1 - cut]
