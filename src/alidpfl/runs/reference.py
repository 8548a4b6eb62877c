"""The reference of all settings, from the models themselves, so that it cannot be out of date.

python -m alidpfl.runs.reference > docs/configuration.md
"""

import types
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from alidpfl.runs.config import Config

_HEAD = """# Configuration

A run is described by a TOML file; what is left out takes the default, and the defaults together are what `make run`
runs. On the command line `--set section.key=value` changes a setting (`--set seed=3` where the key is in one section
only). The effective settings are kept in the run's `config.toml`. This page is generated: `make docs`.
"""


def reference() -> str:
    """The page, in Markdown."""
    parts = [_HEAD]
    for name, field in Config.model_fields.items():
        section: Any = field.annotation
        title, _, meaning = str(section.__doc__).partition(": ")
        parts.append(f"## {title}\n\n{meaning[:1].upper()}{meaning[1:]}\n")
        parts.append("| key | type | default | meaning |\n| --- | --- | --- | --- |")
        parts += [_row(f"{name}.{key}", setting) for key, setting in section.model_fields.items()]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _row(key: str, field: FieldInfo) -> str:
    default = "" if field.default is None else f"`{_shown(field.default)}`"
    meaning = str(field.description).replace("|", "\\|")
    return f"| `{key}` | {_type(field.annotation)}{_range(field)} | {default} | {meaning} |"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _type(annotation: Any) -> str:
    """In the words of TOML."""
    if get_origin(annotation) is Literal:
        return ", ".join(f'"{choice}"' for choice in get_args(annotation))
    if get_origin(annotation) in (types.UnionType,) or type(None) in get_args(annotation):
        return ", ".join(_type(a) for a in get_args(annotation) if a is not type(None))
    if get_origin(annotation) is tuple:
        return "list of " + _type(get_args(annotation)[0])
    if get_origin(annotation) is dict:
        return "table"
    names = {float: "number", int: "whole number", str: "text"}
    return names.get(annotation, "number or text")


def _range(field: FieldInfo) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    found = [f"{s} {getattr(m, a):g}" for m in field.metadata for a, s in signs.items() if hasattr(m, a)]
    return f" {', '.join(found)}" if found else ""


if __name__ == "__main__":
    print(reference(), end="")
