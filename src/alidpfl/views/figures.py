"""Accuracy, τ and ε against the round, as a picture. Needs the extra `report` (matplotlib)."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from alidpfl.types import RoundRecord
from alidpfl.views.drawing import figure_class, save
from alidpfl.views.snapshot import NOT_COVERED, RunSnapshot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANELS: dict[str, Callable[[RoundRecord], float | None]] = {
    "test accuracy (%)": lambda record: record.accuracy,
    "local steps τ": lambda record: record.local_steps,
    "ε spent": lambda record: record.epsilon,
}


def run_figure(snapshots: Sequence[RunSnapshot]) -> "Figure":
    """Three panels over one another with a line for each run; rounds that were not evaluated are left out."""
    figure = figure_class()(figsize=(7, 8), layout="constrained")
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
    save(lambda: run_figure(snapshots), path)


def _label(snapshot: RunSnapshot) -> str:
    # matplotlib takes $ for mathematics, and hides what begins with an underscore.
    name = snapshot.name.replace("$", r"\$")
    name = f" {name}" if name.startswith("_") else name
    return name if snapshot.covers_everything else f"{name} ({NOT_COVERED})"
