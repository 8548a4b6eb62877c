"""Ledgers: what every client has spent, and what it can still afford. A client is charged before work is sent to it.

Record-level privacy is each client's own: its ε counts its own steps, never a sum over clients. A charge is never given
back, because a client that drops out may have released what was asked of it. Why each client's own steps are enough:
docs/explanation/proofs/parallel.md.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from alidpfl.errors import BudgetExceededError, ConfigError
from alidpfl.inputs import checks
from alidpfl.privacy.accounting import epsilon, epsilon_bound, max_steps, no_step_error, noise_multiplier_for
from alidpfl.privacy.budget import PrivacyBudget
from alidpfl.privacy.filter import RdpFilter
from alidpfl.privacy.group_privacy import group_epsilon
from alidpfl.privacy.mechanisms import MAX_STEPS, GaussianRelease, Mechanism, SampledGaussian
from alidpfl.types import ClientId

Releases: TypeAlias = tuple[GaussianRelease, ...]
"""Releases that every client is charged for before its first step."""


class Ledger(Protocol):
    """The operations that the training loop needs from a ledger."""

    def affordable_steps(self, client: ClientId, noise_multiplier: float) -> int:
        """Return how many more steps at this noise the client can pay for; 0 if none."""

    def charge(self, client: ClientId, steps: int, noise_multiplier: float, *, sample_rate: float) -> None:
        """Charge a client for steps before it takes them.

        Args:
            client: The client.
            steps: Number of steps.
            noise_multiplier: σ that the client will use.
            sample_rate: q that the client will use.

        Raises:
            BudgetExceededError: The client cannot pay, or this q or σ is not accounted for. Nothing is charged.
        """

    def steps_spent(self, client: ClientId) -> int:
        """Return the steps charged so far."""

    def epsilon_bound(self, client: ClientId) -> float:
        """Return a quick upper bound of the ε spent so far, never above the budget."""

    def epsilon(self, client: ClientId) -> float:
        """Return the ε spent so far, as tight as the accountant computes it."""

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint must keep."""

    def restore(self, values: Mapping[str, Any]) -> None:
        """Load what `to_json` returned."""


