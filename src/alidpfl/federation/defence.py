"""What a server does about hostile clients: reject impossible updates, shorten unusual ones, average robustly."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from alidpfl.federation.aggregation import Aggregate, Aggregation, Contribution
from alidpfl.federation.history import History
from alidpfl.federation.inspection import rejections
from alidpfl.federation.noise_law import HonestLaw, Seen, shortened
from alidpfl.federation.server import ServerSettings, ServerState
from alidpfl.federation.tensors import length
from alidpfl.registry import AGGREGATIONS
from alidpfl.types import ClientId, ClientUpdate

_ENOUGH_TO_COMPARE = 3  # updates of a round: of two, nobody can say which is the unusual one


class Defence:
    """Judges each round's updates by public numbers, by each other, and by those of earlier rounds."""

    def __init__(self, settings: ServerSettings, num_clients: int, num_params: int) -> None:
        """Start without a history."""
        self.history = History(num_clients, num_params)
        self._settings = settings
        self._average: Aggregation = AGGREGATIONS[settings.aggregation]

    def rejections(
        self, updates: Sequence[ClientUpdate], laws: Mapping[ClientId, HonestLaw], state: ServerState
    ) -> dict[ClientId, str]:
        """Return the clients whose updates must not be used, each with the reason, and remember all updates."""
        moved = state.velocity
        last = [] if moved is None or not bool(moved.any()) else [moved]
        known = [*last, *self.history.vectors([update.client for update in updates])]
        found = rejections(updates, laws, state.params, known)
        self.history.observe(updates, laws, state.params)
        return found

    def averaged(
        self,
        accepted: Sequence[ClientUpdate],
        shares: Sequence[float],
        laws: Mapping[ClientId, HonestLaw],
        before: Tensor,
    ) -> Aggregate:
        """Return the round's update.

        Args:
            accepted: the updates to average.
            shares: how much each of them counts; they sum to 1.
            laws: the law of each client's update.
            before: the weights that all clients started from.
        """
        noises = [laws[update.client].noise for update in accepted]
        factors = self._factors(accepted, noises, max(laws[u.client].log_odds for u in accepted), before)
        parts = [
            Contribution(params=update.params, before=before, share=share, noise=noise, factor=factor)
            for update, share, noise, factor in zip(accepted, shares, noises, factors, strict=True)
        ]
        return self._average(parts, self._settings.trim)

    def _factors(
        self, accepted: Sequence[ClientUpdate], noises: Sequence[float], log_odds: float, before: Tensor
    ) -> list[float]:
        """Return how much of its length each update keeps, by its own signal and by that of its client so far."""
        limit = self._settings.signal_limit
        if limit is None or len(accepted) < _ENOUGH_TO_COMPARE:
            return [1.0] * len(accepted)
        pairs = zip(accepted, noises, strict=True)
        now = [Seen(length=length(update.params - before), noise=noise) for update, noise in pairs]
        so_far = self.history.means([update.client for update in accepted]) or now
        found = [shortened(seen, len(before), log_odds, limit) for seen in (now, so_far)]
        return [min(factors) for factors in zip(*found, strict=True)]
