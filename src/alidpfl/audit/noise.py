"""The noise itself, weight by weight: what the one-step audit, which reads along one line, does not see.

The claim is N(0, (σC)² I) on the released sum: as much on every weight, of no weight the same as of another, of no
release the same as of the one before. All three are tested, and the error is divided among them. A sum of products of
independent normal numbers, m of them, none in more than two, exceeds t with probability at most
exp(-t² / (2 (m + 2 t))): from the moment generating function of a quadratic form whose matrix has no trace and
eigenvalues within [-1, 1].
"""

import math
from dataclasses import dataclass

import torch
from scipy.special import gammaincinv
from torch import Tensor

_COMPARED = 64  # releases whose weights are compared with one another: each takes a Fourier transform
_READABLE = 0.05  # of σC: weights that are rounded to more than that hide the noise
_PARTS = 3  # tests that share the error
_FEWEST = 2  # releases that have a spread


@dataclass(frozen=True, kw_only=True)
class NoiseAudit:
    """What was seen of the noise."""

    releases: int
    confidence: float
    least: float | None
    """σ of the weight that has least, as a share of the claimed one; None where no weight's could be read."""
    refuted_below: float
    """A share that an honest weight would hardly have."""
    where: int
    """That weight's place."""
    unread: int
    """Weights that are too coarse for their noise to be read."""
    not_finite: int
    """Releases that are no numbers."""
    alike: float | None
    """How much weights at a fixed distance, whichever shows most, are alike: 1 is more than chance explains."""
    distance: int
    """That distance."""
    repeated: float | None
    """How much each release is like the one before: 1 is more than chance explains."""

    @property
    def problem(self) -> str | None:
        """What contradicts the claim; None where nothing does."""
        if self.not_finite:
            return f"{self.not_finite} releases hold numbers that are not finite"
        if self.least is not None and self.least < self.refuted_below:
            return f"weight {self.where} has {self.least:.3g} of the noise that is claimed"
        if self.alike is not None and self.alike > 1:
            return f"weights that are {self.distance} apart get the same noise, or some of it"
        if self.repeated is not None and self.repeated > 1:
            return "a release has the noise of the one before, or some of it"
        return None


class NoiseMeter:
    """Adds up what releases tell of their noise."""

    def __init__(self, params: Tensor, scale: float, *, is_exact: bool = True) -> None:
        """Expect noise of `scale` on weights of the size of `params` (num_params,).

        Args:
            params: the weights that releases start from.
            scale: σC.
            is_exact: False if what lies under the noise is known roughly only: then likeness proves nothing.
        """
        self._scale, self._is_exact = scale, is_exact
        coarse = params.abs().double() * torch.finfo(params.dtype).eps
        self._is_read = coarse <= _READABLE * scale
        self._sums = torch.zeros(len(params), dtype=torch.float64)
        self._squares = torch.zeros(len(params), dtype=torch.float64)
        # Of a vector twice as long: what leaves at the end must not come in again at the beginning.
        self._spectrum = torch.zeros(len(params) + 1, dtype=torch.float64)
        self._last: Tensor | None = None
        self._products = 0.0
        self._releases = self._not_finite = 0

    def add(self, change: Tensor, unnoised: Tensor) -> None:
        """One release, in the order of time: by how much it moved the weights, and would have without noise."""
        noise = (change.double() - unnoised.double()) / self._scale
        if not bool(noise.isfinite().all()):
            self._not_finite += 1
            return
        noise[~self._is_read] = 0.0
        self._sums += noise
        self._squares += noise**2
        if self._releases < _COMPARED:
            self._spectrum += torch.fft.rfft(noise, n=2 * len(noise)).abs() ** 2
        if self._last is not None:
            self._products += float(noise @ self._last)
        self._last = noise
        self._releases += 1

    def audit(self, confidence: float) -> NoiseAudit:
        """Compare with the claim; of honest noise, no more than a share of 1 - `confidence` is refuted."""
        error, read = (1 - confidence) / _PARTS, int(self._is_read.sum())
        is_seen = read > 0 and self._releases >= _FEWEST
        spread = self._squares - self._sums**2 / max(1, self._releases)
        freedom = max(1, self._releases - 1)
        shares = (spread.clamp_min(0) / freedom).sqrt().masked_fill(~self._is_read, math.inf)
        where = int(shares.argmin())
        alike, distance = self._most_alike(error) if is_seen and self._is_exact else (None, 0)
        return NoiseAudit(
            releases=self._releases,
            confidence=confidence,
            least=float(shares[where]) if is_seen else None,
            refuted_below=_smallest_share(freedom, error / max(1, read)),
            where=where,
            unread=len(shares) - read,
            not_finite=self._not_finite,
            alike=alike,
            distance=distance,
            repeated=abs(self._products) / largest_sum(read * freedom, error) if is_seen and self._is_exact else None,
        )

    def _most_alike(self, error: float) -> tuple[float, int]:
        """By the Wiener-Khinchin theorem: the products of all weights with those at each distance behind them."""
        size = len(self._squares)
        if size == 1:
            return 0.0, 0
        sums = torch.fft.irfft(self._spectrum, n=2 * size)[1:size].abs()
        terms = min(self._releases, _COMPARED) * torch.arange(size - 1, 0, -1, dtype=torch.float64)
        shares = sums / _largest_sums(terms, error / (size - 1))
        most = int(shares.argmax())
        return float(shares[most]), most + 1


def largest_sum(terms: int, error: float) -> float:
    """Of so many products: a sum whose size exceeds this has probability `error` at most."""
    return float(_largest_sums(torch.tensor(float(terms), dtype=torch.float64), error))


def _largest_sums(terms: Tensor, error: float) -> Tensor:
    """The t with 2 exp(-t² / (2 (m + 2 t))) = error."""
    exponent = math.log(2 / error)
    return 2 * exponent + (4 * exponent**2 + 2 * exponent * terms).sqrt()


def _smallest_share(freedom: int, error: float) -> float:
    """Of the deviation of honest numbers, with so many degrees of freedom: less has probability `error`."""
    return math.sqrt(2 * float(gammaincinv(freedom / 2, error)) / freedom)
