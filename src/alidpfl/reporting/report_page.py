"""Runs and tables as one page that opens from disk: what was found, how, and what it does not say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from alidpfl.reporting.page import facts, figure, page, table
from alidpfl.reporting.snapshot import RunSnapshot
from alidpfl.reporting.tables import number, rounded_up

_CHARTS = {"accuracy": "test accuracy (%)", "steps": "local steps τ", "epsilon": "ε spent"}
_CAPTIONS = {
    "accuracy": "Dots: the rounds in which it was measured.",
    "steps": "Of every round, as planned.",
    "epsilon": "After every round, of the client that spent most.",
}

_MOST_COLUMNS = 25  # of a picture of who holds what: beyond, clients are listed downwards, so that paper holds them


@dataclass(frozen=True, kw_only=True)
class Split:
    """Who holds what: records of each class (rows) at each client (columns)."""

    title: str
    counts: Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A table of the paper with ours in it, as text."""

    title: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class ResultChart:
    """A drawing of results, as charts.js takes it."""

    name: str
    title: str
    caption: str
    chart: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ResultReport:
    """A folder of results: what it comes to, what to keep in mind, and all of it."""

    summary: ResultTable
    caveats: Sequence[str]
    tables: Sequence[ResultTable]
    charts: Sequence[ResultChart]
    splits: Sequence[Split] = ()


def report_page(
    snapshots: Sequence[RunSnapshot], splits: Sequence[Split] = (), results: Sequence[ResultReport] = ()
) -> str:
    """The whole page."""
    told = [f"{snapshot.name}: {caveat}" for snapshot in snapshots for caveat in caveats(snapshot)]
    body = [
        "<h1>Federated training under a privacy budget: report</h1>",
        *(part for result in results for part in ("<h2>Summary</h2>", _result_table(result.summary))),
        *(_runs(snapshots) if snapshots else []),
        *_told([*(caveat for result in results for caveat in result.caveats), *told]),
    ]
    drawn: dict[str, Any] = {}
    for name, title in _CHARTS.items():
        chart = _chart(name, title, snapshots)
        if any(series["points"] for series in chart["series"]):  # a deployment may have nothing to measure on
            body += [f"<h2>{escape(title)}</h2>", figure(name, _CAPTIONS[name], chart)]
            drawn[name] = chart
    for result in results:
        body += ["<h2>Tables</h2>", *map(_result_table, result.tables)]
    for made in (made for result in results for made in result.charts):
        body += [f"<h2>{escape(made.title)}</h2>", figure(made.name, made.caption, made.chart)]
        drawn[made.name] = made.chart
    held = {split.title: split for split in (*splits, *(split for result in results for split in result.splits))}
    if held:
        body += ["<h2>Who holds what</h2>", *map(_split, held.values())]
    body += ["<h2>Settings</h2>", _settings(snapshots)] if snapshots else []
    return page("alidpfl: report", body, drawn)


def caveats(snapshot: RunSnapshot) -> list[str]:
    """What a reader must not overlook."""
    known = snapshot.facts()
    found = []
    if not snapshot.covers_everything:
        reasons = "; ".join(snapshot.uncovered) or "un-noised values were used or shown"
        found.append(f"ε does NOT cover this run: {reasons}.")
    if (weakness := (snapshot.summary or {}).get("weakness")) is not None:
        found.append(f"{weakness}.")
    if known["is_synthetic"]:
        found.append("The data are synthetic: drawn by a program, not measured anywhere.")
    if snapshot.missed_rounds:
        found.append(
            f"In {snapshot.missed_rounds} rounds too few clients answered: they are charged, and taught nothing."
        )
    if snapshot.is_seeded:
        found.append("A simulation with seeded noise: whoever knows the seed can subtract the noise.")
    if snapshot.can_go_on:
        found.append("The run is not finished.")
    return found


