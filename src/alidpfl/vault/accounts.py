"""What a data set has spent, by accounting that stays valid whatever a server chooses after seeing every answer.

A server may choose the number of steps, σ, q, C and η of each round from all answers so far. Two ways of accounting
hold under that:

- **planned**: every step is charged as one at the terms' q and least σ, however much noise it had. A step with q' <= q
  and σ' >= σ reveals no more: more noise is post-processing, and sampling at q' is sampling at q whose outcome is
  thrown away with probability 1 - q'/q and replaced by the one without the record. So each step is dominated by one
  fixed pair of distributions, whatever came before, and so is their adaptive composition (Zhu, Dong & Wang 2022,
  "Optimal accounting of differential privacy via characteristic function"): any accountant applies, with a number of
  steps fixed in advance. Steps that are never run cost nothing to have planned.
- **filter**: every step is charged at its own q and σ by a Rényi filter (Feldman & Zrnic 2020), whose order was fixed
  at enrolment. Looser at the least σ, better where σ begins well above it (Adap DP-FL).

Composing the q and σ of past rounds as if they had been fixed in advance would be tighter than both, and wrong.
"""

import sys
from dataclasses import replace
from typing import Protocol

from alidpfl.privacy import PlannedLedger, PrivacyBudget, RdpFilter, SampledGaussian
from alidpfl.vault.policy import Policy

_DATA_SET = 0  # the accounts of a run have many clients, a vault has one data set


class Account(Protocol):
    """What a data set can still afford. Units are steps, or rounds where the noise goes on the update."""

    units: int
    """Booked so far."""

    def affordable(self, sample_rate: float, noise_multiplier: float) -> int:
        """How many more such units the budget pays for; never negative."""

    def book(self, units: int, sample_rate: float, noise_multiplier: float) -> None:
        """Count units that are in the ledger, whether the budget pays for them or not: what is spent is spent."""

    def epsilon(self) -> float:
        """ε of what was booked."""


class PlannedAccount:
    """Every unit at the terms."""

    def __init__(self, budget: PrivacyBudget, sample_rate: float, noise_multiplier: float, accountant: str) -> None:
        self._ledger = PlannedLedger(budget, sample_rate, noise_multiplier, accountant=accountant)
        self._noise_multiplier = noise_multiplier
        self.units = 0

    def affordable(self, sample_rate: float, noise_multiplier: float) -> int:
        """The same for every q and σ within the terms."""
        return max(0, self._ledger.affordable_steps(_DATA_SET, self._noise_multiplier))

    def book(self, units: int, sample_rate: float, noise_multiplier: float) -> None:
        """Count units."""
        self.units += units
        self._ledger.restore({**self._ledger.to_json(), "steps": {str(_DATA_SET): self.units}})

    def epsilon(self) -> float:
        """By the accountant of the policy."""
        return self._ledger.epsilon(_DATA_SET)


class FilterAccount:
    """Every unit at its own q and σ."""

    def __init__(self, budget: PrivacyBudget, order: int) -> None:
        self._filter = RdpFilter(budget=budget, order=order)
        self.units = 0

    def affordable(self, sample_rate: float, noise_multiplier: float) -> int:
        """At this q and σ."""
        return self._filter.affordable_steps(sample_rate, noise_multiplier)

    def book(self, units: int, sample_rate: float, noise_multiplier: float) -> None:
        """Add what the units cost at the filter's order."""
        self.units += units
        budget = self._filter.budget
        boundless = PrivacyBudget(epsilon=sys.float_info.max, delta=budget.delta)
        step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=units)
        self._filter = replace(replace(self._filter, budget=boundless).charge(step), budget=budget)

    def epsilon(self) -> float:
        """At the filter's order."""
        return self._filter.epsilon_spent


def filter_order(policy: Policy) -> int | None:
    """The Rényi order to fix at enrolment: the one that pays for most units at the terms. None where none is needed."""
    if policy.accounting.kind != "filter":
        return None
    return RdpFilter.for_plan(budget_of(policy), charged_rate(policy), policy.terms.min_noise_multiplier).order


def make_account(policy: Policy, order: int | None) -> Account:
    """A fresh account on the policy's terms; BudgetExceededError if they do not pay for one unit."""
    if order is not None:
        return FilterAccount(budget_of(policy), order)
    noise_multiplier, accountant = policy.terms.min_noise_multiplier, policy.accounting.accountant
    return PlannedAccount(budget_of(policy), charged_rate(policy), noise_multiplier, accountant)


def charged_rate(policy: Policy, sample_rate: float | None = None) -> float:
    """Q that a unit is charged at: a noised update is a release of all records, however its steps were sampled."""
    if policy.terms.release == "update":
        return 1.0
    return policy.terms.sample_rate if sample_rate is None else sample_rate


def budget_of(policy: Policy) -> PrivacyBudget:
    """What the data set may ever spend."""
    return PrivacyBudget(epsilon=policy.budget.epsilon, delta=policy.budget.delta)
