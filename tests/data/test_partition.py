"""Splits are disjoint, complete, repeatable, and skewed as configured."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alidpfl.data import dirichlet, held_out_rows, iid, label_counts, small_clients
from alidpfl.errors import AliDpflError, ConfigError

LABELS = np.arange(3000) % 10


def assert_splits(parts, num_samples):
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(num_samples))  # complete, and each once
    assert all(part.dtype == np.int64 and np.array_equal(part, np.sort(part)) for part in parts)


def skew(parts, labels=LABELS):
    """Mean distance (total variation) of the clients' class shares from the even share: 0 even, 0.9 one class each."""
    counts = label_counts(labels, parts, 10)
    return float(np.abs(counts / counts.sum(axis=1, keepdims=True) - 0.1).sum(axis=1).mean() / 2)


@given(st.integers(1, 500), st.integers(1, 40), st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_iid_splits_are_even_complete_and_repeatable(num_samples, num_clients, seed):
    if num_clients > num_samples:
        with pytest.raises(ConfigError, match="num_clients"):
            iid(num_samples, num_clients, seed)
        return
    parts = iid(num_samples, num_clients, seed)
    assert_splits(parts, num_samples)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert all(np.array_equal(a, b) for a, b in zip(parts, iid(num_samples, num_clients, seed), strict=True))


@given(
    st.lists(st.integers(0, 9), min_size=40, max_size=400),
    st.integers(1, 6),
    st.sampled_from([0.05, 0.5, 1.0, 100.0]),
    st.integers(0, 2**40),
    st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_dirichlet_splits_are_complete_repeatable_and_large_enough(labels, num_clients, beta, seed, min_samples):
    try:
        parts = dirichlet(labels, num_clients, beta, seed, min_samples=min_samples, max_tries=2000)
    except ConfigError as error:
        assert "beta=" in str(error) or "num_clients=" in str(error)  # noqa: PT017
        return
    assert len(parts) == num_clients
    assert_splits(parts, len(labels))
    assert min(len(part) for part in parts) >= min_samples
    again = dirichlet(labels, num_clients, beta, seed, min_samples=min_samples, max_tries=2000)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("split", [lambda seed: iid(3000, 10, seed), lambda seed: dirichlet(LABELS, 10, 0.5, seed)])
def test_another_seed_is_another_split(split):
    assert not all(np.array_equal(a, b) for a, b in zip(split(0), split(1), strict=True))


def test_iid_and_dirichlet_are_not_in_order_of_the_data():
    for parts in (iid(3000, 10, 0), dirichlet(LABELS, 10, 100.0, 0)):
        assert np.ptp(parts[0]) > 2000


def test_skew_grows_as_beta_falls():
    mean = {
        beta: np.mean([skew(dirichlet(LABELS, 10, beta, seed)) for seed in range(20)]) for beta in (0.05, 0.5, 1, 100)
    }
    assert mean[0.05] > mean[0.5] + 0.1 > mean[1] + 0.1
    assert mean[1] > mean[100] + 0.2
    assert 0.65 < mean[0.05] < 0.9
    assert np.mean([skew(iid(3000, 10, seed)) for seed in range(20)]) < 0.1


def test_a_client_that_holds_its_fair_share_gets_nothing_more():
    """Once a client has n/N samples its share of later classes is zero, so it passes n/N within one class only."""
    for seed in range(20):
        counts = label_counts(LABELS, dirichlet(LABELS, 10, 0.1, seed), 10)
        before = np.cumsum(counts, axis=1) - counts  # held before each class
        assert (counts[before >= 300] == 0).all()


def test_shares_follow_the_dirichlet_distribution():
    """Two clients, one class: the first one's share is Beta(β, β), with variance 1 / (4 (2β + 1))."""
    shares = np.array([len(dirichlet(np.zeros(500, int), 2, 1.0, seed, min_samples=0)[0]) / 500 for seed in range(800)])
    assert shares.mean() == pytest.approx(0.5, abs=0.04)
    assert shares.var() == pytest.approx(1 / 12, rel=0.12)


def test_the_papers_setting_on_60000_samples():
    labels = np.arange(60_000) % 10
    parts = dirichlet(labels, 10, 0.05, 0)
    assert_splits(parts, 60_000)
    assert min(len(part) for part in parts) >= 10


def test_when_all_that_is_drawn_falls_on_full_clients_those_with_room_share():
    """At β = 1e-3 a draw is all but one-hot, and often falls on a client that is full."""
    parts = dirichlet(LABELS, 10, 1e-3, 0, min_samples=0)
    assert_splits(parts, 3000)
    assert max(len(part) for part in parts) <= 600  # below n/N before its last class, which has 300


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"num_clients": 10_000}, "num_clients=10000 .*100000 .*60000"),
        ({"num_clients": 0}, "num_clients=0"),
        ({"num_clients": 2.5}, "num_clients=2.5"),
        ({"beta": 0.0}, "beta=0.0"),
        ({"beta": float("nan")}, "beta=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"num_clients": 3000, "min_samples": 20, "max_tries": 2}, "beta=0.5 .*min_samples=20 in 2"),
        ({"labels": [0.5, 1.0]}, "labels .*float64"),
        ({"labels": [-1] * 100}, "labels"),
    ],
)
def test_impossible_splits_name_the_value(arguments, value):
    setting = {"labels": np.arange(60_000) % 10, "num_clients": 10, "beta": 0.5, "seed": 0, **arguments}
    with pytest.raises(ConfigError, match=value):
        dirichlet(**setting)


def test_label_counts_and_small_clients():
    labels = [0, 0, 1, 2]
    assert label_counts(labels, [[0, 2], [1, 3], []], 4).tolist() == [[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]
    with pytest.raises(ConfigError, match="num_classes=2"):
        label_counts(labels, [[0]], 2)
    assert small_clients([range(66), range(67), range(0)], 0.015) == (0, 2)
    with pytest.raises(ConfigError, match="sample_rate=32"):
        small_clients([range(3)], 32)


def test_validation_is_held_out_of_training():
    kept, held = held_out_rows(100, 0.25, seed=0)
    assert (len(kept), len(held)) == (75, 25)
    assert torch.equal(torch.cat([kept, held]).sort().values, torch.arange(100))
    assert torch.equal(held_out_rows(100, 0.25, seed=0)[1], held)
    assert not torch.equal(held_out_rows(100, 0.25, seed=1)[1], held)
    assert int(held.max()) > 80  # not the first ones
    assert [len(part) for part in held_out_rows(100, 0, seed=0)] == [100, 0]
    for fraction in (1, -0.1, 0.001, 0.999, float("nan"), "0.1"):
        with pytest.raises(AliDpflError, match="fraction"):
            held_out_rows(100, fraction, seed=0)
