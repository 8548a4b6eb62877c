"""Where ours and the paper's figures differ: by data set and column, over the paper's eight methods."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from alidpfl.reproduction.tables import Entry, Table

HEAD = """## Where ours and the paper differ

Ours minus the paper's, in points, over the methods that both have, by the paper's accountant (Adap DP-FL: `rdp`, its σ
depends on outputs). "Order": Spearman's correlation of the two orders of the methods, 1 where they agree.

"""
_PAPERS_ACCOUNTANTS = ("rdp-paper", "rdp")


def section(tables: Sequence[Table], tried: Path) -> str:
    """One table of all grids, and what was tried."""
    head = ["table", "data set", "column", "methods", "mean", "least", "most", "best: ours, paper's", "order"]
    rows = [row for table in tables for row in _rows(table)]
    if not rows:
        return f"{HEAD}No cell has been run yet.\n"
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|", *rows]
    return HEAD + "\n".join(lines) + "\n\n" + tried.read_text()


def _rows(table: Table) -> list[str]:
    by_place: dict[tuple[str, str], list[Entry]] = {}
    for entry in table.entries:
        if entry.difference is not None and entry.accountant in _PAPERS_ACCOUNTANTS:
            by_place.setdefault((entry.dataset, entry.column), []).append(entry)
    return [_row((table.grid.name, *place), entries) for place, entries in by_place.items()]


def _row(place: tuple[str, ...], entries: Sequence[Entry]) -> str:
    ours, papers = [entry.mean or 0.0 for entry in entries], [entry.paper or 0.0 for entry in entries]
    differences = [own - papers_own for own, papers_own in zip(ours, papers, strict=True)]
    shown = [f"{value:+.2f}" for value in (statistics.mean(differences), min(differences), max(differences))]
    best = ", ".join(entries[values.index(max(values))].method for values in (ours, papers))
    return f"| {' | '.join([*place, str(len(entries)), *shown, best, _agreement(ours, papers)])} |"


def _agreement(ours: Sequence[float], papers: Sequence[float]) -> str:
    if 1 in (len(set(ours)), len(set(papers))):  # no order
        return "-"
    return f"{statistics.correlation(_ranks(ours), _ranks(papers)):+.2f}"


def _ranks(values: Sequence[float]) -> list[float]:
    """From 0; equal values share the mean of their ranks."""
    return [sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]
