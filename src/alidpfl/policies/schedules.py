"""Learning rate schedules: how η falls over a run, as a multiple of its first value."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from alidpfl.inputs import checks
from alidpfl.inputs.names import named

LATE_FROM, LATE_DROP = 0.6, 0.9
"""`late_decay` keeps η₀ for the first 60 % of the steps, then lowers it linearly by up to 90 %."""

LAST = 0.999
"""Largest progress that a schedule sees, so that the learning rate stays above 0."""

SCHEDULES: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "constant": lambda _progress: 1.0,
        "late_decay": lambda progress: 1.0 - LATE_DROP * max(0.0, progress - LATE_FROM) / (1.0 - LATE_FROM),
        "linear": lambda progress: 1.0 - progress,
        "cosine": lambda progress: (1.0 + math.cos(math.pi * progress)) / 2,
    }
)
"""η/η₀ as a function of progress, by name. None rises."""


def learning_rate(schedule: str, base: float, progress: float) -> float:
    """Return η of a step. It is above 0.

    Args:
        schedule: A name in `SCHEDULES`.
        base: η₀.
        progress: t/T for step t = 0..T−1, the share of the steps already taken, in [0, 1]. Values above 0.999 count
            as 0.999, so that `linear` and `cosine`, which end at 0, still move at the last step.

    >>> [round(learning_rate("late_decay", 0.5, p), 4) for p in (0.0, 0.6, 0.8, 0.999)]
    [0.5, 0.5, 0.275, 0.0511]
    """
    shape = named("schedule", schedule, SCHEDULES)
    base = checks.real("learning_rate", base, above=0, rule="must be above 0")
    rule = "must be in [0, 1]; it is the share of the steps already taken"
    progress = checks.real("progress", progress, low=0, high=1, rule=rule)
    return base * shape(min(progress, LAST))
