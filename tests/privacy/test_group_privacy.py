"""ε of a group of records: against exact values, other accountants, and the rules that it must keep."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq
from scipy.stats import binom, norm

from alidpfl.errors import ConfigError
from alidpfl.privacy import (
    GaussianRelease,
    PrivacyBudget,
    SampledGaussian,
    epsilon,
    group_epsilon,
    naive_group_epsilon,
)
from alidpfl.privacy.client_ledger import PlannedLedger
from alidpfl.privacy.gaussian_dp import gaussian_epsilon
from alidpfl.privacy.step_losses import _drawn

STEPS = SampledGaussian(sample_rate=0.05, noise_multiplier=2.0, steps=100)


def mixture(sample_rate, group):
    numbers = np.arange(group + 1)
    return numbers, binom.pmf(numbers, group, sample_rate)


def exact_epsilon(sample_rate, noise, delta, group):
    """One step: the likelihood ratio rises with the output, so both divergences are those of a threshold."""
    numbers, shares = mixture(sample_rate, group)

    def ratio(x):
        return math.log(shares @ np.exp((2 * numbers * x - numbers**2) / (2 * noise**2)))

    def delta_of(value):
        reach = 40 * noise
        x = brentq(lambda x: ratio(x) - value, -reach, group + reach, xtol=1e-13)
        found = [shares @ norm.sf(x, numbers, noise) - math.exp(value) * norm.sf(x, 0, noise)]
        if ratio(-reach) < -value:
            x = brentq(lambda x: ratio(x) + value, -reach, group + reach, xtol=1e-13)
            found.append(norm.cdf(x, 0, noise) - math.exp(value) * (shares @ norm.cdf(x, numbers, noise)))
        return max(found)

    return brentq(lambda value: delta_of(value) - delta, 1e-6, ratio(group + 8 * noise), xtol=1e-10)


@pytest.mark.parametrize(
    ("rate", "noise", "delta", "group"),
    [(0.1, 1.0, 1e-3, 2), (0.3, 2.0, 1e-2, 5), (0.02, 1.5, 1e-4, 3), (0.5, 4.0, 1e-3, 10)],
)
def test_one_step_has_the_exact_value(rate, noise, delta, group):
    found = group_epsilon([SampledGaussian(sample_rate=rate, noise_multiplier=noise)], delta, group)
    exact = exact_epsilon(rate, noise, delta, group)
    assert exact <= found * (1 + 1e-6)
    assert found <= 1.01 * exact


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.015, 1.1, 200), (0.2, 5.0, 50)])
@pytest.mark.parametrize("group", [2, 4])
def test_many_steps_agree_with_the_mixtures_of_dp_accounting(rate, noise, steps, group):
    numbers, shares = mixture(rate, group)
    single = pld.from_mixture_gaussian_mechanism(
        noise, numbers.tolist(), shares.tolist(), value_discretization_interval=1e-3
    )
    other = single.self_compose(steps).get_epsilon_for_delta(1e-5)
    found = group_epsilon([SampledGaussian(sample_rate=rate, noise_multiplier=noise, steps=steps)], 1e-5, group)
    assert found == pytest.approx(other, rel=2e-3)


def test_a_group_of_one_is_a_record():
    for accounted in ([STEPS], [GaussianRelease(noise_multiplier=3.0, count=2)], []):
        assert group_epsilon(accounted, 1e-5, 1) == epsilon(accounted, 1e-5)


def test_releases_of_all_records_have_the_closed_form():
    release = GaussianRelease(noise_multiplier=5.0, count=4)
    assert group_epsilon([release], 1e-5, 7) == gaussian_epsilon(7 * 2 / 5.0, 1e-5)
    both = group_epsilon([release, STEPS], 1e-5, 7)
    assert both > max(group_epsilon([one], 1e-5, 7) for one in (release, STEPS))


def test_it_grows_with_the_group_the_steps_and_the_rate_and_falls_with_the_noise():
    groups = [group_epsilon([STEPS], 1e-5, group) for group in (1, 2, 3, 5, 8, 30, 100)]
    assert all(one < more for one, more in itertools.pairwise(groups))
    for less, more in (({"steps": 50}, {"steps": 200}), ({"sample_rate": 0.02}, {"sample_rate": 0.2})):
        ends = [
            group_epsilon([SampledGaussian(**{"sample_rate": 0.05, "noise_multiplier": 2.0, **part})], 1e-5, 5)
            for part in (less, more)
        ]
        assert ends[0] < ends[1]
    noisier = SampledGaussian(sample_rate=0.05, noise_multiplier=4.0, steps=100)
    assert group_epsilon([noisier], 1e-5, 5) < groups[3]
    assert group_epsilon([STEPS], 1e-9, 5) > groups[3] > group_epsilon([STEPS], 1e-3, 5)


@pytest.mark.parametrize("group", [2, 5, 30])
@pytest.mark.parametrize("steps", [STEPS, SampledGaussian(sample_rate=0.25, noise_multiplier=6.4, steps=158)])
def test_it_is_no_more_than_the_general_rule_says(steps, group):
    assert group_epsilon([steps], 1e-5, group) <= naive_group_epsilon([steps], 1e-5, group)


def test_the_general_rule_is_that_of_pure_privacy_where_delta_is_tiny():
    """(ε, δ) of one is (gε, δ (e^{gε} - 1) / (e^ε - 1)) of g: checked at the δ₁ that the rule would take."""
    found, group = naive_group_epsilon([STEPS], 1e-5, 3), 3
    one = found / group
    low, high = 1e-12, 1e-5
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if epsilon([STEPS], middle) > one else (low, middle)
    assert high * (math.exp(group * one) - 1) / (math.exp(one) - 1) <= 1.01e-5


def test_many_records_and_little_noise_still_have_a_bound_or_infinity():
    strong = SampledGaussian(sample_rate=0.9, noise_multiplier=0.01, steps=1000)
    assert group_epsilon([strong], 1e-5, 100) > 1e6
    weak = SampledGaussian(sample_rate=1e-6, noise_multiplier=100.0, steps=10)
    assert 0 < group_epsilon([weak], 1e-9, 1000) < 0.1


def test_numbers_of_records_that_are_hardly_ever_drawn_count_as_an_infinite_loss():
    found = _drawn(0.9, 300)
    assert sum(math.exp(share) for _, share in found.numbers) + found.unlikely == pytest.approx(1, abs=1e-12)
    assert 0 < found.unlikely < 1e-30
    assert len(found.numbers) < 150
    assert dict(_drawn(0.3, 2).numbers) == pytest.approx(
        {0: 2 * math.log(0.7), 1: math.log(0.42), 2: 2 * math.log(0.3)}
    )
    assert [*dict(_drawn(1e-9, 30).numbers)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("group", [0, -1, 2.5, True, 1001])
def test_absurd_groups_are_refused(group):
    with pytest.raises(ConfigError, match="group"):
        group_epsilon([STEPS], 1e-5, group)


def test_a_ledger_counts_the_releases_before_its_steps():
    budget, release = PrivacyBudget(epsilon=2.0, delta=1e-5), GaussianRelease(noise_multiplier=4.0)
    alone, after = (PlannedLedger(budget, 0.02, 2.0, releases=before) for before in ((), (release,)))
    steps = SampledGaussian(sample_rate=0.02, noise_multiplier=2.0, steps=after.max_steps)
    assert after.group_epsilon(5) == group_epsilon([release, steps], 1e-5, 5)
    assert after.group_epsilon(5) > group_epsilon([steps], 1e-5, 5)
    assert after.max_steps < alone.max_steps
