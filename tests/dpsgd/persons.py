"""Batches of persons for tests, and their slow truth."""

import torch
from torch import Tensor, nn

from alidpfl.dpsgd import Groups, RandomStream, cross_entropy
from alidpfl.dpsgd.places import GROUPS_IN_A_FAMILY, rounding

from . import oracle


def margin(records: int) -> float:
    """The share of C that persons of so many records are clipped to."""
    return 1 - rounding(128, GROUPS_IN_A_FAMILY, records)


def drawn(count: int, records: int, seed: int = 0) -> tuple[int, Tensor, Tensor]:
    """The number of records of so many persons with 1 to k + 1 records each, and rows and weights of one draw."""
    sizes = torch.arange(count) % (records + 1) + 1
    persons = torch.repeat_interleave(torch.arange(count), sizes)
    groups = Groups.of(persons[torch.randperm(len(persons), generator=torch.Generator().manual_seed(seed))])
    rows, weights = groups.draw(torch.arange(count), records, RandomStream.seeded(seed))
    return len(persons), rows, weights


def gradients(
    model: nn.Module, inputs: Tensor, targets: Tensor, rows: Tensor, weights: Tensor, *, loss=cross_entropy
) -> list[dict[str, Tensor]]:
    """Each person's gradient by plain autograd, one record at a time, added in double."""
    each = oracle.gradients_one_by_one(model, inputs, targets, loss)
    return [
        {
            name: sum(w * each[row][name].double() for row, w in zip(some.tolist(), its.tolist(), strict=True))
            for name in each[0]
        }
        for some, its in zip(rows, weights, strict=True)
    ]


def clipped_sum(of_persons: list[dict[str, Tensor]], limit: float) -> dict[str, Tensor]:
    total = {name: torch.zeros_like(g) for name, g in of_persons[0].items()}
    for found in of_persons:
        factor = min(1.0, limit / max(oracle.norm(found), 1e-300))
        for name, gradient in found.items():
            total[name] += factor * gradient
    return total
