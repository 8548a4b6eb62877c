"""Search for the sampling rate q, noise multiplier σ and local steps τ with the best use of a privacy budget.

T steps at rate q with noise σ move the model by T times a signal of at most ηC, and by √T times a noise. The noise is
averaged over N clients, weighted by their records n_i out of n. Its squared norm is
Σ (n_i/n)² η² (σ²C²d/(q n_i)² + C²(1−q)/(q n_i)). The n_i cancel, so the split of the records does not matter. The
search maximises the ratio of signal and noise, which does not depend on η or C:

    signal-to-noise = √T / sqrt(N σ²d/(qn)² + (1−q)/(qn))

At a given (ε, δ) this ratio grows with q, because more records share the noise added to a large batch. Its limit is
n · μ/√(Nd), the ratio of one release with the same budget (μ of Gaussian DP). The price of a larger q is compute: q·T
passes over the data. At equal compute, fewer steps with larger batches win. `PlanRequest.min_steps` is the fewest steps
with which a model can converge. The best τ is then the smallest that takes this many steps in R_s rounds.

The closed form of Gaussian DP proposes settings, and the accountant computes the noise of those that are kept. If σ is
given, the accountant computes the steps of every q instead: the closed form is far too optimistic at little noise.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from alidpfl.errors import BudgetExceededError, ConfigError
from alidpfl.inputs.checks import exact
from alidpfl.planner.request import PlanRequest
from alidpfl.policies import noise_power
from alidpfl.privacy import MAX_STEPS, max_steps, noise_multiplier_bound, noise_multiplier_for
from alidpfl.privacy.gaussian_dp import limiting_noise
from alidpfl.types import OnShare

NEAR_BEST = 0.97
"""Without a compute limit the planner recommends the cheapest setting with this share of the best signal-to-noise.
Beyond it, compute doubles for a gain of one or two per cent."""

_MANTISSAS = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
_MULTIPLES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_ROUNDING = 1 + 1e-9  # a value above a limit by rounding only is within it
_SHOWN = 12  # settings that get the accountant's noise, which takes half a second each
# Shares of the best signal-to-noise. Settings below the first are too noisy to show. The front ends at the cheapest
# setting above the second, or above the third if the user set a compute limit and so means to use it.
_TOO_NOISY, _ENOUGH, _ENOUGH_WITHIN_LIMIT = 0.25, 0.99, 0.999


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to spend the budget."""

    sample_rate: float
    noise_multiplier: float
    local_steps: int
    """τ = T / R_s, rounded down, at least 1."""
    steps: int
    """T: local steps that the budget must pay for."""
    signal_to_noise: float

    @property
    def epochs(self) -> float:
        """Compute q·T: passes of every client over its data."""
        return self.sample_rate * self.steps


def pareto_front(request: PlanRequest, rounds: int, on_progress: OnShare | None = None) -> list[Setting]:
    """Return the settings that no other setting beats in both compute and signal-to-noise, cheapest first.

    Their noise is safe: at least what the accountant requires, and at most 1 % more.

    Raises:
        ConfigError: No setting is within the compute limit.
        BudgetExceededError: The budget does not pay for any setting.
    """
    report = on_progress or (lambda _share: None)
    if request.noise_multiplier is not None:
        return _front_at_noise(request.noise_multiplier, request, rounds, report)
    proposed = _proposals(request, rounds)
    if not proposed:
        raise ConfigError(_no_setting_fits(request, rounds))
    thinned = _thinned(_undominated(proposed), _ENOUGH if request.max_epochs is None else _ENOUGH_WITHIN_LIMIT)
    found, refused = [], None
    for number, setting in enumerate(thinned):
        report(number / len(thinned))
        try:
            found.append(_calibrated(request, setting, noise_multiplier_bound))
        except BudgetExceededError as error:  # the closed form was too optimistic
            refused = error
    if not found and refused is not None:
        raise refused
    return _undominated(found)


def best_setting(request: PlanRequest, front: Sequence[Setting]) -> Setting:
    """Return the setting with the best signal-to-noise; without a compute limit, the cheapest one close to it."""
    best = max(setting.signal_to_noise for setting in front)
    enough = best if request.max_epochs is not None else NEAR_BEST * best
    return min((s for s in front if s.signal_to_noise >= enough), key=lambda setting: setting.epochs)


def choose_setting(
    request: PlanRequest, rounds: int, on_progress: OnShare | None = None
) -> tuple[Setting, list[Setting]]:
    """Return the recommended setting, with the least noise that the accountant admits, and the front it is on."""
    front = pareto_front(request, rounds, on_progress)
    best = best_setting(request, front)
    chosen = best if request.noise_multiplier is not None else _calibrated(request, best, noise_multiplier_for)
    return chosen, [chosen if setting is best else setting for setting in front]


