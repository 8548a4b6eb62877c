"""Reject updates that no honest client sends. Every test uses public numbers and updates only, so it costs no privacy.

An honest update is a bounded signal plus noise with a known law. So it is neither too long nor too short, not even
after everything is taken out of it that the server sees elsewhere: the other updates of the round, the model's last
move, and what the clients sent in earlier rounds. An update that is made of those has no noise of its own.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from alidpfl.federation.noise_law import FALSE_ALARM, HonestLaw
from alidpfl.federation.tensors import length, products
from alidpfl.types import ClientId, ClientPlan, ClientUpdate

_RIDGE = 1e-9  # makes equal updates solvable; it can only lengthen what is left of an update


def honest_laws(
    plans: Sequence[ClientPlan], num_params: int, sizes: Mapping[ClientId, int], false_alarm: float = FALSE_ALARM
) -> dict[ClientId, HonestLaw]:
    """Return the law of every client's update in a round.

    Args:
        plans: what each client ran.
        num_params: number of the model's trained parameters.
        sizes: number of records of each client, by enrolment.
        false_alarm: probability that any honest update of the round is rejected, at most.
    """
    return {
        plan.client: HonestLaw.of(
            plan,
            num_params=num_params,
            num_records=sizes[plan.client],
            num_clients=len(plans),
            false_alarm=false_alarm,
        )
        for plan in plans
    }


@torch.no_grad()
def rejections(
    updates: Sequence[ClientUpdate], laws: Mapping[ClientId, HonestLaw], before: Tensor, known: Sequence[Tensor] = ()
) -> dict[ClientId, str]:
    """Return the clients whose updates the server must not use, each with the reason.

    Args:
        updates: what the clients sent.
        laws: the law of each client's update.
        before: the weights that all clients started from.
        known: vectors from earlier rounds.
    """
    weights = length(before)
    found = {update.client: _unusable(update, laws[update.client], before, weights) for update in updates}
    usable = [update for update in updates if found[update.client] is None]
    found |= _unlike_noise(usable, laws, before, weights, known)
    return {client: reason for client, reason in found.items() if reason is not None}


def _unusable(update: ClientUpdate, law: HonestLaw, before: Tensor, weights: float) -> str | None:
    params = update.params
    if params.shape != before.shape or params.dtype != before.dtype:
        return f"shape {tuple(params.shape)} and dtype {params.dtype}, not {tuple(before.shape)} and {before.dtype}"
    moved = length(params - before)
    if not math.isfinite(moved):
        return "values that are not finite"
    if moved > (limit := law.longest() + law.rounding(weights)):
        return f"an update longer than {limit:.3g}, the most that its plan allows"
    return None


def _unlike_noise(
    updates: Sequence[ClientUpdate],
    laws: Mapping[ClientId, HonestLaw],
    before: Tensor,
    weights: float,
    known: Sequence[Tensor],
) -> dict[ClientId, str | None]:
    """Return reasons from what is left of an update without the other vectors, and from what is along them."""
    found: dict[ClientId, str | None] = {}
    vectors = [*(update.params - before for update in updates), *known]
    lengths, cosines = _geometry(vectors)
    left, along = _left(lengths, cosines), _along(lengths, cosines, len(updates))
    for place, update in enumerate(updates):
        law = laws[update.client]
        slack = law.rounding(weights)
        if left[place] < (least := law.shortest(without=len(vectors) - 1) - slack):
            found[update.client] = f"less noise of its own than {least:.3g}, the least that its plan adds"
        elif along[place] > (most := law.largest_component() + slack):
            found[update.client] = f"more than {most:.3g} along one direction, the most that its plan allows"
    return found


def _geometry(vectors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the vectors' lengths, and their cosines with each other (0 for vectors of length 0)."""
    gram = products(vectors)
    lengths = gram.diagonal().sqrt()
    scale = torch.where(lengths > 0, 1 / lengths, 0.0)
    return lengths, gram * scale * scale[:, None]


def _left(lengths: Tensor, cosines: Tensor) -> list[float]:
    """Return the length of each vector without its projection on all others: ‖u_i‖ / sqrt((R⁻¹)_ii)."""
    inverse = torch.linalg.inv(cosines + _RIDGE * torch.eye(len(cosines), dtype=torch.float64))
    return [float(x) for x in lengths / inverse.diagonal().clamp(min=1.0).sqrt()]


def _along(lengths: Tensor, cosines: Tensor, num_updates: int) -> list[float]:
    """Return the most of each update along a known vector, or along the mean direction of the other updates."""
    updates = cosines[:num_updates, :num_updates]
    others = 1 - torch.eye(num_updates, dtype=torch.float64)
    products = (updates * others).sum(1)
    squares = (others @ updates * others).sum(1)  # ‖Σ_{j≠i} u_j/‖u_j‖‖²
    found = (products / squares.clamp(min=_RIDGE).sqrt()).abs()
    if num_updates < len(cosines):
        found = torch.maximum(found, cosines[:num_updates, num_updates:].abs().amax(1))
    return [float(x) for x in found * lengths[:num_updates]]
