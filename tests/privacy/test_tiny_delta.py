"""`pld` is safe and within 2 % of the exact ε from δ = 1e-15 up, for tiny losses too.

The exact values come from closed forms and from exact_delta.py. All settings are seeded: no false alarms.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from alidpfl.privacy import GaussianRelease, SampledGaussian, epsilon, epsilon_bound, tilted_losses
from alidpfl.privacy.gaussian_dp import gaussian_delta, gaussian_epsilon
from alidpfl.privacy.mechanisms import merged
from alidpfl.privacy.step_losses import Step, StepLosses, step_losses
from alidpfl.privacy.tilted_losses import tilted_epsilon
from tests.privacy.exact_delta import epsilon_range

ALMOST_ONE = math.nextafter(1.0, 0.0)  # takes the sampled path, though nothing is left out


def sampled(sample_rate, noise_multiplier, steps):
    return SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=steps)


def random_settings(seed, count):
    draw = np.random.default_rng(seed)
    for _ in range(count):
        sample_rate, noise_multiplier = min(10 ** draw.uniform(-4, 0.2), 1.0), 0.3 * (50 / 0.3) ** draw.uniform()
        yield sample_rate, noise_multiplier, int(10 ** draw.uniform(0, 5)), 10 ** draw.uniform(-15, -2)


def excess(sample_rate, noise_multiplier, steps, delta):
    """Return by how much of the exact ε ours is larger; NaN if that is not known to 1 %.

    Where ε is less than δ, count in units of δ.
    """
    ours = epsilon([sampled(sample_rate, noise_multiplier, steps)], delta)
    if sample_rate == 1:
        low = high = gaussian_epsilon(math.sqrt(steps) / noise_multiplier, delta) / (1 + 1e-7)
    else:
        low, high = epsilon_range(sample_rate, noise_multiplier, steps, delta, start=ours)
    return (ours - low) / max(low, delta) if high - low <= 0.01 * low else math.nan


def check_settings(seed, count):
    found = np.array([excess(*setting) for setting in random_settings(seed, count)])
    known = found[~np.isnan(found)]
    print(f"{len(known)} of {count} settings: ε is between {known.min():.1e} and {known.max():.1e} of itself too large")
    assert len(known) >= 0.98 * count
    assert known.min() >= 0
    assert known.max() <= 0.02


def test_epsilon_is_safe_and_within_two_percent_of_random_settings():
    check_settings(seed=2026, count=25)


@pytest.mark.slow
def test_epsilon_is_safe_and_within_two_percent_of_1000_random_settings():
    check_settings(seed=15, count=1000)


@pytest.mark.parametrize(
    ("noise_multiplier", "steps"), [(50.0, 1), (20.0, 100), (300.0, 100_000), (1e3, 100), (1e3, 10**7)]
)
@pytest.mark.parametrize("delta", [1e-15, 1e-12, 1e-9, 1e-4])
def test_releases_without_sampling_cost_the_closed_form(noise_multiplier, steps, delta):
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(50):

        def exact(cost):
            mu, value = mpmath.sqrt(steps) / mpmath.mpf(noise_multiplier), mpmath.mpf(cost)
            return mpmath.ncdf(mu / 2 - value / mu) - mpmath.exp(value) * mpmath.ncdf(-mu / 2 - value / mu)

        cost = epsilon([GaussianRelease(noise_multiplier=noise_multiplier, count=steps)], delta)
        assert exact(cost) <= delta < exact(cost * (1 - 2e-7))
        nearly = epsilon([sampled(ALMOST_ONE, noise_multiplier, steps)], delta)
        assert exact(nearly) <= delta < exact(nearly * (1 - 1e-3))


@pytest.mark.parametrize("delta", [1e-15, 1e-10])
def test_different_mechanisms_compose(delta):
    mixed = [
        sampled(ALMOST_ONE, 200.0, 1000),
        sampled(ALMOST_ONE, 90.0, 300),
        GaussianRelease(noise_multiplier=30.0, count=10),
    ]
    exact = gaussian_epsilon(math.sqrt(1000 / 200**2 + 300 / 90**2 + 10 / 30**2), delta) / (1 + 1e-7)
    assert exact <= epsilon(mixed, delta) <= 1.001 * exact
    whole = epsilon([sampled(0.001, 5.0, 3000)], delta)
    parts = epsilon([sampled(0.001, 5.0, 1000), sampled(0.001, 5.0 * (1 + 1e-12), 2000)], delta)
    assert parts == pytest.approx(whole, rel=1e-7)


@pytest.mark.parametrize(("sample_rate", "noise_multiplier", "steps"), [(0.01, 1.0, 500), (1e-4, 50.0, 90_000)])
@pytest.mark.parametrize("spent", [[], [GaussianRelease(noise_multiplier=40.0)]], ids=["alone", "after a release"])
def test_each_step_costs_more(sample_rate, noise_multiplier, steps, spent):
    costs = [epsilon([*spent, sampled(sample_rate, noise_multiplier, steps + k)], 1e-13) for k in range(8)]
    assert costs == sorted(costs)
    assert len(set(costs)) == len(costs)


@pytest.mark.parametrize("setting", list(random_settings(7, 12)))
def test_the_quick_bound_is_a_little_larger(setting):
    *mechanism, delta = setting
    exact, quick = (function([sampled(*mechanism)], delta) for function in (epsilon, epsilon_bound))
    assert exact <= quick <= 1.001 * exact + 0.01 * delta


# ---------------------------------------------------------------------------------------------- what the bound rests on


@pytest.mark.parametrize("tilt", [1e-3, 0.1, 0.5, 2.0, 4.0])
@pytest.mark.parametrize("steps", [100, 20_000])
def test_a_poor_tilt_is_safe(tilt, steps, monkeypatch):
    choose = tilted_losses._window

    def poor(*arguments):
        window = choose(*arguments)
        return tilted_losses._Window(window.tilt * tilt, window.mean, window.low, window.high, window.tilt_above)

    monkeypatch.setattr(tilted_losses, "_window", poor)
    exact = gaussian_epsilon(math.sqrt(steps) / 100, 1e-15) / (1 + 1e-7)
    assert tilted_epsilon(merged([sampled(ALMOST_ONE, 100.0, steps)]), 1e-15) >= exact


@pytest.mark.parametrize("log_tail", [-2.0, -0.5])
def test_noise_that_is_cut_off_is_counted(log_tail, monkeypatch):
    monkeypatch.setattr(tilted_losses, "_LOG_TAIL", log_tail)
    exact = gaussian_epsilon(2.0, 1e-12) / (1 + 1e-7)
    assert exact < tilted_epsilon(merged([sampled(ALMOST_ONE, 0.5, 1)]), 1e-12) < 1.05 * exact


def coin_tosses(steps):
    """Compose losses of 0 and 1 with probability 0.3 of the second, tilted: a binomial distribution."""
    losses = StepLosses(0, np.array([0.7, 0.3]), 0.0)
    window = tilted_losses._Window(0.1, 0.3 * steps, 0.0, float(steps + 1), 1.0)
    return tilted_losses._compose([Step(0.5, 1.0, steps)], [losses], window, 1.0)


@pytest.mark.parametrize("steps", [1, 77, 12_345])
def test_rounding_of_transforms_is_within_its_bound(steps):
    composed, tilted = coin_tosses(steps), 0.3 * math.exp(0.1) / (0.7 + 0.3 * math.exp(0.1))
    errors = np.abs(composed.probabilities[: steps + 1] - binom.pmf(np.arange(steps + 1), steps, tilted))
    # scipy's own values are off by up to 1e-12 of themselves
    assert errors.max() <= composed.rounding + 1e-12 * composed.probabilities.max()
    assert steps * 1e-16 * composed.probabilities.max() < composed.rounding < steps * 1e-12


def test_rounding_counts_against_delta():
    composed = coin_tosses(77)
    wrong = replace(composed, probabilities=composed.probabilities - 1e-9, rounding=composed.rounding + 1e-9)
    assert wrong.epsilon(1e-6) == pytest.approx(composed.epsilon(1e-6), rel=1e-9)


@pytest.mark.parametrize("outside", [-1.0, -4.0])
def test_losses_outside_the_window_are_counted(outside, monkeypatch):
    monkeypatch.setattr(tilted_losses, "_LOG_OUTSIDE", outside)
    exact = gaussian_epsilon(10 / 30, 1e-4) / (1 + 1e-7)
    assert tilted_epsilon(merged([sampled(ALMOST_ONE, 30.0, 100)]), 1e-4) >= exact


@pytest.mark.parametrize(("sample_rate", "noise_multiplier"), [(0.3, 0.7), (1e-3, 20.0), (1.0, 2.0)])
@pytest.mark.parametrize("reach", [1.5, 9.0])
def test_one_step_on_the_grid_never_has_less_delta(sample_rate, noise_multiplier, reach):
    mpmath = pytest.importorskip("mpmath")
    interval = 0.02 * sample_rate / noise_multiplier
    for losses, sign in zip(step_losses(Step(sample_rate, noise_multiplier), interval, reach), (1, -1), strict=True):
        grid = interval * (losses.lowest + np.arange(len(losses.probabilities)))
        assert losses.probabilities.sum() + losses.infinite == pytest.approx(1, abs=1e-12)
        for cost in grid[:: len(grid) // 9]:
            with mpmath.workdps(40):
                exact = one_step_delta(mpmath, sample_rate, noise_multiplier, mpmath.mpf(float(cost)), sign)
            ahead = np.maximum(grid - cost, 0)
            ours = losses.infinite + np.sum(losses.probabilities * -np.expm1(-ahead))
            assert ours >= exact * (1 - 1e-9) - 1e-15
            if reach > 8:  # dots on the curve
                assert ours == pytest.approx(float(exact), rel=1e-6, abs=1e-14)


def one_step_delta(mpmath, rate, noise, cost, sign):
    """Return δ(ε) of one step; `sign` 1 if the record is removed, −1 if it is added."""
    level = 1 + mpmath.expm1(sign * cost) / rate
    if level <= 0:
        return mpmath.mpf(0) if sign < 0 else 1 - mpmath.exp(cost)
    x = noise**2 * mpmath.log(level) + 0.5
    without, present = mpmath.ncdf(-sign * x / noise), mpmath.ncdf(-sign * (x - 1) / noise)
    mixture = (1 - rate) * without + rate * present
    return mixture - mpmath.exp(cost) * without if sign > 0 else without - mpmath.exp(cost) * mixture


def test_gaussian_delta_keeps_its_digits():
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        for parameter, cost in ((1e-6, 8e-6), (0.5, 4.0), (3.0, 40.0), (2.0, 0.0), (40.0, 700.0)):
            mu, value = mpmath.mpf(parameter), mpmath.mpf(cost)
            exact = mpmath.ncdf(mu / 2 - value / mu) - mpmath.exp(value) * mpmath.ncdf(-mu / 2 - value / mu)
            assert gaussian_delta(parameter, cost) == pytest.approx(float(exact), rel=1e-8)
