"""What a client's own code says when it fails may quote its data: it stays in the worker."""

from dataclasses import dataclass

import pytest
import torch

from alidpfl.methods import FedAvgDp, Objective
from alidpfl.simulation.engine import Simulation
from alidpfl.simulation.runner import SimulationData
from alidpfl.simulation.workers import WorkerError
from alidpfl.types import ClientPlan


@dataclass(frozen=True, kw_only=True)
class Talkative(FedAvgDp):
    """Fails on a sampled record with an error of its own, which no layer below knows."""

    def objective(self, model, loss):
        def before_step(_random):
            raise KeyError("patient 731 has leukaemia")

        return Objective(model=model, loss=torch.nn.functional.cross_entropy, before_step=before_step)


def test_a_workers_error_keeps_its_details_to_itself():
    data = SimulationData(
        inputs=torch.zeros(20, 3), targets=torch.zeros(20, dtype=torch.int64), clients=[torch.arange(20)], evaluation={}
    )
    plan = ClientPlan(client=0, round=0, sample_rate=0.5, noise_multiplier=1.0, clip_norm=1.0, learning_rates=(0.1,))
    method = Talkative(clip_norm=1.0, noise_multiplier=1.0)
    engine = Simulation(model=torch.nn.Linear(3, 2), method=method, data=data, seed=0, processes=2)
    with engine, pytest.raises(WorkerError) as caught:
        engine.train(torch.zeros(8), [plan])
    said = str(caught.value)
    assert "KeyError" in said
    assert "731" not in said
    assert "leukaemia" not in said
