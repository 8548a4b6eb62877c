"""The plan: what the budgets pay for, how each policy would spend them, and what stays unused."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from alidpfl.errors import BudgetExceededError
from alidpfl.inputs.names import named
from alidpfl.planner.budget_curves import Curves, make_curves
from alidpfl.planner.optimise import Setting, choose_setting, make_setting
from alidpfl.planner.policy_paths import TYPICAL_CURVATURE, PlannedRun, PolicyPath, policy_paths
from alidpfl.planner.request import PlanRequest, RoundLimit, affordable_rounds
from alidpfl.policies import POLICIES
from alidpfl.privacy import ACCOUNTANTS, SampledGaussian, epsilon_bound, max_steps, noise_multiplier_for
from alidpfl.types import OnProgress

DEFAULT_POLICY = "ali"

_DEFAULT_POLICY_KEYS = ("policy", "epsilon_spent", "seconds", "bytes", "unused_rounds", "unused_steps")
_LOW_SIGNAL = 1.0  # signal-to-noise below which a note warns
_NOTABLE_SHARE = 0.05  # of ε that stays unused


@dataclass(frozen=True, kw_only=True)
class PolicyPlan:
    """How one policy would spend the budgets; `steps` is Σ τ."""

    policy: str
    local_steps: int
    """The most frequent τ; of equally frequent ones the largest."""
    least_steps: int
    most_steps: int
    rounds: int
    steps: int
    ends_first: str
    """The budget that stops the run: "rounds", "privacy" or "both"."""
    epsilon_spent: float
    unused_rounds: int
    unused_steps: int
    unused_epsilon: float
    seconds: float | None
    bytes: int
    why: str
    covered: bool
    """False if the policy reads signals without noise, which ε does not cover."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer to a `PlanRequest`."""

    request: PlanRequest
    rounds: RoundLimit
    setting: Setting
    """q, σ and τ, as given or found."""
    pareto: tuple[Setting, ...]
    """The front that was searched, cheapest first; empty if q and σ were given."""
    max_steps: dict[str, int]
    """R_c by accountant; 0 if the budget does not pay for one step."""
    epsilon_if_rounds_end: dict[str, float]
    """By accountant: cost of one step in each of R_s rounds; infinite if above the budget."""
    epsilon_if_steps_end: dict[str, float]
    """By accountant: cost of R_c steps."""
    policies: tuple[PolicyPlan, ...]
    curves: Curves
    notes: tuple[str, ...]

    def policy(self, name: str = DEFAULT_POLICY) -> PolicyPlan:
        """Return the plan under one policy."""
        return named("policy", name, {plan.policy: plan for plan in self.policies})

    def to_json(self) -> dict[str, Any]:
        """Return the whole plan as plain values."""
        chosen = self.setting
        return {
            "request": asdict(self.request),
            "max_rounds": self.rounds.count,
            "rounds_limited_by": self.rounds.limited_by,
            **{key: getattr(chosen, key) for key in ("sample_rate", "noise_multiplier", "signal_to_noise", "epochs")},
            "max_steps": self.max_steps,
            "epsilon_if_rounds_end": {  # JSON has no infinity
                name: cost if math.isfinite(cost) else None for name, cost in self.epsilon_if_rounds_end.items()
            },
            "epsilon_if_steps_end": self.epsilon_if_steps_end,
            "local_steps": {plan.policy: plan.local_steps for plan in self.policies},
            **{key: getattr(self.policy(), key) for key in _DEFAULT_POLICY_KEYS},
            "policies": {plan.policy: asdict(plan) for plan in self.policies},
            "pareto": [
                asdict(s)
                | {"epochs": s.epochs, "noise_per_progress": 1 / s.signal_to_noise, "recommended": s == chosen}
                for s in self.pareto
            ],
            "curves": asdict(self.curves),
            "notes": list(self.notes),
        }


def make_plan(request: PlanRequest, *, on_progress: OnProgress | None = None) -> Plan:
    """Return the best plan for a request.

    Raises:
        ConfigError: The limits allow no round or no setting. The message says what would be possible.
        BudgetExceededError: The privacy budget does not pay for one step. The message names noise that would do.
    """
    report = on_progress or (lambda _what, _share: None)
    named("accountant", request.accountant, dict.fromkeys(ACCOUNTANTS))
    rounds = affordable_rounds(request)
    setting, front = _choose(request, rounds.count, report)
    report("counting steps", 0.7)
    limits = {name: _steps_or_zero(request, setting, name) for name in ACCOUNTANTS}
    run = PlannedRun(
        sample_rate=setting.sample_rate,
        noise_multiplier=setting.noise_multiplier,
        # A compute limit leaves some steps unused that the budget would pay for.
        max_steps=limits[request.accountant] if request.max_epochs is None else setting.steps,
        max_rounds=rounds.count,
    )
    plans = tuple(_policy_plan(request, run, path) for path in policy_paths(request, run))
    report("drawing curves", 0.85)
    return Plan(
        request=request,
        rounds=rounds,
        setting=setting,
        pareto=tuple(front),
        max_steps=limits,
        epsilon_if_rounds_end={
            name: _epsilon(request, run, name, rounds.count) if rounds.count <= limit else math.inf
            for name, limit in limits.items()
        },
        epsilon_if_steps_end={name: _epsilon(request, run, name, limit) for name, limit in limits.items()},
        policies=plans,
        curves=make_curves(request, run, limits),
        notes=_notes(request, setting, plans),
    )


