"""The data set `strokes`: 60,000 + 10,000 digits of 28x28 pixels, generated from a seed without any download.

Every image shows one way to write a digit (`glyphs`). It is moved, rotated, sheared, stretched and jittered, drawn with
a pen of random width and softness, and gets some stray marks and noise. A convolutional network finds it as easy as
MNIST, a linear model finds it hard.

A seed gives the same bytes on every machine. Random numbers are uniform (no libm). Coordinates use single IEEE
operations only. The pen is a table of whole numbers, and sums of these below 2^24 are exact in float32 in any order.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alidpfl.data import files, glyphs
from alidpfl.data.dataset import DEFAULT_PIXEL_RANGE, Dataset, LabelledData, PixelRange
from alidpfl.data.directories import user_cache
from alidpfl.data.glyphs import Glyph
from alidpfl.inputs import checks
from alidpfl.types import OnProgress, OnShare, ignore_progress

Images: TypeAlias = NDArray[np.uint8]
Labels: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

VERSION = 1
"""Increases with every change of the images. It is part of the seed and of the cache's file name."""
NUM_TRAIN, NUM_TEST = 60_000, 10_000
SIDE = 28

_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
_CHUNK = 1024  # images at a time, so that the pen's rows stay in the processor's cache
_SUBPIXELS = 16  # positions of the pen per pixel
_MARGIN = 4  # pixels outside the image from which the pen still reaches into it
_PEN_LEVELS = 12
_NARROWEST_PEN, _WIDEST_PEN = 0.65, 1.05  # standard deviation of the pen, pixels
_FULL_INK = 128  # height of the pen's table: 128² times 512 points is below 2^24

_BOX_WIDTH, _BOX_HEIGHT = 14.0, 19.5  # size of the unit box in pixels before stretching
_JITTER = 0.055  # largest shift of a control point, in units of the box
_HALF_TURN = 0.15  # largest tan(angle / 2): 17 degrees
_SHEAR = 0.26
_STRETCH = (0.76, 1.12)
_SHIFT = 2.7  # pixels
_MARK_POINTS = 6
_MARK_CHANCE = 0.25
_NOISE = 16  # of 255


class Drawn(NamedTuple):
    """Images (n, 28, 28) uint8, ink on black, and their digits (n,) int64."""

    images: Images
    labels: Labels


def load_strokes(
    *,
    seed: int = 0,
    cache_dir: Path | None = None,
    pixel_range: PixelRange = DEFAULT_PIXEL_RANGE,
    on_progress: OnProgress | None = None,
) -> Dataset:
    """Return the data set of `seed`: from the cache if it is there and intact, else drawn and then cached.

    Args and Raises are those of `alidpfl.data.load`.
    """
    checks.whole("seed", seed)
    path = (cache_dir or user_cache()) / f"strokes-v{VERSION}-seed{seed}.npz"
    train, test = (
        LabelledData.from_images(part.images[:, None], part.labels, pixel_range)
        for part in _cached(path) or _draw_and_cache(seed, path, on_progress)
    )
    return Dataset(name="strokes", train=train, test=test, num_classes=glyphs.NUM_CLASSES, is_synthetic=True)


def draw(count: int, *, seed: int, split: int = 0, on_share: OnShare = ignore_progress) -> Drawn:
    """Draw images in random order, with equally many of each digit if `count` allows.

    Args:
        count: number of images.
        seed: the same seed gives the same bytes.
        split: 0 for training images, 1 for test images: other random numbers from the same seed.
        on_share: called with the share that is done.

    >>> drawn = draw(20, seed=0)
    >>> drawn.images.shape, drawn.images.dtype, sorted(drawn.labels.tolist()) == sorted(2 * [*range(10)])
    ((20, 28, 28), dtype('uint8'), True)
    """
    order = _generator(seed, split)
    labels = order.permutation(np.arange(count) % glyphs.NUM_CLASSES)
    ways = order.random(count)
    images = np.empty((count, SIDE, SIDE), np.uint8)
    done = 0
    for digit in range(glyphs.NUM_CLASSES):
        variants = glyphs.variants(digit)
        way = np.where(labels == digit, np.floor(ways * len(variants)), -1)
        for number, glyph in enumerate(variants):
            random = _generator(seed, split, digit, number)
            members = np.flatnonzero(way == number)
            for start in range(0, len(members), _CHUNK):
                chunk = members[start : start + _CHUNK]
                images[chunk] = _draw_glyph(glyph, len(chunk), random)
                done += len(chunk)
                on_share(done / count)
    return Drawn(images, labels.astype(np.int64))


def _cached(path: Path) -> tuple[Drawn, Drawn] | None:
    """Return the training and the test images in the cache, or None if they are missing or damaged."""
    arrays = files.cached_arrays(path, _ARRAYS)
    if arrays is None:
        return None
    train = Drawn(arrays["train_images"], arrays["train_labels"])
    test = Drawn(arrays["test_images"], arrays["test_labels"])
    for part, count in ((train, NUM_TRAIN), (test, NUM_TEST)):
        if (part.images.shape, part.labels.shape) != ((count, SIDE, SIDE), (count,)):
            return None
        if part.images.dtype != np.uint8 or part.labels.dtype != np.int64:
            return None
    return train, test


