"""Check that no other user can write a file or a folder."""

import os
import pwd
import shlex
import stat
from pathlib import Path

from alidpfl.errors import ConfigError
from alidpfl.store.files import disk_errors


def refuse_if_shared(path: Path, *, any_owner: bool = False, sticky: bool = False) -> None:
    """Raise ConfigError if a user other than the caller and root can write a file or a folder.

    Args:
        path: the file or the folder. One that does not exist is not refused.
        any_owner: True if it may belong to anybody.
        sticky: True for a folder that may have the sticky bit, such as /tmp. Others can add files there, but they
            cannot replace ours.
    """
    with disk_errors("read", path):
        try:
            found = path.stat()
        except FileNotFoundError:
            return
    caller, place = os.geteuid(), shlex.quote(str(path))
    if not any_owner and caller != 0 and found.st_uid not in (caller, 0):
        raise ConfigError(
            f"{path} belongs to {_user(found.st_uid)}, who can change it: act as that user, or as root run "
            f"`chown {_user(caller)} {place}`"
        )
    is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (sticky and is_sticky):
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(f"{path} has mode {mode:04o}, so other users can change it: run `chmod go-w {place}`")


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
