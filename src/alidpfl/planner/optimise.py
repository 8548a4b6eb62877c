"""Which (q, σ, τ) at the same privacy: compute against signal-to-noise.

T steps at rate q with noise σ move the model by T times a signal of at most ηC, and by √T times a noise. In the mean
over N clients, weighted by their records n_i of n in all, its squared norm is
Σ (n_i/n)² η² (σ²C²d/(q n_i)² + C²(1−q)/(q n_i)), in which the n_i cancel: how records are spread does not matter. What
counts is the ratio of the two, which η and C leave alone:

    signal-to-noise = √T / sqrt(N σ²d/(qn)² + (1−q)/(qn))

Its inverse is the noise per unit of progress. At a given (ε, δ) it grows with q, since noise added to a large batch is
shared by more records, towards the limit n · μ/√(Nd) of one release with the same budget (μ of Gaussian DP). What it
costs is compute: q·T passes over the data. Fewer steps with larger batches win at equal compute, down to the fewest
with which a model can get anywhere (`Wishes.min_steps`): τ is then the smallest that makes so many in R_s rounds.

The closed form of Gaussian DP proposes the settings, the accountant then computes the noise of each that is kept. Where
σ is decided, the accountant computes the steps of every q instead: the closed form is far too hopeful at little noise.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from alidpfl.errors import BudgetExceededError, ConfigError
from alidpfl.planner.requirements import Wishes
from alidpfl.policies import noise_power
from alidpfl.privacy import MAX_STEPS, max_steps, noise_multiplier_bound, noise_multiplier_for
from alidpfl.privacy.gaussian_dp import limiting_noise
from alidpfl.types import OnShare

NEAR_ENOUGH = 0.97
"""Where no compute limit is given, the recommended setting is the cheapest with this share of the best signal-to-noise:
beyond, compute doubles for a per cent or two."""

_MANTISSAS = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
_MULTIPLES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_A_LITTLE_MORE = 1 + 1e-9  # what is at a limit but for rounding is within it
_SHOWN = 12
"""Settings whose noise is computed: each takes the accountant half a second."""
_TOO_NOISY, _HARDLY_LESS, _HARDLY_LESS_OF_LIMIT = 0.25, 0.99, 0.999
"""Of the best signal-to-noise: what is below the first, or costs more than the second, is not worth showing; nor is
what costs more than the third, where the user set a limit and means to use it."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A way to spend the budget."""

    sample_rate: float
    noise_multiplier: float
    local_steps: int
    """τ; T / R_s, rounded down."""
    steps: int
    """T: the local steps that the budget must pay for."""
    signal_to_noise: float
    """Of the whole run, as above."""

    @property
    def epochs(self) -> float:
        """Compute: passes of every client over its data, q·T."""
        return self.sample_rate * self.steps

    @property
    def noise_per_progress(self) -> float:
        """1 / signal-to-noise."""
        return 1 / self.signal_to_noise


def pareto_front(wishes: Wishes, rounds: int, on_progress: OnShare | None = None) -> list[Setting]:
    """Settings none of which another beats in both compute and signal-to-noise, cheapest first.

    Their noise is safe: never less than the accountant asks for, and at most 1 % more.
    """
    if wishes.noise_multiplier is not None:
        return _front_at(wishes.noise_multiplier, wishes, rounds, on_progress)
    proposed = _proposals(wishes, rounds)
    if not proposed:
        raise ConfigError(_nothing_fits(wishes, rounds))
    thinned = _thinned(_undominated(proposed), _HARDLY_LESS if wishes.max_epochs is None else _HARDLY_LESS_OF_LIMIT)
    found, refused = [], None
    for number, setting in enumerate(thinned):
        if on_progress is not None:
            on_progress(number / len(thinned))
        try:
            found.append(_accounted(wishes, rounds, setting))
        except BudgetExceededError as error:  # the closed form was too hopeful
            refused = error
    if not found and refused is not None:
        raise refused
    return _undominated(found)


def best_of(wishes: Wishes, front: Sequence[Setting]) -> Setting:
    """The best that the compute limit allows; where there is none, the cheapest that is near enough to the best."""
    best = max(setting.signal_to_noise for setting in front)
    enough = best if wishes.max_epochs is not None else NEAR_ENOUGH * best
    return min((s for s in front if s.signal_to_noise >= enough), key=lambda setting: setting.epochs)


def choose(wishes: Wishes, rounds: int, on_progress: OnShare | None = None) -> tuple[Setting, list[Setting]]:
    """The recommended setting, with the least noise that the accountant admits, and the front that it is on."""
    front = pareto_front(wishes, rounds, on_progress)
    best = best_of(wishes, front)
    chosen = exactly(wishes, rounds, best)
    return chosen, [chosen if setting is best else setting for setting in front]


def exactly(wishes: Wishes, rounds: int, setting: Setting) -> Setting:
    """The setting with the least noise that the accountant admits."""
    if wishes.noise_multiplier is not None:
        return setting
    noise = noise_multiplier_for(wishes.budget, setting.sample_rate, setting.steps, accountant=wishes.accountant)
    return made_setting(wishes, setting.sample_rate, noise, rounds, setting.steps)


