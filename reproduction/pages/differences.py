"""Differences between our runs and the paper's figures, and the attempts to explain them."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from alidpfl.privacy import PrivacyBudget, max_steps
from reproduction import paper
from reproduction.grid import Grid, cells
from reproduction.pages.sources import DATASETS, HEADLINE, Sources
from reproduction.results import Result
from reproduction.tables import Entry, Table, markdown_lines, seeds_of

_NOT_RUN = "not run"
_SCARCE = "R_s = 2 R_c"
_MIDDLE = {"method.clip_norm": 1.0, "method.learning_rate": 1.0}
"""The point of the search with neighbours on all sides. The other points are at an edge."""
Point = dict[str, Any]


def blocks(sources: Sources) -> dict[str, str]:
    """Return the generated parts of the pages about differences from the paper."""
    ali = sources.entry("mnist", HEADLINE, "ours:ali", "rdp-paper")
    adap = sources.entry("mnist", HEADLINE, "adap_dpfl", "rdp")
    table_1 = [entry for table in sources.tables if table.grid.name == "small" for entry in table.entries]
    edges, searches = at_the_edge(sources.grids[0])
    return {
        "tables_run": _tables_run(sources),
        "reached_by_dataset": "\n".join(reached_by_dataset(sources.tables)),
        "reached": "\n".join(reached(sources.tables)),
        "middle_half": _middle_half(sources.tables),
        "differences": "\n".join(_table(sources.tables)),
        "searched": _best(sources, "mnist", lambda point: "data.pixel_range" not in point),
        "bytes": _best(sources, "mnist", lambda point: point.get("data.pixel_range") == [0.0, 255.0]),
        "ali": _NOT_RUN if ali is None else f"{ali.mean:.2f} % ({seeds_of(len(ali.by_seed))})",
        **{f"quiet_{clip_norm:g}": _without_noise(sources, clip_norm) for clip_norm in (1.0, 10.0, 100.0)},
        "quiet_small_step": _best(sources, "mnist-without-noise", lambda point: point == _MIDDLE),
        "edges": f"{len(edges)} of {searches}",
        "at_the_edge": "\n".join(_edges(edges)),
        "adap_clip_norms": _NOT_RUN if adap is None else "\n".join(_adap(sources, adap)),
        "early_ends": _early_ends(sources.grids[0], sources.known),
        "tight_accounting": "\n".join(_tight(table_1)),
        "tight_ratio": f"{_affordable('pld') / _affordable('rdp-paper'):.1f}",
    }


def reached_by_dataset(tables: Sequence[Table]) -> list[str]:
    """Return a table: how many of the paper's figures our runs reach, by data set and the paper's accountant."""
    by_dataset: dict[str, list[float]] = {}
    for entry in (entry for table in tables for entry in _comparable(table)):
        if entry.difference is not None:
            by_dataset.setdefault(entry.dataset, []).append(entry.difference)
    rows = [
        [
            DATASETS[name],
            f"{sum(change >= 0 for change in changes)} of {len(changes)}",
            f"{statistics.mean(changes):+.2f}",
            f"{min(changes):+.2f} to {max(changes):+.2f}",
        ]
        for name, changes in by_dataset.items()
    ]
    return markdown_lines(["", "printed figures reached", "ours minus the paper's, mean", "range"], rows)


def reached(tables: Sequence[Table]) -> list[str]:
    """Return a table of the cells in which our run reaches the paper's figure, by the paper's accountant."""
    found = [
        ((table.grid.title.partition(":")[0], DATASETS[entry.dataset], entry.column), entry.method)
        for table in tables
        for entry in _comparable(table)
        if entry.difference is not None and entry.difference >= 0
    ]
    by_place = groupby(found, key=lambda one: one[0])
    rows = [[*place, ", ".join(f"`{method}`" for _, method in group)] for place, group in by_place]
    return markdown_lines(["table", "data set", "column", "methods"], rows)


def at_the_edge(grid: Grid) -> tuple[list[tuple[str, str]], int]:
    """Return the searches that ended at an edge as (data set, method), and the number of all searches."""
    all_chosen = [(name, method, point) for name, rows in grid.tuned.items() for method, point in rows.items()]
    edges = [(name, method) for name, method, point in all_chosen if {key: point[key] for key in _MIDDLE} != _MIDDLE]
    return edges, len(all_chosen)


def _edges(edges: Sequence[tuple[str, str]]) -> list[str]:
    by_dataset = groupby(edges, key=lambda place: place[0])
    rows = [[DATASETS[name], ", ".join(f"`{method}`" for _, method in found)] for name, found in by_dataset]
    return markdown_lines(["data set", "methods with the best point at an edge"], rows)


def _middle_half(tables: Sequence[Table]) -> str:
    """Return the first and the third quartile of our differences from the paper."""
    changes = [e.difference for table in tables for e in _comparable(table) if e.difference is not None]
    low, _, high = statistics.quantiles(changes, n=4)
    return f"{-high:.0f} to {-low:.0f}"


def _tables_run(sources: Sources) -> str:
    were_run = {table.grid.name for table in sources.tables}
    titles = {grid.name: grid.title.partition(":")[0] for grid in sources.grids}
    done = [title for name, title in titles.items() if name in were_run]
    left = [title for name, title in titles.items() if name not in were_run]
    counts = [len(entry.by_seed) for table in sources.tables for entry in table.entries if entry.by_seed]
    seeds = ", ".join(f"{counts.count(n)} with {n} seed{'s' if n > 1 else ''}" for n in sorted(set(counts)))
    not_run = f" We have not run {' and '.join(left)}." if left else ""
    return f"We ran {' and '.join(done) or 'none of them'} ({len(counts)} cells: {seeds}).{not_run}"


def _comparable(table: Table) -> list[Entry]:
    """Return the entries that the paper prints too, by the paper's accountant."""
    return [e for e in table.entries if e.paper is not None and e.accountant == table.grid.accountants[0]]


