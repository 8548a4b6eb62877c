"""The command `audit`: test a claimed ε with canaries before anyone relies on it."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option

from alidpfl.cli.options import AsJson, Overrides, input_shape_of
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
    canaries: Annotated[int | None, Option(help="Canaries in the whole training. Default: 1000.")] = None,
    confidence: Annotated[
        float | None, Option(help="Confidence of each bound. Default: 0.9999 for steps, 0.95 for the training.")
    ] = None,
    seed: Annotated[int | None, Option(help="Seed, to repeat an audit. Default: new random numbers.")] = None,
    plot: Annotated[Path | None, Option(help="Draw the audit into this .svg or .png (needs matplotlib).")] = None,
    model: Annotated[
        str | None,
        Option(metavar="NAME", help="Audit only whether this model mixes records: a name or PACKAGE.MODULE:FACTORY."),
    ] = None,
    loss: Annotated[
        str | None, Option(metavar="NAME", help="With --model: the loss, a name or PACKAGE.MODULE:FUNCTION.")
    ] = None,
    input_shape: Annotated[
        str | None,
        Option(metavar="SHAPE", help="With --model: shape of an input, such as 1,28,28. Default: the data's."),
    ] = None,
    classes: Annotated[int | None, Option(help="With --model: number of classes. Default: the data's.")] = None,
    seconds: Annotated[float | None, Option(help="With --model: time to search. Default: 10.")] = None,
    trials: Annotated[int | None, Option(help="With --model: batches to try, instead of --seconds.")] = None,
    as_json: AsJson = False,
) -> None:
    """Try to refute the ε that a configuration claims.

    The audit hides made-up records, the canaries, in the data of one client
    and runs the real training code. With --model it searches for batches in
    which a model mixes records, which no ε covers. Exit status 0: not refuted,
    which is no proof; 1: refuted, the training shows more than it claims.

    Example:
      alidpfl audit --set model.name=linear --plot audit.svg
    """
    searched = {"loss": loss, "input_shape": input_shape, "classes": classes, "seconds": seconds, "trials": trials}
    if model is not None:
        _refuse(
            "--model",
            one_step=one_step,
            one_run=one_run,
            draws=draws,
            canaries=canaries,
            confidence=confidence,
            plot=plot,
        )
        _audit_model(config, overrides, model, searched, seed, as_json=as_json)
        return
    _refuse("an audit without --model", **searched)
    if one_step and one_run:
        raise ConfigError("--one-step and --one-run exclude each other; leave both out to run both audits")
    if plot is not None:  # a wrong extension must not fail after minutes
        from alidpfl.reporting.figures import audit_figure, check_extension, figure_class, save

        check_extension(plot)
        figure_class()
    from alidpfl.config import load_config

    settings = load_config(config, overrides or [])
    from alidpfl.runs.tables import with_table_defaults

    settings = with_table_defaults(settings)
    given: dict[str, Any] = {"draws": draws, "confidence": confidence, "seed": seed}
    if canaries is not None:
        given["canaries"] = canaries
    with progress_bar() as show:
        from alidpfl.audit import audit_config

        given["on_progress"] = _progress(show)
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


def _refuse(what: str, **options: object) -> None:
    given = [
        f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None and value is not False
    ]
    if given:
        raise ConfigError(f"{', '.join(given)} cannot be used with {what}; see alidpfl audit --help")


def _audit_model(
    config: Path | None,
    overrides: list[str] | None,
    name: str,
    searched: dict[str, Any],
    seed: int | None,
    *,
    as_json: bool,
) -> None:
    """Search for batches in which a model mixes records, and end with the status."""
    from alidpfl.config import load_config

    settings, shape = load_config(config, overrides or []), input_shape_of(searched["input_shape"])
    limits = {key: searched[key] for key in ("seconds", "trials") if searched[key] is not None}
    with progress_bar() as show:
        from alidpfl.audit import SearchOptions, audit_named_model

        found = audit_named_model(
            settings,
            name,
            input_shape=shape,
            num_classes=searched["classes"],
            loss=searched["loss"],
            options=SearchOptions(**limits, seed=seed, on_progress=_progress(show)),
        )
    if as_json:
        typer.echo(json.dumps({"model": name, **found.to_json()}, allow_nan=False))
    else:
        from alidpfl.reporting.audit_tables import model_view

        wide_console().print(model_view(name, found.to_json()))
    if found.is_refuted:
        raise typer.Exit(_EXIT_REFUTED)


def _progress(show: OnProgress) -> OnProgress:
    return show if Console(stderr=True).is_terminal else _lines()


def _lines() -> OnProgress:
    """Return a progress callback for pipes: it prints a line for each tenth of the work."""
    printed = set()

    def show(what: str, share: float) -> None:
        if (now := (what, int(share * 10))) not in printed:
            printed.add(now)
            typer.echo(f"{what}: {share:.0%}", err=True)

    return show
