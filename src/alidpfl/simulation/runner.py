"""What one process of a simulation does: train a client, evaluate a slice of the test set. One thread."""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from alidpfl.dpsgd import RandomStream
from alidpfl.federation.client import ClientData, LocalTrainer
from alidpfl.federation.settings import Part
from alidpfl.federation.tensors import load, trained
from alidpfl.methods import Method
from alidpfl.types import ClientPlan, ClientUpdate, NoiseKind


@dataclass(frozen=True, kw_only=True)
class SimulationData:
    """All clients' records in one pair of tensors, which every process reads and none copies."""

    inputs: Tensor
    targets: Tensor
    clients: Sequence[Tensor]
    """Rows of each client."""
    evaluation: Mapping[Part, tuple[Tensor, Tensor]]
    """Inputs and targets that are not private."""

    def client(self, number: int) -> ClientData:
        """The records of one client."""
        return ClientData(inputs=self.inputs, targets=self.targets, rows=self.clients[number])


class Runner:
    """Trains and evaluates. The same in the parent and in a worker process, so that results do not depend on it."""

    def __init__(
        self,
        *,
        model: nn.Module,
        method: Method,
        data: SimulationData,
        seed: int | None,
        device: str = "cpu",
        noise: NoiseKind = "gaussian",
    ) -> None:
        """`seed` None: noise and batches from the operating system's entropy, unrepeatable."""
        self._trainer = LocalTrainer(method.objective(copy.deepcopy(model).train()), device=device, noise=noise)
        self.model = copy.deepcopy(model).eval().to(device)
        self._parameters = trained(self.model)
        self._data, self._seed, self._device = data, seed, device

    def train(self, params: Tensor, plan: ClientPlan) -> ClientUpdate:
        """Run one client's plan. Its randomness depends on seed, round and client only."""
        if self._seed is None:
            random = RandomStream.secure()
        else:
            random = RandomStream.seeded(self._seed, plan.round, plan.client)
        return self._trainer.train(params, self._data.client(plan.client), plan, random)

    def rehearse(self, params: Tensor, plan: ClientPlan) -> float:
        """Seconds that the plan takes, on zeros instead of the client's records: it is timed, not charged."""
        shared = self._data
        inputs, targets = (t.new_zeros((1, *t.shape[1:])) for t in (shared.inputs, shared.targets))
        rows = torch.zeros(len(shared.clients[plan.client]), dtype=torch.int64)
        made_up = ClientData(inputs=inputs, targets=targets, rows=rows)
        started = time.monotonic()
        self._trainer.train(params, made_up, plan, RandomStream.secure())
        return time.monotonic() - started

    @torch.no_grad()
    def evaluate(self, params: Tensor, part: Part, rows: slice) -> tuple[int, float]:
        """Correct answers and summed loss over some rows of the part."""
        inputs, targets = (t[rows].to(self._device) for t in self._data.evaluation[part])
        load(params, self._parameters)
        outputs = self.model(inputs)
        losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return int((outputs.argmax(1) == targets).sum()), float(losses.double().sum())
