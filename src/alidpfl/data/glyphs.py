"""The shapes of the ten digits of `strokes`: several ways to write each, as smooth curves given by control points.

A stroke is a quadratic B-spline: each of its points is a fixed weighted sum of three neighbouring control points. So
moving control points moves the curve, with additions and multiplications only. A control point given twice makes a
corner. Coordinates are in a unit box, x to the right and y down.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Stroke: TypeAlias = tuple[tuple[float, float], ...]

_SPACING = 0.04
"""Distance between the points of a curve: 0.8 pixels at the usual size, less than the pen is wide."""
_FINE = 32
"""Points on each piece of a curve, to measure its length."""


def _loop(x: float, y: float, half_width: float, half_height: float) -> Stroke:
    """Return a closed oval, drawn from the top. Its ends overlap so that it closes smoothly."""
    w, h = half_width, half_height
    ring = ((0.0, -1.1), (0.8, -0.8), (1.1, 0.0), (0.8, 0.8), (0.0, 1.1), (-0.8, 0.8), (-1.1, 0.0), (-0.8, -0.8))
    around = tuple((x + w * dx, y + h * dy) for dx, dy in ring)
    return (*around, *around[:2])


def _line(points: str) -> Stroke:
    """Return a stroke of control points that are written as "x y, x y"."""
    pairs = (point.split() for point in points.split(","))
    return tuple((float(x), float(y)) for x, y in pairs)


_DIGITS: tuple[tuple[tuple[Stroke, ...], ...], ...] = (
    (  # 0: round, narrow, with a stroke through it
        (_loop(0.5, 0.5, 0.42, 0.48),),
        (_loop(0.5, 0.5, 0.28, 0.48),),
        (_loop(0.5, 0.5, 0.42, 0.48), _line("0.3 0.72, 0.7 0.28")),
    ),
    (  # 1: a bare line, with a flag, with flag and foot
        (_line("0.5 0, 0.5 1"),),
        (_line("0.25 0.25, 0.55 0, 0.55 0, 0.55 1"),),
        (_line("0.25 0.25, 0.55 0, 0.55 0, 0.55 1"), _line("0.25 1, 0.85 1")),
    ),
    (  # 2: with a corner, with a loop
        (_line("0.08 0.28, 0.15 -0.04, 0.9 -0.08, 0.98 0.4, 0.08 1, 0.08 1, 0.95 1"),),
        (_line("0.08 0.25, 0.2 -0.04, 0.9 -0.06, 0.95 0.4, 0.4 0.95, 0.02 1.02, 0.1 0.72, 0.95 1"),),
    ),
    (  # 3: round, with a flat top
        (
            _line("0.1 0.14, 0.25 -0.06, 1 -0.04, 0.92 0.47, 0.4 0.47"),
            _line("0.4 0.47, 1 0.44, 1.02 1.04, 0.25 1.06, 0.06 0.84"),
        ),
        (_line("0.12 0.02, 0.85 0.02, 0.85 0.02, 0.42 0.42, 0.42 0.42, 1 0.4, 1.02 1.04, 0.25 1.06, 0.06 0.84"),),
    ),
    (  # 4: open, closed
        (_line("0.2 0, 0.08 0.6, 0.08 0.6, 0.95 0.6"), _line("0.7 0.2, 0.7 1")),
        (_line("0.7 1, 0.7 0, 0.7 0, 0.05 0.66, 0.05 0.66, 0.95 0.66"),),
    ),
    (  # 5: in one go, with the bar apart
        (
            _line(
                "0.88 0.02, 0.2 0.02, 0.2 0.02, 0.14 0.45, 0.14 0.45, "
                "0.6 0.28, 1.02 0.5, 0.9 1.05, 0.25 1.06, 0.06 0.86"
            ),
        ),
        (_line("0.25 0.1, 0.2 0.48, 0.9 0.3, 1.02 0.95, 0.35 1.1, 0.06 0.88"), _line("0.3 0.04, 0.95 0")),
    ),
    (  # 6: curled, a straight stem with a ring
        (_line("0.82 0.04, 0.25 0.05, -0.02 0.75, 0.2 1.08, 0.85 1.08, 0.95 0.5, 0.35 0.42, 0.1 0.78"),),
        (_line("0.65 0, 0.25 0.35, 0.13 0.7"), _loop(0.5, 0.72, 0.36, 0.27)),
    ),
    (  # 7: plain, with a bar, with a serif
        (_line("0.08 0.02, 0.92 0.02, 0.92 0.02, 0.4 1"),),
        (_line("0.08 0.02, 0.92 0.02, 0.92 0.02, 0.4 1"), _line("0.3 0.5, 0.88 0.5")),
        (_line("0.08 0.2, 0.08 0.02, 0.08 0.02, 0.92 0.02, 0.92 0.02, 0.55 0.5, 0.45 1"),),
    ),
    (  # 8: two rings, one crossing line
        (_loop(0.5, 0.24, 0.3, 0.24), _loop(0.5, 0.74, 0.38, 0.27)),
        (
            _line(
                "0.85 0.12, 0.5 -0.08, 0.02 0.1, 0.2 0.4, 0.8 0.6, 1 0.95, "
                "0.5 1.1, 0 0.95, 0.2 0.6, 0.85 0.38, 0.85 0.12"
            ),
        ),
    ),
    (  # 9: straight tail, curled tail
        (_loop(0.48, 0.27, 0.36, 0.26), _line("0.86 0.2, 0.84 0.5, 0.72 1")),
        (_loop(0.48, 0.27, 0.36, 0.26), _line("0.87 0.25, 0.95 0.95, 0.65 1.08, 0.15 0.95")),
    ),
)

NUM_CLASSES = len(_DIGITS)


@dataclass(frozen=True, kw_only=True)
class Glyph:
    """One way to write a digit: its control points, and the weights that turn them into points of its curves."""

    controls: NDArray[np.float64] = field(repr=False)
    """(num_controls, 2): distinct places in the unit box. A corner or a joint is a single place."""
    sources: NDArray[np.intp] = field(repr=False)
    """(num_points, 3): the three control points of each point of the curves."""
    weights: NDArray[np.float64] = field(repr=False)
    """(num_points, 3): the weights of these, which add up to 1."""


@cache
def variants(digit: int) -> tuple[Glyph, ...]:
    """Return the ways to write `digit`.

    >>> len(variants(7))
    3
    """
    return tuple(_glyph(strokes) for strokes in _DIGITS[digit])


def _glyph(strokes: Sequence[Stroke]) -> Glyph:
    # np.unique: corners and joints are single points, so that jitter keeps them together.
    controls, where = np.unique(np.concatenate([np.array(s) for s in strokes]), axis=0, return_inverse=True)
    ends = np.cumsum([len(stroke) for stroke in strokes])
    curves = [_curve(controls, ids) for ids in np.split(where.ravel(), ends[:-1])]
    return Glyph(
        controls=controls,
        sources=np.concatenate([sources for sources, _ in curves]),
        weights=np.concatenate([weights for _, weights in curves]),
    )


def _curve(controls: NDArray[np.float64], ids: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return sources and weights of points `_SPACING` apart on the B-spline of the control points `ids`."""
    if len(ids) == 2:  # noqa: PLR2004 - a straight line
        ids = np.array([ids[0], ids[0], ids[1], ids[1]])
    is_closed = bool((ids[:2] == ids[-2:]).all())
    inner = len(ids) - 2
    starts = np.full(inner, 0.5)  # a piece runs from midpoint to midpoint, except at the ends of an open line
    stops = np.full(inner, 0.5)
    if not is_closed:
        starts[0] = stops[-1] = 1.0
    t = (np.arange(_FINE) + 0.5) / _FINE
    from_start = starts[:, None] * (1 - t) * (1 - t)  # (inner, fine)
    from_stop = stops[:, None] * t * t
    weights = np.stack([from_start, 1 - from_start - from_stop, from_stop], axis=-1).reshape(-1, 3)
    sources = np.repeat(np.stack([ids[:-2], ids[1:-1], ids[2:]], axis=-1), _FINE, axis=0)
    points = (controls[sources] * weights[..., None]).sum(axis=1)  # (inner * fine, 2)
    lengths = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])
    count = max(2, round(float(lengths[-1]) / _SPACING) + 1)
    chosen = np.searchsorted(lengths, np.linspace(0.0, lengths[-1], count)).clip(max=len(lengths) - 1)
    return sources[chosen], weights[chosen]
