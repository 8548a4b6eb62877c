"""The local steps of every round under each policy. Calls the training loop's own policies round by round."""

from collections import Counter
from dataclasses import dataclass, replace

from alidpfl.planner.request import PlanRequest
from alidpfl.policies import POLICIES, Decision, Policy, Situation, make_policy

TYPICAL_CURVATURE = 3.7
"""Un-noised μ of the paper's CNN on MNIST. `paper` and `reference` are planned with it if the request has none."""


@dataclass(frozen=True, kw_only=True)
class PolicyPath:
    """τ of every round under one policy, and the policy's most frequent reason."""

    policy: str
    local_steps: tuple[int, ...]
    why: str


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """The noise and the limits R_c and R_s of a run, known before its first round."""

    sample_rate: float
    noise_multiplier: float
    max_steps: int
    max_rounds: int


def policy_paths(request: PlanRequest, run: PlannedRun) -> list[PolicyPath]:
    """Return the path of every policy, sorted by name. `fixed` takes the largest τ that lasts all rounds."""
    settings = {"fixed": {"local_steps": max(1, run.max_steps // run.max_rounds)}}
    return [_path(make_policy(name, **settings.get(name, {})), request, run) for name in sorted(POLICIES)]


def _path(policy: Policy, request: PlanRequest, run: PlannedRun) -> PolicyPath:
    decisions: list[Decision] = []
    situation = first_situation(request, run)
    while situation.round < run.max_rounds and situation.steps_left > 0:
        decisions.append(decision := policy.decide(situation))
        situation = replace(
            situation,
            round=situation.round + 1,
            steps_spent=situation.steps_spent + decision.local_steps,
            previous_steps=decision.local_steps,
            curvature=request.curvature,
            raw_curvature=request.curvature or TYPICAL_CURVATURE,
        )
    reasons = Counter(decision.why for decision in decisions)
    local_steps = tuple(decision.local_steps for decision in decisions)
    return PolicyPath(policy=policy.name, local_steps=local_steps, why=reasons.most_common(1)[0][0])


def first_situation(request: PlanRequest, run: PlannedRun) -> Situation:
    """Return what a policy sees before the first round, when nothing is measured yet."""
    return Situation(
        round=0,
        max_rounds=run.max_rounds,
        max_steps=run.max_steps,
        steps_spent=0,
        previous_steps=0,
        num_params=request.num_params,
        clip_norm=request.clip_norm,
        noise_multiplier=run.noise_multiplier,
        sample_rate=run.sample_rate,
        learning_rate=request.learning_rate,
        expected_batch_size=run.sample_rate * request.client_size,
        weight_concentration=1 / request.clients,
        heterogeneity=request.gamma,
    )
