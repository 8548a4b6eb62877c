"""Run one cell in a process of its own: `python -m reproduction.job DIRECTORY ROUNDS KEY=VALUE ...`."""

import ctypes
import os
import signal
import sys
from pathlib import Path

from alidpfl.errors import AliDpflError

_EXIT_BAD_INPUT, _EXIT_STOPPED = 2, 3
_PR_SET_PDEATHSIG = 1


def main(directory: str, rounds: str, *settings: str) -> int:
    """Run the cell and return the exit status, which is 0 if the run is complete."""
    # The parent decides when to stop. On Ctrl-C it terminates each job, and the next call resumes it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    from alidpfl.types import StopReason
    from reproduction.run import run_cell

    try:
        outcome = run_cell(settings, Path(directory), Path(rounds))
    except AliDpflError as error:
        sys.stderr.write(f"{error}\n")
        return _EXIT_BAD_INPUT
    return _EXIT_STOPPED if outcome.stop_reason == StopReason.INTERRUPTED else 0


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies. A killed parent cannot stop its jobs itself."""
    parent = os.getppid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the call
            sys.exit(_EXIT_STOPPED)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