class _CountingLedger:
    """Base of both ledgers: counts steps by client, and refuses a saved state that was kept on other terms."""

    _terms: dict[str, Any]

    def __init__(self, budget: PrivacyBudget, sample_rate: float) -> None:
        self._budget, self._sample_rate = budget, sample_rate
        self._steps: Counter[ClientId] = Counter()

    def charge(self, client: ClientId, steps: int, noise_multiplier: float, *, sample_rate: float) -> None:
        """Charge a client before it takes the steps; see `Ledger.charge`."""
        if sample_rate != self._sample_rate:
            raise BudgetExceededError(
                f"sample_rate={sample_rate} is not the {self._sample_rate} that this ledger accounts for; train and "
                "account with one rate"
            )
        self._spend(client, steps, noise_multiplier)
        self._steps[client] += steps  # proof parallel 1

    def steps_spent(self, client: ClientId) -> int:
        """Return the steps charged so far."""
        return self._steps[client]

    def to_json(self) -> dict[str, Any]:
        """Return the terms of the ledger, and what each client has spent on them."""
        steps = {str(client): steps for client, steps in sorted(self._steps.items())}
        return {"terms": dict(self._terms), **self._spent(), "steps": steps}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Load what `to_json` returned; ConfigError if it was kept on other terms."""
        # Steps mean nothing without the noise and the rate that they were taken with.
        terms, saved = self._terms, values["terms"]
        changed = {key: (saved.get(key), new) for key, new in terms.items() if saved.get(key) != new}
        if changed:
            listed = ", ".join(f"{key} was {old} and is {new}" for key, (old, new) in changed.items())
            raise ConfigError(f"this ledger was kept on other terms: {listed}; restore the settings or start a new run")
        self._steps = Counter({int(client): int(steps) for client, steps in values["steps"].items()})

    def _spend(self, client: ClientId, steps: int, noise_multiplier: float) -> None:
        raise NotImplementedError

    def _spent(self) -> dict[str, Any]:
        return {}

    def _with_noise_hint(self, error: BudgetExceededError, accountant: str, spent: Releases) -> BudgetExceededError:
        """Return the error with the σ that pays for one step. The search is worth its time: a run asks only once."""
        try:
            noise = noise_multiplier_for(self._budget, self._sample_rate, 1, accountant=accountant, already_spent=spent)
        except BudgetExceededError:  # no noise is enough
            return error
        return BudgetExceededError(f"{error}; noise_multiplier={noise:g} would do")


class PlannedLedger(_CountingLedger):
    """A ledger for noise and sampling rate fixed in advance. Any accountant applies, and every client has the same R_c.

    Formal guarantee: no client spends more than the budget. The number of steps in a round may depend on outputs,
    because R_c bounds their sum in any case.

    >>> ledger = PlannedLedger(PrivacyBudget(epsilon=2.0, delta=1e-5), 0.015, 1.1, accountant="rdp-paper")
    >>> ledger.charge(0, 300, 1.1, sample_rate=0.015)
    >>> ledger.affordable_steps(0, 1.1), ledger.affordable_steps(1, 1.1)
    (14, 314)
    """

    def __init__(
        self,
        budget: PrivacyBudget,
        sample_rate: float,
        noise_multiplier: float,
        *,
        accountant: str = "pld",
        releases: Releases = (),
    ) -> None:
        """Open an account for every client.

        Args:
            budget: (ε, δ) of each client.
            sample_rate: q of every step; 1 for noise on whole updates.
            noise_multiplier: σ of every step.
            accountant: A name in `ACCOUNTANTS`.
            releases: Releases charged to every client before the first step.

        Raises:
            BudgetExceededError: The budget does not pay for one step.
        """
        super().__init__(budget, sample_rate)
        try:
            self.max_steps = max_steps(
                budget, sample_rate, noise_multiplier, accountant=accountant, already_spent=releases
            )
        except BudgetExceededError as error:
            raise self._with_noise_hint(error, accountant, releases) from None
        self._noise_multiplier, self._accountant, self._releases = noise_multiplier, accountant, releases
        self._terms = {
            "epsilon": self._budget.epsilon,
            "delta": self._budget.delta,
            "accountant": self._accountant,
            "sample_rate": self._sample_rate,
            "noise_multiplier": self._noise_multiplier,
            "releases": [[release.noise_multiplier, release.count] for release in self._releases],
        }

    def affordable_steps(self, client: ClientId, noise_multiplier: float) -> int:
        """Return how many more steps the client can pay for."""
        if noise_multiplier != self._noise_multiplier:
            raise BudgetExceededError(
                f"noise_multiplier={noise_multiplier} is not the {self._noise_multiplier} that this ledger was planned "
                "with; noise that changes from round to round needs a FilteredLedger"
            )
        return self.max_steps - self._steps[client]

    def epsilon_bound(self, client: ClientId) -> float:
        """Return a quick upper bound of the ε spent so far, never above the budget."""
        return min(epsilon_bound(self._mechanisms(client), self._budget.delta, self._accountant), self._budget.epsilon)

    def epsilon(self, client: ClientId) -> float:
        """Return the ε spent so far."""
        return epsilon(self._mechanisms(client), self._budget.delta, self._accountant)

    def group_epsilon(self, group: int) -> float:
        """Return ε of a group of records that are in or out together, once all steps of the budget are spent."""
        step = SampledGaussian(
            sample_rate=self._sample_rate, noise_multiplier=self._noise_multiplier, steps=self.max_steps
        )
        return group_epsilon([*self._releases, step], self._budget.delta, group)

    def _spend(self, client: ClientId, steps: int, noise_multiplier: float) -> None:
        checks.whole("steps", steps, low=1, high=MAX_STEPS)  # a negative number would be a refund
        if steps > (left := self.affordable_steps(client, noise_multiplier)):
            raise BudgetExceededError(
                f"client {client} cannot pay for {steps} steps: {left} of {self.max_steps} are left of "
                f"epsilon={self._budget.epsilon:g}; plan at most affordable_steps"
            )

    def _mechanisms(self, client: ClientId) -> list[Mechanism]:
        if (steps := self._steps[client]) == 0:
            return list(self._releases)
        step = SampledGaussian(sample_rate=self._sample_rate, noise_multiplier=self._noise_multiplier, steps=steps)
        return [*self._releases, step]


class FilteredLedger(_CountingLedger):
    """A ledger for noise that depends on outputs (Adap DP-FL): one `RdpFilter` for each client.

    Formal guarantee: no client spends more than the budget, whatever noise is chosen.
    """

    def __init__(
        self, budget: PrivacyBudget, sample_rate: float, noise_multiplier: float, *, releases: Releases = ()
    ) -> None:
        """Open an account for every client, with the order that allows most steps at the planned noise.

        Args:
            budget: (ε, δ) of each client.
            sample_rate: q of every step; 1 for noise on whole updates.
            noise_multiplier: σ of the first step, public in advance.
            releases: Releases charged to every client before the first step.

        Raises:
            BudgetExceededError: The budget does not pay for one step.
        """
        super().__init__(budget, sample_rate)
        try:
            fresh = RdpFilter.for_plan(budget, sample_rate, noise_multiplier)
        except BudgetExceededError as error:
            raise self._with_noise_hint(error, "rdp", releases) from None
        for release in releases:
            fresh = fresh.charge(release)
        self._fresh = fresh
        self.max_steps = fresh.affordable_steps(sample_rate, noise_multiplier)
        if self.max_steps < 1:
            step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier)
            raise self._with_noise_hint(no_step_error(budget, [*releases, step], "rdp"), "rdp", releases)
        self._filters: dict[ClientId, RdpFilter] = {}
        self._terms = {
            "epsilon": self._budget.epsilon,
            "delta": self._budget.delta,
            "order": self._fresh.order,
            "sample_rate": self._sample_rate,
            "rdp_of_releases": self._fresh.rdp_spent,
        }

    def affordable_steps(self, client: ClientId, noise_multiplier: float) -> int:
        """Return how many more steps at this noise the client can pay for."""
        return self._filter(client).affordable_steps(self._sample_rate, noise_multiplier)

    def epsilon(self, client: ClientId) -> float:
        """Return the ε spent so far."""
        return self._filter(client).epsilon_spent

    epsilon_bound = epsilon  # the filter's own value is quick

    def restore(self, values: Mapping[str, Any]) -> None:
        """Load what `to_json` returned; ConfigError if it was kept on other terms."""
        super().restore(values)
        self._filters = {
            int(client): RdpFilter(budget=self._budget, order=self._fresh.order, rdp_spent=float(spent))
            for client, spent in values["rdp_spent"].items()
        }

    def _spend(self, client: ClientId, steps: int, noise_multiplier: float) -> None:
        step = SampledGaussian(sample_rate=self._sample_rate, noise_multiplier=noise_multiplier, steps=steps)
        self._filters[client] = self._filter(client).charge(step)

    def _spent(self) -> dict[str, Any]:
        return {"rdp_spent": {str(client): f.rdp_spent for client, f in sorted(self._filters.items())}}

    def _filter(self, client: ClientId) -> RdpFilter:
        return self._filters.get(client, self._fresh)


class CappedLedger:
    """Another ledger, limited to the steps that the clients say they have left.

    A client's own number may only lower what the server planned with. So a lying client only excludes itself.

    >>> ledger = CappedLedger(PlannedLedger(PrivacyBudget(epsilon=2.0, delta=1e-5), 0.015, 1.1, accountant="rdp-paper"))
    >>> ledger.cap(0, 5)
    >>> ledger.affordable_steps(0, 1.1), ledger.affordable_steps(1, 1.1)
    (5, 314)
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._left: dict[ClientId, int] = {}
        # What this run has asked for. Only the data's owner knows the total of all runs.
        self.steps_spent, self.epsilon_bound, self.epsilon = ledger.steps_spent, ledger.epsilon_bound, ledger.epsilon

    def cap(self, client: ClientId, left: int) -> None:
        """Note that the client says it can pay for `left` more steps, after all that it was asked for."""
        self._left[client] = max(0, left)

    def affordable_steps(self, client: ClientId, noise_multiplier: float) -> int:
        """Return how many more steps both the ledger and the client allow."""
        planned = self._ledger.affordable_steps(client, noise_multiplier)
        return min(planned, self._left.get(client, planned))

    def charge(self, client: ClientId, steps: int, noise_multiplier: float, *, sample_rate: float) -> None:
        """Charge the ledger, see `Ledger.charge`, and lower the cap until the client's next answer replaces it."""
        self._ledger.charge(client, steps, noise_multiplier, sample_rate=sample_rate)
        if client in self._left:
            self.cap(client, self._left[client] - steps)

    def to_json(self) -> dict[str, Any]:
        """Return the ledger and the caps."""
        return {"planned": self._ledger.to_json(), "left": {str(c): left for c, left in sorted(self._left.items())}}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Load what `to_json` returned."""
        self._ledger.restore(values["planned"])
        self._left = {int(client): int(left) for client, left in values["left"].items()}
