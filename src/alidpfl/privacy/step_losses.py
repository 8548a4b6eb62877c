"""Privacy losses of one step of the sampled Gaussian mechanism, in both directions.

P and Q are the distributions of a step's output x with and without the record, in units of the clip norm:
P = (1 − q) N(0, σ²) + q N(1, σ²) and Q = N(0, σ²) if the record is removed, the other way round if it is added
(Zhu, Dong & Wang 2022, Proposition 30: these two pairs dominate). The loss of x is log P(x)/Q(x).

For a group of g records, P = Σ_j b_j N(j, σ²), where b_j is the probability that j of them are in the batch: binomial.
`group_privacy` proves that these two pairs dominate.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

Floats: TypeAlias = npt.NDArray[np.float64]

_SKETCH_POINTS, _MOST_SKETCH_POINTS = 1001, 100_001
_NEAR: Final = 0.5  # losses below it are computed by differences from 0
_TABLE_POINTS, _NEWTON_STEPS = 4097, 60  # to find the output that has a loss of a group
_CLOSE, _FLAT = 1e-9, 1e-12  # share of the grid's interval, and of the least loss
_UNLIKELY: Final = -80.0  # log of a probability
_MOSTLY: Final = 0.5  # larger sampling rates need other formulas for large negative losses


@dataclass(frozen=True)
class Step:
    """A mechanism that is composed `count` times. Unlike `SampledGaussian` it accepts every σ > 0."""

    sample_rate: float
    noise_multiplier: float
    count: int = 1
    group: int = 1
    """Number of records that are in or out together."""


@dataclass(frozen=True)
class StepLosses:
    """Probabilities of the losses `lowest`, `lowest` + 1, ... times the grid's interval."""

    lowest: int
    probabilities: Floats
    infinite: float
    """Probability of the losses above the grid, which count as infinite."""


@dataclass(frozen=True)
class Sketch:
    """A step's losses at few points. It gives estimates, not bounds."""

    log_probabilities: Floats
    losses: Floats

    def cumulants(self, tilt: float) -> Floats:
        """Return K(θ) = log E[e^{θL}], K'(θ) and K''(θ): mean and variance of the tilted loss."""
        exponents = self.log_probabilities + tilt * self.losses
        top = exponents.max()
        weights = np.exp(exponents - top)
        total = weights.sum()
        mean = weights @ self.losses / total
        return np.array([top + math.log(total), mean, weights @ (self.losses - mean) ** 2 / total])


@lru_cache(maxsize=256)
def sketch(sample_rate: float, noise_multiplier: float, reach: float, *, remove: bool, group: int = 1) -> Sketch:
    """Return the sketch of a step for noise of up to `reach` standard deviations.

    Args:
        sample_rate: q.
        noise_multiplier: σ.
        reach: Range of the noise in standard deviations.
        remove: Whether the record is removed; otherwise it is added.
        group: Number of records that are in or out together.

    Returns:
        The losses at equidistant outputs x, by the trapezoidal rule.
    """
    most = _drawn(sample_rate, group).most
    points = math.ceil(_SKETCH_POINTS * (1 + (most - 1) / (2 * reach * noise_multiplier)))
    x = np.linspace(-reach * noise_multiplier, most + reach * noise_multiplier, min(points, _MOST_SKETCH_POINTS))
    loss = _loss(sample_rate, noise_multiplier, x, group)
    without = -((x / noise_multiplier) ** 2) / 2 + math.log((x[1] - x[0]) / noise_multiplier / math.sqrt(2 * math.pi))
    return Sketch(without + loss, loss) if remove else Sketch(without, -loss)


@lru_cache(maxsize=256)
def typical_loss(sample_rate: float, noise_multiplier: float, group: int = 1) -> float:
    """Return √(2 E[L]), about the standard deviation of a step's loss, without its rare and large values."""
    mean = sketch(sample_rate, noise_multiplier, 12.0, remove=True, group=group).cumulants(0.0)[1]
    return math.sqrt(2 * max(mean, 0.0))


def loss_range(step: Step, reach: float) -> float:
    """Return the difference of the largest and the smallest loss for noise of up to `reach` standard deviations."""
    most = _drawn(step.sample_rate, step.group).most
    ends = np.array([-reach * step.noise_multiplier, most + reach * step.noise_multiplier])
    return float(np.ptp(_loss(step.sample_rate, step.noise_multiplier, ends, step.group)))


