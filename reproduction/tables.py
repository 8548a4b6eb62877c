"""Ours beside the paper's: mean ± sd over seeds, n, and the difference."""

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from reproduction.grid import MOST_SEEDS, NAMES, SEARCH, Cell, Grid, cells
from reproduction.published import citation, published
from reproduction.results import Result

_SYMBOLS = {
    "method.clip_norm": "C",
    "method.learning_rate": "η",
    "method.options.regularisation": "λ",
    "method.options.smallest_clip_norm": "smallest C",
}
_SEARCHED_AT = "R_s = 158, ε = 1.75, Dir(0.05), the paper's accountant"
_UNCOVERED = "its rule reads un-noised signals, which ε does not cover"
_UNCOVERED_OWN = "signals, labels or accuracies of clients were used without noise, which ε does not cover"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One cell of a table, all seeds together."""

    dataset: str
    method: str
    accountant: str
    column: str
    by_seed: Mapping[int, float]
    """Accuracies of ours, in %; empty where nothing has been run."""
    paper: float | None
    epsilon: float | None
    """Largest that one of ours spent."""
    covered: bool

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Of ours, in the order of the seeds."""
        return tuple(self.by_seed.values())

    @property
    def mean(self) -> float | None:
        """Of ours."""
        return statistics.mean(self.accuracies) if self.accuracies else None

    def mean_over(self, seeds: Iterable[int]) -> float:
        """Of ours, over these seeds, which it must have: so that what is compared is paired."""
        return statistics.mean(self.by_seed[seed] for seed in seeds)

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for fewer than two."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper


@dataclass(frozen=True, kw_only=True)
class Table:
    """All entries of a grid."""

    grid: Grid
    entries: tuple[Entry, ...]

    @property
    def caption(self) -> str:
        """Where the figures are from, and how the settings were chosen."""
        if self.grid.name not in NAMES:  # nobody knows how these settings were chosen, and no paper has them
            set_by_hand = f" Set in [tuned]: {self._tuned}." if self._tuned else ""
            return f"Test accuracy in % of the last round: mean ± sd over n seeds.{set_by_hand} * {_UNCOVERED_OWN}."
        if self.grid.name == SEARCH:
            what = "Accuracy in % of the last round, on training data that no client holds"
            return f"{self.grid.title}. {what}. * {_UNCOVERED}."
        return (
            f"{self.grid.title}. Test accuracy in % of the last round: ours, mean ± sd over n seeds, the paper's "
            f"({citation()}) and the difference; - where neither has one. {self._chosen}{self._mixed} * {_UNCOVERED}."
        )

    @property
    def _mixed(self) -> str:
        """Where columns have other seeds, the same run stands under two means."""
        several = len({len(entry.accuracies) for entry in self.entries if entry.accuracies}) > 1
        return " Where n differs the means are over other seeds: compare only what has the same n." if several else ""

    @property
    def _chosen(self) -> str:
        """C and η are those of one place, which is not this table's every column: whoever compares must know."""
        parts = []
        if self._tuned:
            parts.append(
                f"C and η were chosen on a held-out part of the training set ({_SEARCHED_AT}), from the same points "
                f"for every method, and serve all columns; what only one method has, together with them: {self._tuned}."
            )
            parts.append("That choice looked at accuracies without noise, which no ε covers.")
        unsearched = dict.fromkeys(e.dataset for e in self.entries if e.dataset not in self.grid.tuned)
        if unsearched:
            parts.append(f"Not searched for yet, at the defaults: {', '.join(unsearched)}.")
        return " ".join(parts)

    @property
    def _tuned(self) -> str:
        """Of what stands in this table."""
        here = {(entry.dataset, entry.method) for entry in self.entries}
        chosen = {
            dataset: {method: values for method, values in settings.items() if (dataset, method) in here}
            for dataset, settings in self.grid.tuned.items()
        }
        return "; ".join(f"{dataset}: {_listed(settings)}" for dataset, settings in chosen.items() if settings)


def make_table(grid: Grid, listed: Iterable[Cell], known: Mapping[str, Result]) -> Table:
    """What is known so far, by the cells' keys."""
    found: dict[tuple[str, str, str, str], list[Result]] = {}
    leaky = set()
    for cell in listed:
        place = (cell.dataset, cell.method, cell.accountant, cell.column)
        found.setdefault(place, [])
        if dict(cell.settings).get("privacy.unsafe"):
            leaky.add(place)
        if (result := known.get(cell.key)) is not None:
            found[place].append(result)
    columns = {column.name: column for column in grid.columns}
    return Table(
        grid=grid,
        entries=tuple(
            Entry(
                dataset=dataset,
                method=method,
                accountant=accountant,
                column=column,
                by_seed={result.settings["run.seed"]: result.accuracy for result in runs},
                paper=published(grid.name, dataset, columns[column].match, method),
                epsilon=max((result.epsilon for result in runs), default=None),
                covered=place not in leaky and all(result.covers_everything for result in runs),
            )
            for place, runs in found.items()
            for dataset, method, accountant, column in [place]
        ),
    )


