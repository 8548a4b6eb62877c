"""Who holds which rows of a data set, by the name of the split: for runs, for pictures and for trying out a vault."""

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from alidpfl.data.dataset import Dataset
from alidpfl.data.partition import DEFAULT_MIN_SAMPLES, dirichlet, iid
from alidpfl.errors import ConfigError

Split: TypeAlias = Literal["iid", "dirichlet", "natural"]


def client_rows(
    dataset: Dataset,
    split: Split,
    *,
    clients: int,
    dirichlet_beta: float,
    seed: int,
    min_samples: int = DEFAULT_MIN_SAMPLES,
    among: Tensor | None = None,
) -> list[Tensor]:
    """Rows of the training set of each client; where `among` is given, of those rows only.

    >>> from alidpfl.data import load
    >>> made = load("synthetic", clients=3)
    >>> parts = client_rows(made, "iid", clients=2, dirichlet_beta=0.5, seed=0)
    >>> sum(len(rows) for rows in parts) == len(made.train)
    True
    """
    rows = torch.arange(len(dataset.train)) if among is None else among
    if split != "natural" and dataset.natural_clients is not None and not dataset.is_synthetic:
        # One record more would deal all of them out anew, and sizes, which are public, would follow from labels.
        raise ConfigError(
            f"partition={split!r}: {dataset.name} says who holds what, and its clients' records are not to be pooled "
            "and dealt out again; leave the partition out, or set natural"
        )
    if split == "natural":
        if dataset.natural_clients is None:
            raise ConfigError(f"{dataset.name} does not say who holds what; split it by dirichlet or iid, not natural")
        is_private = torch.zeros(len(dataset.train), dtype=torch.bool)
        is_private[rows] = True
        return [own[is_private[own]] for own in dataset.natural_clients]
    if split == "iid":
        parts = iid(len(rows), clients, seed)
    else:
        labels = dataset.train.targets[rows].numpy()
        parts = dirichlet(labels, clients, dirichlet_beta, seed, min_samples=min_samples)
    return [rows[torch.from_numpy(part)] for part in parts]
