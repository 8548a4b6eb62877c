"""How far a run has come: the counters that decide when it must stop; and what comes next."""

from dataclasses import asdict, dataclass
from typing import Any

from alidpfl.types import Release

_MANY_PASSES = 100  # over a client's records in one round


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


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The next round, in numbers that are public before it."""

    charged_by: Release
    """What a budget is counted in: steps, or rounds where the noise goes on the update."""
    left: int
    """So many of them a client can pay for."""
    local_steps: int
    """τ."""
    sample_rate: float
    """q."""

    @property
    def warning(self) -> str | None:
        """Why the round takes very long, if it does: noise that pays for far more steps than there are rounds for.

        >>> Outlook(charged_by="step", left=24, local_steps=4, sample_rate=0.1).warning is None
        True
        """
        passes = self.local_steps * self.sample_rate
        if passes <= _MANY_PASSES:
            return None
        return (
            f"a round takes τ = {self.local_steps:,} local steps, {passes:,.0f} passes of every client over its "
            "records; lower noise_multiplier (or local_steps), allow more rounds, or let alidpfl run --plan auto choose"
        )
