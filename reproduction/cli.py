"""The commands `reproduce`, `tables` and `report`.

`alidpfl.cli` imports this module, so that nothing of `alidpfl.cli` is imported at its top.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import MofNCompleteColumn

from alidpfl.data.sources import SOURCES
from alidpfl.errors import ConfigError
from alidpfl.inputs.checks import as_seconds, option
from alidpfl.registry import ACCOUNTANTS

if TYPE_CHECKING:
    from reproduction.grid import Cell, Grid
    from reproduction.results import Results
    from reproduction.run import Tally

_EXIT_FAILED, _EXIT_INTERRUPTED = 1, 130


def _complete_grid(incomplete: str) -> list[str]:
    from alidpfl.cli.completion import one_of
    from reproduction.grid import NAMES

    return one_of(NAMES)(incomplete)


def _complete_format(incomplete: str) -> list[str]:
    from alidpfl.cli.completion import one_of
    from reproduction.tables import FORMATS

    return one_of(FORMATS)(incomplete)


def _complete_list(names: Iterable[str]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        from alidpfl.cli.completion import several_of

        return several_of(names)(incomplete)

    return complete


_Name = Annotated[
    str,
    typer.Argument(
        help="small, medium, large, heterogeneity (Tables I to IV), tuning (the search), or a .toml file of your own.",
        autocompletion=_complete_grid,
    ),
]
_Datasets = Annotated[
    str, typer.Option(help="Only these data sets, such as mnist,fashion_mnist.", autocompletion=_complete_list(SOURCES))
]
_Methods = Annotated[str, typer.Option(help="Only these methods, such as ali_dpfl,ours:ratio.")]
_Columns = Annotated[str, typer.Option("--cells", help="Only these columns, such as 'R_s = R_c/2'.")]
_Accountants = Annotated[
    str, typer.Option(help="Only these accountants, such as pld.", autocompletion=_complete_list(ACCOUNTANTS))
]
_Seeds = Annotated[int, typer.Option(help="Number of seeds of every cell, from 0 on.")]
_Store = Annotated[
    Path | None,
    typer.Option(help="Folder with the results. Default: reproduction/results of the clone.", show_default=False),
]


def reproduce(  # noqa: PLR0917 - they are options
    name: _Name,
    datasets: _Datasets = "",
    methods: _Methods = "",
    columns: _Columns = "",
    accountants: _Accountants = "",
    seeds: _Seeds = 1,
    jobs: Annotated[int, typer.Option(help="Number of cells to run at once.")] = 1,
    limit: Annotated[
        str | None, typer.Option(help="Stop after this time, such as 2h. The same command continues later.")
    ] = None,
    store: _Store = None,
) -> None:
    r"""Run the cells of a table that have no result yet. You can stop it at any time: the same command continues.

    Example:
      alidpfl reproduce small --datasets mnist,fashion_mnist --seeds 3 \
        --jobs 2 --limit 2h
    """
    from reproduction.results import RESULTS, STORE, Results, lines_of
    from reproduction.run import reproduce as run_all

    folder = store or RESULTS
    grid, cells = _cells(name, _chosen(datasets, methods, columns, accountants), seeds)
    results = Results(folder / STORE)
    results.read_lines(lines_of(grid.name, folder))
    screen = _Screen(on_finished=lambda: _write(grid, results, folder))
    try:
        with screen.progress:
            tally = run_all(
                cells,
                results,
                folder / "runs",
                jobs=jobs,
                limit=option("limit", limit, as_seconds),
                on_progress=screen.show,
            )
    except KeyboardInterrupt:
        _write(grid, results, folder)
        typer.echo("alidpfl: stopped; the same command continues", err=True)
        raise typer.Exit(_EXIT_INTERRUPTED) from None
    _write(grid, results, folder)
    _conclude(tally)


def tables(  # noqa: PLR0917 - they are options
    name: _Name,
    datasets: _Datasets = "",
    methods: _Methods = "",
    columns: _Columns = "",
    accountants: _Accountants = "",
    seeds: Annotated[int | None, typer.Option(help="Only this many seeds, from 0 on.")] = None,
    store: _Store = None,
    form: Annotated[
        str, typer.Option("--format", help="markdown, latex or csv.", autocompletion=_complete_format)
    ] = "markdown",
) -> None:
    """Print our results next to the paper's: mean ± sd over seeds, n and the difference.

    Example:
      alidpfl tables small --datasets mnist --format csv
    """
    from alidpfl.inputs.names import named
    from reproduction.results import RESULTS, known_in
    from reproduction.tables import FORMATS, make_table

    folder = store or RESULTS
    render = named("format", form, FORMATS)
    grid, cells = _cells(name, _chosen(datasets, methods, columns, accountants), seeds)
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: name the folder with the results by --store")
    typer.echo(render(make_table(grid, cells, known_in(folder, [grid.name]))), nl=False)


def report() -> None:
    """Write the pages about the results and their pictures into docs, from reproduction/results.

    Example:
      python -m reproduction report
    """
    from reproduction.pages import write

    for path in write():
        typer.echo(path)


def _chosen(datasets: str, methods: str, columns: str, accountants: str) -> dict[str, list[str]]:
    wanted = {"datasets": datasets, "methods": methods, "columns": columns, "accountants": accountants}
    return {key: [part.strip() for part in text.split(",") if part.strip()] for key, text in wanted.items()}


def _cells(name: str, chosen: dict[str, list[str]], seeds: int | None) -> "tuple[Grid, list[Cell]]":
    from reproduction.grid import MOST_SEEDS, cells, load_grid

    seeds = MOST_SEEDS if seeds is None else seeds
    if not 1 <= seeds <= MOST_SEEDS:
        raise ConfigError(f"seeds={seeds} must be from 1 to {MOST_SEEDS}")
    grid = load_grid(name)
    return grid, list(cells(grid, seeds=seeds, **chosen))


def _write(grid: "Grid", results: "Results", folder: Path) -> None:
    from reproduction.grid import MOST_SEEDS, cells
    from reproduction.results import lines_of

    results.write_lines(lines_of(grid.name, folder), {cell.key for cell in cells(grid, seeds=MOST_SEEDS)})


def _conclude(tally: "Tally") -> None:
    for label, error in tally.failed.items():
        typer.echo(f"alidpfl: {label}: {error}", err=True)
    left = tally.total - tally.stored - tally.finished - len(tally.failed)
    then = "; the same command continues" if left else ""
    typer.echo(
        f"{tally.finished} cells run, {tally.stored} had a result, {len(tally.failed)} failed, {left} left{then}",
        err=True,
    )
    if tally.failed:
        raise typer.Exit(_EXIT_FAILED)


class _Screen:
    """Progress and time left. If the output is not a terminal, one line for each finished cell."""

    def __init__(self, on_finished: Callable[[], None]) -> None:
        from alidpfl.cli.progress import BAR, DESCRIPTION, moving_line

        self._on_finished, self._finished = on_finished, 0
        self.progress = moving_line(BAR, MofNCompleteColumn(), DESCRIPTION)
        self._is_terminal = self.progress.console.is_terminal
        self._task = self.progress.add_task("loading", total=None)
        self._printed = 0

    def show(self, tally: "Tally", running: "Sequence[Cell]") -> None:
        """Show the progress. Results of finished cells are written first."""
        if tally.finished > self._finished:
            self._finished = tally.finished
            self._on_finished()
        from alidpfl.reporting.plan_tables import duration

        left = "" if tally.seconds_left is None else f"{duration(tally.seconds_left)} left; "
        done = tally.stored + tally.finished + len(tally.failed)
        now = " | ".join(cell.label for cell in running)
        self.progress.update(self._task, total=tally.total, completed=done, description=left + now)
        if not self._is_terminal and done > self._printed:
            self._printed = done
            typer.echo(f"{done} of {tally.total} cells; {left}{now}".rstrip("; "), err=True)
