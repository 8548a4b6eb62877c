"""A lock that allows one writer for each directory. The system drops it when the process that holds it ends."""

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

_RETRY_SECONDS = 0.2


@contextmanager
def exclusive_lock(path: Path, *, owner_of: Path, remedy: str = "choose another --out") -> Iterator[None]:
    """Hold the lock file of the folder `owner_of`. If another process holds it, a ConfigError names it and `remedy`."""
    with disk_errors("lock", path):
        # Mode 0600, because everybody who can open the file can hold the lock. Unbuffered, because a buffer would be
        # written again after a full disk refused it.
        file = FileIO(path, "ab+", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600))
    with file:
        if os.fstat(file.fileno()).st_nlink > 1:  # the lock is emptied, and so would be what the link leads to
            raise ConfigError(f"{path} is a link to another file, and somebody may have planted it: delete it")
        with disk_errors("lock", path):
            if not (_locked(file) or _locked(file, after=_RETRY_SECONDS)):  # `lock_holder` holds it for an instant
                file.seek(0)
                holder = _name(file) or "another process"
                raise ConfigError(f"{owner_of} is being written by {holder}: wait for it, stop it, or {remedy}")
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        try:
            yield
        finally:
            # Keep the file: after deleting it, two processes could lock two files of the same name.
            file.truncate(0)


def lock_holder(path: Path) -> str | None:
    """Return the process that holds a lock file, such as "process 7 on host", or None."""
    try:
        with path.open("rb", buffering=0) as file:
            holder = _name(file)
            # A killed process leaves its name but not its lock: try to get the lock for an instant.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return holder or "another process"
    return None


def _name(file: FileIO) -> str:
    return file.read().decode(errors="replace").strip()


def _locked(file: FileIO, after: float = 0.0) -> bool:
    if after > 0:
        time.sleep(after)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
