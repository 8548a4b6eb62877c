"""Draw ten kinds of garments from the meaning of their names. No photograph is used.

Shirts have sleeves and collars, trousers have two legs, boots have a shaft. This is public knowledge and costs no
privacy. Pictures are 28 x 28, bright on black, in the order of Fashion-MNIST's classes. Shoes point to the left.
Lengths are shares of half the picture, measured from the middle: x to the right, y down.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

SIDE = 28
KINDS = 10
_FINE = 2 * SIDE  # drawn at this size and then reduced, so that edges become soft
_EPSILON = 1e-6
Point = tuple[Tensor, Tensor]
"""The coordinates x and y, each (n,), of a point in n drawings."""
Range = tuple[float, float]


def pictures(count: int, random: Generator) -> tuple[Tensor, Tensor]:
    """Draw pictures: (10 * count, 1, 28, 28) uint8, and the kind of each."""
    drawn = [_finished(draw(_Pencil(count, random))) for draw in _DRAW]
    return torch.cat(drawn), torch.arange(KINDS).repeat_interleave(count)


@dataclass(frozen=True)
class _Pencil:
    """Random numbers for `count` drawings at once."""

    count: int
    random: Generator

    def between(self, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(self.count, generator=self.random)

    def chance(self, probability: float) -> Tensor:
        return torch.rand(self.count, generator=self.random) < probability

    def dark_or_light(self, share_of_dark: float, dark: Range, light: Range) -> Tensor:
        is_dark = self.chance(share_of_dark)
        return torch.where(is_dark, self.between(*dark), self.between(*light))

    def clouds(self, detail: int) -> Tensor:
        """Return smooth noise: (n, fine, fine)."""
        small = torch.randn(self.count, 1, detail, detail, generator=self.random)
        return F.interpolate(small, (_FINE, _FINE), mode="bicubic", align_corners=False)[:, 0]


class _Drawing:
    """A mask, and the brightness within it."""

    def __init__(self, pencil: _Pencil) -> None:
        self.pencil = pencil
        self.mask = torch.zeros(pencil.count, _FINE, _FINE)
        self.light = torch.zeros(pencil.count, _FINE, _FINE)

    def fill(self, where: Tensor, light: Tensor, only: Tensor | None = None) -> None:
        """Fill an area with light, in all drawings or in `only` some."""
        where = _in_some(where, only)
        self.mask = torch.where(where, 1.0, self.mask)
        self.light = torch.where(where, _wide(light) if light.ndim == 1 else light, self.light)

    def shade(self, where: Tensor, factor: Tensor, only: Tensor | None = None) -> None:
        """Make an area lighter or darker, where something is drawn."""
        self.light = torch.where(_in_some(where & (self.mask > 0), only), self.light * _wide(factor), self.light)

    def cut(self, where: Tensor, only: Tensor | None = None, rest: Tensor | None = None) -> None:
        """Cut an area out. A `rest` of the light stays where the back of the garment is seen."""
        where, kept = _in_some(where, only), torch.zeros(1, 1, 1) if rest is None else _wide(rest)
        self.light = torch.where(where, kept * self.light, self.light)
        self.mask = torch.where(where & (kept == 0), 0.0, self.mask)


def _wide(numbers: Tensor) -> Tensor:
    return numbers[:, None, None]


def _in_some(where: Tensor, only: Tensor | None) -> Tensor:
    return where if only is None else where & _wide(only)


def _places() -> Point:
    line = (torch.arange(_FINE) + 0.5) / _FINE * 2 - 1
    return line[None, None, :], line[None, :, None]


def _polygon(corners: list[Point]) -> Tensor:
    """Return which pixels are inside a polygon: (n, fine, fine)."""
    right, down = _places()
    inside = torch.zeros(len(corners[0][0]), _FINE, _FINE, dtype=torch.bool)
    for start, end in zip(corners, corners[1:] + corners[:1], strict=True):
        x1, y1, x2, y2 = map(_wide, (*start, *end))
        height = torch.where((y2 - y1).abs() < _EPSILON, _EPSILON, y2 - y1)
        inside ^= ((y1 > down) != (y2 > down)) & (right < x1 + (down - y1) * (x2 - x1) / height)
    return inside


def _both_sides(half: list[Point]) -> list[Point]:
    """Return a closed outline from its right half, which runs from top to bottom."""
    return half + [(-x, y) for x, y in reversed(half)]


def _ellipse(x: Tensor, y: Tensor, width: Tensor, height: Tensor) -> Tensor:
    right, down = _places()
    return ((right - _wide(x)) / _wide(width)) ** 2 + ((down - _wide(y)) / _wide(height)) ** 2 < 1


def _stroke(points: list[Point], width: Tensor) -> Tensor:
    """Return the pixels of a line through these points, of some width."""
    right, down = _places()
    near = torch.zeros(len(width), _FINE, _FINE, dtype=torch.bool)
    for start, end in pairwise(points):
        x, y, dx, dy = map(_wide, (*start, end[0] - start[0], end[1] - start[1]))
        along = (((right - x) * dx + (down - y) * dy) / (dx**2 + dy**2 + _EPSILON)).clamp(0, 1)
        near |= (right - x - along * dx) ** 2 + (down - y - along * dy) ** 2 < _wide(width / 2) ** 2
    return near


def _cloth(p: _Pencil, plain: float, checked: float) -> Tensor:
    """Return the brightness of plain, checked, striped or spotted cloth: (n, fine, fine)."""
    right, down = _places()
    base = _wide(p.dark_or_light(0.25, (0.12, 0.45), (0.45, 1.0)))
    cloth = base * (1 + 0.13 * p.clouds(6) * _wide(p.between(0.2, 1.2)))
    kind, depth = p.between(0, 1), _wide(p.between(0.15, 0.8))
    pitch, phase, share = map(_wide, (p.between(2.5, 9), p.between(0, 2 * math.pi), p.between(-0.5, 0.6)))
    across = (pitch * math.pi * down + phase).sin() > share
    along = (pitch * math.pi * right + phase).sin() > share
    spots = p.clouds(12) > 0.8
    other = (base * (1 - depth) + (1 - base) * depth * (base < 0.4)).expand_as(cloth)
    rest = 1 - plain - checked
    ends = [plain, plain + 0.53 * rest, plain + 0.67 * rest, 1 - checked]
    for low, high, where in zip(ends, ends[1:], (across, along, spots), strict=False):
        cloth = torch.where(_wide((kind >= low) & (kind < high)) & where, other, cloth)
    squares = base * (1 - 0.45 * depth * (across.float() + along.float()))
    return torch.where(_wide(kind >= ends[-1]), squares, cloth).clamp(0.03, 1)


@dataclass(frozen=True, kw_only=True)
class _Torso:
    """The measures of a garment for the upper body."""

    neck: Tensor
    top: Tensor
    bottom: Tensor
    hem: Tensor


def _upper(p: _Pencil, cloth: Tensor, shoulders: Range, sleeves: Callable[[_Pencil], Point]) -> tuple[_Drawing, _Torso]:
    """Draw torso, sleeves, seams and neckline."""
    d = _Drawing(p)
    shoulder = p.between(*shoulders)
    chest = shoulder * p.between(0.82, 1.0)
    waist, hem, neck = chest * p.between(0.85, 1.05), chest * p.between(0.9, 1.2), p.between(0.12, 0.26)
    top, bottom = p.between(-0.97, -0.85), p.between(0.83, 0.98)
    corner = top + p.between(0.06, 0.2)
    arm = corner + p.between(0.28, 0.5)
    _sleeves(d, cloth, (shoulder, corner), (chest, arm), sleeves(p))
    above, below = [(0 * neck, top), (neck, top), (shoulder, corner)], [(waist, (arm + bottom) / 2), (hem, bottom)]
    d.fill(_polygon(_both_sides([*above, (chest, arm), *below])), cloth)
    for side in (1, -1):
        seam = [(side * shoulder, corner), (side * chest, arm), (side * chest, arm + p.between(0.2, 1.0))]
        d.shade(_stroke(seam, p.between(0.03, 0.07)), p.between(0.45, 1.25), p.chance(0.8))
    _neckline(d, neck, top)
    return d, _Torso(neck=neck, top=top, bottom=bottom, hem=hem)


def _sleeves(d: _Drawing, cloth: Tensor, shoulder: Point, armpit: Point, sleeve: Point) -> None:
    """Draw both sleeves; `sleeve` is their length and angle."""
    p, (x, y), (length, angle) = d.pencil, shoulder, sleeve
    cuff = p.between(0.13, 0.26) + (length < 0.8) * p.between(0.08, 0.2)
    end_x, end_y = x + length * angle.sin(), y + length * angle.cos()
    for side in (1, -1):
        bend = p.between(-0.02, 0.1)
        corners = [
            (side * (x - 0.12), y - 0.05),
            (side * (x + 0.03), y),
            (side * ((x + end_x) / 2 + bend), (y + end_y) / 2),
            (side * end_x, end_y),
            (side * (end_x - cuff * angle.cos()), end_y + cuff * angle.sin()),
            (side * (armpit[0] - 0.04), armpit[1] + 0.06),
        ]
        d.fill(_polygon(corners), (cloth * _wide(p.between(0.75, 1.1))).clamp(0, 1), length > 0.05)


def _neckline(d: _Drawing, neck: Tensor, top: Tensor) -> None:
    p = d.pencil
    depth, is_round = p.between(0.02, 0.3), p.chance(0.65)
    back = torch.where(p.chance(0.6), p.between(0.2, 0.6), 0.0)
    hole = _ellipse(0 * neck, top, neck * 0.95, depth)
    d.cut(hole, is_round, back)
    d.cut(_polygon([(-neck, top - 0.05), (neck, top - 0.05), (0 * neck, top + depth * 1.6)]), ~is_round, back)
    ring = _ellipse(0 * neck, top, neck * 0.95 + 0.06, depth + 0.06) & ~hole
    d.shade(ring, p.between(0.6, 1.3), is_round & p.chance(0.6))


def _short(p: _Pencil) -> Point:
    return torch.where(p.chance(0.15), 0.02, p.between(0.3, 0.55)), p.between(0.4, 1.25)


def _long(p: _Pencil) -> Point:
    return p.between(1.25, 1.75), p.between(0.05, 0.42)


def _short_or_long(p: _Pencil) -> Point:
    is_short = p.chance(0.3)
    length = torch.where(is_short, p.between(0.0, 0.5), p.between(1.2, 1.7))
    return length, torch.where(is_short, p.between(0.4, 1.2), p.between(0.05, 0.42))


def _print_on(d: _Drawing, probability: float) -> None:
    """Draw a print on the chest."""
    p = d.pencil
    where = _ellipse(p.between(-0.1, 0.1), p.between(-0.35, 0.15), p.between(0.12, 0.32), p.between(0.08, 0.35))
    d.shade(where & (p.clouds(14) > _wide(p.between(-1.2, 0.5))), p.between(0.2, 1.7), p.chance(probability))


def _opening(d: _Drawing, torso: _Torso, probability: float, width: Range, factor: Range) -> None:
    """Draw a line down the front, for a zip or an overlap."""
    p = d.pencil
    x = p.between(-0.05, 0.05)
    line = _stroke([(x, torso.top), (x + p.between(-0.03, 0.03), torso.bottom)], p.between(*width))
    d.shade(line, p.between(*factor), p.chance(probability))


def _buttons(d: _Drawing, torso: _Torso, probability: float) -> None:
    p = d.pencil
    x, factor, size, wanted = p.between(-0.08, 0.08), p.between(0.2, 1.9), p.between(0.03, 0.06), p.chance(probability)
    for number in range(5):
        y = torso.top + 0.25 + number * (torso.bottom - torso.top - 0.35) / 4.5
        d.shade(_ellipse(x, y, size, size), factor, wanted)


def _collar(d: _Drawing, torso: _Torso, probability: float, longest: float) -> None:
    p, neck, top = d.pencil, torso.neck, torso.top
    factor, length, wanted = _wide(p.between(0.55, 1.5)), p.between(0.12, longest), p.chance(probability)
    for side in (1, -1):
        flap = [
            (side * neck * 0.9, top - 0.02),
            (side * (neck + 0.12), top + 0.08),
            (side * (neck * 0.5 + 0.05), top + length),
            (side * torch.full_like(neck, 0.02), top + length * 0.6),
        ]
        d.fill(_polygon(flap), (d.light * factor).clamp(0.1, 1), wanted)


def _t_shirt(p: _Pencil) -> _Drawing:
    d, _ = _upper(p, _cloth(p, 0.6, 0.02), (0.42, 0.6), _short)
    _print_on(d, 0.45)
    return d


def _trousers(p: _Pencil) -> _Drawing:
    d, cloth = _Drawing(p), _cloth(p, 0.85, 0.03)
    waist, top, crotch = p.between(0.22, 0.36), p.between(-0.98, -0.9), p.between(-0.5, -0.1)
    hip = waist * p.between(1.0, 1.35)
    bottom = torch.where(p.chance(0.06), p.between(0.2, 0.6), p.between(0.85, 0.98))
    inner, outer = p.between(0.01, 0.12), p.between(0.18, 0.42)
    for side in (1, -1):
        hem = [(side * (inner + outer), bottom), (side * inner, bottom)]
        leg = [(0 * waist, top), (side * waist, top), (side * hip, crotch - 0.15), *hem, (side * inner / 4, crotch)]
        d.fill(_polygon(leg), (cloth * _wide(p.between(0.85, 1.05))).clamp(0, 1))
    d.shade(_stroke([(0 * waist, top), (0 * waist, crotch)], p.between(0.02, 0.06)), p.between(0.4, 1), p.chance(0.6))
    belt = _stroke([(-waist, top + 0.06), (waist, top + 0.06)], p.between(0.03, 0.12))
    d.shade(belt, p.between(0.5, 1.3), p.chance(0.6))
    return d


def _pullover(p: _Pencil) -> _Drawing:
    cloth = _cloth(p, 0.62, 0.03)
    d, torso = _upper(p, cloth, (0.4, 0.56), _long)
    _print_on(d, 0.25)
    d.fill(_hood(p, torso), cloth * 0.8, p.chance(0.2))
    band = _both_sides(
        [(0 * torso.hem, torso.bottom - 0.1), (torso.hem, torso.bottom - 0.1), (torso.hem, torso.bottom)]
    )
    d.shade(_polygon(band), p.between(0.7, 1.2), p.chance(0.5))
    return d


def _hood(p: _Pencil, torso: _Torso) -> Tensor:
    return _ellipse(0 * torso.neck, torso.top + 0.02, torso.neck + p.between(0.05, 0.15), p.between(0.12, 0.25))


def _dress(p: _Pencil) -> _Drawing:
    d, cloth = _Drawing(p), _cloth(p, 0.6, 0.03)
    top, bottom, shoulder, neck = (
        p.between(-0.98, -0.88),
        p.between(0.85, 0.98),
        p.between(0.18, 0.36),
        p.between(0.08, 0.18),
    )
    chest, arm, belt = shoulder * p.between(0.8, 1.05), top + p.between(0.25, 0.45), p.between(-0.35, 0.05)
    waist, hip, hem = chest * p.between(0.75, 1.0), p.between(0.2, 0.38), p.between(0.2, 0.62)
    has_sleeves = p.chance(0.45)
    length = torch.where(p.chance(0.5), p.between(0.8, 1.3), p.between(0.2, 0.45)) * has_sleeves
    _sleeves(d, cloth, (shoulder, top + 0.06), (chest, arm), (length, p.between(0.05, 0.5)))
    skirt = [(waist, belt), (torch.maximum(hip, waist), belt + 0.3), (hem, bottom)]
    d.fill(_polygon(_both_sides([(0 * neck, top), (neck, top), (shoulder, top + 0.06), (chest, arm), *skirt])), cloth)
    back = torch.where(p.chance(0.4), p.between(0.2, 0.6), 0.0)
    d.cut(_ellipse(0 * neck, top, neck * 0.95, p.between(0.03, 0.3)), p.chance(0.8), back)
    d.shade(_stroke([(-waist, belt), (waist, belt)], p.between(0.03, 0.1)), p.between(0.3, 1.5), p.chance(0.4))
    above = [(-1 + 0 * arm, top - 0.2), (1 + 0 * arm, top - 0.2), (1 + 0 * arm, arm - 0.12), (-1 + 0 * arm, arm - 0.12)]
    d.cut(_polygon(above), p.chance(0.15))
    return d


def _coat(p: _Pencil) -> _Drawing:
    d, torso = _upper(p, _cloth(p, 0.85, 0.05), (0.4, 0.58), _long)
    _opening(d, torso, 0.9, (0.03, 0.1), (0.1, 0.8))
    _buttons(d, torso, 0.4)
    _collar(d, torso, 0.65, 0.5)
    y, slant, has_pockets = p.between(0.2, 0.5), p.between(-0.1, 0.15), p.chance(0.5)
    for side in (0.15, -0.15):
        pocket = [(torch.full_like(y, side), y), (torch.full_like(y, 2 * side), y + slant)]
        d.shade(_stroke(pocket, p.between(0.03, 0.08)), p.between(0.4, 1.4), has_pockets)
    d.shade(_hood(p, torso), p.between(0.5, 0.9), p.chance(0.25))
    return d


def _shirt(p: _Pencil) -> _Drawing:
    d, torso = _upper(p, _cloth(p, 0.5, 0.22), (0.38, 0.58), _short_or_long)
    _opening(d, torso, 0.65, (0.03, 0.07), (0.5, 1.3))
    _buttons(d, torso, 0.45)
    _collar(d, torso, 0.6, 0.3)
    return d


def _sole(d: _Drawing, *, heel: Tensor, thick: Tensor, bottom: Tensor, light: Tensor) -> list[Point]:
    """Draw the sole; return its upper side from the left: toe, ball, arch and heel."""
    p = d.pencil
    toe, ball, arch, back = p.between(-0.98, -0.9), p.between(-0.45, -0.1), p.between(0.2, 0.5), p.between(0.88, 0.98)
    under = [(toe, bottom - 0.02), (ball, bottom), (arch, bottom - heel * 0.6), (back, bottom - heel)]
    upper = [(x, y - thick) for x, y in under]
    d.fill(_polygon(upper + under[::-1]), light)
    return upper


def _sandal(p: _Pencil) -> _Drawing:
    d, is_high, is_wedge = _Drawing(p), p.chance(0.5), p.chance(0.35)
    heel = torch.where(is_high, p.between(0.25, 0.9), p.between(0.0, 0.15))
    thick = p.dark_or_light(0.3, (0.12, 0.3), (0.05, 0.12))
    bottom, light = 0.25 + heel * 0.35 + p.between(0.0, 0.25), p.dark_or_light(0.4, (0.15, 0.5), (0.5, 1.0))
    toe, ball, arch, back = _sole(d, heel=heel, thick=thick, bottom=bottom, light=light)
    d.fill(_polygon([ball, arch, back, (back[0], bottom), (ball[0], bottom)]), light * 0.9, is_high & is_wedge)
    thin = p.between(0.05, 0.14)
    spike = [(back[0] - thin * 1.6, back[1]), back, (back[0] - 0.02, bottom), (back[0] - thin, bottom)]
    d.fill(_polygon(spike), light, is_high & ~is_wedge)
    straps = p.between(0.5, 1.0)
    for _ in range(4):
        x, reach, rise = p.between(-0.8, 0.75), p.between(-0.15, 0.5), p.between(0.12, 0.6)
        y, end = _on_line(x, [toe, ball, arch, back]), (x + reach).clamp(-0.9, 0.95)
        strap = [(x, y), ((x + end) / 2, y - rise), (end, y - rise * p.between(0.0, 0.9))]
        d.fill(_stroke(strap, p.between(0.06, 0.16)), straps, p.chance(0.75))
    behind = [(back[0] - 0.05, back[1]), (back[0] - p.between(0.0, 0.1), back[1] - p.between(0.2, 0.6))]
    d.fill(_stroke(behind, p.between(0.06, 0.2)), straps, p.chance(0.55))
    return d


def _on_line(x: Tensor, line: list[Point]) -> Tensor:
    """Return the height at x of a line through these points."""
    height = line[0][1]
    for (x1, y1), (x2, y2) in pairwise(line):
        height = torch.where(x >= x1, y1 + (x - x1) / (x2 - x1) * (y2 - y1), height)
    return height


def _sneaker(p: _Pencil) -> _Drawing:
    d, light = _Drawing(p), p.dark_or_light(0.4, (0.1, 0.5), (0.6, 1.0))
    (x, y), _, _, back = _sole(
        d, heel=p.between(0, 0.08), thick=p.between(0.08, 0.2), bottom=p.between(0.3, 0.5), light=light
    )
    toe, throat, tongue = p.between(0.1, 0.25), p.between(-0.25, 0.05), p.between(0.1, 0.4)
    rise, heel = p.between(0.45, 0.7), p.between(0.35, 0.62)
    front = [(x, y), (x + 0.03, y - toe * 0.7), (x + 0.25, y - toe - 0.05), (throat, y - toe - p.between(0.08, 0.2))]
    dip = ((tongue + back[0]) / 2 + 0.08, y - heel + p.between(0.05, 0.18))
    rear = [(tongue, y - rise), (tongue + 0.15, y - rise + 0.04), dip, (back[0] - 0.03, y - heel), back]
    d.fill(_polygon(front + rear), _cloth(p, 0.8, 0.03))
    cap = [(x, y), (x + 0.03, y - toe), (x + 0.35, y - toe - 0.1), (x + 0.45, y)]
    d.shade(_polygon(cap), p.between(0.5, 1.5), p.chance(0.5))
    counter = [
        (back[0] - 0.25, back[1]),
        (back[0] - 0.2, y - 0.7),
        (back[0] + 0.05, y - 0.7),
        (back[0] + 0.05, back[1]),
    ]
    d.shade(_polygon(counter), p.between(0.4, 1.5), p.chance(0.5))
    laces, stripes, at = p.between(0.4, 1.8), p.between(0.2, 2.0), p.between(0.0, 0.5)
    for number in range(4):
        lace_x, lace_y = throat + (tongue - throat) * number / 4, y - toe - 0.12 - (rise - toe - 0.12) * number / 4
        lace = _stroke([(lace_x - 0.03, lace_y), (lace_x + 0.16, lace_y + 0.1)], p.between(0.03, 0.06))
        d.shade(lace, laces, p.chance(0.7))
    for number in range(3):
        foot = at + 0.12 * number
        stripe = _stroke([(foot, y - 0.05), (foot + p.between(-0.2, 0.2), y - 0.4)], p.between(0.03, 0.1))
        d.shade(stripe, stripes, p.chance(0.4))
    return d


def _bag(p: _Pencil) -> _Drawing:
    d, cloth = _Drawing(p), _cloth(p, 0.75, 0.05)
    wide, top, bottom = p.between(0.6, 0.97), p.between(-0.5, 0.1), p.between(0.55, 0.97)
    above, corner, light = (
        wide * p.between(0.7, 1.05),
        p.between(0.0, 0.15),
        p.dark_or_light(0.5, (0.15, 0.5), (0.5, 1)),
    )
    x, peak = p.between(0.25, 0.7), (top - p.between(0.2, 0.8)).clamp(min=-0.95)
    half = [(x * 0.4, peak), (x * 0.8, (top + peak) / 2), (x, top)]
    handle = [(-a, b) for a, b in reversed(half)] + half
    d.fill(_stroke(handle, p.between(0.05, 0.13)), light, p.chance(0.8))
    side = [(above - corner, top), (above, top + corner), (wide, bottom - corner), (wide - corner, bottom)]
    d.fill(_polygon(_both_sides([(0 * wide, top), *side])), cloth)
    flap = top + p.between(0.15, 0.5)
    d.shade(_stroke([(-wide, flap), (wide, flap)], p.between(0.03, 0.08)), p.between(0.3, 1.5), p.chance(0.6))
    clasp = _ellipse(p.between(-0.1, 0.1), flap, p.between(0.05, 0.15), p.between(0.05, 0.12))
    d.shade(clasp, p.between(0.2, 2.0), p.chance(0.5))
    for sign in (1, -1):
        belt = sign * p.between(0.3, 0.5)
        d.shade(_stroke([(belt, top), (belt, bottom)], p.between(0.03, 0.08)), p.between(0.4, 1.5), p.chance(0.25))
    return d


def _boot(p: _Pencil) -> _Drawing:
    d, light = _Drawing(p), p.dark_or_light(0.6, (0.1, 0.5), (0.5, 1.0))
    heel, bottom = p.dark_or_light(0.45, (0.15, 0.55), (0.0, 0.1)), p.between(0.8, 0.97)
    (x, y), ball, arch, back = _sole(d, heel=heel, thick=p.between(0.05, 0.14), bottom=bottom, light=light)
    toe, throat = p.between(0.15, 0.32), p.between(-0.25, 0.1)
    left, right, top = p.between(0.0, 0.3), p.between(0.8, 0.97), p.between(-0.97, -0.45)
    front = [(x, y), (x + 0.03, y - toe * 0.7), (x + 0.3, y - toe), (throat, y - toe - p.between(0.15, 0.35))]
    shaft = [(left, y - p.between(0.6, 0.9)), (left + p.between(-0.1, 0.1), top), (right, top + p.between(-0.05, 0.1))]
    rear = [(back[0] - p.between(0.0, 0.12), (top + back[1]) / 2), back, arch, ball]
    d.fill(_polygon(front + shaft + rear), _cloth(p, 0.9, 0.02))
    block = p.dark_or_light(0.5, (0.06, 0.14), (0.2, 0.45))
    under = [(back[0] - block, back[1]), back, (back[0] - 0.01, bottom), (back[0] - block * 0.8, bottom)]
    d.fill(_polygon(under), light, heel > 0.06)
    laces = [(left + 0.05, top + 0.1), (left + 0.05, y - 0.6), (throat, y - toe - 0.2)]
    seam, y = [(right - 0.2, top), (right - 0.15, back[1])], p.between(-0.3, 0.4)
    for line, chance in ((laces, 0.4), (seam, 0.4), ([(-1 + 0 * y, y + 0.1), (1 + 0 * y, y)], 0.3)):
        d.shade(_stroke(line, p.between(0.03, 0.1)), p.between(0.3, 1.7), p.chance(chance))
    return d


_DRAW = (_t_shirt, _trousers, _pullover, _dress, _coat, _sandal, _shirt, _sneaker, _bag, _boot)


def _finished(d: _Drawing) -> Tensor:
    """Add folds, a rim, a small turn and grain, and reduce the size: (n, 1, 28, 28) uint8."""
    p = d.pencil
    folds = 1 + 0.1 * _wide(p.between(0.2, 1.5)) * p.clouds(8)
    rim = d.mask * (1 - F.avg_pool2d(d.mask[:, None], 7, 1, 3)[:, 0])
    light = (d.light * folds).clamp(0.02, 1) * d.mask * (1 + _wide(p.between(-0.7, 0.5)) * rim)
    turn, size = p.between(-0.06, 0.06), p.between(0.95, 1.08)
    frame = torch.zeros(p.count, 2, 3)
    frame[:, 0, 0], frame[:, 0, 1] = turn.cos() * size, -turn.sin()
    frame[:, 1, 0], frame[:, 1, 1] = turn.sin(), turn.cos() * size
    frame[:, :, 2] = 0.04 * torch.randn(p.count, 2, generator=p.random)
    grid = F.affine_grid(frame, [p.count, 1, _FINE, _FINE], align_corners=False)
    small = F.avg_pool2d(F.grid_sample(light.clamp(0, 1)[:, None], grid, align_corners=False), 2)
    sharp = small + _wide(p.between(0, 0.8))[:, None] * (small - F.avg_pool2d(small, 3, 1, 1))
    grain = 1 + 0.06 * torch.randn(sharp.shape, generator=p.random)
    return (sharp * grain).clamp(0, 1).mul(255).round().to(torch.uint8)
