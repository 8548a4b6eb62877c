"""What a trained round is, without torch."""

import math
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from alidpfl.types import RawSignals, SecantSums


@dataclass(frozen=True, kw_only=True)
class NoisedUpdate:
    """The weights after a round and its signals. Signals that are not finite are left out: JSON has none."""

    params: NDArray[np.float32]
    secants: SecantSums | None = None
    gradient_norm: float | None = None
    raw: RawSignals | None = None

    def __post_init__(self) -> None:
        for name in ("secants", "raw"):
            value = getattr(self, name)
            if value is not None and not all(math.isfinite(number) for number in astuple(value)):
                object.__setattr__(self, name, None)
        if self.gradient_norm is not None and not math.isfinite(self.gradient_norm):
            object.__setattr__(self, "gradient_norm", None)
