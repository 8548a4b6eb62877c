"""Load the public image data sets: MNIST and Fashion-MNIST from IDX files, CIFAR-10 from the authors' binary files.

Headers and sizes are checked before an array is made. A damaged file is a DataError with the command that replaces it.
"""

import gzip
import zlib
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alidpfl.data.dataset import DEFAULT_PIXEL_RANGE, Dataset, LabelledData, PixelRange
from alidpfl.data.directories import find, how_to_get
from alidpfl.data.sources import CIFAR10, FASHION_MNIST, MNIST, Source
from alidpfl.errors import DataError

ImagesAndLabels: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""(n, channels, height, width) and (n,)."""

_NUM_CLASSES = 10
_UNSIGNED_BYTE = 0x08  # the type of entries in an IDX header
_BLOCK = 1 << 20
_MAX_BYTES = 1 << 31  # no known file has more: a header that says so is damaged
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_RECORD = 1 + prod(_CIFAR_SHAPE)  # a label, then the red, green and blue planes


def _load(source: Source, *, data_dir: Path | None = None, pixel_range: PixelRange = DEFAULT_PIXEL_RANGE) -> Dataset:
    """Load a public image data set from its files on disk."""
    files = find(source, data_dir).files
    remedy = f"delete it and {how_to_get(source, data_dir)}"
    if source.layout == "binary":
        *batches, test = (read_cifar(path, remedy) for path in files)
    else:
        *batches, test = (read_idx_pair(files[i], files[i + 1], remedy) for i in (0, 2))
    images, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
    return Dataset(
        name=source.name,
        train=LabelledData.from_images(images, labels, pixel_range),
        test=LabelledData.from_images(*test, pixel_range),
        num_classes=_NUM_CLASSES,
        is_synthetic=False,
    )


load_mnist = partial(_load, MNIST)
load_fashion_mnist = partial(_load, FASHION_MNIST)
load_cifar10 = partial(_load, CIFAR10)


def read_idx(path: Path, num_dims: int, remedy: str) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, gzipped if its name ends in `.gz`. Errors end with `remedy`."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _parse_idx(file, num_dims)  # type: ignore[arg-type]
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error or type(error).__name__}); {remedy}") from error
    except ValueError as error:
        raise DataError(f"{path} is not a valid IDX file: {error}; {remedy}") from error


def read_idx_pair(images_path: Path, labels_path: Path, remedy: str) -> ImagesAndLabels:
    """Read the images and the labels of an IDX data set, and check them against each other."""
    images, labels = read_idx(images_path, 3, remedy), read_idx(labels_path, 1, remedy)
    if len(images) != len(labels):
        raise DataError(f"{images_path} has {len(images)} images but {labels_path} {len(labels)} labels; {remedy}")
    return images[:, None], _checked_labels(labels, labels_path, remedy)


def read_cifar(path: Path, remedy: str) -> ImagesAndLabels:
    """Read one file of CIFAR-10 in the binary layout."""
    try:
        raw = np.fromfile(path, np.uint8)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); {remedy}") from error
    if len(raw) == 0 or len(raw) % _CIFAR_RECORD:
        raise DataError(f"{path} has {len(raw)} bytes, not a whole number of records of {_CIFAR_RECORD}; {remedy}")
    records = raw.reshape(-1, _CIFAR_RECORD)
    return records[:, 1:].reshape(-1, *_CIFAR_SHAPE), _checked_labels(records[:, 0], path, remedy)


def _parse_idx(file: IO[bytes], num_dims: int) -> NDArray[np.uint8]:
    header = file.read(4 + 4 * num_dims)
    expected = bytes([0, 0, _UNSIGNED_BYTE, num_dims])
    if header[:4] != expected:
        raise ValueError(f"it begins with {header[:4].hex() or 'nothing'}, not {expected.hex()}")
    if len(header) < 4 + 4 * num_dims:
        raise ValueError("it ends within the header")
    dims = tuple(int.from_bytes(header[start : start + 4], "big") for start in range(4, len(header), 4))
    size = prod(dims)
    if not 0 < size <= _MAX_BYTES:
        raise ValueError(f"its header claims {' x '.join(map(str, dims))} entries")
    # Read in blocks: a single read would take the memory before it knows that the bytes exist.
    body = bytearray()
    while len(body) < size and (block := file.read(min(_BLOCK, size - len(body)))):
        body += block
    if len(body) < size:
        raise ValueError(f"it holds {len(body)} entries of the {size} that its header claims")
    if file.read(1):  # also makes gzip compare its checksum
        raise ValueError(f"bytes follow after the {size} entries that its header claims")
    return np.frombuffer(body, np.uint8).reshape(dims)


def _checked_labels(labels: NDArray[np.uint8], path: Path, remedy: str) -> NDArray[np.int64]:
    if int(labels.max()) >= _NUM_CLASSES:
        raise DataError(f"{path} has labels beyond {_NUM_CLASSES - 1}; {remedy}")
    return labels.astype(np.int64)
