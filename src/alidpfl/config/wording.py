"""Describe settings in the words of TOML, for the reference page and for errors."""

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from alidpfl.inputs.checks import as_bytes, as_margins, as_seconds, as_sizes
from alidpfl.inputs.names import nearest
from alidpfl.registry import Registry

_LONGEST_VALUE = 200  # characters of a value in an error
_MOST_PROBLEMS = 5  # in one error
_SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
_NAMES = {bool: "true or false", float: "number", int: "whole number", str: "text"}
_QUANTITIES = {
    as_seconds: "duration",
    as_bytes: "size",
    as_sizes: "whole number ≥ 1 or list of two",
    as_margins: "whole number ≥ 0 or list of two",
}


def kind(annotation: Any) -> str:
    """Return the type: "number", "list of 2 numbers", or the values to choose from.

    >>> kind(int | None), kind(Literal["cpu", "cuda"]), kind(Literal[1, 2])
    ('whole number', '"cpu", "cuda"', '1, 2')
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(map(toml, inner))
    if origin in (Union, UnionType):
        return ", ".join(kind(a) for a in inner if a is not type(None))
    if origin in (tuple, list):
        count = "" if origin is list or inner[-1] is Ellipsis else f"{len(inner)} "
        what = kind(inner[0])
        return f"list of {count}{what}{'s' if count or what == 'table' else ''}"
    if origin is dict:
        return "table"
    if origin is Annotated:
        found = [_QUANTITIES[m.func] for m in inner[1:] if isinstance(m, BeforeValidator) and m.func in _QUANTITIES]
        return found[0] if found else kind(inner[0])
    return _NAMES[annotation]


def kind_of(field: FieldInfo) -> str:
    """Return the type of a setting; for a name in a registry, the names that ship with alidpfl."""
    registry = _choices(field)[0]
    annotation: Any = field.annotation
    if field.metadata:  # pydantic keeps what stands beside a type here, or within it
        annotation = Annotated[annotation, *field.metadata]
    return kind(annotation) if registry is None else ", ".join(map(toml, registry.shipped))


def limits(field: FieldInfo) -> str:
    """Return the range, such as "> 0, < 1", or nothing."""
    return ", ".join(f"{s} {getattr(m, a):g}" for m in field.metadata for a, s in _SIGNS.items() if hasattr(m, a))


def refused(problem: Mapping[str, Any], name: str, value: object, field: FieldInfo) -> str:
    """Return why a value is refused.

    Args:
        problem: what pydantic found.
        name: the setting's name, as users write it.
        value: what was given.
        field: the setting.
    """
    registry, texts = _choices(field)
    options = texts if registry is None else list(registry)
    if problem["type"] == "literal_error" and isinstance(problem["input"], str) and options:
        listed = ", ".join(f"'{option}'" for option in options)
        meant = nearest(problem["input"], options)
        place = "".join(f".{part}" for part in problem["loc"] if isinstance(part, int))  # in a list
        hint = "" if meant is None else f"; did you mean {meant!r}?"
        return f"{name}{place}={shown(problem['input'])} must be one of {listed}{hint}"
    return f"{name}={shown(value)} must be {expected(field)}"


def expected(field: FieldInfo) -> str:
    """Return what a setting must be, with an example."""
    what, annotation = kind_of(field), field.annotation
    if what.startswith('"') or get_origin(annotation) is Literal:
        return f"one of {what}"
    article = "" if annotation in (bool, str) or "text" in what else "a "
    return f"{article}{f'{what} {limits(field)}'.strip()}, such as {example(field)}"


def example(field: FieldInfo) -> str:
    """Return a valid value: the setting's first example, or its default."""
    return toml(field.examples[0] if field.examples else field.default)


def toml(value: object) -> str:
    """Return a plain value as a user would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def shown(value: object) -> str:
    """Return a value almost as it was typed: TOML's true, not Python's True."""
    try:
        text = toml(value) if isinstance(value, bool) else repr(value)
    except (ValueError, RecursionError):  # Python prints no number of more than 4,300 digits
        return f"({type(value).__name__})"
    return shortened(text)


def shortened(text: str) -> str:
    """Return the text, cut if it is too long for a message."""
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def together(problems: Iterable[str]) -> str:
    """Join the first few problems, each once.

    >>> together(["a", "a", "b"]), together(map(str, range(9)))
    ('a; b', '0; 1; 2; 3; 4; and 4 more')
    """
    each = list(dict.fromkeys(problems))
    left = [f"and {len(each) - _MOST_PROBLEMS} more"] if len(each) > _MOST_PROBLEMS else []
    return "; ".join([*each[:_MOST_PROBLEMS], *left])


def _choices(field: FieldInfo) -> tuple[Registry | None, list[str]]:
    """Return the registry of a setting's names, or None, and the texts that its type lists."""
    parts = [field.annotation, *field.metadata]  # pydantic keeps a registry beside the type, or within it
    while any(get_args(part) for part in parts):
        parts = [inner for part in parts for inner in (get_args(part) or (part,))]
    registry = next((part for part in parts if isinstance(part, Registry)), None)
    return registry, [part for part in parts if isinstance(part, str)]
