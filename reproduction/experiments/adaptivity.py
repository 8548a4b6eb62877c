"""Is adaptivity worth it? `ali` and the paper's rule against `ratio` and the best fixed τ, by paired seeds.

In a cell all methods have the same split, first weights, batches and noise for a seed, so that differences are paired.
"""

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import deciders
from reproduction.grid import MOST_SEEDS, Grid, cells
from reproduction.report import FIXED
from reproduction.results import Result
from reproduction.tables import markdown_lines

HEAD = """## Is adaptivity worth it?

Differences in test accuracy, in points: mean over the seeds that both have and, where these are several, in how many of
them the rule was better or worse (it may choose the same τ). `ratio` shares the budget out evenly and knows nothing of
the data. "Best fixed τ" is the best of 1, 2, 3, 5 and 10 by their mean over the seeds that all of them and `ratio`
have, chosen after the fact, by these very accuracies: nobody can know it beforehand.

Keep in mind: every method has the C and η that the search found for it. On Fashion-MNIST and CIFAR-10 these differ
(`ratio`, `ali` and `corrected` have another point than the paper's rule and a τ of 2 or more, and on Fashion-MNIST than
τ = 1), so that not all of a difference there is τ's. And C and η are those of R_s = R_c, where all these rules take
few steps a round. They serve the other columns too, and with more steps a round the same η can be too large: from R_c/2
to R_c/5 `ratio` gets worse although it may spend more, except on Fashion-MNIST by the paper's accountant, where it gets
better. Where it gets worse, a part of what a rule gains on `ratio`, and of what τ = 1 gains on everything, is that it
moves less.
"""

OVERALL = """Over all of it, each pair of runs once, and only pairs whose τ differ: where all τ are the same, C and η
make the difference, or nothing does. "Mean" is the mean over cells of their means over seeds.
"""

CONTROL = """**The control.** `early` spends at `ali`'s cap, twice the even pace, from the first round on, looking at no
signal. C and η are `ali`'s ([control.toml](../experiments/control.toml)). In these cells of Table I it most often does
better than `ali`: what `ali` gains on `ratio` is what spending early gains, and waiting for a curvature, or following
it, costs a part of that. That is no advice to spend early: see the last column.
"""

_YARDSTICK, _CONTROL = "ours:ratio", "early"
_RULES = {"ours:ali": "`ali`", "ours:corrected": "`corrected`", "ali_dpfl": "paper's rule (un-noised)"}
_BEST = "best fixed τ"
Seeds = Mapping[int, Result]


@dataclass
class _Tally:
    """Over all tables, each pair of runs once: budgets that end the same way are one run in many cells.

    Pairs with the same τ in every round are left out: what differs there is C and η alone, or nothing. Averages are of
    the cells' averages: cells with three seeds must not count three times.
    """

    differences: dict[tuple, tuple[tuple, float, bool]] = field(default_factory=dict)
    """By pair of runs: cell, difference in accuracy, and whether both have the same C and η."""

    def add(self, one: Result, other: Result) -> None:
        if one.local_steps == other.local_steps:
            return
        runs = [(tuple(result.local_steps), result.accuracy) for result in (one, other)]
        cell = tuple(one.settings.get(name) for name in _OF_A_CELL)
        alike = all(one.settings.get(name) == other.settings.get(name) for name in _STEP)
        self.differences.setdefault((_split(one), *runs), (cell, one.accuracy - other.accuracy, alike))

    @property
    def cells(self) -> list[str]:
        """Of all pairs, then of those with the same C and η: how many, better, worse, and the mean difference."""
        found = self.differences.values()
        return [*_summed(found), *_summed([value for value in found if value[2]])]


def _summed(found: Collection[tuple[tuple, float, bool]]) -> list[str]:
    if not found:
        return ["0", "-", "-", "-"]
    by_cell: dict[tuple, list[float]] = {}
    for cell, change, _ in found:
        by_cell.setdefault(cell, []).append(change)
    counts = (len(found), *_counts([change for _, change, _ in found]))
    return [*map(str, counts), f"{statistics.mean(map(statistics.mean, by_cell.values())):+.2f}"]


_STEP = ("method.clip_norm", "method.learning_rate")
_OF_A_CELL = (
    *("data.name", "data.partition", "data.dirichlet_beta"),
    *("federation.max_rounds", "privacy.epsilon", "privacy.accountant"),
)
_Tallies = dict[tuple[str, str], _Tally]
"""By rule, and by what it is held against."""


def section(grids: Sequence[Grid], known: Mapping[str, Result]) -> str:
    """The tables of all grids, and how often each rule won."""
    rows, tallies = _compared(grids, known)
    if not rows:
        return f"{HEAD}\nNo cell has been run yet.\n"
    against = [f"{name} - {other}" for name in _RULES.values() for other in ("`ratio`", "best fixed")]
    head = ["table", "data set", "column", "accountant", "`ratio`", f"{_BEST} - `ratio`", *against]
    lines = markdown_lines(head, rows)
    wins = _wins(tallies, list(tallies))
    return "\n".join([HEAD, *lines, "", OVERALL, *wins, "", _how_far_alike(tallies), "", deciders.section(known), ""])


def answer(grids: Sequence[Grid], known: Mapping[str, Result]) -> str:
    """In a table, of the rule that ships and of the paper's, with what to keep in mind."""
    _, tallies = _compared(grids, known)
    wanted = [(_RULES[rule], other) for rule in ("ours:ali", "ali_dpfl") for other in ("`ratio`", _BEST)]
    found = [pair for pair in wanted if pair in tallies]
    if not found:
        return "No cell has been run yet."
    return "\n".join([*_wins(tallies, found), "", f"{_how_far_alike(tallies)} {deciders.in_short(known)}"])


