"""Worker processes of a simulation. They are forked, so they share the parent's data; weights go through shared memory.

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
from alidpfl.releases.queries import ReleasePlan
from alidpfl.simulation.runner import Runner
from alidpfl.types import ClientPlan, ignore_progress

_NOTHING = torch.zeros(0)
_STDERR = 2  # the last of the standard streams

TrainTask: TypeAlias = tuple[int, ClientPlan]
"""The slot of shared memory for the weights, and the plan."""
EvaluateTask: TypeAlias = tuple[Part, slice]
ReleaseTask: TypeAlias = tuple[int, ReleasePlan]
"""The place of the answer, and the plan."""
Task: TypeAlias = TrainTask | EvaluateTask | ReleaseTask


class WorkerError(AliDpflError):
    """A worker process died."""


class SharedWeights:
    """Weights in memory that forked processes share: row 0 for the server, one row for each client."""

    def __init__(self, num_clients: int, num_params: int) -> None:
        # Anonymous memory, not /dev/shm: containers often give that only 64 MB.
        self._memory = mmap.mmap(-1, (1 + num_clients) * num_params * 4)
        self._rows = torch.frombuffer(self._memory, dtype=torch.float32).view(1 + num_clients, num_params)
        self.global_weights = self._rows[0]

    def __len__(self) -> int:
        return len(self._rows) - 1

    def of_client(self, slot: int) -> Tensor:
        """Return the weights of the slot's client, (num_params,)."""
        return self._rows[1 + slot]


class WorkerPool:
    """Processes that run tasks. Results come in the order of the tasks."""

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
        on_done: Callable[[int], None] = ignore_progress,
    ) -> list[Any]:
        """Run all tasks.

        A task that fails leaves the pool usable. A worker that dies, or Ctrl-C, closes the pool: answers left in its
        pipes would reach the next tasks.

        Args:
            tasks: what to run.
            work: expected effort of each task. Large tasks start first, so that the processes end together.
            on_done: called with the place of every finished task.

        Returns:
            The results, in the order of the tasks.
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
        """Return answers by task number. After a failure no more tasks start."""
        waiting, idle, results = iter(order), list(self._pipes), {}
        has_failed = False
        finished: list[int] = []
        busy: dict[Connection, int] = {}
        while True:
            while idle and not has_failed and (number := next(waiting, None)) is not None:
                pipe = idle.pop()
                self._send(pipe, tasks[number])
                busy[pipe] = number
            for number in finished:  # after all processes have work again
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
        """True if it has no workers left."""
        return not self._processes

    def close(self) -> None:
        """End the processes at once. They hold nothing that must be saved."""
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
    gc.freeze()  # never collect what the fork copied: its files are closed below
    _close_files_but(pipe.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, after the round
    keep_heap()
    with steady_arithmetic(), suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send(_answer(runner, weights, pipe.recv()))


def _close_files_but(kept: int) -> None:
    """Close inherited files: pipes that would not end with the parent, and locks that would outlive it."""
    for name in os.listdir("/proc/self/fd"):
        if (number := int(name)) > _STDERR and number != kept:
            with suppress(OSError):  # the listing's own file is closed already
                os.close(number)


def _answer(runner: Runner, weights: SharedWeights, task: Task) -> Any:
    try:
        first, second = task
        if isinstance(second, ClientPlan):
            update = runner.train(weights.global_weights, second)
            weights.of_client(int(first)).copy_(update.params)
            return replace(update, params=_NOTHING)
        if isinstance(second, ReleasePlan):
            return runner.release(weights.global_weights, second)
        return runner.evaluate(weights.global_weights, first, second)  # type: ignore[arg-type]
    except AliDpflError as error:
        return error
    except Exception as error:
        return WorkerError(
            f"training or evaluation failed with {type(error).__name__}; the details may quote data and are withheld: "
            "run with processes=1 under a debugger to see them"
        )
