"""One writer for a directory: an advisory lock that the system drops when its holder dies, however it dies."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from alidpfl.errors import ConfigError
from alidpfl.store.files import disk_errors

_SECONDS_TO_LOOK = 0.2


@contextmanager
def exclusive_lock(path: Path, *, owner_of: Path, remedy: str = "choose another --out") -> Iterator[None]:
    """Holds the lock file `path` of the folder `owner_of`; a ConfigError that names the holder if there is one."""
    with disk_errors("lock", path):
        file = path.open("a+", encoding="utf-8", errors="replace")
    with file:
        _acquire(file, path, owner_of, remedy)
        try:
            yield
        finally:
            # The file stays: deleting it would let two processes lock two files of the same name.
            file.truncate(0)


def lock_holder(path: Path) -> str | None:
    """Who holds the lock file `path` now, such as "process 7 on host"; None: nobody."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            holder = file.read().strip()
            # One that was killed has left its name. The lock is not left: who gets it, for an instant, knows.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return holder or "another process"
    return None


def _acquire(file: IO[str], path: Path, owner_of: Path, remedy: str) -> None:
    with disk_errors("lock", path):
        if not (_locked(file) or _locked(file, after=_SECONDS_TO_LOOK)):  # `lock_holder` holds it for an instant
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise ConfigError(f"{owner_of} is being written by {holder}: wait for it, stop it, or {remedy}")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()


def _locked(file: IO[str], after: float = 0.0) -> bool:
    time.sleep(after)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
