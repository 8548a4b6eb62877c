"""Bad values are refused by name and value."""

import math
from functools import partial

import numpy as np
import pytest

from alidpfl.errors import BudgetExceededError, ConfigError
from alidpfl.privacy import (
    FilteredLedger,
    GaussianRelease,
    PlannedLedger,
    PrivacyBudget,
    RdpFilter,
    SampledGaussian,
    epsilon,
    max_steps,
    noise_multiplier_for,
)

GOOD = PrivacyBudget(epsilon=1.0, delta=1e-5)
STEP = {"sample_rate": 0.1, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PrivacyBudget(epsilon=0, delta=1e-5), "epsilon=0"),
        (lambda: PrivacyBudget(epsilon=-1.5, delta=1e-5), "epsilon=-1.5"),
        (lambda: PrivacyBudget(epsilon=math.inf, delta=1e-5), "epsilon=inf"),
        (lambda: PrivacyBudget(epsilon=math.nan, delta=1e-5), "epsilon=nan"),
        (lambda: PrivacyBudget(epsilon=True, delta=1e-5), "epsilon=True"),
        (lambda: PrivacyBudget(epsilon="2", delta=1e-5), "epsilon='2'"),
        (lambda: PrivacyBudget(epsilon=1, delta=0), "delta=0"),
        (lambda: PrivacyBudget(epsilon=1, delta=1), "delta=1"),
        (lambda: PrivacyBudget(epsilon=1, delta=math.nan), "delta=nan"),
        (lambda: PrivacyBudget(epsilon=1, delta=None), "delta=None"),
        (lambda: SampledGaussian(**STEP | {"sample_rate": 1.4}), "sample_rate=1.4"),
        (lambda: SampledGaussian(**STEP | {"sample_rate": 0}), "sample_rate=0"),
        (lambda: SampledGaussian(**STEP | {"sample_rate": math.nan}), "sample_rate=nan"),
        (lambda: SampledGaussian(**STEP | {"noise_multiplier": 0}), "noise_multiplier=0"),
        (lambda: SampledGaussian(**STEP | {"noise_multiplier": math.inf}), "noise_multiplier=inf"),
        (lambda: SampledGaussian(**STEP, steps=0), "steps=0"),
        (lambda: SampledGaussian(**STEP, steps=10**8), "steps=100000000"),
        (lambda: SampledGaussian(**STEP, steps=2.0), "steps=2.0"),
        (lambda: SampledGaussian(**STEP, steps=True), "steps=True"),
        (lambda: GaussianRelease(noise_multiplier=-1), "noise_multiplier=-1"),
        (lambda: GaussianRelease(noise_multiplier=1, count=0), "count=0"),
        (lambda: epsilon([], 2.0), "delta=2.0"),
        (
            lambda: epsilon([], 1e-5, "PDL"),
            "accountant='PDL'",
        ),
        (
            lambda: epsilon(["step"], 1e-5),
            "mechanism='step'",
        ),
        (lambda: max_steps(GOOD, 64, 1.0), "sample_rate=64"),
        (lambda: max_steps(GOOD, 0.1, 0.0), "noise_multiplier=0.0"),
        (lambda: noise_multiplier_for(GOOD, 0.1, 0), "steps=0"),
        (lambda: noise_multiplier_for(GOOD, 7, 10), "sample_rate=7"),
        (lambda: RdpFilter(budget=GOOD, order=1), "order=1"),
        (lambda: RdpFilter(budget=GOOD, order=8, rdp_spent=-1.0), "rdp_spent=-1.0"),
    ],
)
def test_bad_values_are_refused_by_name_and_value(build, message):
    with pytest.raises(ConfigError) as error:
        build()
    assert str(error.value).startswith(f"{message} ")


def test_an_unknown_accountant_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"accountant='PDL'.*'pld'"):
        epsilon([], 1e-5, "PDL")


