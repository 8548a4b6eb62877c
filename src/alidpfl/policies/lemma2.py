"""The paper's rule, from un-noised signals: Lemma 1, else Lemma 2. For reproduction only; no (ε, δ) covers it."""

import math
from dataclasses import dataclass
from typing import ClassVar

from alidpfl.policies.pace import PACE_LIMIT, checked_limit, fall_back, nearest_whole, paced
from alidpfl.policies.situation import Decision, Situation, usable
from alidpfl.policies.theory import lemma2_optimum, noise_power


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Lemma 2 with the paper's un-noised μ and Γ as set. UNACCOUNTED: μ leaves the clients without noise.

    No pace cap by default: the paper has none, and this is here to show what the paper does.
    """

    name: ClassVar[str] = "paper"
    needs_raw_signals: ClassVar[bool] = True
    needs_curvature: ClassVar[bool] = False

    pace_limit: float | None = None

    def __post_init__(self) -> None:
        if self.pace_limit is not None:
            checked_limit(self.pace_limit)

    def decide(self, situation: Situation) -> Decision:
        """Lemma 1, else Lemma 2."""
        return _from_raw_signals(self.name, situation, situation.heterogeneity, tail=1.0, limit=self.pace_limit)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """As the authors' code has it: 2 + 2/T where the paper has 2 + 1/T, and Γ estimated from losses. UNACCOUNTED."""

    name: ClassVar[str] = "reference"
    needs_raw_signals: ClassVar[bool] = True
    needs_curvature: ClassVar[bool] = False

    pace_limit: float | None = None

    def __post_init__(self) -> None:
        if self.pace_limit is not None:
            checked_limit(self.pace_limit)

    def decide(self, situation: Situation) -> Decision:
        """Lemma 1, else Lemma 2; Γ as set where there is no estimate yet."""
        estimated = situation.raw_heterogeneity
        if estimated is None or not math.isfinite(estimated):
            estimated = situation.heterogeneity
        return _from_raw_signals(self.name, situation, estimated, tail=2.0, limit=self.pace_limit)


def enough_rounds(situation: Situation) -> bool:
    """Lemma 1's case: R_s >= R_c. Then τ = 1."""
    return situation.max_rounds >= situation.max_steps


def optimum(situation: Situation, *, curvature: float, heterogeneity: float, tail: float = 1.0) -> float:
    """τ* of Lemma 2 with T = min(R_s·τ_previous, R_c), the steps of the whole run.

    Before the first round τ_previous counts as 1.
    """
    most = float(situation.max_steps)
    return lemma2_optimum(
        curvature=curvature,
        heterogeneity=heterogeneity,
        clip_norm=situation.clip_norm,
        noise_power=noise_power(
            situation.noise_multiplier, situation.clip_norm, situation.num_params, situation.batch_size
        ),
        total_steps=min(float(situation.max_rounds * max(1, situation.previous_steps)), most),
        tail=tail,
    )


def shown(name: str, best: float) -> str:
    """The reason for the record.

    >>> shown("paper", 3.4199)
    'paper: τ* = 3.42'
    """
    return f"{name}: τ* = {best:.2f}" if best < 1e6 else f"{name}: τ* = {best:.3g}"  # noqa: PLR2004


def _from_raw_signals(
    name: str, situation: Situation, heterogeneity: float, *, tail: float, limit: float | None
) -> Decision:
    if enough_rounds(situation):
        return paced(Decision(local_steps=1, why=f"{name}: Lemma 1"), situation, limit)
    curvature = usable(situation.raw_curvature)
    best = math.nan
    if curvature is not None:
        best = optimum(situation, curvature=curvature, heterogeneity=heterogeneity, tail=tail)
    if math.isnan(best):
        # No μ before the first round: Algorithm 2 starts with τ = 1. Later, nothing usable came: stay.
        decision = Decision(local_steps=max(1, situation.previous_steps), why=f"{name}: no usable μ")
    else:
        decision = Decision(
            local_steps=nearest_whole(best), why=shown(name, best), curvature=curvature, heterogeneity=heterogeneity
        )
    return paced(decision, situation, limit)


@dataclass(frozen=True, kw_only=True)
class Ali:
    """Lemma 1, else Lemma 2 from noised signals only; the even pace while the curvature is not resolved."""

    name: ClassVar[str] = "ali"
    needs_raw_signals: ClassVar[bool] = False
    needs_curvature: ClassVar[bool] = True

    pace_limit: float | None = PACE_LIMIT
    """Cap on τ in even paces; None for none, at the risk of a runaway (see `PACE_LIMIT`)."""

    def __post_init__(self) -> None:
        if self.pace_limit is not None:
            checked_limit(self.pace_limit)

    def decide(self, situation: Situation) -> Decision:
        """τ of this round."""
        if enough_rounds(situation):
            return paced(Decision(local_steps=1, why="ali: Lemma 1"), situation, self.pace_limit)
        curvature, heterogeneity = usable(situation.curvature), situation.heterogeneity
        if curvature is None:
            return fall_back("curvature not resolved: ratio", situation)
        best = optimum(situation, curvature=curvature, heterogeneity=heterogeneity)
        if math.isnan(best):
            return fall_back("curvature out of range: ratio", situation)
        decision = Decision(
            local_steps=nearest_whole(best),
            why=shown("ali", best),
            curvature=curvature,
            heterogeneity=heterogeneity,
        )
        return paced(decision, situation, self.pace_limit)
