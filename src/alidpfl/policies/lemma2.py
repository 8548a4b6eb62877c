"""The paper's formula for τ, as policies: τ = 1 by Lemma 1 if there are enough rounds, else τ* of Lemma 2.

`Ali` reads noised signals only. `Paper` and `Reference` read un-noised signals, which no (ε, δ) covers: they are for
reproduction only.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from alidpfl.inputs import checks
from alidpfl.policies.pace import PACE_LIMIT, check_pace_limit, fall_back, nearest_whole, paced
from alidpfl.policies.situation import Decision, Situation, usable
from alidpfl.policies.theory import noise_power, paper_bound

_HETEROGENEITY = ((0.05, 10.0), (0.5, 5.0), (1.0, 1.0))
"""Pairs (β, Γ) that the paper sets for Dir(β)."""


@dataclass(frozen=True, kw_only=True)
class _CappedPolicy:
    pace_limit: float | None = None
    """Cap on τ in even paces; None for no cap, with the risk of a runaway (see `PACE_LIMIT`)."""

    def __post_init__(self) -> None:
        check_pace_limit(self.pace_limit)


@dataclass(frozen=True, kw_only=True)
class Ali(_CappedPolicy):
    """The lemmas from noised signals only; the even pace while noise hides the curvature."""

    name: ClassVar[str] = "ali"
    needs_raw_signals: ClassVar[bool] = False
    needs_curvature: ClassVar[bool] = True

    pace_limit: float | None = PACE_LIMIT

    def decide(self, situation: Situation) -> Decision:
        """Return τ of this round."""
        decision = _by_lemmas(self.name, situation, situation.curvature, situation.heterogeneity)
        if decision is None:
            problem = "not resolved" if usable(situation.curvature) is None else "out of range"
            return fall_back(f"curvature {problem}: ratio", situation)
        return paced(decision, situation, self.pace_limit)


@dataclass(frozen=True, kw_only=True)
class _RawPolicy(_CappedPolicy):
    name: ClassVar[str]
    needs_raw_signals: ClassVar[bool] = True
    needs_curvature: ClassVar[bool] = False

    def _decide(self, situation: Situation, heterogeneity: float, tail: float) -> Decision:
        decision = _by_lemmas(self.name, situation, situation.raw_curvature, heterogeneity, tail)
        if decision is None:
            # Algorithm 2 starts with τ = 1, before there is a μ. Later, without a usable μ, τ stays as it is.
            decision = Decision(local_steps=max(1, situation.previous_steps), why=f"{self.name}: no usable μ")
        return paced(decision, situation, self.pace_limit)


@dataclass(frozen=True, kw_only=True)
class Paper(_RawPolicy):
    """The lemmas with the paper's un-noised μ and the configured Γ. UNACCOUNTED: clients send μ without noise.

    It has no cap by default, because the paper has none and this policy shows what the paper does.
    """

    name: ClassVar[str] = "paper"

    def decide(self, situation: Situation) -> Decision:
        """Return τ of this round."""
        return self._decide(situation, situation.heterogeneity, tail=1.0)


@dataclass(frozen=True, kw_only=True)
class Reference(_RawPolicy):
    """The formula of the authors' code: 2 + 2/T for the paper's 2 + 1/T, and Γ estimated from losses. UNACCOUNTED."""

    name: ClassVar[str] = "reference"

    def decide(self, situation: Situation) -> Decision:
        """Return τ of this round, with the configured Γ until there is an estimate."""
        estimated = situation.raw_heterogeneity
        if estimated is None or not math.isfinite(estimated):
            estimated = situation.heterogeneity
        return self._decide(situation, estimated, tail=2.0)


def heterogeneity_for(dirichlet_beta: float | None) -> float:
    """Return Γ for a Dir(β) split: the paper's 10, 5, 1 at β = 0.05, 0.5, 1, and 0 for None (IID).

    Γ is linear in log β in between. It is 10 below 0.05 and 1 above 1, where the paper sets nothing.

    >>> [heterogeneity_for(beta) for beta in (0.01, 0.05, 0.5, 1.0, 100.0, None)]
    [10.0, 10.0, 5.0, 1.0, 1.0, 0.0]
    """
    if dirichlet_beta is None:
        return 0.0
    beta = checks.real("dirichlet_beta", dirichlet_beta, above=0, rule="must be above 0, or None for IID")
    for (left, upper), (right, lower) in pairwise(_HETEROGENEITY):
        if beta <= right:
            return lower + (upper - lower) * math.log(right / max(beta, left)) / math.log(right / left)
    return _HETEROGENEITY[-1][1]


def _by_lemmas(
    name: str, situation: Situation, curvature: float | None, heterogeneity: float, tail: float = 1.0
) -> Decision | None:
    """Return τ = 1 by Lemma 1 if R_s >= R_c, else τ* of Lemma 2; None without a usable curvature."""
    if situation.max_rounds >= situation.max_steps:
        return Decision(local_steps=1, why=f"{name}: Lemma 1")
    if (curvature := usable(curvature)) is None:
        return None
    noise = noise_power(situation.noise_multiplier, situation.clip_norm, situation.num_params, situation.batch_size)
    # T = min(R_s·τ_previous, R_c), the steps of the whole run. Before the first round τ_previous counts as 1.
    total_steps = min(situation.max_rounds * max(1, situation.previous_steps), situation.max_steps)
    bound = paper_bound(
        curvature=curvature,
        heterogeneity=heterogeneity,
        clip_norm=situation.clip_norm,
        noise_power=noise,
        total_steps=float(total_steps),
        tail=tail,
    )
    if math.isnan(best := bound.best_at_fixed_rounds):
        return None
    shown = f"{best:.2f}" if best < 1e6 else f"{best:.3g}"  # noqa: PLR2004
    steps, why = nearest_whole(best), f"{name}: τ* = {shown}"
    return Decision(local_steps=steps, why=why, curvature=curvature, heterogeneity=heterogeneity)
