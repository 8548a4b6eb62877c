"""Gaussian differential privacy in closed form (Dong, Roth & Su 2022).

It is exact for releases without sampling. By their central limit theorem the cost of many small sampled steps tends to
the cost of one release. That is a limit and not a bound. It proposes noise and steps; an accountant always decides.
"""

import math

from scipy.special import erfcx

from alidpfl.privacy.budget import PrivacyBudget

_MAX_EXPONENT = 700  # e^ε overflows beyond
_FEW_DEVIATIONS = -5.0


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
    low, high = epsilon / parameter - parameter / 2, epsilon / parameter + parameter / 2
    if low > _FEW_DEVIATIONS:
        # Both terms share the factor e^{−low²/2}. Without it their difference keeps its digits, however small δ is.
        return math.exp(-(low**2) / 2) * float(erfcx(low / math.sqrt(2)) - erfcx(high / math.sqrt(2))) / 2
    if epsilon > _MAX_EXPONENT:  # the second term only lowers δ
        return _normal(-low)
    return _normal(-low) - math.exp(epsilon) * _normal(-high)


def gaussian_epsilon(parameter: float, delta: float) -> float:
    """Return an upper bound of ε at δ of μ-GDP, at most 1e-7 of it too large.

    >>> round(gaussian_epsilon(0.502, 1e-5), 2), round(gaussian_epsilon(0.502, 1e-15), 2)
    (2.0, 3.93)
    """
    if gaussian_delta(parameter, 0.0) <= delta:
        return 0.0
    low, high = 0.0, parameter**2 / 2 + parameter * math.sqrt(-2 * math.log(delta))  # Chernoff's bound
    while high - low > 1e-8 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(parameter, middle) <= delta else (middle, high)
    return high * (1 + 5e-8)  # far more than the rounding of δ(ε)


def limiting_noise(budget: PrivacyBudget, sample_rate: float, steps: float) -> float:
    """Return σ with q √(T (e^{1/σ²} − 1)) = μ (Corollary 5.4): about the noise that T steps need.

    >>> round(limiting_noise(PrivacyBudget(epsilon=2.0, delta=1e-5), 0.25, 158), 1)
    6.3
    """
    return 1 / math.sqrt(math.log1p((gaussian_parameter(budget) / sample_rate) ** 2 / steps))


def _normal(x: float) -> float:
    """Return Φ(x)."""
    return math.erfc(-x / math.sqrt(2)) / 2