def table_so_far(grid: Grid, known: Mapping[str, Result]) -> Table | None:
    """Of the data sets that have a result, all seeds; None where none has."""
    every = list(cells(grid, seeds=MOST_SEEDS))
    datasets = {cell.dataset for cell in every if cell.key in known}
    return make_table(grid, (cell for cell in every if cell.dataset in datasets), known) if datasets else None


# ------------------------------------------------------------------------------------------------------------ formats


def as_markdown(table: Table) -> str:
    """A table a data set."""
    parts = [f"### {table.grid.title}", ""]
    for dataset, rows in rows_by_dataset(table).items():
        head = ["method", "accountant", *(column.name for column in table.grid.columns)]
        body = [[*names, *(shown(entry) for entry in entries)] for names, entries in rows]
        parts += [f"**{dataset}**", "", *markdown_lines(head, body), ""]
    return "\n".join([*parts, table.caption, ""])


def as_latex(table: Table) -> str:
    """For a paper; needs booktabs."""
    width = len(table.grid.columns)
    lines = [r"\begin{table}", rf"\caption{{{_escaped(table.caption)}}}", rf"\begin{{tabular}}{{ll{'r' * width}}}"]
    for dataset, rows in rows_by_dataset(table).items():
        names = " & ".join(_escaped(column.name) for column in table.grid.columns)
        lines += [r"\toprule", rf"\multicolumn{{{width + 2}}}{{l}}{{{_escaped(dataset)}}} \\"]
        lines += [rf"method & accountant & {names} \\", r"\midrule"]
        for labels, entries in rows:
            cells = [*map(_escaped, labels), *(_escaped(shown(entry)).replace("±", r"$\pm$") for entry in entries)]
            lines.append(rf"{' & '.join(cells)} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def as_csv(table: Table) -> str:
    """One line a cell, for other programs."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["dataset", "method", "accountant", "column", "mean", "sd", "n", "paper", "difference", "epsilon", "covered"]
    writer.writerow(head)
    for entry in table.entries:
        numbers = (entry.mean, entry.spread, len(entry.accuracies), entry.paper, entry.difference, entry.epsilon)
        shown = ["" if number is None else f"{number:.6g}" for number in numbers]
        writer.writerow([entry.dataset, entry.method, entry.accountant, entry.column, *shown, entry.covered])
    return out.getvalue()


FORMATS: MappingProxyType[str, Callable[[Table], str]] = MappingProxyType(
    {"markdown": as_markdown, "latex": as_latex, "csv": as_csv}
)


def rows_by_dataset(table: Table) -> dict[str, list[tuple[tuple[str, str], list[Entry | None]]]]:
    """For each data set its rows: (method, accountant) and the entries by column."""
    found: dict[str, list[tuple[tuple[str, str], list[Entry | None]]]] = {}
    places = {(e.dataset, e.method, e.accountant, e.column): e for e in table.entries}
    for dataset, method, accountant in dict.fromkeys((e.dataset, e.method, e.accountant) for e in table.entries):
        entries = [places.get((dataset, method, accountant, column.name)) for column in table.grid.columns]
        mark = "" if all(entry is None or entry.covered for entry in entries) else " *"
        found.setdefault(dataset, []).append(((method + mark, accountant), entries))
    return found


def shown(entry: Entry | None) -> str:
    """92.84 ± 0.31 (n = 3), paper 97.58, −4.74."""
    if entry is None or (entry.mean is None and entry.paper is None):
        return "-"
    ours = "not run" if entry.mean is None else f"{entry.mean:.2f}"
    if entry.spread is not None:
        ours += f" ± {entry.spread:.2f}"
    if entry.mean is not None:
        ours += f" (n = {len(entry.accuracies)})"
    if entry.paper is None:
        return ours
    change = "" if entry.difference is None else f", {entry.difference:+.2f}"
    return f"{ours}, paper {entry.paper:.2f}{change}"


def markdown_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table, line by line.

    >>> markdown_lines(["a", "b"], [["1", "2"]])
    ['| a | b |', '| --- | --- |', '| 1 | 2 |']
    """
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _listed(settings: Mapping[str, Mapping[str, object]]) -> str:
    """C = 1, η = 2 (the methods that have it), C = 1, η = 1 (the others)."""
    methods: dict[str, list[str]] = {}
    for method, chosen in settings.items():
        values = ", ".join(f"{_SYMBOLS.get(key, key)} = {value:g}" for key, value in chosen.items())
        methods.setdefault(values, []).append(method)
    return ", ".join(f"{values} ({', '.join(names)})" for values, names in methods.items())


def _escaped(text: str) -> str:
    for plain in ("%", "_", "&", "#"):
        text = text.replace(plain, f"\\{plain}")
    return text.replace("ε", r"$\varepsilon$").replace("η", r"$\eta$").replace("λ", r"$\lambda$")
