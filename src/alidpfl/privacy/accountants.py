"""Three accountants that compute ε of a composition, most of it through dp-accounting.

| name | bound |
| --- | --- |
| `rdp-paper` | Rényi DP at the paper's orders, ε = R(α) + log(1/δ)/(α−1) (Mironov 2017, Proposition 3) |
| `rdp` | the same orders, the tighter conversion of Canonne, Kamath & Steinke 2020, Proposition 12 |
| `pld` | privacy loss distributions, "connect the dots" (Doroshenko et al. 2022); `rdp` where that is less |

`pld` has three ways: the closed form for releases without sampling, dp-accounting's distributions on a fixed grid where
these are accurate, and `tilted_losses` for tiny δ and tiny losses.

Formal guarantee: each returns an upper bound of ε, also after rounding. Neighbouring data sets differ by one added or
removed record.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from dp_accounting import rdp
from dp_accounting.pld import privacy_loss_distribution as pld

from alidpfl.privacy.gaussian_dp import gaussian_epsilon
from alidpfl.privacy.mechanisms import Composition, SampledGaussian
from alidpfl.privacy.step_losses import typical_loss
from alidpfl.privacy.tilted_losses import tilted_epsilon

ORDERS: Final = (*range(2, 64), 128, 256, 512)
"""The Rényi orders α of the paper's reference code."""

Epsilon: TypeAlias = Callable[[Composition, float], float]
"""Returns ε at δ of a composition that is not empty: infinite if it has no bound, never NaN."""

_Floats: TypeAlias = npt.NDArray[np.float64]
_INTERVAL: Final = 1e-4  # of privacy loss, between two points of the fixed grid
_LEAST_UNTILTED_DELTA: Final = 1e-8  # far above the rounding error of untilted transforms
_STEP_POINTS, _TOTAL_POINTS = 5e5, 1e7  # of the grid, for one step and for all: seconds and a few hundred megabytes
# Noise of probability e^-40 is cut off and counted as infinite loss. This is pessimistic, by at most 4e-11 in δ over
# MAX_STEPS. dp-accounting's own e^-50 makes every array a quarter longer.
_LOG_TRUNCATED_MASS: Final = -40.0
_BLOCK, _BLOCKS_FROM = 1024, 100_000


@dataclass(frozen=True, kw_only=True)
class Accountant:
    """A way to compute ε. `epsilon` and `quick` must return upper bounds; guesses may be too small."""

    epsilon: Epsilon
    """The accountant's own function. It decides what is affordable."""
    guesses: tuple[Epsilon, ...] = ()
    """Cheaper functions that come close to `epsilon`, cheapest first. Searches only start from them."""
    quick: Epsilon | None = None
    """An upper bound of `epsilon` in a fraction of its time; None for `epsilon` itself."""


@lru_cache(maxsize=4096)
def rdp_of_step(sample_rate: float, noise_multiplier: float, orders: tuple[int, ...] = ORDERS) -> _Floats:
    """Return R(α) of one step at each order (Mironov, Talwar & Zhang 2019, section 3.3), rounded up, read-only."""
    step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier)
    computed = rdp.RdpAccountant(list(orders)).compose(step.event).rdp
    # dp-accounting's sum of logarithms is off by up to 5e-16 in either direction, and it treats a negative R(α) as
    # ε = 0. Any number of steps at large σ or small q would then be free. So round up by far more than the error.
    rounded_up: _Floats = np.maximum(computed, 0.0) * (1 + 1e-12) + 1e-14
    rounded_up.flags.writeable = False
    return rounded_up


def _rdp(composition: Composition) -> _Floats:
    total: _Floats = np.sum([m.steps * rdp_of_step(m.sample_rate, m.noise_multiplier) for m in composition], axis=0)
    return total


def epsilon_from_rdp(orders: tuple[int, ...], renyi: _Floats, delta: float) -> float:
    """Return ε at δ of a mechanism that is (α, R(α))-RDP at these orders (Canonne et al. 2020, Proposition 12)."""
    return float(rdp.compute_epsilon(orders, renyi, delta)[0])


def _rdp_epsilon(composition: Composition, delta: float) -> float:
    return epsilon_from_rdp(ORDERS, _rdp(composition), delta)


def _rdp_paper_epsilon(composition: Composition, delta: float) -> float:
    # ε = min over α of R(α) + log(1/δ)/(α−1): Mironov 2017, Proposition 3.
    return float(np.min(_rdp(composition) - math.log(delta) / (np.array(ORDERS) - 1)))


