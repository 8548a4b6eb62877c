"""Make the report page: runs and tables of results, with what a reader must not overlook."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alidpfl.metrics import HEADLINES, CalibrationBin
from alidpfl.reporting.page import ResultChart, ResultTable, render
from alidpfl.reporting.snapshot import RunSnapshot, quantities
from alidpfl.reporting.tables import UNKNOWN, cells, effective_settings, metric_text, rounded_up, shown
from alidpfl.types import protected

__all__ = ["ResultChart", "ResultReport", "ResultTable", "Split", "caveats", "report_page"]

_CAPTIONS = {
    **dict.fromkeys(HEADLINES, "Dots mark the rounds in which it was measured."),
    "local_steps": "The planned steps of every round.",
    "epsilon": "After every round, for the client that spent most.",
}
_FACTS = ("ε spent", "unit of privacy", "δ", "noise σ", "rounds", "steps")
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
    drawn = quantities(snapshots).items()
    run_charts = [chart for name, title in drawn if (chart := _chart(name, title, snapshots)) is not None]
    run_charts += [] if (calibration := _calibration(snapshots)) is None else [calibration]
    of_runs = [f"{snapshot.name}: {caveat}" for snapshot in snapshots for caveat in caveats(snapshot)]
    held = {split.title: split for split in (*splits, *(split for result in results for split in result.splits))}
    return render(
        "report.html",
        [*run_charts, *(chart for result in results for chart in result.charts)],
        results=results,
        headline=_facts(snapshots[0]) if len(snapshots) == 1 else None,
        runs=_runs(snapshots) if snapshots else None,
        metrics=_metrics(snapshots),
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
    found.append(_unit(snapshot))
    if snapshot.is_seeded:
        found.append("A simulation with seeded noise: anyone who knows the seed can subtract the noise.")
    if snapshot.can_go_on:
        found.append("The run is not finished.")
    return found


def _unit(snapshot: RunSnapshot) -> str:
    """Return what ε protects, and what it means for a person with several records or at several clients."""
    if snapshot.facts()["unit"] == "person":
        return f"{protected('person')}. For a person at two clients, both ε and both δ add up."
    groups = snapshot.group_epsilon.items()
    told = "".join(f" {group} records of one person have ε = {rounded_up(value)}." for group, value in groups)
    return f"{protected('record')}.{told}"


def _facts(snapshot: RunSnapshot) -> dict[str, str]:
    """Return the few values that stand for a run."""
    return {snapshot.headline: _result(snapshot), **{name: cells(snapshot)[name] for name in _FACTS}}


def _result(snapshot: RunSnapshot) -> str:
    """Return the last value of the metric that stands for the task, also while the run goes on."""
    name, points = snapshot.headline, snapshot.points(snapshot.headline)
    if (metric := snapshot.metrics().get(name)) is not None:
        return metric_text(name, metric.value)
    if name == "accuracy":
        return cells(snapshot)[name]
    return metric_text(name, points[-1][1]) if points else UNKNOWN


def _runs(snapshots: Sequence[RunSnapshot]) -> ResultTable:
    columns = ("ε spent", "δ", "rounds", "steps", "stopped by", "seconds")
    names = {snapshot.headline for snapshot in snapshots}
    rows = []
    for run in snapshots:
        found = cells(run)
        result = _result(run) if len(names) == 1 else f"{run.headline} {_result(run)}"
        rows.append([run.name, shown(run.facts()["dataset"]), found["method"], found["policy"], result])
        rows[-1] += [found[column] for column in columns]
    is_covered = all(s.covers_everything for s in snapshots)
    return ResultTable(
        title="Results of the last round on the test set; ε of the client that spent most",
        head=["run", "data", "method", "policy", names.pop() if len(names) == 1 else "result", *columns],
        rows=rows,
        caption="" if is_covered else "(!): ε does not cover all that was used or shown.",
    )


def _metrics(snapshots: Sequence[RunSnapshot]) -> ResultTable | None:
    """Return all metrics with their intervals and trivial values, those of a name together; None if there are none."""
    found = [(snapshot.name, snapshot.metrics()) for snapshot in snapshots]
    rows = []
    for name in dict.fromkeys(name for _, metrics in found for name in metrics):
        for run, metric in [(run, metrics[name]) for run, metrics in found if name in metrics]:
            ends = [metric_text(name, end) for end in metric.interval or ()]
            trivial = UNKNOWN if metric.baseline is None else metric_text(name, metric.baseline)
            rows.append([name, run, metric_text(name, metric.value), " to ".join(ends) or UNKNOWN, trivial])
    caption = (
        "The interval is what other records of the same kind could have given. If the evaluation has noise, it covers "
        "that too. It does not cover other seeds. The trivial model ignores the inputs; for calibration, it is the "
        "error that chance gives to exact probabilities."
    )
    head = ["metric", "run", "value", "95 % interval", "trivial model"]
    return ResultTable(title="All metrics on the test set", head=head, rows=rows, caption=caption) if rows else None


def _chart(quantity: str, title: str, snapshots: Sequence[RunSnapshot]) -> ResultChart | None:
    """Return the chart of a quantity by round; None if no run has a value, as a deployment without test data."""
    series = []
    for snapshot in snapshots:
        points = [[x, float(y)] for x, y in snapshot.points(quantity) if math.isfinite(y)]
        series.append({"name": snapshot.name, "points": points, "dots": quantity in HEADLINES})
    if not any(line["points"] for line in series):
        return None
    chart = {"label": f"{title} by round", "x": "round", "y": title, "series": series}
    return ResultChart(name=quantity, title=title, caption=_CAPTIONS[quantity], chart=chart)


def _calibration(snapshots: Sequence[RunSnapshot]) -> ResultChart | None:
    """Return observed by predicted shares; None if no run has predicted classes."""
    series = []
    for snapshot in snapshots:
        curve = snapshot.calibration()
        points = [[part.predicted, part.observed, _told(snapshot.name, part)] for part in curve]
        bars = [[part.predicted, part.low, part.high] for part in curve]
        series.append({"name": snapshot.name, "points": points, "bars": bars, "dots": True})
    if not any(line["points"] for line in series):
        return None
    x, y = "predicted probability", "observed share"
    series.append({"name": "exact", "points": [[0.0, 0.0], [1.0, 1.0]]})
    caption = (
        "Records are put together by their predicted probability: of class 1 of two classes, else of the class that "
        'was guessed. Bars are 95 % intervals. On the line "exact", events come as often as predicted.'
    )
    chart = {"label": f"{y} by {x}", "x": x, "y": y, "series": series}
    return ResultChart(name="calibration", title="Calibration", caption=caption, chart=chart)


def _told(name: str, part: CalibrationBin) -> str:
    """Return the text at a point of the calibration curve."""
    return (
        f"{name}\npredicted {part.predicted:.3f}\nobserved {part.observed:.3f} ({part.low:.3f} to {part.high:.3f})\n"
        f"{part.count} records"
    )


def _settings(snapshots: Sequence[RunSnapshot]) -> ResultTable:
    rows = [[key, *map(shown, values)] for key, values in effective_settings(snapshots).items()]
    head = ["setting", *(snapshot.name for snapshot in snapshots)]
    return ResultTable(title="Every setting of every run", head=head, rows=rows)
