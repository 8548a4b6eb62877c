"""The three questions: what does it cost, how many steps does a budget pay for, how much noise do steps need."""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache

from alidpfl.errors import BudgetExceededError
from alidpfl.inputs import checks
from alidpfl.privacy.accountants import Epsilon, ladder, quick_bound
from alidpfl.privacy.budget import PrivacyBudget, checked_delta
from alidpfl.privacy.gaussian_dp import limiting_noise
from alidpfl.privacy.mechanisms import (
    MAX_NOISE_MULTIPLIER,
    MAX_STEPS,
    MIN_NOISE_MULTIPLIER,
    Composition,
    Mechanism,
    SampledGaussian,
    checked_sample_rate,
    merged,
)
from alidpfl.privacy.step_search import largest_affordable, nearly_least

NOISE_TOLERANCE = 1e-4
"""`noise_multiplier_for` returns a multiple of this."""

_GRID = round(1 / NOISE_TOLERANCE)


def epsilon(mechanisms: Iterable[Mechanism], delta: float, accountant: str = "pld") -> float:
    """ε at δ of everything in `mechanisms`, in any order; an upper bound, infinite if there is none.

    Steps may differ in sampling rate and noise, provided both were fixed in advance; noise chosen by looking at
    outputs needs `RdpFilter`.

    >>> steps = SampledGaussian(sample_rate=0.015, noise_multiplier=1.1, steps=314)
    >>> round(epsilon([steps], delta=1e-5, accountant="rdp-paper"), 2)
    2.0
    >>> epsilon([], delta=1e-5)
    0.0
    """
    return _epsilon(merged(mechanisms), checked_delta(delta), accountant)


def epsilon_bound(mechanisms: Iterable[Mechanism], delta: float, accountant: str = "pld") -> float:
    """As `epsilon`, never less and hardly more (below 0.1 %), ten times as fast: for reports while training goes on.

    >>> steps = SampledGaussian(sample_rate=0.015, noise_multiplier=1.1, steps=314)
    >>> 1.3512 < epsilon([steps], delta=1e-5) <= epsilon_bound([steps], delta=1e-5) < 1.3525
    True
    """
    return _epsilon_bound(merged(mechanisms), checked_delta(delta), accountant)


def max_steps(
    budget: PrivacyBudget,
    sample_rate: float,
    noise_multiplier: float,
    *,
    accountant: str = "pld",
    already_spent: Iterable[Mechanism] = (),
) -> int:
    """R_c of Algorithm 3: the most DP-SGD steps T that the budget pays for, ε(T) <= ε < ε(T + 1).

    Both ends are computed, not inferred, unless the answer is `MAX_STEPS`: a budget that pays for more than ten
    million steps counts as paying for ten million. Raises BudgetExceededError if it does not pay for one.

    >>> max_steps(PrivacyBudget(epsilon=2.0, delta=1e-5), 0.015, 1.1, accountant="rdp-paper")
    314
    """
    step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier)
    return _max_steps(budget, step, accountant, merged(already_spent))


def no_step_error(
    budget: PrivacyBudget, step: SampledGaussian, accountant: str, spent: Composition = ()
) -> BudgetExceededError:
    """Says that not one step is paid for, and which ε would do. No search for σ: whoever probes budgets meets many."""
    needed = _epsilon(merged([*spent, step]), budget.delta, accountant)
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
    """The least noise multiplier σ, a multiple of 0.0001, at which the budget pays for `steps` DP-SGD steps.

    ε(σ) <= ε < ε(σ − 0.0001), both computed: the result never overspends.

    >>> noise_multiplier_for(PrivacyBudget(epsilon=2.0, delta=1e-5), 0.015, 314, accountant="rdp-paper")
    1.1
    """
    sample_rate = checked_sample_rate(sample_rate)
    steps = checks.whole("steps", steps, low=1, high=MAX_STEPS)
    return _noise_multiplier_for(budget, sample_rate, steps, accountant, merged(already_spent))


def noise_multiplier_bound(budget: PrivacyBudget, sample_rate: float, steps: int, *, accountant: str = "pld") -> float:
    """As `noise_multiplier_for`, never less and hardly more (1 %), several times as fast: for comparing many.

    >>> budget = PrivacyBudget(epsilon=2.0, delta=1e-5)
    >>> exact, quick = 6.3975, noise_multiplier_bound(budget, 0.25, 158)
    >>> exact <= quick < 1.003 * exact
    True
    """
    sample_rate = checked_sample_rate(sample_rate)
    steps = checks.whole("steps", steps, low=1, high=MAX_STEPS)
    return _noise_multiplier_bound(budget, sample_rate, steps, accountant)


@lru_cache(maxsize=1024)
def _epsilon(composition: Composition, delta: float, accountant: str) -> float:
    of = ladder(accountant)[-1]
    return of(composition, delta) if composition else 0.0


