"""Adap DP-FL (Fu et al. 2022, arXiv 2211.15893): C follows the gradients of each client, and σ follows the loss.

- C of client i in round t is α times the mean norm of its own *noised* gradients of round t−1, within [C_min, C_max].
  The noise's share is subtracted first, or C would grow by σ√d/B every round.
- When the loss on public validation data has fallen three times in a row, σ ← βσ. Then σ depends on outputs, so a Rényi
  filter keeps the budget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from alidpfl.inputs import checks
from alidpfl.methods.method import ClipAndNoise, FedAvgDp, State
from alidpfl.types import ClientId, ClientUpdate, Signal

_FALLS = 3  # of the public loss in a row, before σ is lowered


@dataclass(frozen=True, kw_only=True)
class AdapDpfl(FedAvgDp):
    """Adap DP-FL. Its state holds `clip_norms` by client, `noise_multiplier`, and the last public losses."""

    clip_factor: float = 1.0
    """α."""
    noise_decay: float = 0.999
    """β."""
    smallest_clip_norm: float = 0.01
    largest_clip_norm: float = 10.0
    name: ClassVar[str] = "adap_dpfl"
    default_local_steps: ClassVar[int] = 3  # as in the ALI-DPFL paper
    signals: ClassVar[frozenset[Signal]] = frozenset({"gradient_norm"})
    adapts_noise: ClassVar[bool] = True
    needs_public_loss: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.real("noise_decay", self.noise_decay, above=0, high=1, rule="must be in (0, 1]")
        for name in ("clip_factor", "smallest_clip_norm", "largest_clip_norm"):
            checks.real(name, getattr(self, name), above=0, rule="must be above 0")
        low, high = self.smallest_clip_norm, self.largest_clip_norm
        rule = f"must be between smallest_clip_norm={low} and largest_clip_norm={high}"
        checks.real("clip_norm", self.clip_norm, low=low, high=high, rule=rule)

    def start(self) -> State:
        """Return the state with the first C for every client, and no loss."""
        return {"clip_norms": {}, "noise_multiplier": self.noise_multiplier, "losses": []}

    def clip_and_noise(self, state: Mapping[str, Any], client: ClientId) -> ClipAndNoise:
        """Return the client's own C, and the σ of all clients."""
        clip_norm = state["clip_norms"].get(str(client), self.clip_norm)
        return ClipAndNoise(clip_norm=clip_norm, noise_multiplier=state["noise_multiplier"])

    def observe(self, state: Mapping[str, Any], updates: Sequence[ClientUpdate], public_loss: float | None) -> State:
        """Set each client's C by its gradient norm. Lower σ after three falls of the public loss, then count anew."""
        clip_norms = dict(state["clip_norms"])
        for update in updates:
            if update.gradient_norm is not None:
                wanted = self.clip_factor * update.gradient_norm
                # A NaN from a lying client is not >= 0, and must not become a clip norm.
                bounded = min(self.largest_clip_norm, wanted) if wanted >= 0 else self.smallest_clip_norm
                clip_norms[str(update.client)] = max(self.smallest_clip_norm, bounded)
        losses = [*state["losses"], *([] if public_loss is None else [public_loss])][-(_FALLS + 1) :]
        noise_multiplier = state["noise_multiplier"]
        if len(losses) == _FALLS + 1 and all(later < earlier for earlier, later in pairwise(losses)):
            noise_multiplier *= self.noise_decay
            losses = losses[-1:]
        return {"clip_norms": clip_norms, "noise_multiplier": noise_multiplier, "losses": losses}
