"""FedAvg with DP-SGD clients, Algorithm 1 of the ALI-DPFL paper ("DPFL"): C and σ fixed, τ fixed or by any policy.

McMahan et al. 2017 (FedAvg), Abadi et al. 2016 (DP-SGD).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from alidpfl.dpsgd import cross_entropy
from alidpfl.methods.method import Loss, Objective, SameForAll
from alidpfl.types import Release, Signal


@dataclass(frozen=True, kw_only=True)
class FedAvgDp(SameForAll):
    """Every client takes τ DP-SGD steps; the server averages."""

    name: ClassVar[str] = "fedavg_dp"
    default_policy: ClassVar[str] = "fixed"
    default_local_steps: ClassVar[int] = 1
    release: ClassVar[Release] = "step"
    signals: ClassVar[frozenset[Signal]] = frozenset()
    adapts_noise: ClassVar[bool] = False
    needs_public_loss: ClassVar[bool] = False

    def objective(self, model: nn.Module, loss: Loss = cross_entropy) -> Objective:
        """Return the model with the loss as it is."""
        return Objective(model=model, loss=loss)


@dataclass(frozen=True, kw_only=True)
class AliDpfl(FedAvgDp):
    """ALI-DPFL (arXiv 2308.10457), Algorithm 2: FedAvg with DP-SGD, with τ chosen anew before every round.

    The choice of τ is a policy: `ali` (private), `paper` and `reference` (the authors' signals, un-noised), or
    `corrected` (a bound that holds).
    """

    name: ClassVar[str] = "ali_dpfl"
    default_policy: ClassVar[str] = "ali"
