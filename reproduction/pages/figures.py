"""The paper's Fig. 4 and Fig. 5 as tables. `alidpfl report reproduction/results` draws them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from reproduction.grid import MOST_SEEDS, Cell, cells
from reproduction.pages.sources import Sources
from reproduction.report import ADAPTIVE, best_fixed
from reproduction.results import Result
from reproduction.tables import Table, as_markdown, markdown_lines

_MOST_PIECES = 6
_DRAWN = ("R_s = R_c/2", "R_s = R_c/5")
"""The columns of Table I that the paper draws."""


def blocks(sources: Sources) -> dict[str, str]:
    """Return the generated parts of the page with the paper's tables and figures."""
    head = ["table", "data set", "column", "policy", "seed", "τ by round", "rounds", "steps"]
    sequences = [row for table in sources.tables for row in _sequences(table, sources.known)]
    wins = {name: counts for table in sources.tables for name, counts in _wins(table).items()}
    fixed = sorted({steps for counts in wins.values() for steps in counts})
    best = [[name, *(str(counts.get(steps, 0)) for steps in fixed)] for name, counts in wins.items()]
    return {
        "paper_tables": "\n".join(as_markdown(table).replace("### ", "## ", 1) for table in sources.tables),
        "sequences": "\n".join(markdown_lines(head, sequences)),
        "step_ranges": step_ranges(sources.tables, sources.known),
        "best_fixed": "\n".join(markdown_lines(["table", *(f"τ = {steps}" for steps in fixed)], best)),
    }


def step_ranges(tables: Sequence[Table], known: Mapping[str, Result]) -> str:
    """Return the range of τ by the paper's policy, in the columns of Table I that the paper draws."""
    found: dict[str, list[int]] = {}
    for table in tables:
        for cell, result in _adaptive(table, known):
            if table.grid.name == "small" and cell.method == ADAPTIVE[0] and cell.column in _DRAWN:
                found.setdefault(cell.column, []).extend(result.local_steps)
    return ", ".join(f"{min(steps)} to {max(steps)} at {column}" for column, steps in found.items()) or "not run"


def sequence_text(local_steps: Sequence[int]) -> str:
    """Return the τ of all rounds as text.

    Sequences with many changes are shortened to their range, their mean and a few values.

    >>> sequence_text([2, 2, 3])
    '2 (2 rounds), 3 (1 round)'
    """
    pieces = [(steps, len(list(group))) for steps, group in groupby(local_steps)]
    if len(pieces) <= _MOST_PIECES:
        return ", ".join(f"{steps} ({count} round{'s' if count > 1 else ''})" for steps, count in pieces)
    places = [round(share * (len(local_steps) - 1) / 4) for share in range(5)]
    some = ", ".join(f"{local_steps[place]} in round {place + 1}" for place in places)
    mean = sum(local_steps) / len(local_steps)
    return f"{min(local_steps)} to {max(local_steps)}, mean {mean:.2f}: {some}"


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
        found.append([*place, sequence_text(result.local_steps), str(result.rounds), str(result.steps)])
    return found


def _place(table: Table, cell: Cell) -> tuple[int, int, str, int]:
    columns = [column.name for column in table.grid.columns]
    return table.grid.datasets.index(cell.dataset), columns.index(cell.column), cell.method, cell.seed
