"""How many local steps the next round takes: pure functions of public or noised quantities. Never imports torch."""

import math
from collections.abc import Mapping
from dataclasses import fields
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from alidpfl.inputs import checks
from alidpfl.inputs.names import named
from alidpfl.policies.corrected import Corrected
from alidpfl.policies.curvature import CurvatureEstimate, pool
from alidpfl.policies.lemma2 import Ali, Paper, Reference
from alidpfl.policies.pace import PACE_LIMIT, Fixed, Ratio, even_steps, paced, ratio_steps
from alidpfl.policies.schedules import SCHEDULES, learning_rate
from alidpfl.policies.situation import Decision, Policy, Situation
from alidpfl.policies.theory import (
    Bound,
    PaperBound,
    Problem,
    bound_a,
    bound_b,
    lemma2_optimum,
    noise_power,
    paper_bound,
)

__all__ = [
    "PACE_LIMIT",
    "POLICIES",
    "SCHEDULES",
    "Ali",
    "Bound",
    "Corrected",
    "CurvatureEstimate",
    "Decision",
    "Fixed",
    "Paper",
    "PaperBound",
    "Policy",
    "Problem",
    "Ratio",
    "Reference",
    "Situation",
    "bound_a",
    "bound_b",
    "even_steps",
    "heterogeneity_for",
    "learning_rate",
    "lemma2_optimum",
    "make_policy",
    "noise_power",
    "paced",
    "paper_bound",
    "pool",
    "ratio_steps",
]

PolicyClass = type[Ali] | type[Corrected] | type[Fixed] | type[Paper] | type[Ratio] | type[Reference]

POLICIES: Mapping[str, PolicyClass] = MappingProxyType(
    {policy.name: policy for policy in (Ali, Corrected, Fixed, Paper, Ratio, Reference)}
)
"""Every policy by name. `paper` and `reference` read un-noised signals."""

_HETEROGENEITY = ((0.05, 10.0), (0.5, 5.0), (1.0, 1.0))
"""Γ that the paper sets for Dir(β)."""


def make_policy(name: str, **settings: Any) -> Policy:
    """The policy of that name; a ConfigError offers the nearest name of a policy or setting that does not exist.

    >>> make_policy("fixed", local_steps=3)
    Fixed(local_steps=3, pace_limit=None)
    """
    policy = named("policy", name, POLICIES)
    known = {field.name: field for field in fields(policy)}
    for setting in settings:
        named(f"policy {name!r}: the setting", setting, known)
    made: Policy = policy(**settings)
    return made


def heterogeneity_for(dirichlet_beta: float | None) -> float:
    """Γ for a Dir(β) split: the paper's 10, 5, 1 at β = 0.05, 0.5, 1; None (IID) gives 0.

    Linear in log β in between; 10 below 0.05 and 1 above 1, since the paper sets nothing there.

    >>> [heterogeneity_for(beta) for beta in (0.01, 0.05, 0.5, 1.0, 100.0, None)]
    [10.0, 10.0, 5.0, 1.0, 1.0, 0.0]
    """
    if dirichlet_beta is None:
        return 0.0
    rule = "must be above 0, or None for IID"
    beta = checks.real("dirichlet_beta", dirichlet_beta, above=0, rule=rule)
    (low, high), (_, last) = _HETEROGENEITY[0], _HETEROGENEITY[-1]
    if beta <= low:
        return high
    for (left, upper), (right, lower) in pairwise(_HETEROGENEITY):
        if beta <= right:
            return lower + (upper - lower) * math.log(right / beta) / math.log(right / left)
    return last
