"""Draw line plots in the terminal: braille for one series, marks for several, ASCII if the terminal needs it."""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TextIO, TypeAlias

Point: TypeAlias = tuple[float, float | None]
"""x and y. A y of None, NaN or infinity is a gap in the line."""

_BRAILLE_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row][column] of a 4 x 2 cell
_BRAILLE_START = 0x2800
_UNICODE_MARKS, _ASCII_MARKS = "●▲■◆○△□◇", "*+ox#@%&"
_UNICODE_AXES, _ASCII_AXES = ("┤", "│", "└", "─"), ("|", "|", "+", "-")  # tick, side, corner, floor
_FEWEST_DIGITS, _MOST_DIGITS = 3, 12


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a plot."""

    label: str
    points: Sequence[Point]


@dataclass(frozen=True)
class _Range:
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "_Range":
        low, high = min(values), max(values)
        if low == high:  # a flat line runs through the middle
            margin, largest = abs(low) / 2 or 1.0, sys.float_info.max
            return cls(max(low - margin, -largest), min(high + margin, largest))
        return cls(low, high)

    def index(self, value: float, cells: int) -> int:
        """Return the cell of a value, from 0. The ends of the range are the middles of the first and last cell."""
        # Halved before subtracting: the range itself may be larger than the largest float.
        half_range = (self.high / 2 - self.low / 2) or 1.0
        return round((value / 2 - self.low / 2) / half_range * (cells - 1))

    def labels(self) -> tuple[str, str]:
        """Return both ends with as few digits as tell them apart."""
        whole_digits = len(f"{max(abs(self.low), abs(self.high)):.0f}")
        # Write 1580 rather than 1.58e+03, but not 300 digits.
        fewest = whole_digits if _FEWEST_DIGITS < whole_digits < _MOST_DIGITS else _FEWEST_DIGITS
        for digits in range(fewest, _MOST_DIGITS):
            low, high = f"{self.low:.{digits}g}", f"{self.high:.{digits}g}"
            if low != high:
                break
        return low, high


@dataclass(frozen=True, kw_only=True)
class _Frame:
    x_range: _Range
    y_range: _Range
    width: int
    height: int

    def cells(self, points: Sequence[Point], split: tuple[int, int] = (1, 1)) -> Iterator[tuple[int, int]]:
        """Return column and row (from the top) of all that the line crosses, with each character split into cells."""
        columns, rows = self.width * split[0], self.height * split[1]
        for part in _unbroken(points):
            ends = [(self.x_range.index(x, columns), rows - 1 - self.y_range.index(y, rows)) for x, y in part]
            yield ends[0]
            for (x0, y0), (x1, y1) in pairwise(ends):
                count = max(abs(x1 - x0), abs(y1 - y0))
                for i in range(1, count + 1):
                    yield x0 + round((x1 - x0) * i / count), y0 + round((y1 - y0) * i / count)


def supports_unicode(stream: TextIO) -> bool:
    """Return whether the stream can show every character that `plot` uses."""
    try:
        (_UNICODE_MARKS + "".join(_UNICODE_AXES) + chr(_BRAILLE_START)).encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def plot(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str = "round",
    width: int = 60,
    height: int = 10,
    unicode: bool = True,
) -> str:
    """Return a plot as text without a final line break.

    Args:
        series: the lines; a single one is drawn in braille.
        title: the first line of the text.
        x_label: text at the end of the x axis.
        width: characters between the axes.
        height: lines between the axes.
        unicode: False to use ASCII only; see `supports_unicode`.

    Returns:
        The title, the plot and, for several series, a legend.

    >>> print(plot([Series(label="loss", points=[(0, 4.0), (1, 2.0), (2, 1.0)])], title="loss", width=8, height=3))
    loss
    4 ┤⠑⢄
      │  ⠉⠢⡀
    1 ┤    ⠈⠑⠢⢄
      └────────
       0      2 round
    """
    finite = [point for line in series for part in _unbroken(line.points) for point in part]
    if not finite:
        return f"{title}\n(nothing to plot yet)"
    x_range, y_range = _Range.of([x for x, _ in finite]), _Range.of([y for _, y in finite])
    frame = _Frame(x_range=x_range, y_range=y_range, width=width, height=height)
    marks, axes = (_UNICODE_MARKS, _UNICODE_AXES) if unicode else (_ASCII_MARKS, _ASCII_AXES)
    rows = _braille(series[0], frame) if len(series) == 1 and unicode else _marks(series, frame, marks)
    legend = [f"{marks[i % len(marks)]} {line.label}" for i, line in enumerate(series)] if len(series) > 1 else []
    return "\n".join(line.rstrip() for line in [title, *_with_axes(rows, frame, x_label, axes), *legend])


def _unbroken(points: Sequence[Point]) -> Iterator[list[tuple[float, float]]]:
    for is_known, part in groupby(points, key=lambda point: point[1] is not None and math.isfinite(point[1])):
        if is_known:
            yield [(x, y) for x, y in part if y is not None]


def _braille(series: Series, frame: _Frame) -> list[str]:
    dots = [[0] * frame.width for _ in range(frame.height)]
    for x, y in frame.cells(series.points, split=(2, 4)):
        dots[y // 4][x // 2] |= _BRAILLE_DOTS[y % 4][x % 2]
    return ["".join(chr(_BRAILLE_START + cell) if cell else " " for cell in row) for row in dots]


def _marks(series: Sequence[Series], frame: _Frame, marks: str) -> list[str]:
    crossing: dict[tuple[int, int], list[int]] = {}
    for index, line in enumerate(series):
        for cell in set(frame.cells(line.points)):
            crossing.setdefault(cell, []).append(index)

    def mark(x: int, y: int) -> str:
        # Lines on top of each other take turns, so that none is hidden.
        here = crossing.get((x, y))
        return marks[here[x % len(here)] % len(marks)] if here else " "

    return ["".join(mark(x, y) for x in range(frame.width)) for y in range(frame.height)]


def _with_axes(rows: list[str], frame: _Frame, x_label: str, axes: Sequence[str]) -> list[str]:
    tick, side, corner, floor = axes
    low, high = frame.y_range.labels()
    margin = max(len(low), len(high))
    named = {len(rows) - 1: low, 0: high}
    left, right = frame.x_range.labels()
    gap = " " * max(1, frame.width - len(left) - len(right))
    return [
        *(f"{named.get(i, ''):>{margin}} {tick if i in named else side}{row}" for i, row in enumerate(rows)),
        f"{'':{margin}} {corner}{floor * frame.width}",
        f"{'':{margin}}  {left}{gap}{right} {x_label}",
    ]
