"""What the search for settings found."""

from alidpfl.reproduction.grid import Grid, Settings, cells
from alidpfl.reproduction.results import Results


def chosen(grid: Grid, results: Results) -> dict[str, dict[str, Settings]]:
    """By data set and method the column that was best; only where every column has a result, so that none was favoured.

    At a tie the first column wins.
    """
    known = results.all()
    accuracies: dict[tuple[str, str], dict[str, float | None]] = {}
    for cell in cells(grid):
        result = known.get(cell.key)
        row = accuracies.setdefault((cell.dataset, cell.method), {})
        row[cell.column] = None if result is None else result.accuracy
    columns = {column.name: column.settings for column in grid.columns}
    found: dict[str, dict[str, Settings]] = {}
    for (dataset, method), row in accuracies.items():
        complete = {column: accuracy for column, accuracy in row.items() if accuracy is not None}
        if len(complete) == len(columns):
            found.setdefault(dataset, {})[method] = columns[max(complete, key=complete.__getitem__)]
    return found
