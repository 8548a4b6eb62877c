"""How far a run has come: the counters that decide when it must stop."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Progress:
    """After the rounds so far. JSON can hold all of it."""

    round: int = 0
    """Rounds done; the number of the next one."""
    local_steps: int = 0
    """Σ τ."""
    previous_steps: int = 0
    """τ of the last round."""
    bytes: int = 0
    """Traffic, both directions."""
    seconds: float = 0.0
    slowest_round: float = 0.0
    """Seconds of the slowest round so far."""
    epsilon: float = 0.0
    """Largest ε of any client so far, from above."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
