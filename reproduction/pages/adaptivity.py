"""Is an adaptive τ worth it? Compare `ali` and the paper's policy with `ratio` and the best fixed τ, by paired seeds.

For one seed of a cell all methods have the same split, first weights, batches and noise, so that runs form pairs.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reproduction.grid import MOST_SEEDS, Grid, cells
from reproduction.pages import deciders
from reproduction.pages.sources import Sources
from reproduction.report import FIXED
from reproduction.results import Result
from reproduction.tables import markdown_lines, seeds_of

RATIO, ALI, CORRECTED, PAPER, EARLY, BEST = (
    *("`ratio`", "`ali`", "`corrected`", "`paper` (un-noised signals)", "`early`", "best fixed τ"),
)
"""The policies, by their names for readers."""
_RATIO_ROW, _EARLY_ROW = "ours:ratio", "early"
_RULES = {"ours:ali": ALI, "ours:corrected": CORRECTED, "ali_dpfl": PAPER}
_STEP = ("method.clip_norm", "method.learning_rate")
_SPLIT = ("data.name", "data.partition", "data.dirichlet_beta", "run.seed")
_CELL = (
    *("data.name", "data.partition", "data.dirichlet_beta"),
    *("federation.max_rounds", "privacy.epsilon", "privacy.accountant"),
)
Seeds = Mapping[int, Result]


@dataclass(frozen=True)
class Summary:
    """A summary of paired differences."""

    pairs: int
    better: int
    worse: int
    mean: float | None
    """The mean over cells of their means over seeds, so that a cell with three seeds does not count three times."""

    @property
    def columns(self) -> list[str]:
        """The columns of a table."""
        counts = [str(self.better), str(self.worse)] if self.pairs else ["-", "-"]
        return [str(self.pairs), *counts, "-" if self.mean is None else f"{self.mean:+.2f}"]


@dataclass(frozen=True)
class _Pair:
    cell: tuple[object, ...]
    difference: float
    same_step: bool
    """Whether both runs have the same C and η."""


@dataclass
class Tally:
    """The pairs of runs of two policies, over all tables.

    Each pair counts once: budgets that end in the same way repeat a run in several cells. Pairs with the same τ in
    every round are left out, because only C and η can make a difference there.
    """

    found: dict[tuple[object, ...], _Pair] = field(default_factory=dict)

    def add(self, one: Result, other: Result) -> None:
        """Add a pair of runs with the same seed and cell."""
        if one.local_steps == other.local_steps:
            return
        runs = [(tuple(result.local_steps), result.accuracy) for result in (one, other)]
        cell = tuple(one.settings.get(name) for name in _CELL)
        same_step = all(one.settings.get(name) == other.settings.get(name) for name in _STEP)
        pair = _Pair(cell, one.accuracy - other.accuracy, same_step)
        self.found.setdefault((_split(one), *runs), pair)

    @property
    def all(self) -> Summary:
        """The summary of all pairs."""
        return _summary(list(self.found.values()))

    @property
    def same_step(self) -> Summary:
        """The summary of the pairs with the same C and η."""
        return _summary([pair for pair in self.found.values() if pair.same_step])

    @property
    def differences(self) -> list[float]:
        """The differences of all pairs, in points."""
        return [pair.difference for pair in self.found.values()]

    @property
    def splits(self) -> set[object]:
        """The splits that the pairs come from."""
        return {split for split, *_ in self.found}


Tallies = dict[tuple[str, str], Tally]
"""Tallies by policy, and by what it is compared with."""


def blocks(sources: Sources) -> dict[str, str]:
    """Return the generated parts of the pages about adaptivity."""
    rows, tallies = compared(sources.grids, sources.known)
    control_rows, control_tallies = control(sources.grids[0], sources.control, sources.known)
    head = ["table", "data set", "column", "accountant", RATIO, f"{BEST} - {RATIO}"]
    head += [f"{rule} - {other}" for rule in _RULES.values() for other in (RATIO, "best fixed")]
    against_ali = control_tallies.get((ALI, EARLY), Tally()).all
    return {
        "adaptivity_cells": "\n".join(markdown_lines(head, rows)),
        "adaptivity_overall": "\n".join(_overall(tallies, list(tallies))),
        "adaptivity_short": "\n".join(_short(tallies)),
        "adaptivity_splits": splits_text(tallies),
        "control_cells": "\n".join(markdown_lines([*head[1:4], *_CONTROL_HEAD], control_rows)),
        "control_overall": "\n".join(_overall(control_tallies, list(control_tallies))),
        "control_splits": splits_text(control_tallies),
        "early_wins": f"{against_ali.worse} of {against_ali.pairs}",
        **deciders.blocks(sources.known),
    }


_CONTROL_HEAD = [EARLY, f"{ALI} - {EARLY}", f"{EARLY} - {RATIO}", f"{EARLY} - {BEST}"]


def compared(grids: Sequence[Grid], known: Mapping[str, Result]) -> tuple[list[list[str]], Tallies]:
    """Compare the policies in every cell of these tables; return the rows of a table, and the tallies."""
    rows: list[list[str]] = []
    tallies: Tallies = {}
    for grid in grids:
        for place, methods in _by_place(grid, known).items():
            if _RATIO_ROW in methods:
                rows.append(_row(place, methods, _best_fixed(grid, methods), tallies))
    return rows, {pair: tally for pair, tally in tallies.items() if tally.found}


def control(table: Grid, controls: Grid, known: Mapping[str, Result]) -> tuple[list[list[str]], Tallies]:
    """Compare `ali` with its control `early` in the cells of `table` that the grid `controls` has run."""
    rows: list[list[str]] = []
    tallies: Tallies = {}
    methods = _by_place(table, known)
    for (_, *place), runs in _by_place(controls, known).items():
        early, ours = runs[_EARLY_ROW], methods.get((table.name, *place), {})
        if {"ours:ali", _RATIO_ROW} <= ours.keys():
            pairs = {
                (ALI, EARLY): (ours["ours:ali"], early),
                (EARLY, RATIO): (early, ours[_RATIO_ROW]),
                (EARLY, BEST): (early, _best_fixed(table, ours)[1]),
            }
            shown = [_against(*pair, tallies.setdefault(names, Tally())) for names, pair in pairs.items()]
            rows.append([*place, f"{_mean(early):.2f} ({seeds_of(len(early))})", *shown])
    return rows, {pair: tally for pair, tally in tallies.items() if tally.found}


def splits_text(tallies: Tallies) -> str:
    """Return how many splits the pairs come from."""
    splits = {split for tally in tallies.values() for split in tally.splits}
    datasets = {split[0] for split in splits if isinstance(split, tuple)}
    sets = "data set" if len(datasets) == 1 else "data sets"
    return f"{len(splits)} splits of {len(datasets)} {sets}"


def _overall(tallies: Tallies, pairs: Sequence[tuple[str, str]]) -> list[str]:
    head = ["pairs", "better", "worse", "mean"]
    rows = [[*pair, *tallies[pair].all.columns, *tallies[pair].same_step.columns] for pair in pairs]
    return markdown_lines(["policy", "against", *head, f"same C and η: {head[0]}", *head[1:]], rows)


def _short(tallies: Tallies) -> list[str]:
    wanted = [pair for pair in ((ALI, RATIO), (ALI, BEST), (PAPER, RATIO), (PAPER, BEST)) if pair in tallies]
    rows = [[*pair, *tallies[pair].all.columns, tallies[pair].same_step.columns[-1]] for pair in wanted]
    return markdown_lines(["policy", "against", "pairs", "better", "worse", "mean", "mean at the same C and η"], rows)


def _summary(pairs: Sequence[_Pair]) -> Summary:
    by_cell: dict[tuple[object, ...], list[float]] = {}
    for pair in pairs:
        by_cell.setdefault(pair.cell, []).append(pair.difference)
    better, worse = _counts([pair.difference for pair in pairs])
    mean = statistics.mean(map(statistics.mean, by_cell.values())) if by_cell else None
    return Summary(len(pairs), better, worse, mean)


def _split(result: Result) -> tuple[object, ...]:
    """Return the settings that decide which client holds which records."""
    return tuple(result.settings.get(name) for name in _SPLIT)


def _by_place(grid: Grid, known: Mapping[str, Result]) -> dict[tuple[str, ...], dict[str, dict[int, Result]]]:
    """Return results by (table, data set, column, accountant), method and seed."""
    found: dict[tuple[str, ...], dict[str, dict[int, Result]]] = {}
    for cell in cells(grid, seeds=MOST_SEEDS):
        if (result := known.get(cell.key)) is not None:
            place = (cell.grid, cell.dataset, cell.column, cell.accountant)
            found.setdefault(place, {}).setdefault(cell.method, {})[cell.seed] = result
    return found


def _row(
    place: tuple[str, ...], methods: Mapping[str, Seeds], best_fixed: tuple[str, Seeds], tallies: Tallies
) -> list[str]:
    def against(rule: str, one: Seeds, other_rule: str, other: Seeds) -> str:
        return _against(one, other, tallies.setdefault((rule, other_rule), Tally()))

    ratio, (name, best) = methods[_RATIO_ROW], best_fixed
    columns = [*place, f"{_mean(ratio):.2f} ({seeds_of(len(ratio))})"]
    shown = against(BEST, best, RATIO, ratio)
    columns.append(f"τ = {name.removeprefix(FIXED)}: {shown}" if best else shown)
    for method, rule in _RULES.items():
        seeds = methods.get(method, {})
        columns += [against(rule, seeds, RATIO, ratio), against(rule, seeds, BEST, best)]
    return columns


def _best_fixed(grid: Grid, methods: Mapping[str, Seeds]) -> tuple[str, Seeds]:
    """Return the best fixed τ with its runs, over the seeds that all fixed τ and `ratio` have."""
    names = [method.name for method in grid.methods if method.name.startswith(FIXED)]
    paired = set.intersection(*(set(methods.get(name, {})) for name in (*names, _RATIO_ROW)))
    if not names or not paired:
        return "", {}
    runs = {name: {seed: methods[name][seed] for seed in sorted(paired)} for name in names}
    best = max(names, key=lambda name: _mean(runs[name]))
    return best, runs[best]


def _counts(changes: Sequence[float]) -> tuple[int, int]:
    """Return how many are better and how many are worse."""
    return sum(change > 0 for change in changes), sum(change < 0 for change in changes)


def _mean(seeds: Seeds) -> float:
    return statistics.mean(result.accuracy for result in seeds.values())


def _against(one: Seeds, other: Seeds, tally: Tally) -> str:
    both = sorted(one.keys() & other.keys())
    if not both:
        return "-"
    for seed in both:
        tally.add(one[seed], other[seed])
    differences = [one[seed].accuracy - other[seed].accuracy for seed in both]
    better, worse = _counts(differences)
    counts = f" ({better} better, {worse} worse)" if len(both) > 1 else ""
    return f"{statistics.mean(differences):+.2f}{counts}"