def made_setting(wishes: Wishes, sample_rate: float, noise_multiplier: float, rounds: int, steps: int) -> Setting:
    """A setting with what follows from it."""
    return Setting(
        sample_rate=sample_rate,
        noise_multiplier=noise_multiplier,
        local_steps=max(1, steps // rounds),
        steps=steps,
        signal_to_noise=signal_to_noise(wishes, sample_rate, noise_multiplier, steps),
    )


def signal_to_noise(wishes: Wishes, sample_rate: float, noise_multiplier: float, steps: float) -> float:
    """Of a whole run, as above."""
    batch = sample_rate * wishes.samples
    noise = wishes.clients * noise_power(noise_multiplier, 1.0, wishes.num_params, batch) + (1 - sample_rate) / batch
    return math.sqrt(steps / noise)


def _proposals(wishes: Wishes, rounds: int) -> list[Setting]:
    """Every q and τ on the grid within the compute limit, with noise from the closed form."""
    found: list[Setting] = []
    fewest = math.ceil(wishes.min_steps / rounds)
    for rate in _rates(wishes):
        for multiple in _MULTIPLES:
            steps = multiple * fewest * rounds
            if steps <= MAX_STEPS:
                noise = limiting_noise(wishes.budget, rate, steps)
                found.append(made_setting(wishes, rate, noise, rounds, steps))
    return [setting for setting in found if setting.epochs <= (wishes.max_epochs or math.inf) * _A_LITTLE_MORE]


def _accounted(wishes: Wishes, rounds: int, setting: Setting) -> Setting:
    """The setting with the accountant's noise; BudgetExceededError where no noise would do."""
    rate, steps = setting.sample_rate, setting.steps
    noise = noise_multiplier_bound(wishes.budget, rate, steps, accountant=wishes.accountant)
    return made_setting(wishes, rate, noise, rounds, steps)


def _front_at(noise: float, wishes: Wishes, rounds: int, on_progress: OnShare | None) -> list[Setting]:
    """The front at a decided σ: some rates of the whole range, then all that are near the best of them."""
    rates = _rates(wishes)
    stride = math.ceil(len(rates) / _SHOWN)
    coarse, most = range(0, len(rates), stride), len(rates) // stride + 2 * stride
    found: dict[int, Setting] = {}

    def look(places: Iterable[int]) -> list[Setting]:
        for place in places:
            if on_progress is not None:
                on_progress(min(len(found) / most, 1.0))
            with suppress(BudgetExceededError):  # not one step at this rate
                found[place] = _used_up(wishes, rates[place], noise, rounds)
        within = [setting for setting in found.values() if setting.steps > 0]
        return [setting for setting in within if setting.steps >= wishes.min_steps] or within

    within = look(coarse)
    if not within:
        raise ConfigError(_nothing_fits_at(noise, wishes, found.values()))
    best = rates.index(best_of(wishes, within).sample_rate)
    near = range(max(0, best - stride), min(len(rates), best + stride))
    return _undominated(look(place for place in near if place not in coarse))


def _used_up(wishes: Wishes, rate: float, noise: float, rounds: int) -> Setting:
    """All steps that the budget pays for within the compute limit, which may be none."""
    steps = max_steps(wishes.budget, rate, noise, accountant=wishes.accountant)
    allowed = int(wishes.max_epochs * _A_LITTLE_MORE / rate) if wishes.max_epochs is not None else steps
    return made_setting(wishes, rate, noise, rounds, min(steps, allowed))


def _nothing_fits_at(noise: float, wishes: Wishes, paid: Iterable[Setting]) -> str:
    least = min((setting.sample_rate for setting in paid), default=None)
    if least is None:
        return (
            f"noise_multiplier={noise:g} is too little for one step at any sampling rate within "
            f"epsilon={wishes.epsilon:g}; leave it out, and the planner finds one"
        )
    return (
        f"max_epochs={wishes.max_epochs:g} is less than any setting needs: possible from {least:.3g} epochs on, "
        "which is one step"
    )


def _rates(wishes: Wishes) -> list[float]:
    """The q that is decided, or round numbers from one expected record a batch up to all of them."""
    if wishes.sample_rate is not None:
        return [wishes.sample_rate]
    least = min(1.0, wishes.clients / wishes.samples)
    decades = range(math.floor(math.log10(least)), 0)
    rates = (float(f"{mantissa}e{decade}") for decade in decades for mantissa in _MANTISSAS)
    return [*(rate for rate in rates if rate >= least), 1.0]


def _undominated(settings: Iterable[Setting]) -> list[Setting]:
    """By rising compute, each better than all before it; of equals, the one with fewer local steps."""
    front: list[Setting] = []
    for setting in sorted(settings, key=lambda s: (s.epochs, -s.signal_to_noise, s.local_steps)):
        if not front or setting.signal_to_noise > front[-1].signal_to_noise:
            front.append(setting)
    return front


def _thinned(front: Sequence[Setting], hardly_less: float) -> list[Setting]:
    """About a dozen, evenly spaced in the logarithm of compute, between far too noisy and hardly better."""
    best = front[-1].signal_to_noise
    worth = [setting for setting in front if setting.signal_to_noise >= _TOO_NOISY * best]
    enough = next(number for number, setting in enumerate(worth) if setting.signal_to_noise >= hardly_less * best)
    worth = worth[: enough + 1]
    low, high = math.log(worth[0].epochs), math.log(worth[-1].epochs)
    levels = [low + (high - low) * number / (_SHOWN - 1) for number in range(_SHOWN)]
    nearest = (min(worth, key=lambda setting: abs(math.log(setting.epochs) - level)) for level in levels)
    return list(dict.fromkeys(nearest))


def _nothing_fits(wishes: Wishes, rounds: int) -> str:
    unlimited = replace(wishes, max_epochs=None)
    least = min(_proposals(unlimited, rounds), key=lambda setting: setting.epochs)
    return (
        f"max_epochs={wishes.max_epochs:g} is less than any setting needs: possible from {least.epochs:.3g} epochs on "
        f"(q = {least.sample_rate:g}, {least.steps} steps), or with fewer rounds or min_steps"
    )
