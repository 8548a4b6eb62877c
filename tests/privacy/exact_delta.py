"""ε(δ) of sampled Gaussian steps without a grid of losses: the truth that accountants are compared with.

One step has a closed form. For T equal steps, with K(z) = log E[e^{zL}] by quadrature over the noise,

    δ(ε) = 1/(2πi) ∫ e^{T K(z) − zε} / (z (z + 1)) dz    along Re z = θ > 0,

because (1 − e^{ε−l})_+ is the inverse Laplace transform of 1 / (z (z + 1)). Nothing is shared with the accountants: no
grid of losses, no discrete Fourier transform.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtri_exp

# Noise of probability e^-16 δ is left out. Where heavy tails need it, more is, and δ is averaged over [ε, 1.003 ε].
ATTEMPTS = ((-16.0, 0.0), (-7.0, 0.001))
ORDER = 3
POINTS = 4001


def epsilon_range(sample_rate, noise_multiplier, steps, delta, start):
    """Return a lower and an upper estimate of ε at δ: both directions, the worse counts. `start` only saves time."""
    low, high, far = 0.0, math.inf, False
    for log_tail, smoothing in ATTEMPTS:
        removed, added = (
            _Direction(sample_rate, noise_multiplier, steps, delta, remove, log_tail, smoothing)
            for remove in (True, False)
        )
        ends = removed.epsilon(start)
        # Far from `start`, Newton's method may have met a zero that is none. Then both attempts must agree.
        low, high = (min(low, ends[0]), max(high, ends[1])) if far else ends
        far = ends[1] - ends[0] <= 1e-4 * ends[0] and abs(ends[0] - start) > 0.01 * start
        if not far and high - low <= 1e-4 * low:
            break
    if added.surely_less_than(low):
        return low, high
    return tuple(max(ends) for ends in zip((low, high), added.epsilon(start), strict=True))


@dataclass
class _Direction:
    """δ(ε) if the record is removed, or if it is added."""

    rate: float
    noise: float
    steps: int
    delta: float
    remove: bool
    log_tail: float
    smoothing: float
    width: float = 0.0

    @property
    def reach(self):
        """Standard deviations of noise that count."""
        return -float(ndtri_exp(math.log(self.delta / self.steps) + self.log_tail))

    def epsilon(self, start):
        """Return the lower and the upper estimate of ε, by Newton's method; each step tilts anew."""
        for _ in range(60):
            if self.steps > 1:
                self.width = self.smoothing * start
                self._prepare(start)
            nearby = max(start * 1e-5, 1e-12)
            excess, error = self._excess(start)
            slope = (self._excess(start + nearby)[0] - excess) / nearby
            if start == 0 and excess <= 0:
                return 0.0, 0.0
            found = max(start - excess / slope, 0.0) if -math.inf < slope < 0 else start / 2
            if abs(found - start) <= 1e-7 * start:
                above = ORDER * self.width - (error + math.exp(self.log_tail)) / slope
                return found * (1 - 2e-7) + error / slope, found * (1 + 2e-7) + above
            start = min(found, max(2 * start, 1e-9))
        return 0.0, math.inf

    def surely_less_than(self, epsilon):
        """Return whether ε of this direction is less, by Chernoff's bound."""
        nodes = self._nodes(POINTS)
        tilts = np.geomspace(0.1, 1e4, 60) / math.sqrt(self._cumulants(nodes, 0)[2])
        return min(self._cumulants(nodes, tilt)[0] - tilt * epsilon for tilt in tilts) < math.log(self.delta)

    def _excess(self, epsilon):
        log_delta, error = self.log_delta(epsilon)
        return log_delta - math.log(self.delta), error

    def log_delta(self, epsilon):
        """Return log δ(ε) and a bound of its relative error."""
        if self.steps == 1:
            return self._one_step(epsilon), 1e-9
        z = self.tilt + 1j * self.frequencies
        # The mean over [ε, ε + 3w] with the density of the sum of three uniform variables: at most δ(ε).
        mean = (-np.expm1(-z * self.width) / (z * self.width)) ** ORDER if self.width else 1.0
        terms = (mean * self.spectrum * np.exp(-1j * self.frequencies * epsilon) / (z * (z + 1))).real
        # Above the largest loss δ is 0, up to rounding.
        total = max(self.frequencies[1] / math.pi * (terms.sum() - terms[0] / 2), 1e-300)
        return self.log_scale - self.tilt * epsilon + math.log(total), self.residual / total + 1e-9

    def _one_step(self, epsilon):
        """Return log(P(x > c) − e^ε Q(x > c)), c the output of loss ε; x < c if the record is added."""
        rate, noise = self.rate, self.noise
        level = math.expm1(epsilon if self.remove else -epsilon) / rate
        if level <= -1:
            return -math.inf
        x = noise**2 * math.log1p(level) + 0.5
        if self.remove:
            without, present = log_ndtr(-x / noise), log_ndtr((1 - x) / noise)
            # (1 − q − e^ε) N0 + q N1 = q (N1 − N0 (1 + (e^ε − 1)/q))
            return math.log(rate) + present + math.log(max(-math.expm1(without - present + math.log1p(level)), 1e-300))
        without, present = log_ndtr(x / noise), log_ndtr((x - 1) / noise)
        # N0 − e^ε ((1 − q) N0 + q N1) = e^ε q (N0 (1 + (e^-ε − 1)/q) − N1)
        first = without + math.log1p(level)
        return epsilon + math.log(rate) + first + math.log(max(-math.expm1(present - first), 1e-300))

    def _nodes(self, count):
        """Return log probabilities and losses at equidistant outputs (the trapezoidal rule)."""
        x = np.linspace(-self.reach * self.noise, 1 + self.reach * self.noise, count)
        y = (2 * x - 1) / (2 * self.noise**2)
        loss = np.where(
            y < 1,
            np.log1p(self.rate * np.expm1(np.minimum(y, 1))),
            np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + y),
        )
        without = -((x / self.noise) ** 2) / 2 + math.log((x[1] - x[0]) / (self.noise * math.sqrt(2 * math.pi)))
        return (without + loss, loss) if self.remove else (without, -loss)

    def _cumulants(self, nodes, tilt):
        exponents = nodes[0] + tilt * nodes[1]
        log_moment = logsumexp(exponents)
        weights = np.exp(exponents - log_moment)
        mean = np.sum(weights * nodes[1])
        return self.steps * np.array([log_moment, mean, np.sum(weights * (nodes[1] - mean) ** 2)])

    def _prepare(self, about):
        """Tilt the total loss to a mean of `about`, and tabulate its characteristic function."""
        nodes = self._nodes(POINTS)
        deviation = math.sqrt(self._cumulants(nodes, 0)[2])
        low, high = 0.5 / max(deviation, about), 1e5 / deviation
        for _ in range(60):
            self.tilt = math.sqrt(low * high)
            low, high = (self.tilt, high) if self._cumulants(nodes, self.tilt)[1] < about else (low, self.tilt)
        log_moment, mean, variance = self._cumulants(nodes, self.tilt)
        deviation = math.sqrt(variance)
        # The trapezoidal sum over frequencies repeats in ε with this period.
        above = min(
            (self._cumulants(nodes, self.tilt + f / deviation)[0] - log_moment + 30) * deviation / f
            for f in (0.5, 1, 2, 4, 8, 16)
        )
        period = 2 * (above - mean) + 40 / self.tilt
        count = 128
        while True:
            self._tabulate(2 * math.pi / period, count)
            end = self.frequencies[-1]
            last = np.abs(self.spectrum[-16:]).max() * min(1.0, 2 / max(end * self.width, 1e-300)) ** ORDER
            self.residual = last / (math.pi * end)
            if last < 1e-14 or count >= (32768 if self.smoothing else 8192):
                break
            count *= 4

    def _tabulate(self, distance, count):
        points = POINTS
        while True:  # until neighbouring losses differ by less than half a radian at the highest frequency
            log_weights, losses = self._nodes(points)
            exponents = log_weights + self.tilt * losses
            log_moment = logsumexp(exponents)
            weights = np.exp(exponents - log_moment)
            kept = weights > 1e-20
            weights, losses = weights[kept], losses[kept]
            if np.abs(np.diff(losses)).max() * distance * count < 0.5 or points > 60_000:
                break
            points = 2 * points - 1
        self.log_scale = self.steps * log_moment
        turn, current = np.exp(1j * distance * losses), weights.astype(complex)
        values = np.empty(count, complex)
        for k in range(count):
            values[k] = current.sum()
            current *= turn
        self.frequencies, self.spectrum = distance * np.arange(count), values**self.steps
