"""Checks of the numbers that users pass in; each message says what, the value and the remedy."""

import math
from numbers import Integral, Real

from alidpfl.errors import ConfigError


def real(name: str, value: object, *, valid: bool = True, rule: str = "must be a finite number") -> float:
    """`value` as a float; a ConfigError that quotes `rule` if it is not a finite real number or not `valid`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"{name}={value!r} must be a number, not {type(value).__name__}")
    number = float(value)
    if not (math.isfinite(number) and valid):
        raise ConfigError(f"{name}={value} {rule}")
    return number


def between(name: str, value: object, low: float, high: float, *, rule: str) -> float:
    """`value` as a float in [low, high]."""
    number = real(name, value, rule=rule)
    return real(name, number, valid=low <= number <= high, rule=rule)


def whole(name: str, value: object, *, low: int, high: int) -> int:
    """`value` as an int in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name}={value!r} must be a whole number, not {type(value).__name__}")
    number = int(value)
    if not low <= number <= high:
        raise ConfigError(f"{name}={number} must be between {low} and {high}")
    return number
