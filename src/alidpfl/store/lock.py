"""One writer for a directory: an advisory lock that the system drops when its holder dies, however it dies."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from alidpfl.errors import ConfigError
from alidpfl.store.files import disk_errors


@contextmanager
def exclusive_lock(path: Path, *, owner_of: Path, remedy: str = "choose another --out") -> Iterator[None]:
    """Holds the lock file `path` of the folder `owner_of`; a ConfigError that names the holder if there is one."""
    with disk_errors("lock", path):
        file = path.open("a+", encoding="utf-8")
    with file:
        _acquire(file, path, owner_of, remedy)
        try:
            yield
        finally:
            # The file stays: deleting it would let two processes lock two files of the same name.
            file.truncate(0)


def _acquire(file: IO[str], path: Path, owner_of: Path, remedy: str) -> None:
    with disk_errors("lock", path):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise ConfigError(f"{owner_of} is being written by {holder}: wait for it, stop it, or {remedy}") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
