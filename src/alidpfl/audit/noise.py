"""The noise itself, coordinate by coordinate: what the one-step audit, which reads along one line, does not see.

The claim is N(0, (σC)² I) on the released sum: as much on every coordinate, of no coordinate the same as of another, of
no release the same as of the one before. All three are tested on the releases without the canary, and the error is
divided among them. A sum of products of independent normal numbers, m of them, none in more than two, exceeds t with
probability at most exp(-t² / (2 (m + 2 t))): from the moment generating function of a quadratic form whose matrix has
no trace and eigenvalues within [-1, 1].
"""

import math
from dataclasses import dataclass

import torch
from scipy.special import gammaincinv
from torch import Tensor

_COMPARED = 64  # releases whose coordinates are compared with one another: each takes two Fourier transforms
_READABLE = 0.05  # of σC: weights that are rounded to more than that hide the noise
_PARTS = 3  # tests that share the error


@dataclass(frozen=True, kw_only=True)
class NoiseAudit:
    """What was seen of the noise."""

    draws: int
    confidence: float
    least: float
    """σ of the coordinate that has least, as a share of the claimed one."""
    refuted_below: float
    """A share that an honest coordinate would hardly have."""
    where: int
    """That coordinate's place among the weights."""
    unread: int
    """Coordinates whose weights are too coarse for their noise to be read."""
    alike: float
    """How much coordinates at a fixed distance, whichever shows most, are alike: 1 is more than chance explains."""
    distance: int
    """That distance."""
    repeated: float
    """How much each release is like the one before: 1 is more than chance explains."""

    @property
    def problem(self) -> str | None:
        """What contradicts the claim; None where nothing does."""
        if self.least < self.refuted_below:
            return f"weight {self.where} has {self.least:.3g} of the noise that is claimed"
        if self.alike > 1:
            return f"weights that are {self.distance} apart get the same noise, or some of it"
        if self.repeated > 1:
            return "a release has the noise of the one before, or some of it"
        return None


class NoiseMeter:
    """Adds up what releases tell of their noise."""

    def __init__(self, params: Tensor, unnoised: Tensor, scale: float) -> None:
        """Expect releases around `unnoised` (num_params,), with noise of `scale` on weights of the size of `params`."""
        self._unnoised, self._scale = unnoised.double(), scale
        coarse = params.abs().double() * torch.finfo(params.dtype).eps
        self._is_read = coarse <= _READABLE * scale
        self._squares = torch.zeros(len(params), dtype=torch.float64)
        # Twice as long as the noise: what leaves at the end must not come in again at the beginning.
        self._spectrum = torch.zeros(len(params) + 1, dtype=torch.float64)
        self._last: Tensor | None = None
        self._products = 0.0
        self._draws = 0

    def add(self, change: Tensor) -> None:
        """One release: by how much it moved the weights."""
        noise = (change.double() - self._unnoised) / self._scale
        noise[~self._is_read] = 0.0
        self._squares += noise**2
        if self._draws < _COMPARED:
            self._spectrum += torch.fft.rfft(noise, n=2 * len(noise)).abs() ** 2
        if self._last is not None:
            self._products += float(noise @ self._last)
        self._last = noise
        self._draws += 1

    def audit(self, confidence: float) -> NoiseAudit:
        """Compare with the claim; of honest noise more than 1 - `confidence` is never refuted."""
        error, read = (1 - confidence) / _PARTS, int(self._is_read.sum())
        shares = (self._squares / self._draws).sqrt().masked_fill(~self._is_read, math.inf)
        where = int(shares.argmin())
        alike, distance = self._most_alike(error)
        return NoiseAudit(
            draws=self._draws,
            confidence=confidence,
            least=float(shares[where]),
            refuted_below=_smallest_share(self._draws, error / max(1, read)),
            where=where,
            unread=len(shares) - read,
            alike=alike,
            distance=distance,
            repeated=abs(self._products) / _largest_sum(read * (self._draws - 1), error),
        )

    def _most_alike(self, error: float) -> tuple[float, int]:
        """By the Wiener-Khinchin theorem: the products of all coordinates with those at each distance behind them."""
        size = len(self._squares)
        if size == 1:
            return 0.0, 0
        sums = torch.fft.irfft(self._spectrum, n=2 * size)[1:size].abs()
        terms = min(self._draws, _COMPARED) * torch.arange(size - 1, 0, -1, dtype=torch.float64)
        shares = sums / _largest_sums(terms, error / (size - 1))
        most = int(shares.argmax())
        return float(shares[most]), most + 1


def _smallest_share(draws: int, error: float) -> float:
    """Of the deviation of `draws` honest numbers: less has probability `error`."""
    return math.sqrt(2 * float(gammaincinv(draws / 2, error)) / draws)


def _largest_sum(terms: int, error: float) -> float:
    return float(_largest_sums(torch.tensor(float(terms), dtype=torch.float64), error))


def _largest_sums(terms: Tensor, error: float) -> Tensor:
    """The t with 2 exp(-t² / (2 (m + 2 t))) = error."""
    exponent = math.log(2 / error)
    return 2 * exponent + (4 * exponent**2 + 2 * exponent * terms).sqrt()
