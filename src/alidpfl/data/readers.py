"""The IDX format of MNIST and its kin: magic number, sizes, then one unsigned byte for each entry; gzipped or not.

Everything in the file is checked against everything else before an array is made of it.
"""

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from alidpfl.errors import DataError

_UNSIGNED_BYTE = 0x08
_PIECE = 1 << 20
_MAX_BYTES = 1 << 31  # no known file has more; a header that claims it is corrupt


def read_idx(path: Path, num_dims: int, remedy: str) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes.

    Args:
        path: the file; gzipped if its name ends in `.gz`.
        num_dims: how many dimensions it must have.
        remedy: what to do where the file is broken; ends the error's message.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _parse(file, num_dims)  # type: ignore[arg-type]
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error or type(error).__name__}); {remedy}") from error
    except ValueError as error:
        raise DataError(f"{path} is not a valid IDX file: {error}; {remedy}") from error


def _parse(file: IO[bytes], num_dims: int) -> NDArray[np.uint8]:
    header = file.read(4 + 4 * num_dims)
    expected = bytes([0, 0, _UNSIGNED_BYTE, num_dims])
    if header[:4] != expected:
        raise ValueError(f"it begins with {header[:4].hex() or 'nothing'}, not {expected.hex()}")
    if len(header) < 4 + 4 * num_dims:
        raise ValueError("it ends within the header")
    dims = tuple(int.from_bytes(header[start : start + 4], "big") for start in range(4, len(header), 4))
    size = prod(dims)
    if not 0 < size <= _MAX_BYTES:
        raise ValueError(f"it claims to hold {' x '.join(map(str, dims))} entries")
    body = _at_most(file, size)
    if len(body) < size:
        raise ValueError(f"it holds {len(body)} entries of the {size} that it claims")
    if file.read(1):  # also makes gzip compare its checksum
        raise ValueError(f"bytes follow after the {size} entries that it claims")
    return np.frombuffer(body, np.uint8).reshape(dims)


def _at_most(file: IO[bytes], size: int) -> bytearray:
    """Up to `size` bytes, in pieces: asked for at once, Python takes the memory before it knows that they are there."""
    content = bytearray()
    while len(content) < size and (piece := file.read(min(_PIECE, size - len(content)))):
        content += piece
    return content


def read_images_and_labels(
    images_path: Path, labels_path: Path, num_classes: int, remedy: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 1, height, width) and their labels (n,), checked against one another."""
    images = read_idx(images_path, 3, remedy)
    labels = read_idx(labels_path, 1, remedy)
    if len(images) != len(labels):
        raise DataError(f"{images_path} has {len(images)} images but {labels_path} {len(labels)} labels; {remedy}")
    if int(labels.max()) >= num_classes:
        raise DataError(f"{labels_path} has labels beyond {num_classes - 1}; {remedy}")
    return images[:, None], labels.astype(np.int64)


NUM_CLASSES = 10
SHAPE = (3, 32, 32)

_PIXELS = 3 * 32 * 32
_RECORD = 1 + _PIXELS  # a label, then the red, green and blue planes


def read_batch(path: Path, remedy: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 3, 32, 32) and labels (n,) of one file in the binary layout."""
    pixels, labels = _read_binary(path, remedy)
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
