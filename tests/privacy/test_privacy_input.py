"""Messages name the value and the remedy."""

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
DELTA_RULE = "must be in (0, 1); did you pass epsilon? A usual choice is below 1 / number of samples"
NOISE_RULE = "must be between 0.001 and 1e+06; it is the noise's standard deviation divided by the clip norm"
RATE_RULE = "must be in (0, 1]; did you pass a batch size?"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PrivacyBudget(epsilon=0, delta=1e-5), "epsilon=0 must be finite and above 0"),
        (lambda: PrivacyBudget(epsilon=-1.5, delta=1e-5), "epsilon=-1.5 must be finite and above 0"),
        (lambda: PrivacyBudget(epsilon=math.inf, delta=1e-5), "epsilon=inf must be finite and above 0"),
        (lambda: PrivacyBudget(epsilon=math.nan, delta=1e-5), "epsilon=nan must be finite and above 0"),
        (lambda: PrivacyBudget(epsilon=True, delta=1e-5), "epsilon=True must be a number, not bool"),
        (lambda: PrivacyBudget(epsilon="2", delta=1e-5), "epsilon='2' must be a number, not str"),
        (lambda: PrivacyBudget(epsilon=1, delta=0), f"delta=0 {DELTA_RULE}"),
        (lambda: PrivacyBudget(epsilon=1, delta=1), f"delta=1 {DELTA_RULE}"),
        (lambda: PrivacyBudget(epsilon=1, delta=math.nan), f"delta=nan {DELTA_RULE}"),
        (lambda: PrivacyBudget(epsilon=1, delta=None), "delta=None must be a number, not NoneType"),
        (lambda: SampledGaussian(**STEP | {"sample_rate": 1.4}), f"sample_rate=1.4 {RATE_RULE}"),
        (lambda: SampledGaussian(**STEP | {"sample_rate": 0}), f"sample_rate=0 {RATE_RULE}"),
        (lambda: SampledGaussian(**STEP | {"sample_rate": math.nan}), f"sample_rate=nan {RATE_RULE}"),
        (lambda: SampledGaussian(**STEP | {"noise_multiplier": 0}), f"noise_multiplier=0 {NOISE_RULE}"),
        (lambda: SampledGaussian(**STEP | {"noise_multiplier": math.inf}), f"noise_multiplier=inf {NOISE_RULE}"),
        (lambda: SampledGaussian(**STEP, steps=0), "steps=0 must be between 1 and 10000000"),
        (lambda: SampledGaussian(**STEP, steps=10**8), "steps=100000000 must be between 1 and 10000000"),
        (lambda: SampledGaussian(**STEP, steps=2.0), "steps=2.0 must be a whole number, not float"),
        (lambda: SampledGaussian(**STEP, steps=True), "steps=True must be a whole number, not bool"),
        (lambda: GaussianRelease(noise_multiplier=-1), f"noise_multiplier=-1 {NOISE_RULE}"),
        (lambda: GaussianRelease(noise_multiplier=1, count=0), "count=0 must be between 1 and 10000000"),
        (lambda: epsilon([], 2.0), f"delta=2.0 {DELTA_RULE}"),
        (
            lambda: epsilon([], 1e-5, "PDL"),
            "accountant='PDL' is not known; did you mean 'pld'? There are: rdp-paper, rdp, pld",
        ),
        (
            lambda: epsilon(["step"], 1e-5),
            "mechanism='step' must be a SampledGaussian or a GaussianRelease",
        ),
        (lambda: max_steps(GOOD, 64, 1.0), f"sample_rate=64 {RATE_RULE}"),
        (lambda: max_steps(GOOD, 0.1, 0.0), f"noise_multiplier=0.0 {NOISE_RULE}"),
        (lambda: noise_multiplier_for(GOOD, 0.1, 0), "steps=0 must be between 1 and 10000000"),
        (lambda: noise_multiplier_for(GOOD, 7, 10), f"sample_rate=7 {RATE_RULE}"),
        (lambda: RdpFilter(budget=GOOD, order=1), "order=1 must be between 2 and 512"),
        (lambda: RdpFilter(budget=GOOD, order=8, rdp_spent=-1.0), "rdp_spent=-1.0 must be finite and at least 0"),
    ],
)
def test_bad_values_are_named_with_the_remedy(build, message):
    with pytest.raises(ConfigError) as error:
        build()
    assert str(error.value) == message


