"""Results that nobody has measured, for tests."""

import dataclasses

from reproduction.grid import Cell, Grid, cells, load_grid
from reproduction.pages.sources import Sources
from reproduction.results import Result

COLUMN = "R_s = R_c/2"
# The paper prints 97.42, -, 95.06, 96.77, 97.51, 97.49, 95.18, 97.58.
OURS = {
    "pe_dpfl": 90.0,
    "fedavg_dp:tau=1": 92.0,
    "fedavg_dp:tau=2": 96.0,
    "fedavg_dp:tau=3": 97.75,
    "fedavg_dp:tau=5": 80.0,
    "fedavg_dp:tau=10": 70.0,
    "ali_dpfl": 95.0,
    "ours:ratio": 94.0,
    "ours:ali": 96.5,
    "ours:corrected": 94.0,
}


def made_result(cell: Cell, accuracy: float, *, covers_everything: bool = True) -> Result:
    """Return the result of a run of three rounds."""
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


def sources_of(real: Sources, known: dict[str, Result]) -> Sources:
    """Return the sources of the pages with other results of Table I, and no other table."""
    return dataclasses.replace(real, grids=(load_grid("small"),), known=known)


def made(
    accuracies: dict[str, float], *, seeds: int = 1, accountant: str = "rdp-paper"
) -> tuple[Grid, dict[str, Result]]:
    """Return Table I with results in one column of MNIST; each seed is a point below the one before."""
    grid = load_grid("small")
    chosen = cells(grid, seeds=seeds, datasets=["mnist"], columns=[COLUMN], accountants=[accountant])
    found = {}
    for cell in chosen:
        if cell.method in accuracies:
            one = made_result(cell, accuracies[cell.method] - cell.seed)
            steps = [sum(map(ord, cell.method)), cell.seed]  # another sequence for each method and seed
            found[cell.key] = dataclasses.replace(one, local_steps=steps)
    assert len(found) == len(accuracies) * seeds
    return grid, found
