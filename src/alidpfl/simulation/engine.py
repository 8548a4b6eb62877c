"""The engine of a simulation: many clients on one machine, in this process or in one worker process for each core.

The result is the same to the last bit for any number of processes. Every client's randomness depends only on (seed,
run, round, client), every process computes in one thread, and the server adds in the order of the clients. Memory grows
with the clients of a round: a client that is not drawn is only a list of row numbers.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from alidpfl.data.dataset import kind_of
from alidpfl.dpsgd import cross_entropy
from alidpfl.errors import ConfigError
from alidpfl.federation.client import check_grid
from alidpfl.federation.settings import Engine, Evaluation, Part
from alidpfl.federation.tensors import num_params, steady_arithmetic, trained
from alidpfl.methods import Loss, Method
from alidpfl.metrics import Measures, measure
from alidpfl.registry import LOSSES
from alidpfl.releases.queries import Released, ReleasePlan
from alidpfl.simulation.checks import check_device, check_enrolment
from alidpfl.simulation.runner import Runner, SimulationData
from alidpfl.simulation.workers import SharedWeights, WorkerPool
from alidpfl.types import ClientPlan, ClientUpdate, NoiseKind, OnShare, ignore_progress

_EVALUATION_ROWS = 1000  # in one piece, whatever the number of processes, so that sums have one order


def default_processes() -> int:
    """Return one process for each core that this process may use; 1 where processes cannot safely be forked."""
    return len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else 1


class Simulation:
    """Trains and evaluates on this machine. Use it as a context manager, or call `close`."""

    def __init__(
        self,
        *,
        model: nn.Module,
        method: Method,
        data: SimulationData,
        seed: int | None,
        run: str | None = None,
        processes: int | None = None,
        device: str = "cpu",
        noise: NoiseKind = "gaussian",
        loss: Loss = cross_entropy,
        on_share: OnShare = ignore_progress,
    ) -> None:
        """Check model and method; worker processes start with the first round.

        Args:
            model: what is trained; it is copied, never changed.
            method: its objective is what clients minimise.
            data: shared by all processes.
            seed: makes batches and noise repeatable; None for the operating system's entropy.
            run: name of the run, a part of the seed's key. Vaults with seeded noise use it too.
            processes: worker processes; None for one for each core.
            device: "cpu" or "cuda"; the latter in this process only.
            noise: "grid" for exact noise, one record at a time.
            loss: of each sample.
            on_share: called after every client with the share of the round's training that is done.

        Raises:
            ConfigError: settings that cannot work.
            DataError: records that the model cannot be trained on.
        """
        check_device(device)
        if noise == "grid":
            first = method.clip_and_noise(method.start(), 0)
            check_grid(method.release, first.noise_multiplier, num_params(trained(model)))
        wanted = default_processes() if processes is None else processes
        if wanted < 1:
            raise ConfigError(f"processes={processes} must be at least 1; leave it out for one for each core")
        if wanted > 1 and not sys.platform.startswith("linux"):
            raise ConfigError(f"processes={processes} needs Linux, where processes can be forked; use 1")
        # No more than clients, but at least two: an error in a worker process cannot show data in its traceback.
        self._processes = 1 if device != "cpu" else min(wanted, max(2, len(data.clients)))
        with steady_arithmetic():
            self._runner = Runner(
                model=model, method=method, data=data, seed=seed, run=run, device=device, noise=noise, loss=loss
            )
            check_enrolment(self._runner.model, data, loss)
        self._data, self._on_share, self._loss = data, on_share, loss
        self._pool: WorkerPool | None = None

    def __enter__(self) -> "Simulation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def train(self, params: Tensor, plans: Sequence[ClientPlan]) -> list[ClientUpdate]:
        """Train these clients from `params`; return the updates in the plans' order."""
        work = [self._work(plan) for plan in plans]
        report = self._share_reporter(work)
        if self._processes == 1:
            updates = []
            for slot, plan in enumerate(plans):
                updates.append(self._runner.train(params, plan))
                report(slot)
            return updates
        pool = self._ready_pool(len(plans), params)
        updates = pool.run(enumerate(plans), work=work, on_done=report)
        return [replace(update, params=pool.weights.of_client(slot)) for slot, update in enumerate(updates)]

    def _share_reporter(self, work: Sequence[float]) -> Callable[[int], None]:
        """Return a callback that reports the finished share of the work, since clients have unequal sizes."""
        total, done = sum(work), 0.0

        def tell(slot: int) -> None:
            nonlocal done
            done += work[slot]
            self._on_share(min(1.0, done / total))

        return tell

    def evaluate(self, params: Tensor, part: Part) -> Evaluation | None:
        """Return mean loss and metrics on the part; None if there is no such data."""
        if part not in self._data.evaluation:
            return None
        targets = self._data.evaluation[part][1]
        total = len(targets)
        slices = [slice(start, start + _EVALUATION_ROWS) for start in range(0, total, _EVALUATION_ROWS)]
        if self._processes == 1:
            with steady_arithmetic():
                pieces = [self._runner.evaluate(params, part, rows) for rows in slices]
        else:
            pieces = self._ready_pool(1, params).run((part, rows) for rows in slices)
        correct, loss = sum(piece[0] for piece in pieces), sum(piece[1] for piece in pieces)
        accuracy = 100.0 * correct / total if kind_of(targets) == "class" else None
        measures = self._measures(np.concatenate([piece[2] for piece in pieces]), targets)
        return Evaluation(accuracy=accuracy, loss=loss / total, measures=measures)

    def release(self, params: Tensor, plans: Sequence[ReleasePlan]) -> list[Released]:
        """Return the clients' noised sums on their held-out records, in the plans' order."""
        if self._processes == 1:
            with steady_arithmetic():
                return [self._runner.release(params, plan) for plan in plans]
        work = [float(len(part) * part.max_records) for part in (self._data.held_out[plan.client] for plan in plans)]
        return self._ready_pool(1, params).run(enumerate(plans), work=work)

    @steady_arithmetic()  # the same bits after the last round as within it
    def _measures(self, outputs: NDArray[np.float32], targets: Tensor) -> Measures:
        loss = self._loss
        function, options = (loss.func, loss.keywords) if isinstance(loss, partial) else (loss, {})
        name = next((name for name in ("poisson", "quantile") if function is LOSSES[name]), None)
        level, kind = options.get("level", 0.5), kind_of(targets)
        if kind == "number":
            outputs = outputs.clip(*self._data.output_range)
        return measure(kind, outputs, targets.cpu().numpy(), loss=name, quantile=level, unit=self._data.unit)

    def seconds_for(self, params: Tensor, plans: Sequence[ClientPlan]) -> float:
        """Return about how long the plans take: the largest is tried, on as many made-up records."""
        largest = max(plans, key=self._work)
        with steady_arithmetic():
            seconds = min(self._runner.rehearse(params, largest) for _ in range(2))  # the first also warms up
        return seconds * max(1.0, sum(map(self._work, plans)) / self._work(largest) / self._processes)

    def _work(self, plan: ClientPlan) -> float:
        return plan.steps * plan.sample_rate * self._data.size(plan.client) * self._data.max_records

    def _ready_pool(self, num_slots: int, params: Tensor) -> WorkerPool:
        """Return workers with shared memory for this many clients, and the weights in it."""
        if self._pool is None or self._pool.is_closed or len(self._pool.weights) < num_slots:
            self.close()
            self._pool = WorkerPool(self._runner, SharedWeights(num_slots, len(params)), self._processes)
        self._pool.weights.global_weights.copy_(params)
        return self._pool


Wrap: TypeAlias = Callable[[Engine], Engine]
"""Puts a wrapper around an engine, such as a cache."""
