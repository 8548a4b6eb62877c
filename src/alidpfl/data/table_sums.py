"""An owner's release of private statistics: one noised sum over the rows of its table."""

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray
from torch import Tensor, from_numpy

from alidpfl.dpsgd import RandomStream, noised_total
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
) -> Tensor:
    """Return the sum of what every row adds, with noise N(0, σ²C² I), where C is the layout's sensitivity.

    Adding or removing one row moves the sum by at most C. A row's vector depends on that row alone, the table at the
    top of `alidpfl.tables.statistics` bounds its norm, and `noised_total` clips it to C whatever the inputs are.

    Args:
        inputs: (n, width) encoded rows.
        targets: (n, ...) encoded targets. A layout without the target does not read them.
        layout: what a row adds.
        noise_multiplier: σ. Charge one `GaussianRelease` of σ before you call this.
        random: source of the noise.
        noise: "gaussian", or "grid" for exact noise.

    Returns:
        (layout.size,) float32.
    """

    def pieces() -> Iterator[Tensor]:
        count = rows_at_a_time(layout.size, _MOST_ROWS_AT_A_TIME)
        for start in range(0, len(inputs), count):
            rows = slice(start, start + count)
            yield from_numpy(layout.vectors(inputs[rows], None if targets is None else targets[rows]))

    return noised_total(
        pieces(),
        layout.size,
        clip_norm=layout.sensitivity,
        noise_multiplier=noise_multiplier,
        random=random,
        noise=noise,
    )
