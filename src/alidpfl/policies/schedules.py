"""How the learning rate η falls over a run, as a multiple of its first value."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from alidpfl.inputs import checks
from alidpfl.inputs.names import named

LATE_FROM, LATE_DROP = 0.6, 0.9
"""`late_decay` holds η₀ for the first 60 % of the steps and then takes off up to 90 % of it."""

LAST = 0.999
"""Furthest progress that a schedule sees: a learning rate must stay above 0."""


def learning_rate(schedule: str, base: float, progress: float) -> float:
    """η of a step, above 0.

    Args:
        schedule: One of `SCHEDULES`.
        base: η₀.
        progress: t/T for step t = 0..T−1, the share of the steps that is *behind* the step, in [0, 1]. Beyond 0.999
            it counts as 0.999, so that `linear` and `cosine`, which end at 0, still move at the last step.

    >>> [round(learning_rate("late_decay", 0.5, p), 4) for p in (0.0, 0.6, 0.8, 0.999)]
    [0.5, 0.5, 0.275, 0.0511]
    """
    shape = named("schedule", schedule, SCHEDULES)
    base = checks.real("learning_rate", base, above=0, rule="must be above 0")
    rule = "must be in [0, 1]: the share of the steps behind this one"
    progress = checks.real("progress", progress, low=0, high=1, rule=rule)
    return base * shape(min(progress, LAST))


def _constant(progress: float) -> float:
    return 1.0


def _late_decay(progress: float) -> float:
    # η₀[1 − 0.9 (p − 0.6)/0.4] from p = 0.6 on
    return 1.0 - LATE_DROP * max(0.0, progress - LATE_FROM) / (1.0 - LATE_FROM)


def _linear(progress: float) -> float:
    return 1.0 - progress


def _cosine(progress: float) -> float:
    return (1.0 + math.cos(math.pi * progress)) / 2


SCHEDULES: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {"constant": _constant, "late_decay": _late_decay, "linear": _linear, "cosine": _cosine}
)
"""η/η₀ as a function of progress, by name. None rises."""
