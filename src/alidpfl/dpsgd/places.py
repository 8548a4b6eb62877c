"""Records are added in an order that is fixed by their places, so that one record changes few roundings.

A place is a record's number among the client's records. It does not depend on which other records were drawn. Records
are added in float32 in groups of up to m, and the groups are added in double. If a record's rank in the batch chose its
group, one record more would move all later records to other groups, and every group would round differently.

So the batch is first cut into families of up to 4 m records, by a binary tree over all places: an interval
[a 2^k, (a + 1) 2^k) with more than 4 m drawn records is split in the middle. Only within a family, groups go by rank.
One record more changes one family, or splits it, and changes the double sums on its way to the root. `rounding` bounds
what that changes: docs/explanation/floating-point.md has the proof.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from alidpfl.errors import ConfigError

GROUPS_IN_A_FAMILY = 4
_UNIT = 2.0**-24  # largest relative error of a float32 operation
_REST = 2e-6  # norms, factors and weighted gradients: 1e-6; double sums of up to 10^8 records: 1e-6


def rounding(group_size: int, groups: int, records: int = 1) -> float:
    """Return how much rounding can add to what one record moves a sum by, as a share of the largest contribution L.

    A float32 sum of m vectors of norm up to L is off by at most (m²/2 + 3m/2) 2^-24 L, in any order of addition. One
    record more changes this error in the groups of one family, from one such value to another.

    At person level a group adds m / k persons of k terms each. The terms of a person have norms of at most √k L
    together (see `gradient_forms.Orthogonal`). Each of the m terms is rounded at most m + 2 times.

    Args:
        group_size: m, the most records that are added in float32.
        groups: The most groups in a family.
        records: k, the records of a person, or 1 at record level.
    """
    if records == 1:
        once = (group_size**2 + 3 * group_size) * groups + 2.0
        return once * _UNIT * (1 + 2 * group_size * _UNIT) + _REST
    group_size = max(group_size, records)
    of_groups, of_one = (size * (size + 2) / math.sqrt(records) for size in (group_size, records))
    return (2 * of_groups * groups + 2 * of_one) * _UNIT * (1 + 2 * group_size * _UNIT) + _REST


def checked_places(places: Tensor | None, rows: Tensor | None, batch_size: int) -> Tensor:
    """Return the places (B,) of a batch: `places`, or else its rows, or else 0, 1, ...

    Raises:
        ConfigError: They are not ascending. Then a record could be there twice, and would count twice.
    """
    found = places if places is not None else rows
    if found is None:
        return torch.arange(batch_size, device="cpu")
    found = found.long().contiguous()
    if found.shape != (batch_size,) or bool((found[1:] <= found[:-1]).any()) or bool((found < 0).any()):
        raise ConfigError(
            "places (or rows, without places) must be one number for each record, in ascending order, none below 0"
        )
    return found


def middle(places: NDArray[np.int64]) -> int:
    """Return how many places lie in the lower half of the smallest interval [a 2^k, (a + 1) 2^k) that holds them all.

    >>> middle(np.array([9, 10, 13]))  # of 8 to 15
    2
    """
    first, last = int(places[0]), int(places[-1])
    half = (first ^ last).bit_length() - 1  # the highest bit that differs
    return int(np.searchsorted(places, last >> half << half))
