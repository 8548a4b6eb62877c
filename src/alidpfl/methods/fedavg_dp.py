"""FedAvg with DP-SGD clients, the base of the other methods, and ALI-DPFL, which differs only in its default policy.

FedAvg: McMahan et al. 2017. DP-SGD: Abadi et al. 2016. Together they are Algorithm 1 ("DPFL") of the ALI-DPFL paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from alidpfl.dpsgd import cross_entropy
from alidpfl.methods.method import ClipAndNoise, Loss, Objective, State
from alidpfl.types import ClientId, ClientUpdate, Release, Signal


@dataclass(frozen=True, kw_only=True)
class FedAvgDp:
    """Every client takes τ DP-SGD steps, and the server averages. C and σ are constant, and there is no state."""

    clip_norm: float
    """C of the first round."""
    noise_multiplier: float
    """σ of the first round."""
    name: ClassVar[str] = "fedavg_dp"
    default_policy: ClassVar[str] = "fixed"
    default_local_steps: ClassVar[int] = 1
    release: ClassVar[Release] = "step"
    signals: ClassVar[frozenset[Signal]] = frozenset()
    adapts_noise: ClassVar[bool] = False
    needs_public_loss: ClassVar[bool] = False

    def objective(self, model: nn.Module, loss: Loss = cross_entropy) -> Objective:
        """Return the model and the loss unchanged."""
        return Objective(model=model, loss=loss)

    def start(self) -> State:
        """Return an empty state."""
        return {}

    def clip_and_noise(self, state: Mapping[str, Any], client: ClientId) -> ClipAndNoise:
        """Return the configured C and σ, for every client."""
        return ClipAndNoise(clip_norm=self.clip_norm, noise_multiplier=self.noise_multiplier)

    def observe(self, state: Mapping[str, Any], updates: Sequence[ClientUpdate], public_loss: float | None) -> State:
        """Return the state unchanged."""
        return dict(state)


@dataclass(frozen=True, kw_only=True)
class AliDpfl(FedAvgDp):
    """ALI-DPFL (arXiv 2308.10457), Algorithm 2: FedAvg with DP-SGD, with τ chosen anew before every round.

    A policy chooses τ: `ali` (private), `paper` or `reference` (the authors' signals, un-noised), or `corrected` (by a
    bound that holds).
    """

    name: ClassVar[str] = "ali_dpfl"
    default_policy: ClassVar[str] = "ali"
