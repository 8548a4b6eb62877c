"""What a process has started, and what that has, so that none of it is left behind. Reads /proc; elsewhere: nothing."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PARENT, _STARTED = 1, 19  # fields of /proc/<pid>/stat after the name, which may hold anything


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process: numbers are used again, but not with the same start."""

    pid: int
    started: str
    parent: int
    command: str

    def kill(self) -> None:
        """By SIGKILL, if it is still the same one."""
        now = _read(self.pid)
        if now is not None and now.started == self.started:  # its parent may be another: the first one has ended
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def descendants(pid: int) -> list[Process]:
    """Children, their children, and so on; also those that have sessions of their own."""
    if not _PROC.is_dir():
        return []
    running = [found for entry in _PROC.iterdir() if entry.name.isdigit() and (found := _read(int(entry.name)))]
    below, parents = list[Process](), {pid}
    while wave := [process for process in running if process.parent in parents]:
        below += wave
        parents = {process.pid for process in wave}
    return below


def _read(pid: int) -> Process | None:
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        command = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # it has ended in the meantime
        return None
    return Process(pid=pid, started=fields[_STARTED], parent=int(fields[_PARENT]), command=command.strip())
