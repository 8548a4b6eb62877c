"""Parse the values of one column: numbers, texts, categories and flags, whatever type a file gives them.

A value's meaning depends on that value alone. Errors name the file, the column and the row, and quote no value.
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alidpfl.errors import DataError

if TYPE_CHECKING:
    import polars as pl

Mask: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]

_YES, _NO = ("true", "yes", "y", "t", "1"), ("false", "no", "n", "f", "0")
_WHOLE = r"^([+-]?\d+)\.0+$"  # as programs write whole numbers in a column with missing values


@dataclass(frozen=True)
class Place:
    """The file and the column that values come from, and the texts that mean "missing" there."""

    source: str
    column: str
    missing: tuple[str, ...]

    def refuse(self, is_bad: Mask, what: str) -> None:
        """Raise a DataError that names the first bad row, if there is one, and no value."""
        if is_bad.any():
            count = int(is_bad.sum())
            more = f" (and {count - 1} more rows)" if count > 1 else ""
            where = f"{self.source}: column {self.column!r}, row {int(np.argmax(is_bad)) + 1}{more}"
            raise DataError(f"{where}: the value {what}")

    def refuse_type(self, series: "pl.Series", wanted: str) -> NoReturn:
        """Raise a DataError about the type of the whole column."""
        kind = str(series.dtype).partition("(")[0]  # an Enum lists its values behind it
        raise DataError(f"{self.source}: column {self.column!r} has type {kind}; convert it to {wanted}")


def numbers(series: "pl.Series", place: Place) -> tuple[Numbers, Mask]:
    """Return finite numbers, 0 where they are missing, and where they are missing."""
    import polars as pl

    if series.dtype.is_numeric():
        found_values = series.cast(pl.Float64).fill_nan(None)
        values = pl.select(pl.when(~found_values.is_in(_numbers_for_missing(place))).then(found_values)).to_series()
        is_missing = values.is_null()
    elif series.dtype in (pl.String, pl.Null):
        values, is_missing = series.cast(pl.Float64, strict=False), series.is_null()
        # The quick way is enough if every text is a number and no number means "missing". Otherwise spaces and texts
        # for "missing" are looked at. Both ways give a row the same value, so that no row changes another.
        is_slow = values.null_count() > is_missing.sum() or not values.is_finite().all()
        if is_slow or _numbers_for_missing(place):
            cleaned = texts(series, place)
            values, is_missing = cleaned.cast(pl.Float64, strict=False), cleaned.is_null()
    else:
        place.refuse_type(series, "numbers")
    gone = is_missing.to_numpy()
    place.refuse((values.is_null() & ~is_missing).to_numpy(), "is not a number; write it as 1.5 (no comma, no unit)")
    found = values.fill_null(0.0).to_numpy()
    place.refuse(~np.isfinite(found) & ~gone, "is not a finite number; correct it, or leave it empty")
    return found, gone


def _numbers_for_missing(place: Place) -> list[float]:
    """Return the numbers among the texts that mean "missing", such as -999."""
    found = []
    for text in place.missing:
        with suppress(ValueError):
            found.append(float(text))
    return [number for number in found if math.isfinite(number)]


def texts(series: "pl.Series", place: Place, declared: tuple[str, ...] = ()) -> "pl.Series":
    """Return texts without spaces around them, null where they are missing. Declared texts are never missing."""
    import polars as pl

    if series.dtype.is_nested() or series.dtype.is_temporal() or series.dtype in (pl.Binary, pl.Object):
        place.refuse_type(series, "texts or whole numbers")
    cleaned = series.cast(pl.String).str.strip_chars()
    absent = ["", *(text for text in place.missing if text not in declared)]
    return pl.select(pl.when(~cleaned.is_in(absent)).then(cleaned)).to_series()


def codes(series: "pl.Series", place: Place, values: tuple[str, ...]) -> tuple[Codes, Mask]:
    """Return the number of each text in `values`, -1 for texts that are not there, and where texts are missing."""
    import polars as pl

    cleaned = texts(series, place, values)
    whole = pl.when(cleaned.is_in(list(values))).then(cleaned).otherwise(cleaned.str.replace(_WHOLE, "$1"))
    found = pl.select(whole.replace_strict(list(values), range(len(values)), default=-1, return_dtype=pl.Int64))
    return found.to_series().to_numpy(), cleaned.is_null().to_numpy()


def flags(series: "pl.Series", place: Place) -> tuple[Codes, Mask]:
    """Return 1 for yes and 0 for no, and where flags are missing."""
    lowered = texts(series, place).str.to_lowercase()
    found, is_missing = codes(lowered, place, (*_NO, *_YES))
    place.refuse((found < 0) & ~is_missing, "is no flag; write yes or no, true or false, 1 or 0")
    return (found >= len(_NO)).astype(np.int64), is_missing


def is_flag_text(text: str) -> bool:
    """Return whether a text is a spelling of yes or no."""
    return text.lower() in (*_NO, *_YES)