def step_losses(step: Step, interval: float, reach: float) -> tuple[StepLosses, StepLosses]:
    """Return a step's losses on a grid, if the record (or group) is removed and if it is added. Both are pessimistic.

    Args:
        step: One step; its count does not matter.
        interval: Distance of the grid's points.
        reach: Noise beyond this many standard deviations is counted as infinite loss if its loss is large.
    """
    rate, noise, group = step.sample_rate, step.noise_multiplier, step.group
    ends = _loss(rate, noise, np.array([-reach * noise, _drawn(rate, group).most + reach * noise]), group) / interval
    low, high = math.floor(ends[0]), math.ceil(ends[1])
    x = _output(rate, noise, interval * np.arange(low, high + 1), group)
    cells = np.concatenate([[-np.inf], x, [np.inf]])
    without = _normal_mass(cells / noise)
    if group == 1:
        present = _normal_mass((cells - 1) / noise)
        mixture, difference = (1 - rate) * without + rate * present, rate * (present - without)
    else:
        mixture, difference = np.zeros_like(without), np.zeros_like(without)
        for drawn, log_share in _drawn(rate, group).numbers:
            present = _normal_mass((cells - drawn) / noise)
            mixture += math.exp(log_share) * present
            difference += math.exp(log_share) * (present - without)
        difference -= _drawn(rate, group).unlikely * without
    removed = _connect_the_dots(low, interval, mixture, without, difference)
    removed = replace(removed, infinite=removed.infinite + _drawn(rate, group).unlikely)
    added = _connect_the_dots(-high, interval, without[::-1], mixture[::-1], -difference[::-1])
    return removed, added


def _connect_the_dots(lowest: int, interval: float, p: Floats, q: Floats, difference: Floats) -> StepLosses:
    """Split each cell between its two ends so that P and Q keep their masses (Doroshenko et al. 2022, Algorithm 1).

    The first and the last cell of p, q and `difference` = p − q lie outside the grid. The first moves up to the lowest
    point, the last to infinity, which is pessimistic.
    """
    low = interval * (lowest + np.arange(len(p) - 2))
    # w_low + w_high = p and w_low e^-low + w_high e^-(low + interval) = q. Near loss 0, p − q keeps more digits.
    near = difference[1:-1] - q[1:-1] * np.expm1(np.clip(low, -1.0, 1.0))
    far = p[1:-1] - q[1:-1] * np.exp(np.minimum(low, 700.0))
    moved_up = np.clip(np.where(np.abs(low) < _NEAR, near, far) / -math.expm1(-interval), 0.0, p[1:-1])
    probabilities = np.concatenate([p[1:-1] - moved_up, [0.0]])
    probabilities[1:] += moved_up
    probabilities[0] += p[0]
    return StepLosses(lowest, probabilities, float(p[-1]))


class _Drawn(NamedTuple):
    """How many records of a group may be in a batch."""

    numbers: tuple[tuple[int, float], ...]
    """Each likely number j, with log b_j."""
    unlikely: float
    """Probability of all others. They count as an infinite loss."""

    @property
    def most(self) -> int:
        """The largest likely number."""
        return self.numbers[-1][0]


@lru_cache(maxsize=64)
def _drawn(sample_rate: float, group: int) -> _Drawn:
    """Return the binomial probabilities of a group."""
    if sample_rate == 1:
        return _Drawn(((group, 0.0),), 0.0)
    found = [
        (j, math.log(math.comb(group, j)) + j * math.log(sample_rate) + (group - j) * math.log1p(-sample_rate))
        for j in range(group + 1)
    ]
    if group == 1:
        return _Drawn(tuple(found), 0.0)
    unlikely = sum(math.exp(log_share) for _, log_share in found if log_share <= _UNLIKELY)
    return _Drawn(tuple(pair for pair in found if pair[1] > _UNLIKELY), unlikely)


@np.errstate(divide="ignore")  # log 0 at q = 1
def _loss(sample_rate: float, noise_multiplier: float, x: Floats, group: int = 1) -> Floats:
    """Return log(1 − q + q e^y), y = (2x − 1) / (2σ²), to full relative precision. For a group see `_group_loss`."""
    if group > 1:
        return _group_loss(sample_rate, noise_multiplier, x, group)[0]
    y = (2 * x - 1) / (2 * noise_multiplier**2)
    near_zero = np.log1p(sample_rate * np.expm1(np.minimum(y, 1.0)))
    elsewhere = np.logaddexp(np.log1p(-sample_rate), math.log(sample_rate) + y)
    return np.where((y < 1) & ((y > -1) | (sample_rate < _MOSTLY)), near_zero, elsewhere)


