"""Worker processes, forked so that they share the parent's data, and fed by pipes. Weights go through shared memory.

Forking needs no pickling: models, losses and data sets from a notebook work as they are.
"""

import gc
import mmap
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from alidpfl.errors import AliDpflError
from alidpfl.federation.settings import Part
from alidpfl.federation.tensors import keep_heap, steady_arithmetic
from alidpfl.simulation.runner import Runner
from alidpfl.types import ClientPlan, tell_nobody

_NOTHING = torch.zeros(0)
_STDERR = 2  # the last of the standard streams

TrainTask: TypeAlias = tuple[int, ClientPlan]
"""Which slot of shared memory takes the weights, and the plan."""
EvaluateTask: TypeAlias = tuple[Part, slice]
Task: TypeAlias = TrainTask | EvaluateTask


class WorkerError(AliDpflError):
    """A worker process died."""


class SharedWeights:
    """Rows of weights in memory that forked processes share: row 0 for the server's, one more for each client."""

    def __init__(self, num_clients: int, num_params: int) -> None:
        # Anonymous memory, not /dev/shm: containers often give that only 64 MB.
        self._memory = mmap.mmap(-1, (1 + num_clients) * num_params * 4)
        self._rows = torch.frombuffer(self._memory, dtype=torch.float32).view(1 + num_clients, num_params)
        self.global_weights = self._rows[0]

    def __len__(self) -> int:
        return len(self._rows) - 1

    def of_client(self, slot: int) -> Tensor:
        """(num_params,) of the slot's client."""
        return self._rows[1 + slot]


class WorkerPool:
    """A few processes that run tasks; results come in the order of the tasks, whoever was first."""

    def __init__(self, runner: Runner, weights: SharedWeights, num_workers: int) -> None:
        """Fork the workers: they inherit `runner`, its data and the shared weights."""
        self.weights = weights
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(num_workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(runner, weights, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(
        self,
        tasks: Iterable[Task],
        work: Sequence[float] | None = None,
        on_done: Callable[[int], None] = tell_nobody,
    ) -> list[Any]:
        """Run all tasks, those with most `work` first so that no process is left with one at the end.

        `on_done` is told the place of every task that is done. A task that fails leaves the pool usable. A worker that
        died, or Ctrl-C, closes it: answers would be left in its pipes, and the next tasks would get them.
        """
        tasks = list(tasks)
        order = sorted(range(len(tasks)), key=lambda place: -work[place] if work else place)
        try:
            results = self._results(tasks, order, on_done)
        except BaseException:
            self.close()
            raise
        failure = next((answer for answer in results.values() if isinstance(answer, BaseException)), None)
        if failure is not None:
            raise failure
        return [results[number] for number in range(len(tasks))]

    def _results(self, tasks: Sequence[Task], order: Iterable[int], on_done: Callable[[int], None]) -> dict[int, Any]:
        """Answers by the tasks' numbers; after a failure no more tasks are begun."""
        waiting, idle, results = iter(order), list(self._pipes), {}
        has_failed = False
        finished: list[int] = []
        busy: dict[Connection, int] = {}
        while True:
            while idle and not has_failed and (number := next(waiting, None)) is not None:
                pipe = idle.pop()
                self._send(pipe, tasks[number])
                busy[pipe] = number
            for number in finished:  # now that no process waits for it
                on_done(number)
            if not busy:
                break
            finished = []
            for ready in wait(list(busy)):
                pipe = cast("Connection", ready)
                number, answer = busy.pop(pipe), self._receive(pipe)
                idle.append(pipe)
                results[number] = answer
                if isinstance(answer, BaseException):
                    has_failed = True  # let the others finish: their pipes must be empty
                else:
                    finished.append(number)
        return results

    @property
    def is_closed(self) -> bool:
        """True if it has no workers any more."""
        return not self._processes

    def close(self) -> None:
        """End the processes at once, at work or not; they hold nothing that must be saved."""
        for process in self._processes:
            process.kill()
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.join()
            process.close()
            pipe.close()
        self._pipes, self._processes = [], []

    def _send(self, pipe: Connection, task: Task) -> None:
        try:
            pipe.send(task)
        except (BrokenPipeError, ConnectionResetError):
            raise self._died(pipe) from None

    def _receive(self, pipe: Connection) -> Any:
        try:
            return pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._died(pipe) from None

    def _died(self, pipe: Connection) -> WorkerError:
        process = self._processes[self._pipes.index(pipe)]
        process.join()  # its pipe closes a moment before it ends
        return WorkerError(
            f"a worker process died (exit code {process.exitcode}): often for lack of memory; resume the run with "
            "fewer processes (run.processes)"
        )


def _work(runner: Runner, weights: SharedWeights, pipe: Connection) -> None:
    """Answer tasks until the parent is gone."""
    gc.freeze()  # what the fork copied is never collected here: its files are closed under it
    _close_files_but(pipe.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle, after the round
    keep_heap()
    with steady_arithmetic(), suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send(_answer(runner, weights, pipe.recv()))


def _close_files_but(kept: int) -> None:
    """Let go of what the fork copied: pipes, which would not end with the parent, and locks, which would outlive it."""
    for name in os.listdir("/proc/self/fd"):
        if (number := int(name)) > _STDERR and number != kept:
            with suppress(OSError):  # that of the listing is closed already
                os.close(number)


def _answer(runner: Runner, weights: SharedWeights, task: Task) -> Any:
    try:
        first, second = task
        if isinstance(second, ClientPlan):
            update = runner.train(weights.global_weights, second)
            weights.of_client(int(first)).copy_(update.params)
            return replace(update, params=_NOTHING)
        return runner.evaluate(weights.global_weights, first, second)  # type: ignore[arg-type]
    except AliDpflError as error:
        return error
    except Exception as error:
        return WorkerError(
            f"training or evaluation failed with {type(error).__name__}; the details may quote data and are withheld: "
            "run with processes=1 under a debugger to see them"
        )
