"""The command `statistics`: noised means, scales, quantiles and histograms of tables."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.table import Table
from typer import Argument, Option

from alidpfl.cli.options import AsJson
from alidpfl.cli.progress import print_written, progress_bar, wide_console
from alidpfl.errors import ConfigError, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from alidpfl.tables.estimates import ColumnStatistics, Estimate
    from alidpfl.types import Unit

_MOST_CLIENTS = 8  # side by side on a terminal


def statistics(
    *,
    schema: Annotated[Path | None, Option(help="The schema of the tables; see `alidpfl schema`.")] = None,
    data: Annotated[
        list[Path] | None, Option(help="CSV or Parquet files, one for each client, or a folder of them.")
    ] = None,
    more: Annotated[list[Path] | None, Argument(metavar="", help="Further files of --data.")] = None,
    epsilon: Annotated[float, Option(help="ε that every client spends on this release.")] = 0.5,
    delta: Annotated[float, Option(help="δ that every client spends on this release.")] = 1e-6,
    bins: Annotated[int, Option(help="Bins of each number between its bounds; 0: no histograms and quantiles.")] = 20,
    unit: Annotated[str, Option(help="What ε protects: record, or person for all rows of a person.")] = "record",
    max_records: Annotated[int | None, Option(help="With --unit person: the most rows of a person that count.")] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="New JSON file to write.")] = None,
    show: Annotated[Path | None, Option(help="Show a file that -o or a deployment wrote, and release nothing.")] = None,
    as_json: AsJson = False,
) -> None:
    r"""Show means, scales, quantiles and shares of missing values, with noise.

    Every client releases one noised sum over its rows. Intervals (±, 95 %) say
    how far the noise may have moved a value. Every call costs every client ε
    and δ anew, on top of whatever else is released from these rows. All rows
    are read, also those that runs hold out. The number of rows of each file
    counts as public, and is shown without noise. With --unit person, a person
    counts once, by the mean of her rows, and the number of persons is public.

    Example:
      alidpfl statistics --schema schema.toml --data hospitals/*.csv \
        --epsilon 0.5 --delta 1e-6 -o statistics.json
    """
    if show is not None:
        stored = _read(show)
        if as_json:
            typer.echo(json.dumps(stored, indent=2, allow_nan=False))
        else:
            show_statistics(stored)
        return
    if schema is None or not data:
        raise ConfigError("give --schema and --data, the schema and files of tables; or --show and a file")
    if out is not None and out.exists():  # before anything is spent
        raise ConfigError(f"--out {out} exists, and a new release costs epsilon again; keep it, and give another file")
    from alidpfl.privacy import PrivacyBudget
    from alidpfl.runs.statistics import table_statistics
    from alidpfl.store.files import write_atomically

    budget = PrivacyBudget(epsilon=epsilon, delta=delta)
    with progress_bar("reading") as on_progress:
        found = table_statistics(
            schema,
            [*data, *(more or [])],
            budget=budget,
            bins=bins,
            unit=cast("Unit", unit),
            max_records=max_records,
            on_progress=on_progress,
        )
    values = found.to_json()
    document = json.dumps(values, indent=2, allow_nan=False)
    if out is not None:
        write_atomically(out, document.encode() + b"\n")
    for warning in found.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if as_json:
        typer.echo(document)
        return
    show_statistics(values)
    typer.echo(
        f"every client has spent ε = {epsilon:g}, δ = {delta:g} on this release; another one costs the same again"
    )
    print_written(out)


def _read(path: Path) -> dict[str, Any]:
    from alidpfl.store.files import disk_errors

    with disk_errors("read", path):
        content = path.read_bytes()
    try:
        values: dict[str, Any] = json.loads(content)
        if values["format"] != "alidpfl-statistics-1":
            raise ValueError(values["format"])
        for part in (values, *values["clients"].values()):
            _columns(part)
        json.dumps(values, allow_nan=False)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError(f"--show {path} has no statistics that alidpfl wrote; give another file") from None
    return values


def _columns(values: "Mapping[str, Any]") -> "list[ColumnStatistics]":
    from alidpfl.tables.estimates import ColumnStatistics

    return [ColumnStatistics.from_json(printable(name), column) for name, column in values["columns"].items()]


def show_statistics(values: "Mapping[str, Any]") -> None:
    """Print two tables of a document: numbers overall, and means and shares by client."""
    columns, clients = _columns(values), [*values["clients"].items()]
    console, units = wide_console(), "persons" if values.get("unit") == "person" else "rows"
    if any(column.kind == "number" for column in columns):
        console.print(_numbers(columns, int(values[units]), units))
    shown = {printable(name): _columns(client) for name, client in clients[:_MOST_CLIENTS]}
    console.print(_by_client(columns, shown))
    if len(shown) < len(clients):
        typer.echo(f"and {len(clients) - len(shown)} more clients; see --out")
    typer.echo("± is the noise alone, at 95 %: the value of these very rows lies within it, 19 times in 20")
    typer.echo(f"the number of {units} of each client counts as public: it has no noise")
    if bins := int(values["bins"]):
        typer.echo(f"quantiles are known to the width of a bin: a number's range divided by {bins}")


def _numbers(columns: "Sequence[ColumnStatistics]", count: int, units: str) -> Table:
    from alidpfl.tables.estimates import QUANTILES

    has_quantiles = any(column.quantiles is not None for column in columns)
    shares = [f"{100 * share:g} %" for share in QUANTILES] if has_quantiles else []
    table = Table("column", "missing", "mean", "deviation", *shares, title=f"numbers of all {count:,} {units}")
    for column in columns:
        if column.kind == "number":
            quantiles = column.quantiles or {}
            cells = [_told(quantiles.get(share)) for share in QUANTILES] if has_quantiles else []
            is_log = column.scale == "log"
            name = f"{column.column} (log)" if is_log else column.column
            factor = "×/÷ " if is_log and column.deviation is not None else ""
            deviation = f"{factor}{_told(column.deviation)}"
            table.add_row(name, _told(column.missing, 100, " %"), _told(column.mean), deviation, *cells)
    return table


def _by_client(columns: "Sequence[ColumnStatistics]", clients: "dict[str, list[ColumnStatistics]]") -> Table:
    table = Table("column", "", "all", *clients, title="means and shares by client")
    for number, column in enumerate(columns):
        others = [list(_facts(of_client[number])) for of_client in clients.values()]
        for place, (what, value) in enumerate(_facts(column)):
            table.add_row("" if place else column.column, what, value, *(facts[place][1] for facts in others))
    return table


def _facts(column: "ColumnStatistics") -> "Iterator[tuple[str, str]]":
    """Yield what to compare between clients: always the same facts for the same column."""
    if column.kind == "number":
        yield "mean", _told(column.mean)
    elif column.shares is None:
        yield "yes", _told(column.yes, 100, " %")
    else:
        yield from ((name, _told(share, 100, " %")) for name, share in column.shares.items())
    if column.missing is not None:
        yield "missing", _told(column.missing, 100, " %")


def _told(found: "Estimate | None", factor: float = 1.0, unit: str = "") -> str:
    """Return a value with its noise, to two digits of the noise."""
    if found is None:
        return "·"
    reach = factor * max(found.high - found.value, found.value - found.low)
    digits = 0 if reach <= 0 else max(0, 1 - math.floor(math.log10(reach)))
    return f"{factor * found.value:.{digits}f} ± {reach:.{digits}f}{unit}"
