"""A lasting direction shows in the mean of a client's updates, and survives a checkpoint."""

import math

import pytest
import torch

from alidpfl.federation.history import History
from alidpfl.federation.inspection import rejections
from alidpfl.types import ClientUpdate
from tests.federation.test_inspection import BEFORE, CLIENTS, LAWS, NOISE, PARAMS, honest_moves, unit

EVERYONE = range(CLIENTS)


def updates(moves):
    return [ClientUpdate(client=client, params=BEFORE + move) for client, move in enumerate(moves)]


def test_a_direction_that_stays_is_rejected():
    """One client alone, all of whose length is one direction, every second round."""
    history, harm = History(CLIENTS, PARAMS), unit(7) * NOISE * math.sqrt(PARAMS)
    for number in range(4):
        moves = honest_moves(seed=number)
        moves[0] = harm if number % 2 == 0 else moves[0]
        found = rejections(updates(moves), LAWS, BEFORE, history.vectors(EVERYONE))
        assert list(found) == ([0] if number == 2 else [])
        history.observe(updates(moves), LAWS, BEFORE)


def test_noise_fades_from_the_mean_and_its_law_is_known():
    history = History(CLIENTS, PARAMS)
    assert history.means(EVERYONE) is None
    for number in range(60):
        history.observe(updates(honest_moves(seed=number, signal=0.0)), LAWS, BEFORE)
    for mean in history.means(EVERYONE):
        assert mean.noise == pytest.approx(NOISE * math.sqrt(0.1 / 1.9), rel=1e-2)
        assert mean.length == pytest.approx(mean.noise * math.sqrt(PARAMS), rel=0.06)  # five standard deviations


def test_a_restored_history_is_the_same():
    history, restored = History(CLIENTS, PARAMS), History(CLIENTS, PARAMS)
    history.observe(updates(honest_moves()), LAWS, BEFORE)
    numbers, tensors = history.to_state()
    restored.restore(numbers, {**tensors, "params": BEFORE})
    assert restored.means(EVERYONE) == history.means(EVERYONE)
    assert len(restored.vectors(EVERYONE)) == CLIENTS
    restored.restore({}, {"params": BEFORE})
    assert restored.vectors(EVERYONE) == []


def test_history_takes_no_poison_and_no_more_than_its_memory():
    history = History(CLIENTS, PARAMS)
    bad = [torch.zeros(3), BEFORE.double(), BEFORE * math.nan, BEFORE * math.inf, BEFORE + 1e6]
    history.observe([ClientUpdate(client=c, params=params) for c, params in enumerate(bad)], LAWS, BEFORE)
    assert history.to_state() == ({}, {})
    large = History(10**6, PARAMS)
    large.observe(updates(honest_moves()), LAWS, BEFORE)
    assert large.to_state() == ({}, {})
    assert large.means(EVERYONE) is None
