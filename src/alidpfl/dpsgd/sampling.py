"""Poisson sampling: every record joins a batch by its own coin."""

import math

from torch import Tensor

from alidpfl.dpsgd.randomness import RandomStream, check_stream
from alidpfl.inputs import checks


def poisson_sample(num_records: int, sample_rate: float, random: RandomStream) -> Tensor:
    """Indices of the records of one batch, each included independently with probability `sample_rate`.

    The batch size is random and may be zero: the accounting (Mironov et al. 2019) is for this sampling and for no
    other; shuffled batches of a fixed size are not covered by it (Chua et al. 2024). Indices and batch size are
    private: neither may leave the client.

    >>> poisson_sample(5, 1.0, RandomStream.seeded(0)).tolist()
    [0, 1, 2, 3, 4]
    """
    check_stream(random)
    checks.whole("num_records", num_records)
    checks.real("sample_rate", sample_rate, above=0, high=1, rule="must be in (0, 1]; did you pass a batch size?")
    # Coins are multiples of 2^-53: against q rounded down to one, a record's chance is never above q.
    chance = math.floor(sample_rate * 2.0**53) * 2.0**-53
    return (random.uniform(num_records) < chance).nonzero().squeeze(1)
