"""The filter of Gaussian releases: sums that are rounded up, and a server that chooses noise from what it has seen."""

import math
from fractions import Fraction

import numpy as np
import pytest

from alidpfl.errors import BudgetExceededError, ConfigError
from alidpfl.privacy import GaussianFilter, GaussianRelease, PrivacyBudget, epsilon
from alidpfl.privacy.gaussian_dp import gaussian_delta

BUDGET = PrivacyBudget(epsilon=2.0, delta=1e-5)


def test_one_release_of_the_whole_budget_costs_it_and_no_more():
    whole = GaussianFilter.for_budget(BUDGET)
    noise = whole.noise_for(1.0)
    spent = whole.charge(noise)
    assert 1.99 < epsilon(spent.mechanisms, BUDGET.delta) <= BUDGET.epsilon
    assert spent.affordable(noise) == 0
    with pytest.raises(BudgetExceededError):
        spent.charge(noise)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_equal_shares_add_up_to_the_whole(count):
    account = GaussianFilter.for_budget(BUDGET)
    noise = account.noise_for(1 / count)
    assert account.affordable(noise) == count
    assert account.charge(noise, count).affordable(noise) == 0
    for _ in range(count):
        account = account.charge(noise)
    assert account.affordable(noise) == 0
    steps = [GaussianRelease(noise_multiplier=noise, count=count)]
    assert epsilon(account.mechanisms, BUDGET.delta) >= epsilon(steps, BUDGET.delta) * (1 - 1e-9)


def test_the_sum_is_never_below_the_exact_one():
    random, account, exact = np.random.default_rng(0), GaussianFilter(noise_multiplier=1.0), Fraction(0)
    for noise in np.exp(random.uniform(1, 9, 500)):
        account = account.booked(float(noise))
        exact += 1 / Fraction(float(noise)) ** 2
        assert Fraction(account.spent) >= exact
    assert account.spent <= float(exact) * (1 + 1e-9)


def test_what_is_affordable_never_exceeds_the_exact_budget():
    """In fractions, with noise near every edge: just below and above where k releases cost the whole budget."""
    random, edges = np.random.default_rng(3), 0
    for _ in range(2000):
        noise = float(np.exp(random.uniform(-1, 5)))
        whole = GaussianFilter(noise_multiplier=noise, spent=float(random.choice([0.0, random.uniform(0, noise**-2)])))
        left = Fraction(noise) ** -2 - Fraction(whole.spent)
        asked = math.sqrt(int(random.choice([1, 2, 3, 10, 1000, 99_999])) / left)
        for off in (0.0, 1e-16, -1e-16, 3e-16, -3e-16, 1e-9, -1e-9, -3e-7):
            sigma = asked * (1 + off)
            if sigma > 1e6 or (count := whole.affordable(sigma)) == 0:
                continue
            spent = whole.charge(sigma, count).spent
            assert Fraction(whole.spent) + count / Fraction(sigma) ** 2 <= Fraction(spent) <= Fraction(noise) ** -2
            assert spent <= whole.limit
            edges += 1
    assert edges > 10_000


def test_a_release_with_the_noise_of_the_whole_budget_is_just_not_affordable():
    """Its cost is rounded up and the budget down. `noise_for` adds what that takes."""
    for noise in np.exp(np.random.default_rng(4).uniform(-1, 9, 1000)):
        whole = GaussianFilter(noise_multiplier=float(noise))
        assert whole.affordable(float(noise)) == 0
        assert whole.affordable(whole.noise_for(1.0)) == 1
        assert Fraction(whole.limit) < Fraction(float(noise)) ** -2


def test_millions_of_noisy_releases_are_counted():
    account = GaussianFilter(noise_multiplier=100.0)
    assert account.affordable(1e6) == pytest.approx(1e8, rel=0.1) or account.affordable(1e6) == 10_000_000
    after = account.charge(1e6, 1_000_000)
    assert after.spent > account.spent
    assert after.affordable(200.0) == 3


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan, math.inf, 1e7])
def test_noise_outside_the_range_is_refused(noise):
    with pytest.raises(ConfigError):
        GaussianFilter(noise_multiplier=2.0).charge(noise)
    with pytest.raises(ConfigError):
        GaussianFilter(noise_multiplier=noise)


def test_noise_chosen_from_outputs_reveals_no_more_than_one_release():
    """A server spends much of the budget if the first release is low, and little if it is high, in steps that it picks.

    The exact density ratio of its outputs is known, so δ(ε) of the whole can be estimated: it must stay below that of
    one release with all of the budget. 400,000 runs: a δ of 0.06 is known to within 5 standard deviations = 0.002.
    """
    random, runs, whole = np.random.default_rng(1), 400_000, GaussianFilter(noise_multiplier=1.0)
    losses, spent = np.zeros(runs), np.zeros(runs)
    for _ in range(6):
        left = np.maximum(0.0, whole.limit - spent)
        share = np.where(losses > 0.2, 0.9, np.where(losses < -0.2, 0.05, 0.4)) * left
        is_asked = share > 1e-4
        noise = np.where(is_asked, 1 / np.sqrt(np.maximum(share, 1e-4)), np.inf)
        outputs = 1 + np.where(is_asked, noise, 1.0) * random.normal(size=runs)  # under the neighbour with mean 1
        losses += np.where(is_asked, (2 * outputs - 1) / (2 * noise**2), 0.0)
        spent += np.where(is_asked, noise**-2.0, 0.0)
    assert (spent <= whole.limit).all()
    assert spent.mean() > 0.5 * whole.limit
    for at in (0.5, 1.0):
        found = np.maximum(0.0, 1 - np.exp(at - losses)).mean()
        assert found <= gaussian_delta(1.0, at) + 0.002
