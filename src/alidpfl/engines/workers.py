"""Worker processes, forked so that they share the parent's data, and fed by pipes. Weights go through shared memory.

Forking needs no pickling: models, losses and data sets from a notebook work as they are.
"""

import mmap
import multiprocessing
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from alidpfl.engines.runner import Runner, keep_heap
from alidpfl.errors import AliDpflError
from alidpfl.federation.settings import Part
from alidpfl.types import ClientPlan, ClientUpdate

_NOTHING = torch.zeros(0)

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
            inherited = [*self._pipes, ours]
            process = context.Process(target=_work, args=(runner, weights, theirs, inherited), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, tasks: Iterable[Task], longest_first: Callable[[Task], float] | None = None) -> list[Any]:
        """Run all tasks, the longest first so that no process is left with it at the end."""
        tasks = list(tasks)
        order = sorted(range(len(tasks)), key=lambda i: -longest_first(tasks[i]) if longest_first else i)
        waiting, idle, results = iter(order), list(self._pipes), {}
        failure: BaseException | None = None
        busy: dict[Connection, int] = {}
        while True:
            while idle and failure is None and (number := next(waiting, None)) is not None:
                pipe = idle.pop()
                self._send(pipe, tasks[number])
                busy[pipe] = number
            if not busy:
                break
            for ready in wait(list(busy)):
                pipe = cast("Connection", ready)
                number, answer = busy.pop(pipe), self._receive(pipe)
                idle.append(pipe)
                if isinstance(answer, BaseException):
                    failure = failure or answer  # let the others finish, so that their pipes are empty again
                results[number] = answer
        if failure is not None:
            raise failure
        return [results[number] for number in range(len(tasks))]

    def close(self) -> None:
        """End the processes; they hold nothing that must be saved."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes, self._processes = [], []

    def _send(self, pipe: Connection, task: Task) -> None:
        try:
            pipe.send(task)
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None

    def _receive(self, pipe: Connection) -> Any:
        try:
            return pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._died() from None

    def _died(self) -> WorkerError:
        codes = [process.exitcode for process in self._processes if process.exitcode is not None]
        return WorkerError(
            f"a worker process died (exit codes {codes}): often the machine ran out of memory; resume the run with fewer "
            "processes (run.processes)"
        )


def _work(runner: Runner, weights: SharedWeights, pipe: Connection, inherited: list[Connection]) -> None:
    """Answer tasks until the parent is gone."""
    for other in inherited:  # or the parent's death would not close them
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle, after the round
    torch.set_num_threads(1)
    keep_heap()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send(_answer(runner, weights, pipe.recv()))


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
    except Exception as error:  # noqa: BLE001 - a text that may quote data must not leave the client
        return WorkerError(
            f"training or evaluation failed with {type(error).__name__}; the details may quote data and are withheld: "
            "run with processes=1 under a debugger to see them"
        )


def filled(update: ClientUpdate, weights: Tensor) -> ClientUpdate:
    """The update as the worker made it, with the weights that went through shared memory."""
    return replace(update, params=weights)
