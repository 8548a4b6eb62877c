"""The shapes of the ten digits of `strokes`: several ways to write each, as smooth curves given by control points.

A stroke is a quadratic B-spline: each of its points is a fixed weighted sum of three neighbouring control points. So
moving control points moves the curve, with additions and multiplications only. A control point given twice makes a
corner. Coordinates are in a unit box, x to the right and y down.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Stroke: TypeAlias = tuple[tuple[float, float], ...]

_SPACING = 0.04  # distance between the points of a curve: 0.8 pixels at the usual size, less than the pen is wide
_FINE = 32  # points on each piece of a curve, to measure its length


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
        (_loop(0.5, 0.5, 0.42, 0.48), _line(".3 .72, .7 .28")),
    ),
    (  # 1: a bare line, with a flag, with flag and foot
        (_line(".5 0, .5 1"),),
        (_line(".25 .25, .55 0, .55 0, .55 1"),),
        (_line(".25 .25, .55 0, .55 0, .55 1"), _line(".25 1, .85 1")),
    ),
    (  # 2: with a corner, with a loop
        (_line(".08 .28, .15 -.04, .9 -.08, .98 .4, .08 1, .08 1, .95 1"),),
        (_line(".08 .25, .2 -.04, .9 -.06, .95 .4, .4 .95, .02 1.02, .1 .72, .95 1"),),
    ),
    (  # 3: round, with a flat top
        (_line(".1 .14, .25 -.06, 1 -.04, .92 .47, .4 .47"), _line(".4 .47, 1 .44, 1.02 1.04, .25 1.06, .06 .84")),
        (_line(".12 .02, .85 .02, .85 .02, .42 .42, .42 .42, 1 .4, 1.02 1.04, .25 1.06, .06 .84"),),
    ),
    (  # 4: open, closed
        (_line(".2 0, .08 .6, .08 .6, .95 .6"), _line(".7 .2, .7 1")),
        (_line(".7 1, .7 0, .7 0, .05 .66, .05 .66, .95 .66"),),
    ),
    (  # 5: in one go, with the bar apart
        (_line(".88 .02, .2 .02, .2 .02, .14 .45, .14 .45, .6 .28, 1.02 .5, .9 1.05, .25 1.06, .06 .86"),),
        (_line(".25 .1, .2 .48, .9 .3, 1.02 .95, .35 1.1, .06 .88"), _line(".3 .04, .95 0")),
    ),
    (  # 6: curled, a straight stem with a ring
        (_line(".82 .04, .25 .05, -.02 .75, .2 1.08, .85 1.08, .95 .5, .35 .42, .1 .78"),),
        (_line(".65 0, .25 .35, .13 .7"), _loop(0.5, 0.72, 0.36, 0.27)),
    ),
    (  # 7: plain, with a bar, with a serif
        (_line(".08 .02, .92 .02, .92 .02, .4 1"),),
        (_line(".08 .02, .92 .02, .92 .02, .4 1"), _line(".3 .5, .88 .5")),
        (_line(".08 .2, .08 .02, .08 .02, .92 .02, .92 .02, .55 .5, .45 1"),),
    ),
    (  # 8: two rings, one crossing line
        (_loop(0.5, 0.24, 0.3, 0.24), _loop(0.5, 0.74, 0.38, 0.27)),
        (_line(".85 .12, .5 -.08, .02 .1, .2 .4, .8 .6, 1 .95, .5 1.1, 0 .95, .2 .6, .85 .38, .85 .12"),),
    ),
    (  # 9: straight tail, curled tail
        (_loop(0.48, 0.27, 0.36, 0.26), _line(".86 .2, .84 .5, .72 1")),
        (_loop(0.48, 0.27, 0.36, 0.26), _line(".87 .25, .95 .95, .65 1.08, .15 .95")),
    ),
)

NUM_CLASSES = len(_DIGITS)


class Glyph(NamedTuple):
    """One way to write a digit: its control points, and the weights that turn them into points of its curves."""

    controls: NDArray[np.float64]
    """(num_controls, 2): distinct places in the unit box. A corner or a joint is a single place."""
    sources: NDArray[np.intp]
    """(num_points, 3): the three control points of each point of the curves."""
    weights: NDArray[np.float64]
    """(num_points, 3): the weights of these, which add up to 1."""


@cache
def variants(digit: int) -> tuple[Glyph, ...]:
    """Return the ways to write `digit`."""
    return tuple(_glyph(strokes) for strokes in _DIGITS[digit])


def _glyph(strokes: Sequence[Stroke]) -> Glyph:
    # np.unique: corners and joints are single points, so that jitter keeps them together.
    controls, where = np.unique(np.concatenate([np.array(s) for s in strokes]), axis=0, return_inverse=True)
    ends = np.cumsum([len(stroke) for stroke in strokes])
    curves = [_curve(controls, ids) for ids in np.split(where.ravel(), ends[:-1])]
    return Glyph(controls, *(np.concatenate(parts) for parts in zip(*curves, strict=True)))


def _curve(controls: NDArray[np.float64], ids: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return sources and weights of points `_SPACING` apart on the B-spline of the control points `ids`."""
    if len(ids) == 2:  # noqa: PLR2004 - a straight line
        ids = np.array([ids[0], ids[0], ids[1], ids[1]])
    starts, stops = np.full((2, len(ids) - 2), 0.5)  # a piece runs from midpoint to midpoint,
    if not (ids[:2] == ids[-2:]).all():  # except at the ends of an open line
        starts[0] = stops[-1] = 1.0
    t = (np.arange(_FINE) + 0.5) / _FINE
    from_start = starts[:, None] * (1 - t) * (1 - t)  # (pieces, fine)
    from_stop = stops[:, None] * t * t
    weights = np.stack([from_start, 1 - from_start - from_stop, from_stop], axis=-1).reshape(-1, 3)
    sources = np.repeat(np.stack([ids[:-2], ids[1:-1], ids[2:]], axis=-1), _FINE, axis=0)
    points = (controls[sources] * weights[..., None]).sum(axis=1)  # (pieces * fine, 2)
    lengths = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])
    count = max(2, round(float(lengths[-1]) / _SPACING) + 1)
    chosen = np.searchsorted(lengths, np.linspace(0.0, lengths[-1], count)).clip(max=len(lengths) - 1)
    return sources[chosen], weights[chosen]
