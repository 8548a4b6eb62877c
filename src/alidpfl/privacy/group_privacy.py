"""ε of a group of records that are in or out together, such as all records of one person.

Formal guarantee: `group_epsilon` returns an upper bound of ε at δ if g records are added or removed at once. Each of
them joins a batch by its own coin, q, and moves the sum by at most C.

Proof. Fix the coins of all other records, and subtract their sum. Then a step releases N(0, σ²C² I) without the group,
and Σ_S b_S N(c_S, σ²C² I) with it: the records S of the group are in the batch with probability b_S, and move the sum
by c_S, which is at most |S| C long. Let z ~ N(0, I), and X_S = ⟨c_S, z⟩ / (σC). The likelihood ratio of the two is

    L = Σ_S b_S e^{X_S − E[X_S²]/2}

under the second data set. Both divergences that define (ε, δ) are means of convex functions of L: (L − e^ε)₊ if the
group is removed, and (1 − e^ε L)₊ if it is added. Such means grow with the covariances of the Gaussian X_S (Kahane
1985). None is larger than |S| |T| / σ², which all of them reach if every record moves the sum by C in one direction.
Then L is the ratio of Σ_j b_j N(j, σ²) and N(0, σ²), where b_j is binomial. Coins of others only average over such
pairs, which raises no divergence. Pairs of steps compose, also adaptively (Zhu, Dong & Wang 2022, Theorem 10). ∎

The bound is exact: records with equal gradients of norm C reach it. Choquette-Choo et al. 2023 (Corollary 4.7) have the
same mixtures for sums with random sensitivity.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from alidpfl.inputs import checks
from alidpfl.privacy.accounting import epsilon, epsilon_bound
from alidpfl.privacy.budget import checked_delta
from alidpfl.privacy.gaussian_dp import gaussian_epsilon
from alidpfl.privacy.mechanisms import MIN_NOISE_MULTIPLIER, Composition, Mechanism, SampledGaussian, merged
from alidpfl.privacy.tilted_losses import tilted_epsilon

MAX_GROUP: Final = 1000

_HALVINGS = 24
_LEAST_LOG_DELTA = -690.0  # of the smallest normal floats


def group_epsilon(mechanisms: Iterable[Mechanism], delta: float, group: int) -> float:
    """Return ε at δ of all `mechanisms` for a group of records; infinite if there is no bound.

    Args:
        mechanisms: the steps and releases, as for `epsilon`.
        delta: δ, for the group as a whole.
        group: g, the number of records.

    >>> steps = SampledGaussian(sample_rate=0.015, noise_multiplier=1.1, steps=314)
    >>> group_epsilon([steps], 1e-5, 1) == epsilon([steps], 1e-5)
    True
    >>> 5 < group_epsilon([steps], 1e-5, 5) < naive_group_epsilon([steps], 1e-5, 5)
    True
    """
    composition, group = merged(mechanisms), checks.whole("group", group, low=1, high=MAX_GROUP)
    if group == 1 or not composition:
        return epsilon(composition, delta)
    return _group_epsilon(composition, checked_delta(delta), group)


@lru_cache(maxsize=256)
def _group_epsilon(composition: Composition, delta: float, group: int) -> float:
    try:
        if all(m.sample_rate == 1 for m in composition):  # they compose to one release, which moves g times as far
            return gaussian_epsilon(group * math.sqrt(sum(m.steps / m.noise_multiplier**2 for m in composition)), delta)
        found = tilted_epsilon(composition, delta, group=group)
    except (ArithmeticError, ValueError):
        found = math.inf
    if found < math.inf:
        return found
    return min(naive_group_epsilon(composition, delta, group), _as_one(composition, delta, group))


def _as_one(composition: Composition, delta: float, group: int) -> float:
    """Return ε if all records of the group are in a batch as soon as one of them is: covariances only grow by that."""
    if min(m.noise_multiplier for m in composition) / group < MIN_NOISE_MULTIPLIER:
        return math.inf
    return epsilon(
        [
            SampledGaussian(
                sample_rate=-math.expm1(group * math.log1p(-m.sample_rate)) if m.sample_rate < 1 else 1.0,
                noise_multiplier=m.noise_multiplier / group,
                steps=m.steps,
            )
            for m in composition
        ],
        delta,
    )


def naive_group_epsilon(mechanisms: Iterable[Mechanism], delta: float, group: int) -> float:
    """Return ε at δ for a group by the general rule, which knows nothing of the mechanism. It is for comparison.

    (ε₁, δ₁) of one record is (g ε₁, δ₁ (e^{g ε₁} − 1) / (e^{ε₁} − 1)) of g records (Vadhan 2017, Lemma 2.2). So the
    largest δ₁ is sought at which the second number is at most δ.

    Args:
        mechanisms: the steps and releases, as for `epsilon`.
        delta: δ, for the group as a whole.
        group: g, the number of records.
    """
    composition, group = merged(mechanisms), checks.whole("group", group, low=1, high=MAX_GROUP)
    log_delta = math.log(checked_delta(delta))

    def fits(log_one: float) -> bool:
        one = epsilon_bound(composition, math.exp(log_one))
        return log_one + _log_sum(one, group) <= log_delta if one < math.inf else False

    low, high = _LEAST_LOG_DELTA, log_delta
    if not composition or fits(high):
        return group * epsilon(composition, delta)
    if not fits(low):
        return math.inf
    for _ in range(_HALVINGS):  # `low` stays valid: the safe end
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return group * epsilon_bound(composition, math.exp(low))


def _log_sum(one: float, group: int) -> float:
    """Return log (e^{gε} − 1) / (e^ε − 1), the sum of e^{iε} for i below g."""
    if one == 0:
        return math.log(group)
    return group * one - one + math.log1p(-math.exp(-group * one)) - math.log1p(-math.exp(-one))
