"""The paper's Fig. 4 and Fig. 5 as tables, from the runs of the grids; `alidpfl report results` draws them."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from alidpfl.reproduction.grid import cells
from alidpfl.reproduction.report import ADAPTIVE, best_fixed
from alidpfl.reproduction.results import Result
from alidpfl.reproduction.tables import Table, markdown_lines

HEAD = """## The paper's figures

By the paper's accountant. `alidpfl report results -o report.html` draws them, and Fig. 1, whose figures are the rows
`fedavg_dp` above.

### τ of each round (Fig. 4)

Seed 0. The paper's rule (`ali_dpfl`) reads un-noised signals; `ours:ali` reads noised ones and keeps a pace.

"""
BEST = """
### How often each fixed τ is best (Fig. 5)

Over data sets and columns of which all have been run; at a tie the smallest counts.

"""
_MOST_PIECES = 6


def section(tables: Sequence[Table], known: Mapping[str, Result]) -> str:
    """Both, of all grids."""
    head = ["table", "data set", "column", "rule", "τ by round", "rounds", "steps"]
    sequences = [row for table in tables for row in _sequences(table, known)]
    if not sequences:
        return ""
    wins = {table.grid.name: best_fixed(table) for table in tables}
    fixed = sorted({steps for counts in wins.values() for steps in counts})
    best = markdown_lines(
        ["table", *(f"τ = {steps}" for steps in fixed)],
        [[name, *(str(counts.get(steps, 0)) for steps in fixed)] for name, counts in wins.items()],
    )
    return HEAD + "\n".join([*markdown_lines(head, sequences), BEST + best[0], *best[1:], ""])


def _sequences(table: Table, known: Mapping[str, Result]) -> list[list[str]]:
    found = []
    for cell in cells(table.grid, accountants=table.grid.accountants[:1]):
        if cell.method in ADAPTIVE and (result := known.get(cell.key)) is not None:
            place = [cell.grid, cell.dataset, cell.column, cell.method]
            found.append([*place, told(result.local_steps), str(result.rounds), str(result.steps)])
    return found


def told(local_steps: Sequence[int]) -> str:
    """2 (40 rounds), 3 (118 rounds); of sequences with many changes the range, the mean, and a few values."""
    pieces = [(steps, len(list(group))) for steps, group in groupby(local_steps)]
    if len(pieces) <= _MOST_PIECES:
        return ", ".join(f"{steps} ({count} round{'s' if count > 1 else ''})" for steps, count in pieces)
    places = [round(share * (len(local_steps) - 1) / 4) for share in range(5)]
    some = ", ".join(f"{local_steps[place]} in round {place + 1}" for place in places)
    mean = sum(local_steps) / len(local_steps)
    return f"{min(local_steps)} to {max(local_steps)}, mean {mean:.2f}: {some}"
