"""The paper's Fig. 4 and Fig. 5 as tables, from the runs of the grids; `alidpfl report results` draws them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from reproduction.grid import MOST_SEEDS, Cell, cells
from reproduction.report import ADAPTIVE, best_fixed
from reproduction.results import Result
from reproduction.tables import Table, markdown_lines

HEAD = """## The paper's figures

By the paper's accountant. `alidpfl report results -o report.html` draws them, and Fig. 1, whose figures are the rows
`fedavg_dp` above.

### τ of each round (Fig. 4)

The paper's rule (`ali_dpfl`) reads un-noised signals; `ours:ali` reads noised ones and keeps a pace.

"""
AGAINST = """
The paper's figure, as far as it can be read, has its rule at 2 to 3 where R_s = R_c/2 and at 3 to 5 where R_s = R_c/5,
in Table I's setting. Ours, of all seeds and data sets: {ranges}. So here the rule leaves much of R_c
unspent where the paper's spends it. Its τ hangs on what the paper does not state: C, how pixels are scaled, and the
smallest client's batch, which the split decides.
"""
BEST = """
### How often each fixed τ is best (Fig. 5)

Over data sets and columns of which all have been run, by the mean over the seeds that all have; at a tie the smallest
counts, and some wins are by two images. "Printed" is counted from the paper's own tables.

"""
_MOST_PIECES = 6
_DRAWN = ("R_s = R_c/2", "R_s = R_c/5")


def section(tables: Sequence[Table], known: Mapping[str, Result]) -> str:
    """Both, of all grids."""
    head = ["table", "data set", "column", "rule", "seed", "τ by round", "rounds", "steps"]
    sequences = [row for table in tables for row in _sequences(table, known)]
    if not sequences:
        return ""
    against = AGAINST.format(ranges=_ranges(tables, known))
    wins = {name: counts for table in tables for name, counts in _wins(table).items()}
    fixed = sorted({steps for counts in wins.values() for steps in counts})
    best = markdown_lines(
        ["table", *(f"τ = {steps}" for steps in fixed)],
        [[name, *(str(counts.get(steps, 0)) for steps in fixed)] for name, counts in wins.items()],
    )
    return HEAD + "\n".join([*markdown_lines(head, sequences), against + BEST + best[0], *best[1:], ""])


def _wins(table: Table) -> dict[str, dict[int, int]]:
    printed = [replace(e, by_seed={} if e.paper is None else {0: e.paper}) for e in table.entries]
    name = table.grid.name
    return {f"{name}, ours": best_fixed(table), f"{name}, printed": best_fixed(replace(table, entries=tuple(printed)))}


def _adaptive(table: Table, known: Mapping[str, Result]) -> Iterator[tuple[Cell, Result]]:
    for cell in cells(table.grid, seeds=MOST_SEEDS, accountants=table.grid.accountants[:1]):
        if cell.method in ADAPTIVE and (result := known.get(cell.key)) is not None:
            yield cell, result


def _sequences(table: Table, known: Mapping[str, Result]) -> list[list[str]]:
    found = []
    for cell, result in sorted(_adaptive(table, known), key=lambda pair: _place(table, pair[0])):
        place = [cell.grid, cell.dataset, cell.column, cell.method, str(cell.seed)]
        found.append([*place, told(result.local_steps), str(result.rounds), str(result.steps)])
    return found


def _place(table: Table, cell: Cell) -> tuple[int, int, str, int]:
    columns = [column.name for column in table.grid.columns]
    return table.grid.datasets.index(cell.dataset), columns.index(cell.column), cell.method, cell.seed


def _ranges(tables: Sequence[Table], known: Mapping[str, Result]) -> str:
    """Of τ by the paper's rule, in the columns of Table I that the paper draws."""
    found: dict[str, list[int]] = {}
    for table in tables:
        for cell, result in _adaptive(table, known):
            if table.grid.name == "small" and cell.method == ADAPTIVE[0]:
                found.setdefault(cell.column, []).extend(result.local_steps)
    drawn = {column: steps for column, steps in found.items() if column in _DRAWN}
    return ", ".join(f"{min(steps)} to {max(steps)} where {column}" for column, steps in drawn.items()) or "not run"


def told(local_steps: Sequence[int]) -> str:
    """2 (40 rounds), 3 (118 rounds); of sequences with many changes the range, the mean, and a few values."""
    pieces = [(steps, len(list(group))) for steps, group in groupby(local_steps)]
    if len(pieces) <= _MOST_PIECES:
        return ", ".join(f"{steps} ({count} round{'s' if count > 1 else ''})" for steps, count in pieces)
    places = [round(share * (len(local_steps) - 1) / 4) for share in range(5)]
    some = ", ".join(f"{local_steps[place]} in round {place + 1}" for place in places)
    mean = sum(local_steps) / len(local_steps)
    return f"{min(local_steps)} to {max(local_steps)}, mean {mean:.2f}: {some}"
