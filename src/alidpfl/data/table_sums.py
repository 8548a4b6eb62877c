"""An owner's release of private statistics: one noised sum over the rows of its table."""

from collections.abc import Callable, Iterator
from typing import Any

from numpy.typing import NDArray
from torch import Tensor, arange, from_numpy

from alidpfl.dpsgd import Groups, RandomStream, noised_total
from alidpfl.dpsgd.release import rows_at_a_time
from alidpfl.tables.encode import Floats
from alidpfl.tables.statistics import Layout
from alidpfl.types import NoiseKind

_MOST_ROWS_AT_A_TIME = 4096


def noised_sum_of_rows(
    inputs: Floats,
    targets: NDArray[Any] | None,
    layout: Layout,
    *,
    noise_multiplier: float,
    random: RandomStream,
    noise: NoiseKind = "gaussian",
    groups: Groups | None = None,
    max_records: int = 1,
) -> Tensor:
    """Return the sum of what every row adds, with noise N(0, σ²C² I), where C is the layout's sensitivity.

    Adding or removing one row moves the sum by at most C. A row's vector depends on that row alone, the table at the
    top of `alidpfl.tables.statistics` bounds its norm, and `noised_total` clips it to C whatever the inputs are.

    With `groups` the same holds for one person: she adds the mean over at most k of her rows, drawn afresh.

    Args:
        inputs: (n, width) encoded rows.
        targets: (n, ...) encoded targets. A layout without the target does not read them.
        layout: what a row adds.
        noise_multiplier: σ. Charge one `GaussianRelease` of σ before you call this.
        random: source of the noise.
        noise: "gaussian", or "grid" for exact noise.
        groups: the rows of each person in `inputs`, if the unit of privacy is a person. Rows in no group are not read.
        max_records: k, the most rows of a person.

    Returns:
        (layout.size,) float32.
    """

    def vectors(rows: Any) -> Floats:
        return layout.vectors(inputs[rows], None if targets is None else targets[rows])

    count = rows_at_a_time(layout.size * max_records, _MOST_ROWS_AT_A_TIME)
    pieces: Iterator[Tensor]
    if groups is None:
        pieces = (from_numpy(vectors(slice(start, start + count))) for start in range(0, len(inputs), count))
    else:
        pieces = _means(*groups.draw(arange(len(groups)), max_records, random), count, vectors)
    return noised_total(
        pieces,
        layout.size,
        clip_norm=layout.sensitivity,
        noise_multiplier=noise_multiplier,
        random=random,
        noise=noise,
    )


def _means(rows: Tensor, weights: Tensor, at_a_time: int, vectors: Callable[[Any], Floats]) -> Iterator[Tensor]:
    """Yield the mean vector of each person's rows, in pieces (b, size). Each person's is added up by itself."""
    for own, shares in zip(rows.split(at_a_time), weights.split(at_a_time), strict=True):
        first, *others = (
            from_numpy(vectors(some.numpy())) * share[:, None] for some, share in zip(own.T, shares.T, strict=True)
        )
        for other in others:
            first += other
        yield first
