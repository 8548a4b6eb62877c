"""Draft a schema from public or made-up rows. Bounds read from private rows would be a release that no ε covers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from alidpfl.errors import ConfigError, DataError
from alidpfl.inputs.names import named
from alidpfl.tables.read import file_header, read_columns
from alidpfl.tables.schema import Schema, parse_schema
from alidpfl.tables.values import Place, is_flag_text, numbers, texts

if TYPE_CHECKING:
    import polars as pl

MAX_CATEGORIES = 20
"""More different texts than this are names or notes, not categories."""

_MIN_CLASSES = 2
_DIGITS = 2  # of a drafted bound
_HEADER = """\
# A draft, made from {source}. Correct it from public knowledge: what values are possible, not what values are there.
# Bounds and categories that were read from private rows are a release, which no epsilon covers.
# docs/how-to/tables.md explains every key.
"""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A drafted schema as a file, and what its author should know."""

    text: str
    targets: tuple[str, ...]
    """The columns of the target."""
    left_out: tuple[str, ...]
    """Columns with too many different texts."""
    has_number_classes: bool
    """Whether the target became classes, and all of them are numbers."""


def draft_schema(path: str | Path, *, target: str | Sequence[str] | None = None, person: str | None = None) -> Draft:
    """Draft a schema from a file of public or made-up rows.

    Args:
        path: a .csv or .parquet file.
        target: the column to predict, or several flags to predict at once. Default: the last column.
        person: the column that names the person, if there is one.

    Returns:
        The draft, which is a valid schema.

    Raises:
        ConfigError: there is no such column, or a target is named twice.
        DataError: the file cannot be read, the target has one value only, or one of several targets is no flag.
    """
    path = Path(path)
    header = file_header(path)
    chosen = (target,) if isinstance(target, str) else tuple(target or header[-1:])
    for name in (*chosen, *([] if person is None else [person])):
        named("column", name, dict.fromkeys(header))
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"--target {', '.join(chosen)}: a column is there twice; name each column once")
    frame = read_columns(path, header, header)
    found = {name: _column(frame[name], str(path)) for name in header if name not in (*chosen, person)}
    columns = {name: column for name, column in found.items() if column is not None}
    if not columns:
        raise ConfigError(
            f"{path} has no column beside the target {', '.join(map(repr, chosen))} that could be an input; add one"
        )
    drafted = _target(frame[chosen[0]], str(path)) if len(chosen) == 1 else _labels(frame[list(chosen)], str(path))
    values: dict[str, Any] = {"target": drafted} | ({} if person is None else {"person": person})
    schema = parse_schema({**values, "columns": columns}, str(path))
    left_out = tuple(name for name, column in found.items() if column is None)
    if left_out:
        schema = schema.model_copy(update={"extra_columns": "ignore"})
    return Draft(
        text=_HEADER.format(source=path.name) + _toml(schema, columns),
        targets=chosen,
        left_out=left_out,
        has_number_classes=_are_numbers(drafted.get("values", ())),
    )


def _column(series: "pl.Series", source: str) -> dict[str, Any] | None:
    """Return the keys of an input column; None for one with too many different texts."""
    found = _distinct(series, source)
    if found and all(map(is_flag_text, found)):
        return {"kind": "flag"}
    if (bounds := _bounds(series, source)) is not None:
        return {"kind": "number", **bounds}
    return {"kind": "category", "values": found} if 0 < len(found) <= MAX_CATEGORIES else None


def _target(series: "pl.Series", source: str) -> dict[str, Any]:
    found = _distinct(series, source)
    if len(found) == 1:
        raise DataError(
            f"{source}: column {series.name!r} has the same value in all rows, and a target needs at least two; choose "
            "another column with --target, or add rows with other values"
        )
    if _MIN_CLASSES <= len(found) <= MAX_CATEGORIES:
        return {"column": series.name, "kind": "class", "values": found}
    if (bounds := _bounds(series, source)) is not None:
        return {"column": series.name, "kind": "number", **bounds}
    raise DataError(
        f"{source}: column {series.name!r} has {len(found)} different texts, and a target needs 2 to {MAX_CATEGORIES} "
        "classes, or numbers; choose another column with --target"
    )


def _labels(frame: "pl.DataFrame", source: str) -> dict[str, Any]:
    """Return the keys of a target of several flags."""
    for series in frame:
        if not (found := _distinct(series, source)) or not all(map(is_flag_text, found)):
            raise DataError(
                f"{source}: column {series.name!r} is no flag, and several targets must be flags (yes and no, or 1 and "
                "0); give one --target, or other columns"
            )
    return {"kind": "labels", "columns": frame.columns}


def _are_numbers(classes: Sequence[str]) -> bool:
    """Return whether these are more than two classes, and all of them numbers."""
    return len(classes) > _MIN_CLASSES and all(_is_number(text) for text in classes)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _distinct(series: "pl.Series", source: str) -> list[str]:
    place = Place(source, series.name, Schema.model_fields["missing_values"].default)
    found = texts(series, place).drop_nulls().unique()
    return sorted(found.to_list(), key=lambda text: (len(text), text) if text.isdecimal() else (0, text))


def _bounds(series: "pl.Series", source: str) -> dict[str, float] | None:
    """Return bounds a little wider than the values, rounded outwards; None if not all values are numbers."""
    try:
        values, is_missing = numbers(series, Place(source, series.name, Schema.model_fields["missing_values"].default))
    except DataError:
        return None
    if is_missing.all():
        return None
    low, high = float(values[~is_missing].min()), float(values[~is_missing].max())
    unit = 10.0 ** (math.floor(math.log10(max(high - low, abs(high) * 1e-6, 1e-9))) - _DIGITS + 1)
    return {"low": _plain(math.floor(low / unit) * unit), "high": _plain((math.floor(high / unit) + 1) * unit)}


def _plain(value: float) -> float:
    """Drop the digits that rounding left behind, and the fraction of a whole number."""
    short = float(f"{value:.12g}")
    return int(short) if short.is_integer() else short


def _toml(schema: Schema, columns: dict[str, Any]) -> str:
    """Return the schema as TOML, with one line for each column."""
    plain = schema.model_dump(
        mode="json", include={"missing", "held_out", "extra_columns", "person"}, exclude_none=True
    )
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    lines += [f"target = {_value(schema.model_dump(mode='json')['target'])}", "", "[columns]"]
    lines += [f"{_key(name)} = {_value(column)}" for name, column in columns.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """Return a value in one line, which tomli_w does for plain values only."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_value(inner)}' for key, inner in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")


def _key(name: str) -> str:
    return tomli_w.dumps({name: 0}).rpartition(" = ")[0]
