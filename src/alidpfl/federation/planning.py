"""Plan a round: whether there is one, which clients take part, how many steps they run, at which C, σ and η.

Nothing here touches data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from alidpfl.errors import ConfigError
from alidpfl.federation.settings import FederationSettings, Progress
from alidpfl.inputs import checks
from alidpfl.methods import Method
from alidpfl.policies import Decision, Policy, Situation, learning_rate
from alidpfl.privacy import FilteredLedger, GaussianRelease, Ledger, PlannedLedger, PrivacyBudget
from alidpfl.types import UNACCOUNTED_SIGNALS, ClientId, ClientPlan, Signal, StopReason

BYTES_PER_NUMBER = 4
_COHORT, _FAILURES = 1, 2  # separate random streams
_UNLIMITED_STEPS = 1_000_000
_POLICY_ATTRIBUTES = ("name", "needs_raw_signals", "needs_curvature", "decide")


def make_ledger(
    method: Method,
    budget: PrivacyBudget,
    sample_rate: float,
    noise_multiplier: float,
    accountant: str,
    *,
    releases: tuple[GaussianRelease, ...] = (),
) -> Ledger:
    """Return the ledger that a method needs. Nothing but `releases` is charged yet.

    Args:
        method: a method that adapts its noise to outputs needs a Rényi filter.
        budget: (ε, δ) of every client.
        sample_rate: q of a step.
        noise_multiplier: σ of a step, or of an update.
        accountant: how ε is computed, where the method does not adapt its noise.
        releases: what every client has been charged before its first round.
    """
    if method.adapts_noise:
        return FilteredLedger(budget, sample_rate, noise_multiplier, releases=releases)
    rate = 1.0 if method.release == "update" else sample_rate  # a noised update is a release of all records
    return PlannedLedger(budget, rate, noise_multiplier, accountant=accountant, releases=releases)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What the next round's plan may depend on, from earlier rounds."""

    method_state: Mapping[str, Any]
    curvature: float | None = None
    """The private estimate; None while it is below its own noise."""
    raw_curvature: float | None = None
    raw_heterogeneity: float | None = None


