"""Integer search that returns the end known to be safe."""

import math
from collections.abc import Callable

_PATIENCE = 5  # secant probes in a row that may fail to halve the bracket before it is bisected


def largest_affordable(cost: Callable[[int], float], limit: float, *, low: int, high: int, guess: int) -> int:
    """The n in [low, high] with cost(n) <= limit < cost(n + 1), for a cost that never falls with n.

    `low` must be known to fit, and is returned if nothing above it does; cost(high + 1) is taken to be too much. The
    result n > low was probed and fits; n + 1 was probed and does not (unless n = high). A guess that is right costs
    two probes, any other a few more: the secant through the last two probes proposes, the bracket disposes.

    >>> largest_affordable(lambda n: n**2, 50, low=0, high=10**6, guess=100)
    7
    """
    fits, too_many = low, high + 1
    probe, patience = min(max(guess, low + 1), high), _PATIENCE
    last: tuple[int, float] | None = None
    while too_many - fits > 1:
        width = too_many - fits
        value = cost(probe)
        # `value <= limit` is false for NaN: what cannot be computed is not affordable.
        if value <= limit:
            fits = probe
        else:
            too_many = probe
        patience = _PATIENCE if too_many - fits <= width // 2 else patience - 1
        before, last = last, (probe, value)
        probe = _propose(before, last, limit)
        if patience <= 0:
            # Until something was too much, `high` may be far out, where probes are slow: double instead of halving.
            probe = (fits + too_many) // 2 if too_many <= high else 2 * fits
            patience = _PATIENCE
        probe = min(max(probe, fits + 1), too_many - 1)
    return fits


def _propose(before: tuple[int, float] | None, last: tuple[int, float], limit: float) -> int:
    """Where the line through the last two probes meets the limit; next door when there is no such line."""
    n, value = last
    if before is None:
        return n + 1 if value <= limit else n - 1
    slope = (value - before[1]) / (n - before[0])
    if not 0 < slope < math.inf:
        return 2 * n if value <= limit else n // 2
    # Far from the two probes the line says little: at most quadruple or quarter.
    return int(min(max(n + (limit - value) / slope, n / 4), 4 * n))
