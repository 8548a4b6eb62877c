"""What the report page shows of a folder of results: its tables and the paper's figures, drawn from the runs."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from alidpfl.errors import ConfigError, DataError
from alidpfl.privacy import SampledGaussian, epsilon_bound
from alidpfl.reporting.report_page import ResultChart, ResultReport, ResultTable
from alidpfl.reporting.tables import number
from alidpfl.store.files import parse_json, read_bytes
from reproduction.grid import NAMES, SEARCH, Cell, Grid, cells, load_grid
from reproduction.results import STORE, Result, known_in, lines_of
from reproduction.splits import splits_of
from reproduction.tables import Entry, Table, rows_by_dataset, shown, table_so_far

FIXED = "fedavg_dp:tau="
"""How the rows of a fixed τ begin."""
ADAPTIVE = ("ali_dpfl", "ours:ali")
"""Rows whose τ is drawn by round: the paper's rule, and ours."""
_DRAWN = (
    "Drawn from the runs of the tables above: means over the seeds there are; curves over rounds are of the first seed."
)
_BEST = "best.jsonl"
_NUMBERS = ("accuracy", "paper", "epsilon_allowed", "epsilon")  # of a line of the latter


def results_report(folder: Path, own: Sequence[Grid] = ()) -> ResultReport:
    """Everything that a folder of `reproduce` holds of the grids that ship and of `own`; what is left out is named."""
    grids = [*own, *map(load_grid, NAMES)]
    lines = {grid.name: lines_of(grid.name, folder) for grid in grids}
    if not any(path.is_file() for path in (*lines.values(), folder / STORE)):
        raise ConfigError(
            f"{folder} is neither a run nor a folder of results; give a folder with config.toml or *.jsonl"
        )
    made, charts, caveats = [], [], ["All of it is simulated on one machine, with seeded noise."]
    known = known_in(folder, lines)
    for grid in grids:
        if (table := table_so_far(grid, known)) is not None:
            made.append(table)
            caveats += _caveats(table)
            charts += list(_charts(table, known))
    splits, absent = splits_of(cell for table in made for cell in _run_cells(table, known))
    if absent:
        caveats.append(
            f"Who holds what is not shown of {', '.join(absent)}: these data cannot be read on this machine."
        )
    best = list(_best(folder / _BEST))
    if not made and not best:
        raise ConfigError(
            f"{folder} has no result of the grids that ship; of one of your own: alidpfl report {folder} mine.toml"
        )
    shown_files = {*(path.name for path in lines.values()), STORE, _BEST}
    rest = sorted(path.name for path in folder.iterdir() if path.name not in shown_files)
    if rest:
        caveats.append(f"Also in {folder.name}, and not shown here: {', '.join(rest)}.")
    return ResultReport(
        summary=_summary(made),
        caveats=caveats,
        tables=[
            *(part for table in made for part in (*_tables(table), *_best_fixed(table), _settings(table.grid))),
            *best,
        ],
        charts=charts,
        splits=splits,
    )


def _run_cells(table: Table, known: Mapping[str, Result]) -> list[Cell]:
    """Of the first seed; none of the search for settings, which is no figure of the paper's."""
    return [] if table.grid.name == SEARCH else [cell for cell in cells(table.grid) if cell.key in known]


def _charts(table: Table, known: Mapping[str, Result]) -> Iterator[ResultChart]:
    if table.grid.name == SEARCH:
        return
    first = {method.name: (method.accountants or table.grid.accountants)[0] for method in table.grid.methods}
    run = [cell for cell in _run_cells(table, known) if cell.accountant == first[cell.method]]
    yield from _fixed_charts(table)
    yield from _sequence_charts(table, run, known)
    yield from _accuracy_charts(table, run, known)
    yield from _epsilon_charts(table, run, known)


