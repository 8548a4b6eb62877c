"""Write files so that nobody ever sees half of one, and cache arrays on disk."""

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_OWNER_ONLY = 0o600


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


def cached_arrays(path: Path, names: Iterable[str]) -> dict[str, Any] | None:
    """Return the arrays that `cache_arrays` wrote, or None if the file is missing or damaged."""
    import numpy as np

    try:
        # Opened here: if the zip is broken, numpy leaves the file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names}
    except Exception:  # a damaged file can raise anything, and its header may ask for too much memory
        return None


def cache_arrays(path: Path, arrays: Mapping[str, Any], *, is_private: bool = False) -> None:
    """Write arrays for `cached_arrays`. Do nothing if the disk is full or read-only: a cache only saves time.

    Only the owner may read a file that `is_private`.
    """
    import numpy as np

    with suppress(OSError), replacing(path) as file:
        if is_private:
            Path(file.name).chmod(_OWNER_ONLY)
        np.savez(file, **arrays)
