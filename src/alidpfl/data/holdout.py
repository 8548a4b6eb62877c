"""A part of the training set that no client holds: public data to choose settings by, so that the test set can wait."""

import numpy as np
import torch
from torch import Tensor

from alidpfl.errors import ConfigError
from alidpfl.inputs import checks

_STREAM = 3  # other numbers than the partition draws from the same seed


def held_out_rows(num_samples: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to learn from and rows held out, both sorted; a fraction of 0 holds out none.

    >>> kept, held_out = held_out_rows(10, 0.2, seed=0)
    >>> len(kept), len(held_out)
    (8, 2)
    """
    rule = "must be at least 0 and below 1, such as 0.1"
    fraction = checks.real("fraction", fraction, low=0, below=1, rule=rule)
    checks.whole("seed", seed)
    count = round(fraction * num_samples)
    if count >= num_samples or (fraction > 0 and count == 0):
        raise ConfigError(f"fraction={fraction:g} of {num_samples} samples leaves a part empty; take another fraction")
    order = np.random.Generator(np.random.PCG64(np.random.SeedSequence([_STREAM, seed]))).permutation(num_samples)
    held_out, kept = (torch.from_numpy(np.sort(part)) for part in (order[:count], order[count:]))
    return kept, held_out
