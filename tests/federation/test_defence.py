"""Whole rounds with hostile clients among honest ones."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import alidpfl
from alidpfl.federation import ServerSettings
from alidpfl.federation.defence import Defence
from alidpfl.federation.inspection import honest_laws
from alidpfl.federation.server import ServerState
from alidpfl.registry import AGGREGATIONS
from alidpfl.types import ClientPlan, ClientUpdate

CLIENTS, FEATURES, RECORDS = 6, 300, 60
PRIVACY = alidpfl.Privacy(epsilon=8.0, delta=1e-3, sample_rate=0.2, noise_multiplier=1.0)
PARAMS = 2 * FEATURES


def federation(server=None, attack=None, large=1, **settings):
    """Return six clients, the first `large` times as large; `attack` turns its update into what it sends."""
    random = torch.manual_seed(0)  # of the first weights too
    inputs = torch.randn(CLIENTS + 1, RECORDS, FEATURES, generator=random)
    *clients, test = [(x, (x[:, 0] > 0).long()) for x in inputs]
    clients[0] = (clients[0][0].repeat(large, 1), clients[0][1].repeat(large))
    made = alidpfl.federate(
        nn.Linear(FEATURES, 2, bias=False),
        clients,
        test=test,
        privacy=PRIVACY,
        max_rounds=5,
        learning_rate=0.5,
        policy=settings.pop("policy", "fixed"),
        server=server,
        seed=1,
        processes=1,
        **settings,
    )
    train = made._engine.train

    def attacked(params, plans):
        return [
            replace(u, params=params + attack(u.params - params)) if attack and u.client == 0 else u
            for u in train(params, plans)
        ]

    made._engine.train = attacked
    return made


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_honest_clients_are_never_rejected(aggregation):
    records = list(federation(ServerSettings(aggregation=aggregation, momentum=0.5)))
    assert len(records) == 5
    assert all(record.aggregated and not record.rejected for record in records)


@pytest.mark.parametrize(
    "attack",
    [lambda move: 10 * move, lambda move: -5 * move, lambda move: 0 * move, lambda move: move / 3],
    ids=["ten times", "longer and flipped", "nothing", "too little noise"],
)
def test_impossible_updates_are_rejected_in_every_round(attack):
    assert [list(record.rejected) for record in federation(attack=attack)] == [[0]] * 5


def test_a_lone_direction_is_rejected_from_the_second_round_on():
    def attack(move):
        return torch.nn.functional.normalize(torch.ones_like(move), dim=0) * move.norm()

    assert [list(record.rejected) for record in federation(attack=attack)] == [[], *[[0]] * 4]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_restored_run_with_a_hostile_client_ends_as_an_uninterrupted_one(aggregation):
    def attack(move):
        return torch.nn.functional.normalize(torch.ones_like(move), dim=0) * move.norm()

    server = ServerSettings(aggregation=aggregation)
    whole = federation(server, attack, policy="ali")
    expected = [record.to_json() for record in whole]
    first = federation(server, attack, policy="ali")
    told = [record.to_json() for record in itertools.islice(first, 1)]
    tensors, values = first.state()
    second = federation(server, attack, policy="ali")
    second.restore({name: tensor.clone() for name, tensor in tensors.items()}, json.loads(json.dumps(values)))
    told += [record.to_json() for record in second]
    assert told == expected
    assert torch.equal(second.params, whole.params)


def test_records_that_nobody_can_check_count_for_a_multiple_of_the_median():
    assert federation(large=10)._shares(range(CLIENTS)) == pytest.approx([10 / 15] + [1 / 15] * 5)
    capped = federation(ServerSettings(max_size_ratio=3.0), large=10)
    assert capped._shares(range(CLIENTS)) == pytest.approx([3 / 8] + [1 / 8] * 5)


def noised(signals, seed=0):
    """Return settings of one round, and updates with these lengths of signal along one direction."""
    plans = [
        ClientPlan(client=c, round=0, sample_rate=0.5, noise_multiplier=1.0, clip_norm=1.0, learning_rates=(20.0,))
        for c in range(len(signals))
    ]
    laws = honest_laws(plans, PARAMS, dict.fromkeys(range(len(signals)), 1000))
    random = torch.Generator().manual_seed(seed)
    direction = torch.nn.functional.one_hot(torch.tensor(0), PARAMS).float()
    moves = [s * direction + laws[0].noise * torch.randn(PARAMS, generator=random) for s in signals]
    return laws, [ClientUpdate(client=c, params=move) for c, move in enumerate(moves)]


def along_first(signals, **settings):
    """Return how far the average of a round moves along the signals' direction."""
    laws, updates = noised(signals)
    defence, state = Defence(ServerSettings(**settings), len(signals), PARAMS), ServerState(params=torch.zeros(PARAMS))
    assert defence.rejections(updates, laws, state) == {}
    shares = [1 / len(signals)] * len(signals)
    return float(defence.averaged(updates, shares, laws, state.params).update[0])


def test_a_signal_far_above_the_others_is_shortened():
    signals = [1.0, 1.0, 1.0, 1.0, 1.0, -15.0]
    assert along_first(signals, signal_limit=None) == pytest.approx(-10 / 6, abs=0.1)
    assert along_first(signals) > 0.4
    assert along_first([1.0, -15.0]) == pytest.approx(-7, abs=0.1)  # of two, nobody can say which is unusual


def test_a_weak_signal_that_lasts_is_shortened_by_its_history():
    """Five standard deviations would hide it in a single round."""
    hidden, laws = 0.7, noised([0.0] * 6)[0]
    defence, state = Defence(ServerSettings(), 6, PARAMS), ServerState(params=torch.zeros(PARAMS))
    factors = []
    for seed in range(30):
        _, updates = noised([0.0] * 5 + [hidden], seed=seed)
        assert defence.rejections(updates, laws, state) == {}
        noises = [laws[c].noise for c in range(6)]
        factors.append(defence._factors(updates, noises, laws[0].log_odds, state.params))
    assert factors[0] == [1.0] * 6
    assert factors[-1][:5] == [1.0] * 5
    assert factors[-1][5] < 0.6


def test_no_curvature_is_read_from_a_mean_with_unknown_noise():
    for aggregation, expects in (
        ("mean", True),
        ("geometric_median", True),
        ("median", False),
        ("trimmed_mean", False),
    ):
        made = federation(ServerSettings(aggregation=aggregation), policy="ali")
        made.step()
        assert ("mean_gradient" in made.state()[0]) == expects
