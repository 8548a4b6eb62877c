"""How fast the budget may go: the even pace, and the clamp that every policy's answer passes through."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from alidpfl.errors import ConfigError
from alidpfl.inputs import checks
from alidpfl.policies.situation import MOST, Decision, Situation

PACE_LIMIT = 2.0
"""Default cap, in even paces. A rule must be free to move around the even pace (the paper's own τ go from 2 to 5 where
that is 2 to 5), but no estimate is good enough to be trusted with the whole budget: as training converges μ falls, and
uncapped Lemma 2 spends 314 steps in 19 of 158 rounds. Twice the pace is the smallest whole factor that lets τ move."""


def ratio_steps(k: int, max_rounds: int, max_steps: int) -> int:
    """τ_k = floor((k+1)R_c/R_s) − floor(k R_c/R_s), and 1 where R_c <= R_s: R_c spread evenly (Bresenham).

    >>> [ratio_steps(k, 4, 10) for k in range(4)]
    [2, 3, 2, 3]
    """
    if max_steps <= max_rounds:
        return 1
    return (k + 1) * max_steps // max_rounds - k * max_steps // max_rounds


def even_steps(situation: Situation) -> int:
    """The even pace for this round: `ratio_steps`, held to what is left over the rounds that are left.

    On plan the clamp never binds, so that this is the Bresenham sequence: S = ceil(R·R_c/R_s) steps are then left for
    R rounds, and each coming τ_k lies between floor(S/R) and ceil(S/R). Off plan (limits that moved) the clamp is the
    plan. Either way the last round takes what is left.
    """
    _require_steps(situation)
    expected = situation.rounds_left
    planned = ratio_steps(situation.round, situation.max_rounds, situation.max_steps)
    low, high = situation.steps_left // expected, math.ceil(situation.steps_left / expected)
    return min(max(planned, low, 1), high, situation.steps_left)


def paced(decision: Decision, situation: Situation, limit: float | None = PACE_LIMIT) -> Decision:
    """`decision` with τ in [1, steps_left] and, unless `limit` is None, not above `limit` even paces.

    The cap is floor(limit · ceil(S/R)) for S steps and R rounds left, and leaves one step for every round to come:
    with fewer, Lemma 1 says τ = 1. Where R_c >= R_s, a capped rule therefore runs all R_s rounds.
    """
    _require_steps(situation)
    most = situation.steps_left
    if limit is not None:
        expected = situation.rounds_left
        cap = math.floor(min(checked_limit(limit), MOST) * math.ceil(situation.steps_left / expected))
        most = min(most, max(1, min(cap, situation.steps_left - (expected - 1))))
    steps = min(max(1, decision.local_steps), most)
    if steps >= decision.local_steps:
        return replace(decision, local_steps=steps)
    reason = "by what is left" if steps == situation.steps_left else "by the pace"
    return replace(decision, local_steps=steps, why=f"{decision.why}, held to {steps} {reason}")


def checked_limit(limit: float) -> float:
    """`limit` as a float of at least 1: below, the cap would forbid the even pace itself."""
    rule = "must be 1 or more (1 is the even pace), or None for no cap"
    return checks.real("pace_limit", limit, low=1, rule=rule)


def nearest_whole(optimum: float) -> int:
    """τ* to the nearest whole number, int(x + 0.5), at least 1; infinity becomes a number that the clamp cuts.

    >>> nearest_whole(1.22), nearest_whole(2.5), nearest_whole(float("inf")) > 10**9
    (1, 3, True)
    """
    return max(1, int(min(optimum, float(MOST)) + 0.5))


def _require_steps(situation: Situation) -> None:
    if situation.steps_left == 0:
        raise ConfigError(
            f"steps_spent={situation.steps_spent} leaves nothing of max_steps={situation.max_steps}: "
            "end the run instead of planning another round"
        )


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """τ as set. Without a cap by default: the baseline may well use up its budget before the rounds end."""

    name: ClassVar[str] = "fixed"
    needs_raw_signals: ClassVar[bool] = False
    needs_curvature: ClassVar[bool] = False

    local_steps: int = 1
    pace_limit: float | None = None

    def __post_init__(self) -> None:
        checks.whole("local_steps", self.local_steps, low=1, high=MOST)
        if self.pace_limit is not None:
            checked_limit(self.pace_limit)

    def decide(self, situation: Situation) -> Decision:
        """τ as set, cut to what is left."""
        return paced(Decision(local_steps=self.local_steps, why="fixed"), situation, self.pace_limit)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """τ_k = floor((k+1)R_c/R_s) − floor(k R_c/R_s) while all goes to plan, else what is left spread evenly."""

    name: ClassVar[str] = "ratio"
    needs_raw_signals: ClassVar[bool] = False
    needs_curvature: ClassVar[bool] = False

    def decide(self, situation: Situation) -> Decision:
        """The even pace of this round."""
        return Decision(local_steps=even_steps(situation), why="ratio")


def fall_back(why: str, situation: Situation, *, curvature: float | None = None) -> Decision:
    """The even pace, for a policy that cannot do better now and says why.

    Never above R_c/R_s: what earlier rounds saved, for good reasons, is not spent at once by one that has none.
    """
    steps = min(even_steps(situation), math.ceil(situation.max_steps / situation.max_rounds))
    return Decision(local_steps=steps, why=why, curvature=curvature)
