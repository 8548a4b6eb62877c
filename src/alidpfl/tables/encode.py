"""Encode rows as vectors, by the schema alone: a row's vector depends on that row and on no other.

Numbers are clamped and scaled to [-1, 1], flags are -1 or 1, categories are one-hot, and a missing value is 0 with its
indicator at 1. So every column adds at most 1 to the square of a vector's norm.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alidpfl.errors import DataError
from alidpfl.tables.read import Rows, frame_of
from alidpfl.tables.schema import CategoryColumn, ClassTarget, Column, FlagColumn, LabelsTarget, NumberTarget, Schema
from alidpfl.tables.values import Mask, Numbers, Place, codes, flags, numbers, texts

if TYPE_CHECKING:
    import polars as pl

Floats: TypeAlias = NDArray[np.float32]

_NO_TARGET = "is missing; a target must be there: complete it, or drop the row"


class ColumnCounts(NamedTuple):
    """What encoding did to a column. For its owner alone: these counts have no noise."""

    clamped: int = 0
    other: int = 0
    missing: int = 0


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Rows as arrays."""

    inputs: Floats
    """(n, width)."""
    targets: NDArray[Any] | None
    """(n,) int64 classes, (n,) float32 numbers in [-1, 1], or (n, k) float32 labels 0 and 1. None without a target."""
    persons: tuple[str, ...] | None
    """The person of each row, if the schema has a person column and the table has it."""
    counts: Mapping[str, ColumnCounts]
    """By column."""

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:  # records are private: a traceback or a log must not print them
        return f"Encoded({len(self)} rows of {self.inputs.shape[1]} values)"


class Encoder:
    """Turns rows into vectors of a fixed width.

    >>> from alidpfl.tables import parse_schema
    >>> columns = {"age": {"kind": "number", "low": 0, "high": 110}, "sex": {"kind": "category", "values": ["f", "m"]}}
    >>> target = {"kind": "class", "column": "died", "values": ["no", "yes"]}
    >>> encoder = Encoder(parse_schema({"columns": columns, "target": target, "missing": "refuse"}))
    >>> encoder.features
    ('age', 'sex=f', 'sex=m', 'sex=other')
    >>> encoder.encode([{"age": 55, "sex": "m"}, {"age": 200, "sex": "x"}]).inputs.tolist()
    [[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]]
    """

    def __init__(self, schema: Schema) -> None:
        """Encode by this schema and nothing else."""
        self.schema = schema
        self.features = tuple(feature for name in schema.columns for feature in schema.features(name))
        self.width = len(self.features)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty for other targets."""
        return self.schema.target.values if isinstance(self.schema.target, ClassTarget) else ()

    def encode(self, rows: Rows, *, needs_target: bool = False) -> Encoded:
        """Encode a file, a frame or rows in Python. The matrix is written once, column by column.

        Args:
            rows: see `alidpfl.tables.read.Rows`.
            needs_target: True to refuse rows without target or person columns.

        Returns:
            The arrays.

        Raises:
            DataError: a value does not fit the schema. The message has file, column and row, and not the value.
        """
        frame, source = frame_of(rows, self.schema, needs_target=needs_target), _source(rows)
        inputs, counts = self._inputs(frame, source)
        has_target = all(name in frame.columns for name in self.schema.target_columns)
        has_persons = self.schema.person is not None and self.schema.person in frame.columns
        return Encoded(
            inputs=inputs,
            targets=self._targets(frame, source) if has_target else None,
            persons=self._persons(frame, source) if has_persons else None,
            counts=counts,
        )

    def encode_inputs(self, rows: Rows) -> Floats:
        """Encode rows to predict: (n, width). Target and person columns may be missing, empty or anything else.

        Args:
            rows: see `alidpfl.tables.read.Rows`.

        Raises:
            DataError: a value to predict from does not fit the schema.
        """
        return self._inputs(frame_of(rows, self.schema), _source(rows))[0]

    def decode(self, inputs: Floats) -> "pl.DataFrame":
        """Return rows, as texts, that encode to these vectors. Clamped values and undeclared categories are lost."""
        import polars as pl

        found = {}
        for name, part in self._parts(inputs):
            values = _decoded(self.schema.columns[name], part.astype(np.float64))
            is_missing = part[:, -1] > 0 if self.schema.indicates_missing(name) else np.zeros(len(part), bool)
            found[name] = [None if gone else text for gone, text in zip(is_missing, values, strict=True)]
        return pl.DataFrame(found, schema=dict.fromkeys(found, pl.String))

    def decode_numbers(self, values: NDArray[Any]) -> Numbers:
        """Return predictions of a number target in the table's own unit."""
        target = self.schema.target
        if not isinstance(target, NumberTarget):
            raise DataError(f"the target is a {target.kind}, not a number: there is nothing to scale back")
        return target.low + (np.clip(values.astype(np.float64), -1, 1) + 1) / 2 * (target.high - target.low)

    def _inputs(self, frame: "pl.DataFrame", source: str) -> tuple[Floats, dict[str, ColumnCounts]]:
        """Return the matrix of the input columns, and what encoding did to each of them."""
        inputs, counts = np.zeros((frame.height, self.width), np.float32), {}
        for name, part in self._parts(inputs):
            counts[name] = self._encode_column(frame[name], part, Place(source, name, self.schema.missing_values))
        return inputs, counts

    def _parts(self, inputs: Floats) -> list[tuple[str, Floats]]:
        """Return each column's name with its values in the matrix, as a view."""
        parts, start = [], 0
        for name in self.schema.columns:
            end = start + len(self.schema.features(name))
            parts.append((name, inputs[:, start:end]))
            start = end
        return parts

    def _encode_column(self, series: "pl.Series", out: Floats, place: Place) -> ColumnCounts:
        """Write a column's values into `out`, which is zero."""
        column, indicates = self.schema.columns[place.column], self.schema.indicates_missing(place.column)
        is_missing, clamped, other = _encode_values(column, series, out, place)
        if indicates:
            out[:, -1] = is_missing
        else:
            place.refuse(is_missing, 'is missing; complete it, or set missing = "indicator" in the schema')
        return ColumnCounts(clamped=clamped, other=other, missing=int(is_missing.sum()))

    def _targets(self, frame: "pl.DataFrame", source: str) -> NDArray[Any]:
        target, missing = self.schema.target, self.schema.missing_values
        if isinstance(target, LabelsTarget):
            labels = np.empty((frame.height, len(target.columns)), np.float32)
            for number, name in enumerate(target.columns):
                place = Place(source, name, missing)
                labels[:, number], is_missing = flags(frame[name], place)
                place.refuse(is_missing, _NO_TARGET)
            return labels
        place, series = Place(source, target.column, missing), frame[target.column]
        if isinstance(target, NumberTarget):
            values, is_missing = numbers(series, place)
            place.refuse(is_missing, _NO_TARGET)
            return _scaled(values, target.low, target.high, "linear").astype(np.float32)
        classes, is_missing = codes(series, place, target.values)
        place.refuse(is_missing, _NO_TARGET)
        place.refuse(classes < 0, "is a class that the schema does not declare; declare it in target.values")
        return classes

    def _persons(self, frame: "pl.DataFrame", source: str) -> tuple[str, ...]:
        place = Place(source, str(self.schema.person), self.schema.missing_values)
        found = texts(frame[place.column], place)
        place.refuse(found.is_null().to_numpy(), "is missing; name the person of every row")
        return tuple(found.to_list())