def _runs(snapshots: Sequence[RunSnapshot]) -> list[str]:
    head = ["run", "data", "method", "policy", "accuracy", "ε", "δ", "rounds", "steps", "ended by", "seconds"]
    rows = []
    for snapshot in snapshots:
        known = snapshot.facts()
        accuracy = "-" if known["accuracy"] is None else f"{known['accuracy']:.2f} %"
        epsilon = "-" if known["epsilon"] is None else rounded_up(known["epsilon"])
        mark = "" if snapshot.covers_everything else " (does not cover all)"
        seconds = "-" if known["seconds"] is None else f"{known['seconds']:.0f}"
        plain = (known[key] for key in ("delta", "rounds", "steps", "stop_reason"))
        names = (snapshot.name, known["dataset"], known["method"], known["policy"])
        rows.append([*map(_text, names), accuracy, epsilon + mark, *map(_text, plain), seconds])
    parts = [_headline(snapshots[0])] if len(snapshots) == 1 else []
    parts.append(table("Accuracy of the last round on the test set; ε of the client that spent most", head, rows))
    return parts


def _told(found: Sequence[str]) -> list[str]:
    items = "".join(f"<li>{escape(caveat)}</li>" for caveat in found)
    return [f'<h2>What to keep in mind</h2><ul class="caveats">{items}</ul>'] if found else []


def _headline(snapshot: RunSnapshot) -> str:
    known = snapshot.facts()
    shown = {
        "accuracy": "-" if known["accuracy"] is None else f"{known['accuracy']:.2f} %",
        "ε": "-" if known["epsilon"] is None else rounded_up(known["epsilon"]),
        "δ": _text(known["delta"]),
        "noise σ": _text(known["noise_multiplier"]),
        "rounds": _text(known["rounds"]),
        "local steps": _text(known["steps"]),
    }
    return facts(shown)


def _chart(name: str, title: str, snapshots: Sequence[RunSnapshot]) -> dict[str, Any]:
    series = []
    for snapshot in snapshots:
        values = {"accuracy": "accuracy", "steps": "local_steps", "epsilon": "epsilon"}
        points = [(record.number, getattr(record, values[name])) for record in snapshot.records]
        known = [[x, float(y)] for x, y in points if y is not None and abs(y) < float("inf")]
        series.append({"name": snapshot.name, "points": known, "dots": name == "accuracy"})
    return {"label": f"{title} by round", "x": "round", "y": title, "series": series}


def _split(split: Split) -> str:
    across, down, counts = "client", "class", split.counts
    if counts and len(counts[0]) > _MOST_COLUMNS:
        across, down, counts = down, across, list(zip(*counts, strict=True))
    most = max((count for row in counts for count in row), default=0) or 1
    head = "".join(f'<th scope="col">{place}</th>' for place in range(len(counts[0]) if counts else 0))
    lines = []
    for place, row in enumerate(counts):
        cells = "".join(f'<td style="--share: {count / most:.3f}">{count}</td>' for count in row)
        lines.append(f'<tr><th scope="row">{down} {place}</th>{cells}</tr>')
    caption = escape(f"{split.title}: records of each {down} (rows), by {across} (columns)")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table class="heat"><caption>{caption}'
        f'</caption><thead><tr><th scope="col">{across}</th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _result_table(made: ResultTable) -> str:
    note = f'<p class="faint">{escape(made.caption)}</p>' if made.caption else ""
    return table(made.title, made.head, made.rows) + note


def _settings(snapshots: Sequence[RunSnapshot]) -> str:
    configs = [snapshot.effective_settings() for snapshot in snapshots]
    keys = dict.fromkeys(key for config in configs for key in config)
    rows = [[key, *(_text(config.get(key)) for config in configs)] for key in keys]
    return table("Every setting of every run", ["setting", *(snapshot.name for snapshot in snapshots)], rows)


def _text(value: Any) -> str:
    return "-" if value is None else number(value)
