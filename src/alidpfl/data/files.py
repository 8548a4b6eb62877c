"""Files written so that nobody ever sees half of one, and sums of what is in them."""

import gzip
import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_BLOCK = 1 << 20


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


def digest(path: Path, algorithm: str = "sha256", *, is_packed: bool | None = None) -> str:
    """Hex sum of a file's contents, unpacked where it `is_packed` by gzip: by default where its name ends in `.gz`."""
    total = hashlib.new(algorithm, usedforsecurity=algorithm != "md5")
    if is_packed is None:
        is_packed = path.suffix == ".gz"
    with gzip.open(path) if is_packed else path.open("rb") as file:
        while block := file.read(_BLOCK):
            total.update(block)
    return total.hexdigest()
