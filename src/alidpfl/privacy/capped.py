"""Accounts of clients that keep books of their own: the server's say what a run may ask for, theirs what is left."""

from collections.abc import Mapping
from typing import Any

from alidpfl.privacy.ledger import Ledger
from alidpfl.types import ClientId


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
