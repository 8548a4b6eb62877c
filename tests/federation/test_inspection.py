"""What the server rejects: nothing honest, and nothing without noise of its own."""

import math
from dataclasses import replace

import pytest
import torch

from alidpfl.federation.inspection import honest_laws, rejections
from alidpfl.types import ClientPlan, ClientUpdate

PARAMS, CLIENTS, RECORDS = 4000, 6, 500
PLANS = [
    ClientPlan(client=c, round=0, sample_rate=0.1, noise_multiplier=2.0, clip_norm=1.0, learning_rates=(0.5,))
    for c in range(CLIENTS)
]
SIZES = dict.fromkeys(range(CLIENTS), RECORDS)
LAWS = honest_laws(PLANS, PARAMS, SIZES)
BEFORE = torch.randn(PARAMS, generator=torch.Generator().manual_seed(9))
NOISE = LAWS[0].noise


def honest_moves(seed=0, signal=0.4):
    random = torch.Generator().manual_seed(seed)
    direction = torch.nn.functional.normalize(torch.randn(PARAMS, generator=random), dim=0)
    return [signal * direction + NOISE * torch.randn(PARAMS, generator=random) for _ in range(CLIENTS)]


def rejected(moves, known=(), laws=LAWS):
    updates = [ClientUpdate(client=c, params=BEFORE + move) for c, move in enumerate(moves)]
    return rejections(updates, laws, BEFORE, known)


def unit(seed):
    return torch.nn.functional.normalize(torch.randn(PARAMS, generator=torch.Generator().manual_seed(seed)), dim=0)


def test_updates_that_cannot_be_used_are_rejected_with_the_reason():
    def reason(params):
        return rejections([ClientUpdate(client=0, params=params)], LAWS, BEFORE)[0]

    assert "shape" in reason(torch.zeros(99))
    assert "dtype" in reason(BEFORE.double())
    for poison in (math.nan, math.inf, -math.inf):
        assert "not finite" in reason(BEFORE.index_fill(0, torch.tensor([3]), poison))
    assert "longer than" in reason(BEFORE + 1e6)


def test_honest_updates_pass_with_and_without_a_last_move():
    assert rejected(honest_moves()) == {}
    assert rejected(honest_moves(), known=[unit(5), 3 * unit(6)]) == {}
    assert rejected(honest_moves(), known=[torch.zeros(PARAMS)]) == {}
    assert rejections([], LAWS, BEFORE) == {}


def test_honest_rounds_are_rejected_no_more_often_than_promised():
    """At 1 % per round, more than 12 rejecting rounds of 200 come by chance once in 10^6 tests."""
    laws = honest_laws(PLANS, PARAMS, SIZES, false_alarm=1e-2)
    rounds = sum(bool(rejected(honest_moves(seed), [unit(seed)], laws)) for seed in range(200))
    assert rounds <= 12


@pytest.mark.parametrize("factor", [1.6, 10.0, -10.0])
def test_a_longer_update_is_rejected(factor):
    moves = honest_moves()
    moves[2] = factor * moves[2]
    assert list(rejected(moves)) == [2]


def test_an_update_without_noise_is_rejected_if_it_is_short():
    moves = honest_moves()
    moves[1] = unit(7)
    assert list(rejected(moves)) == [1]
    moves[1] = torch.zeros(PARAMS)
    assert list(rejected(moves)) == [1]


def test_clients_that_share_a_direction_instead_of_noise_are_rejected():
    moves, length = honest_moves(), LAWS[0].longest() * 0.999
    moves[0] = moves[3] = unit(7) * length
    assert sorted(rejected(moves)) == [0, 3]
    moves[3] = -moves[0]
    assert sorted(rejected(moves)) == [0, 3]


def test_an_update_along_the_last_move_is_rejected():
    """Alone in its round, it looks like noise of an honest length. The model's last move tells."""
    moves, direction = honest_moves(), unit(7)
    moves[0] = direction * NOISE * math.sqrt(PARAMS)
    assert rejected(moves) == {}
    assert list(rejected(moves, known=[-0.01 * direction])) == [0]


def test_a_copy_of_another_update_is_rejected():
    moves = honest_moves()
    moves[0] = moves[1].clone()
    assert sorted(rejected(moves)) == [0, 1]


def test_more_along_a_known_direction_than_any_signal_is_rejected():
    """An update with enough noise left in it can still push too far along what the server knows."""
    weak = [replace(plan, clip_norm=0.02, noise_multiplier=100.0) for plan in PLANS]  # signals far below the noise
    laws, direction = honest_laws(weak, PARAMS, SIZES), unit(7)
    moves = honest_moves(signal=0.0)
    moves[0] = moves[0] + direction * 1.5 * laws[0].largest_component()
    assert moves[0].norm() < laws[0].longest()
    assert rejected(moves, laws=laws) == {}
    assert list(rejected(moves, known=[direction], laws=laws)) == [0]


def test_float_rounding_of_large_weights_rejects_nobody():
    """Weights of a million swallow most of a small noise. That is no lie."""
    before = torch.full((PARAMS,), 2.0**20)
    updates = [ClientUpdate(client=c, params=before + move) for c, move in enumerate(honest_moves())]
    assert rejections(updates, LAWS, before) == {}
    tiny = [ClientUpdate(client=c, params=before + 1e-6 * move) for c, move in enumerate(honest_moves())]
    plans = [replace(plan, learning_rates=(5e-7,)) for plan in PLANS]
    assert rejections(tiny, honest_laws(plans, PARAMS, SIZES), before) == {}
