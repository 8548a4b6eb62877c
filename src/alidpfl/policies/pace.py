"""The even pace, the cap that policies apply to their answers, and the two policies that need no signal.

The even pace spreads R_c steps over R_s rounds. `Fixed` takes a configured τ, `Ratio` the even pace.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from alidpfl.errors import ConfigError
from alidpfl.inputs import checks
from alidpfl.policies.situation import MAX_COUNT, Decision, Situation

PACE_LIMIT = 2.0
"""Default cap on τ, in multiples of the even pace. A policy must be free to move around the even pace: the paper's
own τ go from 2 to 5 where that is 2 to 5. But no estimate is good enough to be trusted with the whole budget. As
training converges μ falls, and Lemma 2 without a cap spends 314 steps in 19 of 158 rounds. Two is the smallest whole
factor that lets τ move."""


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Takes the configured τ. It has no cap by default: a baseline may spend its budget before the rounds end."""

    name: ClassVar[str] = "fixed"
    needs_raw_signals: ClassVar[bool] = False
    needs_curvature: ClassVar[bool] = False

    local_steps: int = 1
    pace_limit: float | None = None

    def __post_init__(self) -> None:
        checks.whole("local_steps", self.local_steps, low=1, high=MAX_COUNT)
        check_pace_limit(self.pace_limit)

    def decide(self, situation: Situation) -> Decision:
        """Return the configured τ, cut to the steps that are left."""
        return paced(Decision(local_steps=self.local_steps, why="fixed"), situation, self.pace_limit)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Takes the even pace. If the run is off plan, spreads the steps that are left evenly."""

    name: ClassVar[str] = "ratio"
    needs_raw_signals: ClassVar[bool] = False
    needs_curvature: ClassVar[bool] = False

    def decide(self, situation: Situation) -> Decision:
        """Return the even pace of this round."""
        return Decision(local_steps=even_steps(situation), why="ratio")


def ratio_steps(k: int, max_rounds: int, max_steps: int) -> int:
    """Return τ_k = floor((k+1)R_c/R_s) − floor(k R_c/R_s), or 1 if R_c <= R_s: R_c spread evenly (Bresenham).

    >>> [ratio_steps(k, 4, 10) for k in range(4)]
    [2, 3, 2, 3]
    """
    if max_steps <= max_rounds:
        return 1
    return (k + 1) * max_steps // max_rounds - k * max_steps // max_rounds


def even_steps(situation: Situation) -> int:
    """Return the even pace of this round: `ratio_steps`, clamped to steps left / rounds left, rounded down or up.

    On plan the clamp never binds: S = ceil(R·R_c/R_s) steps are then left for R rounds, and each later τ_k lies between
    floor(S/R) and ceil(S/R). Off plan, when limits moved, the clamp decides. Either way the last round takes the rest.
    """
    _require_steps(situation)
    planned = ratio_steps(situation.round, situation.max_rounds, situation.max_steps)
    left, rounds = situation.steps_left, situation.rounds_left
    return min(max(planned, left // rounds, 1), math.ceil(left / rounds), left)


def paced(decision: Decision, situation: Situation, limit: float | None = PACE_LIMIT) -> Decision:
    """Return `decision` with τ in [1, steps_left] and, unless `limit` is None, at most `limit` even paces.

    The cap is floor(limit · ceil(S/R)) for S steps and R rounds left. It also leaves one step for every later round,
    because with fewer steps than rounds Lemma 1 gives τ = 1. So a capped policy runs all R_s rounds if R_c >= R_s.
    """
    _require_steps(situation)
    most = situation.steps_left
    if limit is not None:
        check_pace_limit(limit)
        rounds = situation.rounds_left
        cap = math.floor(min(limit, MAX_COUNT) * math.ceil(situation.steps_left / rounds))
        most = min(most, max(1, min(cap, situation.steps_left - (rounds - 1))))
    steps = min(max(1, decision.local_steps), most)
    if steps >= decision.local_steps:
        return replace(decision, local_steps=steps)
    reason = "by what is left" if steps == situation.steps_left else "by the pace"
    return replace(decision, local_steps=steps, why=f"{decision.why}, held to {steps} {reason}")


def fall_back(why: str, situation: Situation, *, curvature: float | None = None) -> Decision:
    """Return the even pace, for a policy without a usable signal; `why` says what is missing.

    τ is at most R_c/R_s, rounded up. Steps that earlier rounds saved for a reason are not spent without one.
    """
    steps = min(even_steps(situation), math.ceil(situation.max_steps / situation.max_rounds))
    return Decision(local_steps=steps, why=why, curvature=curvature)


def check_pace_limit(limit: float | None) -> None:
    """Raise ConfigError if the cap is below 1: it would forbid the even pace itself."""
    if limit is not None:
        checks.real("pace_limit", limit, low=1, rule="must be 1 or more (1 is the even pace), or None for no cap")


def nearest_whole(optimum: float) -> int:
    """Return τ* rounded to the nearest whole number, at least 1. Infinity becomes a number that `paced` cuts.

    >>> nearest_whole(1.22), nearest_whole(2.5), nearest_whole(float("inf")) > 10**9
    (1, 3, True)
    """
    return max(1, int(min(optimum, float(MAX_COUNT)) + 0.5))


def _require_steps(situation: Situation) -> None:
    if situation.steps_left == 0:
        raise ConfigError(
            f"steps_spent={situation.steps_spent} leaves nothing of max_steps={situation.max_steps}: "
            "end the run instead of planning another round"
        )
