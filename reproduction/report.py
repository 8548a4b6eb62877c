"""The report page of a folder of results: its tables, and the paper's figures drawn from our runs."""

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
from reproduction.tables import Entry, Table, rows_by_dataset, seeds_of, shown, table_so_far

FIXED = "fedavg_dp:tau="
"""How the names of the rows with a fixed τ begin."""
ADAPTIVE = ("ali_dpfl", "ours:ali")
"""The rows with an adaptive τ: the paper's rule and ours."""
_DRAWN = (
    "Drawn from the runs of the tables above. Points are means over all seeds; curves over rounds show the first seed."
)
_BEST = "best.jsonl"
_NUMBERS = ("accuracy", "paper", "epsilon_allowed", "epsilon")  # the numbers of a line of that file


def results_report(folder: Path, own: Sequence[Grid] = ()) -> ResultReport:
    """Return the content of the report page for a folder of results.

    Args:
        folder: The folder that `reproduce` wrote.
        own: Grids of your own, shown in addition to the built-in grids.

    Raises:
        ConfigError: The folder has no result of these grids.
        DataError: A file of the folder is damaged.
    """
    grids = [*own, *map(load_grid, NAMES)]
    lines = {grid.name: lines_of(grid.name, folder) for grid in grids}
    if not any(path.is_file() for path in (*lines.values(), folder / STORE)):
        raise ConfigError(
            f"{folder} is neither a run nor a folder of results; give a folder with config.toml or *.jsonl"
        )
    made, charts, caveats = [], [], ["All runs were simulated on one machine, with seeded noise."]
    known = known_in(folder, lines)
    for grid in grids:
        if (table := table_so_far(grid, known)) is not None:
            made.append(table)
            caveats += _caveats(table)
            charts += list(_charts(table, known))
    splits, absent = splits_of(cell for table in made for cell in _run_cells(table, known))
    if absent:
        caveats.append(f"The splits of {', '.join(absent)} are not shown: these data cannot be read on this machine.")
    best = list(_best(folder / _BEST))
    if not made and not best:
        raise ConfigError(
            f"{folder} has no result of a built-in grid; for a grid of your own: alidpfl report {folder} mine.toml"
        )
    shown_files = {*(path.name for path in lines.values()), STORE, _BEST}
    rest = sorted(path.name for path in folder.iterdir() if path.name not in shown_files)
    if rest:
        caveats.append(f"Not shown here, but in {folder.name}: {', '.join(rest)}.")
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
    """Return the cells of the first seed that have a result. The search is left out: the paper has no figure of it."""
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
        every = Counter(cell.accountant for cell in cells(table.grid))  # includes data sets without a result
        for accountant, count in every.items():
            run = [entry for entry in table.entries if entry.accuracies and entry.accountant == accountant]
            rows.append([_short(table), accountant, f"{len(run)} of {count}", *_comparison(run)])
    head = ["table", "accountant", "cells run", "seeds per cell", "mean difference", "above the paper"]
    caption = "Difference: our accuracy minus the paper's, in points, over the cells that the paper has."
    return ResultTable(title="What has been run", caption=caption, head=head, rows=rows)


def _comparison(run: Sequence[Entry]) -> list[str]:
    """Return the number of seeds, the mean difference, and how many cells are above the paper."""
    if not run:
        return ["-"] * 3
    seeds = [len(entry.accuracies) for entry in run]
    several = f"{min(seeds)} to {max(seeds)}" if min(seeds) < max(seeds) else str(max(seeds))
    differences = [entry.difference for entry in run if entry.difference is not None]
    if not differences:
        return [several, "-", "-"]
    above = sum(difference > 0 for difference in differences)
    return [several, f"{statistics.mean(differences):+.2f}", f"{above} of {len(differences)}"]


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
        yield f"{_short(table)}: some settings for {', '.join(unsearched)} have not been searched."


