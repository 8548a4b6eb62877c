"""Split records among clients: evenly at random, skewed by label, or as the data set says. Numbers in, rows out."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from alidpfl.data.dataset import Dataset
from alidpfl.errors import ConfigError
from alidpfl.inputs import checks

Rows: TypeAlias = NDArray[np.int64]
Partition: TypeAlias = tuple[Rows, ...]
"""The sorted rows of each client. Together they are all rows, each once."""
Split: TypeAlias = Literal["iid", "dirichlet", "natural"]

DEFAULT_MIN_SAMPLES = 10

_IID_STREAM, _DIRICHLET_STREAM, _HOLD_OUT_STREAM = 1, 2, 3  # one seed gives each its own random numbers


def iid(num_samples: int, num_clients: int, seed: int) -> Partition:
    """Split evenly at random: the sizes differ by at most one."""
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
    max_tries: int = 10_000,
) -> Partition:
    """Split by label: each class goes to the clients in shares ~ Dir(β). A smaller β gives more skew.

    This follows the paper. A client that already holds n/N records or more gets none of the next class, and the other
    shares are renormalised. The whole draw is repeated until every client has `min_samples`.

    Args:
        labels: (n,) whole numbers, the class of each record.
        num_clients: N, the number of clients.
        beta: β, above 0; the paper takes 0.05, 0.5 and 1.
        seed: the same seed gives the same split.
        min_samples: fewest records of a client.
        max_tries: number of draws before giving up.

    Raises:
        ConfigError: a value is outside its range, or no draw gave every client `min_samples`.

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
        f"no split of {len(classes)} records with beta={beta:g} gave each of num_clients={num_clients} at least "
        f"min_samples={min_samples} in {max_tries} tries; raise beta, or lower num_clients or min_samples"
    )


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
    """Return the rows of the training part that each client holds.

    Args:
        dataset: the data set.
        split: `iid`, `dirichlet`, or `natural` for the data set's own clients.
        clients: number of clients; `natural` ignores it.
        dirichlet_beta: β of `dirichlet`.
        seed: draws the split.
        min_samples: fewest records of a client under `dirichlet`.
        among: the rows to split. Default: all rows.
    """
    rows = torch.arange(len(dataset.train)) if among is None else among
    if split != "natural" and dataset.natural_clients is not None and not dataset.is_synthetic:
        # One more record would change the whole split. Its sizes are public and would depend on private labels.
        raise ConfigError(
            f"partition={split!r}: {dataset.name} has clients of its own, and their records must not be pooled and "
            "split again; leave the partition out, or set natural"
        )
    if split == "natural":
        if dataset.natural_clients is None:
            raise ConfigError(f"partition='natural': {dataset.name} has no clients of its own; use dirichlet or iid")
        is_private = torch.zeros(len(dataset.train), dtype=torch.bool)
        is_private[rows] = True
        return [own[is_private[own]] for own in dataset.natural_clients]
    if split == "iid":
        parts = iid(len(rows), clients, seed)
    else:
        labels = dataset.train.targets[rows].numpy()
        parts = dirichlet(labels, clients, dirichlet_beta, seed, min_samples=min_samples)
    return [rows[torch.from_numpy(part)] for part in parts]


def held_out_rows(num_samples: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return rows to train on and rows to hold out, both sorted. A fraction of 0 holds out none."""
    fraction = checks.real("fraction", fraction, low=0, below=1, rule="must be at least 0 and below 1, such as 0.1")
    count = round(fraction * num_samples)
    if count >= num_samples or (fraction > 0 and count == 0):
        raise ConfigError(f"fraction={fraction:g} of {num_samples} records leaves a part empty; take another fraction")
    order = _generator(_HOLD_OUT_STREAM, seed).permutation(num_samples)
    held_out, kept = (torch.from_numpy(np.sort(part)) for part in (order[:count], order[count:]))
    return kept, held_out


def label_counts(labels: ArrayLike, parts: Sequence[ArrayLike], num_classes: int) -> NDArray[np.int64]:
    """Return the number of records of each class at each client: (num_clients, num_classes). These are private.

    >>> label_counts([0, 1, 1, 0], [[0, 1], [2, 3]], num_classes=2).tolist()
    [[1, 1], [1, 1]]
    """
    classes = _checked_labels(labels)
    if len(classes) and int(classes.max()) >= checks.whole("num_classes", num_classes, low=1):
        raise ConfigError(f"num_classes={num_classes} is too small: labels go up to {int(classes.max())}")
    rows = [np.bincount(classes[np.asarray(part, np.int64)], minlength=num_classes) for part in parts]
    return np.array(rows, np.int64).reshape(len(rows), num_classes)


def small_clients(parts: Sequence[Sequence[int] | Rows], sample_rate: float) -> tuple[int, ...]:
    """Return the clients with an expected batch q·n below one record: most of their batches are empty, all noise.

    >>> small_clients([range(10), range(1000)], sample_rate=0.015)
    (0,)
    """
    checks.real("sample_rate", sample_rate, above=0, high=1, rule="must be in (0, 1]; did you pass a batch size?")
    return tuple(client for client, part in enumerate(parts) if sample_rate * len(part) < 1)


def _draw_counts(sizes: Sequence[int], num_clients: int, beta: float, random: np.random.Generator) -> NDArray[np.int64]:
    """Draw how many records of each class each client gets: (classes, clients)."""
    fair_size = sum(sizes) / num_clients  # n / N
    held = np.zeros(num_clients, np.int64)
    counts = np.zeros((len(sizes), num_clients), np.int64)
    for row, size in zip(counts, sizes, strict=True):
        shares, has_room = random.dirichlet(np.full(num_clients, beta)), held < fair_size
        shares = np.where(has_room & np.isfinite(shares), shares, 0.0)
        if shares.sum() <= 0:
            # At small β the whole draw may round to zero or fall on full clients. Then the clients with room share
            # evenly. While records are left, some client is below the mean and has room.
            shares = has_room.astype(np.float64)
        cuts = np.floor(np.cumsum(shares / shares.sum())[:-1] * size + 0.5).astype(np.int64).clip(0, size)
        row[:] = np.diff(cuts, prepend=0, append=size)
        held += row
    return counts


def _deal(by_class: Sequence[NDArray[np.intp]], counts: NDArray[np.int64], random: np.random.Generator) -> Partition:
    """Shuffle each class and give every client the number that was drawn."""
    dealt = [np.split(random.permutation(m), np.cumsum(row)[:-1]) for m, row in zip(by_class, counts, strict=True)]
    return tuple(np.sort(np.concatenate(pieces)).astype(np.int64) for pieces in zip(*dealt, strict=True))


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
            f"num_clients={num_clients} with at least {min_samples} records each need {num_clients * min_samples} "
            f"records, but there are {num_samples}; take fewer clients or lower min_samples"
        )
