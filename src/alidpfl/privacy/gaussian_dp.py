"""Gaussian differential privacy in closed form (Dong, Roth & Su 2022), for first guesses only.

By their central limit theorem the cost of many small steps tends to the cost of one Gaussian release. That is a limit
and not a bound. It proposes noise and steps; an accountant always decides.
"""

import math

from alidpfl.privacy.budget import PrivacyBudget

_MAX_EXPONENT = 700  # e^ε overflows beyond


def gaussian_parameter(budget: PrivacyBudget) -> float:
    """Return μ of the Gaussian release N(0, 1/μ²) with sensitivity 1 that costs exactly (ε, δ).

    >>> round(gaussian_parameter(PrivacyBudget(epsilon=2.0, delta=1e-5)), 3)
    0.502
    """
    low, high = 1e-8, 1e4
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_delta(middle, budget.epsilon) <= budget.delta else (low, middle)
    return low


def gaussian_delta(parameter: float, epsilon: float) -> float:
    """Return δ(ε) of μ-GDP: Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) (Corollary 2.13)."""
    first = _normal(parameter / 2 - epsilon / parameter)
    if epsilon > _MAX_EXPONENT:  # the second term only lowers δ
        return first
    return first - math.exp(epsilon) * _normal(-parameter / 2 - epsilon / parameter)


def limiting_noise(budget: PrivacyBudget, sample_rate: float, steps: float) -> float:
    """Return σ with q √(T (e^{1/σ²} − 1)) = μ (Corollary 5.4): about the noise that T steps need.

    >>> round(limiting_noise(PrivacyBudget(epsilon=2.0, delta=1e-5), 0.25, 158), 1)
    6.3
    """
    return 1 / math.sqrt(math.log1p((gaussian_parameter(budget) / sample_rate) ** 2 / steps))


def _normal(x: float) -> float:
    """Return Φ(x)."""
    return math.erfc(-x / math.sqrt(2)) / 2
