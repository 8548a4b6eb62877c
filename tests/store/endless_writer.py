"""Fork a child on "go" that resumes a run and writes rounds without end. Kill it by signal 9 on "kill"."""

import os
import signal
import sys

import torch

from alidpfl.store import RoundTiming, RunDirectory
from tests.store.samples import record


def write_for_ever(path: str) -> None:
    run = RunDirectory.open(path)
    with run.lock():
        checkpoint = run.read_checkpoint()
        state = checkpoint.state if checkpoint else None
        run.truncate_to(state)
        number = state["round"] + 1 if state else 0
        while True:
            run.append_record(record(number))
            run.append_timing(RoundTiming(round=number, seconds=0.1, seconds_total=0.1))
            run.write_checkpoint({"params": torch.full((50_000,), float(number))}, {"round": number})
            number += 1


def main() -> None:
    child = 0
    for command in sys.stdin:
        if command == "go\n":
            child = os.fork()
            if child == 0:
                write_for_ever(sys.argv[1])
            print(child, flush=True)
        else:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            print(child, "killed" if killed else f"ended by itself: {status}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # threads do not survive a fork
    main()
