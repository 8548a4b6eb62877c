"""Durations and sizes as people write them."""

import math
import re
from collections.abc import Callable
from typing import Any

from alidpfl.errors import ConfigError

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
