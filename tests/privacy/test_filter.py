"""Feldman & Zrnic's filter: valid at one order, fixed in advance."""

from fractions import Fraction

import dp_accounting
import numpy as np
import pytest

from alidpfl.errors import BudgetExceededError
from alidpfl.privacy import GaussianRelease, PrivacyBudget, RdpFilter, SampledGaussian, epsilon, max_steps
from alidpfl.privacy.accountants import ORDERS, rdp_of_step

BUDGET = PrivacyBudget(epsilon=2.0, delta=1e-5)
PLAN = {"sample_rate": 0.015, "noise_multiplier": 1.1}


def epsilon_at_one_order(order, mechanisms):
    accountant = dp_accounting.rdp.RdpAccountant([order])
    for mechanism in mechanisms:
        accountant.compose(mechanism.event)
    return accountant.get_epsilon(BUDGET.delta)


@pytest.mark.parametrize("order", [2, 8, 13, 63])
def test_constant_noise_gives_the_step_count_of_that_order(order):
    count = RdpFilter(budget=BUDGET, order=order).affordable_steps(0.05, 4.0)
    steps = [SampledGaussian(sample_rate=0.05, noise_multiplier=4.0, steps=n) for n in (max(count, 1), count + 1)]
    assert epsilon_at_one_order(order, steps[1:]) > BUDGET.epsilon
    assert count == 0 or epsilon_at_one_order(order, steps[:1]) <= BUDGET.epsilon


def test_the_plan_picks_the_order_with_most_steps_and_no_more_than_rdp():
    planned = RdpFilter.for_plan(BUDGET, **PLAN)
    counts = {order: RdpFilter(budget=BUDGET, order=order).affordable_steps(**PLAN) for order in ORDERS}
    assert counts[planned.order] == max(counts.values())
    # With constant noise the best order is known in advance, so the filter costs nothing.
    assert planned.affordable_steps(**PLAN) == max_steps(BUDGET, **PLAN, accountant="rdp") == 547


def test_charging_one_by_one_ends_exactly_at_the_affordable_count():
    state = RdpFilter.for_plan(BUDGET, **PLAN)
    count = state.affordable_steps(**PLAN)
    for left in range(count, 0, -1):
        assert left % 100 or state.affordable_steps(**PLAN) == left
        state = state.charge(SampledGaussian(**PLAN))
    assert state.affordable_steps(**PLAN) == 0
    assert state.epsilon_spent <= BUDGET.epsilon
    with pytest.raises(BudgetExceededError, match=r"epsilon=2\.00\d+ of epsilon=2 "):
        state.charge(SampledGaussian(**PLAN))


def test_charge_leaves_the_old_state_alone():
    state = RdpFilter.for_plan(BUDGET, **PLAN)
    charged = state.charge(GaussianRelease(noise_multiplier=10.0))
    assert (state.rdp_spent, state.epsilon_spent) == (0.0, 0.0)
    assert charged.rdp_spent == pytest.approx(state.order / (2 * 10.0**2))


def test_adaptive_sequences_never_exceed_the_budget_and_use_it_up():
    draw = np.random.default_rng(7)
    for _ in range(20):
        state, charged = RdpFilter.for_plan(BUDGET, **PLAN), []
        noise = 1.1
        while (left := state.affordable_steps(0.015, noise)) > 0:
            mechanism = SampledGaussian(
                sample_rate=0.015, noise_multiplier=noise, steps=min(left, int(draw.choice([3, 30, 60])))
            )
            state, noise = state.charge(mechanism), max(0.8, noise * draw.choice([1.0, 0.999, 0.98]))
            charged.append(mechanism)
        assert epsilon_at_one_order(state.order, charged) <= BUDGET.epsilon
        assert epsilon(charged, BUDGET.delta, "rdp") <= state.epsilon_spent + 1e-9
        assert state.epsilon_spent > 0.97 * BUDGET.epsilon


def test_why_the_order_is_fixed():
    """An adversary that picks one of two continuations by looking at outputs.

    Each fits the budget at *some* order, so "go on while any order fits" allows both; but no single order bounds
    both, and the theorem needs one. The filter refuses at least one of them, whatever its order.
    """
    releases = GaussianRelease(
        noise_multiplier=30.0, count=max_steps(BUDGET, sample_rate=1.0, noise_multiplier=30.0, accountant="rdp")
    )
    rare = {"sample_rate": 0.001, "noise_multiplier": 0.6}
    steps = SampledGaussian(**rare, steps=max_steps(BUDGET, **rare, accountant="rdp"))
    for branch in (releases, steps):
        assert epsilon([branch], BUDGET.delta, "rdp") <= BUDGET.epsilon

    def accepts(order, branch):
        try:
            RdpFilter(budget=BUDGET, order=order).charge(branch)
        except BudgetExceededError:
            return False
        return True

    assert any(accepts(order, releases) for order in ORDERS)
    assert any(accepts(order, steps) for order in ORDERS)
    assert not any(accepts(order, releases) and accepts(order, steps) for order in ORDERS)


def test_a_plan_beyond_the_budget_is_refused():
    with pytest.raises(BudgetExceededError, match=r"epsilon=0\.1 .*sample_rate=0\.015, noise_multiplier=1\.1"):
        RdpFilter.for_plan(PrivacyBudget(epsilon=0.1, delta=1e-5), **PLAN)


def test_many_small_charges_never_add_up_to_less_than_their_exact_sum():
    state, exact = RdpFilter(budget=BUDGET, order=8), Fraction(0)
    for number in range(3000):
        step = SampledGaussian(sample_rate=0.015, noise_multiplier=20 + number / 7)
        exact += Fraction(float(rdp_of_step(0.015, step.noise_multiplier, (8,))[0]))
        state = state.charge(step)
        assert state.rdp_spent >= exact
    assert state.rdp_spent <= exact * (1 + Fraction(1, 10**10))
