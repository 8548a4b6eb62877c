"""The audit's statistics: the bounds hold with their confidence, and are not too loose."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from alidpfl.audit.bounds import (
    caught_ratio,
    gaussian_parameter_bound,
    one_run_epsilon_bound,
    one_run_p_value,
    upper_proportion,
)


@pytest.mark.parametrize(
    ("count", "total", "error"), [(0, 50, 0.05), (3, 50, 0.01), (49, 50, 1e-4), (668, 10_000, 5e-5)]
)
def test_an_upper_proportion_makes_the_count_exactly_as_rare_as_the_error(count, total, error):
    assert binom.cdf(count, total, upper_proportion(count, total, error)) == pytest.approx(error, rel=1e-6)


def test_nothing_is_known_where_all_tests_erred():
    assert upper_proportion(10, 10, 0.05) == 1.0
    assert gaussian_parameter_bound(10, 10, 10, 0.95) == 0.0


@pytest.mark.parametrize("parameter", [0.5, 1.5, 3.0])
def test_the_bound_on_mu_holds_as_often_as_it_says_and_is_near(parameter):
    random, draws = np.random.default_rng(1), 400
    errors = random.binomial(draws, norm.sf(parameter / 2), size=(2000, 2))
    bounds = np.array([gaussian_parameter_bound(fp, fn, draws, 0.5) for fp, fn in errors])
    assert (bounds > parameter).mean() <= 0.5
    assert (bounds > parameter).mean() >= 0.1  # Clopper-Pearson, and nothing beyond it
    assert bounds.mean() > 0.75 * parameter


def test_a_plain_frequency_would_refute_the_truth_half_the_time():
    """The confidence is needed: here two Gaussians are exactly 1 apart, as claimed."""
    random, draws = np.random.default_rng(2), 1000
    errors = random.binomial(draws, norm.sf(0.5), size=(500, 2))
    plain = norm.isf(errors / draws).sum(axis=1)
    assert 0.4 < (plain > 1.0).mean() < 0.6
    assert all(gaussian_parameter_bound(fp, fn, draws, 0.999) <= 1.0 for fp, fn in errors)


def test_the_errors_of_both_arms_count():
    both = gaussian_parameter_bound(50, 50, 1000, 0.99)
    assert gaussian_parameter_bound(50, 0, 1000, 0.99) > both
    assert gaussian_parameter_bound(0, 50, 1000, 0.99) > both
    assert gaussian_parameter_bound(500, 500, 1000, 0.99) == 0.0
    assert gaussian_parameter_bound(100, 10, 1000, 0.99) == pytest.approx(gaussian_parameter_bound(10, 100, 1000, 0.99))


def test_each_arm_gets_half_of_the_error_that_is_left():
    rate = upper_proportion(668, 10_000, 5e-5)
    assert gaussian_parameter_bound(668, 668, 10_000, 0.9999) == pytest.approx(2 * norm.isf(rate))


def test_what_is_said_to_be_caught_is_caught_999_times_of_1000():
    sigma, draws, confidence, random = 2.0, 2000, 0.9999, np.random.default_rng(3)
    ratio = caught_ratio(claimed=1 / sigma, distance=5 / sigma, copies=5, draws=draws, confidence=confidence)
    assert 1.1 < ratio < 1.25  # σ/1.25 never gets through
    errors = random.binomial(draws, norm.sf(5 / sigma * ratio / 2), size=(1000, 2))
    caught = [gaussian_parameter_bound(fp, fn, draws, confidence) / 5 > 1 / sigma for fp, fn in errors]
    assert np.mean(caught) >= 0.998


def test_more_draws_catch_more_and_a_weak_canary_less():
    setting = {"claimed": 1.0, "copies": 3, "confidence": 0.9999}
    few, many = (caught_ratio(distance=3.0, draws=n, **setting) for n in (1000, 10_000))
    assert 1 < many < 1.1 < few
    assert caught_ratio(distance=1.5, draws=10_000, **setting) > 2 * many * 0.99
    assert caught_ratio(distance=1e-6, draws=100, **setting) is None


def brute_force(m, r, v, epsilon, delta):
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    chance = [math.comb(r, w) * right**w * (1 - right) ** (r - w) for w in range(r + 1)]
    alpha = max((2 / i * sum(chance[v - i : v]) for i in range(1, v + 1)), default=0.0)
    return min(1.0, sum(chance[v:]) + alpha * m * delta)


@pytest.mark.parametrize(("r", "v"), [(20, 20), (20, 14), (20, 0), (7, 5)])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_the_p_value_is_that_of_the_theorem(r, v, delta):
    found = one_run_p_value(canaries=60, guesses=r, correct=v, epsilon=0.7, delta=delta)
    assert found == pytest.approx(brute_force(60, r, v, 0.7, delta), rel=1e-9)


def test_the_bound_on_epsilon_holds_for_randomised_response():
    """It makes the theorem tight at δ = 0: every coin is guessed right with probability e^ε/(1 + e^ε)."""
    epsilon, random = 1.0, np.random.default_rng(4)
    correct = random.binomial(200, 1 / (1 + math.exp(-epsilon)), size=300)
    bounds = [
        one_run_epsilon_bound(canaries=200, guesses=200, correct=int(v), delta=0.0, confidence=0.8) for v in correct
    ]
    assert np.mean(np.array(bounds) > epsilon) <= 0.2 + 3 * math.sqrt(0.16 / 300)
    assert np.mean(np.array(bounds) > epsilon) >= 0.1
    assert np.mean(bounds) > 0.6 * epsilon


def test_a_bound_is_refuted_itself_and_a_little_more_is_not():
    setting = {"canaries": 1000, "guesses": 100, "correct": 90, "delta": 1e-5}
    bound = one_run_epsilon_bound(**setting, confidence=0.95)
    assert one_run_p_value(**setting, epsilon=bound) <= 0.05 < one_run_p_value(**setting, epsilon=bound + 1e-6)


def test_delta_and_chance_cost_something():
    def bound(**changes):
        return one_run_epsilon_bound(
            **{"canaries": 1000, "guesses": 100, "correct": 90, "delta": 1e-5, "confidence": 0.95, **changes}
        )

    assert bound(delta=1e-4) < bound() < bound(delta=0.0)
    assert bound(canaries=5000) < bound()
    assert bound(confidence=0.99) < bound()
    assert bound(correct=55) == 0.0
