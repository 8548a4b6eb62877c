"""One contract for every accountant, and the searches that rely on it."""

import dp_accounting
import numpy as np
import pytest

from alidpfl.errors import BudgetExceededError
from alidpfl.privacy import (
    ACCOUNTANTS,
    MAX_STEPS,
    GaussianRelease,
    PrivacyBudget,
    SampledGaussian,
    epsilon,
    max_steps,
    noise_multiplier_for,
)
from alidpfl.privacy.accounting import NOISE_TOLERANCE

DELTA = 1e-5
every_accountant = pytest.mark.parametrize("accountant", ACCOUNTANTS)


def sampled(sample_rate=0.02, noise_multiplier=2.0, steps=100):
    return SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=steps)


MIXED = [
    sampled(),
    sampled(noise_multiplier=1.5, steps=50),
    sampled(sample_rate=0.05, noise_multiplier=3.0, steps=7),
    GaussianRelease(noise_multiplier=8.0, count=2),
]


@every_accountant
@pytest.mark.parametrize(
    "cheaper_to_dearer",
    [
        [sampled(steps=s) for s in (1, 2, 10, 500, 5000)],
        [sampled(noise_multiplier=s) for s in (20.0, 5.0, 2.0, 1.0, 0.6)],
        [sampled(sample_rate=q) for q in (0.001, 0.02, 0.3, 0.999, 1.0)],
        [GaussianRelease(noise_multiplier=9.0, count=c) for c in (1, 2, 30)],
    ],
    ids=["steps", "noise", "sample rate", "releases"],
)
def test_epsilon_is_monotone(accountant, cheaper_to_dearer):
    costs = [epsilon([m], DELTA, accountant) for m in cheaper_to_dearer]
    assert costs == sorted(costs)
    assert len(set(costs)) == len(costs)


@every_accountant
def test_epsilon_falls_with_delta(accountant):
    costs = [epsilon(MIXED, delta, accountant) for delta in (1e-8, 1e-5, 1e-2)]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize(
    "mechanisms",
    [[sampled()], MIXED, [sampled(1e-5, 1.0, 10**6)], [sampled(0.015, 1000.0, 10**5)], [sampled(steps=1)]],
    ids=["one", "mixed", "tiny q", "large sigma", "one step"],
)
@pytest.mark.parametrize("delta", [1e-11, 1e-5, 0.1])
def test_tighter_accountants_report_less(mechanisms, delta):
    by = {accountant: epsilon(mechanisms, delta, accountant) for accountant in ACCOUNTANTS}
    assert by["pld"] <= by["rdp"] <= by["rdp-paper"]


@every_accountant
def test_nothing_costs_nothing(accountant):
    assert epsilon([], DELTA, accountant) == 0.0


@every_accountant
def test_a_split_list_in_any_order_costs_what_the_merged_one_does(accountant):
    split = [sampled(steps=30), MIXED[3], sampled(steps=69), *MIXED[1:3], sampled(steps=1)]
    assert epsilon(split, DELTA, accountant) == epsilon(MIXED, DELTA, accountant)
    assert epsilon([sampled(steps=1)] * 100, DELTA, accountant) == epsilon([sampled()], DELTA, accountant)


def test_heterogeneous_composition_is_dp_accountings_own():
    releases = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(8.0), 2)
    event = dp_accounting.ComposedDpEvent([*(m.event for m in MIXED[:3]), releases])
    losses = dp_accounting.pld.PLDAccountant().compose(event).get_epsilon(DELTA)
    assert epsilon(MIXED, DELTA, "pld") == pytest.approx(losses, rel=1e-6)
    renyi = dp_accounting.rdp.RdpAccountant([*range(2, 64), 128, 256, 512]).compose(event).get_epsilon(DELTA)
    assert epsilon(MIXED, DELTA, "rdp") == pytest.approx(renyi, rel=1e-9)


@pytest.mark.parametrize("count", [1, 4, 1000])
def test_gaussian_releases_cost_what_the_closed_form_says(count):
    exact = dp_accounting.get_epsilon_gaussian(20.0 / count**0.5, DELTA)
    for mechanism in (
        GaussianRelease(noise_multiplier=20.0, count=count),
        sampled(sample_rate=1.0, noise_multiplier=20.0, steps=count),
    ):
        assert exact <= epsilon([mechanism], DELTA, "pld") <= exact * (1 + 1e-4) + 1e-6
        assert epsilon([mechanism], DELTA, "rdp") >= exact


# ------------------------------------------------------------------------------------------------------------- searches


def check_safe_end(budget, sample_rate, noise_multiplier, accountant):
    """eps(R_c) <= eps < eps(R_c + 1), and an error exactly when R_c would be 0."""

    def cost(steps):
        return epsilon([sampled(sample_rate, noise_multiplier, steps)], budget.delta, accountant)

    try:
        found = max_steps(budget, sample_rate, noise_multiplier, accountant=accountant)
    except BudgetExceededError:
        assert cost(1) > budget.epsilon
        return 0
    assert cost(found) <= budget.epsilon
    assert found == MAX_STEPS or cost(found + 1) > budget.epsilon
    return found


