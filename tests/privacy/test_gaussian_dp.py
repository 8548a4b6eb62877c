"""The closed form of Gaussian DP, and the quick calibration that starts from it."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alidpfl.errors import BudgetExceededError
from alidpfl.privacy import (
    GaussianRelease,
    PrivacyBudget,
    SampledGaussian,
    epsilon,
    noise_multiplier_bound,
    noise_multiplier_for,
)
from alidpfl.privacy.gaussian_dp import gaussian_delta, gaussian_parameter, limiting_noise


@pytest.mark.parametrize(("target", "delta"), [(0.1, 1e-6), (2.0, 1e-5), (8.0, 1e-9), (30.0, 1e-5)])
def test_the_parameter_is_that_of_one_release_by_the_accountant(target, delta):
    parameter = gaussian_parameter(PrivacyBudget(epsilon=target, delta=delta))
    spent = epsilon([GaussianRelease(noise_multiplier=1 / parameter)], delta)
    assert spent == pytest.approx(target, rel=2e-3)


def test_delta_falls_with_epsilon_and_rises_with_the_parameter():
    assert gaussian_delta(1.0, 1.0) > gaussian_delta(1.0, 2.0) > gaussian_delta(0.5, 2.0) > 0
    assert 0 <= gaussian_delta(40.0, 800.0) <= 1  # e^800 is no float


@pytest.mark.parametrize(("rate", "steps"), [(0.06, 632), (0.25, 158), (1.0, 158), (0.25, 1580)])
def test_the_limit_is_close_where_noise_is_large(rate, steps):
    budget = PrivacyBudget(epsilon=2.0, delta=1e-5)
    exact = noise_multiplier_for(budget, rate, steps)
    assert limiting_noise(budget, rate, steps) == pytest.approx(exact, rel=0.05)


@settings(max_examples=6, deadline=None)
@given(
    target=st.floats(0.05, 20),
    log_delta=st.floats(-9, -4),
    log_rate=st.floats(-2.5, 0),
    steps=st.integers(1, 3000),
    accountant=st.sampled_from(["pld", "rdp", "rdp-paper"]),
)
def test_the_quick_noise_is_safe_and_hardly_more(target, log_delta, log_rate, steps, accountant):
    budget, rate = PrivacyBudget(epsilon=target, delta=10**log_delta), 10**log_rate
    quick = noise_multiplier_bound(budget, rate, steps, accountant=accountant)
    mechanism = SampledGaussian(sample_rate=rate, noise_multiplier=quick, steps=steps)
    assert epsilon([mechanism], budget.delta, accountant) <= target
    assert quick <= 1.01 * noise_multiplier_for(budget, rate, steps, accountant=accountant) + 1e-4


def test_a_budget_that_no_noise_meets_is_refused():
    budget = PrivacyBudget(epsilon=1e-8, delta=1e-15)
    for calibrate in (noise_multiplier_for, noise_multiplier_bound):
        with pytest.raises(BudgetExceededError, match=r"steps=1000000 .*epsilon=1e-08"):
            calibrate(budget, 1.0, 10**6, accountant="rdp")
    assert math.isfinite(noise_multiplier_bound(PrivacyBudget(epsilon=1e-3, delta=1e-9), 1.0, 10))
