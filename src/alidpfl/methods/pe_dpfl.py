"""PE-DPFL (IEEE IoT-J 9(23), 10.1109/JIOT.2022.3189361): a regulariser that perturbs the classifier. A RECONSTRUCTION.

No full text or code is public. Here the loss of a record is ℓ(φ, c) + λ · mean_u [ℓ(φ, c + u) − ℓ(φ, c)], with features
φ, last linear layer c, and u ~ N(0, s² I). There are two variants:

- `dpsgd` (the default, comparable with the other methods): DP-SGD on that loss.
- `output`: plain SGD on that loss. The whole update is clipped to S and noised once a round with N(0, σ²(2S)² I).
"""

import copy
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from alidpfl.dpsgd import RandomStream, cross_entropy
from alidpfl.errors import ConfigError, UnsupportedModelError
from alidpfl.inputs import checks
from alidpfl.methods.method import FedAvgDp, Loss, Objective
from alidpfl.types import Release


@dataclass(frozen=True, kw_only=True)
class PeDpfl(FedAvgDp):
    """DP-SGD, or a noised update, on the perturbed loss. `clip_norm` is C of `dpsgd` and S of `output`."""

    regularisation: float = 0.5
    """λ."""
    perturbation: float = 0.05
    """s, the standard deviation of the classifier's perturbation."""
    draws: int = 1
    """Number of perturbations u in a step."""
    variant: Literal["dpsgd", "output"] = "dpsgd"
    name: ClassVar[str] = "pe_dpfl"
    default_local_steps: ClassVar[int] = 3  # as in the ALI-DPFL paper

    def __post_init__(self) -> None:
        checks.whole("draws", self.draws, low=1)
        for name in ("regularisation", "perturbation"):
            checks.real(name, getattr(self, name), low=0, rule="must not be negative")
        if self.variant not in ("dpsgd", "output"):
            raise ConfigError(f"variant={self.variant!r} must be 'dpsgd' or 'output'")

    @property
    def release(self) -> Release:  # type: ignore[override]
        """Whether noise is added to every step, or to a round's update."""
        return "update" if self.variant == "output" else "step"

    def objective(self, model: nn.Module, loss: Loss = cross_entropy) -> Objective:
        """Return a copy of the model with a perturbed last linear layer, and the regularised loss."""
        holder = nn.Sequential(copy.deepcopy(model))  # a parent, also for a model that is one nn.Linear
        linear = [(name, m) for name, m in holder.named_modules() if isinstance(m, nn.Linear)]
        if not linear:
            raise UnsupportedModelError("pe_dpfl perturbs the last nn.Linear; this model has none: use another method")
        name, classifier = linear[-1]
        parent, _, attribute = name.rpartition(".")
        head = _PerturbedHead(classifier, self.draws)
        setattr(holder.get_submodule(parent), attribute, head)

        def perturbed_loss(outputs: Tensor, targets: Tensor) -> Tensor:  # (B, 1 + draws, classes), (B,)
            plain = loss(outputs[:, 0], targets)
            moved = [loss(outputs[:, 1 + draw], targets) for draw in range(self.draws)]
            return plain + self.regularisation * (torch.stack(moved).mean(0) - plain)

        return Objective(model=holder[0], loss=perturbed_loss, before_step=partial(head.draw, self.perturbation))


class _PerturbedHead(nn.Module):
    """The outputs of the classifier c and of each c + u: (B, features) to (B, 1 + draws, classes).

    (c + u)(φ) = c(φ) + u(φ). The perturbation is a frozen layer of its own, so that c is used once and its gradients of
    each record stay exact.
    """

    def __init__(self, classifier: nn.Linear, draws: int) -> None:
        super().__init__()
        self.classifier = classifier
        self.perturbations = nn.ModuleList(
            nn.Linear(classifier.in_features, classifier.out_features).requires_grad_(False) for _ in range(draws)
        )
        for parameter in self.perturbations.parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        plain = self.classifier(features)
        return torch.stack([plain, *(plain + u(features) for u in self.perturbations)], dim=1)

    @torch.no_grad()
    def draw(self, deviation: float, random: RandomStream) -> None:
        """Draw new perturbations. They do not depend on the data."""
        for parameter in self.perturbations.parameters():
            parameter.copy_(random.normal(parameter.numel()).view(parameter.shape) * deviation)
