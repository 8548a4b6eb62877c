"""What every client has spent, and what it can still afford. The rule of all of them: charge before the work is sent.

Sample-level privacy is each client's own: its ε counts its own steps, never a sum over clients. A charge is not given
back, whatever becomes of the work: a client that drops out may have released what was asked of it.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from alidpfl.errors import BudgetExceededError, ConfigError
from alidpfl.inputs import checks
from alidpfl.privacy.accounting import epsilon, epsilon_bound, max_steps, no_step_error, noise_multiplier_for
from alidpfl.privacy.budget import PrivacyBudget
from alidpfl.privacy.filter import RdpFilter
from alidpfl.privacy.mechanisms import MAX_STEPS, GaussianRelease, Mechanism, SampledGaussian, merged
from alidpfl.types import ClientId


class Ledger(Protocol):
    """What the training loop asks of the accounts. Noise and sampling rate are those of the next step."""

    def affordable_steps(self, client: ClientId, noise_multiplier: float) -> int:
        """How many more steps the client can pay for; 0 if none."""

    def charge(self, client: ClientId, steps: int, noise_multiplier: float, *, sample_rate: float) -> None:
        """Book `steps` steps; BudgetExceededError, and nothing booked, if that would cross the client's budget.

        Noise and sampling rate are those that the client will use: what is not accounted for is refused.
        """

    def steps_spent(self, client: ClientId) -> int:
        """Steps booked so far."""

    def epsilon_bound(self, client: ClientId) -> float:
        """ε spent so far, from above and quickly; never more than the budget."""

    def epsilon(self, client: ClientId) -> float:
        """ε spent so far, as tight as the accountant can."""

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint must keep."""

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take over what `to_json` gave."""


class PlannedLedger:
    """Noise and sampling rate fixed in advance, so that any accountant applies; R_c is the same for every client.

    The number of steps in a round may depend on outputs: R_c bounds their sum whatever they are.

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
        releases: tuple[GaussianRelease, ...] = (),
    ) -> None:
        """Every client is charged `releases` first, then steps of one kind (sample_rate=1: noise on whole updates)."""
        try:
            self.max_steps = max_steps(
                budget, sample_rate, noise_multiplier, accountant=accountant, already_spent=releases
            )
        except BudgetExceededError as error:
            raise _with_noise_that_would_do(error, budget, sample_rate, accountant, releases) from None
        self._budget, self._accountant, self._releases = budget, accountant, releases
        self._sample_rate, self._noise_multiplier = sample_rate, noise_multiplier
        self._steps: Counter[ClientId] = Counter()

    def affordable_steps(self, client: ClientId, noise_multiplier: float) -> int:
        """How many more steps the client can pay for."""
        self._check_noise(noise_multiplier)
        return self.max_steps - self._steps[client]

    def charge(self, client: ClientId, steps: int, noise_multiplier: float, *, sample_rate: float) -> None:
        """Book `steps` steps, or refuse."""
        _check_rate(sample_rate, self._sample_rate)
        checks.whole("steps", steps, low=1, high=MAX_STEPS)  # a negative number would be a refund
        if steps > (left := self.affordable_steps(client, noise_multiplier)):
            raise BudgetExceededError(
                f"client {client} cannot pay for {steps} steps: {left} of {self.max_steps} are left of "
                f"epsilon={self._budget.epsilon:g}; plan at most affordable_steps"
            )
        self._steps[client] += steps

    def steps_spent(self, client: ClientId) -> int:
        """Steps booked so far."""
        return self._steps[client]

    def epsilon_bound(self, client: ClientId) -> float:
        """ε spent so far, from above."""
        spent = self._mechanisms(client)
        return min(epsilon_bound(spent, self._budget.delta, self._accountant), self._budget.epsilon)

    def epsilon(self, client: ClientId) -> float:
        """ε spent so far."""
        return epsilon(self._mechanisms(client), self._budget.delta, self._accountant)

    def to_json(self) -> dict[str, Any]:
        """Steps by client, and the terms that they were counted on."""
        return {"terms": self._terms(), "steps": {str(client): steps for client, steps in sorted(self._steps.items())}}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take over what `to_json` gave; refuse accounts that were kept on other terms."""
        _check_terms(values, self._terms())
        self._steps = Counter({int(client): int(steps) for client, steps in values["steps"].items()})

    def _terms(self) -> dict[str, Any]:
        return {
            "epsilon": self._budget.epsilon,
            "delta": self._budget.delta,
            "accountant": self._accountant,
            "sample_rate": self._sample_rate,
            "noise_multiplier": self._noise_multiplier,
            "releases": [[release.noise_multiplier, release.count] for release in self._releases],
        }

    def _mechanisms(self, client: ClientId) -> list[Mechanism]:
        steps = self._steps[client]
        if steps == 0:
            return list(self._releases)
        step = SampledGaussian(sample_rate=self._sample_rate, noise_multiplier=self._noise_multiplier, steps=steps)
        return [*self._releases, step]

    def _check_noise(self, noise_multiplier: float) -> None:
        if noise_multiplier != self._noise_multiplier:
            raise BudgetExceededError(
                f"noise_multiplier={noise_multiplier} is not the {self._noise_multiplier} that this ledger was planned "
                "with; noise that changes from round to round needs a FilteredLedger"
            )


class FilteredLedger:
    """Noise chosen by looking at outputs (Adap DP-FL): one Rényi filter a client."""

    def __init__(
        self,
        budget: PrivacyBudget,
        sample_rate: float,
        noise_multiplier: float,
        *,
        releases: tuple[GaussianRelease, ...] = (),
    ) -> None:
        """The filter's order is the one that allows most steps at the noise that is public in advance."""
        try:
            fresh = RdpFilter.for_plan(budget, sample_rate, noise_multiplier)
        except BudgetExceededError as error:
            raise _with_noise_that_would_do(error, budget, sample_rate, "rdp", releases) from None
        for release in releases:
            fresh = fresh.charge(release)
        self._fresh = fresh
        self.max_steps = fresh.affordable_steps(sample_rate, noise_multiplier)
        if self.max_steps < 1:
            step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier)
            raise _with_noise_that_would_do(
                no_step_error(budget, step, "rdp", merged(releases)), budget, sample_rate, "rdp", releases
            )
        self._sample_rate = sample_rate
        self._filters: dict[ClientId, RdpFilter] = {}
        self._steps: Counter[ClientId] = Counter()

    def affordable_steps(self, client: ClientId, noise_multiplier: float) -> int:
        """How many more steps at this noise the client can pay for."""
        return self._filter(client).affordable_steps(self._sample_rate, noise_multiplier)

    def charge(self, client: ClientId, steps: int, noise_multiplier: float, *, sample_rate: float) -> None:
        """Book `steps` steps at this noise, or refuse."""
        _check_rate(sample_rate, self._sample_rate)
        step = SampledGaussian(sample_rate=self._sample_rate, noise_multiplier=noise_multiplier, steps=steps)
        self._filters[client] = self._filter(client).charge(step)
        self._steps[client] += steps

    def steps_spent(self, client: ClientId) -> int:
        """Steps booked so far."""
        return self._steps[client]

    def epsilon_bound(self, client: ClientId) -> float:
        """ε spent so far: the filter's own is quick."""
        return self.epsilon(client)

    def epsilon(self, client: ClientId) -> float:
        """ε spent so far."""
        return self._filter(client).epsilon_spent

    def to_json(self) -> dict[str, Any]:
        """Rényi divergence and steps by client, and the terms that they were counted on."""
        return {
            "terms": self._terms(),
            "rdp_spent": {str(client): f.rdp_spent for client, f in sorted(self._filters.items())},
            "steps": {str(client): steps for client, steps in sorted(self._steps.items())},
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take over what `to_json` gave; refuse accounts that were kept on other terms."""
        _check_terms(values, self._terms())
        fresh = self._fresh
        self._filters = {
            int(client): RdpFilter(budget=fresh.budget, order=fresh.order, rdp_spent=float(spent))
            for client, spent in values["rdp_spent"].items()
        }
        self._steps = Counter({int(client): int(steps) for client, steps in values["steps"].items()})

    def _terms(self) -> dict[str, Any]:
        fresh = self._fresh
        return {
            "epsilon": fresh.budget.epsilon,
            "delta": fresh.budget.delta,
            "order": fresh.order,
            "sample_rate": self._sample_rate,
            "rdp_of_releases": fresh.rdp_spent,
        }

    def _filter(self, client: ClientId) -> RdpFilter:
        return self._filters.get(client, self._fresh)


def _with_noise_that_would_do(
    error: BudgetExceededError,
    budget: PrivacyBudget,
    sample_rate: float,
    accountant: str,
    releases: tuple[GaussianRelease, ...],
) -> BudgetExceededError:
    """The refusal of a run, with the σ that pays for one step: worth a search here, where it is asked for once."""
    try:
        noise = noise_multiplier_for(budget, sample_rate, 1, accountant=accountant, already_spent=releases)
    except BudgetExceededError:  # none is enough
        return error
    return BudgetExceededError(f"{error}; noise_multiplier={noise:g} would do")


def _check_rate(asked: float, planned: float) -> None:
    if asked != planned:
        raise BudgetExceededError(
            f"sample_rate={asked} is not the {planned} that this ledger accounts for; train and account with one rate"
        )


def _check_terms(values: Mapping[str, Any], terms: Mapping[str, Any]) -> None:
    """Steps mean nothing without the noise and the rate that they were taken with."""
    changed = {key: (values["terms"].get(key), new) for key, new in terms.items() if values["terms"].get(key) != new}
    if changed:
        told = ", ".join(f"{key} was {old} and is {new}" for key, (old, new) in changed.items())
        raise ConfigError(f"these accounts were kept on other terms: {told}; put the settings back, or start a new run")


class CappedLedger:
    """Another ledger, held to what the clients say is left.

    What they say may only lower what the server planned with: a client that lies takes nobody out but itself.

    >>> from alidpfl.privacy import PlannedLedger, PrivacyBudget
    >>> ledger = CappedLedger(PlannedLedger(PrivacyBudget(epsilon=2.0, delta=1e-5), 0.015, 1.1, accountant="rdp-paper"))
    >>> ledger.cap(0, 5)
    >>> ledger.affordable_steps(0, 1.1), ledger.affordable_steps(1, 1.1)
    (5, 314)
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._left: dict[ClientId, int] = {}

    def cap(self, client: ClientId, left: int) -> None:
        """The client says that it can pay for `left` more steps, after all that it was asked for."""
        self._left[client] = max(0, left)

    def affordable_steps(self, client: ClientId, noise_multiplier: float) -> int:
        """By both accounts."""
        planned = self._ledger.affordable_steps(client, noise_multiplier)
        return min(planned, self._left.get(client, planned))

    def charge(self, client: ClientId, steps: int, noise_multiplier: float, *, sample_rate: float) -> None:
        """Book in both; the client's own word replaces ours with its next answer."""
        self._ledger.charge(client, steps, noise_multiplier, sample_rate=sample_rate)
        if client in self._left:
            self.cap(client, self._left[client] - steps)

    def steps_spent(self, client: ClientId) -> int:
        """Steps booked so far in this run."""
        return self._ledger.steps_spent(client)

    def epsilon_bound(self, client: ClientId) -> float:
        """ε that this run has asked for, from above."""
        return self._ledger.epsilon_bound(client)

    def epsilon(self, client: ClientId) -> float:
        """ε that this run has asked for; what the data set has spent in all, only its owner knows."""
        return self._ledger.epsilon(client)

    def to_json(self) -> dict[str, Any]:
        """Both accounts."""
        return {"planned": self._ledger.to_json(), "left": {str(c): left for c, left in sorted(self._left.items())}}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take over what `to_json` gave."""
        self._ledger.restore(values["planned"])
        self._left = {int(client): int(left) for client, left in values["left"].items()}
