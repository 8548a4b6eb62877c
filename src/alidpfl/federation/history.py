"""What each client has sent so far: the mean of its updates, in which noise fades and a lasting signal stays."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from alidpfl.federation.noise_law import HonestLaw, Seen
from alidpfl.federation.tensors import length
from alidpfl.types import ClientId, ClientUpdate

_MOST_KEPT = 1 << 23  # numbers, 32 MB in every checkpoint
_REMEMBERED, _PREFIX = 0.9, "history_"


class History:
    """A decaying sum of each client's updates, with its weight and the variance of its noise."""

    def __init__(self, num_clients: int, num_params: int) -> None:
        """Start empty. In federations too large for the memory, nothing is kept."""
        self._sums: dict[ClientId, Tensor] = {}
        self._weights: dict[ClientId, tuple[float, float]] = {}
        self._keeps = num_clients * num_params <= _MOST_KEPT

    def vectors(self, clients: Sequence[ClientId]) -> list[Tensor]:
        """Return the sums of these clients, as far as there are any."""
        return [self._sums[client] for client in clients if client in self._sums]

    def means(self, clients: Sequence[ClientId]) -> list[Seen] | None:
        """Return length and noise of each client's mean update, or None if nothing is kept."""
        if not all(client in self._sums for client in clients):
            return None
        found = []
        for client in clients:
            weight, variance = self._weights[client]
            found.append(Seen(length=length(self._sums[client]) / weight, noise=math.sqrt(variance) / weight))
        return found

    @torch.no_grad()
    def observe(self, updates: Sequence[ClientUpdate], laws: Mapping[ClientId, HonestLaw], before: Tensor) -> None:
        """Add a round's updates, also of rejected clients, but none that are much too long."""
        for update in updates if self._keeps else ():
            client, law = update.client, laws[update.client]
            if update.params.shape != before.shape or update.params.dtype != before.dtype:
                continue
            move = update.params - before
            if not length(move) <= 2 * law.longest():  # also NaN
                continue
            weight, variance = self._weights.get(client, (0.0, 0.0))
            self._weights[client] = (_REMEMBERED * weight + 1, _REMEMBERED**2 * variance + law.noise**2)
            self._sums[client] = self._sums[client] * _REMEMBERED + move if client in self._sums else move

    def to_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the numbers and tensors that a checkpoint needs."""
        numbers = {str(client): list(pair) for client, pair in self._weights.items()}
        return numbers, {f"{_PREFIX}{client}": vector for client, vector in self._sums.items()}

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore what `to_state` returned."""
        self._weights = {int(client): (pair[0], pair[1]) for client, pair in numbers.items()}
        self._sums = {client: tensors[f"{_PREFIX}{client}"] for client in self._weights}