def _group_loss(sample_rate: float, noise_multiplier: float, x: Floats, group: int) -> tuple[Floats, Floats]:
    """Return log Σ_j b_j e^{y_j}, y_j = (2jx − j²) / (2σ²), and its derivative by x."""
    near, top = np.zeros_like(x), np.zeros_like(x)
    log_total, log_slope = np.full_like(x, -np.inf), np.full_like(x, -np.inf)
    for drawn, log_share in _drawn(sample_rate, group).numbers:
        y = drawn * (2 * x - drawn) / (2 * noise_multiplier**2)
        near += math.exp(log_share) * np.expm1(np.minimum(y, 1.0))
        top = np.maximum(top, y)
        log_total = np.logaddexp(log_total, log_share + y)
        log_slope = np.logaddexp(log_slope, math.log(drawn) + log_share + y) if drawn else log_slope
    near -= _drawn(sample_rate, group).unlikely
    is_near = (top < 1) & (np.abs(near) < _NEAR)  # log Σ b_j e^{y_j} = log(1 + Σ b_j (e^{y_j} − 1)), to full precision
    loss = np.where(is_near, np.log1p(np.clip(near, -_NEAR, _NEAR)), log_total)
    return loss, np.exp(log_slope - log_total) / noise_multiplier**2


@np.errstate(divide="ignore")  # log 0 below the smallest loss
def _output(sample_rate: float, noise_multiplier: float, loss: Floats, group: int = 1) -> Floats:
    """Return the x that has this loss, −∞ if the loss is below that of every x."""
    if group > 1:
        return _group_output(sample_rate, noise_multiplier, loss, group)
    near_zero = np.log1p(np.maximum(np.expm1(np.minimum(loss, 1.0)) / sample_rate, -1.0))
    ratio = np.maximum((sample_rate - 1) * np.exp(np.minimum(-loss, 700.0)), -1.0)
    elsewhere = loss - math.log(sample_rate) + np.log1p(ratio)
    y = np.where((loss < 1) & ((loss > -1) | (sample_rate < _MOSTLY)), near_zero, elsewhere)
    return noise_multiplier**2 * y + 0.5


def _group_output(sample_rate: float, noise_multiplier: float, loss: Floats, group: int) -> Floats:
    """Return the x that has this loss of a group, −∞ if the loss is below that of every x.

    The loss is convex and increasing in x. So Newton's method falls to the solution from any larger x.

    Raises:
        ArithmeticError: it did not get close enough.
    """
    drawn, log_share = _drawn(sample_rate, group).numbers[0]
    least = log_share if drawn == 0 else -math.inf
    high = group + 1.0
    while _loss(sample_rate, noise_multiplier, np.array([high]), group)[0] < loss[-1]:
        high *= 2
    is_found = loss > (least + _FLAT * abs(least) if least > -math.inf else least)
    low = -1.0
    while is_found.any() and _loss(sample_rate, noise_multiplier, np.array([low]), group)[0] > loss[is_found][0]:
        low *= 2
    table = np.linspace(low, high, _TABLE_POINTS)
    of_table = np.maximum.accumulate(_loss(sample_rate, noise_multiplier, table, group))
    wanted = loss[is_found]
    x = table[np.minimum(np.searchsorted(of_table, wanted), len(table) - 1)]
    for _ in range(_NEWTON_STEPS):
        found, slope = _group_loss(sample_rate, noise_multiplier, x, group)
        away = found - wanted
        if np.abs(away).max(initial=0.0) <= _CLOSE * (loss[1] - loss[0]):
            result = np.full_like(loss, -np.inf)
            result[is_found] = np.maximum.accumulate(x)
            return result
        x = x - away / slope
    raise ArithmeticError("the losses of a group could not be inverted")


def _normal_mass(edges: Floats) -> Floats:
    """Return the standard normal mass between neighbouring edges, with small masses to full relative precision."""
    mirrored = edges[:-1] > 0
    low, high = np.where(mirrored, -edges[1:], edges[:-1]), np.where(mirrored, -edges[:-1], edges[1:])
    return np.asarray(ndtr(high) - ndtr(low), np.float64)
