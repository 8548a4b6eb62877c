"""The command `predict`: scores of new rows by the model of a run."""

from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from alidpfl.errors import ConfigError


def predict(
    run: Annotated[Path, Argument(help="Folder of a finished run on tables.")],
    table: Annotated[Path, Argument(help="CSV or Parquet file with new rows, as the schema describes them.")],
    out: Annotated[
        Path | None, Option("--out", "-o", help="CSV or Parquet file to write, by its suffix. Default: print CSV.")
    ] = None,
) -> None:
    """Predict classes, numbers or labels for the rows of a table, in their order.

    The model carries its schema, so raw rows are enough. Columns of target and
    person are ignored: they may be missing or empty. A prediction reads no
    training record, so it costs no ε.

    Example:
      alidpfl predict runs/hospitals new.csv -o scores.csv
    """
    from alidpfl.runs.trained import TableModel, load_model
    from alidpfl.store.files import write_atomically
    from alidpfl.tables.read import SUFFIXES

    suffix = ".csv" if out is None else out.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"--out {out} must end in {' or '.join(SUFFIXES)}; give another file")
    model = load_model(run)
    if not isinstance(model, TableModel):
        raise ConfigError(f"{run} was not trained on tables: use alidpfl.load_model in Python")
    scores = model.predict(table)
    import polars as pl

    columns: dict[str, Any] = {}
    if model.kind == "class":
        columns["predicted"] = [model.classes[best] for best in scores.argmax(1)]
    elif model.kind == "number":
        columns["predicted"] = scores
    for number, name in enumerate(model.classes or model.labels):
        columns[f"probability_{name}"] = scores[:, number]
    frame, content = pl.DataFrame(columns), BytesIO()
    if suffix == ".csv":
        frame.write_csv(content)
    else:
        frame.write_parquet(content)
    if out is None:
        typer.echo(content.getvalue().decode(), nl=False)
        return
    write_atomically(out, content.getvalue())
    typer.echo(f"{len(scores):,} rows in {out}")
