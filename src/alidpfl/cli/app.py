"""The `alidpfl` command: its sub-commands, its help, and how errors are shown."""

import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
import typer.main

from alidpfl._version import __version__
from alidpfl.cli.account import account
from alidpfl.cli.audit import audit
from alidpfl.cli.data import data_app
from alidpfl.cli.doctor import doctor
from alidpfl.cli.flower import flower_app
from alidpfl.cli.model import model
from alidpfl.cli.plan import plan
from alidpfl.cli.predict import predict
from alidpfl.cli.report import report
from alidpfl.cli.reproduction import add_commands
from alidpfl.cli.run import run
from alidpfl.cli.schema import schema_app
from alidpfl.cli.show import compare, show
from alidpfl.cli.statistics import statistics
from alidpfl.cli.vault import vault_app
from alidpfl.errors import AliDpflError, printable

if TYPE_CHECKING:
    import click

_EXIT_BAD_INPUT, _EXIT_INTERRUPTED = 2, 130
_ALSO = """
alidpfl COMMAND --help: options, an example. Also: --version, --show-completion.
"""


class _Commands(typer.core.TyperGroup):
    """Prints our errors as one line on standard error, and turns Ctrl-C into the exit status that shells expect."""

    def format_help(self, ctx: "click.Context", formatter: "click.HelpFormatter") -> None:
        """Print the commands by purpose, one line each, on one screen."""
        del ctx
        formatter.write("Usage: alidpfl COMMAND [OPTIONS]: federated learning with differential privacy.\n")
        panel = None
        for name, command in self.commands.items():
            group = getattr(command, "rich_help_panel", None)
            formatter.write("\n" if group != panel else "")
            formatter.write(f"{group if group != panel else '':<8}{name:<11}{command.short_help}\n")
            panel = group
        formatter.write(_ALSO)

    def invoke(self, ctx: "click.Context") -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("alidpfl: interrupted", err=True)
            raise typer.Exit(_EXIT_INTERRUPTED) from None
        except Exception as error:
            if (text := _told(error)) is None:  # a bug of ours: show the traceback
                raise
            typer.echo(f"alidpfl: {text}", err=True)
            raise typer.Exit(_EXIT_BAD_INPUT) from None


def _told(error: Exception) -> str | None:
    """Return the text of an error that a user can mend: our own errors, missing memory, and the disk's; else None."""
    if isinstance(error, AliDpflError):
        return str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # the latter is from torch
        return "there is not enough memory for this: make the model, the batches or the number of processes smaller"
    if isinstance(error, OSError) and error.errno not in (None, errno.EPIPE):  # click handles a closed pipe
        where = f" ({error.filename})" if error.filename else ""
        return printable(f"{error.strerror}{where}: check the disk, the path and its permissions")
    return None


app = typer.Typer(cls=_Commands, invoke_without_command=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"alidpfl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated learning with differential privacy."""
    del version
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(_EXIT_BAD_INPUT)


_TRAIN, _PLAN, _CHECK, _DEPLOY = "Train", "Plan", "Check", "Set up"


app.command(rich_help_panel=_TRAIN, short_help="Train over clients that keep their data, within a budget.")(run)
app.command(rich_help_panel=_TRAIN, short_help="Show a run: settings, results and curves, also while it runs.")(show)
app.command(rich_help_panel=_TRAIN, short_help="Compare several runs side by side.")(compare)
app.command(rich_help_panel=_TRAIN, short_help="Write one self-contained page about runs or tables.")(report)
app.command(rich_help_panel=_TRAIN, short_help="Predict classes of new rows by the model of a run.")(predict)
app.command(rich_help_panel=_TRAIN, short_help="Show noised statistics of tables, charged to every client.")(statistics)
app.command(rich_help_panel=_PLAN, short_help="Find the best use of a budget and a number of rounds.")(plan)
app.command(rich_help_panel=_PLAN, short_help="Show a declared network: shapes, parameters and costs.")(model)
app.command(rich_help_panel=_PLAN, short_help="Show how many steps a budget pays for, by each accountant.")(account)
app.command(rich_help_panel=_CHECK, short_help="Try to refute the ε that a configuration claims.")(audit)
add_commands(app, panel=_CHECK)  # reproduce and tables
app.add_typer(data_app, name="data", rich_help_panel=_DEPLOY, short_help="Data sets: list, get, show who holds what.")
app.add_typer(schema_app, name="schema", rich_help_panel=_DEPLOY, short_help="The schema of tables: draft, check.")
app.add_typer(vault_app, name="vault", rich_help_panel=_DEPLOY, short_help="An owner's data, noise and ledger.")
app.add_typer(flower_app, name="flower", rich_help_panel=_DEPLOY, short_help="Train over nodes with Flower.")
app.command(rich_help_panel=_DEPLOY, short_help="Check this installation, and say what to do.")(doctor)


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with the words that call it, for the documents."""
    top: Any = typer.main.get_command(app) if group is None else group
    for name, command in top.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def help_of(command: Any) -> tuple[str, str]:
    """Return the help text of a command and its example, each in one line."""
    words, _, example = (command.help or "").partition("Example:\n")
    return " ".join(words.split()), " ".join(example.replace("\\\n", " ").split())


def main() -> None:
    """Run the `alidpfl` command."""
    for stream in (sys.stdout, sys.stderr):  # ε must not crash a terminal without Unicode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:  # the output cannot be written: the disk behind a pipe or a file is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again when it exits
        sys.stderr.write(f"alidpfl: {_told(error) or error.strerror}\n")
        sys.exit(_EXIT_BAD_INPUT)
