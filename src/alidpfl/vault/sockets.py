"""A Unix socket that only the right people can reach."""

import grp
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from alidpfl.errors import ConfigError
from alidpfl.store.files import disk_errors

_LONGEST = 107  # bytes of a path that the system takes
_BACKLOG = 64
_OWNER_ONLY, _OWNER_AND_GROUP = 0o600, 0o660


@contextmanager
def listening(path: Path, group: str | None = None) -> Iterator[socket.socket]:
    """A socket at `path`, mode 0600; with a group, mode 0660 and that group's. Removed at the end."""
    if len(os.fsencode(path)) > _LONGEST:
        raise ConfigError(
            f"--socket {path} is longer than the {_LONGEST} bytes that the system takes; give a shorter one"
        )
    number = -1 if group is None else _group_number(group)
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        before = os.umask(0o777 - _OWNER_ONLY)  # at no moment is it open to others
        try:
            with disk_errors("listen on", path):
                server.bind(str(path))
        finally:
            os.umask(before)
        try:
            if group is not None:
                with disk_errors("give to the group", path):
                    os.chown(path, -1, number)
                    path.chmod(_OWNER_AND_GROUP)
            server.listen(_BACKLOG)
            yield server
        finally:
            with suppress(OSError):
                path.unlink()


def _group_number(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"--group {group}: there is no such group on this machine") from None


def _remove_stale(path: Path) -> None:
    """A killed vault leaves its socket behind. One that answers, and what is no socket, stays."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"--socket {path} exists and is no socket; give another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise ConfigError(f"--socket {path}: another process listens there; stop it, or give another path")
