"""Check the numbers that users pass in. Every error names the parameter, its value and the valid range."""

import math
import re
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from alidpfl.errors import ConfigError

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_LARGEST_SIZE = 1_000_000
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


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
    """Return `value` as a finite float within its limits.

    Args:
        name: the parameter, for the error.
        value: what the user gave.
        rule: the limits in words, for the error.
        above: exclusive lower limit.
        below: exclusive upper limit.
        low: inclusive lower limit.
        high: inclusive upper limit.

    Returns:
        The value as a float.

    Raises:
        ConfigError: the value is no number, not finite, or outside the limits.

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
    """Return `value` as an int within its limits.

    Args:
        name: the parameter, for the error.
        value: what the user gave.
        low: inclusive lower limit.
        high: inclusive upper limit, or None for no limit.

    Returns:
        The value as an int.

    Raises:
        ConfigError: the value is no whole number, or outside the limits.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name}={value!r} must be a whole number, not {type(value).__name__}")
    number = int(value)
    if number < low or (high is not None and number > high):
        limits = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ConfigError(f"{name}={number} must be {limits}")
    return number


def exact(value: float) -> str:
    """Return a number with as many digits as it needs, so that a value next to a limit does not look like the limit.

    >>> exact(2.0), exact(1e6), exact(0.99999999)
    ('2', '1e+06', '0.99999999')
    """
    brief = f"{value:g}"
    return brief if float(brief) == value else repr(value)


def as_seconds(value: object) -> object:
    """Convert "90", "90s", "15m", "2h" or "1d" to seconds. Return any value that is not a string unchanged.

    >>> as_seconds("2h"), as_seconds(90)
    (7200.0, 90)
    """
    return _scaled(value, _SECONDS, "a duration such as 90, 15m or 2h") if isinstance(value, str) else value


def as_bytes(value: object) -> object:
    """Convert "5GB", "800 MB" or "1000" to bytes. Return any value that is not a string unchanged.

    >>> as_bytes("5GB")
    5000000000
    """
    return int(_scaled(value, _BYTES, "a size such as 800MB or 5GB")) if isinstance(value, str) else value


def as_sizes(value: object) -> tuple[int, int]:
    """Convert 3 or [3, 5] to a pair of whole numbers from 1.

    >>> as_sizes(3), as_sizes([3, 5])
    ((3, 3), (3, 5))
    """
    return _pair(value, low=1)


def as_margins(value: object) -> tuple[int, int]:
    """Convert 0 or [0, 1] to a pair of whole numbers from 0."""
    return _pair(value, low=0)


def _pair(value: object, low: int) -> tuple[int, int]:
    both = value if isinstance(value, list | tuple) else (value, value)
    if len(both) != 2 or not all(type(one) is int and low <= one <= _LARGEST_SIZE for one in both):  # noqa: PLR2004
        raise ValueError("no pair of sizes")
    return both[0], both[1]


def option(name: str, text: str | None, convert: Callable[[object], object]) -> Any:
    """Convert a command-line option by `as_seconds` or `as_bytes`; None stays None. Errors name the option.

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
