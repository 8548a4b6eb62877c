"""Centres and scales features by two statistics of all clients' records, and gives every record norm one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from alidpfl.errors import DataError
from alidpfl.features.maps import FeatureMap

# Shares of a record's squared norm, by the number of learned blocks. Learned blocks divide the rest.
_FIXED_WEIGHTS = (
    {"scattering": 0.5, "raw": 0.15, "oriented": 0.35},
    {"scattering": 0.4, "raw": 0.1, "oriented": 0.25},
    {"scattering": 0.3, "raw": 0.08, "oriented": 0.18},
)
_CONSTANT = 0.1  # the last feature, the same for all records: the model's bias, small so that it adds little norm
_RANK = 2  # variances are nearly a factor for each path times one for each position, which averages noise out
_FLOOR = 0.1  # share of the mean variance that is added to each, so that no coordinate grows too large
_POWER = -0.25  # half of the way to equal variances: full whitening would enlarge coordinates that are mostly noise
_SHORTEST = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Standardiser:
    """Turns features by block into one vector for each record, the input of a linear model.

    `mean` are the means of all features, with all blocks joined. `scale` are factors of scattering's low features. Both
    come from noised releases, so they are public. Beside them, a vector depends on its own image only.
    """

    feature_map: FeatureMap
    mean: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        blocks = self.feature_map.blocks
        sizes = sum(block.size for block in blocks), int(blocks[0].low.sum())
        if (len(self.mean), len(self.scale)) != sizes:
            raise DataError(f"mean and scale have {len(self.mean)} and {len(self.scale)} values, need {sizes}")

    @classmethod
    def from_statistics(cls, feature_map: FeatureMap, *, mean: Tensor, variance: Tensor) -> "Standardiser":
        """Build it from estimates of all means and of scattering's variances. These may be noised, even negative."""
        block = feature_map.blocks[0]
        left, weights, right = torch.linalg.svd(block.to_grid(variance), full_matrices=False)
        smooth = block.from_grid((left[:, :_RANK] * weights[:_RANK]) @ right[:_RANK]).clamp(min=0)
        scale = (smooth + _FLOOR * smooth.mean() + torch.finfo(torch.float32).tiny).pow(_POWER)
        return cls(feature_map=feature_map, mean=mean, scale=scale[block.low])

    @property
    def size(self) -> int:
        """Length of a vector."""
        return vector_size(self.feature_map)

    @torch.no_grad()
    def vectors(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return (n, size) float32: every block centred, with a fixed norm, and then the constant."""
        blocks, learned = self.feature_map.blocks, self.feature_map.learned
        means = dict(zip((block.name for block in blocks), self.mean.split([b.size for b in blocks]), strict=True))
        weights, parts = _FIXED_WEIGHTS[len(learned)].copy(), []
        for filters in learned:
            weights[filters.key] = (1 - sum(_FIXED_WEIGHTS[len(learned)].values())) / len(learned)
        for block in blocks:
            centred = features[block.name] - means[block.name]
            if block is blocks[0]:
                centred = centred[:, block.low] * self.scale
            lengths = torch.linalg.vector_norm(centred, dim=1, keepdim=True).clamp(min=_SHORTEST)
            parts.append(centred * (math.sqrt(weights[block.name]) / lengths))
        return torch.cat([*parts, torch.full((len(parts[0]), 1), _CONSTANT)], dim=1)


def vector_size(feature_map: FeatureMap) -> int:
    """Return the length of a map's vectors: scattering's low features, all others, and the constant."""
    scattering, *others = feature_map.blocks
    return int(scattering.low.sum()) + sum(block.size for block in others) + 1
