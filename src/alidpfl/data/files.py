"""Files written so that nobody ever sees half of one, and sums of what is in them."""

import gzip
import hashlib
import os
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 20
_OWNER_ONLY = 0o600
# What a damaged file can raise: zipfile and numpy check most of it, each in its own way, and so do decompressors,
# which a damaged directory may call for. A header may also ask for more memory than there is.
_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    MemoryError,
)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` at the end, in one step, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own for each writer: two at once do not mix, the last to finish wins with a whole file.
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
        settle(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def settle(temporary: Path, path: Path) -> None:
    """Give a finished file its name, after its contents have reached the disk."""
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def cached_arrays(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]] | None:
    """What `cache_arrays` wrote; None where there is nothing whole (the zip format has a sum for each array)."""
    try:
        # Opened here: where the zip is broken, numpy leaves the file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names}
    except _DAMAGED:
        return None


def cache_arrays(path: Path, arrays: Mapping[str, Any], *, is_private: bool = False) -> None:
    """Keep arrays for `cached_arrays`; where the disk is full or read-only, do not: a cache is for speed only."""
    with suppress(OSError), replacing(path) as file:
        if is_private:
            Path(file.name).chmod(_OWNER_ONLY)
        np.savez(file, **arrays)


def digest(path: Path, algorithm: str = "sha256", *, is_packed: bool | None = None) -> str:
    """Hex sum of a file's contents, unpacked where it `is_packed` by gzip: by default where its name ends in `.gz`."""
    total = hashlib.new(algorithm, usedforsecurity=algorithm != "md5")
    if is_packed is None:
        is_packed = path.suffix == ".gz"
    with gzip.open(path) if is_packed else path.open("rb") as file:
        while block := file.read(_BLOCK):
            total.update(block)
    return total.hexdigest()
