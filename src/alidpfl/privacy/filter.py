"""Accounting for noise that depends on earlier outputs (Adap DP-FL lowers σ when the loss falls).

Ordinary composition needs all sampling rates and noise multipliers fixed in advance. A Rényi filter does not. Fix an
order α and a limit B, let every next mechanism depend on all outputs so far, and stop before the sum of the R(α) of all
mechanisms exceeds B. Then the whole is (α, B)-RDP (Feldman & Zrnic 2020, "Individual privacy accounting via a Rényi
filter", arXiv 2008.11193).

The order must be fixed before the first output. Going on while *any* order of a grid still fits lets the outputs
choose the order, and the theorem no longer applies: a union bound over the grid would divide δ by its length.

The comments `proof filter N` name the lines of docs/explanation/proofs/filter.md.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from alidpfl.errors import BudgetExceededError
from alidpfl.inputs import checks
from alidpfl.privacy.accountants import ORDERS, epsilon_from_rdp, rdp_of_step
from alidpfl.privacy.accounting import no_step_error
from alidpfl.privacy.budget import PrivacyBudget
from alidpfl.privacy.mechanisms import MAX_STEPS, Mechanism, SampledGaussian, merged
from alidpfl.privacy.step_search import largest_affordable


@dataclass(frozen=True, kw_only=True)
class RdpFilter:
    """A budget, a Rényi order fixed in advance, and what was spent of the budget. `charge` returns the next state.

    Formal guarantee: all mechanisms that were charged before they ran are together (ε, δ)-differentially private, even
    if each depends on the outputs of those before it. The state is public, or post-processing of outputs.

    >>> budget = PrivacyBudget(epsilon=2.0, delta=1e-5)
    >>> filter = RdpFilter.for_plan(budget, sample_rate=0.015, noise_multiplier=1.1)
    >>> filter = filter.charge(SampledGaussian(sample_rate=0.015, noise_multiplier=1.1, steps=500))
    >>> filter.affordable_steps(sample_rate=0.015, noise_multiplier=1.0)
    22
    """

    budget: PrivacyBudget
    order: int
    """α, chosen from public values only, before the first output."""
    rdp_spent: float = 0.0
    """Sum of R(α) over all charges."""

    def __post_init__(self) -> None:
        checks.whole("order", self.order, low=2, high=max(ORDERS))
        checks.real("rdp_spent", self.rdp_spent, low=0, rule="must be finite and at least 0")

    @classmethod
    def for_plan(cls, budget: PrivacyBudget, sample_rate: float, noise_multiplier: float) -> "RdpFilter":
        """Return the filter with the order that allows the most steps of a planned, public mechanism."""
        filters = [cls(budget=budget, order=order) for order in ORDERS]  # proof filter 1
        steps = [f.affordable_steps(sample_rate, noise_multiplier) for f in filters]
        if max(steps) == 0:
            step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier)
            raise no_step_error(budget, [step], "rdp")  # for one step the best order gives what `rdp` gives
        return filters[steps.index(max(steps))]

    @property
    def epsilon_spent(self) -> float:
        """ε of all charges at the budget's δ; 0 before the first charge."""
        return self._epsilon(self.rdp_spent)

    def charge(self, mechanism: Mechanism) -> "RdpFilter":
        """Return the filter after `mechanism`, or raise BudgetExceededError. Call it before the mechanism runs."""
        rdp_spent = self.rdp_spent
        for m in merged([mechanism]):
            rdp_spent = _sum_rounded_up(rdp_spent, m.steps * self._rdp_of_step(m))
        if not self._epsilon(rdp_spent) <= self.budget.epsilon:  # proof filter 6
            raise BudgetExceededError(
                f"{mechanism} would spend epsilon={self._epsilon(rdp_spent):.6g} of epsilon={self.budget.epsilon:g} "
                f"at delta={self.budget.delta:g}, order {self.order}; epsilon={self.epsilon_spent:.6g} is spent: "
                "charge fewer steps (see affordable_steps) or stop"
            )
        return replace(self, rdp_spent=rdp_spent)

    def affordable_steps(self, sample_rate: float, noise_multiplier: float) -> int:
        """Return how many steps of this mechanism can still be charged at once: 0 to MAX_STEPS."""
        each = self._rdp_of_step(SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier))

        def epsilon_after(steps: int) -> float:
            return self._epsilon(_sum_rounded_up(self.rdp_spent, steps * each))

        return largest_affordable(epsilon_after, self.budget.epsilon, low=0, high=MAX_STEPS, guess=1)

    def _rdp_of_step(self, mechanism: SampledGaussian) -> float:
        # proof filter 2
        return float(rdp_of_step(mechanism.sample_rate, mechanism.noise_multiplier, (self.order,))[0])

    def _epsilon(self, rdp_spent: float) -> float:
        # A fixed increasing function of the sum, so `<= ε` means `sum <= B` for a B that is fixed in advance.
        # proof filter 4, 5
        return epsilon_from_rdp((self.order,), np.array([rdp_spent]), self.budget.delta)


def _sum_rounded_up(spent: float, more: float) -> float:
    """Return a float that is not below the exact sum, so that many small charges cannot get lost in rounding."""
    return math.nextafter(spent + more, math.inf) if more else spent  # proof filter 3
