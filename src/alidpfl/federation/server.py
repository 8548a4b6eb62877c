"""The server's settings and state: how much a client counts, and how an update moves the model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

import torch
from torch import Tensor

from alidpfl.inputs import checks
from alidpfl.registry import AGGREGATIONS
from alidpfl.types import ClientId


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How updates become the next model. The default is federated averaging with a limit on unusual updates."""

    momentum: float = 0.0
    """Heavy-ball momentum of the mean update; 0 for none."""
    averaging: float = 0.0
    """Weight of the past in the moving average that is evaluated and released; 0 for none."""
    quorum: float = 0.5
    """Share of a round's updates that must arrive for the model to move."""
    max_client_weight: float = 1.0
    """Cap on one client's share of the average."""
    weight_exponent: float = 1.0
    """A client's share is its number of records to this power.

    Every client adds the same noise to its sum, so the sums of small clients are mostly noise. 1 counts every record
    alike; with 2, small clients and their records count for less.
    """
    max_size_ratio: float | None = None
    """A client's records count for at most this many times those of the median client; None for no limit.

    Set it if clients state their own numbers of records, as vaults do.
    """
    signal_limit: float | None = 2.0
    """The signal in an update counts for at most this many times the round's median signal; None for no limit.

    The server knows the noise of an update, so it can tell the signal's length. It needs three updates or more.
    """
    aggregation: str = "mean"
    """How updates are averaged: a name in `AGGREGATIONS`."""
    trim: float = 0.3
    """Share of the weight that `trimmed_mean` leaves out at each end of every coordinate."""

    def __post_init__(self) -> None:
        for name in ("momentum", "averaging"):
            checks.real(name, getattr(self, name), low=0, below=1, rule="must be in [0, 1)")
        for name in ("quorum", "max_client_weight"):
            checks.real(name, getattr(self, name), above=0, high=1, rule="must be in (0, 1]")
        checks.real("weight_exponent", self.weight_exponent, low=0, high=2, rule="must be in [0, 2]")
        checks.real("trim", self.trim, low=0, below=0.5, rule="must be in [0, 0.5)")
        for name in ("max_size_ratio", "signal_limit"):
            if (value := getattr(self, name)) is not None:
                checks.real(name, value, low=1, rule="must be at least 1; leave it out for none")
        _ = AGGREGATIONS[self.aggregation]

    def least_updates(self, num_clients: int) -> int:
        """Return how many of `num_clients` updates make a quorum. With so many, no client exceeds the cap."""
        for_the_cap = min(math.ceil(1 / self.max_client_weight), num_clients)
        return max(math.ceil(self.quorum * num_clients), for_the_cap)


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """The model, its last move, and the server's average."""

    params: Tensor
    velocity: Tensor | None = None
    """The model's last move, which momentum continues."""
    average: Tensor | None = None
    num_averaged: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint needs."""
        named = {"params": self.params, "velocity": self.velocity, "average": self.average}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], num_averaged: int) -> "ServerState":
        """Rebuild the state from what `tensors` returned."""
        velocity, average = tensors.get("velocity"), tensors.get("average")
        return cls(params=tensors["params"], velocity=velocity, average=average, num_averaged=num_averaged)

    def released(self, settings: ServerSettings) -> Tensor:
        """Return the weights to evaluate and release."""
        if self.average is None:
            return self.params
        # An average that starts at zero is too small by this factor (as in Adam).
        return self.average / (1 - settings.averaging**self.num_averaged)


def counted_sizes(sizes: Mapping[ClientId, int], max_ratio: float | None) -> dict[ClientId, int]:
    """Return the number of records that each client counts for: at most `max_ratio` times the median client's.

    Half of the clients would have to state false numbers to move the median.

    >>> counted_sizes({0: 50, 1: 60, 2: 10**9}, 3.0)
    {0: 50, 1: 60, 2: 180}
    """
    if max_ratio is None:
        return dict(sizes)
    most = int(max_ratio * median_low(sizes.values()))
    return {client: min(size, most) for client, size in sizes.items()}


def shares(
    sizes: Mapping[ClientId, int], clients: Sequence[ClientId], cap: float, exponent: float = 1.0
) -> list[float]:
    """Return p_i = |D_i|^a / Σ|D_j|^a, in the order of `clients`, with no share above `cap`. They sum to 1.

    What the cap takes off goes to the other clients, in proportion. Shares are equal if the cap is below 1/N.

    Args:
        sizes: number of records of each client.
        clients: the clients whose updates are averaged.
        cap: the largest share.
        exponent: a.
    """
    if cap * len(clients) <= 1:
        return [1 / len(clients)] * len(clients)
    weights = sizes if exponent == 1 else {client: sizes[client] ** exponent for client in clients}
    left, found = 1.0, dict[ClientId, float]()
    waiting = sorted(clients, key=lambda client: -weights[client])  # once one is below the cap, all later ones are
    for number, client in enumerate(waiting):
        # Summed anew each time: subtracting a huge weight from a total would lose the small ones.
        total = sum(weights[other] for other in waiting[number:])
        found[client] = min(cap, left * weights[client] / total)
        left -= found[client]
    return [found[client] for client in clients]


@torch.no_grad()
def step(state: ServerState, update: Tensor, settings: ServerSettings) -> ServerState:
    """Return the next model: v ← momentum · v + mean update, w ← w + v."""
    velocity = update
    if settings.momentum and state.velocity is not None:
        velocity = state.velocity * settings.momentum + update
    params = state.params + velocity
    if not settings.averaging:
        return replace(state, params=params, velocity=velocity)
    past = torch.zeros_like(params) if state.average is None else state.average
    average = past * settings.averaging + params * (1 - settings.averaging)
    return ServerState(params=params, velocity=velocity, average=average, num_averaged=state.num_averaged + 1)
