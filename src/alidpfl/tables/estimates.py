"""What the noised sum of a table's rows says about its columns, with intervals. All of it is post-processing.

Every interval covers the noise alone: the true value of these very rows, in 95 of 100 releases. How far these rows are
from other rows is another question.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alidpfl.tables.statistics import Layout, Part

Numbers: TypeAlias = NDArray[np.float64]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

_Z = 1.959964  # of 95 % intervals
_CLEAR = 4.0  # fewer rows than this many deviations of their own noise may be no rows: nothing is divided by them


class Estimate(NamedTuple):
    """A statistic with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ColumnStatistics:
    """What is known of one column, in the unit of the table. None for what the column or the layout does not have."""

    column: str
    kind: str
    """number, category, flag, class or label."""
    scale: str = "linear"
    """linear or log, for numbers."""
    missing: Estimate | None = None
    """Share of the rows."""
    mean: Estimate | None = None
    """With scale "log", the geometric mean. None also if nearly all values may be missing; so for the next ones."""
    deviation: Estimate | None = None
    """Standard deviation. With scale "log", the factor by which values usually differ from the geometric mean."""
    quantiles: Mapping[float, Estimate] | None = None
    edges: tuple[float, ...] = ()
    """Ends of the bins. A quantile is never known more precisely than its bin."""
    yes: Estimate | None = None
    """Share of yes among the flags that are there."""
    shares: Mapping[str, Estimate] | None = None
    """Share of all rows by category, or by the number of the bin."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        plain: dict[str, Any] = {"kind": self.kind} | ({"scale": self.scale} if self.kind == "number" else {})
        for name in ("missing", "mean", "deviation", "yes"):
            if (found := getattr(self, name)) is not None:
                plain[name] = found._asdict()
        if self.quantiles is not None:
            plain["quantiles"] = {f"{share:g}": found._asdict() for share, found in self.quantiles.items()}
        if self.edges:
            plain["edges"] = list(self.edges)
        if self.shares is not None:
            plain["shares"] = {name: found._asdict() for name, found in self.shares.items()}
        return plain

    @classmethod
    def from_json(cls, column: str, values: Mapping[str, Any]) -> "ColumnStatistics":
        """Return what `to_json` wrote. Other values raise KeyError, TypeError or ValueError."""
        found: dict[str, Any] = {"kind": str(values["kind"]), "scale": str(values.get("scale", "linear"))}
        found |= {name: Estimate(**values[name]) for name in ("missing", "mean", "deviation", "yes") if name in values}
        if "quantiles" in values:
            found["quantiles"] = {float(share): Estimate(**ends) for share, ends in values["quantiles"].items()}
        if "shares" in values:
            found["shares"] = {str(name): Estimate(**ends) for name, ends in values["shares"].items()}
        return cls(column=column, edges=tuple(map(float, values.get("edges", ()))), **found)


def column_statistics(layout: Layout, total: NDArray[Any], count: int, noise: float) -> list[ColumnStatistics]:
    """Return what a noised sum says about each column.

    Args:
        layout: says where each column's values are.
        total: (size,) the sum of all rows' vectors, with noise.
        count: number of rows, which is public.
        noise: standard deviation of the noise on each value.

    Returns:
        The statistics, in the order of the columns, with the target last.
    """
    return [_Reader(part, total[part.where].astype(np.float64), count, noise).read() for part in layout.parts]


class _Reader:
    """Reads one column's values."""

    def __init__(self, part: Part, values: Numbers, count: int, noise: float) -> None:
        self._part, self._sums, self._count, self._noise = part, values[: part.sums], count, noise
        self._counts = values[part.sums :]
        self._error = noise  # of each count
        if part.cells:  # every row counts once, and the number of rows is public: spread the difference evenly
            self._counts = self._counts - (self._counts.sum() - count) / len(self._counts)
            self._error = noise * math.sqrt(1 - 1 / len(self._counts))
        self._missing = float(self._counts[-1]) if part.has_missing else 0.0
        self._rows = count - self._missing  # with a value
        self._rows_error = self._error if part.has_missing else 0.0

    def read(self) -> ColumnStatistics:
        part, found = self._part, dict[str, Any]()
        is_clear = self._rows > max(_CLEAR * self._rows_error, 0.5)
        if part.kind == "number" and is_clear:
            found |= {"mean": self._mean(), "deviation": self._deviation()}
            if part.cells:
                found["quantiles"] = {share: self._quantile(share) for share in QUANTILES}
        elif part.sums and is_clear:
            found["yes"] = Estimate(*((end + 1) / 2 for end in self._ratio()))
        if part.kind == "number" and part.cells:
            found["edges"] = tuple(self._value(float(edge)) for edge in np.linspace(-1, 1, len(part.cells) + 1))
        if part.cells:
            found["shares"] = {name: self._share(float(x)) for name, x in zip(part.cells, self._counts, strict=False)}
        if part.has_missing:
            found["missing"] = self._share(self._missing)
        return ColumnStatistics(column=part.name, kind=part.kind, scale=part.bounds[2], **found)

    def _share(self, value: float) -> Estimate:
        return _within(value / self._count, _Z * self._error / self._count, 0.0)

    def _ratio(self) -> Estimate:
        """Return the mean of the encoded values. Both the sum and the number of rows may have noise."""
        mean = float(self._sums[0]) / self._rows
        return _within(mean, _Z * math.hypot(self._noise, mean * self._rows_error) / self._rows, -1.0)

    def _mean(self) -> Estimate:
        return Estimate(*map(self._value, self._ratio()))

    def _deviation(self) -> Estimate:
        """Return √(mean of squares - square of mean), without the square of the mean's noise."""
        mean, square = (float(total) / self._rows for total in self._sums)
        noise, rows = self._noise / self._rows, self._rows_error / self._rows
        variance = square - mean**2 + noise**2
        error = math.sqrt(noise**2 * (1 + 4 * mean**2 + 2 * noise**2) + ((square - 2 * mean**2) * rows) ** 2)
        return Estimate(*(self._width(math.sqrt(end)) for end in _within(variance, _Z * error, 0.0)))

    def _quantile(self, share: float) -> Estimate:
        """Return a quantile from the noised counts below each edge.

        The interval has every bin that the noise does not rule out: not too many rows lie below its lower edge, and
        not too few below its upper edge, each at 2.5 %.
        """
        bins, cells = len(self._part.cells), len(self._counts)
        below = np.concatenate([[0.0], np.cumsum(self._counts[:bins])])
        edges, number = np.linspace(-1, 1, bins + 1), np.arange(bins + 1)
        part = share if self._part.has_missing else 0.0  # of the missing ones' count, in the difference below
        difference = below - share * self._rows
        reach = _Z * self._noise * np.sqrt(np.maximum(number + part**2 - (number + part) ** 2 / cells, 0.0))
        is_possible = (difference[:-1] <= reach[:-1]) & (difference[1:] >= -reach[1:])
        rising = (np.maximum.accumulate(below) + np.minimum.accumulate(below[::-1])[::-1]) / 2
        best = int(np.clip(np.searchsorted(rising, share * self._rows), 1, bins))
        is_possible[best - 1] = True
        step = rising[best] - rising[best - 1]
        inside = float(np.clip((share * self._rows - rising[best - 1]) / step, 0, 1)) if step > 0 else 0.5
        places = np.flatnonzero(is_possible)
        ends = (edges[best - 1] + inside * 2 / bins, edges[places[0]], edges[places[-1] + 1])
        return Estimate(*(self._value(float(end)) for end in ends))

    def _value(self, encoded: float) -> float:
        """Return an encoded value in the unit of the table."""
        low, high, scale = self._part.bounds
        if scale == "log":
            return math.exp(math.log(low) + (encoded + 1) / 2 * math.log(high / low))
        return low + (encoded + 1) / 2 * (high - low)

    def _width(self, encoded: float) -> float:
        """Return a deviation in the unit of the table, or as a factor."""
        low, high, scale = self._part.bounds
        return math.exp(encoded / 2 * math.log(high / low)) if scale == "log" else encoded / 2 * (high - low)


def _within(value: float, reach: float, low: float) -> Estimate:
    """Return a value and its interval between `low` and 1, where it must lie. So the interval never shrinks to a point.

    The interval is around the value that is cut to these limits, which is never farther from the truth than before.
    """
    centre = min(max(value, low), 1.0)
    return Estimate(centre, max(centre - reach, low), min(centre + reach, 1.0))
