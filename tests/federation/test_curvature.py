"""The private curvature: found where it can be, withheld where noise hides it, computed from noised quantities only."""

import math

import pytest
import torch

from alidpfl.federation.curvature import CurvatureTracker
from alidpfl.types import ClientPlan, ClientUpdate

SIZES = {0: 100, 1: 300}
SHARES = {0: 0.25, 1: 0.75}
CURVATURE = 0.4


def plan(client: int, rates=(0.5,), noise=1.0) -> ClientPlan:
    return ClientPlan(
        client=client, round=0, sample_rate=0.1, noise_multiplier=noise, clip_norm=1.0, learning_rates=rates
    )


def run(num_params: int, noise: float, rounds: int, seed: int, *, start=10.0) -> CurvatureTracker:
    """Two clients on F(w) = (CURVATURE / 2) ‖w‖² with one noised step a round: gradients CURVATURE · w + noise."""
    random = torch.Generator().manual_seed(seed)
    tracker, weights = CurvatureTracker(), torch.full((num_params,), start / math.sqrt(num_params))
    for _ in range(rounds):
        updates = []
        for client, size in SIZES.items():
            scale = noise / (0.1 * size)
            gradient = CURVATURE * weights + scale * torch.randn(num_params, generator=random)
            updates.append(ClientUpdate(client=client, params=weights - 0.5 * gradient))
        mean = sum(SHARES[u.client] * (u.params - weights) for u in updates)
        arrived = [(SHARES[u.client], plan(u.client, noise=noise), u) for u in updates]
        tracker = tracker.observe(weights, mean, arrived, SIZES)
        weights = weights + mean
    return tracker


def test_the_curvature_of_a_quadratic_is_found_across_rounds():
    """De-biased, the estimate is right although most of each difference is noise; without, it would be far too high."""
    found = [run(num_params=2000, noise=0.2, rounds=6, seed=seed).estimate.value for seed in range(10)]
    assert all(value is not None for value in found)
    assert sum(found) / 10 == pytest.approx(CURVATURE, rel=0.1)


@pytest.mark.parametrize("start", [10.0, 0.01])
def test_noise_that_moves_the_weights_does_not_pass_for_curvature(start):
    """Steps of almost pure noise: their noise, left in, would add 1/η = 2 to the 0.4."""
    found = [run(num_params=20_000, noise=10.0, rounds=6, seed=seed, start=start).estimate.value for seed in range(10)]
    assert all(value is not None for value in found)
    assert sum(found) / 10 == pytest.approx(CURVATURE, rel=0.15)


def test_it_is_withheld_where_noise_hides_it(monkeypatch):
    """A flat loss under noise: the differences are noise alone."""
    monkeypatch.setattr("tests.federation.test_curvature.CURVATURE", 0.0)
    hidden = [run(num_params=2000, noise=10.0, rounds=4, seed=seed).estimate.value for seed in range(100)]
    assert sum(value is not None for value in hidden) <= 3


def test_rounds_with_other_clients_are_not_compared():
    tracker = run(num_params=2000, noise=0.2, rounds=3, seed=0)
    before = tracker.estimate
    weights, update = torch.zeros(2000), ClientUpdate(client=1, params=torch.ones(2000))
    after = tracker.observe(weights, torch.ones(2000), [(1.0, plan(1), update)], SIZES)
    assert after.estimate == before


def test_state_survives_a_checkpoint():
    tracker = run(num_params=50, noise=0.2, rounds=3, seed=0)
    numbers, tensors = tracker.to_state()
    restored = CurvatureTracker.from_state(numbers, tensors)
    assert restored.estimate == tracker.estimate
    assert torch.equal(restored.last.gradient, tracker.last.gradient)
    assert CurvatureTracker.from_state(*CurvatureTracker().to_state()) == CurvatureTracker()
