"""Tables of our accuracies next to the paper's: mean ± sd over seeds, n, and the difference."""

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from reproduction.grid import MOST_SEEDS, NAMES, SEARCH, Cell, Grid, cells
from reproduction.paper import citation, published
from reproduction.results import Result

_SYMBOLS = {
    "method.clip_norm": "C",
    "method.learning_rate": "η",
    "method.options.regularisation": "λ",
    "method.options.smallest_clip_norm": "smallest C",
}
_SEARCHED_AT = "R_s = 158, ε = 1.75, Dir(0.05), the paper's accountant"
_UNCOVERED = "* ε does not cover this method: its rule reads signals without noise."
_UNCOVERED_OWN = "* ε does not cover this method: it uses signals, labels or accuracies of clients without noise."


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One cell of a table, with all of its seeds."""

    dataset: str
    method: str
    accountant: str
    column: str
    by_seed: Mapping[int, float]
    """Our accuracies in %, by seed. Empty if nothing has been run."""
    paper: float | None
    """The accuracy that the paper prints."""
    epsilon: float | None
    """The largest ε that one of our runs spent."""
    covered: bool
    """Whether ε covers everything that our runs used."""

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Our accuracies, in the order of the seeds."""
        return tuple(self.by_seed.values())

    @property
    def mean(self) -> float | None:
        """The mean of our accuracies, or None."""
        return statistics.mean(self.accuracies) if self.accuracies else None

    def mean_over(self, seeds: Iterable[int]) -> float:
        """Return the mean of our accuracies over these seeds. All of them must have been run."""
        return statistics.mean(self.by_seed[seed] for seed in seeds)

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds, or None for fewer than two."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def difference(self) -> float | None:
        """Our mean minus the paper's accuracy, or None."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper


@dataclass(frozen=True, kw_only=True)
class Table:
    """The entries of a grid."""

    grid: Grid
    entries: tuple[Entry, ...]

    @property
    def caption(self) -> str:
        """The source of the figures, and how the settings were chosen, with all settings, in one paragraph."""
        if self.grid.name == SEARCH:
            return self.notes
        if self.grid.name not in NAMES:
            return self.notes + (f" Set in [tuned]: {self._tuned}." if self._tuned else "")
        chosen = f" Chosen settings: {self._tuned}." if self._tuned else ""
        return f"{self.grid.title}. {self.notes}{chosen}"

    @property
    def notes(self) -> str:
        """The caption without the settings."""
        if self.grid.name not in NAMES:  # we do not know how these settings were chosen
            return f"Test accuracy in % after the last round: mean ± sd over n seeds. {_UNCOVERED_OWN}"
        if self.grid.name == SEARCH:
            what = "Accuracy in % after the last round, on training data that no client holds"
            return f"{self.grid.title}. {what}. {_UNCOVERED}"
        return (
            "Each cell has our test accuracy in % after the last round (mean ± sd over n seeds), the paper's figure "
            f"({citation()}) and the difference. {self._chosen}{self._mixed} {_UNCOVERED}"
        )

    @property
    def settings(self) -> list[list[str]]:
        """Rows of a table of the tuned settings: data set, settings, methods."""
        return [
            [dataset, values, ", ".join(f"`{name}`" for name in names)]
            for dataset, chosen in self._tuned_here().items()
            for values, names in _by_values(chosen).items()
        ]

    @property
    def _mixed(self) -> str:
        """A warning if cells have different numbers of seeds."""
        several = len({len(entry.accuracies) for entry in self.entries if entry.accuracies}) > 1
        return " Compare only cells with the same n: other cells have other seeds." if several else ""

    @property
    def _chosen(self) -> str:
        """How C and η were chosen. They were searched at one place only, which a reader must know."""
        parts = []
        if self._tuned:
            parts.append(
                f"C and η were chosen on a held-out part of the training set ({_SEARCHED_AT}), from the same points "
                "for every method. All columns use them. The choice used accuracies without noise; ε does not cover it."
            )
        unsearched = dict.fromkeys(e.dataset for e in self.entries if e.dataset not in self.grid.tuned)
        if unsearched:
            parts.append(f"Not searched, run with the defaults: {', '.join(unsearched)}.")
        return " ".join(parts)

    @property
    def _tuned(self) -> str:
        """The tuned settings as text, such as `mnist: C = 1, η = 2 (method), C = 1, η = 1 (other methods)`."""
        return "; ".join(f"{dataset}: {_listed(chosen)}" for dataset, chosen in self._tuned_here().items())

    def _tuned_here(self) -> dict[str, dict[str, dict[str, object]]]:
        """Return the tuned settings of the data sets and methods in this table."""
        here = {(entry.dataset, entry.method) for entry in self.entries}
        found = {
            dataset: {method: dict(values) for method, values in settings.items() if (dataset, method) in here}
            for dataset, settings in self.grid.tuned.items()
        }
        return {dataset: chosen for dataset, chosen in found.items() if chosen}


def make_table(grid: Grid, listed: Iterable[Cell], known: Mapping[str, Result]) -> Table:
    """Make a table of these cells.

    Args:
        grid: The grid that the cells belong to.
        listed: The cells, of any seeds.
        known: Results by their keys.
    """
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
    """Return the table of all data sets that have a result, or None if there is no result."""
    every = list(cells(grid, seeds=MOST_SEEDS))
    datasets = {cell.dataset for cell in every if cell.key in known}
    return make_table(grid, (cell for cell in every if cell.dataset in datasets), known) if datasets else None


def as_markdown(table: Table) -> str:
    """Return Markdown, with one table for each data set, and one of the settings that were chosen."""
    parts = [f"### {table.grid.title}", ""]
    for dataset, rows in rows_by_dataset(table).items():
        head = ["method", "accountant", *(column.name for column in table.grid.columns)]
        body = [[*names, *(shown(entry) for entry in entries)] for names, entries in rows]
        parts += [f"**{dataset}**", "", *markdown_lines(head, body), ""]
    parts += [table.notes, ""]
    if table.settings:
        parts += ["Chosen settings:", "", *markdown_lines(["data set", "settings", "methods"], table.settings), ""]
    return "\n".join(parts)


def as_latex(table: Table) -> str:
    """Return LaTeX, which needs the package booktabs."""
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
    """Return CSV, with one line for each cell."""
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
    """Return the rows of each data set: (method, accountant), and an entry for every column."""
    found: dict[str, list[tuple[tuple[str, str], list[Entry | None]]]] = {}
    places = {(e.dataset, e.method, e.accountant, e.column): e for e in table.entries}
    for dataset, method, accountant in dict.fromkeys((e.dataset, e.method, e.accountant) for e in table.entries):
        entries = [places.get((dataset, method, accountant, column.name)) for column in table.grid.columns]
        mark = "" if all(entry is None or entry.covered for entry in entries) else " *"
        found.setdefault(dataset, []).append(((method + mark, accountant), entries))
    return found


def seeds_of(count: int) -> str:
    """Return `1 seed`, `2 seeds` and so on."""
    return f"{count} seed{'s' if count != 1 else ''}"


def shown(entry: Entry | None) -> str:
    """Return the text of an entry, such as `92.84 ± 0.31 (3 seeds), paper 97.58, -4.74`."""
    if entry is None or (entry.mean is None and entry.paper is None):
        return "-"
    ours = "not run" if entry.mean is None else f"{entry.mean:.2f}"
    if entry.spread is not None:
        ours += f" ± {entry.spread:.2f}"
    if entry.mean is not None:
        ours += f" ({seeds_of(len(entry.accuracies))})"
    if entry.paper is None:
        return ours
    change = "" if entry.difference is None else f", {entry.difference:+.2f}"
    return f"{ours}, paper {entry.paper:.2f}{change}"


def markdown_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table.

    >>> markdown_lines(["a", "b"], [["1", "2"]])
    ['| a | b |', '| --- | --- |', '| 1 | 2 |']
    """
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _listed(settings: Mapping[str, Mapping[str, object]]) -> str:
    return ", ".join(f"{values} ({', '.join(names)})" for values, names in _by_values(settings).items())


def _by_values(settings: Mapping[str, Mapping[str, object]]) -> dict[str, list[str]]:
    """Return the methods by their settings, such as {"C = 1, η = 2": ["fedavg_dp:tau=1"]}."""
    methods: dict[str, list[str]] = {}
    for method, chosen in settings.items():
        values = ", ".join(f"{_SYMBOLS.get(key, key)} = {value:g}" for key, value in chosen.items())
        methods.setdefault(values, []).append(method)
    return methods


def _escaped(text: str) -> str:
    for plain in ("%", "_", "&", "#"):
        text = text.replace(plain, f"\\{plain}")
    return text.replace("ε", r"$\varepsilon$").replace("η", r"$\eta$").replace("λ", r"$\lambda$")
