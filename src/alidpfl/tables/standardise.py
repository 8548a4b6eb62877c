"""Centre and scale the encoded rows of a table by noised sums, under the norm bound of the schema.

A row x becomes z = (x - mean) · scale, and z is shortened to norm B if it is longer. B is the bound on encoded rows, so
the bound on any row's gradient is the same for both. `mean` and `scale` come from one noised sum, so they are public.
Apart from them, a row's vector depends on that row alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alidpfl.errors import DataError
from alidpfl.tables.encode import Floats
from alidpfl.tables.schema import Schema
from alidpfl.tables.statistics import Layout, Part

# Measured on randhie and flchain, seeds 100 to 102: powers 0, -0.25 and -0.5, and lengths 0.6 and 0.8.
_POWER = -0.25  # half of the way to equal variances: full whitening enlarges columns that are mostly noise
_FLOOR = 0.1  # share of the mean variance that is added to each
_ROWS_AT_A_TIME = 1 << 16
_LENGTH = 0.6  # root mean square of the rows' norms, divided by B: few rows are shortened


def standardising_layout(schema: Schema) -> Layout:
    """Return what a row adds to the sum that standardises it: no bins and no target, so that the noise is small."""
    return Layout(schema, bins=0, with_target=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowStandardiser:
    """Standardises encoded rows. It is public, and a part of the model."""

    mean: Floats
    """(width,)."""
    scale: Floats
    """(width,)."""
    bound: float
    """B: no standardised row is longer."""

    @classmethod
    def from_sum(cls, schema: Schema, total: NDArray[Any], count: int, noise: float) -> "RowStandardiser":
        """Read a noised sum of all rows.

        Args:
            schema: the columns.
            total: (size,) by `standardising_layout`.
            count: number of all rows, which is public.
            noise: standard deviation of the noise on each value.
        """
        values = total.astype(np.float64) / count
        moments = np.concatenate([_moments(part, values[part.where]) for part in standardising_layout(schema).parts])
        error = noise / count
        variance = np.maximum(moments[:, 1] - moments[:, 0] ** 2, error)  # less than its noise is not known
        scale = (variance + _FLOOR * variance.mean()) ** _POWER
        scale *= _LENGTH * schema.norm_bound / np.sqrt(variance @ scale**2)
        return cls(mean=moments[:, 0].astype(np.float32), scale=scale.astype(np.float32), bound=schema.norm_bound)

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, Any], source: str) -> "RowStandardiser":
        """Read `arrays` back. A DataError names the source."""
        found = {name: np.asarray(values) for name, values in arrays.items()}
        is_whole = found.keys() == {"mean", "scale"} and all(
            values.shape == (schema.width,) and values.dtype == np.float32 and np.isfinite(values).all()
            for values in found.values()
        )
        if not is_whole:
            raise DataError(
                f"{source} has no mean and scale for {schema.width} values of a row; restore it from a copy"
            )
        return cls(**found, bound=schema.norm_bound)

    @property
    def arrays(self) -> dict[str, Floats]:
        """The released values by name."""
        return {"mean": self.mean, "scale": self.scale}

    def rows(self, inputs: Floats) -> Floats:
        """Return (n, width) standardised rows. A row's norm is added up within that row, in double."""
        found = np.empty_like(inputs)
        for start in range(0, len(inputs), _ROWS_AT_A_TIME):
            moved = (inputs[start : start + _ROWS_AT_A_TIME].astype(np.float64) - self.mean) * self.scale
            norms = np.sqrt(np.square(moved).sum(axis=1, keepdims=True))
            found[start : start + _ROWS_AT_A_TIME] = moved * (self.bound / np.maximum(norms, self.bound))
        return found


def _moments(part: Part, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return mean and mean square (k, 2) of the encoded inputs of one column. A missing number or flag counts as 0."""
    if part.kind == "category":  # each is 0 or 1
        return np.stack([values, values], axis=1)
    missing = values[-1] if part.has_missing else 0.0
    square = values[1] if part.kind == "number" else 1.0 - missing
    found = [(values[0], square)] + [(missing, missing)] * part.has_missing
    return np.array(found)
