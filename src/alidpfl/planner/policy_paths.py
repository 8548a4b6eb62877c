"""How a run would go under each policy: the very policies of the training loop, asked round by round."""

from collections import Counter
from dataclasses import dataclass

from alidpfl.planner.requirements import Wishes
from alidpfl.policies import POLICIES, Decision, Policy, Situation, make_policy

TYPICAL_CURVATURE = 3.7
"""Un-noised μ of the paper's CNN on MNIST: what `paper` and `reference` would measure, where the wishes do not say."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """τ of every round under one policy."""

    policy: str
    local_steps: tuple[int, ...]
    why: str
    """The policy's reason, in its longest stretch."""

    @property
    def usual_steps(self) -> int:
        """τ of most rounds; of two as frequent, the larger."""
        counts = Counter(self.local_steps)
        return max(counts, key=lambda steps: (counts[steps], steps))


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What is decided when policies are asked."""

    sample_rate: float
    noise_multiplier: float
    max_steps: int
    """R_c."""
    max_rounds: int
    """R_s."""


def courses(wishes: Wishes, mechanism: Mechanism) -> list[Course]:
    """Every policy's, by name."""
    return [_course(_policy(name, mechanism), wishes, mechanism) for name in sorted(POLICIES)]


def _policy(name: str, mechanism: Mechanism) -> Policy:
    """`fixed` at the largest τ that still pays for every round."""
    steps = max(1, mechanism.max_steps // mechanism.max_rounds)
    return make_policy(name, local_steps=steps) if name == "fixed" else make_policy(name)


def _course(policy: Policy, wishes: Wishes, mechanism: Mechanism) -> Course:
    decisions: list[Decision] = []
    spent = 0
    while len(decisions) < mechanism.max_rounds and spent < mechanism.max_steps:
        previous = decisions[-1].local_steps if decisions else 0
        decisions.append(policy.decide(_situation(wishes, mechanism, len(decisions), spent, previous)))
        spent += decisions[-1].local_steps
    reasons = Counter(decision.why for decision in decisions)
    return Course(
        policy=policy.name,
        local_steps=tuple(decision.local_steps for decision in decisions),
        why=reasons.most_common(1)[0][0],
    )


def _situation(wishes: Wishes, mechanism: Mechanism, number: int, spent: int, previous: int) -> Situation:
    return Situation(
        round=number,
        max_rounds=mechanism.max_rounds,
        max_steps=mechanism.max_steps,
        steps_spent=spent,
        previous_steps=previous,
        num_params=wishes.num_params,
        clip_norm=wishes.clip_norm,
        noise_multiplier=mechanism.noise_multiplier,
        sample_rate=mechanism.sample_rate,
        learning_rate=wishes.learning_rate,
        expected_batch_size=mechanism.sample_rate * wishes.client_size,
        weight_concentration=1 / wishes.clients,
        heterogeneity=wishes.gamma,
        # Nothing is measured before the first round.
        curvature=wishes.curvature if number > 0 else None,
        raw_curvature=(wishes.curvature or TYPICAL_CURVATURE) if number > 0 else None,
    )
