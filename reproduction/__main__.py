"""`python -m reproduction`: the commands `reproduce`, `tables` and `report`."""

import sys

import typer

from alidpfl.errors import AliDpflError
from reproduction.cli import report, reproduce, tables

_EXIT_BAD_INPUT = 2

app = typer.Typer(
    help="Reproduce the tables of the ALI-DPFL paper, and write the pages about it.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (reproduce, tables, report):
    app.command()(command)


def main() -> None:
    """Run the command; print our own errors as one line."""
    try:
        app(prog_name="python -m reproduction")
    except AliDpflError as error:
        sys.stderr.write(f"reproduction: {error}\n")
        sys.exit(_EXIT_BAD_INPUT)


if __name__ == "__main__":
    main()
