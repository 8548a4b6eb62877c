"""The privacy budget of one data set."""

import sys
from dataclasses import dataclass

from alidpfl.inputs import checks

_LARGE = 10.0  # above this ε the odds of any conclusion about a record may change by a factor of 20,000


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget:
    """(ε, δ) for everything that is released from one data set. Both numbers are public.

    Neighbouring data sets differ by one added or removed record.

    >>> PrivacyBudget(epsilon=2.0, delta=1e-5)
    PrivacyBudget(epsilon=2.0, delta=1e-05)
    """

    epsilon: float
    """ε, finite and above 0, in natural-log units."""
    delta: float
    """δ, a probability in (0, 1). Keep it well below 1/n, where n is the number of records of the largest client."""

    def __post_init__(self) -> None:
        epsilon = checks.real("epsilon", self.epsilon, low=sys.float_info.min, rule="must be finite and above 0")
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", checked_delta(self.delta))

    def weakness(self, num_records: int, unit: str = "record") -> str | None:
        """Return why this budget protects a data set of so many records (or persons) poorly; None if it does not."""
        reasons = []
        if self.epsilon > _LARGE:
            reasons.append(f"epsilon={self.epsilon:g} hides next to nothing: usual values lie between 0.5 and 4")
        if self.delta >= 1 / num_records:
            reasons.append(
                f"delta={self.delta:g} is not below 1/{num_records} for a data set of {num_records} {unit}s: it would "
                "allow publishing each with probability delta, one or more on average; take one well below, such as "
                f"{0.01 / num_records:.0e}"
            )
        return ". And ".join(reasons) or None


def checked_delta(delta: object) -> float:
    """Return `delta` as a float in (0, 1); ConfigError otherwise."""
    rule = "must be in (0, 1); did you pass epsilon? A usual choice is well below 1 / number of records"
    return checks.real("delta", delta, above=0, below=1, rule=rule)