def random_settings(count, *, least_noise):
    draw = np.random.default_rng(20230821)
    for _ in range(count):
        budget = PrivacyBudget(epsilon=10 ** draw.uniform(-1.3, 1), delta=10 ** draw.uniform(-8, -3))
        yield budget, 10 ** draw.uniform(-3.5, 0), least_noise * 10 ** draw.uniform(0, 1.2)


@pytest.mark.parametrize(("count", "inside"), [(200, 80), pytest.param(1000, 500, marks=pytest.mark.slow)])
def test_renyi_searches_end_on_the_safe_side_of_random_settings(count, inside):
    """At least `inside` of the settings pay for some steps, but not for all that a search looks at."""
    for accountant in ("rdp-paper", "rdp"):
        found = [check_safe_end(*setting, accountant) for setting in random_settings(count, least_noise=0.5)]
        assert sum(1 <= steps < MAX_STEPS for steps in found) > inside


def test_the_pld_search_ends_on_the_safe_side_of_random_settings():
    found = [check_safe_end(*setting, "pld") for setting in random_settings(12, least_noise=3.0)]
    assert sum(1 <= steps < MAX_STEPS for steps in found) > 6


@pytest.mark.slow
def test_the_pld_search_ends_on_the_safe_side_of_1000_random_settings():
    found = [check_safe_end(*setting, "pld") for setting in random_settings(1000, least_noise=0.7)]
    assert sum(1 <= steps < MAX_STEPS for steps in found) > 500


@every_accountant
def test_already_spent_is_composed_with_the_steps(accountant):
    budget = PrivacyBudget(epsilon=2.5, delta=DELTA)
    spent = MIXED[1:]
    found = max_steps(budget, 0.02, 2.0, accountant=accountant, already_spent=spent)
    assert 0 < found < max_steps(budget, 0.02, 2.0, accountant=accountant)
    assert epsilon([*spent, sampled(steps=found)], DELTA, accountant) <= 2.5
    assert epsilon([*spent, sampled(steps=found + 1)], DELTA, accountant) > 2.5


@every_accountant
def test_steps_already_spent_are_subtracted_exactly(accountant):
    budget = PrivacyBudget(epsilon=2.0, delta=DELTA)
    fresh = max_steps(budget, 0.02, 2.0, accountant=accountant)
    assert max_steps(budget, 0.02, 2.0, accountant=accountant, already_spent=[sampled(steps=fresh - 5)]) == 5
    with pytest.raises(BudgetExceededError):
        max_steps(budget, 0.02, 2.0, accountant=accountant, already_spent=[sampled(steps=fresh)])


@every_accountant
def test_a_budget_that_never_runs_out_counts_as_ten_million_steps(accountant):
    assert max_steps(PrivacyBudget(epsilon=3.0, delta=DELTA), 1e-6, 5.0, accountant=accountant) == MAX_STEPS


@every_accountant
@pytest.mark.parametrize(
    ("limit", "sample_rate", "steps"), [(2.0, 0.02, 1000), (0.5, 0.1, 40), (8.0, 1.0, 3), (1.0, 0.001, 20_000)]
)
def test_calibration_is_safe_and_inverts_accounting(accountant, limit, sample_rate, steps):
    budget = PrivacyBudget(epsilon=limit, delta=DELTA)
    found = noise_multiplier_for(budget, sample_rate, steps, accountant=accountant)
    assert epsilon([sampled(sample_rate, found, steps)], DELTA, accountant) <= limit
    assert epsilon([sampled(sample_rate, found - NOISE_TOLERANCE, steps)], DELTA, accountant) > limit
    assert max_steps(budget, sample_rate, found, accountant=accountant) >= steps


@every_accountant
def test_calibration_takes_what_was_spent_into_account(accountant):
    budget = PrivacyBudget(epsilon=3.0, delta=DELTA)
    found = noise_multiplier_for(budget, 0.02, 300, accountant=accountant, already_spent=MIXED[3:])
    assert epsilon([*MIXED[3:], sampled(0.02, found, 300)], DELTA, accountant) <= 3.0
    assert epsilon([*MIXED[3:], sampled(0.02, found - NOISE_TOLERANCE, 300)], DELTA, accountant) > 3.0


@every_accountant
def test_the_remedy_of_an_unaffordable_step_works(accountant):
    with pytest.raises(BudgetExceededError) as error:
        max_steps(PrivacyBudget(epsilon=0.05, delta=DELTA), 0.02, 1.0, accountant=accountant)
    remedy = float(str(error.value).split("raise epsilon to ")[1].split()[0])
    assert max_steps(PrivacyBudget(epsilon=remedy, delta=DELTA), 0.02, 1.0, accountant=accountant) >= 1
    with pytest.raises(BudgetExceededError):
        max_steps(PrivacyBudget(epsilon=remedy * 0.998, delta=DELTA), 0.02, 1.0, accountant=accountant)