def control(table: Grid, beside: Grid, known: Mapping[str, Result]) -> str:
    """`ali` against its control, in the cells of `table` that `beside` has run; empty where it has none."""
    rows: list[list[str]] = []
    tallies: _Tallies = {}
    methods = _by_place(table, known)
    for (_, *place), runs in _by_place(beside, known).items():
        early, ours = runs[_CONTROL], methods.get((table.name, *place), {})
        if {"ours:ali", _YARDSTICK} <= ours.keys():
            pairs = {
                ("`ali`", "`early`"): (ours["ours:ali"], early),
                ("`early`", "`ratio`"): (early, ours[_YARDSTICK]),
                ("`early`", _BEST): (early, _best_fixed(table, ours)[1]),
            }
            shown = [_against(*pair, tallies.setdefault(names, _Tally())) for names, pair in pairs.items()]
            rows.append([*place, f"{_mean(early):.2f} (n = {len(early)})", *shown])
    if not rows:
        return ""
    head = ["data set", "column", "accountant", "`early`", "`ali` - `early`", "`early` - `ratio`", f"`early` - {_BEST}"]
    found = [names for names, tally in tallies.items() if tally.differences]
    return "\n".join(
        [CONTROL, *markdown_lines(head, rows), "", *_wins(tallies, found), "", _how_far_alike(tallies), ""]
    )


def _wins(tallies: _Tallies, pairs: Sequence[tuple[str, str]]) -> list[str]:
    told = ["pairs", "better", "worse", "mean"]
    head = ["rule", "against", *told, f"same C and η: {told[0]}", *told[1:]]
    return markdown_lines(head, [[*pair, *tallies[pair].cells] for pair in pairs])


def _how_far_alike(tallies: _Tallies) -> str:
    splits = {split for tally in tallies.values() for split, *_ in tally.differences}
    datasets = {name for name, *_ in splits}
    sets = "data set" if len(datasets) == 1 else "data sets"
    return f"From {len(splits)} splits of {len(datasets)} {sets}; pairs of one split are not independent."


def _split(result: Result) -> tuple:
    """Who holds what: all that tells two splits apart."""
    told_by = ("data.name", "data.partition", "data.dirichlet_beta", "run.seed")
    return tuple(result.settings.get(name) for name in told_by)


def _compared(grids: Sequence[Grid], known: Mapping[str, Result]) -> tuple[list[list[str]], _Tallies]:
    rows: list[list[str]] = []
    tallies: _Tallies = {}
    for grid in grids:
        for place, methods in _by_place(grid, known).items():
            if _YARDSTICK in methods:
                rows.append(_row(place, methods, _best_fixed(grid, methods), tallies))
    return rows, {rule: tally for rule, tally in tallies.items() if tally.differences}


def _by_place(grid: Grid, known: Mapping[str, Result]) -> dict[tuple[str, ...], dict[str, dict[int, Result]]]:
    """By (table, data set, column, accountant), method and seed."""
    found: dict[tuple[str, ...], dict[str, dict[int, Result]]] = {}
    for cell in cells(grid, seeds=MOST_SEEDS):
        if (result := known.get(cell.key)) is not None:
            place = (cell.grid, cell.dataset, cell.column, cell.accountant)
            found.setdefault(place, {}).setdefault(cell.method, {})[cell.seed] = result
    return found


def _row(
    place: tuple[str, ...], methods: Mapping[str, Seeds], best_fixed: tuple[str, Seeds], tallies: _Tallies
) -> list[str]:
    def against(name: str, one: Seeds, other_name: str, other: Seeds) -> str:
        return _against(one, other, tallies.setdefault((name, other_name), _Tally()))

    ratio, (name, best) = methods[_YARDSTICK], best_fixed
    columns = [*place, f"{_mean(ratio):.2f} (n = {len(ratio)})"]
    shown = against(_BEST, best, "`ratio`", ratio)
    columns.append(f"τ = {name.removeprefix(FIXED)}: {shown}" if best else shown)
    for method, rule in _RULES.items():
        seeds = methods.get(method, {})
        columns += [against(rule, seeds, "`ratio`", ratio), against(rule, seeds, _BEST, best)]
    return columns


def _best_fixed(grid: Grid, methods: Mapping[str, Seeds]) -> tuple[str, Seeds]:
    """Its name, and its runs with the seeds that all fixed τ and `ratio` have; nothing where one is missing."""
    names = [method.name for method in grid.methods if method.name.startswith(FIXED)]
    paired = set.intersection(*(set(methods.get(name, {})) for name in (*names, _YARDSTICK)))
    if not names or not paired:
        return "", {}
    runs = {name: {seed: methods[name][seed] for seed in sorted(paired)} for name in names}
    best = max(names, key=lambda name: _mean(runs[name]))
    return best, runs[best]


def _counts(changes: Sequence[float]) -> tuple[int, int]:
    """How many are better and how many worse."""
    return sum(change > 0 for change in changes), sum(change < 0 for change in changes)


def _mean(seeds: Seeds) -> float:
    return statistics.mean(result.accuracy for result in seeds.values())


def _against(one: Seeds, other: Seeds, tally: _Tally) -> str:
    both = sorted(one.keys() & other.keys())
    if not both:
        return "-"
    for seed in both:
        tally.add(one[seed], other[seed])
    differences = [one[seed].accuracy - other[seed].accuracy for seed in both]
    better, worse = _counts(differences)
    counts = f" ({better} better, {worse} worse)" if len(both) > 1 else ""
    return f"{statistics.mean(differences):+.2f}{counts}"
