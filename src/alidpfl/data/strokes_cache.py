"""Keeps the drawn digits on disk, so that they are drawn once for each seed and not in every process."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from alidpfl.data import files, strokes
from alidpfl.data.strokes import NUM_TEST, NUM_TRAIN, SIDE, Drawn
from alidpfl.inputs import checks
from alidpfl.types import OnShare

_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True, kw_only=True)
class StrokeImages:
    """All of `strokes` for one seed."""

    train: Drawn
    test: Drawn


def load_or_draw(seed: int, cache_dir: Path, on_share: OnShare | None = None) -> StrokeImages:
    """The images of `seed`, from `cache_dir` if they are there and whole, otherwise drawn and put there."""
    checks.whole("seed", seed)
    path = cache_dir / f"strokes-v{strokes.VERSION}-seed{seed}.npz"
    return _read(path) or _draw_and_keep(seed, path, on_share)


def _draw_and_keep(seed: int, path: Path, on_share: OnShare | None) -> StrokeImages:
    share = NUM_TRAIN / (NUM_TRAIN + NUM_TEST)
    report = on_share or (lambda _share: None)
    drawn = StrokeImages(
        train=strokes.draw(NUM_TRAIN, seed=seed, split=0, on_progress=lambda done: report(share * done)),
        test=strokes.draw(NUM_TEST, seed=seed, split=1, on_progress=lambda done: report(share + (1 - share) * done)),
    )
    arrays = (drawn.train.images, drawn.train.labels, drawn.test.images, drawn.test.labels)
    files.cache_arrays(path, dict(zip(_ARRAYS, arrays, strict=True)))
    return drawn


def _read(path: Path) -> StrokeImages | None:
    """What the cache holds; None where there is nothing whole."""
    arrays = files.cached_arrays(path, _ARRAYS)
    if arrays is None:
        return None
    train = Drawn(images=arrays["train_images"], labels=arrays["train_labels"])
    test = Drawn(images=arrays["test_images"], labels=arrays["test_labels"])
    is_whole = all(
        part.images.shape == (count, SIDE, SIDE)
        and part.images.dtype == np.uint8
        and part.labels.shape == (count,)
        and part.labels.dtype == np.int64
        for part, count in ((train, NUM_TRAIN), (test, NUM_TEST))
    )
    return StrokeImages(train=train, test=test) if is_whole else None
