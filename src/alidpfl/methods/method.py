"""The interface of a method, and the methods FedAvg with DP-SGD, the base of the others, and ALI-DPFL."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

from torch import Tensor, nn

from alidpfl.dpsgd import RandomStream, cross_entropy
from alidpfl.types import ClientId, ClientUpdate, Release, Signal

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Outputs (B, ...) and targets (B, ...) to the loss of each record, (B,)."""

State: TypeAlias = dict[str, Any]
"""A method's memory between rounds, as plain values that JSON can hold."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A model with the trained parameters, and a loss of each record: the clients minimise it."""

    model: nn.Module
    """The module with the trained parameters."""
    loss: Loss
    """The loss of each record, computed from that record alone."""
    before_step: Callable[[RandomStream], None] | None = None
    """Called before every step, to draw random numbers that the loss needs."""


@dataclass(frozen=True, kw_only=True)
class ClipAndNoise:
    """C and σ of one client's next round."""

    clip_norm: float
    noise_multiplier: float


class Method(Protocol):
    """A method: pure functions over a small state. Everything it reads is public or noised."""

    name: ClassVar[str]
    """The method's name in a configuration."""
    default_policy: ClassVar[str]
    """The policy that chooses τ if the configuration names none."""
    default_local_steps: ClassVar[int]
    """τ of the policy `fixed` if the configuration sets none."""

    @property
    def release(self) -> Release:
        """Whether noise is added to every step, or to a round's update."""

    signals: ClassVar[frozenset[Signal]]
    """Signals that clients must send besides their weights."""
    adapts_noise: ClassVar[bool]
    """True if σ depends on outputs, so that only a Rényi filter accounts for it."""
    needs_public_loss: ClassVar[bool]
    """True if `observe` needs the loss on public data after every round."""

    def objective(self, model: nn.Module, loss: Loss) -> Objective:
        """Return what the clients train. It may wrap or copy `model`, keeping its parameters and their order."""

    def start(self) -> State:
        """Return the state before the first round."""

    def clip_and_noise(self, state: Mapping[str, Any], client: ClientId) -> ClipAndNoise:
        """Return C and σ of this client's next round."""

    def observe(self, state: Mapping[str, Any], updates: Sequence[ClientUpdate], public_loss: float | None) -> State:
        """Return the state after a round."""


@dataclass(frozen=True, kw_only=True)
class FedAvgDp:
    """Algorithm 1 ("DPFL") of the ALI-DPFL paper: FedAvg (McMahan et al. 2017) with DP-SGD (Abadi et al. 2016).

    Every client takes τ DP-SGD steps, and the server averages. C and σ are constant, and there is no state.
    """

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
    """ALI-DPFL (arXiv 2308.10457), Algorithm 2: FedAvg with DP-SGD. A policy chooses τ anew before every round."""

    name: ClassVar[str] = "ali_dpfl"
    default_policy: ClassVar[str] = "ali"