def _best(path: Path) -> Iterator[ResultTable]:
    """Return the table of our recipes, from the file that `reproduction.experiments.best` writes."""
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
            raise DataError(
                f"line {row} of {path} is not covered by its epsilon; delete the line and run the recipe again"
            )
        found.setdefault(place, []).append(numbers)
    rows = []
    for place, runs in sorted(found.items(), key=lambda item: (item[0][2], item[1][0]["epsilon_allowed"])):
        ours, paper = statistics.mean(run["accuracy"] for run in runs), runs[0]["paper"]
        epsilon = f"{runs[0]['epsilon_allowed']:g}"
        rows.append(
            [*reversed(place), epsilon, f"{ours:.2f} ({seeds_of(len(runs))})", f"{paper:.2f}", f"{ours - paper:+.2f}"]
        )
    if rows:
        head = ["data", "R_s / R_c", "table", "ε", "ours, best recipe", "paper's ALI-DPFL", "difference"]
        caption = (
            "Test accuracy in %, at the ε and the rounds of the paper's cell. The models are other models than the "
            "paper's: softmax on fixed features, some of them learned on drawings (reproduction/recipes). We looked at "
            "seeds 0 to 2 on the test set after every version of a recipe, and stopped when a target was reached."
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
    caption = "First the settings of every cell, then those of each column and method. All others are defaults."
    return ResultTable(
        title=f"{grid.title}: settings", caption=caption, head=["setting, column or method", "value"], rows=rows
    )


def _best_fixed(table: Table) -> Iterator[ResultTable]:
    """Yield Fig. 5 as a table."""
    wins = {} if table.grid.name == SEARCH else best_fixed(table)
    if any(wins.values()):
        rows = [[f"τ = {steps}", str(count)] for steps, count in wins.items()]
        title = f"{table.grid.title}: how often each fixed τ is best (Fig. 5)"
        caption = "By the paper's accountant, over the seeds that all of them have. At a tie the smallest τ counts."
        yield ResultTable(title=title, caption=caption, head=["fixed τ", "cells"], rows=rows)


def best_fixed(table: Table) -> dict[int, int]:
    """Return how often each fixed τ is best, by the first accountant.

    Columns and data sets count only if all fixed τ have a result.
    """
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
    """Yield Fig. 1: accuracy against fixed τ, with a line for each column."""
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
    """Yield Fig. 4: τ of each round, for the first seed."""
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
    """Yield accuracy by round for the first seed, with a chart for each data set and column."""
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
    """Yield ε by round for the first seed, with a chart for each data set and column."""
    for dataset, column in dict.fromkeys((cell.dataset, cell.column) for cell in listed):
        drawn = [known[cell.key] for cell in listed if (cell.dataset, cell.column) == (dataset, column)]
        methods = [cell.method for cell in listed if (cell.dataset, cell.column) == (dataset, column)]
        every = math.ceil(max(result.rounds for result in drawn) / 16)
        series, missing = [], []
        for place, (method, result) in enumerate(zip(methods, drawn, strict=True)):
            if points := _epsilon_by_round(result, every):
                name = method if result.covers_everything else f"{method} *"
                series.append({"name": name, "points": points, "dots": True, "place": place})
            else:
                missing.append(method)
        if series:
            name = f"epsilon-{table.grid.name}-{dataset}-{_place(table, column)}"
            axes = {"x": "round", "y": "ε spent", **_budget(drawn)}
            made = _chart(table, name, f"ε spent, {dataset}, {column}", axes, series)
            yield replace(made, caption=_epsilon_caption(series, missing))


def _epsilon_by_round(result: Result, every: int) -> list[list[float]]:
    """Return [round, ε] for the first round, every so many rounds, and the last round.

    A result has the steps of every round and one noise multiplier. The list is empty if these do not give the ε that
    the run reported. That happens if the noise changed during the run, or if statistics were charged too.
    """
    try:
        rate, accountant = float(result.settings["privacy.sample_rate"]), str(result.settings["privacy.accountant"])
    except KeyError:  # an own grid may leave them to their defaults
        return []

    def spent(steps: int) -> float:
        run = SampledGaussian(sample_rate=rate, noise_multiplier=result.noise_multiplier, steps=steps)
        return epsilon_bound([run], result.delta, accountant)

    total = list(accumulate(result.local_steps))
    if not total or not math.isclose(spent(total[-1]), result.epsilon, rel_tol=1e-3):  # the accuracy of the fast bound
        return []
    rounds = sorted({1, *range(every, len(total), every), len(total)})
    return [[number, spent(total[number - 1])] for number in rounds]


def _budget(drawn: Sequence[Result]) -> dict[str, Any]:
    """Return a line at the budget, if all runs have the same."""
    given = {result.settings.get("privacy.epsilon") for result in drawn}
    epsilon = given.pop() if len(given) == 1 else None
    return {"limit": {"y": epsilon, "text": f"budget ε = {epsilon:g}"}} if isinstance(epsilon, int | float) else {}


def _epsilon_caption(series: Sequence[Mapping[str, Any]], missing: Sequence[str]) -> str:
    parts = ["First seed, by the accountant of the run, from its noise multiplier and the steps of every round."]
    if any(line["name"].endswith(" *") for line in series):
        parts.append("* ε of the steps only: it does not cover clients' values that were used without noise.")
    if missing:
        parts.append(f"Not drawn: {', '.join(missing)}. Their ε cannot be computed from the stored result.")
    return " ".join(parts)


def _place(table: Table, column: str) -> int:
    return [name.name for name in table.grid.columns].index(column)


def _chart(table: Table, name: str, what: str, axes: dict[str, Any], series: list[dict[str, Any]]) -> ResultChart:
    title = f"{_short(table)}: {what}"  # two tables may draw the same data set and column
    return ResultChart(name=name, title=title, caption=_DRAWN, chart={"label": title, **axes, "series": series})
