"""The Gaussian release of a sum: every record adds one vector of bounded norm, and noise is added once."""

from collections.abc import Iterable

import torch
from torch import Tensor

from alidpfl.dpsgd.clipping import SAFETY, check_clip_norm
from alidpfl.dpsgd.gradient_forms import clip_factors, finite, squared_norms
from alidpfl.dpsgd.grid_noise import Grid
from alidpfl.dpsgd.randomness import RandomStream, check_stream
from alidpfl.dpsgd.step import add_noise
from alidpfl.inputs import checks
from alidpfl.types import NoiseKind

_VALUES_AT_A_TIME = 1 << 22


def rows_at_a_time(size: int, most: int) -> int:
    """Return how many vectors of this length fit into a piece: `most`, or fewer if they are long."""
    return max(1, min(most, _VALUES_AT_A_TIME // size))


@torch.no_grad()
def noised_total(
    vectors: Iterable[Tensor],
    size: int,
    *,
    clip_norm: float,
    noise_multiplier: float,
    random: RandomStream,
    noise: NoiseKind = "gaussian",
) -> Tensor:
    """Return the sum of the vectors, each clipped to norm C, with noise N(0, σ²C² I), as float32 on a public grid.

    Args:
        vectors: Pieces (b, size) with one row a record. A row may depend on its own record and public values only.
        size: Length of a vector.
        clip_norm: C, the most that one record can move the sum.
        noise_multiplier: σ. Charge one `GaussianRelease` of σ before you call this.
        random: Source of the noise.
        noise: "gaussian", or "grid" for exact noise on a `Grid`.

    Raises:
        ConfigError: A setting is out of range. σ = 0 is refused: nothing leaves without noise.

    >>> ones = [torch.ones(3, 2), torch.ones(1, 2)]
    >>> total = noised_total(ones, 2, clip_norm=1.0, noise_multiplier=10.0, random=RandomStream.secure())
    >>> total.shape
    torch.Size([2])
    """
    check_clip_norm(clip_norm)
    check_stream(random)
    rule = "must be finite and greater than 0: without noise nothing is released"
    checks.real("noise_multiplier", noise_multiplier, above=0, rule=rule)
    if noise == "grid":
        records = (vector.clone() for piece in vectors for vector in piece)  # copies begin on a memory boundary
        return Grid(clip_norm=clip_norm, noise_multiplier=noise_multiplier).noised_total(records, size, random)
    total = torch.zeros(size, dtype=torch.float64)
    for piece in vectors:
        factors = clip_factors(squared_norms(piece).sqrt(), clip_norm * SAFETY)
        total += factors @ finite(piece).double()
    noised = {"total": total}
    add_noise(noised, noise_multiplier * clip_norm, random)
    return noised["total"]
