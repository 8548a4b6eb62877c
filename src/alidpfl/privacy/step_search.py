"""Searches over a monotone cost that return a value known to be within the limit."""

import math
from collections.abc import Callable

_TRUSTED_PROBES, _MAX_PROBES = 10, 60
_PATIENCE = 5  # secant probes in a row that may fail to halve the bracket before it is bisected


def largest_affordable(cost: Callable[[int], float], limit: float, *, low: int, high: int, guess: int) -> int:
    """Return the n in [low, high] with cost(n) <= limit < cost(n + 1).

    A result n > low was probed and fits. n + 1 was probed and does not fit, unless n = high. A right guess takes two
    probes, any other a few more: the secant through the last two probes proposes the next one within the bracket.

    Args:
        cost: A function that never falls with n.
        limit: The largest affordable cost.
        low: Known to fit, and returned if nothing above it does.
        high: The largest n to consider.
        guess: The first n to probe.

    >>> largest_affordable(lambda n: n**2, 50, low=0, high=10**6, guess=100)
    7
    """
    fits, too_many = low, high + 1
    probe, patience = min(max(guess, low + 1), high), _PATIENCE
    last: tuple[int, float] | None = None
    while too_many - fits > 1:
        width = too_many - fits
        value = cost(probe)
        # `value <= limit` is false for NaN: a cost that cannot be computed is not affordable.
        fits, too_many = (probe, too_many) if value <= limit else (fits, probe)
        patience = _PATIENCE if too_many - fits <= width // 2 else patience - 1
        before, last = last, (probe, value)
        probe = _propose(before, last, limit)
        if patience <= 0:
            # Until a probe was too much, `high` may be far away, where probes are slow. So double instead of halving.
            probe = (fits + too_many) // 2 if too_many <= high else 2 * fits
            patience = _PATIENCE
        probe = min(max(probe, fits + 1), too_many - 1)
    return fits


def _propose(before: tuple[int, float] | None, last: tuple[int, float], limit: float) -> int:
    """Return where the line through the last two probes meets the limit, or a neighbour if there is no such line."""
    n, value = last
    if before is None:
        return n + 1 if value <= limit else n - 1
    slope = (value - before[1]) / (n - before[0])
    if not 0 < slope < math.inf:
        return 2 * n if value <= limit else n // 2
    # Far from the two probes the line is unreliable: at most quadruple or quarter n.
    return int(min(max(n + (limit - value) / slope, n / 4), 4 * n))


def nearly_least(
    cost: Callable[[float], float], limit: float, *, low: float, high: float, guess: float, tolerance: float
) -> float | None:
    """Return a probed x in [low, high] with cost(x) <= limit, within `tolerance` of the limit; None if no x fits.

    If the cost jumps over the tolerance, the result is the least x that was found to fit. If `low` fits, it is `low`.

    Args:
        cost: A function that falls with x > 0.
        limit: The largest affordable cost.
        low: The smallest x to consider.
        high: The largest x to consider.
        guess: The first x to probe.
        tolerance: Share of the limit that may stay unused.

    >>> 8 <= nearly_least(lambda x: 8 / x, 1.0, low=0.1, high=100, guess=3.0, tolerance=1e-3) <= 8.01
    True
    """
    too_little, fits = low, math.inf
    probe, power = min(max(guess, low), high), 1.0
    last: tuple[float, float] | None = None
    for number in range(_MAX_PROBES):
        value = cost(probe)
        if value <= limit:
            fits = min(fits, probe)
            if value >= limit * (1 - tolerance) or probe == low:
                return fits
        elif probe == high:
            return None
        else:
            too_little = max(too_little, probe)
        if last is not None and last[0] != probe and 0 < last[1] < math.inf and 0 < value < math.inf:
            # The p of cost = c·x^−p through the last two probes, within a plausible range.
            power = min(max(math.log(last[1] / value) / math.log(probe / last[0]), 0.25), 8.0)
        last = (probe, value)
        probe *= min(max(value / (limit * (1 - tolerance / 2)), 1e-9) ** (1 / power), 4.0)
        if number >= _TRUSTED_PROBES or not too_little < probe < fits:
            # The fitted curve misled: halve the bracket, or go to its end.
            probe = math.sqrt(too_little * fits) if fits < math.inf else high
        probe = min(max(probe, low), high)
    return fits if fits < math.inf else None
