"""Audit the noise weight by weight. The one-step audit reads along one line only, and would miss other gaps.

The claim is N(0, (σC)² I) on the released sum: every weight gets as much noise, no two weights get the same noise, and
no release repeats the noise of the one before. Three tests check this and share the error.

The last two rely on a bound. Take a sum of m products of independent normal numbers, with each number in at most two
products. It exceeds t with probability at most exp(-t² / (2 (m + 2 t))). This follows from the moment generating
function of a quadratic form: its matrix has trace 0 and eigenvalues within [-1, 1].
"""

import math
from dataclasses import dataclass

import torch
from scipy.special import gammaincinv
from torch import Tensor

_COMPARED = 64  # releases in which weights are compared with each other: each takes a Fourier transform
_READABLE = 0.05  # share of σC; a weight with larger rounding steps hides the noise
_PARTS = 3  # tests that share the error
_FEWEST = 2  # releases that give a variance


@dataclass(frozen=True, kw_only=True)
class NoiseAudit:
    """Findings about the noise of releases."""

    releases: int
    confidence: float  # probability that correct noise is not refuted
    least: float | None  # the smallest σ of a weight, as a share of the claimed σ; None if no weight can be read
    refuted_below: float  # correct noise hardly ever has a smaller share
    where: int  # the weight with the smallest σ
    unread: int  # number of weights that are too large for their noise to show
    not_finite: int  # number of releases with values that are not finite
    alike: float | None  # likeness of the noise of weights at `distance`; chance does not explain more than 1
    distance: int  # between the weights at which their noise is most alike
    repeated: float | None  # likeness of each release and the one before; chance does not explain more than 1

    @property
    def problem(self) -> str | None:
        """Return what contradicts the claim, or None."""
        if self.not_finite:
            return f"{self.not_finite} releases have values that are not finite"
        if self.least is not None and self.least < self.refuted_below:
            return f"weight {self.where} has {self.least:.3g} of the claimed noise"
        if self.alike is not None and self.alike > 1:
            return f"weights {self.distance} apart share noise"
        if self.repeated is not None and self.repeated > 1:
            return "a release shares noise with the one before"
        return None


class NoiseMeter:
    """Measures the noise of releases: its standard deviation should be `scale` (σC) on the weights (num_params,).

    `is_exact` False means that the un-noised values are known as averages only. Then likeness proves nothing.
    """

    def __init__(self, params: Tensor, scale: float, *, is_exact: bool = True) -> None:
        self._scale, self._is_exact = scale, is_exact
        coarse = params.abs().double() * torch.finfo(params.dtype).eps
        self._is_read = coarse <= _READABLE * scale
        self._sums, self._squares = torch.zeros(2, len(params), dtype=torch.float64)
        # The transform takes a vector twice as long, so that the correlation does not wrap around.
        self._spectrum = torch.zeros(len(params) + 1, dtype=torch.float64)
        self._last = torch.zeros(len(params), dtype=torch.float64)
        self._products, self._releases, self._not_finite = 0.0, 0, 0

    def add(self, change: Tensor, unnoised: Tensor) -> None:
        """Add a release, in order of time: its change of the weights, and the change without noise."""
        noise = (change.double() - unnoised.double()) / self._scale
        if not bool(noise.isfinite().all()):
            self._not_finite += 1
            return
        noise[~self._is_read] = 0.0
        self._sums += noise
        self._squares += noise**2
        if self._releases < _COMPARED:
            self._spectrum += torch.fft.rfft(noise, n=2 * len(noise)).abs() ** 2
        self._products += float(noise @ self._last)
        self._last = noise
        self._releases += 1

    def audit(self, confidence: float) -> NoiseAudit:
        """Return the findings. Correct noise is refuted with probability 1 - `confidence` at most."""
        error, read, freedom = (1 - confidence) / _PARTS, int(self._is_read.sum()), max(1, self._releases - 1)
        is_seen = read > 0 and self._releases >= _FEWEST
        spread = self._squares - self._sums**2 / max(1, self._releases)
        shares = (spread.clamp_min(0) / freedom).sqrt().masked_fill(~self._is_read, math.inf)
        where = int(shares.argmin())
        alike, distance = self._most_alike(error) if is_seen and self._is_exact else (None, 0)
        return NoiseAudit(
            releases=self._releases,
            confidence=confidence,
            least=float(shares[where]) if is_seen else None,
            # The deviation of correct noise lies below this share of σ with probability error / read.
            refuted_below=math.sqrt(2 * float(gammaincinv(freedom / 2, error / max(1, read))) / freedom),
            where=where,
            unread=len(shares) - read,
            not_finite=self._not_finite,
            alike=alike,
            distance=distance,
            repeated=abs(self._products) / largest_sum(read * freedom, error) if is_seen and self._is_exact else None,
        )

    def _most_alike(self, error: float) -> tuple[float, int]:
        """Return the largest likeness and its distance, by the Wiener-Khinchin theorem for all distances at once."""
        size = len(self._squares)
        if size == 1:
            return 0.0, 0
        sums = torch.fft.irfft(self._spectrum, n=2 * size)[1:size].abs()
        terms = min(self._releases, _COMPARED) * torch.arange(size - 1, 0, -1, dtype=torch.float64)
        shares = sums / _largest_sums(terms, error / (size - 1))
        most = int(shares.argmax())
        return float(shares[most]), most + 1


def largest_sum(terms: int, error: float) -> float:
    """Return the size that a sum of `terms` products exceeds with probability `error` at most."""
    return float(_largest_sums(torch.tensor(float(terms), dtype=torch.float64), error))


def _largest_sums(terms: Tensor, error: float) -> Tensor:
    """Return t with 2 exp(-t² / (2 (m + 2 t))) = error."""
    exponent = math.log(2 / error)
    return 2 * exponent + (4 * exponent**2 + 2 * exponent * terms).sqrt()
