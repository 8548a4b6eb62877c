"""CIFAR-10 from either of the layouts that its authors publish: binary records, or Python pickles."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alidpfl.data.cifar_pickle import read_pickled_batch
from alidpfl.errors import DataError

NUM_CLASSES = 10
SHAPE = (3, 32, 32)

_PIXELS = 3 * 32 * 32
_RECORD = 1 + _PIXELS  # a label, then the red, green and blue planes


def read_batch(path: Path, remedy: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 3, 32, 32) and labels (n,) of one file; a name without `.bin` is taken for a pickle."""
    if path.suffix == ".bin":
        pixels, labels = _read_binary(path, remedy)
    else:
        pixels, labels = read_pickled_batch(path, _PIXELS, remedy)
    if int(labels.max()) >= NUM_CLASSES or int(labels.min()) < 0:
        raise DataError(f"{path} has labels outside 0..{NUM_CLASSES - 1}; {remedy}")
    return pixels.reshape(-1, *SHAPE), labels


def read_batches(paths: tuple[Path, ...], remedy: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images and labels of several files, one after the other."""
    batches = [read_batch(path, remedy) for path in paths]
    return np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])


def _read_binary(path: Path, remedy: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        raw = np.fromfile(path, np.uint8)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); {remedy}") from error
    if len(raw) == 0 or len(raw) % _RECORD:
        raise DataError(f"{path} has {len(raw)} bytes, not a whole number of records of {_RECORD}; {remedy}")
    records = raw.reshape(-1, _RECORD)
    return records[:, 1:], records[:, 0].astype(np.int64)
