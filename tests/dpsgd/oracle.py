"""The slow truth: per-sample gradients by plain autograd, one sample at a time, clipped by hand."""

import torch
from torch import Tensor, nn

from alidpfl.dpsgd import cross_entropy
from alidpfl.dpsgd.places import GROUPS_IN_A_FAMILY, rounding

MARGIN = 1 - rounding(128, GROUPS_IN_A_FAMILY)
"""The share of C that records are clipped to, so that rounding does not lift a sum over the bound."""


def gradients_one_by_one(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss=cross_entropy
) -> list[dict[str, Tensor]]:
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = []
    for i in range(len(inputs)):
        value = loss(model(inputs[i : i + 1]), targets[i : i + 1]).sum()
        grads = torch.autograd.grad(value, list(parameters.values()), allow_unused=True, materialize_grads=True)
        found.append(dict(zip(parameters, grads, strict=True)))
    return found


def norm(gradients: dict[str, Tensor]) -> float:
    return float(torch.cat([g.flatten().double() for g in gradients.values()]).norm())


def clipped_sum(per_sample: list[dict[str, Tensor]], clip_norm: float) -> dict[str, Tensor]:
    total = {name: torch.zeros_like(g, dtype=torch.float64) for name, g in per_sample[0].items()}
    for gradients in per_sample:
        factor = min(1.0, clip_norm * MARGIN / max(norm(gradients), 1e-300))
        for name, gradient in gradients.items():
            total[name] += factor * gradient.double()
    return total


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return norm({name: a[name].double() - b[name].double() for name in a})
