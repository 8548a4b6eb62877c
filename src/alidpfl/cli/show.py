"""The commands `show` and `compare`: look at runs that have finished, are running, or were killed."""

import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType

from alidpfl.errors import printable

if TYPE_CHECKING:
    from alidpfl.reporting import RunSnapshot
    from alidpfl.types import RoundRecord

_NARROWEST_PLOT, _WIDEST_PLOT, _PLOT_HEIGHT = 20, 72, 8
_ROOM_FOR_AXES = 18
_MOST_NAMES = 40

_PlotOption = Annotated[
    Path | None, typer.Option("--plot", help="Also draw accuracy, τ and ε into this .png or .svg (needs matplotlib).")
]
_JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output, with every round.")]


def show(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run.")],
    plot: _PlotOption = None,
    as_json: _JsonOption = False,
) -> None:
    """Settings, results and curves of one run; also while it runs.

    Example:
      alidpfl show runs/first --plot first.png
    """
    snapshot = _load(run_dir)
    if plot is not None:
        _draw([snapshot], plot)
    if as_json:
        _print_json(_document(snapshot))
        return
    from alidpfl.reporting.tables import summary_table

    _print(summary_table(snapshot), *_client_names(snapshot), *_curves([snapshot]), *_notes([snapshot], plot))


def _client_names(snapshot: "RunSnapshot") -> list[str]:
    """Of own files; whoever edits environment.json may write anything there."""
    found = (snapshot.environment or {}).get("clients")
    if not isinstance(found, dict) or not found:
        return []
    told = [printable(f"{number} = {name}") for number, name in [*found.items()][:_MOST_NAMES]]
    more = f", and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return [f"clients: {', '.join(told)}{more}"]


def compare(
    run_dirs: Annotated[list[Path], typer.Argument(help="Folders of the runs.")],
    plot: _PlotOption = None,
    as_json: _JsonOption = False,
) -> None:
    """Several runs side by side: what differs in their settings, their results and curves.

    Example:
      alidpfl compare runs/first runs/second --plot both.svg
    """
    snapshots = _with_distinct_names([_load(path) for path in run_dirs])
    if plot is not None:
        _draw(snapshots, plot)
    if as_json:
        _print_json([_document(snapshot) for snapshot in snapshots])
        return
    from alidpfl.reporting.comparison import comparison

    console = Console()  # on a pipe 80 columns or $COLUMNS: tables are split rather than made as wide as they like
    for part in comparison(snapshots, console.width):
        console.print(part)
    _print(*_curves(snapshots), *_notes(snapshots, plot))


def _load(path: Path) -> "RunSnapshot":
    from alidpfl.reporting import RunSnapshot

    return RunSnapshot.load(path)


def _with_distinct_names(snapshots: "list[RunSnapshot]") -> "list[RunSnapshot]":
    """Runs that share a folder name (a/run, b/run) go by their whole path."""
    from dataclasses import replace

    names = [snapshot.name for snapshot in snapshots]
    return [replace(s, name=str(s.path)) if names.count(s.name) > 1 else s for s in snapshots]


def _draw(snapshots: "Sequence[RunSnapshot]", path: Path) -> None:
    from alidpfl.reporting.figures import save_figure

    save_figure(snapshots, path)


def _curves(snapshots: "Sequence[RunSnapshot]") -> list[str]:
    from alidpfl.reporting import Series, plot, supports_unicode

    unicode = supports_unicode(sys.stdout)
    width = max(_NARROWEST_PLOT, min(_WIDEST_PLOT, Console().width - _ROOM_FOR_AXES))
    greek = {"τ": "τ", "ε": "ε"} if unicode else {"τ": "tau", "ε": "epsilon"}
    quantities: dict[str, Callable[[RoundRecord], float | None]] = {
        "test accuracy (%)": lambda record: record.accuracy,
        f"local steps {greek['τ']}": lambda record: record.local_steps,
        f"{greek['ε']} spent": lambda record: record.epsilon,
    }
    return [
        "\n"
        + plot(
            [Series(label=s.name, points=_points(s, value)) for s in snapshots],
            title=title,
            width=width,
            height=_PLOT_HEIGHT,
            unicode=unicode,
        )
        for title, value in quantities.items()
        if max((len(_points(s, value)) for s in snapshots), default=0) != 1  # one point is no curve
    ]


def _points(
    snapshot: "RunSnapshot", value: "Callable[[RoundRecord], float | None]"
) -> list[tuple[float, float | None]]:
    # A round that was not evaluated is not a gap: the line goes on to the next that was. NaN is one.
    return [(record.number, y) for record in snapshot.records if (y := value(record)) is not None]


def _notes(snapshots: "Sequence[RunSnapshot]", plot: Path | None) -> list[str]:
    from alidpfl.reporting.snapshot import NOT_COVERED

    notes = [
        f"{s.name}: being written by {s.holder}"
        if s.holder
        else f"{s.name}: interrupted; go on with `alidpfl run --resume {shlex.quote(str(s.path))}`"
        for s in snapshots
        if s.can_go_on
    ]
    for s in snapshots:
        if not s.covers_everything:
            reasons = f" ({'; '.join(s.uncovered)})" if s.uncovered else ""
            notes.append(f"{s.name}: {NOT_COVERED}{reasons}: its ε is not a guarantee")
    notes += [f"figure written to {plot}"] if plot is not None else []
    return ["\n" + "\n".join(notes)] if notes else []


def _document(snapshot: "RunSnapshot") -> dict[str, Any]:
    return {
        **snapshot.facts(),
        "config": snapshot.config,
        "summary": snapshot.summary,
        "rounds_recorded": [record.to_json() for record in snapshot.records],
    }


def _print_json(value: object) -> None:
    typer.echo(json.dumps(strict(value), indent=2, allow_nan=False))


def strict(value: Any) -> Any:
    """JSON has no NaN (here null) and no infinity (here the text "inf"): other programs would refuse the document."""
    if isinstance(value, dict):
        return {key: strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [strict(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _print(*parts: RenderableType) -> None:
    from alidpfl.cli.progress import wide_console

    console = wide_console()
    for part in parts:
        # Plain text stays as it is: names of folders must not be read as markup, nor plots be folded.
        if isinstance(part, str):
            console.out(part, highlight=False)
        else:
            console.print(part)
