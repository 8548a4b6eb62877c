"""Choose the tuned settings of the tables from the search: `python -m reproduction.tuned` writes grids/tuned.toml."""

from pathlib import Path

from alidpfl.store.files import to_toml
from reproduction.grid import SEARCH, Grid, Settings, cells, load_grid
from reproduction.results import RESULTS, Result, known_in

_TUNED = Path(__file__).parent / "grids" / "tuned.toml"
_HEAD = """\
# Written by `python -m reproduction.tuned` from reproduction/results/tuning.jsonl: for every data set and method the
# settings with the best accuracy on held-out training data. What has not been searched is not here: it is run with the
# defaults.

"""


def chosen(grid: Grid, known: dict[str, Result]) -> dict[str, dict[str, Settings]]:
    """Return the best settings by data set and method.

    A method is included only if all of its points have a result, so that no method is favoured. Its points are the
    columns of its own row and of the rows that are its variants. At a tie the first point wins.

    Args:
        grid: The search.
        known: Results by their keys.
    """
    columns = {column.name: column.settings for column in grid.columns}
    rows = {method.name: method for method in grid.methods}
    tried: dict[tuple[str, str], list[tuple[float | None, Settings]]] = {}
    for cell in cells(grid):
        result, row = known.get(cell.key), rows[cell.method]
        accuracy = None if result is None else result.accuracy
        settings = columns[cell.column] | row.own
        tried.setdefault((cell.dataset, row.variant_of or row.name), []).append((accuracy, settings))
    found: dict[str, dict[str, Settings]] = {}
    for (dataset, method), points in tried.items():
        complete = [(accuracy, settings) for accuracy, settings in points if accuracy is not None]
        if len(complete) == len(points):
            found.setdefault(dataset, {})[method] = max(complete, key=lambda point: point[0])[1]
    return found


if __name__ == "__main__":
    _TUNED.write_text(_HEAD + to_toml(chosen(load_grid(SEARCH), known_in(RESULTS, [SEARCH]))), encoding="utf-8")
