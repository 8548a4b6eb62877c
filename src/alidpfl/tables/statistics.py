"""What each row of a table adds to the sum that private statistics come from.

A row adds one vector, made from its own encoded values:

| column | values that a row adds | largest squared norm |
| --- | --- | --- |
| number | x and x², and 1 in the bin of x; if x is missing, only 1 at "missing" | 3; 2 without bins |
| category, class | 1 at its category, or at "missing" | 1 |
| flag, label | x, which is -1 or 1; if it is missing, only 1 at "missing" | 1 |

So adding or removing one row moves the sum by at most C = √(3a + b) in Euclidean norm, for a numbers and b other
columns. The bins lie between the schema's bounds, so they are public. `estimates.py` reads the noised sum.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alidpfl.tables.encode import Floats, other_name
from alidpfl.tables.schema import CategoryColumn, ClassTarget, NumberColumn, NumberTarget, Schema

BINS, MAX_BINS = 20, 1000


@dataclass(frozen=True, kw_only=True)
class Part:
    """The values of one column in a row's vector: sums, then counts, and the count of missing values last."""

    name: str
    kind: str
    """number, category, flag, class or label."""
    start: int
    """Where its values begin in the vector."""
    source: slice
    """Its encoded inputs, or its columns of the target."""
    is_target: bool = False
    has_missing: bool = False
    cells: tuple[str, ...] = ()
    """Names of its categories or bins. A row that is not missing counts in exactly one of them."""
    bounds: tuple[float, float, str] = (-1.0, 1.0, "linear")
    """Lower and upper bound and scale of a number."""

    @property
    def sums(self) -> int:
        """Number of values that are sums and not counts: x and x² of a number, x of a flag."""
        return {"number": 2, "flag": 1, "label": 1}.get(self.kind, 0)

    @property
    def size(self) -> int:
        """Number of values."""
        return self.sums + len(self.cells) + self.has_missing

    @property
    def where(self) -> slice:
        """Its place in the vector."""
        return slice(self.start, self.start + self.size)

    @property
    def largest_square(self) -> int:
        """Largest squared norm of the values: every sum and the one cell add at most 1. A missing value adds 1."""
        return self.sums + bool(self.cells)


class Layout:
    """The vector that each row adds, column by column.

    >>> from alidpfl.tables import parse_schema
    >>> columns = {"age": {"kind": "number", "low": 0, "high": 110}, "sex": {"kind": "category", "values": ["f", "m"]}}
    >>> schema = parse_schema({"columns": columns, "target": {"kind": "labels", "columns": ["died"]}})
    >>> layout = Layout(schema, bins=5)
    >>> layout.size, round(layout.sensitivity**2)
    (13, 5)
    """

    def __init__(self, schema: Schema, *, bins: int = BINS, with_target: bool = True) -> None:
        """Lay out the columns of a schema.

        Args:
            schema: the columns and their bounds.
            bins: bins of each number. With 0 there are no quantiles, and less noise on the rest.
            with_target: whether the target is one of the columns.
        """
        self._bins = tuple(map(str, range(1, bins + 1)))
        parts: list[Part] = []
        for described in (*_inputs(schema, self._bins), *(_targets(schema, self._bins) if with_target else ())):
            parts.append(Part(start=parts[-1].where.stop if parts else 0, **described))
        self.parts = tuple(parts)

    @cached_property
    def size(self) -> int:
        """Number of values in a row's vector."""
        return sum(part.size for part in self.parts)

    @cached_property
    def sensitivity(self) -> float:
        """C: the largest norm of any row's vector, and the most that one row can move the sum."""
        return math.sqrt(sum(part.largest_square for part in self.parts))

    def vectors(self, inputs: Floats, targets: NDArray[Any] | None = None) -> Floats:
        """Return what each row adds, (n, size). A row's vector depends on that row and the schema alone.

        Args:
            inputs: (n, width) encoded inputs.
            targets: (n, ...) encoded targets. A layout without the target does not read them.
        """
        found = np.zeros((len(inputs), self.size), np.float32)
        own = inputs[:, :0] if targets is None else targets.reshape(len(targets), -1)
        for part in self.parts:
            _fill(part, (own if part.is_target else inputs)[:, part.source], found[:, part.where])
        return found


def _inputs(schema: Schema, bins: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    first = 0
    for name, column in schema.columns.items():
        end = first + len(schema.features(name))
        found = {"name": name, "kind": column.kind, "source": slice(first, end)}
        if isinstance(column, NumberColumn):
            found |= {"cells": bins, "bounds": (column.low, column.high, column.scale)}
        elif isinstance(column, CategoryColumn):
            found["cells"] = (*column.values, other_name(column.values)) if column.other else column.values
        yield found | {"has_missing": schema.indicates_missing(name)}
        first = end


def _targets(schema: Schema, bins: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    target = schema.target
    for number, name in enumerate(schema.target_columns):
        found = {"name": name, "kind": "label", "source": slice(number, number + 1), "is_target": True}
        if isinstance(target, ClassTarget):
            found |= {"kind": "class", "cells": target.values}
        elif isinstance(target, NumberTarget):
            found |= {"kind": "number", "cells": bins, "bounds": (target.low, target.high, "linear")}
        yield found


def _fill(part: Part, source: NDArray[Any], out: Floats) -> None:
    """Write what each row adds for one column into `out`, which is zero."""
    rows = np.arange(len(source))
    if part.kind == "category":  # the encoder has written one value for each cell already
        out[:] = source
    elif part.kind == "class":
        out[rows, source[:, 0]] = 1.0
    else:
        x = 2.0 * source[:, 0] - 1.0 if part.kind == "label" else source[:, 0]
        out[:, 0] = np.nan_to_num(x, nan=0.0).clip(-1.0, 1.0)  # or a warning could tell of values that are no numbers
        if part.has_missing:
            out[:, -1] = source[:, -1]
    if part.kind == "number":
        out[:, 1] = np.square(out[:, 0])
        if part.cells:
            place = np.floor((out[:, 0] + 1.0) / 2.0 * len(part.cells)).astype(np.int64)
            out[rows, 2 + place.clip(0, len(part.cells) - 1)] = 1.0 - out[:, -1] if part.has_missing else 1.0
