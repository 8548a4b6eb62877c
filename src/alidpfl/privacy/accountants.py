"""ε of a composition by three accountants, all through dp-accounting, each an upper bound that errs on the safe side.

| name | bound |
| --- | --- |
| `rdp-paper` | Rényi DP at the paper's orders, ε = R(α) + log(1/δ)/(α−1) (Mironov 2017, Proposition 3) |
| `rdp` | the same orders, the tighter conversion of Canonne, Kamath & Steinke 2020, Proposition 12 |
| `pld` | privacy loss distributions, "connect the dots" (Doroshenko et al. 2022); `rdp` where that is less |
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from dp_accounting import rdp
from dp_accounting.pld import privacy_loss_distribution as pld

from alidpfl.inputs.names import named
from alidpfl.privacy.mechanisms import Composition, SampledGaussian

ORDERS: Final = (*range(2, 64), 128, 256, 512)
"""The Rényi orders α of the paper's reference code."""

Epsilon: TypeAlias = Callable[[Composition, float], float]
"""ε of a composition that is not empty, at δ; infinite if it has no bound, never NaN."""


def ladder(accountant: str) -> tuple[Epsilon, ...]:
    """The accountant's ε last, and before it, cheapest first, others whose answers are good guesses of its own."""
    return named("accountant", accountant, _LADDERS)


def quick_bound(accountant: str) -> Epsilon:
    """The accountant's ε, or a bound of it that takes a tenth of the time and is hardly larger."""
    exact = ladder(accountant)[-1]
    return partial(_pld_epsilon, coarser=10) if exact is _pld_epsilon else exact


# ---------------------------------------------------------------------------------------------------------- Rényi DP


@lru_cache(maxsize=4096)
def rdp_of_step(
    sample_rate: float, noise_multiplier: float, orders: tuple[int, ...] = ORDERS
) -> npt.NDArray[np.float64]:
    """R(α) of one step at each order (Mironov, Talwar & Zhang 2019, section 3.3), rounded up; read-only."""
    step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier)
    computed = rdp.RdpAccountant(list(orders)).compose(step.event).rdp
    # dp-accounting's sum of logarithms is off by up to 5e-16 either way, and it reads a negative R(α) as ε = 0: large
    # σ or small q would then be free for ever. Rounding up by far more than the error costs nothing that matters.
    rounded_up: npt.NDArray[np.float64] = np.maximum(computed, 0.0) * (1 + 1e-12) + 1e-14
    rounded_up.flags.writeable = False
    return rounded_up


def _rdp(composition: Composition) -> npt.NDArray[np.float64]:
    steps = (m.steps * rdp_of_step(m.sample_rate, m.noise_multiplier) for m in composition)
    total: npt.NDArray[np.float64] = np.sum(list(steps), axis=0)
    return total


def _rdp_epsilon(composition: Composition, delta: float) -> float:
    return converted(ORDERS, _rdp(composition), delta)


def converted(orders: tuple[int, ...], renyi: npt.NDArray[np.float64], delta: float) -> float:
    """ε at δ of what is (α, R(α))-RDP at these orders (Canonne et al. 2020, Proposition 12)."""
    return float(rdp.compute_epsilon(orders, renyi, delta)[0])


def _rdp_paper_epsilon(composition: Composition, delta: float) -> float:
    # ε = min over α of R(α) + log(1/δ)/(α−1): Mironov 2017, Proposition 3.
    return float(np.min(_rdp(composition) - math.log(delta) / (np.array(ORDERS) - 1)))


# ------------------------------------------------------------------------------------------ privacy loss distributions

_INTERVAL: Final = 1e-4  # of privacy loss between two points of the grid
_STEP_POINTS, _TOTAL_POINTS = 5e5, 1e7  # of the grid, for one step and for all: seconds and a few hundred megabytes
# Noise of probability e^-40 is cut off and counted as infinite loss: pessimistic, 4e-11 at most in δ over MAX_STEPS.
# dp-accounting's own e^-50 makes every array a quarter longer.
_LOG_TRUNCATED_MASS: Final = -40.0
_BLOCK, _BLOCKS_FROM = 1024, 100_000


