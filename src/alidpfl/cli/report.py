"""The command `report`: write runs and tables of results as one page."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from alidpfl.cli.reproduction import in_clone, reproduction
from alidpfl.errors import AliDpflError, ConfigError

if TYPE_CHECKING:
    from alidpfl.reporting import RunSnapshot
    from alidpfl.reporting.report_page import Split

_MAX_BYTES = 6_000_000
_EXTENSIONS = (".html", ".htm")


def report(
    paths: Annotated[
        list[Path],
        Argument(help="Folders of runs, or the results folder of `reproduce`, with .toml files of your grids."),
    ],
    out: Annotated[Path, Option("--out", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one page with summary, curves, tables, settings and caveats. It opens from disk without a network.

    Example:
      alidpfl report runs/first runs/second -o report.html
    """
    from alidpfl.reporting import RunSnapshot
    from alidpfl.reporting.report_page import report_page
    from alidpfl.store import RunDirectory
    from alidpfl.store.files import write_atomically

    if out.suffix.lower() not in _EXTENSIONS:
        raise ConfigError(f"--out {out}: the page is HTML; its extension must be {' or '.join(_EXTENSIONS)}")
    runs = [RunSnapshot.load(path) for path in paths if RunDirectory.is_run(path)]
    others = [path for path in paths if not RunDirectory.is_run(path)]
    content = report_page(runs, _splits(runs), _results(others) if others else []).encode()
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"the page would have {len(content) / 1e6:.1f} MB; give fewer runs at a time")
    write_atomically(out, content)
    typer.echo(f"written to {out}")


def _results(paths: list[Path]) -> list[Any]:
    """Return a report of each folder of results, by the grids that ship and those in `paths`."""
    if not in_clone():
        raise ConfigError(f"{paths[0]} is not a run directory; folders of results need a clone of the repository")
    grids = [reproduction("grid").load_grid(str(path)) for path in paths if path.suffix == ".toml"]
    folders = [path for path in paths if path.suffix != ".toml"]
    if not folders:
        raise ConfigError(f"{paths[0]} is a grid; give the folder of its results too, such as reproduction/results")
    return [reproduction("report").results_report(path, grids) for path in folders]


def _splits(runs: "list[RunSnapshot]") -> "list[Split]":
    """Return which client holds what, for public data only: for private data it would be a leak."""
    from alidpfl.config import parse_config
    from alidpfl.reporting.report_page import Split
    from alidpfl.runs.data import public_split, split_title

    found: dict[str, Split] = {}
    for run in runs:
        if run.members is not None:  # the owners' records, of which the configuration knows nothing
            continue
        with suppress(AliDpflError):  # the data are not on this machine
            config = parse_config(run.config)
            title, counts = split_title(config), public_split(config)
            if counts is not None:
                found.setdefault(title, Split(title=title, counts=counts))
    return list(found.values())
