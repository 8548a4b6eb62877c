"""What the report page shows of a grid: its tables and the paper's figures drawn from the runs themselves."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from alidpfl.reproduction.grid import MOST_SEEDS, SEARCH, Cell, Grid, cells
from alidpfl.reproduction.results import Result, Results
from alidpfl.reproduction.tables import Table, make_table, rows_by_dataset, shown
from alidpfl.views.report_page import ResultChart, ResultTable

_FIXED = "fedavg_dp:tau="


def grid_report(grid: Grid, results: Results) -> tuple[list[ResultTable], list[ResultChart]]:
    """Everything of one grid; nothing where it has no result."""
    known, every = results.all(), list(cells(grid, seeds=MOST_SEEDS))
    listed = [cell for cell in every if cell.key in known]
    if not listed:
        return [], []
    datasets = {cell.dataset for cell in listed}
    table = make_table(grid, (cell for cell in every if cell.dataset in datasets), known)
    if grid.name == SEARCH:  # how the settings were chosen: no figure of the paper's
        return list(_tables(table)), []
    tables = [*_tables(table), *_best_fixed(table)]
    return tables, [*_fixed_charts(table), *_sequence_charts(grid, listed, known)]


def _tables(table: Table) -> Iterator[ResultTable]:
    head = ["method", "accountant", *(column.name for column in table.grid.columns)]
    for dataset, rows in rows_by_dataset(table).items():
        cells_of = [[*names, *(shown(entry) for entry in entries)] for names, entries in rows]
        yield ResultTable(title=f"{table.grid.title}: {dataset}", caption=table.caption, head=head, rows=cells_of)


def _best_fixed(table: Table) -> Iterator[ResultTable]:
    """Fig. 5: how often each fixed τ is best, over the columns and data sets that were run."""
    wins: Counter[str] = Counter()
    places = {(e.dataset, e.column, e.accountant) for e in table.entries}
    for place in places:
        fixed = {
            e.method.removeprefix(_FIXED): e.mean
            for e in table.entries
            if e.method.startswith(_FIXED) and (e.dataset, e.column, e.accountant) == place and e.mean is not None
        }
        if len(fixed) > 1:
            wins[max(fixed, key=lambda steps: fixed[steps] or 0.0)] += 1
    if wins:
        rows = [[f"τ = {steps}", str(wins[steps])] for steps in sorted(wins, key=int)]
        title = f"{table.grid.title}: how often each fixed τ is best (Fig. 5)"
        yield ResultTable(title=title, caption="", head=["fixed τ", "cells"], rows=rows)


def _fixed_charts(table: Table) -> Iterator[ResultChart]:
    """Fig. 1: accuracy against fixed τ, a line for each column."""
    for dataset in dict.fromkeys(e.dataset for e in table.entries):
        series = []
        for column in table.grid.columns:
            points = sorted(
                [float(e.method.removeprefix(_FIXED)), e.mean]
                for e in table.entries
                if e.dataset == dataset
                and e.column == column.name
                and e.accountant == table.grid.accountants[0]
                and e.method.startswith(_FIXED)
                and e.mean is not None
            )
            if len(points) > 1:
                series.append({"name": column.name, "points": points, "dots": True})
        if series:
            chart = {"label": "accuracy against fixed local steps", "x": "fixed τ", "y": "test accuracy (%)"}
            yield _chart(f"fixed-{table.grid.name}-{dataset}", f"Fixed τ, {dataset} (Fig. 1)", chart, series)


def _sequence_charts(grid: Grid, listed: Sequence[Cell], known: Mapping[str, Result]) -> Iterator[ResultChart]:
    """Fig. 4: τ of each round, of seed 0."""
    for dataset in dict.fromkeys(cell.dataset for cell in listed):
        series = []
        for cell in listed:
            adaptive = cell.method in ("ali_dpfl", "ours:ali") and cell.accountant == grid.accountants[0]
            if not adaptive or cell.dataset != dataset or cell.seed != 0:
                continue
            points = [[number, float(steps)] for number, steps in enumerate(known[cell.key].local_steps, start=1)]
            series.append({"name": f"{cell.method}, {cell.column}", "points": points})
        if series:
            chart = {"label": "local steps of each round", "x": "round", "y": "local steps τ"}
            yield _chart(f"sequence-{grid.name}-{dataset}", f"τ of ALI-DPFL, {dataset} (Fig. 4)", chart, series)


def _chart(name: str, title: str, chart: dict[str, Any], series: list[dict[str, Any]]) -> ResultChart:
    caption = "Drawn from the runs of the tables above, which tell how many seeds there are."
    return ResultChart(name=name, title=title, caption=caption, chart={**chart, "series": series})
