"""What the search for settings found."""

from reproduction.grid import Grid, Settings, cells
from reproduction.results import Results


def chosen(grid: Grid, results: Results) -> dict[str, dict[str, Settings]]:
    """By data set and method the settings that were best; only where all were tried, so that none was favoured.

    All are the columns of the method's row and of its variants' rows. At a tie the first wins.
    """
    known = results.all()
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
