"""Make the report page: runs and tables of results, with what a reader must not overlook."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alidpfl.reporting.page import ResultChart, ResultTable, render
from alidpfl.reporting.snapshot import QUANTITIES, RunSnapshot
from alidpfl.reporting.tables import cells, effective_settings, shown

__all__ = ["ResultChart", "ResultReport", "ResultTable", "Split", "caveats", "report_page"]

_CAPTIONS = {
    "accuracy": "Dots mark the rounds in which it was measured.",
    "local_steps": "The planned steps of every round.",
    "epsilon": "After every round, for the client that spent most.",
}
_HEADLINE = ("accuracy", "ε spent", "δ", "noise σ", "rounds", "steps")
_MAX_COLUMNS = 25  # of a heat map, so that it fits on paper


@dataclass(frozen=True, kw_only=True)
class Split:
    """The number of records of each class (rows) at each client (columns)."""

    title: str
    counts: Sequence[Sequence[int]]

    @property
    def heat_map(self) -> dict[str, Any]:
        """Return what the template shows. Many clients go down the page, so that paper holds them."""
        across, down, counts = "client", "class", self.counts
        if counts and len(counts[0]) > _MAX_COLUMNS:
            across, down, counts = down, across, list(zip(*counts, strict=True))
        return {
            "title": f"{self.title}: records of each {down} (rows), by {across} (columns)",
            "across": across,
            "down": down,
            "counts": counts,
            "columns": len(counts[0]) if counts else 0,
            "most": max((count for row in counts for count in row), default=0) or 1,
        }


@dataclass(frozen=True, kw_only=True)
class ResultReport:
    """A folder of results: a summary, caveats, and all tables and charts."""

    summary: ResultTable
    caveats: Sequence[str]
    tables: Sequence[ResultTable]
    charts: Sequence[ResultChart]
    splits: Sequence[Split] = ()


def report_page(
    snapshots: Sequence[RunSnapshot], splits: Sequence[Split] = (), results: Sequence[ResultReport] = ()
) -> str:
    """Return the report of runs and of folders of results."""
    run_charts = [chart for quantity in QUANTITIES if (chart := _chart(quantity, snapshots)) is not None]
    of_runs = [f"{snapshot.name}: {caveat}" for snapshot in snapshots for caveat in caveats(snapshot)]
    held = {split.title: split for split in (*splits, *(split for result in results for split in result.splits))}
    return render(
        "report.html",
        [*run_charts, *(chart for result in results for chart in result.charts)],
        results=results,
        headline={name: cells(snapshots[0])[name] for name in _HEADLINE} if len(snapshots) == 1 else None,
        runs=_runs(snapshots) if snapshots else None,
        caveats=[*(caveat for result in results for caveat in result.caveats), *of_runs],
        run_charts=run_charts,
        splits=list(held.values()),
        settings=_settings(snapshots) if snapshots else None,
    )


def caveats(snapshot: RunSnapshot) -> list[str]:
    """Return what a reader of a run must not overlook."""
    found = []
    if not snapshot.covers_everything:
        reasons = "; ".join(snapshot.uncovered) or "un-noised values were used or shown"
        found.append(f"ε does NOT cover this run: {reasons}.")
    if (weakness := (snapshot.summary or {}).get("weakness")) is not None:
        found.append(f"{weakness}.")
    if snapshot.facts()["is_synthetic"]:
        found.append("The data are synthetic: a program generated them.")
    if missed := snapshot.missed_rounds:
        found.append(f"In {missed} rounds too few clients answered. They were charged and changed nothing.")
    if snapshot.is_seeded:
        found.append("A simulation with seeded noise: anyone who knows the seed can subtract the noise.")
    if snapshot.can_go_on:
        found.append("The run is not finished.")
    return found


def _runs(snapshots: Sequence[RunSnapshot]) -> ResultTable:
    columns = ("method", "policy", "accuracy", "ε spent", "δ", "rounds", "steps", "stopped by", "seconds")
    rows = [[s.name, shown(s.facts()["dataset"]), *(cells(s)[column] for column in columns)] for s in snapshots]
    is_covered = all(s.covers_everything for s in snapshots)
    return ResultTable(
        title="Accuracy of the last round on the test set; ε of the client that spent most",
        head=["run", "data", *columns],
        rows=rows,
        caption="" if is_covered else "(!): ε does not cover all that was used or shown.",
    )


def _chart(quantity: str, snapshots: Sequence[RunSnapshot]) -> ResultChart | None:
    """Return the chart of a quantity by round; None if no run has a value, as a deployment without test data."""
    series = []
    for snapshot in snapshots:
        points = [[x, float(y)] for x, y in snapshot.points(quantity) if math.isfinite(y)]
        series.append({"name": snapshot.name, "points": points, "dots": quantity == "accuracy"})
    if not any(line["points"] for line in series):
        return None
    title = QUANTITIES[quantity]
    chart = {"label": f"{title} by round", "x": "round", "y": title, "series": series}
    return ResultChart(name=quantity, title=title, caption=_CAPTIONS[quantity], chart=chart)


def _settings(snapshots: Sequence[RunSnapshot]) -> ResultTable:
    rows = [[key, *map(shown, values)] for key, values in effective_settings(snapshots).items()]
    head = ["setting", *(snapshot.name for snapshot in snapshots)]
    return ResultTable(title="Every setting of every run", head=head, rows=rows)
