"""A part of the training set held out for tuning, so that the test set is looked at once, at the end."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from alidpfl.data import checks
from alidpfl.data.dataset import LabelledData
from alidpfl.errors import ConfigError

_STREAM = 3  # other numbers than the partition draws from the same seed


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """Two disjoint parts of one set: `train` to learn from, `validation` to choose settings by."""

    train: LabelledData
    validation: LabelledData


def held_out_rows(num_samples: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to learn from and rows held out, both sorted; a fraction of 0 holds out none.

    >>> kept, held_out = held_out_rows(10, 0.2, seed=0)
    >>> len(kept), len(held_out)
    (8, 2)
    """
    fraction = checks.number("fraction", fraction, below=1, remedy="such as 0.1")
    checks.whole("seed", seed)
    count = round(fraction * num_samples)
    if fraction < 0 or count >= num_samples or (fraction > 0 and count == 0):
        raise ConfigError(f"fraction={fraction:g} of {num_samples} samples leaves a part empty; take another fraction")
    order = np.random.Generator(np.random.PCG64(np.random.SeedSequence([_STREAM, seed]))).permutation(num_samples)
    held_out, kept = (torch.from_numpy(np.sort(part)) for part in (order[:count], order[count:]))
    return kept, held_out


def split_validation(data: LabelledData, fraction: float, seed: int) -> Holdout:
    """Hold out `fraction` of `data`, drawn at random; both parts keep the order of `data`.

    Choosing settings on private data costs privacy of its own: use it on public or on made data, or account for it.

    >>> data = LabelledData(inputs=torch.zeros(10, 2), targets=torch.zeros(10, dtype=torch.int64))
    >>> held = split_validation(data, 0.2, seed=0)
    >>> len(held.train), len(held.validation)
    (8, 2)
    """
    checks.number("fraction", fraction, above=0, below=1, remedy="such as 0.1")
    train, validation = held_out_rows(len(data), fraction, seed)
    return Holdout(train=data.subset(train), validation=data.subset(validation))
