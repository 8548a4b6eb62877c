"""How many local steps the next round takes: pure functions of public or noised quantities. Never imports torch."""

import inspect
from typing import Any

from alidpfl.inputs.names import named
from alidpfl.policies.curvature import CurvatureEstimate, pool
from alidpfl.policies.lemma2 import heterogeneity_for
from alidpfl.policies.pace import even_steps, paced, ratio_steps
from alidpfl.policies.schedules import SCHEDULES, learning_rate
from alidpfl.policies.situation import Decision, Policy, Situation
from alidpfl.policies.theory import Bound, PaperBound, Problem, bound_a, bound_b, noise_power, paper_bound
from alidpfl.registry import POLICIES

__all__ = [
    "POLICIES",
    "SCHEDULES",
    "Bound",
    "CurvatureEstimate",
    "Decision",
    "PaperBound",
    "Policy",
    "Problem",
    "Situation",
    "bound_a",
    "bound_b",
    "even_steps",
    "heterogeneity_for",
    "learning_rate",
    "make_policy",
    "noise_power",
    "paced",
    "paper_bound",
    "pool",
    "ratio_steps",
]


def make_policy(name: str, **settings: Any) -> Policy:
    """Return the policy of that name with these settings.

    >>> make_policy("fixed", local_steps=3)
    Fixed(local_steps=3, pace_limit=None)
    """
    policy = POLICIES[name]
    known = inspect.signature(policy).parameters
    for setting in settings:
        named(f"policy {name!r}: the setting", setting, known)
    made: Policy = policy(**settings)
    return made
