"""The local steps of every round under each policy. Calls the training loop's own policies round by round."""

from collections import Counter
from dataclasses import dataclass

from alidpfl.planner.request import PlanRequest
from alidpfl.policies import POLICIES, Decision, Policy, Situation, make_policy

TYPICAL_CURVATURE = 3.7
"""Un-noised μ of the paper's CNN on MNIST. `paper` and `reference` are planned with it if the request has none."""


@dataclass(frozen=True, kw_only=True)
class PolicyPath:
    """τ of every round under one policy."""

    policy: str
    local_steps: tuple[int, ...]
    why: str
    """The policy's most frequent reason."""

    @property
    def usual_steps(self) -> int:
        """The most frequent τ; of equally frequent ones the largest."""
        counts = Counter(self.local_steps)
        return max(counts, key=lambda steps: (counts[steps], steps))


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """The noise and the limits of a run, known before its first round."""

    sample_rate: float
    noise_multiplier: float
    max_steps: int
    """R_c."""
    max_rounds: int
    """R_s."""


def policy_paths(request: PlanRequest, run: PlannedRun) -> list[PolicyPath]:
    """Return the path of every policy, sorted by name."""
    return [_path(_policy(name, run), request, run) for name in sorted(POLICIES)]


def first_situation(request: PlanRequest, run: PlannedRun) -> Situation:
    """Return what a policy sees before the first round."""
    return _situation(request, run, number=0, spent=0, previous=0)


def _policy(name: str, run: PlannedRun) -> Policy:
    # `fixed` takes the largest τ for which the budget lasts all rounds.
    steps = max(1, run.max_steps // run.max_rounds)
    return make_policy(name, local_steps=steps) if name == "fixed" else make_policy(name)


def _path(policy: Policy, request: PlanRequest, run: PlannedRun) -> PolicyPath:
    decisions: list[Decision] = []
    spent = 0
    while len(decisions) < run.max_rounds and spent < run.max_steps:
        previous = decisions[-1].local_steps if decisions else 0
        decisions.append(policy.decide(_situation(request, run, len(decisions), spent, previous)))
        spent += decisions[-1].local_steps
    reasons = Counter(decision.why for decision in decisions)
    return PolicyPath(
        policy=policy.name,
        local_steps=tuple(decision.local_steps for decision in decisions),
        why=reasons.most_common(1)[0][0],
    )


def _situation(request: PlanRequest, run: PlannedRun, number: int, spent: int, previous: int) -> Situation:
    return Situation(
        round=number,
        max_rounds=run.max_rounds,
        max_steps=run.max_steps,
        steps_spent=spent,
        previous_steps=previous,
        num_params=request.num_params,
        clip_norm=request.clip_norm,
        noise_multiplier=run.noise_multiplier,
        sample_rate=run.sample_rate,
        learning_rate=request.learning_rate,
        expected_batch_size=run.sample_rate * request.client_size,
        weight_concentration=1 / request.clients,
        heterogeneity=request.gamma,
        # Nothing is measured before the first round.
        curvature=request.curvature if number > 0 else None,
        raw_curvature=(request.curvature or TYPICAL_CURVATURE) if number > 0 else None,
    )
