"""The commands `reproduce` and `tables`: the paper's tables, ours beside theirs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import MofNCompleteColumn

from alidpfl.cli.completion import ACCOUNTANTS, FORMATS, GRIDS, REAL_DATA, one_of, several_of
from alidpfl.cli.progress import BAR, DESCRIPTION, moving_line
from alidpfl.errors import ConfigError
from alidpfl.inputs.checks import as_seconds, option

if TYPE_CHECKING:
    from reproduction.grid import Cell, Grid
    from reproduction.results import Results
    from reproduction.run import Tally

_EXIT_FAILED, _EXIT_INTERRUPTED = 1, 130

_Name = Annotated[
    str,
    typer.Argument(
        help="small, medium, large, heterogeneity (Tables I to IV), tuning (their search), or a .toml of your own.",
        autocompletion=one_of(GRIDS),
    ),
]
_Datasets = Annotated[
    str, typer.Option(help="Only these, such as mnist,fashion_mnist.", autocompletion=several_of(REAL_DATA))
]
_Methods = Annotated[str, typer.Option(help="Only these, such as ali_dpfl,ours:ratio.")]
_Columns = Annotated[str, typer.Option("--cells", help="Only these columns, such as 'R_s = R_c/2'.")]
_Accountants = Annotated[str, typer.Option(help="Only these, such as pld.", autocompletion=several_of(ACCOUNTANTS))]
_Seeds = Annotated[int, typer.Option(help="Seeds 0, 1, ... of every cell.")]
_Store = Annotated[Path, typer.Option(help="Folder of the results: results.sqlite, and JSON lines to commit.")]


def reproduce(  # noqa: PLR0917 - they are options
    name: _Name,
    datasets: _Datasets = "",
    methods: _Methods = "",
    columns: _Columns = "",
    accountants: _Accountants = "",
    seeds: _Seeds = 1,
    jobs: Annotated[int, typer.Option(help="Cells at a time.")] = 1,
    limit: Annotated[str | None, typer.Option(help="Stop after, such as 2h; what was begun goes on next time.")] = None,
    store: _Store = Path("results"),
) -> None:
    r"""Run the cells of a table of the paper that have no result yet. Stop it at will: it goes on where it was.

    Example:
      alidpfl reproduce small --datasets mnist,fashion_mnist --seeds 3 \
        --jobs 2 --limit 2h
    """
    from reproduction.results import STORE, Results, lines_of
    from reproduction.run import reproduce as run_all

    grid, cells = _listed(name, _chosen(datasets, methods, columns, accountants), seeds)
    results = Results(store / STORE)
    results.read_lines(lines_of(grid.name, store))
    screen = _Screen(on_finished=lambda: _write(grid, results, store))
    try:
        with screen.progress:
            tally = run_all(
                cells,
                results,
                store / "runs",
                jobs=jobs,
                limit=option("limit", limit, as_seconds),
                on_progress=screen.show,
            )
    except KeyboardInterrupt:
        _write(grid, results, store)
        typer.echo("alidpfl: stopped; the same command goes on", err=True)
        raise typer.Exit(_EXIT_INTERRUPTED) from None
    _write(grid, results, store)
    _conclude(tally)


def tables(  # noqa: PLR0917 - they are options
    name: _Name,
    datasets: _Datasets = "",
    methods: _Methods = "",
    columns: _Columns = "",
    accountants: _Accountants = "",
    seeds: Annotated[int | None, typer.Option(help="Only seeds 0 to this, less one.")] = None,
    store: _Store = Path("results"),
    form: Annotated[
        str, typer.Option("--format", help="markdown, latex or csv.", autocompletion=one_of(FORMATS))
    ] = "markdown",
) -> None:
    """Ours beside the paper's: mean ± sd over seeds, n and the difference, of what has been run so far.

    Example:
      alidpfl tables small --datasets mnist --format csv
    """
    from alidpfl.inputs.names import named
    from reproduction.results import known_in
    from reproduction.tables import FORMATS, make_table

    render = named("format", form, FORMATS)
    grid, cells = _listed(name, _chosen(datasets, methods, columns, accountants), seeds)
    if not store.is_dir():
        raise ConfigError(f"there is no folder {store}: name the one with the results by --store, or reproduce first")
    typer.echo(render(make_table(grid, cells, known_in(store, [grid.name]))), nl=False)


def _chosen(datasets: str, methods: str, columns: str, accountants: str) -> dict[str, list[str]]:
    wanted = {"datasets": datasets, "methods": methods, "columns": columns, "accountants": accountants}
    return {key: [part.strip() for part in text.split(",") if part.strip()] for key, text in wanted.items()}


def _listed(name: str, chosen: dict[str, list[str]], seeds: int | None) -> "tuple[Grid, list[Cell]]":
    from reproduction.grid import MOST_SEEDS, cells, load_grid

    seeds = MOST_SEEDS if seeds is None else seeds
    if not 1 <= seeds <= MOST_SEEDS:
        raise ConfigError(f"seeds={seeds} must be from 1 to {MOST_SEEDS}")
    grid = load_grid(name)
    return grid, list(cells(grid, seeds=seeds, **chosen))


def _write(grid: "Grid", results: "Results", store: Path) -> None:
    from reproduction.grid import MOST_SEEDS, cells
    from reproduction.results import lines_of

    results.write_lines(lines_of(grid.name, store), {cell.key for cell in cells(grid, seeds=MOST_SEEDS)})


def _conclude(tally: "Tally") -> None:
    for label, error in tally.failed.items():
        typer.echo(f"alidpfl: {label}: {error}", err=True)
    left = tally.total - tally.stored - tally.finished - len(tally.failed)
    then = "; the same command goes on" if left else ""
    typer.echo(
        f"{tally.finished} cells run, {tally.stored} were there, {len(tally.failed)} failed, {left} left{then}",
        err=True,
    )
    if tally.failed:
        raise typer.Exit(_EXIT_FAILED)


class _Screen:
    """Total progress and time left; on a pipe a line for each finished cell."""

    def __init__(self, on_finished: Callable[[], None]) -> None:
        self._on_finished, self._finished = on_finished, 0
        self.progress = moving_line(BAR, MofNCompleteColumn(), DESCRIPTION)
        self._is_terminal = self.progress.console.is_terminal
        self._task = self.progress.add_task("loading", total=None)
        self._told = 0

    def show(self, tally: "Tally", running: "Sequence[Cell]") -> None:
        """How far it is; whatever is finished is put away first."""
        if tally.finished > self._finished:
            self._finished = tally.finished
            self._on_finished()
        from alidpfl.reporting.plan_tables import duration

        left = "" if tally.seconds_left is None else f"{duration(tally.seconds_left)} left; "
        done = tally.stored + tally.finished + len(tally.failed)
        now = " | ".join(cell.label for cell in running)
        self.progress.update(self._task, total=tally.total, completed=done, description=left + now)
        if not self._is_terminal and done > self._told:
            self._told = done
            typer.echo(f"{done} of {tally.total} cells; {left}{now}".rstrip("; "), err=True)