def _pld_epsilon(composition: Composition, delta: float, *, coarser: int = 1) -> float:
    """The smaller of two valid bounds: the loss distribution's, and Rényi DP's.

    The second wins where the grid is too coarse (a step whose loss is far below the interval) or δ is near the
    rounding error of the Fourier transforms.
    """
    bound = _rdp_epsilon(composition, delta)
    # Fourier transforms leave up to about 1e-13 + 3e-17 T of error in δ(ε) (measured), either way: pay it from δ.
    delta_left = delta - 1e-12 - 1e-16 * sum(m.steps for m in composition)
    if delta_left <= 0:
        return bound
    interval = coarser * _interval(composition, bound)
    try:
        total, *others = (_composed_pld(m, interval) for m in composition)
        for other in others:
            total = total.compose(other)
        tight = float(total.get_epsilon_for_delta(delta_left))
    except (ArithmeticError, ValueError):  # dp-accounting gives up on losses beyond a float's exponent
        return bound
    return tight if tight < bound else bound


def _coarse_pld_epsilon(composition: Composition, delta: float) -> float:
    return _pld_epsilon(composition, delta, coarser=20)


def _extrapolated_pld_epsilon(composition: Composition, delta: float) -> float:
    """Richardson: connecting the dots adds variance in proportion to interval². A guess, and no bound."""
    finer, coarser = (_pld_epsilon(composition, delta, coarser=times) for times in (10, 20))
    return finer - (coarser - finer) / 3 if coarser < math.inf else finer


def _interval(composition: Composition, epsilon_bound: float) -> float:
    """1e-4, or as many times ten as keep the grid within memory (little noise, or a very large ε)."""
    step_range = max(_loss_range(m) for m in composition)
    interval = max(_INTERVAL, step_range / _STEP_POINTS, min(epsilon_bound, 1e12) / _TOTAL_POINTS)
    return float(_INTERVAL * 10 ** max(0, math.ceil(math.log10(interval / _INTERVAL))))


def _loss_range(mechanism: SampledGaussian) -> float:
    """About how far apart the privacy losses on one step's grid are, at noise of up to ten standard deviations."""
    sample_rate, noise_multiplier = mechanism.sample_rate, mechanism.noise_multiplier
    if sample_rate == 1:
        noise_multiplier /= math.sqrt(mechanism.steps)  # composed in closed form, below
    unsampled = 10 / noise_multiplier + 0.5 / noise_multiplier**2
    lowest = unsampled if sample_rate == 1 else min(unsampled, -math.log1p(-sample_rate))
    return max(0.0, unsampled + math.log(sample_rate)) + lowest


def _composed_pld(mechanism: SampledGaussian, interval: float) -> pld.PrivacyLossDistribution:
    if mechanism.sample_rate == 1:
        # T Gaussian releases are one at σ/√T (Dong, Roth & Su 2022, Corollary 3.3): no composition error.
        return _single_pld(1.0, mechanism.noise_multiplier / math.sqrt(mechanism.steps), interval)
    single = _single_pld(mechanism.sample_rate, mechanism.noise_multiplier, interval)
    if mechanism.steps < _BLOCKS_FROM:
        return single.self_compose(mechanism.steps)
    # dp-accounting raises the number of grid points to the number of steps, as an exact integer: slow for
    # millions of steps. In blocks it is quick, and the tails cut off once more only add infinite loss.
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


_LADDERS: Final[dict[str, tuple[Epsilon, ...]]] = {
    "rdp-paper": (_rdp_paper_epsilon,),
    "rdp": (_rdp_epsilon,),
    "pld": (_rdp_epsilon, _coarse_pld_epsilon, _extrapolated_pld_epsilon, _pld_epsilon),
}

ACCOUNTANTS: Final = tuple(_LADDERS)
"""The accountants' names, loosest bound first."""
