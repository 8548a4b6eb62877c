"""The answer: what the budgets pay for, how each policy would spend them, and what is left over."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from alidpfl.errors import BudgetExceededError
from alidpfl.inputs.names import named
from alidpfl.planner.budget_curves import Curves, make_curves
from alidpfl.planner.optimise import Setting, choose, made_setting
from alidpfl.planner.policy_paths import TYPICAL_CURVATURE, Course, Mechanism, courses
from alidpfl.planner.requirements import Rounds, Wishes, possible_rounds
from alidpfl.policies import POLICIES
from alidpfl.privacy import (
    ACCOUNTANTS,
    SampledGaussian,
    epsilon_bound,
    max_steps,
    noise_multiplier_for,
)
from alidpfl.types import OnProgress

DEFAULT_POLICY = "ali"

_HOPELESS = 1.0
_WORTH_SAYING = 0.05


@dataclass(frozen=True, kw_only=True)
class PolicyPlan:
    """How one policy would spend the budgets."""

    policy: str
    local_steps: int
    """τ of most rounds."""
    least_steps: int
    most_steps: int
    rounds: int
    steps: int
    """Σ τ."""
    ends_first: str
    """What stops the run: "rounds", "privacy", or "both"."""
    epsilon_spent: float
    unused_rounds: int
    unused_steps: int
    unused_epsilon: float
    seconds: float | None
    bytes: int
    why: str
    covered: bool
    """False where the policy looks at un-noised signals, which no ε covers."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer to `Wishes`."""

    wishes: Wishes
    rounds: Rounds
    setting: Setting
    """q, σ, τ: as decided, or found."""
    pareto: tuple[Setting, ...]
    """What was found on the way, cheapest first; empty where q and σ were given."""
    max_steps: dict[str, int]
    """R_c by accountant; 0 where not one step is paid for."""
    epsilon_if_rounds_end: dict[str, float]
    """By accountant: what one step in each of R_s rounds costs; infinite where that is not paid for."""
    epsilon_if_steps_end: dict[str, float]
    """By accountant: what R_c steps cost."""
    policies: tuple[PolicyPlan, ...]
    curves: Curves
    notes: tuple[str, ...]

    def policy(self, name: str = DEFAULT_POLICY) -> PolicyPlan:
        """The plan under that policy."""
        return named("policy", name, {plan.policy: plan for plan in self.policies})

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        default = self.policy()
        return {
            "wishes": asdict(self.wishes),
            "max_rounds": self.rounds.count,
            "rounds_limited_by": self.rounds.limited_by,
            "sample_rate": self.setting.sample_rate,
            "noise_multiplier": self.setting.noise_multiplier,
            "signal_to_noise": self.setting.signal_to_noise,
            "epochs": self.setting.epochs,
            "max_steps": self.max_steps,
            "epsilon_if_rounds_end": {name: _finite(cost) for name, cost in self.epsilon_if_rounds_end.items()},
            "epsilon_if_steps_end": self.epsilon_if_steps_end,
            "local_steps": {plan.policy: plan.local_steps for plan in self.policies},
            "policy": default.policy,
            "epsilon_spent": default.epsilon_spent,
            "seconds": default.seconds,
            "bytes": default.bytes,
            "unused_rounds": default.unused_rounds,
            "unused_steps": default.unused_steps,
            "policies": {plan.policy: asdict(plan) for plan in self.policies},
            "pareto": [_row(setting, self.setting) for setting in self.pareto],
            "curves": asdict(self.curves),
            "notes": list(self.notes),
        }


def make_plan(wishes: Wishes, *, on_progress: OnProgress | None = None) -> Plan:
    """Answer them; ConfigError or BudgetExceededError, saying what would be possible, where there is no answer."""
    tell = on_progress or (lambda _what, _share: None)
    named("accountant", wishes.accountant, dict.fromkeys(ACCOUNTANTS))
    rounds = possible_rounds(wishes)
    setting, front = _choose(wishes, rounds.count, tell)
    tell("counting steps", 0.7)
    limits = {name: _steps_or_none(wishes, setting, name) for name in ACCOUNTANTS}
    mechanism = Mechanism(
        sample_rate=setting.sample_rate,
        noise_multiplier=setting.noise_multiplier,
        # A compute limit leaves steps unused that the budget would pay for.
        max_steps=limits[wishes.accountant] if wishes.max_epochs is None else setting.steps,
        max_rounds=rounds.count,
    )
    plans = tuple(_policy_plan(wishes, mechanism, course) for course in courses(wishes, mechanism))
    tell("drawing curves", 0.85)
    return Plan(
        wishes=wishes,
        rounds=rounds,
        setting=setting,
        pareto=tuple(front),
        max_steps=limits,
        epsilon_if_rounds_end={
            name: _epsilon(wishes, mechanism, name, rounds.count) if rounds.count <= limit else math.inf
            for name, limit in limits.items()
        },
        epsilon_if_steps_end={name: _epsilon(wishes, mechanism, name, limit) for name, limit in limits.items()},
        policies=plans,
        curves=make_curves(wishes, mechanism, limits),
        notes=_notes(wishes, setting, plans),
    )


