"""Gaussian differential privacy in closed form (Dong, Roth & Su 2022): quick, close, and for guesses only.

What many small steps cost tends to what one Gaussian release costs (their central limit theorem). That is a limit and
no bound: it proposes noise and steps, and an accountant always has the last word.
"""

import math

from alidpfl.privacy.budget import PrivacyBudget

_LEAST, _MOST = 1e-8, 1e4


def gaussian_parameter(budget: PrivacyBudget) -> float:
    """μ of the Gaussian release N(0, 1/μ²), sensitivity 1, that costs exactly (ε, δ).

    >>> round(gaussian_parameter(PrivacyBudget(epsilon=2.0, delta=1e-5)), 3)
    0.502
    """
    low, high = _LEAST, _MOST
    for _ in range(200):
        middle = math.sqrt(low * high)
        if gaussian_delta(middle, budget.epsilon) <= budget.delta:
            low = middle
        else:
            high = middle
    return low


def gaussian_delta(parameter: float, epsilon: float) -> float:
    """δ(ε) of μ-GDP: Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) (Corollary 2.13).

    >>> round(gaussian_delta(1.0, 0.0), 4)
    0.3829
    """
    if epsilon > 700:  # noqa: PLR2004 (e^ε ends there; the second term only lowers δ)
        return _normal(parameter / 2 - epsilon / parameter)
    return _normal(parameter / 2 - epsilon / parameter) - math.exp(epsilon) * _normal(
        -parameter / 2 - epsilon / parameter
    )


def limiting_noise(budget: PrivacyBudget, sample_rate: float, steps: float) -> float:
    """σ at which q √(T (e^{1/σ²} − 1)) = μ (Corollary 5.4): about what T steps need.

    >>> round(limiting_noise(PrivacyBudget(epsilon=2.0, delta=1e-5), 0.25, 158), 1)
    6.3
    """
    return 1 / math.sqrt(math.log1p((gaussian_parameter(budget) / sample_rate) ** 2 / steps))


def _normal(x: float) -> float:
    """Φ."""
    return math.erfc(-x / math.sqrt(2)) / 2