def make_setting(request: PlanRequest, sample_rate: float, noise_multiplier: float, rounds: int, steps: int) -> Setting:
    """Return a setting with its derived values.

    Args:
        request: Clients, records and model size.
        sample_rate: q.
        noise_multiplier: σ.
        rounds: R_s.
        steps: T.
    """
    return Setting(
        sample_rate=sample_rate,
        noise_multiplier=noise_multiplier,
        local_steps=max(1, steps // rounds),
        steps=steps,
        signal_to_noise=signal_to_noise(request, sample_rate, noise_multiplier, steps),
    )


def signal_to_noise(request: PlanRequest, sample_rate: float, noise_multiplier: float, steps: float) -> float:
    """Return the signal-to-noise ratio of a whole run by the formula above.

    Args:
        request: Clients N, records n and model size d.
        sample_rate: q.
        noise_multiplier: σ.
        steps: T.
    """
    batch = sample_rate * request.samples
    noise = request.clients * noise_power(noise_multiplier, 1.0, request.num_params, batch) + (1 - sample_rate) / batch
    return math.sqrt(steps / noise)


def _calibrated(request: PlanRequest, setting: Setting, calibrate: Callable[..., float]) -> Setting:
    rate, steps = setting.sample_rate, setting.steps
    noise = calibrate(request.budget, rate, steps, accountant=request.accountant)
    return replace(setting, noise_multiplier=noise, signal_to_noise=signal_to_noise(request, rate, noise, steps))


def _proposals(request: PlanRequest, rounds: int) -> list[Setting]:
    """Return every q and τ on the grid within the compute limit, with noise from the closed form."""
    fewest = math.ceil(request.min_steps / rounds)
    found = [
        make_setting(request, rate, limiting_noise(request.budget, rate, steps), rounds, steps)
        for rate in _rates(request)
        for steps in (multiple * fewest * rounds for multiple in _MULTIPLES)
        if steps <= MAX_STEPS
    ]
    return [setting for setting in found if setting.epochs <= (request.max_epochs or math.inf) * _ROUNDING]


def _front_at_noise(noise: float, request: PlanRequest, rounds: int, report: OnShare) -> list[Setting]:
    """Return the front at a given σ: try some rates of the whole range, then all rates near the best of them."""
    rates = _rates(request)
    stride = math.ceil(len(rates) / _SHOWN)
    coarse, most = range(0, len(rates), stride), len(rates) // stride + 2 * stride
    found: dict[int, Setting] = {}

    def try_rates(places: Iterable[int]) -> list[Setting]:
        for place in places:
            report(min(len(found) / most, 1.0))
            with suppress(BudgetExceededError):  # the budget does not pay for one step at this rate
                found[place] = _with_all_steps(request, rates[place], noise, rounds)
        within = [setting for setting in found.values() if setting.steps > 0]
        return [setting for setting in within if setting.steps >= request.min_steps] or within

    within = try_rates(coarse)
    if not within:
        raise ConfigError(_no_rate_fits(noise, request, found.values()))
    best = rates.index(best_setting(request, within).sample_rate)
    near = range(max(0, best - stride), min(len(rates), best + stride))
    return _undominated(try_rates(place for place in near if place not in coarse))


def _with_all_steps(request: PlanRequest, rate: float, noise: float, rounds: int) -> Setting:
    """Return the setting with all steps that budget and compute limit allow, which may be none."""
    steps = max_steps(request.budget, rate, noise, accountant=request.accountant)
    allowed = int(request.max_epochs * _ROUNDING / rate) if request.max_epochs is not None else steps
    return make_setting(request, rate, noise, rounds, min(steps, allowed))


def _no_rate_fits(noise: float, request: PlanRequest, paid: Iterable[Setting]) -> str:
    least = min((setting.sample_rate for setting in paid), default=None)
    if least is None:
        return (
            f"noise_multiplier={noise:g} is too small for one step at any sampling rate within "
            f"epsilon={request.epsilon:g}; leave it out, and the planner chooses one"
        )
    return f"max_epochs={exact(request.max_epochs or 0)} is less than one step needs; set at least {exact(least)}"


def _no_setting_fits(request: PlanRequest, rounds: int) -> str:
    least = min(_proposals(replace(request, max_epochs=None), rounds), key=lambda setting: setting.epochs)
    return (
        f"max_epochs={exact(request.max_epochs or 0)} is less than any setting needs; set at least "
        f"{exact(least.epochs)} (q = {least.sample_rate:g}, {least.steps} steps), or lower max_rounds or min_steps"
    )


def _rates(request: PlanRequest) -> list[float]:
    """Return the given q, or round numbers from one expected record in a batch up to all records."""
    if request.sample_rate is not None:
        return [request.sample_rate]
    least = min(1.0, request.clients / request.samples)
    decades = range(math.floor(math.log10(least)), 0)
    rates = (float(f"{mantissa}e{decade}") for decade in decades for mantissa in _MANTISSAS)
    return [*(rate for rate in rates if rate >= least), 1.0]


def _undominated(settings: Iterable[Setting]) -> list[Setting]:
    """Return settings by rising compute, each better than all before it; of equals, that with fewest local steps."""
    front: list[Setting] = []
    for setting in sorted(settings, key=lambda s: (s.epochs, -s.signal_to_noise, s.local_steps)):
        if not front or setting.signal_to_noise > front[-1].signal_to_noise:
            front.append(setting)
    return front


def _thinned(front: Sequence[Setting], enough: float) -> list[Setting]:
    """Return about a dozen settings worth showing, evenly spaced in the logarithm of compute."""
    best = front[-1].signal_to_noise
    worth = [setting for setting in front if setting.signal_to_noise >= _TOO_NOISY * best]
    last = next(number for number, setting in enumerate(worth) if setting.signal_to_noise >= enough * best)
    worth = worth[: last + 1]
    low, high = math.log(worth[0].epochs), math.log(worth[-1].epochs)
    levels = [low + (high - low) * number / (_SHOWN - 1) for number in range(_SHOWN)]
    nearest = (min(worth, key=lambda setting: abs(math.log(setting.epochs) - level)) for level in levels)
    return list(dict.fromkeys(nearest))
