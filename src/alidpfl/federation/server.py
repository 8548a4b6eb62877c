"""The server's step: reject bad updates, average the rest, move the model. It trusts no client."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from alidpfl.inputs import checks
from alidpfl.types import ClientId, ClientPlan, ClientUpdate

_NOISE_SPREAD, _NOISE_OFFSET = 1.5, 10.0  # ‖N(0, I_d)‖ exceeds 1.5 √d + 10 in no honest run


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How updates become the next model. The default is plain federated averaging."""

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

    def __post_init__(self) -> None:
        for name in ("momentum", "averaging"):
            checks.real(name, getattr(self, name), low=0, below=1, rule="must be in [0, 1)")
        for name in ("quorum", "max_client_weight"):
            checks.real(name, getattr(self, name), above=0, high=1, rule="must be in (0, 1]")
        checks.real("weight_exponent", self.weight_exponent, low=0, high=2, rule="must be in [0, 2]")

    def least_updates(self, num_clients: int) -> int:
        """Return how many of `num_clients` updates make a quorum. With so many, no client exceeds the cap."""
        for_the_cap = min(math.ceil(1 / self.max_client_weight), num_clients)
        return max(math.ceil(self.quorum * num_clients), for_the_cap)


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """The model, and the server's momentum and average."""

    params: Tensor
    velocity: Tensor | None = None
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


def reason_to_reject(update: ClientUpdate, plan: ClientPlan, before: Tensor, num_records: int) -> str | None:
    """Return why the server must not average this update, or None.

    Every reason is made of public numbers. No honest client can cross the limit on the size, so a rejection says
    nothing about the data.

    Args:
        update: what the client sent.
        plan: what it was asked to do.
        before: the weights that it started from.
        num_records: the client's number of records.
    """
    params = update.params
    if params.shape != before.shape or params.dtype != before.dtype:
        return f"shape {tuple(params.shape)} and dtype {params.dtype}, not {tuple(before.shape)} and {before.dtype}"
    moved = float(torch.linalg.vector_norm(params - before, dtype=torch.float64))
    if not math.isfinite(moved):
        return "values that are not finite"
    if moved > (limit := largest_honest_update(plan, len(before), num_records)):
        return f"an update longer than {limit:.3g}, the most that its plan allows"
    return None


def largest_honest_update(plan: ClientPlan, num_params: int, num_records: int) -> float:
    """Return the longest update that the plan can give: every record in every batch at norm C, plus the noise."""
    noise = plan.noise_multiplier * (_NOISE_SPREAD * math.sqrt(num_params) + _NOISE_OFFSET)
    if plan.release == "update":
        return plan.clip_norm * (1 + 2 * noise)
    one_step = plan.clip_norm * (num_records + noise) / (plan.sample_rate * num_records)
    return sum(plan.learning_rates) * one_step * (1 + 1e-3)  # rounding of the weights


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
def mean_update(before: Tensor, updates: Sequence[ClientUpdate], weights: Sequence[float]) -> Tensor:
    """Return Σ p_i (w_i − w), summed in the order given so that a rerun gives the same bits."""
    total = torch.zeros_like(before)
    for update, weight in zip(updates, weights, strict=True):
        total.add_(update.params - before, alpha=weight)
    return total


@torch.no_grad()
def step(state: ServerState, update: Tensor, settings: ServerSettings) -> ServerState:
    """Return the next model: v ← momentum · v + mean update, w ← w + v."""
    velocity = state.velocity
    if settings.momentum:
        velocity = update if velocity is None else velocity * settings.momentum + update
        update = velocity
    params = state.params + update
    if not settings.averaging:
        return replace(state, params=params, velocity=velocity)
    past = torch.zeros_like(params) if state.average is None else state.average
    average = past * settings.averaging + params * (1 - settings.averaging)
    return ServerState(params=params, velocity=velocity, average=average, num_averaged=state.num_averaged + 1)