def _summary(made: Sequence[Table]) -> ResultTable:
    rows = []
    for table in made:
        every = Counter(cell.accountant for cell in cells(table.grid))  # with data sets that have no result yet
        for accountant, count in every.items():
            run = [entry for entry in table.entries if entry.accuracies and entry.accountant == accountant]
            rows.append([_short(table), accountant, f"{len(run)} of {count}", *_compared(run)])
    head = ["table", "accountant", "cells run", "seeds a cell", "mean difference", "above the paper's"]
    caption = "Difference: ours minus the paper's accuracy in %, over the cells for which it prints a figure."
    return ResultTable(title="What has been run", caption=caption, head=head, rows=rows)


def _compared(run: Sequence[Entry]) -> list[str]:
    """Seeds, mean difference, how many are above the paper's."""
    if not run:
        return ["-"] * 3
    seeds = [len(entry.accuracies) for entry in run]
    several = f"{min(seeds)} to {max(seeds)}" if min(seeds) < max(seeds) else str(max(seeds))
    beside = [entry.difference for entry in run if entry.difference is not None]
    if not beside:
        return [several, "-", "-"]
    above = sum(difference > 0 for difference in beside)
    return [several, f"{statistics.mean(beside):+.2f}", f"{above} of {len(beside)}"]


def _short(table: Table) -> str:
    return table.grid.title.split(":")[0]


def _caveats(table: Table) -> Iterator[str]:
    run = [entry for entry in table.entries if entry.accuracies]
    if table.grid.name == SEARCH:
        return
    if uncovered := sorted({entry.method for entry in run if not entry.covered}):
        yield f"{_short(table)}: ε does NOT cover {', '.join(uncovered)}: clients' values were used without noise."
    if single := sum(len(entry.accuracies) == 1 for entry in run):
        yield f"{_short(table)}: {single} of {len(run)} cells have one seed: small differences may be chance."
    unsearched = sorted({e.dataset for e in run if e.method not in table.grid.tuned.get(e.dataset, {})})
    if unsearched:
        yield f"{_short(table)}: not all settings for {', '.join(unsearched)} have been searched for."