def weak_signal(setting: Setting) -> str | None:
    """Return why a model can hardly learn with a setting, or None if it can."""
    if setting.signal_to_noise >= _LOW_SIGNAL:
        return None
    return (
        f"signal-to-noise is {setting.signal_to_noise:.2g}: even gradients that all agree would drown in the "
        "noise; a smaller model, more records or a larger epsilon would help"
    )


def _choose(request: PlanRequest, rounds: int, report: OnProgress) -> tuple[Setting, list[Setting]]:
    """Return q, σ and T as given, or the best found together with the front it was found on."""
    rate, noise = request.sample_rate, request.noise_multiplier
    if rate is None or noise is None:
        report("searching sampling rate and noise", 0.0)
        return choose_setting(request, rounds, lambda share: report("searching sampling rate and noise", 0.7 * share))
    try:
        steps = max_steps(request.budget, rate, noise, accountant=request.accountant)
    except BudgetExceededError as error:
        needed = noise_multiplier_for(request.budget, rate, rounds, accountant=request.accountant)
        raise BudgetExceededError(
            f"{error}; noise_multiplier={needed:g} pays for one step in each of {rounds} rounds, or leave "
            "noise_multiplier out, and the planner chooses one"
        ) from None
    if request.max_epochs is not None:
        steps = max(1, min(steps, int(request.max_epochs / rate)))
    return make_setting(request, rate, noise, rounds, steps), []


def _steps_or_zero(request: PlanRequest, setting: Setting, accountant: str) -> int:
    try:
        return max_steps(request.budget, setting.sample_rate, setting.noise_multiplier, accountant=accountant)
    except BudgetExceededError:
        return 0


def _policy_plan(request: PlanRequest, run: PlannedRun, path: PolicyPath) -> PolicyPlan:
    rounds, steps, counts = len(path.local_steps), sum(path.local_steps), Counter(path.local_steps)
    spent = _epsilon(request, run, request.accountant, steps)
    rounds_end, privacy_ends = rounds == run.max_rounds, steps == run.max_steps
    return PolicyPlan(
        policy=path.policy,
        local_steps=max(counts, key=lambda steps: (counts[steps], steps)),
        least_steps=min(path.local_steps),
        most_steps=max(path.local_steps),
        rounds=rounds,
        steps=steps,
        ends_first="both" if rounds_end and privacy_ends else "rounds" if rounds_end else "privacy",
        epsilon_spent=spent,
        unused_rounds=run.max_rounds - rounds,
        unused_steps=run.max_steps - steps,
        unused_epsilon=max(0.0, request.epsilon - spent),
        seconds=None if request.seconds_per_round is None else rounds * request.seconds_per_round,
        bytes=rounds * request.bytes_per_round,
        why=path.why,
        covered=not POLICIES[path.policy].needs_raw_signals,
    )


def _epsilon(request: PlanRequest, run: PlannedRun, accountant: str, steps: int) -> float:
    """Return the cost of up to R_c steps. The quick bound may exceed it a little, but never the budget."""
    if steps == 0:
        return 0.0
    spent = SampledGaussian(sample_rate=run.sample_rate, noise_multiplier=run.noise_multiplier, steps=steps)
    return min(epsilon_bound([spent], request.delta, accountant), request.epsilon)


def _notes(request: PlanRequest, setting: Setting, plans: Sequence[PolicyPlan]) -> tuple[str, ...]:
    notes, size = [], request.client_size
    if setting.sample_rate * size < 1:
        notes.append(
            f"the smallest client expects {setting.sample_rate * size:.2g} records a batch: its updates "
            "are nearly all noise; raise the sampling rate"
        )
    if (weakness := weak_signal(setting)) is not None:
        notes.append(weakness)
    mean_size = request.samples / request.clients  # the largest client has at least as many records
    if request.delta * mean_size >= 1:
        notes.append(
            f"delta={request.delta:g} is not below 1/n for the largest client, which has {mean_size:.4g} records or "
            "more: it would allow one of its records to be published"
        )
    default = next(plan for plan in plans if plan.policy == DEFAULT_POLICY)
    if default.ends_first == "rounds" and default.unused_epsilon > _NOTABLE_SHARE * request.epsilon:
        notes.append(
            f"{default.unused_steps} steps and ε = {default.unused_epsilon:.2g} stay unused when the rounds end; less "
            "noise or a larger sampling rate would use them (leave noise_multiplier out)"
        )
    if request.curvature is None:
        notes.append(
            "no curvature is known before training: ali and corrected keep the even pace until they resolve one; "
            f"paper and reference are shown at μ = {TYPICAL_CURVATURE}, as measured for the paper's CNN on MNIST"
        )
    return tuple(notes)
