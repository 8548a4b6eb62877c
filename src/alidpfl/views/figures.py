"""Accuracy, τ and ε against the round, as a picture. Needs the extra `report` (matplotlib)."""

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from alidpfl.errors import ConfigError
from alidpfl.store.files import write_atomically
from alidpfl.types import RoundRecord
from alidpfl.views.snapshot import NOT_COVERED, RunSnapshot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMATS = (".png", ".svg")
_PANELS: dict[str, Callable[[RoundRecord], float | None]] = {
    "test accuracy (%)": lambda record: record.accuracy,
    "local steps τ": lambda record: record.local_steps,
    "ε spent": lambda record: record.epsilon,
}


def run_figure(snapshots: Sequence[RunSnapshot]) -> "Figure":
    """Three panels over one another with a line for each run; rounds that were not evaluated are left out."""
    figure = _figure_class()(figsize=(7, 8), layout="constrained")  # not pyplot: no global state, no window
    panels = figure.subplots(len(_PANELS), 1, sharex=True)
    for axes, (label, value) in zip(panels, _PANELS.items(), strict=True):
        for snapshot in snapshots:
            known = [(r.number, y) for r in snapshot.records if (y := value(r)) is not None]
            heights = [y if math.isfinite(y) else math.nan for _, y in known]  # NaN: a gap in the line
            axes.plot([x for x, _ in known], heights, marker="." if len(known) == 1 else None)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    panels[-1].set_xlabel("round")
    panels[0].legend(panels[0].get_lines(), [_label(snapshot) for snapshot in snapshots], fontsize="small")
    return figure


def save_figure(snapshots: Sequence[RunSnapshot], path: str | Path) -> None:
    """Draws the runs into `path`, as PNG or SVG by its extension."""
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in _FORMATS:
        raise ConfigError(f"cannot draw {target}: its extension must be {' or '.join(_FORMATS)}")
    figure, content = run_figure(snapshots), io.BytesIO()
    import matplotlib as mpl

    # Without date and random names inside, the same runs give the same bytes.
    metadata = {"Date": None} if kind == ".svg" else None
    with mpl.rc_context({"svg.hashsalt": "alidpfl"}):
        figure.savefig(content, format=kind.removeprefix("."), dpi=150, metadata=metadata)
    write_atomically(target, content.getvalue())


def _label(snapshot: RunSnapshot) -> str:
    # matplotlib takes $ for mathematics, and hides what begins with an underscore.
    name = snapshot.name.replace("$", r"\$")
    name = f" {name}" if name.startswith("_") else name
    return name if snapshot.covers_everything else f"{name} ({NOT_COVERED})"


def _figure_class() -> "type[Figure]":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "drawing a figure needs matplotlib: run `pip install 'alidpfl[report]'`, or leave --plot out"
        ) from None
    return Figure
