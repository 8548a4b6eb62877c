"""Load a configuration from a TOML file and `--set key=value`. Errors name the key, the value and the remedy."""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from alidpfl.config.lines import line_of
from alidpfl.config.network import LayerError
from alidpfl.config.schema import Config
from alidpfl.config.wording import example, refused, shortened, shown, together
from alidpfl.errors import ConfigError
from alidpfl.inputs.names import nearest

_NOT_MEANT = {"epsilon": "evaluation", "options": "model"}
"""The section that a key without one does not mean, though it has such a key."""


def load_config(path: str | Path | None = None, overrides: Iterable[str] = ()) -> Config:
    """Load the configuration in `path` (None: the embedded default), changed by overrides.

    An override is "privacy.epsilon=4", or "epsilon=4" if only one section has the key.

    >>> load_config(overrides=["seed=7", "method.policy=ratio"]).run.seed
    7
    """
    text = None if path is None else _text(Path(path))
    values = {} if text is None else _parsed(text, Path(path or ""))
    if path is not None:
        _resolve_filters(values, Path(path).parent)
    before = _layers(values)
    for override in overrides:
        _apply(values, override)
    _resolve_filters(values, Path())
    try:
        return parse_config(values)
    except LayerError as error:
        line = line_of(text, error.place, error.key) if text is not None and _layers(values) is before else None
        if line is None:
            raise
        raise ConfigError(f"{path} line {line}: {error}") from None


def parse_config(values: Mapping[str, Any]) -> Config:
    """Check nested plain values and return a Config."""
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(together(_explained(problem, values) for problem in error.errors())) from None
    config.check()
    return config


def _resolve_filters(values: dict[str, Any], folder: Path) -> None:
    """Make the paths in `model.learned` absolute. Relative ones start at `folder`. Other types are refused later."""
    model = values.get("model")
    if isinstance(model, dict) and isinstance(model.get("learned"), list):
        model["learned"] = [
            os.path.abspath(folder / text) if isinstance(text, str) and "#" in text[1:] else text
            for text in model["learned"]
        ]


def keys() -> dict[str, list[str]]:
    """Return every key by section."""
    return {name: list(type(section).model_fields) for name, section in Config()}


def _layers(values: Mapping[str, Any]) -> object:
    model = values.get("model")
    return model.get("layers") if isinstance(model, dict) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {path}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; give a configuration file, such as the config.toml of a run") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # not UTF-8
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not TOML, or a number or nesting too large
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _apply(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override}: write key=value, such as --set privacy.epsilon=4")
    *path, last = _full_key(key.strip()).split(".")
    table = values
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override}: {part} is a value, not a section")
    table[last] = _value(text.strip())


def _full_key(key: str) -> str:
    """Return the key with its section, which may be left out if it is clear."""
    if "." in key:
        return key
    homes = [section for section, names in keys().items() if key in names]
    if len(homes) > 1:
        homes = [section for section in homes if section != _NOT_MEANT.get(key)]
    if len(homes) == 1:
        return f"{homes[0]}.{key}"
    if homes:
        raise ConfigError(f"--set {key}: choose {' or '.join(f'{home}.{key}' for home in homes)}")
    raise ConfigError(f"--set {key}: there is no such key; {_hint([key])}")


def _value(text: str) -> Any:
    """Read a value as TOML does. What TOML cannot read is a text without quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _explained(problem: Any, values: Mapping[str, Any]) -> str:
    path = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden":
        return f"{shortened('.'.join(path))} is not a setting; {_hint(path)}"
    fields = type(getattr(Config(), path[0])).model_fields
    if len(path) == 1:
        first, field = next(iter(fields.items()))
        return f"{path[0]}={shown(problem['input'])} must be a section, such as {path[0]}.{first}={example(field)}"
    return refused(problem, f"{path[0]}.{path[1]}", values[path[0]][path[1]], fields[path[1]])


def _hint(path: list[str]) -> str:
    """Return the key that was probably meant, or else the keys that exist."""
    homes = {name: f"{section}.{name}" for section, names in reversed(keys().items()) for name in names}
    if path[-1] in homes:
        return f"did you mean {homes[path[-1]]}?"
    if len(path) == 1:
        near, there_are = {**homes, **{section: section for section in keys()}}, f"the sections are {', '.join(keys())}"
    else:
        near = {name: f"{path[0]}.{name}" for name in keys()[path[0]]}
        there_are = f"[{path[0]}] has {', '.join(near)}"
    meant = nearest(path[-1], near)
    return there_are if meant is None else f"did you mean {near[meant]}?"