def _draw_and_cache(seed: int, path: Path, on_progress: OnProgress | None) -> tuple[Drawn, Drawn]:
    share = NUM_TRAIN / (NUM_TRAIN + NUM_TEST)
    report = on_progress or (lambda _what, _share: None)
    what = "drawing strokes"
    train = draw(NUM_TRAIN, seed=seed, on_share=lambda done: report(what, share * done))
    test = draw(NUM_TEST, seed=seed, split=1, on_share=lambda done: report(what, share + (1 - share) * done))
    files.cache_arrays(path, dict(zip(_ARRAYS, (*train, *test), strict=True)))
    return train, test


def _generator(*path: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([VERSION, *path])))


def _between(random: np.random.Generator, low: float, high: float, *shape: int) -> Floats:
    return low + (high - low) * random.random(shape)


def _draw_glyph(glyph: Glyph, count: int, random: np.random.Generator) -> Images:
    """Draw `count` images of one way to write one digit."""
    x, y = _curve_points(glyph, count, random)
    mark_x, mark_y = _stray_marks(count, random)
    x, y = np.concatenate([x, mark_x], axis=1), np.concatenate([y, mark_y], axis=1)  # (count, points)
    level = random.integers(0, _PEN_LEVELS, (count, 1))
    rows_x, rows_y = _pen_rows(level, x), _pen_rows(level, y)  # (count, points, 28) each
    # A point's ink is the product of its row and its column. The sum over points is a matrix product, exact here.
    ink = np.matmul(rows_y.transpose(0, 2, 1), rows_x)  # (count, 28, 28)
    return _develop(ink, random)


def _curve_points(glyph: Glyph, count: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the path of the pen in pixels: jittered control points, mixed to curves, then an affine map."""
    # There are no matrix products, because their rounding depends on the machine.
    shaken = glyph.controls - 0.5 + _between(random, -_JITTER, _JITTER, count, *glyph.controls.shape)
    mixed = [shaken[:, glyph.sources[:, k]] * glyph.weights[:, k, None] for k in range(3)]
    curve = mixed[0] + mixed[1] + mixed[2]  # (count, points, 2)
    x = curve[..., 0] * (_BOX_WIDTH * _between(random, *_STRETCH, count, 1))
    y = curve[..., 1] * (_BOX_HEIGHT * _between(random, *_STRETCH, count, 1))
    x = x - _between(random, -_SHEAR, _SHEAR, count, 1) * y
    half = _between(random, -_HALF_TURN, _HALF_TURN, count, 1)  # t = tan(angle / 2) gives cosine and sine without libm
    square = half * half
    cosine, sine = (1 - square) / (1 + square), 2 * half / (1 + square)
    middle = (SIDE - 1) / 2
    turned_x = cosine * x - sine * y + (middle + _between(random, -_SHIFT, _SHIFT, count, 1))
    turned_y = sine * x + cosine * y + (middle + _between(random, -_SHIFT, _SHIFT, count, 1))
    return turned_x, turned_y


def _stray_marks(count: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Return one short straight mark for each image. In most images it lies outside and is not visible."""
    along = np.arange(_MARK_POINTS) - (_MARK_POINTS - 1) / 2
    x = _between(random, 0, SIDE - 1, count, 1) + along * _between(random, -0.8, 0.8, count, 1)
    y = _between(random, 0, SIDE - 1, count, 1) + along * _between(random, -0.8, 0.8, count, 1)
    is_visible = random.random((count, 1)) < _MARK_CHANCE
    return np.where(is_visible, x, -SIDE), np.where(is_visible, y, -SIDE)


@cache
def _pen() -> NDArray[np.float32]:
    """Return the pen's profile over the pixels as whole numbers: (levels, positions, 28), zero out of reach."""
    positions = np.arange((SIDE + 2 * _MARGIN) * _SUBPIXELS) / _SUBPIXELS - _MARGIN
    widths = np.linspace(_NARROWEST_PEN, _WIDEST_PEN, _PEN_LEVELS)
    distance = (positions[:, None] - np.arange(SIDE)) / widths[:, None, None]
    profile = np.floor(_FULL_INK * np.exp(-0.5 * distance * distance) + 0.5)
    profile[:, [0, -1]] = 0  # positions beyond the margin are clipped to these
    return profile.astype(np.float32)


def _pen_rows(level: NDArray[np.int64], where: Floats) -> NDArray[np.float32]:
    pen = _pen()
    position = np.floor((where + _MARGIN) * _SUBPIXELS + 0.5).astype(np.int64).clip(0, pen.shape[1] - 1)
    rows: NDArray[np.float32] = pen.reshape(-1, SIDE).take(level * pen.shape[1] + position, axis=0)
    return rows


def _develop(ink: NDArray[np.float32], random: np.random.Generator) -> Images:
    """Turn sums of ink into grey levels: soften or sharpen edges, cap at full ink, lower the contrast, add noise."""
    count = len(ink)
    edge = _between(random, 0.35, 0.75, count, 1, 1).astype(np.float32) / np.float32(_FULL_INK * _FULL_INK)
    contrast = _between(random, 170, 255, count, 1, 1).astype(np.float32)
    grey = np.minimum(ink * edge, np.float32(1)) * contrast
    noise = random.integers(0, 256, ink.shape, np.uint8).astype(np.float32) - np.float32(128)
    grey = grey + noise * np.float32(_NOISE / 128)
    pixels: Images = np.floor(grey.clip(0, 255)).astype(np.uint8)
    return pixels
