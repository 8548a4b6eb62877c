"""Finding things by the name that a user typed."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from alidpfl.errors import ConfigError

Found = TypeVar("Found")

_NEAR = 0.6
_A_WORD = 3  # letters, of a part of a name


def named(what: str, name: str, options: Mapping[str, Found]) -> Found:
    """`options[name]`, or a ConfigError that offers the nearest name, if there is a near one.

    >>> named("policy", "ratoi", {"ratio": 1, "ali": 2})
    Traceback (most recent call last):
        ...
    alidpfl.errors.ConfigError: policy='ratoi' is not known; did you mean 'ratio'? There are: ratio, ali
    """
    if isinstance(name, str) and name in options:
        return options[name]
    given = f"{what} {name!r}" if " " in what else f"{what}={name!r}"  # words, or the name of a setting
    if not options:
        raise ConfigError(f"{given} is not known; there are none")
    likely = nearest(str(name), options)
    hint = f"did you mean {likely!r}? There" if likely is not None else "there"
    raise ConfigError(f"{given} is not known; {hint} are: {', '.join(options)}")


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Of `names` that which `word` was most likely meant to be; none if all are far off: that would only mislead.

    >>> nearest("Fashion-MNIST", ["mnist", "fashion_mnist"])
    'fashion_mnist'
    >>> nearest("signals", ["noise", "unaccounted-signals"])
    'unaccounted-signals'
    """
    spelled, typed = {_spelling(name): name for name in names}, _spelling(word)
    found = difflib.get_close_matches(typed, spelled, n=1, cutoff=_NEAR)
    parts = [spelling for spelling in spelled if len(typed) >= _A_WORD and typed in spelling]
    return spelled[(found or parts)[0]] if found or parts else None


def _spelling(name: str) -> str:
    """What people get wrong first: capitals, hyphens, underscores."""
    return name.lower().replace("-", "").replace("_", "")
