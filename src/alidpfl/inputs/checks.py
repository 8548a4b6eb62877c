"""Checks of the numbers that users pass in; each message says what, the value and the remedy."""

import math
from numbers import Integral, Real

from alidpfl.errors import ConfigError


def real(
    name: str,
    value: object,
    *,
    rule: str,
    above: float = -math.inf,
    below: float = math.inf,
    low: float = -math.inf,
    high: float = math.inf,
) -> float:
    """`value` as a finite float, strictly between `above` and `below` and in [low, high]; `rule` says so in words.

    >>> real("delta", 2, above=0, below=1, rule="must be in (0, 1)")
    Traceback (most recent call last):
        ...
    alidpfl.errors.ConfigError: delta=2 must be in (0, 1)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"{name}={value!r} must be a number, not {type(value).__name__}")
    number = float(value)
    if not (math.isfinite(number) and above < number < below and low <= number <= high):
        raise ConfigError(f"{name}={value} {rule}")
    return number


def whole(name: str, value: object, *, low: int = 0, high: int | None = None) -> int:
    """`value` as an int of at least `low`, and of at most `high` where that is given."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name}={value!r} must be a whole number, not {type(value).__name__}")
    number = int(value)
    if number < low or (high is not None and number > high):
        limits = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ConfigError(f"{name}={number} must be {limits}")
    return number
