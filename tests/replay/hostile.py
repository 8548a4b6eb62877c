"""Records that would break a careless sum: not finite, huge, tiny, empty, and such that look like others."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def _filled(value: float) -> Callable[[Tensor], Tensor]:
    return lambda record: torch.full_like(record, value)


def _one_entry(value: float) -> Callable[[Tensor], Tensor]:
    def spoil(record: Tensor) -> Tensor:
        spoilt = record.clone()
        spoilt.view(-1)[record.numel() // 2] = value
        return spoilt

    return spoil


def _alternating(record: Tensor) -> Tensor:
    signs = torch.ones(record.numel())
    signs[::2] = -1
    return signs.view(record.shape) * 1e18


NOT_FINITE: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": _filled(math.nan),
    "one NaN": _one_entry(math.nan),
    "infinite": _filled(math.inf),
    "one minus infinite": _one_entry(-math.inf),
}
"""Which a folder of files or a vault would refuse to enrol: no step may rest on that."""

FINITE: dict[str, Callable[[Tensor], Tensor]] = {
    "usual": lambda record: record,
    "largest": _filled(3e38),
    "most negative": _filled(-3e38),
    "dropped for its norm": _filled(1e31),
    "huge terms that cancel": _alternating,
    "one huge entry": _one_entry(1e15),
    "long": lambda record: 1e4 * record,
    "denormal": _filled(1e-42),
    "empty": _filled(0.0),
}

HOSTILE = {**FINITE, **NOT_FINITE}
