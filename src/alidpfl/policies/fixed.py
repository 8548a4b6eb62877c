"""FedAvg+DP: the same number of local steps in every round (Algorithm 1)."""

from dataclasses import dataclass
from typing import ClassVar

from alidpfl.inputs import checks
from alidpfl.policies.pace import checked_limit, paced
from alidpfl.policies.situation import MOST, Decision, Situation


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
