"""The interface of a method. A method sets the clip norm and noise of each client, and the local loss.

The training loop is the same for all methods.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torch import Tensor, nn

from alidpfl.dpsgd import RandomStream
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

    @property
    def name(self) -> str:
        """The method's name in a configuration."""

    @property
    def default_policy(self) -> str:
        """The policy that chooses τ if the configuration names none."""

    @property
    def default_local_steps(self) -> int:
        """τ of the policy `fixed` if the configuration sets none."""

    @property
    def release(self) -> Release:
        """Whether noise is added to every step, or to a round's update."""

    @property
    def signals(self) -> frozenset[Signal]:
        """Signals that clients must send besides their weights."""

    @property
    def adapts_noise(self) -> bool:
        """True if σ depends on outputs, so that only a Rényi filter accounts for it."""

    @property
    def needs_public_loss(self) -> bool:
        """True if `observe` needs the loss on public data after every round."""

    def objective(self, model: nn.Module, loss: Loss) -> Objective:
        """Return what the clients train. It may wrap or copy `model`, keeping its parameters and their order."""

    def start(self) -> State:
        """Return the state before the first round."""

    def clip_and_noise(self, state: Mapping[str, Any], client: ClientId) -> ClipAndNoise:
        """Return C and σ of this client's next round."""

    def observe(self, state: Mapping[str, Any], updates: Sequence[ClientUpdate], public_loss: float | None) -> State:
        """Return the state after a round."""
