"""The commands `show` and `compare`: look at runs that have finished, are running, or were killed."""

import json
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType
from typer import Argument, Option

from alidpfl.cli.progress import wide_console
from alidpfl.errors import printable

if TYPE_CHECKING:
    from alidpfl.reporting import RunSnapshot

_NARROWEST_PLOT, _WIDEST_PLOT, _PLOT_HEIGHT = 20, 72, 8
_ROOM_FOR_AXES = 18
_MAX_NAMES = 40

_PlotOption = Annotated[
    Path | None, Option("--plot", help="Also draw accuracy, τ and ε into this .png or .svg (needs matplotlib).")
]
_JsonOption = Annotated[bool, Option("--json", help="Print machine-readable output with every round.")]


def show(
    run_dir: Annotated[Path, Argument(help="Folder of the run.")],
    plot: _PlotOption = None,
    as_json: _JsonOption = False,
) -> None:
    """Show settings, results and curves of one run, also while it runs.

    Example:
      alidpfl show runs/first --plot first.png
    """
    (snapshot,) = _load([run_dir], plot)
    if as_json:
        typer.echo(json.dumps(_document(snapshot), indent=2, allow_nan=False))
        return
    from alidpfl.reporting.tables import summary_table

    _print(summary_table(snapshot), *_client_names(snapshot), *_curves([snapshot]), *_notes([snapshot], plot))


def compare(
    run_dirs: Annotated[list[Path], Argument(help="Folders of the runs.")],
    plot: _PlotOption = None,
    as_json: _JsonOption = False,
) -> None:
    """Compare several runs side by side: settings that differ, results and curves.

    Example:
      alidpfl compare runs/first runs/second --plot both.svg
    """
    snapshots = _load(run_dirs, plot)
    if as_json:
        typer.echo(json.dumps([_document(s) for s in snapshots], indent=2, allow_nan=False))
        return
    from alidpfl.reporting.tables import comparison

    console = Console()  # on a pipe 80 columns or $COLUMNS: wide tables are split
    for part in comparison(snapshots, console.width):
        console.print(part)
    _print(*_curves(snapshots), *_notes(snapshots, plot))


def _load(paths: Sequence[Path], plot: Path | None) -> "list[RunSnapshot]":
    """Read the runs and draw them. Runs that share a folder name (a/run, b/run) are named by their whole path."""
    from alidpfl.reporting import RunSnapshot

    found = [RunSnapshot.load(path) for path in paths]
    names = [snapshot.name for snapshot in found]
    found = [replace(s, name=str(s.path)) if names.count(s.name) > 1 else s for s in found]
    if plot is not None:
        from alidpfl.reporting.figures import run_figure, save

        save(lambda: run_figure(found), plot)
    return found


def _client_names(snapshot: "RunSnapshot") -> list[str]:
    """Return the names of the clients of your own files. environment.json may have been edited."""
    found = (snapshot.environment or {}).get("clients")
    if not isinstance(found, dict) or not found:
        return []
    names = [printable(f"{number} = {name}") for number, name in [*found.items()][:_MAX_NAMES]]
    more = f", and {len(found) - _MAX_NAMES} more" if len(found) > _MAX_NAMES else ""
    return [f"clients: {', '.join(names)}{more}"]


def _curves(snapshots: "Sequence[RunSnapshot]") -> list[str]:
    from alidpfl.reporting import Series, plot, supports_unicode
    from alidpfl.reporting.snapshot import quantities

    unicode = supports_unicode(sys.stdout)
    width = max(_NARROWEST_PLOT, min(_WIDEST_PLOT, Console().width - _ROOM_FOR_AXES))
    found = []
    for quantity, title in quantities(snapshots).items():
        shown = title if unicode else title.replace("τ", "tau").replace("ε", "epsilon")
        series = [Series(label=s.name, points=s.points(quantity)) for s in snapshots]
        if max((len(line.points) for line in series), default=0) != 1:  # one point is no curve
            found.append("\n" + plot(series, title=shown, width=width, height=_PLOT_HEIGHT, unicode=unicode))
    return found


def _notes(snapshots: "Sequence[RunSnapshot]", plot: Path | None) -> list[str]:
    from alidpfl.reporting.snapshot import NOT_COVERED

    notes = []
    for s in snapshots:
        if s.can_go_on:
            resume = f"interrupted; continue with `alidpfl run --resume {shlex.quote(str(s.path))}`"
            notes.append(f"{s.name}: {f'being written by {s.holder}' if s.holder else resume}")
    for s in snapshots:
        if not s.covers_everything:
            reasons = f" ({'; '.join(s.uncovered)})" if s.uncovered else ""
            notes.append(f"{s.name}: {NOT_COVERED}{reasons}: its ε is not a guarantee")
    notes += [f"figure written to {plot}"] if plot is not None else []
    return ["\n" + "\n".join(notes)] if notes else []


def _document(snapshot: "RunSnapshot") -> Any:
    rounds = [record.to_json() for record in snapshot.records]
    shown = {"config": snapshot.config, "summary": snapshot.summary, "rounds_recorded": rounds}
    return strict({**snapshot.facts(), **shown})


def strict(value: Any) -> Any:
    """Return a value that JSON can hold: NaN becomes null, infinity the text "inf"."""
    if isinstance(value, dict):
        return {key: strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [strict(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _print(*parts: RenderableType) -> None:
    console = wide_console()
    for part in parts:
        # Print text as it is: a folder name may look like markup, and plots must not be folded.
        if isinstance(part, str):
            console.out(part, highlight=False)
        else:
            console.print(part)
