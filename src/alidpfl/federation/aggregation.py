"""How a round's updates become one: the mean, and means that a minority of hostile clients moves less.

Each function takes the updates with their shares, which sum to 1. It returns one update, and the weights that give it
if it is a weighted sum of the updates. Sums have one order, so that a rerun gives the same bits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from alidpfl.federation.tensors import products

_COLUMNS_AT_A_TIME = 1 << 16
_MIDDLE = 1e-6  # share of the weight around the middle that makes a median: two values that meet there are averaged
_MOST_ITERATIONS, _CLOSE_ENOUGH = 100, 0.01  # of the noise in the mean
_SPREADS = 4.0  # standard deviations of a squared noise length that count as noise


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """One client's part of a round."""

    params: Tensor
    before: Tensor
    share: float
    noise: float
    """Standard deviation of the update's noise in every coordinate, before `factor`."""
    factor: float = 1.0
    """The update counts this much of its length."""

    @property
    def move(self) -> Tensor:
        """The update, shortened by `factor`. Computed anew, so that a round needs no second copy of all updates."""
        move = self.params - self.before
        return move if self.factor == 1 else move * self.factor


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """One update from many."""

    update: Tensor
    weights: tuple[float, ...] | None
    """Weight of each client's own update in it, or None if it is no weighted sum."""


Aggregation: TypeAlias = Callable[[Sequence[Contribution], float], Aggregate]
"""A function of the round's contributions, and of the share of the weight to trim at each end."""


@torch.no_grad()
def mean(parts: Sequence[Contribution], trim: float = 0.0) -> Aggregate:
    """Return Σ p_i u_i."""
    return _weighted(parts, [part.share for part in parts])


@torch.no_grad()
def trimmed_mean(parts: Sequence[Contribution], trim: float) -> Aggregate:
    """Return, in every coordinate, the mean without the largest and the smallest values, by `trim` of the weight each.

    It is no sum with known weights: with values of equal noise, its variance lies between that of the mean and that of
    the median.
    """
    shares, size = torch.tensor([part.share for part in parts], dtype=torch.float64), len(parts[0].before)
    moves = [part.move for part in parts]
    found = torch.empty_like(parts[0].before)
    for start in range(0, size, _COLUMNS_AT_A_TIME):
        columns = slice(start, start + _COLUMNS_AT_A_TIME)
        values, order = torch.stack([move[columns] for move in moves]).double().sort(dim=0, stable=True)
        weights = shares[order]
        upper = weights.cumsum(0)
        kept = (upper.clamp(max=1 - trim) - (upper - weights).clamp(min=trim)).clamp(min=0)
        found[columns] = ((kept * values).sum(0) / kept.sum(0)).to(found.dtype)
    return Aggregate(update=found, weights=None)


@torch.no_grad()
def median(parts: Sequence[Contribution], trim: float = 0.0) -> Aggregate:
    """Return the weighted median of every coordinate. Its noise has up to π/2 times the variance of the mean's."""
    return trimmed_mean(parts, 0.5 - _MIDDLE)


@torch.no_grad()
def geometric_median(parts: Sequence[Contribution], trim: float = 0.0) -> Aggregate:
    """Return the weighted geometric median of the updates without their noise, by Weiszfeld's iteration.

    Noise makes all updates lie far from each other, and would hide who is far by signal. Its law is known, so its
    expected share and four standard deviations are taken off the squared distances first. A distance below those counts
    as that much, so that clients that differ by noise alone are averaged with their own shares.
    """
    shares = torch.tensor([part.share for part in parts], dtype=torch.float64)
    variances = torch.tensor([(part.noise * part.factor) ** 2 for part in parts], dtype=torch.float64)
    size, gram = len(parts[0].before), products([part.move for part in parts])
    spread = _SPREADS * math.sqrt(2 * size) * variances
    least = float(spread.median())
    weights = shares
    for _ in range(_MOST_ITERATIONS):
        mean_noise = float((weights**2 * variances).sum())
        squares = gram.diagonal() - 2 * gram @ weights + weights @ gram @ weights
        noise = size * (variances * (1 - 2 * weights) + mean_noise) + spread
        wanted = shares / ((squares - noise).clamp(min=0) + least).sqrt()
        wanted /= wanted.sum()
        change, weights = wanted - weights, wanted
        if float(change @ gram @ change) <= _CLOSE_ENOUGH**2 * size * mean_noise:
            break
    return _weighted(parts, [float(weight) for weight in weights])


def _weighted(parts: Sequence[Contribution], weights: Sequence[float]) -> Aggregate:
    total = torch.zeros_like(parts[0].before)
    for part, weight in zip(parts, weights, strict=True):
        total.add_(part.move, alpha=weight)
    own = tuple(weight * part.factor for part, weight in zip(parts, weights, strict=True))
    return Aggregate(update=total, weights=own)
