"""Is adaptivity worth it? `ali` and the paper's rule against `ratio` and the best fixed τ, by paired seeds.

In a cell all methods have the same split, first weights, batches and noise for a seed, so that differences are paired.
"""

import statistics
from collections.abc import Mapping

from alidpfl.reproduction.grid import MOST_SEEDS, Grid, cells
from alidpfl.reproduction.results import Result

HEAD = """## Is adaptivity worth it?

Differences in test accuracy to `ours:ratio`, which shares the budget out evenly and knows nothing of the data: mean
over the seeds that both have, and in how many of them the rule was better or worse (it may choose the same τ). "Best
fixed τ" is chosen after the fact, by these very accuracies: nobody can know it beforehand, so that it bounds any rule
that keeps τ fixed.
"""

_YARDSTICK, _FIXED = "ours:ratio", "fedavg_dp:tau="
_RULES = {"ours:ali": "`ali`", "ours:corrected": "`corrected`", "ali_dpfl": "paper's rule (un-noised)"}
Seeds = Mapping[int, float]


def section(grids: list[Grid], known: Mapping[str, Result]) -> str:
    """The tables of all grids, and how often each rule won."""
    rows, tally = [], {name: [0, 0, 0] for name in [*_RULES.values(), "best fixed τ"]}
    for grid in grids:
        for place, methods in _by_place(grid, known).items():
            if _YARDSTICK in methods:
                rows.append(_row(place, methods, tally))
    if not rows:
        return f"{HEAD}\nNo cell has been run yet.\n"
    head = ["table", "data set", "column", "accountant", "`ratio`", *tally]
    won = [
        f"{name}: better in {better}, worse in {worse} of {total} pairs"
        for name, (better, worse, total) in tally.items()
        if total
    ]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|", *rows]
    return "\n".join([HEAD, *lines, "", f"Over all of it, {'; '.join(won)}.", ""])


def _by_place(grid: Grid, known: Mapping[str, Result]) -> dict[tuple[str, ...], dict[str, dict[int, float]]]:
    """By (table, data set, column, accountant), method and seed: the accuracy."""
    found: dict[tuple[str, ...], dict[str, dict[int, float]]] = {}
    for cell in cells(grid, seeds=MOST_SEEDS):
        if (result := known.get(cell.key)) is not None:
            place = (cell.grid, cell.dataset, cell.column, cell.accountant)
            found.setdefault(place, {}).setdefault(cell.method, {})[cell.seed] = result.accuracy
    return found


def _row(place: tuple[str, ...], methods: Mapping[str, Seeds], tally: dict[str, list[int]]) -> str:
    yardstick = methods[_YARDSTICK]
    columns = [*place, f"{statistics.mean(yardstick.values()):.2f} (n = {len(yardstick)})"]
    for method, name in _RULES.items():
        columns.append(_against(methods.get(method, {}), yardstick, tally[name]))
    fixed = {
        name: seeds for name, seeds in methods.items() if name.startswith(_FIXED) and seeds.keys() >= yardstick.keys()
    }
    if not fixed:
        return f"| {' | '.join([*columns, '-'])} |"
    best = max(fixed, key=lambda name: statistics.mean(fixed[name][seed] for seed in yardstick))
    shown = _against(fixed[best], yardstick, tally["best fixed τ"])
    return f"| {' | '.join([*columns, f'τ = {best.removeprefix(_FIXED)}: {shown}'])} |"


def _against(seeds: Seeds, yardstick: Seeds, tally: list[int]) -> str:
    differences = [seeds[seed] - yardstick[seed] for seed in seeds.keys() & yardstick.keys()]
    if not differences:
        return "-"
    better, worse = sum(change > 0 for change in differences), sum(change < 0 for change in differences)
    for place, count in enumerate((better, worse, len(differences))):
        tally[place] += count
    return f"{statistics.mean(differences):+.2f} ({better} better, {worse} worse)"
