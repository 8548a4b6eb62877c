"""Convergence bounds and the τ at which each is smallest: the paper's Theorem 1, and (A) and (B), which hold.

docs/explanation/theory.md has the proofs, the paper's errors, and how loose the bounds are.

Symbols: τ `local_steps`, T `total_steps`, K `rounds`, C `clip_norm`, V `noise_power`, v the variance of one gradient,
B `batch_size`, μ `strong_convexity` (in the paper's Lemma 2 `curvature`), L `smoothness`, Γ `heterogeneity`,
ζ `dissimilarity`. Δ₀ and Δ₁ are squared distances to the optimum.
"""

import math
from dataclasses import dataclass

from alidpfl.errors import ConfigError

MOST_LOCAL_STEPS = 10**6
"""Largest τ that the search for the best τ considers."""


def noise_power(noise_multiplier: float, clip_norm: float, num_params: int, batch_size: float) -> float:
    """Return V = σ²C²d / B², the expected squared norm of the noise in one gradient.

    Args:
        noise_multiplier: σ.
        clip_norm: C.
        num_params: d.
        batch_size: B, the expected batch size.

    >>> round(noise_power(1.1, 1.0, 582026, 12), 1)
    4890.6
    """
    return (noise_multiplier * clip_norm / batch_size) ** 2 * num_params


@dataclass(frozen=True, kw_only=True)
class PaperBound:
    """Theorem 1 as printed. It does not hold (docs/explanation/theory.md), and is kept to reproduce and to plot.

    h(τ) = L/(2T) · [aτ² + (Δ₁ − 2a)τ + a + e] for T steps in total, and, with T = Kτ,
    G(τ) = L/(2K) · [aτ + Δ₁ − 2a + (a + e)/τ] for K rounds.
    """

    drift: float
    """a = (2 + ημ)(C² + V)."""
    rest: float
    """e = 4/μ² + 3C² + 2Γ/η + V."""

    def at_fixed_steps(self, local_steps: float, *, total_steps: float, smoothness: float, distance: float) -> float:
        """Return h(τ).

        Args:
            local_steps: τ.
            total_steps: T.
            smoothness: L.
            distance: Δ₁.
        """
        a, square = self.drift, local_steps * local_steps
        return smoothness / (2 * total_steps) * (a * square + (distance - 2 * a) * local_steps + a + self.rest)

    def at_fixed_rounds(self, local_steps: float, *, rounds: float, smoothness: float, distance: float) -> float:
        """Return G(τ).

        Args:
            local_steps: τ.
            rounds: K.
            smoothness: L.
            distance: Δ₁.
        """
        a = self.drift
        return smoothness / (2 * rounds) * (a * local_steps + distance - 2 * a + (a + self.rest) / local_steps)

    @property
    def best_at_fixed_steps(self) -> float:
        """Lemma 1: for τ >= 1, h is smallest at 1, because its vertex τ₀ = 1 − Δ₁/(2a) is not above 1."""
        return 1.0

    @property
    def best_at_fixed_rounds(self) -> float:
        """Lemma 2: G is smallest at τ* = sqrt((a + e)/a), or at 1 if e < 0 (from a raw Γ below 0).

        τ* is U-shaped in μ. It tends to sqrt(1.5) as V grows, and grows like sqrt(T) where ΓTμ dominates. It is NaN or
        infinite for extreme μ.
        """
        # max(rest, 0) returns a NaN in `rest`; max(0, rest) would hide it.
        return math.sqrt(1.0 + max(self.rest, 0.0) / self.drift)


