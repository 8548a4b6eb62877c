"""Checks of the numbers and files that users pass in; each message says what, the value and the remedy."""

import math
from numbers import Integral, Real

from alidpfl.errors import ConfigError


def whole(name: str, value: object, *, low: int = 0, remedy: str = "") -> int:
    """`value` as an int of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name}={value!r} must be a whole number, not {type(value).__name__}")
    if int(value) < low:
        raise ConfigError(f"{name}={value} must be at least {low}" + (f"; {remedy}" if remedy else ""))
    return int(value)


def number(name: str, value: object, *, above: float = -math.inf, below: float = math.inf, remedy: str = "") -> float:
    """`value` as a finite float strictly between `above` and `below`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"{name}={value!r} must be a number, not {type(value).__name__}")
    if not (above < float(value) < below and math.isfinite(value)):
        limits = f"above {above:g}" if math.isinf(below) else f"between {above:g} and {below:g}"
        raise ConfigError(f"{name}={value} must be a number {limits}" + (f"; {remedy}" if remedy else ""))
    return float(value)
