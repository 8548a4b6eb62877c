"""The reference of all settings, from the models themselves, so that it cannot be out of date.

python -m alidpfl.runs.reference > docs/configuration.md
"""

from typing import Any

from pydantic.fields import FieldInfo

from alidpfl.inputs.wording import kind, limits, toml
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
    default = "" if field.default is None else f"`{toml(field.default)}`"
    meaning = str(field.description).replace("|", "\\|")
    within = f" {limits(field)}" if limits(field) else ""
    return f"| `{key}` | {kind(field.annotation)}{within} | {default} | {meaning} |"


if __name__ == "__main__":
    print(reference(), end="")
