"""The committed results that the pages are made from."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from reproduction.grid import NAMES, SEARCH, Grid, load_grid
from reproduction.results import RESULTS, Result, json_lines, lines_of, read_results
from reproduction.tables import Entry, Table, table_so_far

DATASETS = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
"""The paper's data sets, with their names for readers."""
HEADLINE = "R_s = R_c/2"
"""The column of Table I that the recipes are compared with: ε = 2 in 158 rounds."""
_CONTROL = Path(__file__).parents[1] / "experiments" / "control.toml"


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Grids, their results, and the folder with all other results."""

    grids: tuple[Grid, ...]
    """The paper's tables."""
    control: Grid
    """The control of the policy `ali`."""
    search: Grid
    known: Mapping[str, Result]
    """Results by their keys."""
    folder: Path = RESULTS

    @cached_property
    def tables(self) -> list[Table]:
        """The paper's tables that have results."""
        return [table for grid in self.grids if (table := table_so_far(grid, self.known)) is not None]

    def entry(self, dataset: str, column: str, method: str, accountant: str) -> Entry | None:
        """Return a cell of Table I, or None if it has not been run."""
        for table in self.tables:
            for entry in table.entries:
                place = (table.grid.name, entry.dataset, entry.column, entry.method, entry.accountant)
                if place == ("small", dataset, column, method, accountant) and entry.accuracies:
                    return entry
        return None

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a file of results, such as `tuning/mnist`."""
        return json_lines(self.folder / f"{name}.jsonl")

    def names(self, folder: str) -> list[str]:
        """Return the names of the files of results in a sub-folder, such as `tuning`."""
        return sorted(path.stem for path in (self.folder / folder).glob("*.jsonl"))


def load(folder: Path = RESULTS) -> Sources:
    """Load the built-in grids, the control and their results."""
    grids = tuple(load_grid(name) for name in NAMES if name != SEARCH)
    control, search = load_grid(str(_CONTROL)), load_grid(SEARCH)
    known = {
        result.key: result for grid in (*grids, control, search) for result in read_results(lines_of(grid.name, folder))
    }
    return Sources(grids=grids, control=control, search=search, known=known, folder=folder)
