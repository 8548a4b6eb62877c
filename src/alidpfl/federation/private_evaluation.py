"""Evaluations on records that clients hold out: when they come, what they cost, and what they tell.

Each client releases noised sums (`alidpfl.releases`). They are charged to its held-out records alone, which no step
reads. So the client's ε is the larger of two: that of its steps and that of its evaluations (parallel composition).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from alidpfl.federation.settings import Evaluation
from alidpfl.privacy import GaussianFilter, GaussianRelease, PrivacyBudget, epsilon, group_epsilon
from alidpfl.releases.estimates import NoisedSums, estimate, next_edges
from alidpfl.releases.queries import EvaluationQuery, Released, ReleasePlan
from alidpfl.types import ClientId, HeldOutFacts

_OF_THE_LAST = 0.5
"""Share of the budget that the last of several evaluations has."""


class PrivateEvaluation:
    """The evaluations of a run. One account serves all clients, since all are asked at the same rounds."""

    def __init__(
        self,
        *,
        query: EvaluationQuery,
        budget: PrivacyBudget,
        accountant: str = "pld",
        releases: int,
        max_rounds: int,
        clients: Sequence[ClientId],
        unit: float = 1.0,
        earlier: Sequence[GaussianRelease] = (),
    ) -> None:
        """Plan the evaluations; nothing is charged yet.

        Args:
            query: what the first evaluation asks. Later ones have other bins.
            budget: (ε, δ) of every client's held-out records.
            accountant: how ε is computed.
            releases: number of evaluations. The last round always has one, and half of the budget.
            max_rounds: largest number of rounds, over which the others are spread.
            clients: the clients to ask.
            unit: what a difference of 1 between two numbers is in the unit that errors are shown in.
            earlier: what was released from the held-out records before. The budget pays for it too.

        Raises:
            BudgetExceededError: the budget does not pay for the earlier releases.
        """
        self._query, self._budget, self._accountant = query, budget, accountant
        self._releases, self._every = releases, -(-max_rounds // releases)
        self._clients, self._unit = tuple(clients), unit
        self._earlier = tuple(earlier)
        self._filter = GaussianFilter.for_budget(budget, accountant).left_after(self._earlier)
        self._asked = 0
        self._last: dict[str, Any] | None = None

    @property
    def epsilon(self) -> float:
        """ε that every client's held-out records have spent so far."""
        return epsilon([*self._earlier, *self._filter.mechanisms], self._budget.delta, self._accountant)

    @property
    def size(self) -> int:
        """Number of values of a release."""
        return self._query.layout.size

    @property
    def most_noise(self) -> float:
        """Largest σ of any evaluation."""
        shares = [_OF_THE_LAST, (1 - _OF_THE_LAST) / (self._releases - 1)] if self._releases > 1 else [1.0]
        return max(map(self._filter.noise_for, shares))

    def group_epsilon(self, group: int) -> float:
        """Return ε of so many held-out records of one client at once, if all evaluations take place."""
        whole = GaussianRelease(noise_multiplier=self._filter.noise_multiplier)
        return group_epsilon([*self._earlier, whole], self._budget.delta, group)

    def plans(self, rounds_done: int, *, is_last: bool) -> list[ReleasePlan]:
        """Charge an evaluation and return what to ask of each client; nothing if none is due or paid for.

        Args:
            rounds_done: number of finished rounds. It is the release's number.
            is_last: True if no round follows.
        """
        if not (is_last or self._is_due(rounds_done)) or (noise := self._charged(is_last)) is None:
            return []
        return [
            ReleasePlan(client=client, number=rounds_done, noise_multiplier=noise, query=self._query)
            for client in self._clients
        ]

    def forfeit(self, rounds_done: int, *, may_be_last: bool) -> None:
        """Charge the evaluation of a lost round, if it had one: it may have been released.

        Never less is charged here than `plans` charged in the lost round, which began in this very state:

        - As the last round it charged the last share, or released nothing. Then `may_be_last` is true, and that share
          is charged here.
        - Otherwise it charged one of the other shares, if one was due and paid for. None is larger than the last share.
          So the last share covers it. If the budget does not pay for the last share, or it was not the last round for
          sure, the same other share is charged here, under the same two conditions.

        So what is spent covers all that was ever released, however often a round is lost, and stays in the budget. When
        nothing can be charged, the lost round released nothing, and no later one does.

        Args:
            rounds_done: number of finished rounds, with the lost one.
            may_be_last: False only if another round would have followed for sure.
        """
        if may_be_last and self._charged(is_last=True) is not None:
            return
        if self._is_due(rounds_done):
            self._charged(is_last=False)

    def _is_due(self, rounds_done: int) -> bool:
        """Return whether an evaluation comes after this round though another one follows."""
        return rounds_done % self._every == 0 and self._asked < self._releases - 1

    def _charged(self, is_last: bool) -> float | None:
        """Charge an evaluation. Return its σ; None if the budget does not pay for it."""
        share = _OF_THE_LAST if self._releases > 1 else 1.0
        if not is_last:
            share = (1 - _OF_THE_LAST) / (self._releases - 1) if self._releases > 1 else 0.0
        if share == 0 or not self._filter.affordable(noise := self._filter.noise_for(share)):
            return None
        self._filter = self._filter.charge(noise)
        self._asked += 1
        return noise

    def take(self, plans: Sequence[ReleasePlan], released: Sequence[Released]) -> None:
        """Add up what came. The bins of the next evaluation follow from it."""
        noise = {plan.client: plan.noise_multiplier for plan in plans}
        self._last = {
            "round": plans[0].number,
            "clients": len(released),
            "noise_multiplier": plans[0].noise_multiplier,
            "noise_multipliers": [noise[one.client] for one in released],
            "values": np.sum([one.values.astype(np.float64) for one in released], axis=0).tolist() if released else [],
            "edges": list(self._query.edges),
        }
        if (noised := self._noised()) is not None:
            self._query = EvaluationQuery.model_validate({**self._query.model_dump(), "edges": next_edges(noised)})

    def evaluation(self, rounds_done: int) -> Evaluation | None:
        """Return what the evaluation after this round tells; None if there was none."""
        noised = self._noised()
        if noised is None or self._last is None or self._last["round"] != rounds_done:
            return None
        measures = estimate(noised, unit=self._unit)
        accuracy, loss = (measures.values.get(name) for name in ("accuracy", "log_loss"))
        return Evaluation(accuracy=accuracy, loss=loss, measures=measures, held_out=self.facts())

    def facts(self) -> HeldOutFacts | None:
        """Return what was spent, and the noise of the last evaluation; None before the first."""
        if self._asked == 0:
            return None
        last = self._last or {"noise_multiplier": None, "clients": 0}
        noise, clients = last["noise_multiplier"], last["clients"]
        return HeldOutFacts(epsilon=self.epsilon, releases=self._asked, noise_multiplier=noise, clients=clients)

    def _noised(self) -> NoisedSums | None:
        if self._last is None or not self._last["clients"]:
            return None
        query = EvaluationQuery.model_validate({**self._query.model_dump(), "edges": tuple(self._last["edges"])})
        return NoisedSums.of(query, [np.array(self._last["values"])], self._last["noise_multipliers"])

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint must keep."""
        edges = list(self._query.edges)
        return {"spent": self._filter.spent, "asked": self._asked, "edges": edges, "last": self._last}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Load what `to_json` returned."""
        self._filter = GaussianFilter(noise_multiplier=self._filter.noise_multiplier, spent=float(values["spent"]))
        self._asked, self._last = int(values["asked"]), values["last"]
        edges = tuple(map(float, values["edges"]))
        self._query = EvaluationQuery.model_validate({**self._query.model_dump(), "edges": edges})
