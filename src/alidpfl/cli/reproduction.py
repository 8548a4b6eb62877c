"""The commands `reproduce` and `tables`. Their code is in a clone of the repository, not in the installed package."""

import importlib
import sys
from pathlib import Path
from typing import Any

import typer

from alidpfl.errors import ConfigError

PACKAGE = Path(__file__).parents[1]
"""The folder of the package. A clone has it in src, next to the folder reproduction."""

_HELP = {
    "reproduce": "Run the cells of a table of the paper; stop and resume.",
    "tables": "Print our results next to the paper's.",
}


def add_commands(app: typer.Typer, panel: str) -> None:
    """Add `reproduce` and `tables` to the app.

    In a clone the commands come from `reproduction.cli`. Elsewhere they say where to get a clone, and exit with 2.
    """
    found = reproduction("cli") if in_clone() else None
    for name, short_help in _HELP.items():
        if found is not None:
            app.command(name, rich_help_panel=panel, short_help=short_help)(getattr(found, name))
        else:
            anything = {"ignore_unknown_options": True, "allow_extra_args": True}
            options: Any = {"context_settings": anything, "rich_help_panel": panel, "short_help": short_help}
            app.command(name, **options)(_needs_clone)


def in_clone() -> bool:
    """Return whether this package is run from a clone of the repository."""
    return PACKAGE.parent.name == "src" and (PACKAGE.parents[1] / "reproduction" / "__init__.py").is_file()


def reproduction(name: str) -> Any:
    """Import a module of the clone's folder `reproduction`.

    Raises:
        ConfigError: The package is installed without the clone.
    """
    if not in_clone():
        raise ConfigError(
            "the paper's tables are not in the installed package: get a clone of the alidpfl repository and run "
            "`python -m reproduction` there"
        )
    root = str(PACKAGE.parents[1])
    if root not in sys.path:
        sys.path.append(root)
    return importlib.import_module(f"reproduction.{name}")


def _needs_clone(context: typer.Context) -> None:
    """Reproduce the paper's tables. This needs a clone of the repository: run `python -m reproduction` there."""
    del context
    reproduction("cli")