def _table(tables: Sequence[Table]) -> list[str]:
    head = ["table", "data set", "column", "methods", "mean", "least", "most", "best of ours", "best of the paper's"]
    return markdown_lines([*head, "order"], [row for table in tables for row in _rows(table)])


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
    """Return a row over the seeds that all our runs of this column have."""
    papers = {entry.method: entry.paper for entry in entries if entry.paper is not None}
    run = [entry for entry in entries if entry.accuracies]
    paired = set.intersection(*(set(entry.by_seed) for entry in run))
    ours = {entry.method: entry.mean_over(paired) for entry in run} if paired else {}
    changes = [mean - papers[method] for method, mean in ours.items()]
    shown = [f"{of(changes):+.2f}" if changes else "-" for of in (statistics.mean, min, max)]
    order = _agreement(list(ours.values()), [papers[method] for method in ours])
    return [*place, f"{len(run)} of {len(papers)}", *shown, _best_of(ours), _best_of(papers), order]


def _best_of(accuracies: dict[str, float]) -> str:
    return ", ".join(name for name, accuracy in accuracies.items() if accuracy == max(accuracies.values())) or "-"


def _agreement(ours: Sequence[float], papers: Sequence[float]) -> str:
    """Return Spearman's rank correlation."""
    if min(len(set(ours)), len(set(papers))) < 2:  # noqa: PLR2004 - one value has no order
        return "-"
    return f"{statistics.correlation(_ranks(ours), _ranks(papers)):+.2f}"


def _ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 0; equal values share the mean of their ranks."""
    return [sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]


def _best(sources: Sources, search: str, wanted: Callable[[Point], bool]) -> str:
    lines = sources.lines(f"tuning/{search}")
    found = [float(line["validation_accuracy"]) for line in lines if wanted(line["point"])]
    return f"{max(found):.2f}" if found else _NOT_RUN


def _without_noise(sources: Sources, clip_norm: float) -> str:
    return _best(sources, "mnist-without-noise", lambda point: bool(point["method.clip_norm"] == clip_norm))


def _adap(sources: Sources, entry: Entry) -> list[str]:
    """Return a table of Adap DP-FL by seed: the accuracy, and the clients with a clip norm above its floor."""
    floor = sources.grids[0].tuned["mnist"]["adap_dpfl"]["method.options.smallest_clip_norm"]
    found = {line["seed"]: line for line in sources.lines("clip_norms")}
    rows = []
    for seed, accuracy in entry.by_seed.items():
        clients = sorted((one["records"], one["largest_clip_norm"]) for one in found[seed]["clients"])
        lifted = [f"{norm:.2f} ({records} records)" for records, norm in clients if norm > floor]
        rows.append([str(seed), f"{accuracy:.2f} %", str(found[seed]["rounds"]), ", ".join(lifted) or "none"])
    head = ["seed", "accuracy", "first rounds", f"largest C of the clients above the floor of {floor:g}"]
    return markdown_lines(head, rows)


def _early_ends(grid: Grid, known: Mapping[str, Result]) -> str:
    """Return after how many rounds the paper's policy has spent its steps in the column R_s = R_c; seed 0."""
    listed = cells(grid, columns=["R_s = R_c"], methods=["ali_dpfl"], accountants=["rdp-paper"])
    found = {cell.dataset: known[cell.key].rounds for cell in listed if cell.key in known}
    return ", ".join(f"{rounds} rounds ({name})" for name, rounds in found.items()) or _NOT_RUN


def _affordable(accountant: str) -> int:
    """Return the steps that the smallest budget of Table I pays for, at the paper's q and σ."""
    budget = PrivacyBudget(epsilon=min(paper.ITERATIONS), delta=paper.DELTA)
    return max_steps(budget, paper.SAMPLE_RATE, paper.NOISE_MULTIPLIER, accountant=accountant)


def _tight(entries: Iterable[Entry]) -> list[str]:
    """Return our differences where steps are scarcest, by both accountants, over the methods that have both."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for entry in entries:
        if entry.column == _SCARCE and entry.difference is not None:
            found.setdefault(entry.dataset, {}).setdefault(entry.accountant, {})[entry.method] = entry.difference
    rows = []
    for name, by in found.items():
        both = by.get("rdp-paper", {}).keys() & by.get("pld", {}).keys()
        if both:
            ranges = [[by[accountant][method] for method in both] for accountant in ("rdp-paper", "pld")]
            rows.append([name, *(f"{min(changes):+.2f} to {max(changes):+.2f}" for changes in ranges)])
    return markdown_lines([_SCARCE, "ours minus the paper's, by the paper's accountant", "by `pld`"], rows)
