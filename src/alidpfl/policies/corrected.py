"""The policy `corrected`: the τ at which a valid convergence bound is smallest, never above the even pace."""

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
"""Default of μ/L: a condition number of 100, as for a regularised linear model on scaled features."""

_MIN, _MAX = 1e-50, 1e50
"""Range of L, μ and distances. Their powers must stay finite, and no model comes close to these values."""

_BOUNDS: dict[str, Callable[[Problem], Bound]] = {"A": bound_a, "B": bound_b}


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """τ = min(τ*, even pace), where bound (A) or (B) is smallest at τ*. Uses settings and the private curvature only.

    The curvature stands for L, because a secant lies in [μ, L].
    """

    name: ClassVar[str] = "corrected"
    needs_raw_signals: ClassVar[bool] = False
    needs_curvature: ClassVar[bool] = True

    bound: Literal["A", "B"] = "B"
    """"B" needs η <= 1/(2L), "A" only η <= 1/(2μ). For a larger η the bound does not hold, and τ is the even pace."""
    strong_convexity: float | None = None
    """μ, reduced to L if it is larger; None for L/100."""
    initial_distance: float | None = None
    """‖w₀ − w*‖; None for C/μ, the furthest start at which no gradient is clipped, as the bounds assume."""
    dissimilarity: float | None = None
    """ζ; None for min(C, sqrt(2LΓ)): at the optimum Σ p_i ‖∇F_i‖² <= 2LΓ, and no gradient is longer than C."""

    def __post_init__(self) -> None:
        named("bound", self.bound, _BOUNDS)
        rule = f"must be between {_MIN:g} and {_MAX:g}; leave it out if you do not know it"
        for name in ("strong_convexity", "initial_distance", "dissimilarity"):
            value = getattr(self, name)
            if value is not None and not (name == "dissimilarity" and value == 0):  # ζ = 0: equal clients
                checks.real(name, value, low=_MIN, high=_MAX, rule=rule)

    def decide(self, situation: Situation) -> Decision:
        """Return τ of this round."""
        smoothness = usable(situation.curvature)
        if smoothness is None:
            return fall_back("curvature not resolved: ratio", situation)
        if not _MIN < smoothness < _MAX:
            return fall_back("curvature out of range: ratio", situation)
        problem = self.problem(situation, smoothness)
        fastest = problem.strong_convexity if self.bound == "A" else smoothness
        if situation.learning_rate * fastest > 0.5:  # noqa: PLR2004 (η <= 1/(2μ), 1/(2L))
            # The best τ of a smaller η would belong to another run. It is no answer for this one.
            why = f"η = {situation.learning_rate:.3g} above {1 / (2 * fastest):.3g}, no bound ({self.bound}): ratio"
            return fall_back(why, situation, curvature=smoothness)
        best, even = _BOUNDS[self.bound](problem).best(), even_steps(situation)
        why = f"corrected: ({self.bound}) τ* = {best}" + (f", held to the even pace {even}" if best > even else "")
        return paced(Decision(local_steps=min(best, even), why=why, curvature=smoothness), situation, None)

    def problem(self, situation: Situation, smoothness: float) -> Problem:
        """Return the bounds' inputs: this policy's settings, or their defaults for this situation and L."""
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
