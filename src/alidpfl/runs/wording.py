"""What a setting may be, in the words of TOML: for the reference of all settings and for errors about one."""

from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from alidpfl.inputs.quantities import as_bytes, as_seconds

_SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
_NAMES = {float: "number", int: "whole number", str: "text"}
_QUANTITIES = {as_seconds: "duration", as_bytes: "size"}


def kind(annotation: Any) -> str:
    """The type: "number", "list of 2 numbers", or the texts that there are to choose from.

    >>> kind(int | None), kind(Literal["cpu", "cuda"])
    ('whole number', '"cpu", "cuda"')
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f'"{choice}"' for choice in inner)
    if origin in (Union, UnionType):
        return ", ".join(kind(a) for a in inner if a is not type(None))
    if origin is tuple:
        count = "" if inner[-1] is Ellipsis else f"{len(inner)} "
        return f"list of {count}{kind(inner[0])}{'s' if count else ''}"
    if origin is dict:
        return "table"
    if origin is Annotated:
        found = [_QUANTITIES[m.func] for m in inner[1:] if isinstance(m, BeforeValidator) and m.func in _QUANTITIES]
        return found[0] if found else kind(inner[0])
    return _NAMES[annotation]


def limits(field: FieldInfo) -> str:
    """The range: "> 0, < 1", or nothing."""
    return ", ".join(f"{s} {getattr(m, a):g}" for m in field.metadata for a, s in _SIGNS.items() if hasattr(m, a))


def expected(field: FieldInfo) -> str:
    """All of it in a sentence's second half, with an example."""
    what, annotation = kind(field.annotation), field.annotation
    if what.startswith('"'):
        return f"one of {what}"
    article = "" if annotation is str or "text" in what else "a "
    within = f" {limits(field)}" if limits(field) else ""
    return f"{article}{what}{within}, such as {example(field)}"


def example(field: FieldInfo) -> str:
    """A value that does: of the setting's own examples, or its default."""
    return toml(field.examples[0] if field.examples else field.default)


def toml(value: object) -> str:
    """A plain value as one would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)
