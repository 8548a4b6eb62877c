"""ALI-DPFL (arXiv 2308.10457), Algorithm 2: as FedAvg + DP, with τ chosen anew before every round by a policy.

What the paper adds is the choice of τ, and that lives in `alidpfl.policies`: `ali` (private), `paper` and `reference`
(the authors' signals, un-noised), `corrected` (a bound that holds).
"""

from alidpfl.methods.fedavg_dp import FedAvgDp


def ali_dpfl(*, clip_norm: float, noise_multiplier: float) -> FedAvgDp:
    """Algorithm 2's clients and server."""
    return FedAvgDp(clip_norm=clip_norm, noise_multiplier=noise_multiplier, name="ali_dpfl")
