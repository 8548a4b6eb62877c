"""The minimiser of a bound that holds, never above the even pace."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from alidpfl.inputs import checks
from alidpfl.inputs.names import named
from alidpfl.policies.pace import even_steps, fall_back, paced
from alidpfl.policies.situation import Decision, Situation, usable
from alidpfl.policies.theory import Bound, Problem, bound_a, bound_b, noise_power

CONVEXITY_SHARE = 0.01
"""μ/L where μ is not set: a condition number of 100, that of a regularised linear model on scaled features."""

_LEAST, _MOST = 1e-50, 1e50
"""Of L, μ and distances: their powers must stay finite, and no model comes anywhere near."""

_BOUNDS: dict[str, Callable[[Problem], Bound]] = {"A": bound_a, "B": bound_b}


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """τ = min(τ*, even pace), τ* where bound (B), or (A), is smallest. From settings and the private curvature only.

    The curvature stands for L: a secant lies in [μ, L].
    """

    name: ClassVar[str] = "corrected"
    needs_raw_signals: ClassVar[bool] = False
    needs_curvature: ClassVar[bool] = True

    bound: Literal["A", "B"] = "B"
    """"B" needs η <= 1/(2L), "A" only η <= 1/(2μ); beyond, the bound says nothing and the even pace is taken."""
    strong_convexity: float | None = None
    """μ; None for L/100. Held to at most L."""
    initial_distance: float | None = None
    """‖w₀ − w*‖; None for C/μ, the furthest start at which no gradient is clipped, as the bounds assume."""
    dissimilarity: float | None = None
    """ζ; None for min(C, sqrt(2LΓ)): at the optimum Σ p_i ‖∇F_i‖² <= 2LΓ, and no gradient is longer than C."""

    def __post_init__(self) -> None:
        named("bound", self.bound, _BOUNDS)
        for name in ("strong_convexity", "initial_distance", "dissimilarity"):
            value = getattr(self, name)
            if value is None or (name == "dissimilarity" and value == 0):  # equal clients
                continue
            rule = f"must be above 0 and between {_LEAST:g} and {_MOST:g}; leave it out if you do not know it"
            checks.real(name, value, low=_LEAST, high=_MOST, rule=rule)

    def decide(self, situation: Situation) -> Decision:
        """τ of this round."""
        smoothness = usable(situation.curvature)
        if smoothness is None:
            return fall_back("curvature not resolved: ratio", situation)
        if not _LEAST < smoothness < _MOST:
            return fall_back("curvature out of range: ratio", situation)
        problem = self._problem(situation, smoothness)
        fastest = problem.strong_convexity if self.bound == "A" else smoothness
        if situation.learning_rate * fastest > 0.5:  # noqa: PLR2004 (η <= 1/(2μ), 1/(2L))
            # A smaller η would be another run: its best τ is no answer for this one.
            why = f"η = {situation.learning_rate:.3g} above {1 / (2 * fastest):.3g}, no bound ({self.bound}): ratio"
            return fall_back(why, situation, curvature=smoothness)
        best, even = _BOUNDS[self.bound](problem).best(), even_steps(situation)
        why = f"corrected: ({self.bound}) τ* = {best}" + (f", held to the even pace {even}" if best > even else "")
        return paced(Decision(local_steps=min(best, even), why=why, curvature=smoothness), situation, None)

    def _problem(self, situation: Situation, smoothness: float) -> Problem:
        convexity = min(smoothness, self.strong_convexity or CONVEXITY_SHARE * smoothness)
        spread = min(situation.clip_norm, math.sqrt(2 * smoothness * situation.heterogeneity))
        return Problem(
            smoothness=smoothness,
            strong_convexity=convexity,
            learning_rate=situation.learning_rate,
            rounds=situation.max_rounds,
            clip_norm=situation.clip_norm,
            noise_power=noise_power(
                situation.noise_multiplier, situation.clip_norm, situation.num_params, situation.batch_size
            ),
            sample_rate=situation.sample_rate,
            batch_size=situation.batch_size,
            weight_concentration=situation.weight_concentration,
            initial_distance=self.initial_distance or situation.clip_norm / convexity,
            dissimilarity=spread if self.dissimilarity is None else self.dissimilarity,
        )
