"""Every client, every round and every step has noise of its own: one pair that shares it can be subtracted."""

import math

import numpy as np
import pytest
import torch

from alidpfl.federation.client import ClientData, release_stream
from alidpfl.methods import make_method
from alidpfl.releases.queries import EvaluationQuery, ReleasePlan
from alidpfl.simulation.engine import Simulation
from alidpfl.simulation.runner import SimulationData
from alidpfl.types import ClientPlan

NUM_PARAMS, NUM_CLIENTS, NUM_ROUNDS = 20_000, 4, 3


def noises(seed: int | None) -> list[torch.Tensor]:
    """What each client of each round sends when its gradients are zero: noise alone, step by step."""
    rows = torch.arange(40).split(10)
    data = SimulationData(
        inputs=torch.zeros(40, NUM_PARAMS // 2), targets=torch.zeros(40, dtype=torch.int64), clients=rows, evaluation={}
    )
    model = torch.nn.Linear(NUM_PARAMS // 2, 2, bias=False)
    method = make_method("fedavg_dp", clip_norm=1.0, noise_multiplier=1.0)
    engine = Simulation(model=model, method=method, data=data, seed=seed, processes=1)
    sent = []
    for round_number in range(NUM_ROUNDS):
        plans = [
            ClientPlan(
                client=client,
                round=round_number,
                sample_rate=0.5,
                noise_multiplier=1.0,
                clip_norm=1.0,
                learning_rates=rates,
            )
            for client in range(NUM_CLIENTS)
            for rates in ((5.0,), (5.0, 5.0))
        ]
        updates = [-update.params for update in engine.train(torch.zeros(NUM_PARAMS), plans)]
        for one_step, two_steps in zip(updates[::2], updates[1::2], strict=True):
            sent += [one_step, two_steps - one_step]
    return sent


def test_noise_is_independent_over_clients_rounds_and_steps():
    sent = torch.stack(noises(seed=3))
    assert len(sent) == NUM_CLIENTS * NUM_ROUNDS * 2
    correlations = torch.corrcoef(sent).fill_diagonal_(0).abs()
    assert float(correlations.max()) < 5 / math.sqrt(NUM_PARAMS)
    assert torch.allclose(sent.std(1), torch.ones(len(sent)), atol=0.03)


def test_noise_of_another_seed_is_other_noise_and_secure_noise_cannot_be_repeated():
    first, again, other, secure, secure_again = (noises(seed)[0] for seed in (3, 3, 4, None, None))
    assert torch.equal(first, again)
    for one, two in ((first, other), (secure, secure_again), (first, secure)):
        assert abs(float(torch.corrcoef(torch.stack([one, two]))[0, 1])) < 5 / math.sqrt(NUM_PARAMS)


def test_seeded_streams_of_releases_differ_by_each_part_of_their_key():
    key = {"seed": 3, "run": "a", "number": 1, "client": 0, "channel": "evaluation"}
    others = ({"seed": 4}, {"run": "b"}, {"run": None}, {"number": 2}, {"client": 1}, {"channel": "statistics"})
    drawn = [tuple(release_stream(**{**key, **change}).normal(4).tolist()) for change in ({}, {}, *others)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 1 + len(others)


@pytest.mark.parametrize("seed", [3, None])
def test_the_noise_of_evaluations_is_independent_over_clients_and_rounds(seed):
    """The clients hold out equal records, so their sums differ by noise alone."""
    inputs, targets = torch.zeros(8, 3), torch.zeros(8, dtype=torch.int64)
    rows = torch.arange(8)
    held_out = [ClientData(inputs=inputs, targets=targets, rows=rows)] * NUM_CLIENTS
    data = SimulationData(
        inputs=inputs, targets=targets, clients=[rows] * NUM_CLIENTS, evaluation={}, held_out=held_out
    )
    method = make_method("fedavg_dp", clip_norm=1.0, noise_multiplier=1.0)
    engine = Simulation(model=torch.nn.Linear(3, 2), method=method, data=data, seed=seed, processes=1)
    query = EvaluationQuery(task="class", outputs=2, edges=tuple(np.linspace(0.005, 0.995, 199).tolist()))
    sent = []
    for number in range(NUM_ROUNDS):
        plans = [ReleasePlan(client=client, number=number, noise_multiplier=1e4, query=query) for client in range(4)]
        sent += [released.values for released in engine.release(torch.zeros(8), plans)]
    correlations = np.abs(np.corrcoef(sent) - np.eye(len(sent)))
    assert len(sent) == NUM_CLIENTS * NUM_ROUNDS
    assert correlations.max() < 5 / math.sqrt(query.layout.size)