@lru_cache(maxsize=1024)
def _epsilon_bound(composition: Composition, delta: float, accountant: str) -> float:
    return quick_bound(accountant)(composition, delta) if composition else 0.0


@lru_cache(maxsize=1024)
def _max_steps(budget: PrivacyBudget, step: SampledGaussian, accountant: str, spent: Composition) -> int:
    _refuse_if_overspent(budget, spent, accountant)

    def composition(steps: int) -> Composition:
        return merged([*spent, *_repeated(step, steps)])

    def cost_by(rung: Epsilon) -> Callable[[int], float]:
        return lambda steps: rung(composition(steps), budget.delta)

    guess, high = 1, MAX_STEPS - _steps_of(spent, like=step)
    for rung in ladder(accountant):
        guess = largest_affordable(cost_by(rung), budget.epsilon, low=0, high=high, guess=guess)
    if guess == 0:
        raise no_step_error(budget, step, accountant, spent)
    return guess


@lru_cache(maxsize=1024)
def _noise_multiplier_for(
    budget: PrivacyBudget, sample_rate: float, steps: int, accountant: str, spent: Composition
) -> float:
    _refuse_if_overspent(budget, spent, accountant)
    largest = round(MAX_NOISE_MULTIPLIER * _GRID)

    def cost_by(rung: Epsilon, noise: Callable[[int], float]) -> Callable[[int], float]:
        return lambda n: rung(
            merged([*spent, SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise(n), steps=steps)]),
            budget.delta,
        )

    def on_grid(less: int) -> float:  # ε never falls with `less`, as the search needs
        return (largest - less) / _GRID

    def geometric(n: int) -> float:  # to within 5 %, quickly, for a first guess
        return max(MAX_NOISE_MULTIPLIER * 1.05**-n, MIN_NOISE_MULTIPLIER)

    rungs = ladder(accountant)
    if cost_by(rungs[-1], on_grid)(0) > budget.epsilon:
        raise _never_enough(budget, steps)
    first = largest_affordable(cost_by(rungs[0], geometric), budget.epsilon, low=0, high=424, guess=280)
    guess = largest - math.ceil(geometric(first) * _GRID)
    high = largest - round(MIN_NOISE_MULTIPLIER * _GRID)
    for rung in rungs:
        guess = largest_affordable(cost_by(rung, on_grid), budget.epsilon, low=0, high=high, guess=guess)
    return on_grid(guess)


@lru_cache(maxsize=1024)
def _noise_multiplier_bound(budget: PrivacyBudget, sample_rate: float, steps: int, accountant: str) -> float:
    def cost(noise: float) -> float:
        step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise, steps=steps)
        return cost_of((step,), budget.delta)

    # The quick bound's error, of about a thousandth, would be much of a small ε.
    cost_of = quick_bound(accountant) if budget.epsilon >= 1 else ladder(accountant)[-1]
    guess = math.ceil(limiting_noise(budget, sample_rate, steps) * _GRID) / _GRID
    found = nearly_least(
        cost, budget.epsilon, low=MIN_NOISE_MULTIPLIER, high=MAX_NOISE_MULTIPLIER, guess=guess, tolerance=2e-3
    )
    if found is None:
        raise _never_enough(budget, steps)
    return math.ceil(found * _GRID) / _GRID  # a little more noise is no less private


def _never_enough(budget: PrivacyBudget, steps: int) -> BudgetExceededError:
    return BudgetExceededError(
        f"no noise multiplier up to {MAX_NOISE_MULTIPLIER:g} makes steps={steps} fit in epsilon="
        f"{budget.epsilon:g} at delta={budget.delta:g}: ask for fewer steps or raise epsilon"
    )


def _repeated(step: SampledGaussian, steps: int) -> tuple[SampledGaussian, ...]:
    if steps == 0:
        return ()
    return (SampledGaussian(sample_rate=step.sample_rate, noise_multiplier=step.noise_multiplier, steps=steps),)


def _steps_of(spent: Composition, *, like: SampledGaussian) -> int:
    return sum(
        m.steps for m in spent if (m.sample_rate, m.noise_multiplier) == (like.sample_rate, like.noise_multiplier)
    )


def _refuse_if_overspent(budget: PrivacyBudget, spent: Composition, accountant: str) -> None:
    cost = _epsilon(spent, budget.delta, accountant)
    if cost > budget.epsilon:
        raise BudgetExceededError(
            f"already_spent costs epsilon={_rounded_up(cost)} by {accountant}, more than the budget's "
            f"epsilon={budget.epsilon:g} at delta={budget.delta:g}: nothing is left; raise epsilon or stop"
        )


def _rounded_up(value: float) -> str:
    """Four digits, never less than the value: a remedy that works when it is followed."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit + 1e-6) * unit:.4g}"
