"""`alidpfl doctor`: is this installation whole? Parse, call, print."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

_STYLES = {"good": "green", "advice": "yellow", "broken": "bold red"}


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False) -> None:
    """Check the installation, and say what to do about what is missing.

    Exit status 0: it works, perhaps with advice; 1: something is broken.

    Example:
      alidpfl doctor
    """
    from alidpfl.doctor import State, examine

    with Console(stderr=True).status("looking at the installation"):
        findings = list(examine())
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        from alidpfl.views.terminal import wide_console

        table = Table("what", "state", "seen, and what to do", title="alidpfl doctor")
        for finding in findings:
            seen = f"{finding.seen}\n-> {finding.remedy}" if finding.remedy else finding.seen
            table.add_row(finding.what, Text(finding.state, style=_STYLES[finding.state]), Text(seen))
        wide_console().print(table)
    if any(finding.state is State.BROKEN for finding in findings):
        raise typer.Exit(1)
