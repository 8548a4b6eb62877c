"""Every client, every round and every step has noise of its own: one pair that shares it can be subtracted."""

import math

import torch

from alidpfl.methods import make_method
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