def _source(rows: Rows) -> str:
    return str(rows) if isinstance(rows, str | Path) else "rows"


def _encode_values(column: Column, series: "pl.Series", out: Floats, place: Place) -> tuple[Mask, int, int]:
    """Write the values that are there. Return where they are missing, and how many were clamped, and undeclared."""
    if isinstance(column, CategoryColumn):
        found, is_missing = codes(series, place, column.values)
        is_other = (found < 0) & ~is_missing
        if not column.other:
            place.refuse(is_other, "is a category that the schema does not declare; declare it, or leave other out")
        rows = np.flatnonzero(~is_missing)
        out[rows, np.where(is_other, len(column.values), found)[rows]] = 1.0
        return is_missing, 0, int(is_other.sum())
    if isinstance(column, FlagColumn):
        found, is_missing = flags(series, place)
        out[:, 0] = np.where(is_missing, 0.0, 2.0 * found - 1.0)
        return is_missing, 0, 0
    values, is_missing = numbers(series, place)
    out[:, 0] = np.where(is_missing, 0.0, _scaled(values, column.low, column.high, column.scale))
    is_clamped = ((values < column.low) | (values > column.high)) & ~is_missing
    return is_missing, int(is_clamped.sum()), 0


def _scaled(values: Numbers, low: float, high: float, scale: str) -> Numbers:
    """Clamp to [low, high] and scale to [-1, 1]."""
    found = np.clip(values, low, high)
    if scale == "log":
        found, low, high = np.log(found), math.log(low), math.log(high)
    return np.clip(2.0 * (found - low) / (high - low) - 1.0, -1.0, 1.0)


def _decoded(column: Column, values: Numbers) -> list[str]:
    if isinstance(column, FlagColumn):
        return ["yes" if value > 0 else "no" for value in values[:, 0]]
    if isinstance(column, CategoryColumn):
        other = other_name(column.values)
        return [[*column.values, other, other][code] for code in values.argmax(1)]
    low, high = (math.log(column.low), math.log(column.high)) if column.scale == "log" else (column.low, column.high)
    found = low + (values[:, 0] + 1.0) / 2.0 * (high - low)
    return list(map(repr, (np.exp(found) if column.scale == "log" else found).tolist()))


def other_name(values: tuple[str, ...]) -> str:
    """Return a text that no declared category has."""
    other = "other"
    while other in values:
        other += "_"
    return other
