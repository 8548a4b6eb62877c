"""One writer for a directory: an advisory lock that the system drops when its holder dies, however it dies."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from alidpfl.errors import ConfigError
from alidpfl.store.files import disk_errors

_SECONDS_TO_LOOK = 0.2


@contextmanager
def exclusive_lock(path: Path, *, owner_of: Path, remedy: str = "choose another --out") -> Iterator[None]:
    """Holds the lock file `path` of the folder `owner_of`; a ConfigError that names the holder if there is one."""
    with disk_errors("lock", path):
        # Nobody else's to open: whoever can, can hold it. No buffer: what a full disk did not take is not tried again.
        file = FileIO(path, "ab+", opener=lambda name, flags: os.open(name, flags, 0o600))
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
        with path.open("rb", buffering=0) as file:
            holder = _name(file)
            # One that was killed has left its name. The lock is not left: who gets it, for an instant, knows.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return holder or "another process"
    return None


def _acquire(file: FileIO, path: Path, owner_of: Path, remedy: str) -> None:
    with disk_errors("lock", path):
        if not (_locked(file) or _locked(file, after=_SECONDS_TO_LOOK)):  # `lock_holder` holds it for an instant
            file.seek(0)
            holder = _name(file) or "another process"
            raise ConfigError(f"{owner_of} is being written by {holder}: wait for it, stop it, or {remedy}")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())


def _name(file: FileIO) -> str:
    return file.read().decode(errors="replace").strip()


def _locked(file: FileIO, after: float = 0.0) -> bool:
    time.sleep(after)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
