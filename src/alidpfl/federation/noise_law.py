"""The law of an honest update: how long it can be, and how short.

The server knows C, σ, q, η and every client's number of records, so it knows the noise of an honest update exactly, and
a bound of everything else in it. A limit here fails for an honest client with probability e^-x at most, whatever its
records are. docs/how-to/hostile-clients.md has the proofs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from alidpfl.types import ClientPlan

FALSE_ALARM = 1e-6
"""Probability that a round rejects any honest update, at most."""

_ROUNDING = 1 / 512  # of a noise's standard deviation: half a step of the grid that noised sums are rounded to
_FLOAT_STEP, _SMALLEST_FLOAT = 2.0**-23, 2.0**-126
_EVENTS_A_STEP = 3  # batch size, longest, shortest


@dataclass(frozen=True, kw_only=True)
class HonestLaw:
    """What bounds one client's update: noise and largest signal of each step, and how unlikely a failure must be."""

    noises: tuple[float, ...]
    """Standard deviation of each step's noise, in every coordinate of the update."""
    signals: tuple[float, ...]
    """Longest move by the clipped gradients, in each step."""
    num_params: int
    log_odds: float
    """x: a limit fails with probability e^-x at most."""

    @classmethod
    def of(
        cls,
        plan: ClientPlan,
        *,
        num_params: int,
        num_records: int,
        num_clients: int,
        false_alarm: float = FALSE_ALARM,
    ) -> "HonestLaw":
        """Return the law of a client's update.

        Args:
            plan: what the client was asked to do.
            num_params: number of coordinates of the update.
            num_records: the client's number of records, by enrolment.
            num_clients: number of clients in the round, which share the false alarms.
            false_alarm: probability that any honest update of the round crosses any limit, at most.
        """
        directions = num_clients + 2  # every client's past, the model's last move, the mean of the others
        log_odds = math.log(num_clients * (_EVENTS_A_STEP * plan.steps + directions) / false_alarm)
        if plan.release == "update":  # clipped to C as a whole; the noise is 2σC
            scales, noise, records = [plan.clip_norm], 2 * plan.noise_multiplier, 1.0
        else:
            divisor = plan.sample_rate * num_records
            scales, noise = [rate * plan.clip_norm / divisor for rate in plan.learning_rates], plan.noise_multiplier
            records = largest_batch(num_records, plan.sample_rate, log_odds)
        noises, signals = tuple(noise * scale for scale in scales), tuple(records * scale for scale in scales)
        return cls(noises=noises, signals=signals, num_params=num_params, log_odds=log_odds)

    @property
    def noise(self) -> float:
        """Standard deviation of the whole update's noise, in every coordinate."""
        return math.hypot(*self.noises)

    def longest(self) -> float:
        """Return the length that no honest update exceeds. Each step adds its signal, then its noise."""
        length = 0.0
        for noise, signal in zip(self.noises, self.signals, strict=True):
            length = longest_sum(length + signal, noise, self.num_params, self.log_odds)
        return length

    def shortest(self, without: int = 0) -> float:
        """Return the length that every honest update has at least, also after `without` directions are taken out.

        The directions must not depend on the client's noise of this round.
        """
        length, free = 0.0, self.num_params - without
        for noise, signal in zip(self.noises, self.signals, strict=True):
            length = shortest_sum(max(0.0, length - signal), noise, free, self.log_odds)
        return length

    def largest_component(self) -> float:
        """Return the most along a unit vector that does not depend on the client's noise of this round."""
        rounding = _ROUNDING * math.sqrt(self.num_params) * sum(self.noises)
        return sum(self.signals) + self.noise * math.sqrt(2 * self.log_odds) + rounding

    def rounding(self, weights: float) -> float:
        """Return how much float arithmetic changes an update's length, from weights of this length."""
        relative = _FLOAT_STEP * (weights + self.longest())
        return len(self.noises) * (relative + _SMALLEST_FLOAT * math.sqrt(self.num_params))


def longest_sum(signal: float, noise: float, num_params: int, log_odds: float) -> float:
    """Return the length that a vector plus noise exceeds with probability e^-x at most (Birgé 2001, Lemma 8.1).

    Args:
        signal: the vector's length, at most.
        noise: standard deviation of each coordinate's noise.
        num_params: number of coordinates, d.
        log_odds: x.

    >>> 100 < longest_sum(0.0, 1.0, 10_000, 14.0) < 105
    True
    """
    power, spread = num_params * noise**2 + signal**2, num_params * noise**2 + 2 * signal**2
    square = power + 2 * noise * math.sqrt(spread * log_odds) + 2 * noise**2 * log_odds
    return math.sqrt(square) + _ROUNDING * noise * math.sqrt(num_params)


def shortest_sum(signal: float, noise: float, num_params: int, log_odds: float) -> float:
    """Return the length below which a vector plus noise is with probability e^-x at most. Arguments as `longest_sum`.

    >>> 95 < shortest_sum(0.0, 1.0, 10_000, 14.0) < 100, shortest_sum(0.0, 1.0, 50, 14.0)
    (True, 0.0)
    """
    if num_params <= 0:
        return 0.0
    power, spread = num_params * noise**2 + signal**2, num_params * noise**2 + 2 * signal**2
    square = power - 2 * noise * math.sqrt(spread * log_odds)
    return max(0.0, math.sqrt(max(0.0, square)) - _ROUNDING * noise * math.sqrt(num_params))


def largest_batch(num_records: int, sample_rate: float, log_odds: float) -> float:
    """Return the batch size that Poisson sampling exceeds with probability e^-x at most (Bernstein).

    >>> largest_batch(1000, 1.0, 14.0), 100 < largest_batch(1000, 0.1, 14.0) < 160
    (1000, True)
    """
    if sample_rate == 1:
        return num_records
    mean, tail = num_records * sample_rate, log_odds / 3
    return min(num_records, mean + tail + math.sqrt(tail**2 + 2 * mean * (1 - sample_rate) * log_odds))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The length of an update, or of a mean of updates, and the standard deviation of its noise in a coordinate."""

    length: float
    noise: float


def shortened(seen: Sequence[Seen], num_params: int, log_odds: float, ratio: float) -> list[float]:
    """Return a factor for each client, at most 1: no signal counts for more than `ratio` times the median signal.

    The squared length without the noise's share estimates the squared signal. The lower median decides, so that half of
    the clients would have to lie to raise it.

    Args:
        seen: what is known of each client.
        num_params: number of coordinates.
        log_odds: x: noise alone shortens an update with probability e^-x at most.
        ratio: how many times the median signal is allowed.
    """
    squares = [one.length**2 - num_params * one.noise**2 for one in seen]
    signal = ratio * math.sqrt(max(0.0, median_low(squares)))
    factors = []
    for one, square in zip(seen, squares, strict=True):
        limit = longest_sum(signal, one.noise, num_params, log_odds) ** 2 - num_params * one.noise**2
        factors.append(1.0 if square <= limit else math.sqrt(limit / square))
    return factors
