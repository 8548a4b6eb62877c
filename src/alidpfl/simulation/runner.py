"""One process of a simulation: train a client, or evaluate a part of the test set, in one thread."""

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from alidpfl.data.dataset import kind_of
from alidpfl.dpsgd import Groups, RandomStream, cross_entropy
from alidpfl.errors import ConfigError
from alidpfl.federation.client import ClientData, LocalTrainer, release_stream, training_stream
from alidpfl.federation.settings import Part
from alidpfl.federation.tensors import load, trained
from alidpfl.methods import Loss, Method
from alidpfl.releases.compute import evaluated
from alidpfl.releases.queries import EvaluationQuery, Released, ReleasePlan
from alidpfl.types import ClientPlan, ClientUpdate, NoiseKind

Piece: TypeAlias = tuple[int, float, NDArray[np.float32]]
"""Correct answers (0 if targets are not classes), summed loss, and outputs over some rows."""


@dataclass(frozen=True, kw_only=True)
class SimulationData:
    """All clients' records in one pair of tensors, shared by all processes."""

    inputs: Tensor
    targets: Tensor
    clients: Sequence[Tensor]
    """Rows of each client."""
    evaluation: Mapping[Part, tuple[Tensor, Tensor]]
    """Inputs and targets to evaluate on, which are not private."""
    held_out: Sequence[ClientData] = ()
    """The records that each client holds out and never trains on; empty if none is evaluated on."""
    unit: float = 1.0
    """What a difference of 1 between two number targets is in the data's own unit."""
    groups: Sequence[Groups] = ()
    """The rows of each person, by client, if the unit of privacy is a person. Empty means that it is a record."""
    max_records: int = 1
    """k: the most records of a person in a step."""
    output_range: tuple[float, float] = (-math.inf, math.inf)
    """Outputs of a number task beyond these ends predict the same as the ends."""

    def __post_init__(self) -> None:
        if self.groups and len(self.groups) != len(self.clients):
            raise ConfigError(f"groups are of {len(self.groups)} clients, and there are {len(self.clients)}")

    @property
    def sizes(self) -> list[int]:
        """Number of records of each client, or of persons if they are the unit of privacy."""
        return [len(units) for units in self.groups or self.clients]

    def size(self, number: int) -> int:
        """Return the number of records (or persons) of one client."""
        return len(self.groups[number] if self.groups else self.clients[number])

    def client(self, number: int) -> ClientData:
        """Return the records of one client."""
        rows, groups = self.clients[number], self.groups[number] if self.groups else None  # proof parallel 2
        return ClientData(
            inputs=self.inputs, targets=self.targets, rows=rows, groups=groups, max_records=self.max_records
        )


class Runner:
    """Trains and evaluates. Parent and worker processes use the same code, so results do not depend on the process."""

    def __init__(
        self,
        *,
        model: nn.Module,
        method: Method,
        data: SimulationData,
        seed: int | None,
        run: str | None = None,
        device: str = "cpu",
        noise: NoiseKind = "gaussian",
        loss: Loss = cross_entropy,
    ) -> None:
        """Copy the model. The arguments are those of `Simulation`."""
        self._trainer = LocalTrainer(method.objective(copy.deepcopy(model).train(), loss), device=device, noise=noise)
        self.model = copy.deepcopy(model).eval().to(device)
        self._parameters = trained(self.model)
        self._data, self._device, self._loss = data, device, loss
        self._seed, self._run, self._noise = seed, run, noise

    def train(self, params: Tensor, plan: ClientPlan) -> ClientUpdate:
        """Run one client's plan. Its randomness depends only on seed, run, round and client."""
        random = training_stream(self._seed, self._run, plan)
        return self._trainer.train(params, self._data.client(plan.client), plan, random)

    def release(self, params: Tensor, plan: ReleasePlan) -> Released:
        """Return one client's noised sums on its held-out records. They must have been charged before."""
        load(params, self._parameters)
        records = self._data.held_out[plan.client]  # proof parallel 3
        random = release_stream(self._seed, self._run, plan.number, plan.client, plan.query.kind)
        values = evaluated(
            cast(EvaluationQuery, plan.query),  # statistics need no model, and come before the engine
            self.model,
            records.inputs,
            records.targets,
            records.rows,
            groups=records.groups,
            max_records=records.max_records,
            noise_multiplier=plan.noise_multiplier,
            random=random,
            noise=self._noise,
        )
        return Released(client=plan.client, values=values)

    def rehearse(self, params: Tensor, plan: ClientPlan) -> float:
        """Return the seconds that the plan takes, measured on zeros instead of records, so nothing is charged."""
        shared = self._data
        inputs, targets = (t.new_zeros((1, *t.shape[1:])) for t in (shared.inputs, shared.targets))
        count = shared.size(plan.client)
        rows = torch.zeros(count, dtype=torch.int64)  # one a person: a step takes k of each in any case
        groups = Groups(rows=rows, offsets=torch.arange(count + 1)) if shared.groups else None
        made_up = ClientData(inputs=inputs, targets=targets, rows=rows, groups=groups, max_records=shared.max_records)
        started = time.monotonic()
        self._trainer.train(params, made_up, plan, RandomStream.secure())
        return time.monotonic() - started

    @torch.no_grad()
    def evaluate(self, params: Tensor, part: Part, rows: slice) -> Piece:
        """Evaluate on some rows of the part."""
        inputs, targets = (t[rows].to(self._device) for t in self._data.evaluation[part])
        load(params, self._parameters)
        outputs = self.model(inputs)
        losses = self._loss(outputs, targets)
        correct = int((outputs.argmax(1) == targets).sum()) if kind_of(targets) == "class" else 0
        return correct, float(losses.double().sum()), outputs.float().cpu().numpy()
