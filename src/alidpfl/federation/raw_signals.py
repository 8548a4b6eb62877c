"""The un-noised signals of the paper's own rule for τ. NOT PRIVATE: outside every (ε, δ) of this library.

The paper has every client upload gradients and losses of its raw data, outside the accounted budget. To reproduce it,
and to see what it is worth, the same can be had here with unsafe=["unaccounted-signals"]; every record then says that ε
does not cover the run.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from alidpfl.federation.params import load, trained
from alidpfl.methods.objective import Objective
from alidpfl.types import RawSignals

if TYPE_CHECKING:
    from alidpfl.federation.client import ClientData

MOST_RECORDS = 128
"""Of a client, evenly spread: full gradients of 6,000 records would take fifty times as long as the training itself.

On MNIST the ratio of 128 records is within 20 to 30 % of that of 2,048 for a client, and it changes by more from round
to round: the mean over clients hardly feels it, and τ goes with its root.
"""


def raw_signals(objective: Objective, before: Tensor, after: Tensor, data: "ClientData") -> RawSignals:
    """μ = ‖∇F_i(w_i) − ∇F_i(w)‖ / ‖w_i − w‖ and the losses at both ends.

    A secant's ratio lies between the smallest and the largest curvature: it measures smoothness, not the strong
    convexity that the paper calls μ.
    """
    records = torch.linspace(0, len(data) - 1, min(len(data), MOST_RECORDS)).long()
    inputs, targets = data.batch(records)
    loss_before, gradient_before = _loss_and_gradient(objective, before, inputs, targets)
    loss_after, gradient_after = _loss_and_gradient(objective, after, inputs, targets)
    moved = float((after - before).double().norm())
    change = float((gradient_after - gradient_before).norm())
    return RawSignals(curvature=change / moved if moved > 0 else 0.0, loss_before=loss_before, loss_after=loss_after)


def _loss_and_gradient(objective: Objective, weights: Tensor, inputs: Tensor, targets: Tensor) -> tuple[float, Tensor]:
    parameters = trained(objective.model)
    device = next(iter(parameters.values())).device
    load(weights, parameters)
    loss = objective.loss(objective.model(inputs.to(device)), targets.to(device)).mean()
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return float(loss.detach()), torch.cat([g.reshape(-1) for g in gradients]).double()
