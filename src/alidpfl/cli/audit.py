"""The command `audit`: canaries against a claimed ε, before anybody relies on it."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from alidpfl.cli.completion import complete_setting
from alidpfl.cli.progress import progress_bar
from alidpfl.errors import ConfigError

_EXIT_REFUTED = 1


def audit(  # noqa: PLR0917 - they are options
    config: Annotated[Path | None, typer.Argument(help="TOML file; without it the embedded default.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.", autocompletion=complete_setting
        ),
    ] = None,
    one_step: Annotated[bool, typer.Option("--one-step", help="Only thousands of single steps with a canary.")] = False,
    one_run: Annotated[bool, typer.Option("--one-run", help="Only one training with many canaries.")] = False,
    draws: Annotated[
        int | None, typer.Option(help="Single steps in each arm; left out: 10000, for large models down to 2000.")
    ] = None,
    canaries: Annotated[int, typer.Option(help="Canaries of the one training.")] = 1000,
    confidence: Annotated[
        float | None, typer.Option(help="Of each bound; left out: 0.9999 for one step, 0.95 for one run.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="To repeat an audit; left out: fresh entropy.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this .svg or .png (needs matplotlib).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Try to refute the ε that a configuration claims, with made-up records and the code that trains.

    Exit status 0: not refuted, which is no proof; 1: refuted, the training
    shows more than it claims.

    Example:
      alidpfl audit --set model.name=linear --plot audit.svg
    """
    if one_step and one_run:
        raise ConfigError("--one-step and --one-run: both are done where neither is asked for; leave them out")
    if plot is not None:
        _check_plot(plot)
    asked = {
        "one_step": not one_run,
        "one_run": not one_step,
        "draws": draws,
        "canaries": canaries,
        "confidence": confidence,
        "seed": seed,
    }
    document = _measured(config, overrides or [], asked)
    if plot is not None:
        from alidpfl.reporting.figures import save_audit_figure

        save_audit_figure(document, plot)
    if as_json:
        typer.echo(json.dumps(document, allow_nan=False))
    else:
        _print(document, plot)
    if document["refuted"]:
        raise typer.Exit(_EXIT_REFUTED)


def _check_plot(plot: Path) -> None:
    """Known before the audit, not after minutes."""
    from alidpfl.reporting.figures import check_extension, figure_class

    check_extension(plot)
    figure_class()


def _measured(path: Path | None, overrides: list[str], asked: dict[str, Any]) -> dict[str, Any]:
    with progress_bar() as show:
        from alidpfl.audit import audit_config
        from alidpfl.runs import load_config

        tell = show if Console(stderr=True).is_terminal else _Lines().tell
        found = audit_config(load_config(path, overrides), on_progress=tell, **asked)
    return found.to_json()


class _Lines:
    """On a pipe a line for each tenth of what is being done."""

    def __init__(self) -> None:
        self._told = ("", -1)

    def tell(self, what: str, share: float) -> None:
        if (now := (what, int(share * 10))) != self._told:
            self._told = now
            typer.echo(f"{what}: {share:.0%}", err=True)


def _print(document: dict[str, Any], plot: Path | None) -> None:
    from alidpfl.cli.progress import wide_console
    from alidpfl.reporting.audit_tables import audit_view

    console = wide_console()
    console.print(audit_view(document))
    if plot is not None:
        console.print(f"written to {plot}", markup=False, highlight=False)
