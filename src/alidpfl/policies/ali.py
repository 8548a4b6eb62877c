"""The default: Lemma 2 fed by the private curvature, held to what the budgets can carry."""

import math
from dataclasses import dataclass
from typing import ClassVar

from alidpfl.policies.lemma2 import enough_rounds, optimum, shown
from alidpfl.policies.pace import PACE_LIMIT, checked_limit, nearest_whole, paced
from alidpfl.policies.ratio import fall_back
from alidpfl.policies.situation import Decision, Situation, usable


@dataclass(frozen=True, kw_only=True)
class Ali:
    """Lemma 1, else Lemma 2 from noised signals only; the even pace while the curvature is not resolved."""

    name: ClassVar[str] = "ali"
    needs_raw_signals: ClassVar[bool] = False
    needs_curvature: ClassVar[bool] = True

    pace_limit: float | None = PACE_LIMIT
    """Cap on τ in even paces; None for none, at the risk of a runaway (see `PACE_LIMIT`)."""

    def __post_init__(self) -> None:
        if self.pace_limit is not None:
            checked_limit(self.pace_limit)

    def decide(self, situation: Situation) -> Decision:
        """τ of this round."""
        if enough_rounds(situation):
            return paced(Decision(local_steps=1, why="ali: Lemma 1"), situation, self.pace_limit)
        curvature, heterogeneity = usable(situation.curvature), situation.heterogeneity
        if curvature is None:
            return fall_back("curvature not resolved: ratio", situation)
        best = optimum(situation, curvature=curvature, heterogeneity=heterogeneity)
        if math.isnan(best):
            return fall_back("curvature out of range: ratio", situation)
        decision = Decision(
            local_steps=nearest_whole(best),
            why=shown("ali", best),
            curvature=curvature,
            heterogeneity=heterogeneity,
        )
        return paced(decision, situation, self.pace_limit)
