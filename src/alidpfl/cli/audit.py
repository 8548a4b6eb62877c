"""The command `audit`: test a claimed ε with canaries before anyone relies on it."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option

from alidpfl.cli.options import AsJson, Overrides
from alidpfl.cli.progress import print_written, progress_bar, wide_console
from alidpfl.errors import ConfigError
from alidpfl.types import OnProgress

_EXIT_REFUTED = 1


def audit(  # noqa: PLR0917 - they are options
    config: Annotated[Path | None, Argument(help="TOML file. Default: the built-in configuration.")] = None,
    overrides: Overrides = None,
    one_step: Annotated[bool, Option("--one-step", help="Run only the audit of single steps.")] = False,
    one_run: Annotated[bool, Option("--one-run", help="Run only the audit of one whole training.")] = False,
    draws: Annotated[
        int | None, Option(help="Single steps with and without the canary. Default: 2000 to 10000 by model size.")
    ] = None,
    canaries: Annotated[int, Option(help="Canaries in the whole training.")] = 1000,
    confidence: Annotated[
        float | None, Option(help="Confidence of each bound. Default: 0.9999 for steps, 0.95 for the training.")
    ] = None,
    seed: Annotated[int | None, Option(help="Repeat an audit. Default: fresh entropy.")] = None,
    plot: Annotated[Path | None, Option(help="Draw the audit into this .svg or .png (needs matplotlib).")] = None,
    as_json: AsJson = False,
) -> None:
    """Try to refute the ε that a configuration claims.

    The audit hides made-up records, the canaries, in the data of one client
    and runs the real training code. Exit status 0: not refuted, which is no
    proof; 1: refuted, the training shows more than it claims.

    Example:
      alidpfl audit --set model.name=linear --plot audit.svg
    """
    if one_step and one_run:
        raise ConfigError("--one-step and --one-run exclude each other; leave both out to run both audits")
    if plot is not None:  # a wrong extension must not fail after minutes
        from alidpfl.reporting.figures import audit_figure, check_extension, figure_class, save

        check_extension(plot)
        figure_class()
    from alidpfl.config import load_config

    settings = load_config(config, overrides or [])
    given: dict[str, Any] = {"draws": draws, "canaries": canaries, "confidence": confidence, "seed": seed}
    with progress_bar() as show:
        from alidpfl.audit import audit_config

        given["on_progress"] = show if Console(stderr=True).is_terminal else _lines()
        document = audit_config(settings, one_step=not one_run, one_run=not one_step, **given).to_json()
    if plot is not None:
        save(lambda: audit_figure(document), plot)
    if as_json:
        typer.echo(json.dumps(document, allow_nan=False))
    else:
        from alidpfl.reporting.audit_tables import audit_view

        wide_console().print(audit_view(document))
        print_written(plot)
    if document["refuted"]:
        raise typer.Exit(_EXIT_REFUTED)


def _lines() -> OnProgress:
    """Return a progress callback for pipes: it prints a line for each tenth of the work."""
    printed = set()

    def show(what: str, share: float) -> None:
        if (now := (what, int(share * 10))) not in printed:
            printed.add(now)
            typer.echo(f"{what}: {share:.0%}", err=True)

    return show
