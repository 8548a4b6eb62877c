"""Bound μ and ε from below by counted errors and guesses. Pure statistics: no torch, no data, no randomness."""

import math

import numpy as np
from scipy.special import bdtrik, betainc, betainccinv, gammaln, ndtr, ndtri, xlog1py, xlogy

_SURE = 0.999  # probability with which an audit "catches" too little noise
_LARGEST_RATIO = 1000.0
_LARGEST_EPSILON = 50.0
_HALVINGS = 60


def upper_proportion(count: int, total: int, error: float) -> float:
    """Return Clopper & Pearson's upper bound on a probability, after `count` events in `total` trials.

    The true probability exceeds the bound with probability `error` at most.

    >>> round(upper_proportion(0, 100, 0.05), 4)  # about 3 / total: the rule of three
    0.0295
    """
    return 1.0 if count >= total else float(betainccinv(count + 1, total - count, error))


def gaussian_parameter_bound(false_positives: int, false_negatives: int, draws: int, confidence: float) -> float:
    """Return a lower bound on μ of a mechanism; 0 if nothing is shown.

    No test of a μ-GDP mechanism has Φ⁻¹(1 − FPR) + Φ⁻¹(1 − FNR) above μ (Dong, Roth & Su 2022, definition 2.6 and
    equation 6). Both rates are bounded from above, each with half of the error that `confidence` leaves.

    Args:
        false_positives: wrong guesses without the canary.
        false_negatives: wrong guesses with the canary.
        draws: guesses in each of the two arms.
        confidence: probability that the bound holds.

    >>> round(gaussian_parameter_bound(668, 668, 10_000, 0.9999), 2)  # errors of two Gaussians 3 σ apart
    2.85
    """
    error = (1 - confidence) / 2
    rates = [upper_proportion(count, draws, error) for count in (false_positives, false_negatives)]
    return max(0.0, -sum(float(ndtri(rate)) for rate in rates))


def caught_ratio(*, claimed: float, distance: float, copies: int, draws: int, confidence: float) -> float | None:
    """Return the factor by which σ must be too small for 999 of 1000 audits to notice; None if 1000 would pass.

    Args:
        claimed: μ of one record, 1/σ.
        distance: between the two arms, in standard deviations of the claimed noise.
        copies: number of canaries; μ of the group is `copies` times that of one.
        draws: guesses in each arm.
        confidence: probability that the bound on μ holds.
    """

    def is_caught(ratio: float) -> bool:
        errors = math.ceil(max(0.0, bdtrik(_SURE, draws, ndtr(-distance * ratio / 2))))
        return gaussian_parameter_bound(errors, errors, draws, confidence) > copies * claimed

    if not is_caught(_LARGEST_RATIO):
        return None
    low, high = 0.0, _LARGEST_RATIO
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_caught(middle) else (middle, high)
    return high


def one_run_p_value(*, canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on the probability of so many correct guesses, if the training is (ε, δ)-DP.

    Steinke, Nasr & Jagielski 2023, theorem 5.2: β + α m δ with β = P[W >= v], α = max_i (2/i) P[v > W >= v − i]. W is
    binomial: `guesses` coins, each right with probability e^ε / (1 + e^ε).

    Args:
        canaries: m; each was included by its own fair coin.
        guesses: how many of the coins were guessed.
        correct: v, the number of correct guesses.
        epsilon: ε of the claim.
        delta: δ of the claim.

    >>> one_run_p_value(canaries=100, guesses=10, correct=0, epsilon=1.0, delta=0.0)
    1.0
    """
    right = 1 / (1 + math.exp(-epsilon))
    if correct == 0:
        return 1.0
    tail = float(betainc(correct, guesses - correct + 1, right))  # P[W >= v]
    numbers = np.arange(1, correct + 1)
    wins, losses = correct - numbers, guesses - correct + numbers
    ways = gammaln(guesses + 1) - gammaln(wins + 1) - gammaln(losses + 1)
    below = np.cumsum(np.exp(ways + xlogy(wins, right) + xlog1py(losses, -right)))  # P[v > W >= v − i]
    return min(1.0, tail + float((2 * below / numbers).max()) * canaries * delta)


def one_run_epsilon_bound(*, canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """Return a lower bound on ε of a training; 0 if nothing is shown.

    It holds with probability `confidence`. The other arguments are those of `one_run_p_value`.

    >>> round(one_run_epsilon_bound(canaries=1000, guesses=100, correct=95, delta=1e-5, confidence=0.95), 2)
    2.17
    """

    def is_refuted(epsilon: float) -> bool:
        found = one_run_p_value(canaries=canaries, guesses=guesses, correct=correct, epsilon=epsilon, delta=delta)
        return found <= 1 - confidence

    if not is_refuted(0.0):
        return 0.0
    low, high = 0.0, _LARGEST_EPSILON
    for _ in range(_HALVINGS):  # `low` stays refuted: the safe end
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low
