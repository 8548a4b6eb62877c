"""Read tables: CSV and Parquet files, and rows in Python, as polars frames with the columns of a schema.

Files are read once, strictly. An error names the file, the column and the row for the owner, and never quotes a value.
Row 1 is the first row below the header.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from alidpfl.errors import DataError, printable
from alidpfl.inputs.names import nearest
from alidpfl.tables.schema import Schema

if TYPE_CHECKING:
    import polars as pl

Rows: TypeAlias = Any
"""Rows in Python: a pandas or polars frame, a mapping of columns, a list of mappings, one mapping, or a file's path."""

SUFFIXES = (".csv", ".parquet")

_HEADER_BYTES = 1 << 20
_OTHER_DELIMITERS = ";\t|"
_CSV_FORM = "write it as CSV: UTF-8, with commas between fields, and line feeds between rows"


def read_table(path: str | Path, schema: Schema, *, needs_target: bool = True) -> "pl.DataFrame":
    """Read the columns of a schema from a file. Other columns are not even parsed.

    Args:
        path: a .csv or .parquet file.
        schema: names the columns.
        needs_target: False for rows to predict: target and person may then be missing.

    Returns:
        The frame: texts from CSV, the file's own types from Parquet.

    Raises:
        DataError: the file cannot be read, or its columns are not those of the schema.
    """
    path = Path(path)
    header = file_header(path)
    names = checked_columns(header, schema, str(path), needs_target=needs_target)
    return read_columns(path, header, names)


def read_columns(path: Path, header: list[str], names: list[str]) -> "pl.DataFrame":
    """Read these columns of a file with this header."""
    frame = _read_csv(path, header, names) if path.suffix.lower() == ".csv" else _read_parquet(path, names)
    if frame.height == 0:
        raise DataError(f"{path} has a header and no rows; add rows, or leave the file out")
    return frame


def file_header(path: Path) -> list[str]:
    """Return the names of a file's columns. Names that stand twice are refused."""
    if path.suffix.lower() not in SUFFIXES and path.exists():
        raise DataError(f"{path}: tables are read from .csv and .parquet files; convert it")
    try:
        with path.open("rb") as file:
            start = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the path") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); give a file that this user may read") from None
    if not start:
        raise DataError(f"{path} is empty; write a header and rows into it")
    header = _csv_header(path, start) if path.suffix.lower() == ".csv" else _parquet_header(path)
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise DataError(f"{path} has two columns {_quoted(twice[0])}; rename or drop one")
    return header


def checked_columns(header: Sequence[str], schema: Schema, source: str, *, needs_target: bool) -> list[str]:
    """Return the columns to read: those of the schema that the table has. Refuse missing and unknown columns.

    Args:
        header: names of the table's columns.
        schema: names the columns that are needed.
        source: where the table comes from, for errors.
        needs_target: False if target and person may be missing.

    Returns:
        The names, in the order of the schema.

    Raises:
        DataError: a column is missing, or the schema does not name it.
    """
    optional = [*schema.target_columns, *([] if schema.person is None else [schema.person])]
    needed = [*schema.columns, *(optional if needs_target else [])]
    for name in needed:
        if name not in header:
            meant = nearest(name, [found for found in header if found not in schema.columns])
            hint = "" if meant is None else f" (it has {_quoted(meant)})"
            raise DataError(f"{source} has no column {_quoted(name)}{hint}; rename or add it: the schema needs it")
    if schema.extra_columns == "refuse":
        for name in header:
            if name not in needed and name not in optional:
                raise DataError(
                    f"{source}: the schema does not name the column {_quoted(name)}; name it, drop it from the table, "
                    'or set extra_columns = "ignore" in the schema'
                )
    return [*needed, *(name for name in optional if not needs_target and name in header)]


def frame_of(rows: Rows, schema: Schema, *, needs_target: bool = False) -> "pl.DataFrame":
    """Return rows in Python as a frame with the columns of a schema; see `Rows` for what they may be."""
    import polars as pl

    if isinstance(rows, str | Path):
        return read_table(rows, schema, needs_target=needs_target)
    source = "rows"
    if isinstance(rows, pl.LazyFrame):
        rows = rows.collect()
    if isinstance(rows, pl.DataFrame):
        frame = rows
    elif hasattr(rows, "dtypes") and hasattr(rows, "isna"):  # pandas, which need not be installed
        frame = _from_pandas(rows, source)
    else:
        frame = _from_mappings(rows, source)
    if frame.height == 0:
        raise DataError(f"{source}: there are none; give at least one")
    return frame.select(checked_columns(frame.columns, schema, source, needs_target=needs_target))


def _csv_header(path: Path, start: bytes) -> list[str]:
    if start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in start:
        raise DataError(f"{path} is not UTF-8 text (UTF-16?); save it as UTF-8")
    if b"\r" in start and b"\n" not in start:
        raise DataError(f"{path} has no line feeds, only carriage returns; {_CSV_FORM}")
    # A character may be cut at the end of what was read; bad bytes below the header are found by `_read_csv`.
    text = start.decode("utf-8-sig", errors="replace")
    try:
        header = next(csv.reader(io.StringIO(text, newline="")))
    except (StopIteration, csv.Error):
        header = []
    if not any(header):
        raise DataError(f"{path} begins with an empty line; begin with the names of the columns")
    if any("\ufffd" in name for name in header):
        raise DataError(f"{path} is not UTF-8 text: see its header; save it as UTF-8")
    if len(header) == 1 and (found := [sign for sign in _OTHER_DELIMITERS if sign in header[0]]):
        sign = {"\t": "a tab"}.get(found[0], repr(found[0]))
        raise DataError(f"{path} has one column with {sign} in its name; divide columns by commas")
    return header


