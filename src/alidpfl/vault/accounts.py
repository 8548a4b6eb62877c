"""Privacy accounts of a data set. They stay valid whatever a server chooses after seeing every answer.

A server may choose the steps, σ, q, C and η of each round from all answers so far. Two kinds of accounting allow that:

- **planned**: every step is charged at the terms' q and least σ, even if it had more noise. A step with q' <= q and
  σ' >= σ reveals no more. Adding noise is post-processing. Sampling at q' is sampling at q, where the outcome is
  replaced by the one without the record with probability 1 - q'/q. So one fixed pair of distributions dominates every
  step, and its composition dominates the adaptive composition of the steps (Zhu, Dong & Wang 2022, "Optimal accounting
  of differential privacy via characteristic function"). So any accountant applies, with a number of steps fixed in
  advance. Planned steps that are never run cost nothing.
- **filter**: every step is charged at its own q and σ by a Rényi filter (Feldman & Zrnic 2020). The filter's order is
  fixed at enrolment. It is looser at the least σ, and better if σ begins well above it (Adap DP-FL).

Composing the q and σ of past rounds as if they had been fixed in advance would be tighter than both, and wrong.

Queries are charged by a `GaussianFilter`, at any σ that the server chooses. Held-out records are in no step, so their
filter has the whole budget of its own (docs/explanation/proofs/parallel.md). Statistics read the training records. The
policy fixes what all of them together may spend, as one release with σ, and the steps are charged beside that release
from the start.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from alidpfl.privacy import (
    GaussianFilter,
    GaussianRelease,
    PlannedLedger,
    PrivacyBudget,
    RdpFilter,
    SampledGaussian,
)
from alidpfl.releases.queries import RecordPart
from alidpfl.vault.policy import Policy

_DATA_SET = 0  # a ledger of the package has many clients; a vault has one data set


class PlannedAccount:
    """Charges every unit at the terms' q and σ. Units are steps, or rounds if the noise is on the update."""

    def __init__(
        self,
        budget: PrivacyBudget,
        sample_rate: float,
        noise_multiplier: float,
        accountant: str,
        releases: tuple[GaussianRelease, ...] = (),
    ) -> None:
        """Open an empty account.

        Args:
            budget: ε and δ of the data set.
            sample_rate: q that every step is charged at.
            noise_multiplier: σ that every step is charged at, the least that the policy allows.
            accountant: how ε is computed.
            releases: what queries of the same records may spend. It counts as spent from the start.
        """
        self._ledger = PlannedLedger(budget, sample_rate, noise_multiplier, accountant=accountant, releases=releases)
        self._noise_multiplier = noise_multiplier
        self.units = 0

    def affordable(self, sample_rate: float, noise_multiplier: float) -> int:
        """Return how many more units the budget pays for: the same for every q and σ within the terms."""
        return max(0, self._ledger.affordable_steps(_DATA_SET, self._noise_multiplier))

    def book(self, units: int, sample_rate: float, noise_multiplier: float) -> None:
        """Add units of the ledger at the terms' q and σ. They are spent, even if they exceed the budget."""
        self.units += units
        self._ledger.restore({**self._ledger.to_json(), "steps": {str(_DATA_SET): self.units}})

    def epsilon(self) -> float:
        """Return ε by the policy's accountant."""
        return self._ledger.epsilon(_DATA_SET)


class FilterAccount:
    """Charges every unit at its own q and σ."""

    def __init__(self, budget: PrivacyBudget, order: int, releases: tuple[GaussianRelease, ...] = ()) -> None:
        self._filter = RdpFilter(budget=budget, order=order)
        for release in releases:
            self._filter = self._filter.charge(release)
        self.units = 0

    def affordable(self, sample_rate: float, noise_multiplier: float) -> int:
        """Return how many more units at this q and σ the budget pays for."""
        return self._filter.affordable_steps(sample_rate, noise_multiplier)

    def book(self, units: int, sample_rate: float, noise_multiplier: float) -> None:
        """Add units of the ledger at their own q and σ. They are spent, even if they exceed the budget."""
        self.units += units
        budget = self._filter.budget
        boundless = PrivacyBudget(epsilon=sys.float_info.max, delta=budget.delta)
        step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=units)
        self._filter = replace(replace(self._filter, budget=boundless).charge(step), budget=budget)

    def epsilon(self) -> float:
        """Return ε at the filter's order."""
        return self._filter.epsilon_spent


Account: TypeAlias = PlannedAccount | FilterAccount
"""What a data set has spent, and what it can still afford."""


def filter_order(policy: Policy) -> int | None:
    """Return the Rényi order to fix at enrolment, which pays for most units at the terms; None without a filter."""
    if policy.accounting.kind != "filter":
        return None
    return RdpFilter.for_plan(budget_of(policy), charged_rate(policy), policy.terms.min_noise_multiplier).order


def make_account(policy: Policy, order: int | None) -> Account:
    """Return an empty account on the policy's terms. Raise BudgetExceededError if they do not pay for one unit."""
    reserved: tuple[GaussianRelease, ...] = ()
    if policy.statistics is not None:
        reserved = (GaussianRelease(noise_multiplier=policy.statistics.noise_multiplier),)
    if order is not None:
        return FilterAccount(budget_of(policy), order, reserved)
    noise_multiplier, accountant = policy.terms.min_noise_multiplier, policy.accounting.accountant
    return PlannedAccount(budget_of(policy), charged_rate(policy), noise_multiplier, accountant, reserved)


Filters: TypeAlias = Mapping[RecordPart, GaussianFilter]
"""What the queries of each part may spend and have spent. A part that the policy does not open is missing."""


def make_filters(policy: Policy) -> Filters:
    """Return the empty accounts of the queries."""
    filters = dict[RecordPart, GaussianFilter]()
    if policy.statistics is not None:
        filters["training"] = GaussianFilter(noise_multiplier=policy.statistics.noise_multiplier)
    if (budget := evaluation_budget(policy)) is not None:
        filters["held_out"] = GaussianFilter.for_budget(budget, policy.accounting.accountant)
    return filters


def evaluation_budget(policy: Policy) -> PrivacyBudget | None:
    """Return the budget of the held-out records; None if they may not be evaluated on."""
    if policy.evaluation is None:
        return None
    return replace(budget_of(policy), epsilon=policy.evaluation.epsilon or policy.budget.epsilon)


def charged_rate(policy: Policy, sample_rate: float | None = None) -> float:
    """Return the q at which a unit is charged. It is 1 for a noised update, which is a release of all records."""
    if policy.terms.release == "update":
        return 1.0
    return policy.terms.sample_rate if sample_rate is None else sample_rate


def budget_of(policy: Policy) -> PrivacyBudget:
    """Return the budget of the data set."""
    return PrivacyBudget(epsilon=policy.budget.epsilon, delta=policy.budget.delta)