def test_numpy_numbers_are_numbers():
    mechanism = SampledGaussian(sample_rate=np.float64(0.1), noise_multiplier=np.float32(2), steps=np.int64(3))
    assert mechanism == SampledGaussian(sample_rate=0.1, noise_multiplier=2.0, steps=3)
    assert (type(mechanism.sample_rate), type(mechanism.steps)) == (float, int)


def test_the_epsilon_that_one_step_needs_is_in_the_message():
    with pytest.raises(BudgetExceededError) as error:
        max_steps(PrivacyBudget(epsilon=0.5, delta=1e-5), 0.015, 1.1, accountant="rdp")
    for named in ("epsilon=0.5", "delta=1e-05", "sample_rate=0.015", "noise_multiplier=1.1", "rdp", "0.864"):
        assert named in str(error.value)
    assert max_steps(PrivacyBudget(epsilon=0.864, delta=1e-5), 0.015, 1.1, accountant="rdp") >= 1


@pytest.mark.parametrize("kind", [FilteredLedger, partial(PlannedLedger, accountant="rdp")])
def test_accounts_that_pay_for_no_step_say_which_noise_would(kind):
    budget = PrivacyBudget(epsilon=0.5, delta=1e-5)
    with pytest.raises(BudgetExceededError, match=r"0\.864 .*noise_multiplier=1\.395"):
        kind(budget, 0.015, 1.1)
    assert kind(budget, 0.015, 1.395).max_steps >= 1
    assert kind(PrivacyBudget(epsilon=0.864, delta=1e-5), 0.015, 1.1).max_steps >= 1


@pytest.mark.parametrize(("delta", "num_records", "weak"), [(1e-3, 999, False), (1e-3, 1000, True), (0.5, 1, False)])
def test_a_delta_that_lets_a_record_be_published_is_called_weak(delta, num_records, weak):
    found = PrivacyBudget(epsilon=1, delta=delta).weakness(num_records)
    assert (found is not None) is weak
    assert not weak or (f"delta={delta:g}" in found and f"1/{num_records}" in found)


@pytest.mark.parametrize(("epsilon", "delta", "reasons"), [(10, 1e-5, 0), (10.1, 1e-5, 1), (10, 0.1, 1), (30, 0.1, 2)])
def test_every_weakness_is_told(epsilon, delta, reasons):
    found = PrivacyBudget(epsilon=epsilon, delta=delta).weakness(1000) or ""
    assert ("epsilon=" in found) + ("delta=" in found) == reasons


@pytest.mark.parametrize("ask", [lambda s: max_steps(GOOD, 0.1, 1.0, already_spent=s),
                                 lambda s: noise_multiplier_for(GOOD, 0.1, 1, already_spent=s)])  # fmt: skip
def test_an_overspent_budget_says_what_was_spent(ask):
    with pytest.raises(BudgetExceededError, match=r"already_spent .*epsilon=4\.\d+ .*epsilon=1"):
        ask([GaussianRelease(noise_multiplier=1.0)])


def test_no_noise_is_enough_for_a_budget_that_is_all_but_spent():
    with pytest.raises(BudgetExceededError, match=r"1e\+06 .*steps=10000000 .*epsilon=1e-09"):
        noise_multiplier_for(PrivacyBudget(epsilon=1e-9, delta=1e-9), 1.0, 10**7, accountant="rdp-paper")


@pytest.mark.parametrize("wrong", [iter([]), (m for m in []), SampledGaussian(sample_rate=0.1, noise_multiplier=1.0)])
def test_what_was_spent_must_be_a_list_that_can_be_read_twice(wrong):
    with pytest.raises(ConfigError, match=type(wrong).__name__):
        max_steps(PrivacyBudget(epsilon=2.0, delta=1e-5), 0.1, 2.0, already_spent=wrong)
    with pytest.raises(ConfigError, match=type(wrong).__name__):
        epsilon(wrong, 1e-5)
