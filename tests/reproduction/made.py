"""Results that nobody has measured, and how a page of results is read."""

from reproduction.grid import Cell
from reproduction.results import Result


def made_result(cell: Cell, accuracy: float, *, covers_everything: bool = True) -> Result:
    """Of three rounds."""
    return Result(
        key=cell.key,
        settings=dict(cell.settings),
        accuracy=accuracy,
        epsilon=1.5,
        delta=1e-5,
        rounds=3,
        steps=6,
        stop_reason="max_rounds",
        seconds=1.0,
        covers_everything=covers_everything,
        noise_multiplier=1.1,
        local_steps=[1, 2, 3],
        accuracies=[(3, accuracy)],
        version="test",
    )


def overall(section, rule, against):
    """Of `section`, the line of a rule in the table over all cells: its figures."""
    (row,) = [line for line in section.splitlines() if line.startswith(f"| {rule} | {against} |")]
    return [value.strip() for value in row.strip("|").split("|")][2:]
