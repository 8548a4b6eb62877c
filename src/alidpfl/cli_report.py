"""The command `report`: runs and tables as one page to hand on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alidpfl.errors import AliDpflError, ConfigError

if TYPE_CHECKING:
    from alidpfl.views import RunSnapshot
    from alidpfl.views.report_page import ResultChart, ResultTable, Split

_LARGEST = 6_000_000


def report(
    paths: Annotated[list[Path], typer.Argument(help="Folders of runs, or the results folder of `reproduce`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """One page with summary, curves, tables, settings and caveats, which opens from disk without a network.

    Example: alidpfl report runs/first runs/second -o report.html
    """
    from alidpfl.store.files import write_atomically
    from alidpfl.views.report_page import report_page

    runs = [_run(path) for path in paths if _is_run(path)]
    tables: list[ResultTable] = []
    charts: list[ResultChart] = []
    for path in paths:
        if not _is_run(path):
            found = _results(path)
            tables += found[0]
            charts += found[1]
    content = report_page(runs, _splits(runs), tables, charts).encode()
    if len(content) > _LARGEST:
        raise ConfigError(f"the page would have {len(content) / 1e6:.1f} MB; give fewer runs at a time")
    write_atomically(out, content)
    typer.echo(f"written to {out}")


def _is_run(path: Path) -> bool:
    return (path / "config.toml").is_file()


def _run(path: Path) -> "RunSnapshot":
    from alidpfl.views import RunSnapshot

    return RunSnapshot.load(path)


def _results(path: Path) -> "tuple[list[ResultTable], list[ResultChart]]":
    from alidpfl.reproduction.grid import NAMES, load_grid
    from alidpfl.reproduction.report import grid_report
    from alidpfl.reproduction.results import Results

    present = [name for name in NAMES if (path / f"{name}.jsonl").is_file()]
    if not present and not (path / "results.sqlite").is_file():
        raise ConfigError(f"{path} is neither a run nor a folder of results; give a folder with config.toml or *.jsonl")
    results = Results(path / "results.sqlite")
    tables: list[ResultTable] = []
    charts: list[ResultChart] = []
    for name in NAMES:
        results.read_lines(path / f"{name}.jsonl")
        found = grid_report(load_grid(name), results)
        tables += found[0]
        charts += found[1]
    return tables, charts


def _splits(runs: "list[RunSnapshot]") -> "list[Split]":
    """Who holds what, of data that are public anyway; of private data it would be a leak."""
    from alidpfl.runs.config_file import parse_config
    from alidpfl.runs.public import public_split
    from alidpfl.views.report_page import Split

    found: dict[str, Split] = {}
    for run in runs:
        try:
            config = parse_config(run.config)
            counts = public_split(config)
        except AliDpflError:  # the data are not on this machine
            continue
        if counts is not None:
            title = f"{config.data.name}, {config.partition}, {config.data.clients} clients, seed {config.run.seed}"
            found.setdefault(title, Split(title=title, counts=counts))
    return list(found.values())
