"""A Gaussian release: what one record can move it by, and how much noise is on it."""

import math

import pytest
import torch
from scipy import stats

from alidpfl.dpsgd import RandomStream, noised_total, release
from alidpfl.errors import ConfigError

QUIET = 1e-3  # the least noise that there is


def total(vectors, *, clip_norm=1.0, noise_multiplier=QUIET, seed=0):
    return noised_total(
        vectors.split(7),
        vectors.shape[1],
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        random=RandomStream.seeded(seed),
    )


def made(count=40, size=300, seed=0):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed))


def test_short_vectors_are_added_as_they_are():
    vectors = made() / 100
    torch.testing.assert_close(total(vectors), vectors.sum(0), rtol=0, atol=8 * QUIET)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e10])
def test_one_record_moves_it_by_at_most_the_clip_norm(scale):
    vectors = made() * scale
    moved = (total(vectors, clip_norm=0.3) - total(vectors[:-1], clip_norm=0.3)).norm()
    rounding = 2 * 0.3 * QUIET / 256 * math.sqrt(300)  # the grid that both lie on
    assert float(moved) <= 0.3 + rounding
    assert scale < 1 or float(moved) > 0.29


def test_before_its_noise_a_record_is_strictly_within_the_clip_norm(monkeypatch):
    monkeypatch.setattr(release, "add_noise", lambda *_: None)
    for seed in range(200):
        assert 0.3 * (1 - 1e-5) < float(total(made(1, seed=seed), clip_norm=0.3).double().norm()) <= 0.3


def test_the_noise_has_the_standard_deviation_that_is_charged():
    """A wrong factor of 6 % would be seen."""
    noise = total(torch.zeros(1, 40_000), clip_norm=0.5, noise_multiplier=10.0)
    assert stats.kstest(noise.numpy() / 5.0, "norm").pvalue > 1e-4
    squares = float((noise.double() / 5.0).square().sum())
    assert stats.chi2.cdf(squares, 40_000) == pytest.approx(0.5, abs=0.4999)
    assert stats.chi2.cdf(squares * 1.06**2, 40_000) > 0.9999
    assert stats.chi2.cdf(squares / 1.06**2, 40_000) < 0.0001


def test_noise_is_there_without_records():
    assert float(noised_total([], 100, clip_norm=1.0, noise_multiplier=1.0, random=RandomStream.seeded(1)).norm()) > 5


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e38])
def test_a_record_that_is_not_finite_adds_nothing(bad):
    vectors = made() / 100
    expected = total(vectors[1:])
    vectors[0] = 0
    vectors[0, 5] = bad
    torch.testing.assert_close(total(vectors), expected, rtol=0, atol=0.3 if bad == 1e38 else 0.1)
    if bad != 1e38:
        torch.testing.assert_close(total(vectors), expected, rtol=0, atol=QUIET / 100)


def test_values_lie_on_the_noise_grid():
    from alidpfl.dpsgd.step import noise_grid

    found = total(made(), noise_multiplier=10.0)
    steps = found / noise_grid(10.0)
    assert torch.equal(steps, steps.round())


def test_nothing_leaves_without_noise():
    for noise in (0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="noise_multiplier"):
            total(made(), noise_multiplier=noise)
    with pytest.raises(ConfigError, match="RandomStream"):
        noised_total([], 3, clip_norm=1.0, noise_multiplier=1.0, random=torch.Generator())
    with pytest.raises(ConfigError, match="clip_norm"):
        total(made(), clip_norm=0)
