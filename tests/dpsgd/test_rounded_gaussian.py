"""Rounded Gaussian noise: every probability is the exact one, also where the first 64 bits do not tell."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from alidpfl.dpsgd import RandomStream
from alidpfl.dpsgd import grid_noise as module
from alidpfl.dpsgd.grid_noise import DEVIATION, rounded_gaussian, threshold, thresholds


class Words:
    """A stream whose next words are known."""

    def __init__(self, *words):
        self.left = list(words)

    def words(self, count):
        taken, self.left = self.left[:count], self.left[count:]
        assert len(taken) == count
        return np.array(taken, dtype=np.uint64)


def exact(k):
    """F(k) = P(|round(G)| <= k) to 80 digits, by another program."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(80):
        value = mpmath.erf((mpmath.mpf(k) + 0.5) / (DEVIATION * mpmath.sqrt(2)))
        return Fraction(int(mpmath.floor(value * mpmath.mpf(2) ** 256)), 2**256)


@pytest.mark.parametrize("k", [0, 1, 1000, DEVIATION, 4 * DEVIATION, 9 * DEVIATION, 12 * DEVIATION])
@pytest.mark.parametrize("bits", [64, 128, 200])
def test_thresholds_are_exact(k, bits):
    assert threshold(k, bits) == int(exact(k) * 2**bits)


def test_the_table_is_right_to_one_unit():
    table = thresholds()
    for k in [*range(50), *range(50, len(table), 4999), len(table) - 1]:
        assert abs(int(table[k]) - threshold(k, 64)) <= 1
    assert bool((table[1:] >= table[:-1]).all())
    assert int(table[-1]) >= 2**64 - 2


@pytest.mark.slow
def test_the_whole_table_is_right_to_one_unit():
    for k, entry in enumerate(thresholds().tolist()):
        assert abs(entry - threshold(k, 64)) <= 1


@pytest.mark.parametrize("k", [0, 1, 77, 12_345, DEVIATION, 3 * DEVIATION, 7 * DEVIATION])
@pytest.mark.parametrize("off", [-(2**65), -(2**63), -1, 0, 1, 2**63, 2**65])
def test_where_64_bits_do_not_tell_more_are_drawn(k, off):
    """A U at the boundary of two magnitudes, or a little off it, falls on the side that its further bits say."""
    first, rest = divmod(threshold(k, 128) + off, 2**64)
    found = int(module._magnitudes(np.array([first], dtype=np.uint64), Words(rest, 5))[0])
    uniform = Fraction(first, 2**64) + Fraction(rest, 2**128) + Fraction(5, 2**192)
    assert found == 0 or exact(found - 1) <= uniform
    assert uniform < exact(found)


@pytest.mark.parametrize(("rest", "deviations"), [((7, 5), 9), ((2**64 - 2, 5), 13), ((2**64 - 1, 2**64 - 2, 5), 16)])
def test_beyond_the_table_tails_go_on(rest, deviations):
    """U of about 1 - 2^-64, 1 - 2^-127, 1 - 2^-191: nothing is cut off."""
    found = int(module._magnitudes(np.array([2**64 - 1], dtype=np.uint64), Words(*rest))[0])
    uniform = sum(Fraction(word, 2 ** (64 * place)) for place, word in enumerate((2**64 - 1, *rest), 1))
    assert exact(found - 1) <= uniform < exact(found)
    assert found > deviations * DEVIATION


@pytest.fixture(scope="module")
def drawn():
    return rounded_gaussian(200_000, RandomStream.seeded(3)).numpy()


def chi_square(drawn, scale):
    """p-value of the draws against round(N(0, (scale s)²)), in forty cells that end at half numbers."""
    edges = np.floor(DEVIATION * np.linspace(-3, 3, 39)) + 0.5
    counts = np.bincount(np.searchsorted(edges, drawn), minlength=40)
    chances = np.diff(stats.norm.cdf(edges / (scale * DEVIATION)), prepend=0.0, append=1.0)
    return stats.chisquare(counts, chances / chances.sum() * len(drawn)).pvalue


def test_draws_have_the_distribution(drawn):
    assert chi_square(drawn, 1.0) > 1e-4
    for wrong in (2 / 3, 0.98, 1.02, 1.5):
        assert chi_square(drawn, wrong) < 1e-6
    assert abs(drawn.mean()) < 5 * DEVIATION / np.sqrt(len(drawn))
    assert np.square(drawn / DEVIATION).mean() == pytest.approx(1, abs=5 * np.sqrt(2 / len(drawn)))


def test_the_last_bits_are_even_too(drawn):
    """A float's would not be: they are what gives floating-point noise away."""
    for low in (drawn & 15, (drawn >> 4) & 15):
        assert stats.chisquare(np.bincount(low, minlength=16)).pvalue > 1e-4
    assert abs(np.corrcoef(np.abs(drawn), np.sign(drawn))[0, 1]) < 5 / np.sqrt(len(drawn))
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 5 / np.sqrt(len(drawn))


def test_it_repeats_with_the_seed_and_not_otherwise():
    first, again, other = (rounded_gaussian(70_000, RandomStream.seeded(seed)) for seed in (1, 1, 2))
    assert bool((first == again).all())
    assert float((first == other).double().mean()) < 0.001
    assert float((first[: 1 << 12] == first[1 << 16 :][: 1 << 12]).double().mean()) < 0.01  # piece after piece anew
