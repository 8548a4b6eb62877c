"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

from typer import Option

from alidpfl.cli.completion import complete_setting

AsJson = Annotated[bool, Option("--json", help="Print machine-readable output.")]
Overrides = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.", autocompletion=complete_setting),
]
DataDir = Annotated[Path | None, Option(help="Folder to search instead of $ALIDPFL_DATA_DIR and the user's cache.")]
