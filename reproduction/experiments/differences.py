"""Where ours and the paper's figures differ: by data set and column, over the paper's methods."""

import statistics
from collections.abc import Mapping, Sequence

from reproduction.tables import Entry, Table, markdown_lines

HEAD = """## Where ours and the paper differ

Ours minus the paper's, in points, over the methods that both have by the paper's accountant: all of its eight but Adap
DP-FL, whose σ follows outputs, so that only `rdp` with a filter holds, which lets it take more steps. "Order":
Spearman's correlation of the two orders of these methods, 1 where they agree. Over the seeds that all of ours in the
row have.

"""


def section(tables: Sequence[Table], tried: str, figures: Mapping[str, str]) -> str:
    """One table of all grids, and what was tried; `figures` fill the braces in that."""
    told = ["methods", "mean", "least", "most", "best of ours", "best of the paper's", "order"]
    rows = [row for table in tables for row in _rows(table)]
    if not rows:
        return f"{HEAD}No cell has been run yet.\n"
    lines = markdown_lines(["table", "data set", "column", *told], rows)
    return HEAD + "\n".join(lines) + "\n\n" + tried.format(**figures)


def in_short(tables: Sequence[Table]) -> str:
    """How many of the paper's figures ours reach, by data set."""
    by_dataset: dict[str, list[float]] = {}
    for entry in (entry for table in tables for entry in _comparable(table)):
        if entry.difference is not None:
            by_dataset.setdefault(entry.dataset, []).append(entry.difference)
    told = []
    for dataset, changes in by_dataset.items():
        reached, mean = sum(change >= 0 for change in changes), statistics.mean(changes)
        told.append(f"{dataset} {reached} of {len(changes)} ({mean:+.2f} on average)")
    return ", ".join(told) or "no cell has been run yet"


def _comparable(table: Table) -> list[Entry]:
    """What both have, by the paper's accountant."""
    return [e for e in table.entries if e.paper is not None and e.accountant == table.grid.accountants[0]]


def _rows(table: Table) -> list[list[str]]:
    by_place: dict[tuple[str, str], list[Entry]] = {}
    for entry in _comparable(table):
        by_place.setdefault((entry.dataset, entry.column), []).append(entry)
    return [
        _row((table.grid.name, *place), entries)
        for place, entries in by_place.items()
        if any(entry.accuracies for entry in entries)
    ]


def _row(place: tuple[str, ...], entries: Sequence[Entry]) -> list[str]:
    """Of what has been run, over the seeds that all have; the paper's best is the best of all its figures."""
    papers = {entry.method: entry.paper for entry in entries if entry.paper is not None}
    run = [entry for entry in entries if entry.accuracies]
    paired = set.intersection(*(set(entry.by_seed) for entry in run))
    ours = {entry.method: entry.mean_over(paired) for entry in run} if paired else {}
    changes = [mean - papers[method] for method, mean in ours.items()]
    shown = [f"{of(changes):+.2f}" if changes else "-" for of in (statistics.mean, min, max)]
    order = _agreement(list(ours.values()), [papers[method] for method in ours])
    return [*place, f"{len(run)} of {len(papers)}", *shown, _best(ours), _best(papers), order]


def _best(accuracies: dict[str, float]) -> str:
    """All that share the first place."""
    return ", ".join(name for name, accuracy in accuracies.items() if accuracy == max(accuracies.values())) or "-"


def _agreement(ours: Sequence[float], papers: Sequence[float]) -> str:
    if min(len(set(ours)), len(set(papers))) < 2:  # noqa: PLR2004 - no order
        return "-"
    return f"{statistics.correlation(_ranks(ours), _ranks(papers)):+.2f}"


def _ranks(values: Sequence[float]) -> list[float]:
    """From 0; equal values share the mean of their ranks."""
    return [sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]
