"""Rounding must never make ε smaller than it is."""

import logging
import math

import dp_accounting
import numpy as np
import pytest

from alidpfl.privacy import ACCOUNTANTS, GaussianRelease, SampledGaussian, epsilon
from alidpfl.privacy.accountants import ORDERS, rdp_of_step

ALMOST_ONE = math.nextafter(1.0, 0.0)  # takes the sampled path, though nothing is left out


EXTREMES = [
    SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=steps)
    for sample_rate in (5e-324, 1e-9, 0.015, ALMOST_ONE, 1.0)
    for noise_multiplier in (1e-3, 1.1, 1e6)
    for steps in (1, 10**7)
]


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.999])
@pytest.mark.parametrize("mechanism", EXTREMES, ids=lambda m: f"{m.sample_rate}-{m.noise_multiplier}-{m.steps}")
def test_extremes_give_a_number_without_a_warning(mechanism, delta, accountant, caplog):
    with caplog.at_level(logging.WARNING):
        cost = epsilon([mechanism], delta, accountant)
    assert cost >= 0
    assert not caplog.records


@pytest.mark.parametrize(("sample_rate", "noise_multiplier"), [(1e-12, 50.0), (1e-6, 1e5), (0.015, 1.1), (0.5, 1e4)])
def test_renyi_divergence_is_rounded_up(sample_rate, noise_multiplier):
    mpmath = pytest.importorskip("mpmath")
    orders = (2, 3, 32, 63, 256)
    with mpmath.workdps(60):
        q, variance = mpmath.mpf(sample_rate), mpmath.mpf(noise_multiplier) ** 2
        for order, ours in zip(orders, rdp_of_step(sample_rate, noise_multiplier, orders), strict=True):
            # Mironov, Talwar & Zhang 2019, section 3.3: A(α) for integer α.
            terms = (
                mpmath.binomial(order, i) * q**i * (1 - q) ** (order - i) * mpmath.exp((i * i - i) / (2 * variance))
                for i in range(order + 1)
            )
            exact = mpmath.log(mpmath.fsum(terms)) / (order - 1)
            assert exact <= ours <= exact * (1 + 1e-9) + 2e-14


# At (100, 20,000) dp-accounting's Fourier transforms alone report too little from δ = 1e-9 down.
@pytest.mark.parametrize(
    ("noise_multiplier", "steps"), [(20.0, 100), (50.0, 2000), (100.0, 20_000), (300.0, 100_000), (1e3, 10**6)]
)
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8, 1e-10, 1e-11])
def test_composing_loss_distributions_never_reports_less_than_the_closed_form(noise_multiplier, steps, delta):
    exact = dp_accounting.get_epsilon_gaussian(noise_multiplier / math.sqrt(steps), delta)
    mechanism = SampledGaussian(sample_rate=ALMOST_ONE, noise_multiplier=noise_multiplier, steps=steps)
    assert exact <= epsilon([mechanism], delta, "pld") <= 1.25 * exact


def test_large_noise_and_small_rates_are_not_free_for_ever():
    step = SampledGaussian(sample_rate=1e-6, noise_multiplier=1e6)
    # dp-accounting alone computes R(α) < 0 at some orders and then reports ε = 0 for any number of steps.
    assert dp_accounting.rdp.RdpAccountant(list(ORDERS)).compose(step.event).rdp.min() < 0
    assert np.all(rdp_of_step(1e-6, 1e6) > 0)


@pytest.mark.parametrize(("below", "above"), [(99_999, 100_001)])
def test_composing_in_blocks_joins_composing_at_once(below, above):
    costs = [
        epsilon([SampledGaussian(sample_rate=0.001, noise_multiplier=2.0, steps=steps)], 1e-5)
        for steps in (below, 100_000, above)
    ]
    assert costs == sorted(costs)
    assert costs[2] - costs[0] < 1e-4


def test_a_very_noisy_and_an_almost_clear_release_compose():
    mixed = [
        GaussianRelease(noise_multiplier=0.02),
        SampledGaussian(sample_rate=1e-4, noise_multiplier=1.0, steps=10**5),
    ]
    exact = dp_accounting.get_epsilon_gaussian(0.02, 1e-5)
    assert exact <= epsilon(mixed, 1e-5) <= 1.01 * exact