def _read_csv(path: Path, header: list[str], names: list[str]) -> "pl.DataFrame":
    import polars as pl

    try:
        # Every field as text: numbers are parsed column by column, so that an error can name the row.
        # Names are ours: polars keeps the doubled quotes of quoted names.
        table = pl.scan_csv(path, infer_schema=False, new_columns=header)
        frame = table.select([*names, *_last_of(header, names)]).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError):  # their texts quote values
        quote = _find_bad_row(path, len(header))
        if quote is not None:
            told = f"{path}: row {quote} has a quote within a text; put quotes around the text, and double this one"
            raise DataError(told) from None
        raise DataError(f"{path} cannot be read as CSV; {_CSV_FORM}") from None
    if frame[header[-1]].null_count():  # a row that is too short has no last field, and polars fills it up
        _find_bad_row(path, len(header))
    return frame.select(names)


def _last_of(header: list[str], names: list[str]) -> list[str]:
    return [] if header[-1] in names else [header[-1]]


def _find_bad_row(path: Path, width: int) -> int | None:
    """Raise an error that names the first row that is not UTF-8 or has too few or too many fields, if there is one.

    Otherwise return the first row that has a quote within a text, if there is one.
    """
    number, quote = 0, None
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, fields in enumerate(csv.reader(file)):  # row 0 is the header
                if len(fields) != width and not (width == 1 and not fields):
                    raise DataError(
                        f"{path}: row {number} has {len(fields)} fields and the header has {width}; {_remedy(fields)}"
                    )
                if quote is None and any('"' in field for field in fields):
                    quote = number
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text: see row {number + 1} or below; save it as UTF-8") from None
    except csv.Error:
        raise DataError(f"{path}: row {number + 1} cannot be read; {_CSV_FORM}") from None
    return quote


def _remedy(fields: list[str]) -> str:
    return "put quotes around texts with commas, and complete short rows" if fields else "remove empty lines"


def _parquet_header(path: Path) -> list[str]:
    import polars as pl

    try:
        return list(pl.read_parquet_schema(path))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError):
        raise DataError(f"{path} is no whole Parquet file (cut short, or damaged); write or copy it again") from None


def _read_parquet(path: Path, names: list[str]) -> "pl.DataFrame":
    import polars as pl

    try:
        return pl.scan_parquet(path).select(names).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError):
        raise DataError(f"{path} is no whole Parquet file (cut short, or damaged); write or copy it again") from None


def _from_pandas(table: Any, source: str) -> "pl.DataFrame":
    """Convert a pandas frame without pyarrow: plain numbers as they are, other columns as texts."""
    import numpy as np
    import polars as pl

    names = [str(name) for name in table.columns]
    if len(set(names)) < len(names):
        raise DataError(f"{source}: two columns have the same name; rename or drop one")
    columns = []
    for place, name in enumerate(names):
        column = table.iloc[:, place]
        if isinstance(column.dtype, np.dtype) and column.dtype.kind in "fiub":
            columns.append(pl.Series(name, column.to_numpy()))
        else:
            pairs = zip(column.isna(), column.astype(object), strict=True)
            columns.append(_texts(name, (None if is_missing else value for is_missing, value in pairs)))
    return pl.DataFrame(columns)


def _from_mappings(rows: Any, source: str) -> "pl.DataFrame":
    """Convert one row, a mapping of columns, or a list of rows. A row that lacks a column has a missing value there."""
    import polars as pl

    if isinstance(rows, Mapping):
        is_scalar = [isinstance(value, str) or not isinstance(value, Iterable) for value in rows.values()]
        columns = {name: [value] for name, value in rows.items()} if all(is_scalar) else dict(rows)
    elif isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        columns = {
            name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)
        }
    else:
        raise DataError(f"{source} are a {type(rows).__name__}; give a pandas or polars frame, or mappings of columns")
    if any(isinstance(value, str) or not isinstance(value, Iterable) for value in columns.values()):
        raise DataError(f"{source}: some columns are lists and others single values; give lists of one length")
    series = [_texts(str(name), list(values)) for name, values in columns.items()]
    if len({len(column) for column in series}) > 1:
        raise DataError(f"{source}: columns have different lengths; give lists of one length")
    return pl.DataFrame(series)


def _texts(name: str, values: Iterable[Any]) -> "pl.Series":
    """Return any plain values as texts, as a CSV file would hold them."""
    import polars as pl

    texts = (
        None if value is None else str(value).lower() if isinstance(value, bool) else str(value) for value in values
    )
    return pl.Series(name, list(texts), dtype=pl.String)


def _quoted(name: str) -> str:
    return repr(printable(name, longest=100))