def _choose(wishes: Wishes, rounds: int, tell: OnProgress) -> tuple[Setting, list[Setting]]:
    """q, σ and T as decided, or the best found, with the front that it was found on."""
    if wishes.sample_rate is not None and wishes.noise_multiplier is not None:
        steps = _steps_or_refuse(wishes, rounds)
        if wishes.max_epochs is not None:
            steps = max(1, min(steps, int(wishes.max_epochs / wishes.sample_rate)))
        return made_setting(wishes, wishes.sample_rate, wishes.noise_multiplier, rounds, steps), []
    tell("searching sampling rate and noise", 0.0)
    return choose(wishes, rounds, lambda share: tell("searching sampling rate and noise", 0.7 * share))


def _steps_or_refuse(wishes: Wishes, rounds: int) -> int:
    """R_c of what is decided; where it is 0, an error that says which noise would do."""
    assert wishes.sample_rate is not None  # noqa: S101 - for the type checker
    assert wishes.noise_multiplier is not None  # noqa: S101
    try:
        return max_steps(wishes.budget, wishes.sample_rate, wishes.noise_multiplier, accountant=wishes.accountant)
    except BudgetExceededError as error:
        needed = noise_multiplier_for(wishes.budget, wishes.sample_rate, rounds, accountant=wishes.accountant)
        raise BudgetExceededError(
            f"{error}; noise_multiplier={needed:g} pays for one step in each of {rounds} rounds, and with "
            "noise_multiplier left out the planner finds the best"
        ) from None


def _steps_or_none(wishes: Wishes, setting: Setting, accountant: str) -> int:
    try:
        return max_steps(wishes.budget, setting.sample_rate, setting.noise_multiplier, accountant=accountant)
    except BudgetExceededError:
        return 0


def _policy_plan(wishes: Wishes, mechanism: Mechanism, course: Course) -> PolicyPlan:
    rounds, steps = len(course.local_steps), sum(course.local_steps)
    spent = _epsilon(wishes, mechanism, wishes.accountant, steps)
    rounds_end, privacy_ends = rounds == mechanism.max_rounds, steps == mechanism.max_steps
    return PolicyPlan(
        policy=course.policy,
        local_steps=course.usual_steps,
        least_steps=min(course.local_steps),
        most_steps=max(course.local_steps),
        rounds=rounds,
        steps=steps,
        ends_first="both" if rounds_end and privacy_ends else "rounds" if rounds_end else "privacy",
        epsilon_spent=spent,
        unused_rounds=mechanism.max_rounds - rounds,
        unused_steps=mechanism.max_steps - steps,
        unused_epsilon=max(0.0, wishes.epsilon - spent),
        seconds=None if wishes.seconds_per_round is None else rounds * wishes.seconds_per_round,
        bytes=rounds * wishes.bytes_per_round,
        why=course.why,
        covered=not POLICIES[course.policy].needs_raw_signals,
    )


def _epsilon(wishes: Wishes, mechanism: Mechanism, accountant: str, steps: int) -> float:
    """What up to R_c steps cost, rounded up a little where that saves time, but not above what R_c steps may."""
    if steps == 0:
        return 0.0
    composed = SampledGaussian(
        sample_rate=mechanism.sample_rate, noise_multiplier=mechanism.noise_multiplier, steps=steps
    )
    return min(epsilon_bound([composed], wishes.delta, accountant), wishes.epsilon)


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def _notes(wishes: Wishes, setting: Setting, plans: Sequence[PolicyPlan]) -> tuple[str, ...]:
    notes = []
    if setting.sample_rate * wishes.client_size < 1:
        notes.append(
            f"the smallest client expects {setting.sample_rate * wishes.client_size:.2g} records a batch: its updates "
            "are nearly all noise; raise the sampling rate"
        )
    if setting.signal_to_noise < _HOPELESS:
        notes.append(
            f"signal-to-noise is {setting.signal_to_noise:.2g}: even gradients that all agree would drown in the "
            "noise; a smaller model, more records or a larger epsilon would help"
        )
    if wishes.delta * wishes.client_size >= 1:
        notes.append(
            f"delta={wishes.delta:g} is not below 1/n of the smallest client ({1 / wishes.client_size:.2g}): it would "
            "allow one of its records to be published"
        )
    default = next(plan for plan in plans if plan.policy == DEFAULT_POLICY)
    if default.ends_first == "rounds" and default.unused_epsilon > _WORTH_SAYING * wishes.epsilon:
        notes.append(
            f"{default.unused_steps} steps and ε = {default.unused_epsilon:.2g} stay unused when the rounds end; less "
            "noise or a larger sampling rate would use them (leave noise_multiplier out)"
        )
    if wishes.curvature is None:
        notes.append(
            "no curvature is known before training: ali and corrected keep the even pace until they resolve one; "
            f"paper and reference are shown at μ = {TYPICAL_CURVATURE}, as measured for the paper's CNN on MNIST"
        )
    return tuple(notes)


def _row(setting: Setting, chosen: Setting) -> dict[str, Any]:
    return {
        **asdict(setting),
        "epochs": setting.epochs,
        "noise_per_progress": setting.noise_per_progress,
        "recommended": setting == chosen,
    }
