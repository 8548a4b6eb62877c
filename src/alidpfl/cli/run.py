"""`alidpfl run`: train, watch, stop, resume."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import TextColumn, TimeRemainingColumn
from rich.text import Text
from typer import Argument, Option

from alidpfl.cli.completion import one_of
from alidpfl.cli.options import Overrides
from alidpfl.cli.progress import BAR, DESCRIPTION, moving_line
from alidpfl.errors import ConfigError

if TYPE_CHECKING:
    from alidpfl.federation.settings import Outlook
    from alidpfl.runs import Config, Outcome
    from alidpfl.runs.execute import Listener
    from alidpfl.runs.prepare import Prepared
    from alidpfl.types import RoundRecord

_EXIT_INTERRUPTED = 130
_STDERR = 2


def run(  # noqa: PLR0917 - they are options
    inputs: Annotated[
        list[Path] | None,
        Argument(metavar="[CONFIG]", help="TOML file with settings, if any. Further paths are files of --data."),
    ] = None,
    overrides: Overrides = None,
    schema: Annotated[Path | None, Option(help="Train on tables of this schema; see `alidpfl schema`.")] = None,
    data: Annotated[
        list[Path] | None, Option(help="CSV or Parquet files, one for each client, or a folder of them.")
    ] = None,
    epsilon: Annotated[float | None, Option(help="ε of every client (privacy.epsilon).")] = None,
    delta: Annotated[float | None, Option(help="δ of every client (privacy.delta).")] = None,
    rounds: Annotated[int | None, Option(help="Largest number of rounds (federation.max_rounds).")] = None,
    after: Annotated[
        list[Path] | None, Option(help="File of `alidpfl statistics` on the same data: its ε is part of this budget.")
    ] = None,
    out: Annotated[Path | None, Option(help="Folder of the run. Default: a new one under runs/.")] = None,
    resume_dir: Annotated[
        Path | None, Option("--resume", metavar="DIR", help="Resume a stopped or killed run.")
    ] = None,
    data_dir: Annotated[Path | None, Option(help="Folder of the real data sets (or ALIDPFL_DATA_DIR).")] = None,
    plan: Annotated[
        str | None,
        Option(metavar="auto", help="Choose sampling and noise; see `alidpfl plan`.", autocompletion=one_of(["auto"])),
    ] = None,
    max_epochs: Annotated[float | None, Option(help="With --plan auto: most passes of a client over its data.")] = None,
    tensorboard: Annotated[bool, Option("--tensorboard", help="Also write TensorBoard event files.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the outcome as one line of JSON.")] = False,
) -> None:
    r"""Train a model over clients that keep their data, within a privacy budget and a number of rounds.

    Ctrl-C stops after the current round, a second Ctrl-C at once. --resume continues.

    With --schema and --data, model, sampling, noise, clip norm and step size
    have defaults that suit a table.

    Example:
      alidpfl run --epsilon 4 --rounds 50 --set method.policy=ratio \
        --out runs/mine
    """
    config, files = _inputs(inputs or [], is_table=schema is not None or bool(data))
    changes = _changes(data_dir, schema, [*(data or []), *files], epsilon=epsilon, delta=delta, rounds=rounds)
    if resume_dir is not None and (changes or any(x is not None for x in (config, overrides, out, plan, after))):
        raise ConfigError(
            "--resume takes its settings from the folder; leave out the configuration and the other settings"
        )
    if plan not in (None, "auto"):
        raise ConfigError(f"--plan {plan}: the only value is auto; set your own plan with --set")
    if max_epochs is not None and plan is None and schema is None:  # tables are planned anyway
        raise ConfigError(f"--max-epochs {max_epochs:g} limits --plan auto; add --plan auto, or leave it out")
    with _Screen() as screen:
        screen.show("loading")
        if resume_dir is not None:
            from alidpfl.runs import resume
            from alidpfl.store import RunDirectory

            if RunDirectory.open(resume_dir).summary() is not None:
                typer.echo(f"{resume_dir} is already finished: there is nothing left to do", err=True)
            with screen.explaining_interrupts(resume_dir):
                outcome = resume(resume_dir, listener=screen.listener(), tensorboard=tensorboard)
        else:
            from alidpfl.config import load_config  # first: an error in a setting must not wait for torch

            settings = load_config(config, changes + (overrides or [])).with_absolute_paths()
            from alidpfl.runs.earlier import with_earlier_releases
            from alidpfl.runs.tables import plans_itself, with_table_defaults

            settings = with_earlier_releases(with_table_defaults(settings), after or [])
            from alidpfl.runs.data import secret_key
            from alidpfl.runs.execute import execute, simulated

            key = secret_key(settings)  # of the plan and of the run: both read the same training rows
            if plan is not None or plans_itself(settings):
                settings = screen.planned(settings, max_epochs, key)
            name = f"{settings.data.name}-{settings.method.name}-{settings.policy}-{time.strftime('%Y%m%d-%H%M%S')}"
            folder = out or Path("runs") / name
            with screen.explaining_interrupts(folder):
                outcome = execute(
                    settings,
                    folder,
                    listener=screen.listener(),
                    tensorboard=tensorboard,
                    preparation=partial(simulated, held_out_key=key),
                )
    _report(outcome, as_json)
    if outcome.stop_reason == "interrupted":
        raise typer.Exit(_EXIT_INTERRUPTED)


def _inputs(given: list[Path], *, is_table: bool) -> tuple[Path | None, list[Path]]:
    """Return the configuration file, if there is one, and data files: a shell puts all but one behind `--data`."""
    configs = [path for path in given if not is_table or path.suffix == ".toml"]
    if len(configs) > 1:
        raise ConfigError(f"{configs[0]} and {configs[1]}: give one configuration file; data files need --data")
    return (configs[0] if configs else None), [path for path in given if path not in configs]


def _changes(data_dir: Path | None, schema: Path | None, files: list[Path], **numbers: float | int | None) -> list[str]:
    """Return the settings that options of their own stand for."""
    keys = {"epsilon": "privacy.epsilon", "delta": "privacy.delta", "rounds": "federation.max_rounds"}
    changes = [] if data_dir is None else [f"data.data_dir={_quoted(str(data_dir))}"]
    if schema is not None:
        changes += ["data.name=table", f"data.schema_file={_quoted(str(schema))}"]
    if files:
        changes += ["data.name=table", f"data.files={_quoted([str(file) for file in files])}"]
    return changes + [f"{keys[name]}={value}" for name, value in numbers.items() if value is not None]


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)  # TOML has no surrogate pairs


def _report(outcome: "Outcome", as_json: bool) -> None:
    from alidpfl.cli.show import show, strict

    if as_json:
        typer.echo(json.dumps(strict(asdict(outcome)), allow_nan=False))  # the loss of a diverged model is not a number
    if outcome.stop_reason == "interrupted":  # without accuracy: this round was not evaluated
        typer.echo(f"interrupted after round {outcome.rounds}: {_claim(outcome)}", err=True)
        typer.echo(f"{_how_to_resume(outcome.out)}; show it with: alidpfl show {quote(outcome.out)}", err=True)
    if as_json or outcome.stop_reason == "interrupted":
        return
    show(Path(outcome.out))
    if outcome.hidden:
        typer.echo(
            f"noise hides {', '.join(outcome.hidden)} on the held-out rows; to see more, raise held_out in the schema "
            "or evaluation.epsilon, or set evaluation.releases=1",
            err=True,
        )
    if outcome.weakness is not None:
        typer.echo(f"warning: {outcome.weakness}", err=True)
    typer.echo(f"{_result(outcome)} at {_claim(outcome)}; kept in {outcome.out}")


def _result(outcome: "Outcome") -> str:
    """Return the metric that stands for the task with its interval, or the loss if there is none."""
    from alidpfl.metrics import headline
    from alidpfl.reporting.tables import metric_text

    made = " on synthetic data" if outcome.is_synthetic else ""
    if (name := headline(outcome.metrics)) is None:
        if outcome.loss is None:
            return "not evaluated"
        known = ("loss", outcome.loss) if outcome.accuracy is None else ("accuracy", outcome.accuracy)
        return f"{known[0]} {metric_text(*known)}{made}"
    return f"{name} {metric_text(name, outcome.metrics[name], outcome.intervals.get(name))}{made}"


def _claim(outcome: "Outcome") -> str:
    """Return ε and δ, with what they do not cover."""
    from alidpfl.reporting.tables import rounded_up

    covered = "" if outcome.covers_everything else f" (it does NOT cover: {'; '.join(outcome.uncovered)})"
    is_known = outcome.randomness == "seeded" and not outcome.is_synthetic
    seeded = " (seeded: anyone who knows the seed can subtract the noise)" if is_known else ""
    unit = " for all records of a person at one client" if outcome.unit == "person" else ""
    return f"ε = {rounded_up(outcome.epsilon)}, δ = {outcome.delta:g}{unit}{covered}{seeded}"


def _how_to_resume(folder: str | Path) -> str:
    return f"resume with: alidpfl run --resume {quote(str(folder))}"


def _print_stopping() -> None:
    """Write directly: in a signal handler, the console may be in the middle of printing."""
    with suppress(OSError):
        os.write(_STDERR, b"\nstopping after this round; Ctrl-C again stops now\n")


def _in_words(outlook: "Outlook", rounds_done: int, max_rounds: int) -> str:
    """Return R_c, R_s and τ in words, or what is left of them."""
    paid = "rounds" if outlook.charged_by == "update" else "local steps"
    more = "" if rounds_done == 0 else " more"
    return (
        f"pays for {outlook.left:,}{more} {paid}, in at most {max_rounds - rounds_done:,}{more} rounds; "
        f"round {rounds_done + 1} takes τ = {outlook.local_steps:,}"
    )


class _Screen:
    """Progress on standard error: a moving line on a terminal, elsewhere a plain line for each evaluation."""

    def __init__(self) -> None:
        self._progress = moving_line(DESCRIPTION, BAR, TextColumn("{task.fields[facts]}"), TimeRemainingColumn())
        self._console = self._progress.console
        self._task = self._progress.add_task("", total=None, facts="")
        self._seen = ""
        self._prepared: Prepared | None = None
        self._rounds_done = 0

    def __enter__(self) -> "_Screen":
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def show(self, what: str, share: float | None = None) -> None:
        """Show a slow step and the share of it that is done."""
        self._progress.update(self._task, description=what, total=1.0, completed=share or 0.0)

    def planned(self, config: "Config", max_epochs: float | None, held_out_key: bytes | None) -> "Config":
        """Return the configuration with sampling rate and noise chosen, and print them."""
        from alidpfl.planner import weak_signal
        from alidpfl.runs.auto_plan import planned

        chosen, setting = planned(config, held_out_key=held_out_key, max_epochs=max_epochs, on_progress=self.show)
        self._console.print(
            f"plan: q = {setting.sample_rate:g}, σ = {setting.noise_multiplier:g}, {setting.steps} steps, "
            f"{setting.epochs:.3g} epochs; policy {chosen.policy} divides the steps among the rounds",
            highlight=False,
        )
        if (weakness := weak_signal(setting)) is not None:
            self._say("warning:", "yellow", weakness)
        return chosen

    def listener(self) -> "Listener":
        """Return the callbacks for a run."""
        from alidpfl.runs.execute import Listener

        return Listener(
            on_loading=self.show,
            on_start=self._start,
            on_share=lambda share: self._progress.update(self._task, completed=self._rounds_done + share),
            on_round=self._round,
            on_interrupt=_print_stopping,
        )

    @contextmanager
    def explaining_interrupts(self, folder: Path) -> Iterator[None]:
        """Say what happens to a round that a second Ctrl-C cut off."""
        try:
            yield
        except KeyboardInterrupt:
            if self._prepared is not None:
                lost = "will be run again with the same outcome" if self._prepared.repeats_rounds else "stays charged"
                typer.echo(f"the interrupted round {lost}; {_how_to_resume(folder)}", err=True)
            raise

    def _start(self, prepared: "Prepared", rounds_done: int) -> None:
        self._prepared, self._rounds_done = prepared, rounds_done
        for warning in filter(None, (prepared.weakness, *prepared.warnings)):
            self._say("warning:", "yellow", warning)
        for shown in prepared.uncovered:
            self._say("epsilon does NOT cover this run:", "bold red", f"it shows {shown}")
        max_rounds = prepared.federation.settings.max_rounds
        if (outlook := prepared.federation.outlook()) is not None:
            self._say("the privacy budget", "bold", _in_words(outlook, rounds_done, max_rounds))
            if outlook.warning is not None:
                self._say("warning:", "yellow", outlook.warning)
        self._progress.reset(self._task, total=max_rounds, completed=rounds_done, description="training")

    def _say(self, head: str, style: str, text: str) -> None:
        """Print one line. Only a terminal folds it, and it is never read as markup."""
        if self._console.is_terminal:
            self._console.print(Text.assemble((head, style), " ", text))
        else:
            typer.echo(f"{head} {text}", err=True)

    def _round(self, record: "RoundRecord", seconds: float) -> None:
        from alidpfl.metrics import headline_text
        from alidpfl.reporting.tables import rounded_up

        if found := headline_text(record.accuracy, record.metrics, digits=1):
            self._seen = f"  {found}"
        self._rounds_done = record.number
        total, spent = self._progress.tasks[0].total, rounded_up(record.epsilon)
        facts = f"round {record.number}/{total:.0f}  τ {record.local_steps}  ε {spent}{self._seen}"
        self._progress.update(self._task, completed=record.number, facts=facts)
        # On a pipe a line for each evaluation, and one for the first round: it tells that, and how fast, it goes.
        if not self._console.is_terminal and (found or record.round == 0):
            typer.echo(f"{facts}  {seconds:.1f} s a round" if record.round == 0 else facts, err=True)
