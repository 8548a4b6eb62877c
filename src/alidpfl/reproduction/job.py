"""`python -m alidpfl.reproduction.job DIRECTORY KEY=VALUE ...`: one cell, in a process of its own."""

import signal
import sys
from pathlib import Path

from alidpfl.errors import AliDpflError
from alidpfl.reproduction.run import run_cell
from alidpfl.types import StopReason

_EXIT_BAD_INPUT, _EXIT_STOPPED = 2, 3


def main(directory: str, *settings: str) -> int:
    """The exit status: 0 where the run is complete."""
    # The parent decides when to stop: on Ctrl-C it tells each job, which then ends at once and is resumed next time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        outcome = run_cell(settings, Path(directory))
    except AliDpflError as error:
        sys.stderr.write(f"{error}\n")
        return _EXIT_BAD_INPUT
    return _EXIT_STOPPED if outcome.stop_reason == StopReason.INTERRUPTED else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
