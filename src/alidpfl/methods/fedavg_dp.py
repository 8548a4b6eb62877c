"""FedAvg with DP-SGD clients, Algorithm 1 of the ALI-DPFL paper ("DPFL"): C and σ fixed, τ fixed or by any policy.

McMahan et al. 2017 (FedAvg), Abadi et al. 2016 (DP-SGD).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from alidpfl.dpsgd import cross_entropy
from alidpfl.methods.method import Objective, SameForAll
from alidpfl.types import Release, Signal


@dataclass(frozen=True, kw_only=True)
class FedAvgDp(SameForAll):
    """Every client takes τ DP-SGD steps; the server averages."""

    name: str = "fedavg_dp"
    release: ClassVar[Release] = "step"
    signals: ClassVar[frozenset[Signal]] = frozenset()
    adapts_noise: ClassVar[bool] = False
    needs_public_loss: ClassVar[bool] = False

    def objective(self, model: nn.Module) -> Objective:
        """Plain cross-entropy."""
        return Objective(model=model, loss=cross_entropy)


def ali_dpfl(*, clip_norm: float, noise_multiplier: float) -> FedAvgDp:
    """Algorithm 2's clients and server."""
    return FedAvgDp(clip_norm=clip_norm, noise_multiplier=noise_multiplier, name="ali_dpfl")
