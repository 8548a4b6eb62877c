"""Who holds which sample: even random splits, and splits that are skewed by label. Pure: numbers in, indices out."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from alidpfl.data.dataset import Dataset
from alidpfl.errors import ConfigError
from alidpfl.inputs import checks

Indices: TypeAlias = NDArray[np.int64]
Partition: TypeAlias = tuple[Indices, ...]
"""For each client the sorted indices of its samples; together all samples, each once."""

DEFAULT_MIN_SAMPLES = 10
DEFAULT_MAX_TRIES = 10_000

_IID_STREAM, _DIRICHLET_STREAM = 1, 2  # one seed, different numbers for each kind of split


def iid(num_samples: int, num_clients: int, seed: int) -> Partition:
    """An even random split: sizes differ by at most one.

    >>> [len(part) for part in iid(10, 3, seed=0)]
    [4, 3, 3]
    """
    _check_sizes(num_samples, num_clients, min_samples=1)
    order = _generator(_IID_STREAM, seed).permutation(num_samples)
    return tuple(np.sort(part).astype(np.int64) for part in np.array_split(order, num_clients))


def dirichlet(
    labels: ArrayLike,
    num_clients: int,
    beta: float,
    seed: int,
    *,
    min_samples: int = DEFAULT_MIN_SAMPLES,
    max_tries: int = DEFAULT_MAX_TRIES,
) -> Partition:
    """A split skewed by label: each class goes to the clients in shares ~ Dir(β). Smaller β, more skew.

    As the paper does it: the share of a client that already holds n/N samples or more is set to zero and the rest
    renormalised, and the whole draw is repeated until every client has `min_samples`.

    Args:
        labels: (n,) whole numbers, the class of each sample.
        num_clients: how many clients share the records.
        beta: β, above 0; the paper takes 0.05, 0.5 and 1.
        seed: the same seed gives the same split.
        min_samples: fewest samples of a client.
        max_tries: draws before giving up.

    >>> parts = dirichlet([0, 1] * 50, num_clients=4, beta=0.5, seed=0)
    >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
    (100, True)
    """
    classes = _checked_labels(labels)
    beta = checks.real("beta", beta, above=0, rule="must be above 0; smaller is more skewed, try 0.5")
    checks.whole("max_tries", max_tries, low=1)
    _check_sizes(len(classes), num_clients, checks.whole("min_samples", min_samples))
    random = _generator(_DIRICHLET_STREAM, seed)
    by_class = [np.flatnonzero(classes == label) for label in np.unique(classes)]
    for _ in range(max_tries):
        counts = _draw_counts([len(members) for members in by_class], num_clients, beta, random)
        if counts.sum(axis=0).min() >= min_samples:
            return _deal(by_class, counts, random)
    raise ConfigError(
        f"no split of {len(classes)} samples with beta={beta:g} gave each of num_clients={num_clients} at least "
        f"min_samples={min_samples} in {max_tries} tries; raise beta, or lower num_clients or min_samples"
    )


def _draw_counts(
    class_sizes: Sequence[int], num_clients: int, beta: float, random: np.random.Generator
) -> NDArray[np.int64]:
    """(classes, clients): one draw of how many samples of each class each client gets, whatever the totals."""
    fair_size = sum(class_sizes) / num_clients  # n / N
    held = np.zeros(num_clients, np.int64)
    counts = np.zeros((len(class_sizes), num_clients), np.int64)
    for row, size in zip(counts, class_sizes, strict=True):
        shares = _capped(random.dirichlet(np.full(num_clients, beta)), held < fair_size)
        cuts = np.floor(np.cumsum(shares)[:-1] * size + 0.5).astype(np.int64).clip(0, size)
        row[:] = np.diff(cuts, prepend=0, append=size)
        held += row
    return counts


def _deal(by_class: Sequence[NDArray[np.intp]], counts: NDArray[np.int64], random: np.random.Generator) -> Partition:
    """Deal each class, shuffled, to the clients in the numbers drawn."""
    dealt = [
        np.split(random.permutation(members), np.cumsum(row)[:-1])
        for members, row in zip(by_class, counts, strict=True)
    ]
    return tuple(np.sort(np.concatenate(pieces)).astype(np.int64) for pieces in zip(*dealt, strict=True))


def _capped(shares: NDArray[np.float64], has_room: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Shares of the clients that have room, adding up to 1."""
    # At small β all of a draw may round to zero, or fall on clients that are full: then those with room share evenly.
    # There is one with room as long as samples are left, since not every client can be at or above the mean.
    kept = np.where(has_room & np.isfinite(shares), shares, 0.0)
    if kept.sum() <= 0:
        kept = has_room.astype(np.float64)
    capped: NDArray[np.float64] = kept / kept.sum()
    return capped


def label_counts(labels: ArrayLike, parts: Sequence[ArrayLike], num_classes: int) -> NDArray[np.int64]:
    """(num_clients, num_classes): how many samples of each class each client holds. Private: it is counts of data.

    >>> label_counts([0, 1, 1, 0], [[0, 1], [2, 3]], num_classes=2).tolist()
    [[1, 1], [1, 1]]
    """
    classes = _checked_labels(labels)
    if len(classes) and int(classes.max()) >= checks.whole("num_classes", num_classes, low=1):
        raise ConfigError(f"num_classes={num_classes} is too small: labels go up to {int(classes.max())}")
    rows = [np.bincount(classes[np.asarray(part, np.int64)], minlength=num_classes) for part in parts]
    return np.array(rows, np.int64).reshape(len(rows), num_classes)


def small_clients(parts: Sequence[Sequence[int] | Indices], sample_rate: float) -> tuple[int, ...]:
    """Clients whose expected batch q·n is below one sample: most of their batches are empty and add noise only.

    >>> small_clients([range(10), range(1000)], sample_rate=0.015)
    (0,)
    """
    rule = "must be in (0, 1]; did you pass a batch size?"
    checks.real("sample_rate", sample_rate, above=0, high=1, rule=rule)
    return tuple(client for client, part in enumerate(parts) if sample_rate * len(part) < 1)


def _generator(stream: int, seed: int) -> np.random.Generator:
    checks.whole("seed", seed)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([stream, seed])))


def _checked_labels(labels: ArrayLike) -> NDArray[np.int64]:
    classes = np.asarray(labels)
    if classes.ndim != 1 or (classes.dtype.kind not in "iu" and classes.size):
        raise ConfigError(f"labels must be one row of whole numbers, not {classes.dtype} of shape {classes.shape}")
    if classes.size and classes.min() < 0:
        raise ConfigError("labels must not be negative; number the classes from 0")
    return classes.astype(np.int64)


def _check_sizes(num_samples: int, num_clients: int, min_samples: int) -> None:
    checks.whole("num_samples", num_samples)
    checks.whole("num_clients", num_clients, low=1)
    if num_clients * min_samples > num_samples:
        raise ConfigError(
            f"num_clients={num_clients} with at least {min_samples} samples each need {num_clients * min_samples} "
            f"samples, but there are {num_samples}; take fewer clients or lower min_samples"
        )


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
