"""Finding things by the name that a user typed."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

from alidpfl.errors import ConfigError

Found = TypeVar("Found")


def named(what: str, name: str, options: Mapping[str, Found]) -> Found:
    """`options[name]`, or a ConfigError that offers the nearest name.

    >>> named("policy", "ratoi", {"ratio": 1, "ali": 2})
    Traceback (most recent call last):
        ...
    alidpfl.errors.ConfigError: policy='ratoi' is not known; did you mean 'ratio'? All: ali, ratio
    """
    if isinstance(name, str) and name in options:
        return options[name]
    nearest = difflib.get_close_matches(str(name).lower(), options, n=1, cutoff=0)
    hint = f"did you mean {nearest[0]!r}? All: {', '.join(sorted(options))}" if nearest else "there are none"
    raise ConfigError(f"{what}={name!r} is not known; {hint}")
