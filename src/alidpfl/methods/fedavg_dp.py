"""FedAvg with DP-SGD clients, Algorithm 1 of the ALI-DPFL paper ("DPFL"): C and σ fixed, τ fixed or by any policy.

McMahan et al. 2017 (FedAvg), Abadi et al. 2016 (DP-SGD).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from alidpfl.dpsgd import cross_entropy
from alidpfl.methods.method import Numbers, State
from alidpfl.methods.objective import Objective
from alidpfl.types import ClientId, ClientUpdate, Release, Signal


@dataclass(frozen=True, kw_only=True)
class FedAvgDp:
    """Every client takes τ DP-SGD steps; the server averages."""

    clip_norm: float
    noise_multiplier: float
    name: str = "fedavg_dp"
    release: ClassVar[Release] = "step"
    signals: ClassVar[frozenset[Signal]] = frozenset()
    adapts_noise: ClassVar[bool] = False
    needs_public_loss: ClassVar[bool] = False

    def objective(self, model: nn.Module) -> Objective:
        """Plain cross-entropy."""
        return Objective(model=model, loss=cross_entropy)

    def start(self) -> State:
        """Nothing to remember."""
        return {}

    def numbers(self, state: Mapping[str, Any], client: ClientId) -> Numbers:
        """The same for everybody, always."""
        return Numbers(clip_norm=self.clip_norm, noise_multiplier=self.noise_multiplier)

    def observe(self, state: Mapping[str, Any], updates: Sequence[ClientUpdate], public_loss: float | None) -> State:
        """Nothing to learn."""
        return dict(state)
