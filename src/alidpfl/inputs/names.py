"""Look up things by the name that a user typed, and suggest the nearest name when there is no such thing."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from alidpfl.errors import ConfigError

Found = TypeVar("Found")

_MIN_SIMILARITY = 0.6
_MIN_LETTERS = 3  # of a part of a name, to count as a match


def named(what: str, name: str, options: Mapping[str, Found]) -> Found:
    """Return `options[name]`.

    Raises:
        ConfigError: there is no such name. The error suggests the nearest one and lists all.

    >>> named("policy", "ratoi", {"ratio": 1, "ali": 2})
    Traceback (most recent call last):
        ...
    alidpfl.errors.ConfigError: policy='ratoi' is not known; did you mean 'ratio'? There are: ratio, ali
    """
    if isinstance(name, str) and name in options:
        return options[name]
    given = f"{what} {name!r}" if " " in what else f"{what}={name!r}"  # a description, or the name of a setting
    if not options:
        raise ConfigError(f"{given} is not known; there are none")
    likely = nearest(str(name), options)
    hint = f"did you mean {likely!r}? There" if likely is not None else "there"
    raise ConfigError(f"{given} is not known; {hint} are: {', '.join(options)}")


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return the name that is spelled most like `word`, or None if no name is close enough to be a useful hint.

    >>> nearest("Fashion-MNIST", ["mnist", "fashion_mnist"])
    'fashion_mnist'
    >>> nearest("signals", ["noise", "unaccounted-signals"])
    'unaccounted-signals'
    """
    spelled, typed = {_spelling(name): name for name in names}, _spelling(word)
    found = difflib.get_close_matches(typed, spelled, n=1, cutoff=_MIN_SIMILARITY)
    parts = [spelling for spelling in spelled if len(typed) >= _MIN_LETTERS and typed in spelling]
    return spelled[(found or parts)[0]] if found or parts else None


def _spelling(name: str) -> str:
    """Drop what users get wrong first: capitals, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")
