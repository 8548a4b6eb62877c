"""The command `report`: runs and tables as one page to hand on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alidpfl.errors import AliDpflError, ConfigError

if TYPE_CHECKING:
    from alidpfl.reporting import RunSnapshot
    from alidpfl.reporting.report_page import Split

_LARGEST = 6_000_000
_ENDINGS = (".html", ".htm")


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Folders of runs, or the results folder of `reproduce`, with .toml files of own grids."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """One page with summary, curves, tables, settings and caveats, which opens from disk without a network.

    Example:
      alidpfl report runs/first runs/second -o report.html
    """
    from reproduction.grid import load_grid
    from reproduction.report import results_report

    from alidpfl.reporting.report_page import report_page
    from alidpfl.store import RunDirectory
    from alidpfl.store.files import write_atomically

    if out.suffix.lower() not in _ENDINGS:
        raise ConfigError(f"--out {out}: the page is HTML; its extension must be {' or '.join(_ENDINGS)}")
    runs = [_run(path) for path in paths if RunDirectory.is_run(path)]
    grids = [load_grid(str(path)) for path in paths if path.suffix == ".toml"]
    folders = [path for path in paths if not RunDirectory.is_run(path) and path.suffix != ".toml"]
    if grids and not folders:
        raise ConfigError(f"{paths[0]} is a grid; give the folder of its results too, such as results")
    results = [results_report(path, grids) for path in folders]
    content = report_page(runs, _splits(runs), results).encode()
    if len(content) > _LARGEST:
        raise ConfigError(f"the page would have {len(content) / 1e6:.1f} MB; give fewer runs at a time")
    write_atomically(out, content)
    typer.echo(f"written to {out}")


def _run(path: Path) -> "RunSnapshot":
    from alidpfl.reporting import RunSnapshot

    return RunSnapshot.load(path)


def _splits(runs: "list[RunSnapshot]") -> "list[Split]":
    """Who holds what, of data that are public anyway; of private data it would be a leak."""
    from alidpfl.config.load import parse_config
    from alidpfl.reporting.report_page import Split
    from alidpfl.runs.data import public_split, split_title

    found: dict[str, Split] = {}
    for run in runs:
        if run.members is not None:  # the owners' records, of which the configuration knows nothing
            continue
        try:
            config = parse_config(run.config)
            counts = public_split(config)
        except AliDpflError:  # the data are not on this machine
            continue
        if counts is not None:
            title = split_title(config)
            found.setdefault(title, Split(title=title, counts=counts))
    return list(found.values())
