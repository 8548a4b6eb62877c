"""Accounting for Gaussian releases of all records, where each may have noise that depends on the outputs before it.

A release with noise multiplier σ costs 1/σ². Whatever a server chooses from earlier outputs, releases with Σ 1/σ² at
most 1/s² reveal no more than one release with s. Unlike for a Rényi filter, nothing is lost, and no order must be
fixed.

Proof. Fix two neighbours, and let Z be a Brownian motion with drift θ, which is 0 for one and 1 for the other. Let T be
the sum of 1/σ² before a release, which is known from earlier outputs. Divide the release's values by their sensitivity.
Its two means then differ by a vector v of length at most 1. Across v, its values have one distribution under both.
Along v, they are N(θ|v|, σ²) up to a known constant. The increment of Z from T to T + 1/σ² is N(θ/σ², 1/σ²),
independent of all before. Times σ²|v|, and with noise of variance σ²(1 - |v|²) added, it is N(θ|v|, σ²). So every
output is a function of Z until time 1/s² and of randomness that does not depend on θ. All that this path tells about θ
is in its end (it is sufficient for the drift), which is N(θ/s², 1/s²): one Gaussian release with noise multiplier s. ∎

The same path may be interleaved with steps that have a fixed dominating pair (Zhu, Dong & Wang 2022). So releases and
planned steps compose as if there was one release with s beside the steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from alidpfl.errors import BudgetExceededError
from alidpfl.inputs import checks
from alidpfl.privacy.accounting import noise_multiplier_for
from alidpfl.privacy.budget import PrivacyBudget
from alidpfl.privacy.mechanisms import MAX_NOISE_MULTIPLIER, MAX_STEPS, GaussianRelease, checked_noise_multiplier

_MARGIN = 1 + 1e-9  # far above the rounding of a sum


@dataclass(frozen=True, kw_only=True)
class GaussianFilter:
    """What may be spent on Gaussian releases, and what was spent. `charge` returns the next state.

    Formal guarantee: all releases that were charged before they ran reveal no more than one Gaussian release with
    `noise_multiplier`, even if each depends on the outputs of those before it.

    >>> filter = GaussianFilter(noise_multiplier=2.0).charge(5.0)
    >>> filter.affordable(4.0), filter.affordable(8.0)
    (3, 13)
    """

    noise_multiplier: float
    """s: a single release with this noise would spend everything."""
    spent: float = 0.0
    """Sum of 1/σ² over all charges, rounded up."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", checked_noise_multiplier(self.noise_multiplier))
        checks.real("spent", self.spent, low=0, rule="must be finite and at least 0")

    @classmethod
    def for_budget(cls, budget: PrivacyBudget, accountant: str = "pld") -> "GaussianFilter":
        """Return the filter for records that are in these releases and in nothing else."""
        return cls(noise_multiplier=noise_multiplier_for(budget, 1.0, 1, accountant=accountant))

    def left_after(self, releases: Sequence[GaussianRelease]) -> "GaussianFilter":
        """Return a filter for what releases before leave of this one; nothing of it is spent yet.

        >>> left = GaussianFilter(noise_multiplier=3.0).left_after([GaussianRelease(noise_multiplier=5.0)])
        >>> round(left.noise_multiplier, 6)  # 1/9 - 1/25 = 1/3.75²
        3.75
        """
        spent = 0.0
        for release in releases:
            spent = _sum(spent, release.count * _cost(release.noise_multiplier))
        if spent == 0:
            return self
        left = math.nextafter(self.limit - spent, -math.inf)
        if left <= 0:
            raise BudgetExceededError(
                f"earlier releases use up the budget: together they are one with noise_multiplier="
                f"{1 / math.sqrt(spent):.4g}, and it pays for {self.noise_multiplier:.4g} or more; raise epsilon"
            )
        return GaussianFilter(noise_multiplier=min(MAX_NOISE_MULTIPLIER, 1 / math.sqrt(left) * _MARGIN))

    @property
    def limit(self) -> float:
        """1/s², rounded down."""
        return math.nextafter(self.noise_multiplier**-2, 0)

    def noise_for(self, share: float) -> float:
        """Return the σ at which one release spends this share of the whole budget, in (0, 1], or a little less."""
        return min(self.noise_multiplier / math.sqrt(share) * _MARGIN, MAX_NOISE_MULTIPLIER)

    def affordable(self, noise_multiplier: float) -> int:
        """Return how many more releases with this noise can be charged: 0 to MAX_STEPS."""
        each = _cost(noise_multiplier)
        if self.spent + each * MAX_STEPS <= self.limit:
            return MAX_STEPS
        count = max(0, math.floor((self.limit - self.spent) / each))
        return count if count == 0 or _sum(self.spent, each * count) <= self.limit else count - 1

    def charge(self, noise_multiplier: float, count: int = 1) -> "GaussianFilter":
        """Return the filter after `count` releases, or raise BudgetExceededError. Call it before they run."""
        checks.whole("count", count, low=1, high=MAX_STEPS)
        if count > (left := self.affordable(noise_multiplier)):
            raise BudgetExceededError(
                f"{count} releases with noise_multiplier={noise_multiplier:g} exceed the budget, which pays for "
                f"{left}; ask for fewer, or with more noise"
            )
        return self.booked(noise_multiplier, count)

    def booked(self, noise_multiplier: float, count: int = 1) -> "GaussianFilter":
        """Return the filter after releases that were charged before. They are spent, even beyond the budget."""
        return replace(self, spent=_sum(self.spent, count * _cost(noise_multiplier)))

    @property
    def mechanisms(self) -> tuple[GaussianRelease, ...]:
        """What was spent, as one release; empty before the first charge."""
        if not self.spent:
            return ()
        return (GaussianRelease(noise_multiplier=min(MAX_NOISE_MULTIPLIER, 1 / math.sqrt(self.spent) / _MARGIN)),)


def _cost(noise_multiplier: float) -> float:
    return math.nextafter(checked_noise_multiplier(noise_multiplier) ** -2, math.inf)


def _sum(spent: float, more: float) -> float:
    """Return a float that is not below the exact sum."""
    return math.nextafter(spent + math.nextafter(more, math.inf), math.inf)