def _pld_epsilon(composition: Composition, delta: float, *, coarser: int = 1) -> float:
    """Return the smaller of two valid bounds: that of the loss distribution, and that of Rényi DP.

    The second is smaller only where losses are beyond the range of floats, or too many for memory.
    """
    bound = _rdp_epsilon(composition, delta)
    try:
        if all(m.sample_rate == 1 for m in composition):
            # Releases compose to one with the sum of all 1/σ² (Dong, Roth & Su 2022, Corollary 3.3).
            tight = gaussian_epsilon(math.sqrt(sum(m.steps / m.noise_multiplier**2 for m in composition)), delta)
        elif _suits_fixed_grid(composition, delta, interval := _interval(composition, bound)):
            tight = _fixed_grid_epsilon(composition, delta, coarser * interval)
        else:
            tight = tilted_epsilon(composition, delta, coarser=max(1, coarser // 10))
    except (ArithmeticError, ValueError):  # losses beyond a float's exponent
        return bound
    return tight if tight < bound else bound


def _suits_fixed_grid(composition: Composition, delta: float, interval: float) -> bool:
    """Return whether untilted transforms on this grid are accurate, ten times coarser too."""
    sampled = (m for m in composition if m.sample_rate < 1)
    smallest = min(typical_loss(m.sample_rate, m.noise_multiplier) for m in sampled)
    return delta >= _LEAST_UNTILTED_DELTA and smallest >= 100 * interval


def _fixed_grid_epsilon(composition: Composition, delta: float, interval: float) -> float:
    # Fourier transforms leave an error of up to about 1e-13 + 3e-17 T in δ(ε) (measured), in either direction. So
    # subtract more than that from δ.
    delta_left = delta - 1e-12 - 1e-16 * sum(m.steps for m in composition)
    total = reduce(lambda left, right: left.compose(right), [_composed_pld(m, interval) for m in composition])
    return float(total.get_epsilon_for_delta(delta_left))


def _extrapolated_pld_epsilon(composition: Composition, delta: float) -> float:
    """Return a guess, not a bound: connecting the dots adds variance in proportion to interval² (Richardson)."""
    finer, coarser = (_pld_epsilon(composition, delta, coarser=times) for times in (10, 20))
    return finer - (coarser - finer) / 3 if coarser < math.inf else finer


def _interval(composition: Composition, epsilon_bound: float) -> float:
    """Return 1e-4, times a power of ten if the grid would not fit in memory (little noise, or a very large ε)."""
    step_range = max(_loss_range(m) for m in composition)
    interval = max(_INTERVAL, step_range / _STEP_POINTS, min(epsilon_bound, 1e12) / _TOTAL_POINTS)
    return float(_INTERVAL * 10 ** max(0, math.ceil(math.log10(interval / _INTERVAL))))


def _loss_range(mechanism: SampledGaussian) -> float:
    """Return about the range of privacy losses on one step's grid, for noise of up to ten standard deviations."""
    sample_rate, noise_multiplier = mechanism.sample_rate, mechanism.noise_multiplier
    if sample_rate == 1:
        noise_multiplier /= math.sqrt(mechanism.steps)  # composed in closed form, below
    unsampled = 10 / noise_multiplier + 0.5 / noise_multiplier**2
    lowest = unsampled if sample_rate == 1 else min(unsampled, -math.log1p(-sample_rate))
    return max(0.0, unsampled + math.log(sample_rate)) + lowest


def _composed_pld(mechanism: SampledGaussian, interval: float) -> pld.PrivacyLossDistribution:
    if mechanism.sample_rate == 1:
        # T Gaussian releases equal one at σ/√T (Dong, Roth & Su 2022, Corollary 3.3), without composition error.
        return _single_pld(1.0, mechanism.noise_multiplier / math.sqrt(mechanism.steps), interval)
    single = _single_pld(mechanism.sample_rate, mechanism.noise_multiplier, interval)
    if mechanism.steps < _BLOCKS_FROM:
        return single.self_compose(mechanism.steps)
    # dp-accounting computes (grid points)^steps as an exact integer, which is slow for millions of steps. Composing in
    # blocks is quick. It cuts the tails once more, which only adds infinite loss.
    blocks, rest = divmod(mechanism.steps, _BLOCK)
    total = single.self_compose(_BLOCK).self_compose(blocks)
    return total.compose(single.self_compose(rest)) if rest else total


@lru_cache(maxsize=32)
def _single_pld(sample_rate: float, noise_multiplier: float, interval: float) -> pld.PrivacyLossDistribution:
    return pld.from_gaussian_mechanism(
        standard_deviation=noise_multiplier,
        sampling_prob=sample_rate,
        value_discretization_interval=interval,
        log_mass_truncation_bound=_LOG_TRUNCATED_MASS,
        pessimistic_estimate=True,
    )


RDP_PAPER: Final = Accountant(epsilon=_rdp_paper_epsilon)
RDP: Final = Accountant(epsilon=_rdp_epsilon)
PLD: Final = Accountant(
    epsilon=_pld_epsilon,
    guesses=(_rdp_epsilon, partial(_pld_epsilon, coarser=20), _extrapolated_pld_epsilon),
    quick=partial(_pld_epsilon, coarser=10),
)