def _best(path: Path) -> Iterator[ResultTable]:
    """What reproduction/experiments/best.py found: other models and settings than the paper's, at its ε and rounds."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row, line in enumerate((read_bytes(path) or b"").splitlines(), start=1):
        try:
            run = parse_json(line)
            place = (run["table"], run["ratio"], run["dataset"])
            numbers = {name: float(run[name]) for name in _NUMBERS}
            is_private = run["covers_everything"] is True and numbers["epsilon"] <= numbers["epsilon_allowed"]
        except (ValueError, KeyError, TypeError):
            raise DataError(f"line {row} of {path} is not a result; restore the file or delete the line") from None
        if not is_private:
            raise DataError(f"line {row} of {path} is not covered by its ε; delete the line and run the recipe again")
        found.setdefault(place, []).append(numbers)
    rows = []
    for place, runs in sorted(found.items(), key=lambda item: (item[0][2], item[1][0]["epsilon_allowed"])):
        ours, paper = statistics.mean(run["accuracy"] for run in runs), runs[0]["paper"]
        epsilon = f"{runs[0]['epsilon_allowed']:g}"
        rows.append(
            [*reversed(place), epsilon, f"{ours:.2f} (n = {len(runs)})", f"{paper:.2f}", f"{ours - paper:+.2f}"]
        )
    if rows:
        head = ["data", "R_s / R_c", "table", "ε", "ours, best recipe", "paper's ALI-DPFL", "difference"]
        caption = (
            "Test accuracy in %, at the ε and the rounds of the paper's cell, by other models than the paper's: "
            "softmax on fixed features, some of them learnt on drawings (recipes/). Seeds 0 to 2 were looked at on the "
            "test set after every version of a recipe, and work went on until a bar was passed."
        )
        yield ResultTable(title="Beyond the paper", caption=caption, head=head, rows=rows)


def _tables(table: Table) -> Iterator[ResultTable]:
    head = ["method", "accountant", *(column.name for column in table.grid.columns)]
    for dataset, rows in rows_by_dataset(table).items():
        cells_of = [[*names, *(shown(entry) for entry in entries)] for names, entries in rows]
        caption = replace(table, entries=tuple(e for e in table.entries if e.dataset == dataset)).caption
        yield ResultTable(title=f"{table.grid.title}: {dataset}", caption=caption, head=head, rows=cells_of)


def _settings(grid: Grid) -> ResultTable:
    rows = [[name, number(value)] for name, value in grid.settings.items()]
    parts = [(column.name, column.settings) for column in grid.columns]
    parts += [(method.name, method.settings | method.own) for method in grid.methods]
    rows += [[name, ", ".join(f"{key} = {number(value)}" for key, value in chosen.items())] for name, chosen in parts]
    caption = "Of every cell, then by column and by method; what is not named is told above, or at its default."
    return ResultTable(title=f"{grid.title}: settings", caption=caption, head=["what", "settings"], rows=rows)


def _best_fixed(table: Table) -> Iterator[ResultTable]:
    """Fig. 5, as a table."""
    wins = {} if table.grid.name == SEARCH else best_fixed(table)
    if any(wins.values()):
        rows = [[f"τ = {steps}", str(count)] for steps, count in wins.items()]
        title = f"{table.grid.title}: how often each fixed τ is best (Fig. 5)"
        caption = "By the paper's accountant, over the seeds that all of them have; at a tie the smallest counts."
        yield ResultTable(title=title, caption=caption, head=["fixed τ", "cells"], rows=rows)


def best_fixed(table: Table) -> dict[int, int]:
    """How often each fixed τ is best, over the columns and data sets that have all of them by the first accountant."""
    places: dict[tuple[str, str], dict[int, Entry]] = {}
    for e in table.entries:
        if e.method.startswith(FIXED) and e.accountant == table.grid.accountants[0]:
            places.setdefault((e.dataset, e.column), {})[int(e.method.removeprefix(FIXED))] = e
    wins = dict.fromkeys(sorted({steps for fixed in places.values() for steps in fixed}), 0)
    for fixed in places.values():
        paired = set.intersection(*(set(entry.by_seed) for entry in fixed.values()))
        if paired and len(fixed) == len(wins):
            wins[max(sorted(fixed), key=lambda steps: fixed[steps].mean_over(paired))] += 1
    return wins


def _fixed_charts(table: Table) -> Iterator[ResultChart]:
    """Fig. 1: accuracy against fixed τ, a line for each column."""
    for dataset in dict.fromkeys(e.dataset for e in table.entries):
        series = []
        for column in table.grid.columns:
            points = sorted(
                [float(e.method.removeprefix(FIXED)), e.mean]
                for e in table.entries
                if e.dataset == dataset
                and e.column == column.name
                and e.accountant == table.grid.accountants[0]
                and e.method.startswith(FIXED)
                and e.mean is not None
            )
            if len(points) > 1:
                series.append({"name": column.name, "points": points, "dots": True})
        if series:
            axes = {"x": "fixed τ", "y": "test accuracy (%)"}
            yield _chart(table, f"fixed-{table.grid.name}-{dataset}", f"fixed τ, {dataset} (Fig. 1)", axes, series)


def _sequence_charts(table: Table, listed: Sequence[Cell], known: Mapping[str, Result]) -> Iterator[ResultChart]:
    """Fig. 4: τ of each round, of the first seed."""
    for dataset in dict.fromkeys(cell.dataset for cell in listed):
        series = []
        for cell in listed:
            if cell.method not in ADAPTIVE or cell.dataset != dataset:
                continue
            points = [[number, float(steps)] for number, steps in enumerate(known[cell.key].local_steps, start=1)]
            series.append({"name": f"{cell.method}, {cell.column}", "points": points})
        if series:
            axes = {"x": "round", "y": "local steps τ"}
            name = f"sequence-{table.grid.name}-{dataset}"
            yield _chart(table, name, f"τ of ALI-DPFL, {dataset} (Fig. 4)", axes, series)


def _accuracy_charts(table: Table, listed: Sequence[Cell], known: Mapping[str, Result]) -> Iterator[ResultChart]:
    """Accuracy by round, of the first seed: a drawing for each data set and column."""
    for dataset, column in dict.fromkeys((cell.dataset, cell.column) for cell in listed):
        series = [
            {"name": cell.method, "points": [list(point) for point in known[cell.key].accuracies], "dots": True}
            for cell in listed
            if (cell.dataset, cell.column) == (dataset, column)
        ]
        name = f"accuracy-{table.grid.name}-{dataset}-{_place(table, column)}"
        axes = {"x": "round", "y": "test accuracy (%)"}
        yield _chart(table, name, f"accuracy, {dataset}, {column}", axes, series)


def _epsilon_charts(table: Table, listed: Sequence[Cell], known: Mapping[str, Result]) -> Iterator[ResultChart]:
    """ε by round, of the first seed: a drawing for each data set and column."""
    for dataset, column in dict.fromkeys((cell.dataset, cell.column) for cell in listed):
        drawn = [known[cell.key] for cell in listed if (cell.dataset, cell.column) == (dataset, column)]
        methods = [cell.method for cell in listed if (cell.dataset, cell.column) == (dataset, column)]
        every = math.ceil(max(result.rounds for result in drawn) / 16)
        series, untold = [], []
        for place, (method, result) in enumerate(zip(methods, drawn, strict=True)):
            if points := _epsilon_by_round(result, every):
                name = method if result.covers_everything else f"{method} *"
                series.append({"name": name, "points": points, "dots": True, "place": place})
            else:
                untold.append(method)
        if series:
            name = f"epsilon-{table.grid.name}-{dataset}-{_place(table, column)}"
            axes = {"x": "round", "y": "ε spent", **_budget(drawn)}
            made = _chart(table, name, f"ε spent, {dataset}, {column}", axes, series)
            yield replace(made, caption=_epsilon_caption(series, untold))


def _epsilon_by_round(result: Result, every: int) -> list[list[float]]:
    """[round, ε] after the first, so many more, and the last; empty where what is kept of the run does not tell it.

    Kept are the steps of every round, and one σ. Where that does not come to the ε which the run itself reported, its
    noise changed on the way, or its statistics were charged too.
    """
    try:
        rate, accountant = float(result.settings["privacy.sample_rate"]), str(result.settings["privacy.accountant"])
    except KeyError:  # left to their defaults, in a grid of one's own
        return []

    def spent(steps: int) -> float:
        run = SampledGaussian(sample_rate=rate, noise_multiplier=result.noise_multiplier, steps=steps)
        return epsilon_bound([run], result.delta, accountant)

    total = list(accumulate(result.local_steps))
    if not total or not math.isclose(spent(total[-1]), result.epsilon, rel_tol=1e-3):  # as near as the quick bound is
        return []
    rounds = sorted({1, *range(every, len(total), every), len(total)})
    return [[number, spent(total[number - 1])] for number in rounds]


def _budget(drawn: Sequence[Result]) -> dict[str, Any]:
    """A line at the ε that all were given."""
    given = {result.settings.get("privacy.epsilon") for result in drawn}
    epsilon = given.pop() if len(given) == 1 else None
    return {"limit": {"y": epsilon, "text": f"budget ε = {epsilon:g}"}} if isinstance(epsilon, int | float) else {}


def _epsilon_caption(series: Sequence[Mapping[str, Any]], untold: Sequence[str]) -> str:
    parts = ["Of the first seed, by the accountant of the run, from its σ and the steps of every round."]
    if any(line["name"].endswith(" *") for line in series):
        parts.append("* of its steps only: clients' values were used without noise, which ε does not cover.")
    if untold:
        parts.append(f"Not drawn: {', '.join(untold)}, whose ε does not follow from what is kept of the run.")
    return " ".join(parts)


def _place(table: Table, column: str) -> int:
    return [name.name for name in table.grid.columns].index(column)


def _chart(table: Table, name: str, what: str, axes: dict[str, Any], series: list[dict[str, Any]]) -> ResultChart:
    title = f"{_short(table)}: {what}"  # two tables may have a drawing of the same data set and column
    return ResultChart(name=name, title=title, caption=_DRAWN, chart={"label": title, **axes, "series": series})
