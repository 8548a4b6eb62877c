"""What the clients minimise."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from alidpfl.dpsgd import RandomStream


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A model that holds the trained parameters, and a loss of each sample."""

    model: nn.Module
    """The module whose parameters are trained."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """Outputs (B, ...) and targets (B, ...) to (B,)."""
    before_step: Callable[[RandomStream], None] | None = None
    """Called before every step: draws what the loss needs at random."""
