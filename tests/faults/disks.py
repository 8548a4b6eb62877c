"""Small disks that tests fill or make read-only. Mounting needs root; for other users the tests are skipped."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

PAGE = 4096


class SmallDisk:
    """A small file system mounted at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, *, but: int = 0) -> None:
        """Fill the disk except for `but` pages. A file takes whole pages."""
        self._filler.touch()
        descriptor = os.open(self._filler, os.O_WRONLY)
        try:
            os.posix_fallocate(descriptor, 0, max(PAGE, self._free() - but * PAGE))
        finally:
            os.close(descriptor)
        assert self._free() == but * PAGE

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def make_read_only(self) -> None:
        _run("mount", "-o", "remount,ro", self.path)

    def make_writable(self) -> None:
        _run("mount", "-o", "remount,rw", self.path)

    def _free(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize


@contextmanager
def small_disk(path: Path, pages: int = 1024):
    """Mount a small disk at `path` inside the block."""
    path.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={pages * PAGE}", "tmpfs", path)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs root's right to mount a small disk; tests with RLIMIT_FSIZE are in tests/vault, tests/data")
    try:
        yield SmallDisk(path)
    finally:
        _run("umount", "--lazy", path)


def _run(*command) -> None:
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
