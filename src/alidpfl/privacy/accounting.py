"""Answers three questions: what steps cost, how many steps a budget pays for, and how much noise steps need."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from alidpfl.errors import BudgetExceededError
from alidpfl.privacy.accountants import Accountant, Epsilon
from alidpfl.privacy.budget import PrivacyBudget, checked_delta
from alidpfl.privacy.gaussian_dp import limiting_noise
from alidpfl.privacy.mechanisms import (
    MAX_NOISE_MULTIPLIER,
    MAX_STEPS,
    MIN_NOISE_MULTIPLIER,
    Composition,
    Mechanism,
    SampledGaussian,
    merged,
)
from alidpfl.privacy.step_search import largest_affordable, nearly_least
from alidpfl.registry import ACCOUNTANTS

NOISE_TOLERANCE = 1e-4
"""`noise_multiplier_for` returns a multiple of this."""

_GRID = round(1 / NOISE_TOLERANCE)


def epsilon(mechanisms: Iterable[Mechanism], delta: float, accountant: str = "pld") -> float:
    """Return ε at δ of all `mechanisms` together, in any order; infinite if the accountant has no bound.

    Formal guarantee: the composition is (ε, δ)-differentially private, if sampling rates and noise were fixed in
    advance. They may differ from step to step. Noise that depends on outputs needs `RdpFilter`.

    >>> steps = SampledGaussian(sample_rate=0.015, noise_multiplier=1.1, steps=314)
    >>> round(epsilon([steps], delta=1e-5, accountant="rdp-paper"), 2)
    2.0
    """
    return _epsilon(merged(mechanisms), checked_delta(delta), accountant)


def epsilon_bound(mechanisms: Iterable[Mechanism], delta: float, accountant: str = "pld") -> float:
    """Return an upper bound of `epsilon`, at most 0.1 % larger and several times as fast, for reports in training.

    >>> steps = SampledGaussian(sample_rate=0.015, noise_multiplier=1.1, steps=314)
    >>> 1.3512 < epsilon([steps], delta=1e-5) <= epsilon_bound([steps], delta=1e-5) < 1.3525
    True
    """
    return _epsilon(merged(mechanisms), checked_delta(delta), accountant, quick=True)


def max_steps(
    budget: PrivacyBudget,
    sample_rate: float,
    noise_multiplier: float,
    *,
    accountant: str = "pld",
    already_spent: Iterable[Mechanism] = (),
) -> int:
    """Return R_c of Algorithm 3: the largest number of DP-SGD steps that the budget pays for.

    Formal guarantee: ε(R_c) <= ε < ε(R_c + 1). Both ends are computed, except that a budget for more than `MAX_STEPS`
    steps counts as one for `MAX_STEPS`.

    Args:
        budget: (ε, δ) of one data set.
        sample_rate: q of each step.
        noise_multiplier: σ of each step.
        accountant: A name in `ACCOUNTANTS`.
        already_spent: Mechanisms that the budget has paid for already.

    Raises:
        BudgetExceededError: The budget does not pay for one step.

    >>> max_steps(PrivacyBudget(epsilon=2.0, delta=1e-5), 0.015, 1.1, accountant="rdp-paper")
    314
    """
    step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier)
    return _max_steps(budget, step, accountant, merged(already_spent))


def no_step_error(budget: PrivacyBudget, spent_and_step: Sequence[Mechanism], accountant: str) -> BudgetExceededError:
    """Return the error that a budget does not pay for one step, the last mechanism given. It names an ε that would.

    It does not search for a σ that would: callers that try many budgets get this error often.
    """
    step = merged(spent_and_step[-1:])[0]
    needed = _epsilon(merged(spent_and_step), budget.delta, accountant)
    return BudgetExceededError(
        f"epsilon={budget.epsilon:g} at delta={budget.delta:g} does not pay for one step at sample_rate="
        f"{step.sample_rate:g}, noise_multiplier={step.noise_multiplier:g} by {accountant}: raise epsilon to "
        f"{_rounded_up(needed)} or more, or noise_multiplier"
    )


def noise_multiplier_for(
    budget: PrivacyBudget,
    sample_rate: float,
    steps: int,
    *,
    accountant: str = "pld",
    already_spent: Iterable[Mechanism] = (),
) -> float:
    """Return the least noise multiplier σ, a multiple of 0.0001, at which the budget pays for `steps` DP-SGD steps.

    Formal guarantee: ε(σ) <= ε < ε(σ − 0.0001). Both ends are computed.

    Args:
        budget: (ε, δ) of one data set.
        sample_rate: q of each step.
        steps: Number of steps.
        accountant: A name in `ACCOUNTANTS`.
        already_spent: Mechanisms that the budget has paid for already.

    Raises:
        BudgetExceededError: No accepted noise multiplier is large enough.

    >>> noise_multiplier_for(PrivacyBudget(epsilon=2.0, delta=1e-5), 0.015, 314, accountant="rdp-paper")
    1.1
    """
    step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=MAX_NOISE_MULTIPLIER, steps=steps)
    return _noise_multiplier_for(budget, step, accountant, merged(already_spent))


def noise_multiplier_bound(budget: PrivacyBudget, sample_rate: float, steps: int, *, accountant: str = "pld") -> float:
    """Return an upper bound of `noise_multiplier_for`, at most 1 % larger and several times as fast.

    Args:
        budget: (ε, δ) of one data set.
        sample_rate: q of each step.
        steps: Number of steps.
        accountant: A name in `ACCOUNTANTS`.

    Raises:
        BudgetExceededError: No accepted noise multiplier is large enough.

    >>> budget = PrivacyBudget(epsilon=2.0, delta=1e-5)
    >>> 6.3975 <= noise_multiplier_bound(budget, 0.25, 158) < 1.003 * 6.3975  # 6.3975 by `noise_multiplier_for`
    True
    """
    step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=MAX_NOISE_MULTIPLIER, steps=steps)
    return _noise_multiplier_bound(budget, step, accountant)


@lru_cache(maxsize=1024)
def _epsilon(composition: Composition, delta: float, accountant: str, *, quick: bool = False) -> float:
    found: Accountant = ACCOUNTANTS[accountant]
    function = found.quick if quick and found.quick else found.epsilon
    return function(composition, delta) if composition else 0.0


@lru_cache(maxsize=1024)
def _max_steps(budget: PrivacyBudget, step: SampledGaussian, accountant: str, spent: Composition) -> int:
    _refuse_if_overspent(budget, spent, accountant)

    def cost_by(function: Epsilon) -> Callable[[int], float]:
        return lambda steps: function(merged([*spent, replace(step, steps=steps)]), budget.delta)

    equal_steps = sum(mechanism.steps for mechanism in spent if replace(mechanism, steps=1) == step)
    guess, high = 1, MAX_STEPS - equal_steps
    for function in _search_functions(accountant):
        guess = largest_affordable(cost_by(function), budget.epsilon, low=0, high=high, guess=guess)
    if guess == 0:
        raise no_step_error(budget, [*spent, step], accountant)
    return guess


@lru_cache(maxsize=1024)
def _noise_multiplier_for(budget: PrivacyBudget, step: SampledGaussian, accountant: str, spent: Composition) -> float:
    _refuse_if_overspent(budget, spent, accountant)
    largest = round(MAX_NOISE_MULTIPLIER * _GRID)

    def cost_by(function: Epsilon, noise: Callable[[int], float]) -> Callable[[int], float]:
        return lambda n: function(merged([*spent, replace(step, noise_multiplier=noise(n))]), budget.delta)

    def on_grid(less: int) -> float:  # ε never falls with `less`, as the search requires
        return (largest - less) / _GRID

    def geometric(n: int) -> float:  # to within 5 %, quickly, for a first guess
        return max(MAX_NOISE_MULTIPLIER * 1.05**-n, MIN_NOISE_MULTIPLIER)

    functions = _search_functions(accountant)
    if cost_by(functions[-1], on_grid)(0) > budget.epsilon:
        raise _never_enough(budget, step.steps)
    first = largest_affordable(cost_by(functions[0], geometric), budget.epsilon, low=0, high=424, guess=280)
    guess = largest - math.ceil(geometric(first) * _GRID)
    high = largest - round(MIN_NOISE_MULTIPLIER * _GRID)
    for function in functions:
        guess = largest_affordable(cost_by(function, on_grid), budget.epsilon, low=0, high=high, guess=guess)
    return on_grid(guess)


@lru_cache(maxsize=1024)
def _noise_multiplier_bound(budget: PrivacyBudget, step: SampledGaussian, accountant: str) -> float:
    # The quick bound's error of about a thousandth would be much of a small ε.
    quick = budget.epsilon >= 1
    guess = math.ceil(limiting_noise(budget, step.sample_rate, step.steps) * _GRID) / _GRID
    found = nearly_least(
        lambda noise: _epsilon((replace(step, noise_multiplier=noise),), budget.delta, accountant, quick=quick),
        budget.epsilon,
        low=MIN_NOISE_MULTIPLIER,
        high=MAX_NOISE_MULTIPLIER,
        guess=guess,
        tolerance=2e-3,
    )
    if found is None:
        raise _never_enough(budget, step.steps)
    return math.ceil(found * _GRID) / _GRID  # rounding up adds noise, which is no less private


def _search_functions(accountant: str) -> tuple[Epsilon, ...]:
    found: Accountant = ACCOUNTANTS[accountant]
    return (*found.guesses, found.epsilon)


def _never_enough(budget: PrivacyBudget, steps: int) -> BudgetExceededError:
    return BudgetExceededError(
        f"no noise multiplier up to {MAX_NOISE_MULTIPLIER:g} makes steps={steps} fit in epsilon="
        f"{budget.epsilon:g} at delta={budget.delta:g}: ask for fewer steps or raise epsilon"
    )


def _refuse_if_overspent(budget: PrivacyBudget, spent: Composition, accountant: str) -> None:
    if (cost := _epsilon(spent, budget.delta, accountant)) > budget.epsilon:
        raise BudgetExceededError(
            f"already_spent costs epsilon={_rounded_up(cost)} by {accountant}, more than the budget's "
            f"epsilon={budget.epsilon:g} at delta={budget.delta:g}: nothing is left; raise epsilon or stop"
        )


def _rounded_up(value: float) -> str:
    """Return four digits, never less than the value, so that the remedy in an error works."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit + 1e-6) * unit:.4g}"
