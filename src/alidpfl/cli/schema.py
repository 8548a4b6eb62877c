"""The commands `schema draft` and `schema check`: the public schema of tables."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from typer import Argument, Option

from alidpfl.cli.options import AsJson
from alidpfl.cli.progress import wide_console
from alidpfl.errors import ConfigError

if TYPE_CHECKING:
    from alidpfl.tables.encode import Encoded

schema_app = typer.Typer(
    no_args_is_help=True,
    help="Draft and check the public schema of tables.\n\n"
    "Example:\n  alidpfl schema check schema.toml hospitals/north.csv",
)


@schema_app.command()
def draft(
    table: Annotated[Path, Argument(help="CSV or Parquet file with public or made-up rows.")],
    out: Annotated[Path, Option("--out", "-o", help="The schema file to write.")] = Path("schema.toml"),
    target: Annotated[
        list[str] | None,
        Option(help="Column to predict. Default: the last one. Repeat it to predict several flags (yes/no) at once."),
    ] = None,
    person: Annotated[str | None, Option(help="Column that names the person, if there is one.")] = None,
) -> None:
    """Draft a schema from public or made-up rows, for you to correct.

    Do not draft from private rows: bounds and categories read from them are a
    release that no ε covers.

    Example:
      alidpfl schema draft public.csv -o draft.toml
    """
    from alidpfl.store.files import write_atomically
    from alidpfl.tables.draft import draft_schema

    if out.exists():
        raise ConfigError(f"{out} exists; choose another -o, or move it away")
    drafted = draft_schema(table, target=target, person=person)
    write_atomically(out, drafted.text.encode())
    for name in drafted.left_out:
        typer.echo(f"note: column {name!r} has too many different texts and is left out", err=True)
    if drafted.has_number_classes:
        typer.echo(
            f'note: the classes of {drafted.targets[0]!r} are numbers; to predict a number, write kind = "number" with '
            "low and high in place of kind and values",
            err=True,
        )
    typer.echo(
        f"warning: if {table} has private rows, bounds and categories read from them are a release that no ε covers: "
        "replace them by public knowledge",
        err=True,
    )
    names = ", ".join(map(repr, drafted.targets))
    typer.echo(f"{out} predicts {names}; correct it, then: alidpfl schema check {out} TABLE")


@schema_app.command()
def check(
    schema: Annotated[Path, Argument(help="The schema file.")],
    tables: Annotated[list[Path] | None, Argument(help="CSV or Parquet files; none to check the schema alone.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check tables against a schema, and count what it changes in each column.

    For the owner alone: the counts have no noise, so keep them where the rows
    are. A value that does not fit is an error with file, column and row.

    Example:
      alidpfl schema check schema.toml hospitals/north.csv
    """
    from alidpfl.tables.encode import Encoder
    from alidpfl.tables.schema import read_schema

    agreed = read_schema(schema)
    encoder = Encoder(agreed)
    found = {path: encoder.encode(path, needs_target=True) for path in tables or []}
    if as_json:
        files = {
            str(path): {"rows": len(rows), "columns": {name: part._asdict() for name, part in rows.counts.items()}}
            for path, rows in found.items()
        }
        document = {"sha256": agreed.sha256, "width": encoder.width, "target": agreed.target.kind, "files": files}
        typer.echo(json.dumps(document))
        return
    for path, rows in found.items():
        wide_console().print(_counts(path, rows))
    typer.echo(f"a row becomes {encoder.width} values from {len(agreed.columns)} columns; target: {agreed.target.kind}")
    typer.echo(f"sha256 of the schema: {agreed.sha256}")


def _counts(path: Path, rows: "Encoded") -> Table:
    table = Table("column", "clamped", "other", "missing", title=f"{path}: {len(rows):,} rows")
    for name, counts in rows.counts.items():
        table.add_row(name, *(f"{count:,}" if count else "·" for count in counts))
    return table
