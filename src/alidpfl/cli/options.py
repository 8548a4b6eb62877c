"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

from typer import Option

from alidpfl.cli.completion import complete_setting
from alidpfl.errors import ConfigError

AsJson = Annotated[bool, Option("--json", help="Print machine-readable output.")]
Overrides = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.", autocompletion=complete_setting),
]
DataDir = Annotated[Path | None, Option(help="Folder to search instead of $ALIDPFL_DATA_DIR and the user's cache.")]


def input_shape_of(text: str | None) -> tuple[int, ...] | None:
    """Read the value of `--input-shape`, such as "1,28,28"; None if it was not given."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--input-shape={text!r} must be positive whole numbers with commas, such as 1,28,28")
    return tuple(int(part) for part in parts)
