"""Means by hand, and what a minority can do to them."""

import math

import pytest
import torch

from alidpfl.federation.aggregation import Contribution
from alidpfl.registry import AGGREGATIONS


def parts(moves, shares=None, noise=0.1, factors=None):
    moves = torch.as_tensor(moves, dtype=torch.float32)
    before = torch.ones(moves.shape[1])
    shares = shares or [1 / len(moves)] * len(moves)
    return [
        Contribution(params=before + move, before=before, share=share, noise=noise, factor=factor)
        for move, share, factor in zip(moves, shares, factors or [1.0] * len(moves), strict=True)
    ]


def averaged(name, contributions, trim=0.3):
    return AGGREGATIONS[name](contributions, trim)


def test_the_mean_is_weighted():
    found = averaged("mean", parts([[1.0, 0.0], [0.0, 4.0]], [0.25, 0.75]))
    assert found.update.tolist() == [0.25, 3.0]
    assert found.weights == (0.25, 0.75)


def test_a_factor_shortens_an_update_in_every_mean():
    moves = [[8.0], [8.0], [8.0]]
    for name in AGGREGATIONS:
        found = averaged(name, parts(moves, factors=[0.25] * 3))
        assert found.update.tolist() == pytest.approx([2.0])
    assert averaged("mean", parts(moves, factors=[1.0, 1.0, 0.5])).weights == pytest.approx((1 / 3, 1 / 3, 1 / 6))


def test_the_median_by_hand():
    assert averaged("median", parts([[1.0], [2.0], [100.0]])).update.tolist() == [2.0]
    assert averaged("median", parts([[1.0], [2.0], [4.0], [100.0]])).update.tolist() == pytest.approx([3.0])
    assert averaged("median", parts([[1.0], [2.0], [9.0]], [0.2, 0.2, 0.6])).update.tolist() == [9.0]
    assert averaged("median", parts([[1.0], [2.0]])).weights is None


def test_the_trimmed_mean_by_hand():
    moves = [[value] for value in (5.0, 1.0, 3.0, -100.0, 70.0)]
    assert averaged("trimmed_mean", parts(moves), trim=0.2).update.tolist() == pytest.approx([3.0])
    assert averaged("trimmed_mean", parts(moves), trim=0.0).update.tolist() == pytest.approx([-4.2])
    # Half of the outermost values' weight goes: -100 and 70 keep 0.1 each of a total of 0.8.
    half = (0.1 * -100 + 0.2 * (1 + 3 + 5) + 0.1 * 70) / 0.8
    assert averaged("trimmed_mean", parts(moves), trim=0.1).update.tolist() == pytest.approx([half])


def test_columns_beyond_one_block_are_averaged_too():
    moves = torch.arange(3.0)[:, None].expand(3, (1 << 16) + 5)
    assert averaged("median", parts(moves)).update.tolist() == [1.0] * ((1 << 16) + 5)


@pytest.mark.parametrize("name", ["trimmed_mean", "median", "geometric_median"])
def test_three_of_ten_liars_move_robust_means_less(name):
    random = torch.Generator().manual_seed(0)
    honest = 1.0 + 0.01 * torch.randn(7, 1000, generator=random)
    moves = torch.cat([honest, torch.full((3, 1000), -50.0)])
    assert averaged("mean", parts(moves, noise=0.01)).update.mean() < -14
    found = averaged(name, parts(moves, noise=0.01)).update
    assert found.mean() == pytest.approx(1.0, abs=0.02 if name != "geometric_median" else 1.0)


def test_the_geometric_median_is_where_unit_vectors_cancel():
    """Without noise: of four points, the middle one wins if the others pull with less than its own weight."""
    moves = [[0.0, 0.0], [10.0, 0.0], [-10.0, 0.0], [0.0, 7.0]]
    found = averaged("geometric_median", parts(moves, [0.4, 0.2, 0.2, 0.2], noise=1e-6))
    assert float(found.update.norm()) < 0.1


def test_clients_that_differ_by_noise_alone_are_averaged_by_their_shares():
    random = torch.Generator().manual_seed(1)
    moves, shares = torch.randn(5, 20_000, generator=random), [0.1, 0.15, 0.2, 0.25, 0.3]
    found = averaged("geometric_median", parts(moves, shares, noise=1.0))
    assert found.weights == pytest.approx(shares, rel=1e-6)
    moves[0] += 1.0  # a signal as long as the noise
    lighter = averaged("geometric_median", parts(moves, shares, noise=1.0)).weights
    assert lighter[0] < 0.05


def test_the_noise_of_a_median_is_known():
    """With many equal clients its variance is π/2 times that of the mean."""
    random = torch.Generator().manual_seed(2)
    moves = torch.randn(101, 20_000, generator=random)
    ratio = averaged("median", parts(moves)).update.var() / averaged("mean", parts(moves)).update.var()
    assert float(ratio) == pytest.approx(math.pi / 2, rel=0.08)