class RoundPlanner:
    """Plans rounds from settings, the ledger and observations of earlier rounds."""

    def __init__(
        self,
        *,
        method: Method,
        policy: Policy,
        ledger: Ledger,
        sizes: Mapping[ClientId, int],
        shares: Sequence[float],
        num_params: int,
        settings: FederationSettings,
    ) -> None:
        """Check that the parts fit together. `shares` are the clients' shares of the average; see `Federation`.

        Raises:
            ConfigError: un-noised signals that were not admitted by name, or limits that pay for no round.
        """
        missing = [name for name in _POLICY_ATTRIBUTES if not hasattr(policy, name)]
        if missing:
            raise ConfigError(
                f"the policy {type(policy).__name__} has no {', '.join(missing)}; see alidpfl.policies.Policy"
            )
        self.uses_raw_signals = policy.needs_raw_signals or "raw" in method.signals
        if self.uses_raw_signals and UNACCOUNTED_SIGNALS not in settings.unsafe:
            culprit = f"policy {policy.name!r}" if policy.needs_raw_signals else f"method {method.name!r}"
            raise ConfigError(
                f"{culprit} makes every client upload un-noised gradients and losses, which no epsilon covers; choose "
                f'policy "ali", or admit it with privacy.unsafe = ["{UNACCOUNTED_SIGNALS}"] (unsafe = in Python)'
            )
        if method.release == "update" and policy.name != "fixed":
            raise ConfigError(
                f"policy {policy.name!r} divides the steps that a budget pays for, but {method.name} with noise on the "
                'update is charged by the round; use policy = "fixed"'
            )
        self._method, self._policy, self._ledger = method, policy, ledger
        self._sizes, self._settings = sizes, settings
        self._drawn = settings.clients_per_round or len(sizes)
        if self._drawn > len(sizes):
            raise ConfigError(
                f"clients_per_round={self._drawn} is more than the {len(sizes)} clients; leave it out for all"
            )
        self.round_bytes = 2 * self._drawn * BYTES_PER_NUMBER * num_params
        if settings.traffic_limit is not None and settings.traffic_limit < self.round_bytes:
            raise ConfigError(
                f"traffic_limit={settings.traffic_limit} (bytes) does not pay for one round, in which {self._drawn} "
                f"clients receive and send {num_params} numbers; set at least {self.round_bytes}, or leave it out"
            )
        raw: set[Signal] = {"raw"} if policy.needs_raw_signals else set()
        secants: set[Signal] = {"secants"} if policy.needs_curvature else set()
        self._signals = frozenset(method.signals) | raw | secants
        self._num_params = num_params
        self._smallest, self._concentration = min(sizes.values()), sum(share**2 for share in shares)

    def reason_to_stop(self, progress: Progress, state: Mapping[str, Any]) -> StopReason | None:
        """Return the limit that the next round would cross, or None."""
        settings = self._settings
        if progress.round >= settings.max_rounds:
            return StopReason.MAX_ROUNDS
        if not self.cohort(progress.round, state):
            return StopReason.BUDGET
        # Only the rounds so far can tell how long the next one takes.
        if settings.time_limit is not None and progress.seconds + progress.slowest_round > settings.time_limit:
            return StopReason.TIME_LIMIT
        if settings.traffic_limit is not None and progress.bytes + self.round_bytes > settings.traffic_limit:
            return StopReason.TRAFFIC_LIMIT
        return None

    def plan(self, progress: Progress, observed: Observed) -> tuple[Decision, list[ClientPlan]]:
        """Return the policy's decision and a plan for each client, cut to its own budget. Nothing is charged yet."""
        cohort = self.cohort(progress.round, observed.method_state)
        situation = self._situation(progress, observed, cohort)
        decision = self._held_to_limits(self._decision(situation), cohort, observed.method_state)
        rates = self._learning_rates(situation, decision.local_steps)
        return decision, [self._client_plan(client, progress.round, rates, observed) for client in cohort]

    def _decision(self, situation: Situation) -> Decision:
        decision = self._policy.decide(situation)
        if not isinstance(decision, Decision):
            raise ConfigError(
                f"policy {self._policy.name!r} decided {decision!r}; decide() must return an alidpfl.Decision"
            )
        checks.whole(f"local_steps of policy {self._policy.name!r}", decision.local_steps, low=1)
        return decision

    def cohort(self, round_number: int, state: Mapping[str, Any]) -> list[ClientId]:
        """Return the round's clients that can pay for a step. The draw depends on seed and round only."""
        drawn = list(self._sizes)
        if self._drawn < len(drawn):
            random = self._random(_COHORT, round_number)
            drawn = sorted(random.choice(len(drawn), self._drawn, replace=False).tolist())
        able = [client for client in drawn if self._affordable(client, state) > 0]
        if able or len(drawn) == len(self._sizes):
            return able
        # None of the drawn clients can pay any more: others that can take their place.
        others = (client for client in self._sizes if self._affordable(client, state) > 0)
        return [client for client, _ in zip(others, drawn, strict=False)]

    def failures(self, round_number: int, clients: Sequence[ClientId]) -> set[ClientId]:
        """Return the clients that, in the simulation, never answer in this round or answer too late."""
        random = self._random(_FAILURES, round_number)
        drops = random.random(len(clients)) < self._settings.dropout_rate
        lags = random.random(len(clients)) < self._settings.straggler_rate
        return {client for client, failed in zip(clients, drops | lags, strict=True) if failed}

    def units(self, steps: int) -> int:
        """Return what the ledger counts: steps, or rounds if the noise goes on the update."""
        return 1 if self._method.release == "update" else steps

    def _affordable(self, client: ClientId, state: Mapping[str, Any]) -> int:
        return self._ledger.affordable_steps(client, self._method.clip_and_noise(state, client).noise_multiplier)

    def _situation(self, progress: Progress, observed: Observed, cohort: Sequence[ClientId]) -> Situation:
        settings = self._settings
        numbers = [self._method.clip_and_noise(observed.method_state, client) for client in cohort]
        max_rounds = self._rounds_possible(progress)
        max_steps = progress.local_steps + self._steps_left(progress, observed.method_state, cohort)
        used = _share_used(progress.round, max_rounds, progress.local_steps, max_steps)
        return Situation(
            round=progress.round,
            max_rounds=max_rounds,
            max_steps=max_steps,
            steps_spent=progress.local_steps,
            previous_steps=progress.previous_steps,
            num_params=self._num_params,
            clip_norm=sum(n.clip_norm for n in numbers) / len(numbers),
            noise_multiplier=numbers[0].noise_multiplier,
            sample_rate=settings.sample_rate,
            learning_rate=learning_rate(settings.schedule, settings.learning_rate, used),
            expected_batch_size=settings.sample_rate * self._smallest,
            weight_concentration=self._concentration,
            heterogeneity=settings.heterogeneity if len(self._sizes) > 1 else 0.0,  # one client differs from nobody
            curvature=observed.curvature,
            raw_curvature=observed.raw_curvature,
            raw_heterogeneity=observed.raw_heterogeneity,
        )

    def _held_to_limits(self, decision: Decision, cohort: Sequence[ClientId], state: Mapping[str, Any]) -> Decision:
        """Cut τ to what at least one client of the round can pay for and accepts."""
        steps = min(decision.local_steps, self._settings.max_local_steps or decision.local_steps)
        steps = min(steps, max(self._settings.client_limits.get(client, steps) for client in cohort))
        limited = steps < decision.local_steps
        if self._method.release == "step":
            steps = min(steps, max(self._affordable(client, state) for client in cohort))
        why = f"{decision.why}, held to {steps} by the limit of a round" if limited else decision.why
        return replace(decision, local_steps=steps, why=why)

    def _steps_left(self, progress: Progress, state: Mapping[str, Any], cohort: Sequence[ClientId]) -> int:
        """Return the local steps that the federation can still run: R_c − Σ τ if all clients take part in every round.

        If a share m/N takes part, an average client has run m/N of Σ τ, so the federation has R_c N/m steps. A client
        that is drawn more often is cut by its own account.
        """
        if self._method.release == "update":
            return _UNLIMITED_STEPS  # rounds are charged, not steps
        most = max(self._affordable(client, state) for client in cohort)
        if self._drawn == len(self._sizes):
            return most
        client = max(cohort, key=lambda client: self._affordable(client, state))
        budget = self._ledger.steps_spent(client) + most
        return max(1, budget * len(self._sizes) // self._drawn - progress.local_steps)

    def _rounds_possible(self, progress: Progress) -> int:
        """Return R_s, or fewer rounds if traffic or time ends first."""
        settings, possible = self._settings, self._settings.max_rounds
        if settings.traffic_limit is not None:
            possible = min(possible, progress.round + (settings.traffic_limit - progress.bytes) // self.round_bytes)
        if settings.time_limit is not None and progress.seconds > 0:
            left = (settings.time_limit - progress.seconds) * progress.round / progress.seconds
            possible = min(possible, progress.round + int(left))
        return int(max(possible, progress.round + 1))

    def _learning_rates(self, situation: Situation, local_steps: int) -> tuple[float, ...]:
        """Return η of each step of the round. It falls with the used share of the scarcer budget, steps or rounds."""
        settings = self._settings

        def used(step: int) -> float:
            rounds, steps = situation.round + step / local_steps, situation.steps_spent + step
            return _share_used(rounds, situation.max_rounds, steps, situation.max_steps)

        return tuple(learning_rate(settings.schedule, settings.learning_rate, used(j)) for j in range(local_steps))

    def _client_plan(
        self, client: ClientId, round_number: int, rates: tuple[float, ...], observed: Observed
    ) -> ClientPlan:
        numbers = self._method.clip_and_noise(observed.method_state, client)
        rates = rates[: self._settings.client_limits.get(client)]
        if self._method.release == "step":  # each client's own account decides
            rates = rates[: self._affordable(client, observed.method_state)]
        return ClientPlan(
            client=client,
            round=round_number,
            sample_rate=self._settings.sample_rate,
            noise_multiplier=numbers.noise_multiplier,
            clip_norm=numbers.clip_norm,
            learning_rates=rates,
            release=self._method.release,
            signals=self._signals,
        )

    def _random(self, kind: int, round_number: int) -> np.random.Generator:
        return np.random.default_rng([self._settings.seed, kind, round_number])


def _share_used(rounds: float, max_rounds: int, steps: int, max_steps: int) -> float:
    """Return the used share of the scarcer budget."""
    return min(1.0, max(rounds / max_rounds, steps / max_steps))
