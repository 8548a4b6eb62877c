"""What a method of the literature may vary: the numbers of a client's plan, and the local loss. The loop is one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torch import Tensor, nn

from alidpfl.dpsgd import RandomStream
from alidpfl.types import ClientId, ClientUpdate, Release, Signal

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Outputs (B, ...) and targets (B, ...) to the loss of each sample, (B,)."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A model that holds the trained parameters, and a loss of each sample."""

    model: nn.Module
    """The module whose parameters are trained."""
    loss: Loss
    before_step: Callable[[RandomStream], None] | None = None
    """Called before every step: draws what the loss needs at random."""


State = dict[str, Any]
"""A method's memory: plain values that JSON can hold."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """C and σ of one client's next round."""

    clip_norm: float
    noise_multiplier: float


@dataclass(frozen=True, kw_only=True)
class SameForAll:
    """The usual case, to build methods on: C and σ never change, and nothing is remembered."""

    clip_norm: float
    noise_multiplier: float

    def start(self) -> State:
        """Nothing to remember."""
        return {}

    def numbers(self, state: Mapping[str, Any], client: ClientId) -> Numbers:
        """The same for everybody, always."""
        return Numbers(clip_norm=self.clip_norm, noise_multiplier=self.noise_multiplier)

    def observe(self, state: Mapping[str, Any], updates: Sequence[ClientUpdate], public_loss: float | None) -> State:
        """Nothing to learn."""
        return dict(state)


class Method(Protocol):
    """A method: pure functions over a small state. Everything it sees is public or noised."""

    @property
    def name(self) -> str:
        """The method's name in a configuration."""

    @property
    def default_policy(self) -> str:
        """The policy that chooses τ where the configuration names none."""

    @property
    def default_local_steps(self) -> int:
        """τ of the policy `fixed` where the configuration sets none."""

    @property
    def release(self) -> Release:
        """Noise on every step, or on a round's update."""

    @property
    def signals(self) -> frozenset[Signal]:
        """What it needs of the clients beside their weights."""

    @property
    def adapts_noise(self) -> bool:
        """True if σ depends on outputs, so that only a Rényi filter accounts for it."""

    @property
    def needs_public_loss(self) -> bool:
        """True if it looks at the loss on public data after every round."""

    def objective(self, model: nn.Module, loss: Loss) -> Objective:
        """Return what the clients train. It may wrap or copy `model`, keeping its parameters and their order."""

    def start(self) -> State:
        """The memory before the first round."""

    def numbers(self, state: Mapping[str, Any], client: ClientId) -> Numbers:
        """C and σ for this client's next round."""

    def observe(self, state: Mapping[str, Any], updates: Sequence[ClientUpdate], public_loss: float | None) -> State:
        """The memory after a round."""
