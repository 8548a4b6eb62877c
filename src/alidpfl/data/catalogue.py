"""Every data set by its name."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from alidpfl.data import directories, readers
from alidpfl.data.dataset import (
    DEFAULT_PIXEL_RANGE,
    Dataset,
    LabelledData,
    PixelRange,
    checked_pixel_range,
    scaled_images,
)
from alidpfl.data.directories import user_cache
from alidpfl.data.own import load_npz
from alidpfl.data.readers import read_images_and_labels
from alidpfl.data.sources import CIFAR10, FASHION_MNIST, MNIST, Source
from alidpfl.data.strokes import load_or_draw
from alidpfl.data.synthetic import SyntheticSettings, make_synthetic
from alidpfl.errors import ConfigError
from alidpfl.inputs.names import named
from alidpfl.types import OnProgress

NAMES = ("strokes", "mnist", "fashion_mnist", "cifar10", "synthetic", "npz")
"""The data sets that `load` knows."""

SYNTHETIC_OPTIONS = ("clients", "alpha", "beta", "is_iid", "max_samples")

_NUM_CLASSES = 10


def load(
    name: str,
    *,
    data_dir: Path | None = None,
    seed: int = 0,
    cache_dir: Path | None = None,
    pixel_range: PixelRange = DEFAULT_PIXEL_RANGE,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Dataset:
    """The data set called `name`.

    Args:
        name: `strokes` (drawn digits, no download), `mnist`, `fashion_mnist`, `cifar10` (see `alidpfl data get`),
            `synthetic` (FedProx's), or `npz` (your own files, one a client).
        data_dir: the only folder searched for real data; for `npz` the folder of the files.
        seed: of data that are made, and of what is held out of `npz`; real data do not depend on it.
        cache_dir: where made data are kept; by default in the user's cache.
        pixel_range: what black and white become.
        on_progress: told of steps that take longer.
        options: for `synthetic`: clients, alpha, beta, is_iid, max_samples; for `npz`: num_classes.

    >>> load("synthetic", clients=3).is_synthetic
    True
    """
    named("data set", name, dict.fromkeys(NAMES))
    checked_pixel_range(pixel_range)
    _check_options(name, options)
    match name:
        case "strokes":
            return _load_strokes(seed, cache_dir or user_cache(), pixel_range, on_progress)
        case "mnist":
            return _load_idx(MNIST, data_dir, pixel_range)
        case "fashion_mnist":
            return _load_idx(FASHION_MNIST, data_dir, pixel_range)
        case "cifar10":
            return _load_cifar(data_dir, pixel_range)
        case "synthetic":
            return make_synthetic(SyntheticSettings(**options), seed)
        case _:
            if data_dir is None:
                raise ConfigError("npz needs data_dir, the folder with a .npz file for each client")
            return load_npz(data_dir, seed, pixel_range, options.get("num_classes"))


def _check_options(name: str, options: dict[str, Any]) -> None:
    known = {"synthetic": SYNTHETIC_OPTIONS, "npz": ("num_classes",)}.get(name, ())
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(f"{name} has no option {', '.join(unknown)}; it takes {', '.join(known) or 'none'}")


def _load_strokes(seed: int, cache_dir: Path, pixel_range: PixelRange, on_progress: OnProgress | None) -> Dataset:
    on_share = None if on_progress is None else lambda share: on_progress("drawing strokes", share)
    drawn = load_or_draw(seed, cache_dir, on_share)
    train, test = (_labelled(part.images[:, None], part.labels, pixel_range) for part in (drawn.train, drawn.test))
    return Dataset(name="strokes", train=train, test=test, num_classes=_NUM_CLASSES, is_synthetic=True)


def _load_idx(source: Source, data_dir: Path | None, pixel_range: PixelRange) -> Dataset:
    found = directories.find(source, data_dir)
    remedy = _remedy(source, data_dir)
    train, test = (
        _labelled(*read_images_and_labels(images, labels, _NUM_CLASSES, remedy), pixel_range)
        for images, labels in (found.files[:2], found.files[2:])
    )
    return Dataset(name=source.name, train=train, test=test, num_classes=_NUM_CLASSES, is_synthetic=False)


def _load_cifar(data_dir: Path | None, pixel_range: PixelRange) -> Dataset:
    found = directories.find(CIFAR10, data_dir)
    train, test = (
        _labelled(*readers.read_batches(paths, _remedy(CIFAR10, data_dir)), pixel_range)
        for paths in (found.files[:-1], found.files[-1:])
    )
    return Dataset(name="cifar10", train=train, test=test, num_classes=readers.NUM_CLASSES, is_synthetic=False)


def _remedy(source: Source, data_dir: Path | None) -> str:
    return f"delete it and {directories.how_to_get(source, data_dir)}"


def _labelled(images: NDArray[np.uint8], labels: NDArray[np.int64], pixel_range: PixelRange) -> LabelledData:
    return LabelledData(inputs=scaled_images(images, pixel_range), targets=torch.from_numpy(labels))
