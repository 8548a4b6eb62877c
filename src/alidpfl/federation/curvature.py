"""The private curvature: secants of noised gradients, within a round (by the clients) and across rounds (here).

With τ = 1 there are no two gradients of a client in a round. But a mean update divided by its step sizes is a mean of
noised gradients, so two rounds give a secant as well, from what the server has anyway, with the noise of all clients
averaged. Everything here is post-processing.

With τ > 1 such a secant is too small, by up to a factor of τ: later steps of a round see the noise of earlier ones, and
undo a part of it, which the formula of secants.py takes for curvature that is not there. On a quadratic of curvature
0.05 driven by noise: 0.027 at τ = 2, 0.009 at τ = 5. Pooled with those of ten clients that is 6 % less; of one, half.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from alidpfl.policies import CurvatureEstimate, pool
from alidpfl.types import ClientId, ClientPlan, ClientUpdate, SecantSums


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What is random in a gradient."""

    variance: float
    """s², of each coordinate, by the noise added."""
    sampling: float
    """Most that the sampling of batches adds to E‖n‖²."""

    @classmethod
    def of(cls, plan: ClientPlan, num_records: int) -> "Noise":
        """Of one client's gradient under this plan."""
        batch_size = plan.sample_rate * num_records
        return cls(
            variance=(plan.noise_multiplier * plan.clip_norm / batch_size) ** 2,
            sampling=(1 - plan.sample_rate) * plan.clip_norm**2 / batch_size,
        )

    def scaled(self, factor: float) -> "Noise":
        """Of `factor` times the gradient, `factor` given squared."""
        return Noise(variance=factor * self.variance, sampling=factor * self.sampling)


@torch.no_grad()
def secant(change: Tensor, moved: Tensor, first: Noise, second: Noise, step_size: float) -> SecantSums:
    """Of one pair: `change` is g̃' − g̃, `moved` is w' − w, and `step_size` is c."""
    num_params, displacement = moved.numel(), squared_norm(moved)
    added = first.variance * num_params
    variance = (first.variance + second.variance) * displacement + step_size**2 * added * first.variance
    return SecantSums(
        product=float(torch.dot(change.double(), moved.double())),
        displacement=displacement,
        noise=step_size * (added + first.sampling),
        noise_variance=variance,
    )


def total(pairs: list[SecantSums]) -> SecantSums | None:
    """Sums over pairs; None without any. Neighbours share a noise, but along different moves: hardly correlated."""
    if not pairs:
        return None
    return SecantSums(
        product=sum(pair.product for pair in pairs),
        displacement=sum(pair.displacement for pair in pairs),
        noise=sum(pair.noise for pair in pairs),
        noise_variance=sum(pair.noise_variance for pair in pairs),
    )


def squared_norm(vector: Tensor) -> float:
    """‖v‖², summed in double."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64)) ** 2


@dataclass(frozen=True, kw_only=True)
class _MeanGradient:
    """The mean noised gradient of a round, the weights where it was taken, and what is random in it."""

    gradient: Tensor
    weights: Tensor
    noise: Noise
    step_size: float
    """Σ η: how much of the gradient the step after it contains."""
    clients: tuple[ClientId, ...]


@dataclass(frozen=True, kw_only=True)
class CurvatureTracker:
    """State in, state out; `estimate.value` is None while the signal is below its own noise."""

    estimate: CurvatureEstimate = field(default_factory=CurvatureEstimate)
    last: _MeanGradient | None = None

    def observe(
        self,
        before: Tensor,
        mean_update: Tensor,
        arrived: Sequence[tuple[float, ClientPlan, ClientUpdate]],
        sizes: Mapping[ClientId, int],
    ) -> "CurvatureTracker":
        """After a round: `arrived` holds each accepted client's share p_i, plan and update."""
        estimate = self.estimate
        within = pool([(share, update.secants) for share, _, update in arrived if update.secants is not None])
        now = _mean_gradient(before, mean_update, arrived, sizes)
        for sums in (within, _across(self.last, now)):
            if sums is not None:
                estimate = estimate.observe(sums)
        return replace(self, estimate=estimate, last=now)

    def to_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """For a checkpoint: numbers and tensors."""
        numbers: dict[str, Any] = {"estimate": self.estimate.to_json()}
        if self.last is None:
            return numbers, {}
        last = self.last
        numbers |= {"noise": asdict(last.noise), "step_size": last.step_size, "clients": list(last.clients)}
        return numbers, {"mean_gradient": self.last.gradient, "mean_gradient_at": self.last.weights}

    @classmethod
    def from_state(cls, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "CurvatureTracker":
        """From what `to_state` gave."""
        estimate = CurvatureEstimate.from_json(numbers["estimate"])
        if "mean_gradient" not in tensors:
            return cls(estimate=estimate)
        last = _MeanGradient(
            gradient=tensors["mean_gradient"],
            weights=tensors["mean_gradient_at"],
            noise=Noise(**numbers["noise"]),
            step_size=numbers["step_size"],
            clients=tuple(numbers["clients"]),
        )
        return cls(estimate=estimate, last=last)


def _mean_gradient(
    before: Tensor,
    mean_update: Tensor,
    arrived: Sequence[tuple[float, ClientPlan, ClientUpdate]],
    sizes: Mapping[ClientId, int],
) -> _MeanGradient | None:
    """−(mean update) / Σ η: a mean over clients and steps of noised gradients. None where step sizes differ."""
    rates = {plan.learning_rates for _, plan, _ in arrived}
    if len(rates) != 1 or any(plan.release != "step" for _, plan, _ in arrived):
        return None
    (learning_rates,) = rates
    total = sum(learning_rates)
    spread = sum(rate**2 for rate in learning_rates) / total**2  # 1/τ for equal step sizes
    # Var Σ p x = Σ p² Var x: the clients' noises are independent.
    noises = [Noise.of(plan, sizes[plan.client]).scaled(spread * share**2) for share, plan, _ in arrived]
    return _MeanGradient(
        gradient=mean_update / -total,
        weights=before,
        noise=Noise(variance=sum(n.variance for n in noises), sampling=sum(n.sampling for n in noises)),
        step_size=total,
        clients=tuple(plan.client for _, plan, _ in arrived),
    )


def _across(last: _MeanGradient | None, now: _MeanGradient | None) -> SecantSums | None:
    """The secant between two rounds. Other clients have other gradients: only the same ones can be compared."""
    if last is None or now is None or last.clients != now.clients:
        return None
    change, moved = now.gradient - last.gradient, now.weights - last.weights
    return secant(change, moved, last.noise, now.noise, last.step_size)
