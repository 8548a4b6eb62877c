"""The private curvature: a secant of noised gradients, de-biased, pooled over clients, smoothed over rounds.

⟨∇F(w') − ∇F(w), w' − w⟩ / ‖w' − w‖² lies in [μ, L]: it is the curvature along the way that training takes. The paper
divides norms instead, ‖∇F(w') − ∇F(w)‖ / ‖w' − w‖, which lies in [μ, L] as well. With noised gradients the two differ:

- the product's bias is known. A step w' − w = −c(g + n) holds the noise n of the first gradient, so that the product
  gains c s² d on average (s² the noise's variance in each of d coordinates), whatever the loss;
- the norms' bias is not: ‖g̃' − g̃‖² gains 2 s² d, and 2 c s² tr(H) for the same reason, with H unknown. Where noise
  makes most of the move it reads 0.53 for 0.07.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from alidpfl.types import SecantSums

SMOOTHING = 0.9
"""Weight of the past in the moving averages: about ten observations of memory, of which a round has up to two."""

RESOLUTION = 3.0
"""z: standard deviations of its own noise by which the signal must stand out to be believed."""

TRIM_FROM, TRIM_SHARE = 5, 0.1
"""From 5 clients on, a tenth of them, at least one, is cut from each end. With fewer, too little would be left."""

_LARGEST = 1e100
"""Beyond, a number is a lie or a bug; up to there, products and quotients of what is sent stay finite."""


@dataclass(frozen=True, kw_only=True)
class CurvatureEstimate:
    """Moving averages over rounds. State in, state out; plain numbers that JSON can hold.

    All start at 0 and are thus too small by a common factor 1 − 0.9^count (its square for the variance). The factor
    cancels in both places where they are used, so that no further correction for the start is needed: the value is
    signal/displacement, the test is signal/sqrt(variance).

    >>> sums = SecantSums(product=5.0, displacement=100.0, noise=1.0, noise_variance=1.0)
    >>> CurvatureEstimate().value, CurvatureEstimate().observe(sums).value < 0.041
    (None, True)
    """

    signal: float = 0.0
    """Average of product − noise."""
    displacement: float = 0.0
    noise_variance: float = 0.0
    """Variance of `signal` by noise alone. Independent terms: the weights of the average enter squared."""
    count: int = 0

    def observe(self, sums: SecantSums) -> "CurvatureEstimate":
        """With one more round; sums that are not finite or not above 0 are as good as none."""
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
        """The ratio signal / displacement; None where the signal is within 3 standard deviations of nothing."""
        if self.count == 0 or not self.signal > RESOLUTION * math.sqrt(self.noise_variance):
            return None
        ratio = self.signal / self.displacement
        return ratio if 0 < ratio < math.inf else None

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "CurvatureEstimate":
        """Back from what `to_json` wrote."""
        return cls(**values)


def pool(sums: Sequence[tuple[float, SecantSums]]) -> SecantSums | None:
    """One round's sums of all clients as one; None where no client sent any that can be used.

    Every client counts by its weight, which the server knows, and not by the size of the numbers that it sent: its
    sums are first divided by its own displacement. From 5 clients on, those with the largest and the smallest ratio
    (product − noise)/displacement are then left out, and what is left of noises and variances is drawn in to the
    range without their largest and smallest. One liar in five or more can therefore move each number no further than
    the most extreme honest client could.

    The median displacement, multiplied back at the end, gives a round with longer or more steps its weight in the
    moving average. Where noise dominates, ratios have much the same variance for all clients, whatever their noise:
    little is lost by not weighting with the variances, which a client could fake.

    Args:
        sums: Weight p_i and sums of each client that sent some.
    """
    honest = [_Ratio.of(weight, s) for weight, s in sums if 0 < weight < _LARGEST and _plausible(s)]
    if not honest:
        return None
    cut = max(1, int(TRIM_SHARE * len(honest))) if len(honest) >= TRIM_FROM else 0
    # By value alone: the order in which the clients answered must not matter.
    kept = sorted(honest, key=lambda ratio: (ratio.signal, ratio.weight))[cut : len(honest) - cut]
    typical = median(ratio.displacement for ratio in honest)
    total = math.fsum(ratio.weight for ratio in kept)
    signal = math.fsum(ratio.weight / total * ratio.signal for ratio in kept)
    least, most = _range([ratio.noise for ratio in honest], cut)
    noise = math.fsum(ratio.weight / total * min(max(ratio.noise, least), most) for ratio in kept)
    least, most = _range([ratio.variance for ratio in honest], cut)
    # Independent clients: Var Σ w x = Σ w² Var x.
    variance = math.fsum((ratio.weight / total) ** 2 * min(max(ratio.variance, least), most) for ratio in kept)
    return SecantSums(
        product=typical * (noise + signal),
        displacement=typical,
        noise=typical * noise,
        noise_variance=typical * typical * variance,
    )


@dataclass(frozen=True)
class _Ratio:
    """A client's sums over its own displacement."""

    weight: float
    displacement: float
    signal: float
    noise: float
    variance: float

    @classmethod
    def of(cls, weight: float, sums: SecantSums) -> "_Ratio":
        # The noise is taken off before anything is added up: of two equal huge numbers nothing must remain.
        signal, scale = (sums.product - sums.noise) / sums.displacement, sums.displacement
        return cls(weight, scale, signal, sums.noise / scale, sums.noise_variance / scale / scale)


def _plausible(sums: SecantSums) -> bool:
    """Sent by a client that may lie: in range, hence finite, and with a displacement to divide by."""
    others = (abs(sums.product), sums.noise, sums.noise_variance)
    return 1 / _LARGEST < sums.displacement < _LARGEST and all(0 <= value < _LARGEST for value in others)


def _range(values: list[float], cut: int) -> tuple[float, float]:
    """Smallest and largest when `cut` values are left out at each end."""
    ordered = sorted(values)
    return ordered[cut], ordered[len(ordered) - 1 - cut]
