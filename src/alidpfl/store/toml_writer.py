"""Writes a configuration as TOML: the standard library reads the format (`tomllib`) but does not write it."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from alidpfl.errors import ConfigError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(config: Mapping[str, Any]) -> str:
    """`config` as TOML text; `tomllib.loads` gives it back.

    Holds tables of str, bool, int, float, lists and tables. A key whose value is None is left out: TOML has no null.

    >>> print(to_toml({"privacy": {"epsilon": 2.0, "unsafe": []}, "seed": 7}), end="")
    seed = 7
    <BLANKLINE>
    [privacy]
    epsilon = 2.0
    unsafe = []
    """
    return "\n".join(_table(config, ())).lstrip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    # A table's own values come first: after the header of a sub-table they would belong to that one.
    for key, value in table.items():
        if value is not None and not isinstance(value, Mapping):
            yield f"{_key(key)} = {_value(value, (*path, key))}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner = (*path, key)
            yield f"\n[{'.'.join(map(_key, inner))}]"
            yield from _table(value, inner)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise ConfigError(f"configuration key {key!r} must be a string, not {type(key).__name__}")
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"configuration text {text!r} is not valid Unicode: remove the lone surrogate") from None
    # JSON's escapes are TOML's too; only the delete character must be escaped in TOML and need not be in JSON.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object, path: tuple[str, ...]) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case int():
            return str(int(value))
        case float():
            return repr(float(value))  # the shortest text that reads back as the same number; also inf and nan
        case list() | tuple():
            return f"[{', '.join(_value(item, path) for item in value)}]"
        case Mapping():  # inside a list
            pairs = (f"{_key(k)} = {_value(v, (*path, k))}" for k, v in value.items() if v is not None)
            return f"{{{', '.join(pairs)}}}"
    where = ".".join(map(str, path))
    raise ConfigError(
        f"{where}={value!r} cannot be written as TOML: use text, a number, true/false, a list or a table, "
        f"not {type(value).__name__}"
    )
