"""Ledgers: nothing is spent without a charge, and nothing is charged that the budget does not pay for."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alidpfl.errors import BudgetExceededError, ConfigError
from alidpfl.privacy import (
    FilteredLedger,
    GaussianRelease,
    PlannedLedger,
    PrivacyBudget,
    SampledGaussian,
    epsilon,
    max_steps,
)
from alidpfl.privacy.client_ledger import CappedLedger

BUDGET = PrivacyBudget(epsilon=2.0, delta=1e-5)


def planned(accountant: str = "rdp", **settings) -> PlannedLedger:
    return PlannedLedger(BUDGET, 0.015, 1.1, accountant=accountant, **settings)


def filtered() -> FilteredLedger:
    return FilteredLedger(BUDGET, 0.015, 1.1)


def test_planned_ledger_pays_for_r_c_steps_and_not_one_more():
    ledger = planned("rdp-paper")
    ledger.charge(3, 314, 1.1, sample_rate=0.015)
    assert ledger.affordable_steps(3, 1.1) == 0
    assert ledger.epsilon(3) <= 2.0
    with pytest.raises(BudgetExceededError, match="client 3"):
        ledger.charge(3, 1, 1.1, sample_rate=0.015)
    assert ledger.steps_spent(3) == 314


@pytest.mark.parametrize("make", [planned, filtered])
def test_clients_have_accounts_of_their_own(make):
    ledger = make()
    ledger.charge(0, 100, 1.1, sample_rate=0.015)
    assert ledger.steps_spent(1) == 0
    assert ledger.epsilon(1) == 0
    assert ledger.affordable_steps(1, 1.1) == ledger.max_steps
    assert ledger.affordable_steps(0, 1.1) == ledger.max_steps - 100


@pytest.mark.parametrize("make", [planned, filtered])
def test_an_overdraft_is_refused_whole(make):
    ledger = make()
    with pytest.raises(BudgetExceededError):
        ledger.charge(0, ledger.max_steps + 1, 1.1, sample_rate=0.015)
    assert ledger.steps_spent(0) == 0
    assert ledger.epsilon(0) == 0


@pytest.mark.parametrize("make", [planned, filtered])
def test_nothing_is_given_back(make):
    ledger = make()
    ledger.charge(0, 10, 1.1, sample_rate=0.015)
    with pytest.raises(ValueError, match="steps"):
        ledger.charge(0, -5, 1.1, sample_rate=0.015)
    assert ledger.steps_spent(0) == 10


@pytest.mark.parametrize("make", [planned, filtered])
def test_a_restored_ledger_goes_on_where_it_was(make):
    before, after = make(), make()
    before.charge(0, 40, 1.1, sample_rate=0.015)
    before.charge(7, 5, 1.1, sample_rate=0.015)
    after.restore(json.loads(json.dumps(before.to_json())))
    assert after.epsilon(0) == before.epsilon(0)
    assert after.affordable_steps(7, 1.1) == before.affordable_steps(7, 1.1)
    assert after.steps_spent(7) == 5


@pytest.mark.parametrize("make", [planned, filtered])
def test_steps_at_another_rate_are_refused(make):
    with pytest.raises(BudgetExceededError, match=r"sample_rate=0\.5 .*0\.015"):
        make().charge(0, 1, 1.1, sample_rate=0.5)


def test_accounts_are_not_taken_over_on_other_terms():
    kept = planned().to_json()
    for other in (
        PlannedLedger(BUDGET, 0.015, 1.2, accountant="rdp"),
        PlannedLedger(BUDGET, 0.01, 1.1, accountant="rdp"),
    ):
        with pytest.raises(ConfigError):
            other.restore(kept)
    with pytest.raises(ConfigError, match=r"epsilon .*2\.0 .*3\.0"):
        PlannedLedger(PrivacyBudget(epsilon=3.0, delta=1e-5), 0.015, 1.1, accountant="rdp").restore(kept)
    with pytest.raises(ConfigError, match="order"):
        FilteredLedger(BUDGET, 0.015, 4.0).restore(filtered().to_json())


@pytest.mark.parametrize("make", [planned, filtered])
def test_every_term_is_compared(make):
    """Whatever a ledger names as its terms: none may change, or be missing, without being noticed."""
    kept = make().to_json()
    make().restore(kept)
    for key, value in kept["terms"].items():
        changed = {**kept["terms"], key: "another"}
        without = {other: term for other, term in kept["terms"].items() if other != key}
        for terms in (changed, without):
            with pytest.raises(ConfigError, match=rf"\b{key} .* {re.escape(str(value))}"):
                make().restore({**kept, "terms": terms})


RELEASES = (GaussianRelease(noise_multiplier=20.0, count=2),)
OTHERS = {
    planned: {
        "epsilon": lambda: PlannedLedger(PrivacyBudget(epsilon=2.1, delta=1e-5), 0.015, 1.1, accountant="rdp"),
        "delta": lambda: PlannedLedger(PrivacyBudget(epsilon=2.0, delta=2e-5), 0.015, 1.1, accountant="rdp"),
        "accountant": lambda: planned("rdp-paper"),
        "sample_rate": lambda: PlannedLedger(BUDGET, 0.014, 1.1, accountant="rdp"),
        "noise_multiplier": lambda: PlannedLedger(BUDGET, 0.015, 1.2, accountant="rdp"),
        "releases": lambda: planned(releases=RELEASES),
    },
    filtered: {
        "epsilon": lambda: FilteredLedger(PrivacyBudget(epsilon=2.01, delta=1e-5), 0.015, 1.1),
        "delta": lambda: FilteredLedger(PrivacyBudget(epsilon=2.0, delta=1.01e-5), 0.015, 1.1),
        "order": lambda: FilteredLedger(BUDGET, 0.015, 4.0),
        "sample_rate": lambda: FilteredLedger(BUDGET, 0.0149, 1.1),
        "rdp_of_releases": lambda: FilteredLedger(BUDGET, 0.015, 1.1, releases=RELEASES),
    },
}


@pytest.mark.parametrize(("make", "key"), [(make, key) for make, others in OTHERS.items() for key in others])
def test_what_a_ledger_was_made_with_is_among_its_terms(make, key):
    with pytest.raises(ConfigError, match=rf"\b{key} "):
        OTHERS[make][key]().restore(make().to_json())


def test_planned_ledger_refuses_other_noise_than_planned():
    with pytest.raises(BudgetExceededError, match=r"noise_multiplier=1\.0 .*1\.1"):
        planned().charge(0, 1, 1.0, sample_rate=0.015)


def test_filtered_ledger_charges_less_noise_more():
    quiet, loud = filtered(), filtered()
    quiet.charge(0, 20, 1.1, sample_rate=0.015)
    loud.charge(0, 20, 1.0, sample_rate=0.015)
    assert loud.epsilon(0) > quiet.epsilon(0)
    assert loud.affordable_steps(0, 1.1) < quiet.affordable_steps(0, 1.1)


@given(st.lists(st.tuples(st.integers(1, 120), st.floats(0.8, 1.5)), max_size=12))
def test_filtered_ledger_never_exceeds_its_budget_whatever_noise_is_chosen(charges):
    ledger = filtered()
    for steps, noise in charges:
        if affordable := ledger.affordable_steps(0, noise):
            ledger.charge(0, min(steps, affordable), noise, sample_rate=0.015)
    assert ledger.epsilon(0) <= BUDGET.epsilon


def test_releases_are_charged_to_everybody_before_the_first_step():
    release = GaussianRelease(noise_multiplier=10.0)
    ledger = planned("pld", releases=(release,))
    assert ledger.max_steps == max_steps(BUDGET, 0.015, 1.1, already_spent=[release]) < max_steps(BUDGET, 0.015, 1.1)
    assert ledger.epsilon(0) == epsilon([release], 1e-5) > 0
    assert FilteredLedger(BUDGET, 0.015, 1.1, releases=(release,)).epsilon(0) > 0


@pytest.mark.parametrize("steps", [1, 50, 400])
def test_bound_is_above_the_tight_value_and_within_the_budget(steps):
    ledger = planned("pld")
    ledger.charge(0, steps, 1.1, sample_rate=0.015)
    tight = epsilon([SampledGaussian(sample_rate=0.015, noise_multiplier=1.1, steps=steps)], 1e-5)
    assert ledger.epsilon(0) == tight
    assert tight <= ledger.epsilon_bound(0) <= min(BUDGET.epsilon, tight * 1.01)


def test_a_client_may_lower_its_own_cap_but_not_raise_it_or_that_of_others():
    ledger = CappedLedger(planned("rdp-paper"))
    ledger.cap(0, 5)
    ledger.cap(1, 10**6)
    ledger.cap(2, -3)
    assert [ledger.affordable_steps(client, 1.1) for client in range(4)] == [5, 314, 0, 314]
    ledger.charge(0, 2, 1.1, sample_rate=0.015)
    assert ledger.affordable_steps(0, 1.1) == 3
    again = CappedLedger(planned("rdp-paper"))
    again.restore(json.loads(json.dumps(ledger.to_json())))
    assert [again.affordable_steps(client, 1.1) for client in range(4)] == [3, 314, 0, 314]
    assert (again.steps_spent(0), again.epsilon(0)) == (2, ledger.epsilon(0))
