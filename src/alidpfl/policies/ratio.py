"""The even pace: both budgets end together."""

import math
from dataclasses import dataclass
from typing import ClassVar

from alidpfl.policies.pace import even_steps
from alidpfl.policies.situation import Decision, Situation


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
