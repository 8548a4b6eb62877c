"""Checks of the numbers that users pass in; each message says what, the value and the remedy."""

import math
import re
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

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


_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def as_seconds(value: object) -> object:
    """Seconds of "90", "90s", "15m", "2h" or "1d"; what is no text is passed on for the next check.

    >>> as_seconds("2h"), as_seconds(90)
    (7200.0, 90)
    """
    return _scaled(value, _SECONDS, "a duration such as 90, 15m or 2h") if isinstance(value, str) else value


def as_bytes(value: object) -> object:
    """Bytes of "5GB", "800 MB" or "1000"; what is no text is passed on for the next check.

    >>> as_bytes("5GB")
    5000000000
    """
    return int(_scaled(value, _BYTES, "a size such as 800MB or 5GB")) if isinstance(value, str) else value


def option(name: str, text: str | None, convert: Callable[[object], object]) -> Any:
    """An option of a command by `as_seconds` or `as_bytes`; a ConfigError that names it. None stays None.

    >>> option("time_limit", "2h", as_seconds)
    7200.0
    """
    try:
        return None if text is None else convert(text)
    except ValueError as error:
        raise ConfigError(f"{name}={text!r} {error}") from None


def _scaled(text: str, units: dict[str, int], what: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = found and next((u for u in units if u.lower() == found[2].lower()), None)
    if found is None or unit is None:
        raise ValueError(f"must be {what}")
    amount = float(found[1]) * units[unit]
    if amount == math.inf:
        raise ValueError(f"must be {what}")
    return amount