def test_numpy_numbers_are_numbers():
    mechanism = SampledGaussian(sample_rate=np.float64(0.1), noise_multiplier=np.float32(2), steps=np.int64(3))
    assert mechanism == SampledGaussian(sample_rate=0.1, noise_multiplier=2.0, steps=3)
    assert (type(mechanism.sample_rate), type(mechanism.steps)) == (float, int)


def test_what_one_step_would_need_is_in_the_message():
    with pytest.raises(BudgetExceededError) as error:
        max_steps(PrivacyBudget(epsilon=0.5, delta=1e-5), 0.015, 1.1, accountant="rdp")
    assert str(error.value) == (
        "epsilon=0.5 at delta=1e-05 does not pay for one step at sample_rate=0.015, noise_multiplier=1.1 by rdp: "
        "raise epsilon to 0.864 or more, or noise_multiplier"
    )
    assert max_steps(PrivacyBudget(epsilon=0.864, delta=1e-5), 0.015, 1.1, accountant="rdp") >= 1


@pytest.mark.parametrize("kind", [FilteredLedger, partial(PlannedLedger, accountant="rdp")])
def test_accounts_that_pay_for_no_step_say_which_noise_would(kind):
    budget = PrivacyBudget(epsilon=0.5, delta=1e-5)
    told = r"raise epsilon to 0\.864 or more, or noise_multiplier; noise_multiplier=1\.395 would do"
    with pytest.raises(BudgetExceededError, match=told):
        kind(budget, 0.015, 1.1)
    assert kind(budget, 0.015, 1.395).max_steps >= 1
    assert kind(PrivacyBudget(epsilon=0.864, delta=1e-5), 0.015, 1.1).max_steps >= 1


@pytest.mark.parametrize(("delta", "num_records", "weak"), [(1e-3, 999, False), (1e-3, 1000, True), (0.5, 1, False)])
def test_a_delta_that_lets_a_record_be_published_is_called_weak(delta, num_records, weak):
    found = PrivacyBudget(epsilon=1, delta=delta).weakness(num_records)
    assert (found is not None) is weak
    assert not weak or f"delta={delta:g} is not below 1/{num_records}" in found


@pytest.mark.parametrize(("epsilon", "delta", "reasons"), [(10, 1e-5, 0), (10.1, 1e-5, 1), (10, 0.1, 1), (30, 0.1, 2)])
def test_every_weakness_is_told(epsilon, delta, reasons):
    found = PrivacyBudget(epsilon=epsilon, delta=delta).weakness(1000) or ""
    assert ("epsilon=" in found) + ("delta=" in found) == reasons


@pytest.mark.parametrize("ask", [lambda s: max_steps(GOOD, 0.1, 1.0, already_spent=s),
                                 lambda s: noise_multiplier_for(GOOD, 0.1, 1, already_spent=s)])  # fmt: skip
def test_an_overspent_budget_says_what_was_spent(ask):
    with pytest.raises(BudgetExceededError, match=r"already_spent costs epsilon=4\.\d+ by pld, more than .* epsilon=1"):
        ask([GaussianRelease(noise_multiplier=1.0)])


def test_no_noise_is_enough_for_a_budget_that_is_all_but_spent():
    with pytest.raises(BudgetExceededError, match=r"no noise multiplier up to 1e\+06 makes steps=10000000 fit"):
        noise_multiplier_for(PrivacyBudget(epsilon=1e-9, delta=1e-9), 1.0, 10**7, accountant="rdp-paper")


@pytest.mark.parametrize("wrong", [iter([]), (m for m in []), SampledGaussian(sample_rate=0.1, noise_multiplier=1.0)])
def test_what_was_spent_must_be_a_list_that_can_be_read_twice(wrong):
    with pytest.raises(ConfigError, match="must be a list or tuple"):
        max_steps(PrivacyBudget(epsilon=2.0, delta=1e-5), 0.1, 2.0, already_spent=wrong)
    with pytest.raises(ConfigError, match="must be a list or tuple"):
        epsilon(wrong, 1e-5)