def paper_bound(
    *, curvature: float, heterogeneity: float, clip_norm: float, noise_power: float, total_steps: float, tail: float = 1
) -> PaperBound:
    """Return Theorem 1 at the paper's step size η = 1/(Tμ), where ημ = 1/T and 2Γ/η = 2ΓTμ.

    Args:
        curvature: The paper's μ, a secant. It lies between μ and L of the loss.
        heterogeneity: Γ.
        clip_norm: C.
        noise_power: V.
        total_steps: T.
        tail: 1 in the paper, 2 in its reference code; (2 + tail/T) stands for 2 + ημ.

    >>> bound = paper_bound(curvature=3.7, heterogeneity=10, clip_norm=1, noise_power=4890.6, total_steps=317)
    >>> round(bound.best_at_fixed_rounds, 2)
    1.97
    """
    inverse, square = 2 / curvature, clip_norm * clip_norm
    return PaperBound(
        drift=(2 + tail / total_steps) * (square + noise_power),
        # (2/μ)·(2/μ) is infinite for a tiny μ, where 4/μ² would divide by zero.
        rest=inverse * inverse + 3 * square + 2 * heterogeneity * total_steps * curvature + noise_power,
    )


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The inputs of bounds (A) and (B). All are public, except L, which may come from noised gradients."""

    smoothness: float
    strong_convexity: float
    learning_rate: float
    rounds: float
    clip_norm: float
    noise_power: float
    sample_rate: float
    batch_size: float
    weight_concentration: float
    """Σ p_i²."""
    initial_distance: float
    """‖w₀ − w*‖, the root of Δ₀."""
    dissimilarity: float
    """ζ = sup sqrt(Σ p_i ‖∇F_i − ∇F‖²); (A) does not use it."""

    @property
    def sampling_power(self) -> float:
        """Variance of one gradient from sampling its batch, (κ − 1)C² = C²(1 − q)/B."""
        return self.clip_norm**2 * (1 - self.sample_rate) / self.batch_size

    @property
    def gradient_variance(self) -> float:
        """Variance of one noised gradient, v = (κ − 1)C² + V."""
        return self.sampling_power + self.noise_power


@dataclass(frozen=True, kw_only=True)
class Bound:
    """U(τ) = Δ₀ e^{−Kρτ} + floor + scale·[j²s² + cross·j^{3/2} s√v + jv] with j = τ − 1, and E F − F* <= (L/2) U(τ).

    U is convex for τ >= 1: the first term falls ever slower, and the last rises ever faster.
    """

    problem: Problem
    decay: float
    """ρ: one step multiplies the squared distance by e^{−ρ}; infinite if one step reaches 0."""
    floor: float
    """The error that gradient noise leaves at any τ."""
    scale: float
    spread: float
    """s: C in (A), ζ in (B)."""
    cross: float
    """0 if (jC + sqrt(jv))² was bounded by 2(j²C² + jv), 2 if it is kept."""

    def value(self, local_steps: float) -> float:
        """Return U(τ)."""
        return self._bias(local_steps) + self.floor + self._drift(local_steps - 1)

    def slope(self, local_steps: float) -> float:
        """Return dU/dτ for τ >= 1. Its root is τ*."""
        j, spread, variance = local_steps - 1, self.spread, self.problem.gradient_variance
        cross = 1.5 * self.cross * spread * math.sqrt(variance * j)
        rises = self.scale * (2 * j * spread**2 + cross + variance)
        # With an infinite ρ the distance is 0 after one step.
        falls = 0.0 if math.isinf(self.decay) else self.problem.rounds * self.decay * self._bias(local_steps)
        return rises - falls

    def best(self) -> int:
        """Return the whole τ in [1, 10⁶] with the smallest U; of two the smaller."""
        low, high = 1, MOST_LOCAL_STEPS
        while low < high:  # U is convex: find the first τ after which one more step does not lower U
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._gains_after(middle) else (low, middle)
        return low

    def best_real(self) -> float:
        """Return the real τ >= 1 with the smallest U; infinite if U still falls at 10⁶."""
        from scipy.optimize import brentq

        if not self.slope(1.0) < 0:
            return 1.0
        if self.slope(float(MOST_LOCAL_STEPS)) <= 0:  # 0 if L = μ: no term rises, and the falling one underflows
            return math.inf
        return float(brentq(self.slope, 1.0, float(MOST_LOCAL_STEPS), xtol=1e-10))

    def _gains_after(self, local_steps: int) -> bool:
        """Return whether U(τ + 1) < U(τ). Leaves the floor out, next to which rounding could hide the difference."""
        step = self._drift(local_steps) - self._drift(local_steps - 1)
        return self._bias(local_steps) * -math.expm1(-self.problem.rounds * self.decay) > step

    def _bias(self, local_steps: float) -> float:
        return self.problem.initial_distance**2 * math.exp(-self.problem.rounds * self.decay * local_steps)

    def _drift(self, j: float) -> float:
        variance = self.problem.gradient_variance
        mixed = self.cross * j * self.spread * math.sqrt(variance * j)
        return self.scale * (j * j * self.spread**2 + mixed + j * variance)


def bound_a(problem: Problem) -> Bound:
    """Return bound (A). It holds for η <= 1/(2μ).

    U(τ) = (1−2ημ)^{Kτ} Δ₀ + (η/2μ)(κC² + VΣp²) + (η²(L−μ)/μ) [(τ−1)²C² + (τ−1)v].
    """
    eta, mu = problem.learning_rate, problem.strong_convexity
    _check(problem, eta * mu, "1/(2μ)")
    noise = problem.clip_norm**2 + problem.sampling_power + problem.noise_power * problem.weight_concentration
    return Bound(
        problem=problem,
        decay=_decay(2 * eta * mu),
        floor=eta / (2 * mu) * noise,
        scale=eta * eta * (problem.smoothness - mu) / mu,
        spread=problem.clip_norm,
        cross=0.0,
    )


def bound_b(problem: Problem) -> Bound:
    """Return bound (B), which is tighter. It holds for η <= 1/(2L). One step contracts by r = 2ημ(1 − ηL).

    Δ_{t+1} <= (1−r)Δ_t + η(L−μ+2ηL²)D_t + η²vΣp², where D_t is at most η²(jζ + sqrt(jv))² with j = τ − 1. Hence
    U(τ) = (1−r)^{Kτ} Δ₀ + (η²/r) vΣp² + (η³(L−μ+2ηL²)/r) [(τ−1)ζ + sqrt((τ−1)v)]².
    """
    eta, mu, smoothness = problem.learning_rate, problem.strong_convexity, problem.smoothness
    _check(problem, eta * smoothness, "1/(2L)")
    contraction = 2 * eta * mu * (1 - eta * smoothness)
    return Bound(
        problem=problem,
        decay=_decay(contraction),
        floor=eta * eta / contraction * problem.gradient_variance * problem.weight_concentration,
        scale=eta**3 * (smoothness - mu + 2 * eta * smoothness**2) / contraction,
        spread=problem.dissimilarity,
        cross=2.0,
    )


def _decay(contraction: float) -> float:
    """Return ρ = −ln(1 − contraction)."""
    return -math.log1p(-contraction) if contraction < 1 else math.inf


def _check(problem: Problem, product: float, most: str) -> None:
    if not 0 < problem.strong_convexity <= problem.smoothness:
        raise ConfigError(
            f"strong_convexity={problem.strong_convexity} must be above 0 and at most smoothness={problem.smoothness}"
        )
    if not 0 < product <= 0.5:  # noqa: PLR2004 (η·L or η·μ)
        raise ConfigError(f"learning_rate={problem.learning_rate} must be at most {most}, or the bound does not hold")
