"""Poisson sampling: every record joins a batch by its own coin."""

import math
from numbers import Real

from torch import Tensor

from alidpfl.dpsgd.randomness import RandomStream, check_stream
from alidpfl.errors import ConfigError


def poisson_sample(num_records: int, sample_rate: float, random: RandomStream) -> Tensor:
    """Indices of the records of one batch, each included independently with probability `sample_rate`.

    The batch size is random and may be zero: the accounting (Mironov et al. 2019) is for this sampling and for no
    other; shuffled batches of a fixed size are not covered by it (Chua et al. 2024). Indices and batch size are
    private: neither may leave the client.

    >>> poisson_sample(5, 1.0, RandomStream.seeded(0)).tolist()
    [0, 1, 2, 3, 4]
    """
    check_stream(random)
    if isinstance(num_records, bool) or not isinstance(num_records, int):
        raise ConfigError(f"num_records must be a whole number, not {type(num_records).__name__}; pass len(data)")
    if not isinstance(sample_rate, Real) or not 0 < sample_rate <= 1:
        raise ConfigError(f"sample_rate={sample_rate} must be in (0, 1]; did you pass a batch size?")
    if num_records < 0:
        raise ConfigError(f"num_records={num_records} must not be negative")
    # Coins are multiples of 2^-53: against q rounded down to one, a record's chance is never above q.
    chance = math.floor(sample_rate * 2.0**53) * 2.0**-53
    return (random.uniform(num_records) < chance).nonzero().squeeze(1)
