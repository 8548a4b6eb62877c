"""ε of a composition at any δ, by Fourier transforms of tilted loss distributions.

A transform errs by about 1e-16 of the largest probability, and composing adds these errors up. That hides the losses
that decide about a δ of 1e-12. So multiply the probability of each loss l by e^{θl}, which moves the mass to the losses
near ε, compose, and divide again (Esscher 1932):

    p_θ(l) = p(l) e^{θl} / M(θ),    p*(l) = p_θ*(l) M(θ)^T e^{−θl},    M(θ) = Σ p(l) e^{θl}
    δ(ε) = p*(∞) + Σ_{l > ε} (1 − e^{ε−l}) p*(l)                       (Sommer, Meiser & Mohammadi 2019, Lemma 8)

Formal guarantee: the result is an upper bound of ε. Whatever is left out is bounded and added to δ: losses above the
grid, losses above the window of the transform, and rounding. Losses outside the window wrap around into it, which only
adds probability. θ, the grid and the window are estimates: they decide how tight the bound is, not whether it holds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import fft
from scipy.optimize import brentq
from scipy.special import ndtri_exp

from alidpfl.privacy.mechanisms import Composition, SampledGaussian
from alidpfl.privacy.step_losses import Floats, Sketch, Step, StepLosses, loss_range, sketch, step_losses, typical_loss

_FINENESS: Final = 0.05  # of the grid: its interval / a step's typical loss. ε is then about 4e-4 too large, at most
_STEP_POINTS, _TOTAL_POINTS = 2**18, 2**24  # of the grid, at most: for one step and for all
_LOG_TAIL: Final = -8.0  # noise that is cut off in all steps together has probability e^-8 δ
_LOG_OUTSIDE: Final = -16.0  # of the tilted probability outside the window, about
_TILTS: Final = (1.0, 2.0, 4.0, 5.7, 8.0, 16.0)  # that bound it, times 1 / standard deviation; 5.7 if it is Gaussian
_LOG_FAR: Final = -50.0  # the sum over l ends where e^{−θ(l−ε)} is below e^-50
# Each value of a transform of length N passes log2(N) multiplications and additions. Both together err by less than 5u,
# u = 2^-53 (Higham 2002, sections 3.6 and 24.1). So a value errs by at most 5u log2(N) Σ|p|. Take twice that.
_ROUNDING: Final = 10 * 2.0**-53
_ROUND_UP: Final = 1e-6  # of ε: more than rounding takes away in a step's probabilities and in the search for ε


def tilted_epsilon(composition: Composition, delta: float, *, coarser: int = 1, group: int = 1) -> float:
    """Return an upper bound of ε at δ, infinite if there is none.

    Args:
        composition: Mechanisms, at least one.
        delta: δ in (0, 1).
        coarser: Factor of the grid's interval. The error of ε grows with its square. A multiple gives a larger bound.
        group: Number of records that are in or out together.

    Raises:
        ArithmeticError: The losses do not fit on a grid of floats.
        ValueError: A logarithm left the range of floats.
    """
    steps = [_step(mechanism, group) for mechanism in composition]
    with np.errstate(all="ignore"):  # log 0 and e^-1000 are meant
        reach = -float(ndtri_exp(math.log(delta / sum(step.count for step in steps)) + _LOG_TAIL))
        interval = _interval(steps, reach, coarser)
        both = [step_losses(step, interval, reach) for step in steps]
        bounds = []
        for direction, remove in enumerate((True, False)):
            sketches = [
                sketch(one.sample_rate, one.noise_multiplier, reach, remove=remove, group=one.group) for one in steps
            ]
            window = _window(steps, sketches, delta, 1 / interval)
            bounds.append(_compose(steps, [pair[direction] for pair in both], window, interval).epsilon(delta))
    return max(bounds) * (1 + coarser * _ROUND_UP)


@dataclass(frozen=True)
class _Window:
    """The losses from `low` to `high`, near ε after tilting by θ = `tilt`."""

    tilt: float
    mean: float
    low: float
    high: float
    tilt_above: float
    """A tilt that bounds the probability above the window well."""


@dataclass(frozen=True)
class _Composed:
    """The tilted distribution of the total loss on the grid: `first`, `first` + 1, ... times the interval."""

    window: _Window
    interval: float
    first: int
    probabilities: Floats
    log_scale: float
    """T log M(θ)."""
    rounding: float
    """Bound of the error of each of `probabilities`."""
    left_out: float
    """Bound of the probability of losses above the grid and above the window."""

    def epsilon(self, delta: float) -> float:
        """Return ε with δ(ε) <= `delta`; infinite if no loss of the window has it."""

        def excess(epsilon: float) -> float:
            return self._log_delta(epsilon) - math.log(delta) + _ROUND_UP

        ends = (max(0.0, self.first * self.interval), (self.first + len(self.probabilities) - 2) * self.interval)
        start = min(max(self.window.mean, ends[0]), ends[1])
        # log δ(ε) has a slope of about −θ.
        distance = 0.1 * (math.log(2) - math.log(delta)) / self.window.tilt
        near = (max(start - distance, ends[0]), min(start + distance, ends[1]))
        low, high = (new if excess(new) * sign > 0 else end for new, end, sign in zip(near, ends, (1, -1), strict=True))
        if excess(low) <= 0:
            return low
        if not excess(high) <= 0:
            return math.inf
        return float(brentq(excess, low, high, xtol=1e-9 * high, rtol=1e-9))

    def _log_delta(self, epsilon: float) -> float:
        """Return log of an upper bound of δ(ε)."""
        tilt, interval = self.window.tilt, self.interval
        begin = max(0, math.floor(epsilon / interval) - self.first)
        kept = self.probabilities[begin : begin + math.ceil(-_LOG_FAR / (tilt * interval)) + 2]
        ahead = np.maximum(interval * (self.first + begin + np.arange(len(kept))) - epsilon, 0.0)  # l − ε
        weights = -np.expm1(-ahead) * np.exp(-tilt * ahead)
        # Each probability may be too small by `rounding`. The losses not kept have e^-50 at most.
        tilted = np.sum(weights * (kept + self.rounding)) + math.exp(_LOG_FAR)
        return float(np.logaddexp(self.log_scale - tilt * epsilon + math.log(tilted), np.log(self.left_out)))


def _step(mechanism: SampledGaussian, group: int) -> Step:
    rate, noise, steps = mechanism.sample_rate, mechanism.noise_multiplier, mechanism.steps
    if rate == 1:  # T Gaussian releases equal one at σ/√T (Dong, Roth & Su 2022, Corollary 3.3)
        return Step(1.0, noise / math.sqrt(steps) / group)
    return Step(rate, noise, steps, group)


def _interval(steps: Sequence[Step], reach: float, coarser: int) -> float:
    """Return the grid's interval d.

    Connecting the dots raises ε by about T (1 + θ) d²/12, and ε >= T (1 + θ) E[L]. So it depends on the mean of E[L].
    """
    count = sum(step.count for step in steps)
    squares = (s.count * typical_loss(s.sample_rate, s.noise_multiplier, s.group) ** 2 for s in steps)
    typical = math.sqrt(sum(squares) / count)
    widest = max(loss_range(step, reach) for step in steps)
    return coarser * max(_FINENESS * typical, widest / _STEP_POINTS)


def _window(steps: Sequence[Step], sketches: Sequence[Sketch], delta: float, highest_tilt: float) -> _Window:
    """Choose θ so that the tilted mean is about ε, and a window that holds almost all tilted probability."""
    pairs = list(zip(steps, sketches, strict=True))

    def cumulants(tilt: float) -> tuple[float, float, float]:
        log_moment, mean, variance = np.sum([s.count * k.cumulants(tilt) for s, k in pairs], axis=0)
        return float(log_moment), float(mean), float(variance)

    deviation = math.sqrt(cumulants(0.0)[2])
    low, high = 1e-3 / deviation, 1e6 / deviation
    for _ in range(24):
        tilt = math.sqrt(low * high)
        log_moment, mean, variance = cumulants(tilt)
        # log 1/δ by the saddle-point method: e^{K(θ) − θ K'(θ)} / (θ (1 + θ) √(2π K''(θ))) at ε = K'(θ).
        prefactor = tilt * (1 + tilt) * math.sqrt(2 * math.pi * variance)
        small = tilt * mean - log_moment + math.log1p(prefactor) < -math.log(delta)
        low, high = (tilt, high) if small else (low, tilt)
    tilt = min(low, highest_tilt)
    log_moment, mean, variance = cumulants(tilt)
    # Chernoff's bounds: P_θ(L > u) <= e^{K(θ + t) − K(θ) − tu}, and the same below with −t.
    distances = [min(factor / math.sqrt(variance), highest_tilt) for factor in _TILTS]
    above = [(cumulants(tilt + t)[0] - log_moment - _LOG_OUTSIDE) / t for t in distances]
    below = [(cumulants(tilt - t)[0] - log_moment - _LOG_OUTSIDE) / -t for t in distances]
    return _Window(tilt, mean, max(below), min(above), tilt + distances[above.index(min(above))])


def _compose(steps: Sequence[Step], losses: Sequence[StepLosses], window: _Window, interval: float) -> _Composed:
    """Compose the tilted losses of all steps by one Fourier transform each."""
    first = math.floor(window.low / interval)
    longest = max(math.ceil(window.high / interval) - first, *(len(one.probabilities) for one in losses))
    if not longest <= _TOTAL_POINTS:
        raise OverflowError("the losses need too many points")
    size = fft.next_fast_len(longest, real=True)
    error = _ROUNDING * (math.log2(size) + 4)  # of each value of a transform of probabilities, and of a power's factors
    spectrum, log_size, errors = np.ones(size // 2 + 1, np.complex128), np.zeros(size // 2 + 1), error
    log_scale, log_above = 0.0, -window.tilt_above * (first + size - 1) * interval
    for step, one in zip(steps, losses, strict=True):
        log_moment, tilted = _tilt(one, window.tilt * interval)
        values = fft.rfft(tilted, size)
        spectrum *= values**step.count
        # |Π a − Π b| <= Σ |a − b| / max(|a|, |b|) · Π max(|a|, |b|)
        largest = np.abs(values) + error
        log_size += step.count * np.log(largest)
        errors = errors + step.count * error / largest
        log_scale += step.count * log_moment
        log_above += step.count * _tilt(one, window.tilt_above * interval)[0]
    origin = sum(step.count * one.lowest for step, one in zip(steps, losses, strict=True))
    return _Composed(
        window=window,
        interval=interval,
        first=first,
        probabilities=np.roll(fft.irfft(spectrum, size), (origin - first) % size),
        log_scale=log_scale,
        rounding=2 / size * float(np.sum(np.exp(log_size) * errors)),
        left_out=sum(s.count * one.infinite for s, one in zip(steps, losses, strict=True)) + math.exp(log_above),
    )


def _tilt(losses: StepLosses, exponent: float) -> tuple[float, Floats]:
    """Return log M(θ) and the tilted probabilities p(l) e^{θl} / M(θ), for θ times the interval."""
    points = losses.lowest + np.arange(len(losses.probabilities))
    exponents = np.log(losses.probabilities) + exponent * points
    top = exponents.max()
    tilted = np.exp(exponents - top)
    total = tilted.sum()
    return float(top + math.log(total)), tilted / total
