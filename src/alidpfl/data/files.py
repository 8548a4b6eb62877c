"""Write files so that nobody ever sees half of one, and cache arrays on disk."""

import os
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OWNER_ONLY = 0o600
# zipfile, numpy and the decompressors each report damage in their own way. A header may ask for too much memory.
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
    """Open a new file that replaces `path` in one step when the block ends. An error in the block discards it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Every writer has its own temporary name: with two at once, the last to finish wins with a whole file.
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def cached_arrays(path: Path, names: Iterable[str]) -> dict[str, "NDArray[Any]"] | None:
    """Return the arrays that `cache_arrays` wrote, or None if the file is missing or damaged."""
    import numpy as np

    try:
        # Opened here: if the zip is broken, numpy leaves the file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names}
    except _DAMAGED:
        return None


def cache_arrays(path: Path, arrays: Mapping[str, Any], *, is_private: bool = False) -> None:
    """Write arrays for `cached_arrays`. Do nothing if the disk is full or read-only: a cache only saves time.

    Args:
        path: the file to write.
        arrays: arrays by name.
        is_private: True if only the owner may read the file.
    """
    import numpy as np

    with suppress(OSError), replacing(path) as file:
        if is_private:
            Path(file.name).chmod(_OWNER_ONLY)
        np.savez(file, **arrays)
