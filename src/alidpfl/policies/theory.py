"""The convergence bounds and where they are smallest: the paper's (Theorem 1, Lemma 2) and two that hold, (A) and (B).

docs/explanation/theory.md has the proofs, the paper's errors, and how loose the bounds are.

Glossary: τ `local_steps`, T `total_steps`, K `rounds`, C `clip_norm`, V `noise_power`, v the variance of one gradient,
B `batch_size`, μ `strong_convexity` (the paper's, in Lemma 2, `curvature`), L `smoothness`, Γ `heterogeneity`,
ζ `dissimilarity`, Δ₀ and Δ₁ a squared distance to the optimum.
"""

import math
from dataclasses import dataclass

from alidpfl.errors import ConfigError

MOST_LOCAL_STEPS = 10**6
"""Where the search for the best τ ends."""


def noise_power(noise_multiplier: float, clip_norm: float, num_params: int, batch_size: float) -> float:
    """V = σ²C²d / B²: the expected squared norm of the noise in one gradient.

    >>> round(noise_power(1.1, 1.0, 582026, 12), 1)
    4890.6
    """
    return (noise_multiplier * clip_norm / batch_size) ** 2 * num_params


# --------------------------------------------------------------------------------------------------- the paper's bound


def lemma2_optimum(
    *,
    curvature: float,
    heterogeneity: float,
    clip_norm: float,
    noise_power: float,
    total_steps: float,
    tail: float = 1.0,
) -> float:
    """Lemma 2: τ* = sqrt(1 + [4/μ² + 3C² + 2ΓTμ + V] / [(2 + tail/T)(C² + V)]).

    `tail` is 1 in the paper and 2 in its reference code. The paper's μ is a secant, which lies in [μ, L]. U-shaped
    in μ; tends to sqrt(1.5) as V grows, and grows like sqrt(T) where ΓTμ leads. NaN or infinite where μ is extreme.

    >>> round(lemma2_optimum(curvature=3.7, heterogeneity=10, clip_norm=1, noise_power=4890.6, total_steps=317), 2)
    1.97
    """
    bound = paper_bound(
        curvature=curvature,
        heterogeneity=heterogeneity,
        clip_norm=clip_norm,
        noise_power=noise_power,
        total_steps=total_steps,
        tail=tail,
    )
    return bound.best_at_fixed_rounds


@dataclass(frozen=True, kw_only=True)
class PaperBound:
    """Theorem 1, as printed. It does not hold (docs/explanation/theory.md); kept to reproduce and to plot.

    h(τ) = L/(2T) · [aτ² + (Δ₁ − 2a)τ + a + e] for T steps in all, and, with T = Kτ,
    G(τ) = L/(2K) · [aτ + Δ₁ − 2a + (a + e)/τ] for K rounds.
    """

    drift: float
    """a = (2 + ημ)(C² + V)."""
    rest: float
    """e = 4/μ² + 3C² + 2Γ/η + V."""

    def at_fixed_steps(self, local_steps: float, *, total_steps: float, smoothness: float, distance: float) -> float:
        """h(τ); `distance` is Δ₁."""
        a, square = self.drift, local_steps * local_steps
        return smoothness / (2 * total_steps) * (a * square + (distance - 2 * a) * local_steps + a + self.rest)

    def at_fixed_rounds(self, local_steps: float, *, rounds: float, smoothness: float, distance: float) -> float:
        """G(τ); `distance` is Δ₁."""
        a = self.drift
        return smoothness / (2 * rounds) * (a * local_steps + distance - 2 * a + (a + self.rest) / local_steps)

    def vertex(self, *, distance: float) -> float:
        """τ₀ = 1 − Δ₁/(2a), where the parabola h turns; `distance` is Δ₁. Never above 1.

        >>> paper_bound(curvature=1, heterogeneity=0, clip_norm=1, noise_power=1, total_steps=1).vertex(distance=6)
        0.5
        """
        return 1.0 - distance / (2 * self.drift)

    @property
    def best_at_fixed_steps(self) -> float:
        """Lemma 1: on τ >= 1 h is smallest at 1, since τ₀ is not above 1."""
        return 1.0

    @property
    def best_at_fixed_rounds(self) -> float:
        """Lemma 2: G is smallest at sqrt((a + e)/a); e below 0 (a raw Γ below 0) gives 1."""
        # max(rest, 0) and not max(0, rest): the former passes NaN on.
        return math.sqrt(1.0 + max(self.rest, 0.0) / self.drift)


def paper_bound(
    *,
    curvature: float,
    heterogeneity: float,
    clip_norm: float,
    noise_power: float,
    total_steps: float,
    tail: float = 1.0,
) -> PaperBound:
    """Theorem 1 at the paper's step size η = 1/(Tμ), where ημ = 1/T and 2Γ/η = 2ΓTμ."""
    inverse, square = 2 / curvature, clip_norm * clip_norm
    return PaperBound(
        drift=(2 + tail / total_steps) * (square + noise_power),
        # (2/μ)·(2/μ): a tiny μ then gives infinity, where 4/μ² would divide by zero.
        rest=inverse * inverse + 3 * square + 2 * heterogeneity * total_steps * curvature + noise_power,
    )


# ------------------------------------------------------------------------------------------------- bounds that do hold


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What the bounds (A) and (B) ask for. All public, but for L, which may come from a private estimate."""

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
    """‖w₀ − w*‖, so that Δ₀ is its square."""
    dissimilarity: float
    """ζ = sup sqrt(Σ p_i ‖∇F_i − ∇F‖²); (A) does not use it."""

    @property
    def sampling_power(self) -> float:
        """(κ − 1)C² = C²(1 − q)/B: what drawing a batch adds to the variance of one gradient."""
        return self.clip_norm**2 * (1 - self.sample_rate) / self.batch_size

    @property
    def gradient_variance(self) -> float:
        """Of one noised gradient: v = (κ − 1)C² + V."""
        return self.sampling_power + self.noise_power


@dataclass(frozen=True, kw_only=True)
class Bound:
    """U(τ) = Δ₀ e^{−Kρτ} + floor + scale·[j²s² + cross·j^{3/2} s√v + jv], j = τ − 1; E F − F* <= (L/2) U(τ).

    Convex for τ >= 1: the first term falls ever slower, the last rises ever faster.
    """

    rounds: float
    """K."""
    decay: float
    """ρ: one step multiplies the distance by e^{−ρ}; infinite where one step contracts to 0."""
    squared_distance: float
    """Δ₀."""
    floor: float
    """What gradient noise leaves whatever τ is."""
    scale: float
    spread: float
    """s: C in (A), ζ in (B)."""
    variance: float
    """v."""
    cross: float
    """0 where (jC + sqrt(jv))² was bounded by 2(j²C² + jv), 2 where it is kept."""

    def value(self, local_steps: float) -> float:
        """U(τ)."""
        return self._bias(local_steps) + self.floor + self._drift(local_steps - 1)

    def slope(self, local_steps: float) -> float:
        """dU/dτ for τ >= 1; its root is τ*."""
        j, spread = local_steps - 1, self.spread
        cross = 1.5 * self.cross * spread * math.sqrt(self.variance * j)
        rises = self.scale * (2 * j * spread**2 + cross + self.variance)
        # An infinite ρ has contracted all there was at τ = 1.
        falls = 0.0 if math.isinf(self.decay) else self.rounds * self.decay * self._bias(local_steps)
        return rises - falls

    def best(self) -> int:
        """The whole τ in [1, 10⁶] with the smallest U; the smaller one of two."""
        low, high = 1, MOST_LOCAL_STEPS
        while low < high:  # U is convex: find the first τ from which one more step does not lower it
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._gains_after(middle) else (low, middle)
        return low

    def best_real(self) -> float:
        """The real τ >= 1 with the smallest U, where the slope is 0; infinite where U falls up to 10⁶."""
        from scipy.optimize import brentq

        if not self.slope(1.0) < 0:
            return 1.0
        if self.slope(float(MOST_LOCAL_STEPS)) <= 0:  # 0 where L = μ: nothing rises, and what falls has underflowed
            return math.inf
        return float(brentq(self.slope, 1.0, float(MOST_LOCAL_STEPS), xtol=1e-10))

    def _gains_after(self, local_steps: int) -> bool:
        """U(τ + 1) < U(τ), without the floor, next to which the difference could drown."""
        step = self._drift(local_steps) - self._drift(local_steps - 1)
        return self._bias(local_steps) * -math.expm1(-self.rounds * self.decay) > step

    def _bias(self, local_steps: float) -> float:
        return self.squared_distance * math.exp(-self.rounds * self.decay * local_steps)

    def _drift(self, j: float) -> float:
        mixed = self.cross * j * self.spread * math.sqrt(self.variance * j)
        return self.scale * (j * j * self.spread**2 + mixed + j * self.variance)


def bound_a(problem: Problem) -> Bound:
    """(A), for η <= 1/(2μ).

    U(τ) = (1−2ημ)^{Kτ} Δ₀ + (η/2μ)(κC² + VΣp²) + (η²(L−μ)/μ) [(τ−1)²C² + (τ−1)v].
    """
    eta, mu = problem.learning_rate, problem.strong_convexity
    _check(problem, eta * mu, "1/(2μ)")
    noise = problem.clip_norm**2 + problem.sampling_power + problem.noise_power * problem.weight_concentration
    return Bound(
        rounds=problem.rounds,
        decay=_decay(2 * eta * mu),
        squared_distance=problem.initial_distance**2,
        floor=eta / (2 * mu) * noise,
        scale=eta * eta * (problem.smoothness - mu) / mu,
        spread=problem.clip_norm,
        variance=problem.gradient_variance,
        cross=0.0,
    )


def bound_b(problem: Problem) -> Bound:
    """(B), tighter, for η <= 1/(2L); r = 2ημ(1 − ηL) is the contraction of one step.

    Δ_{t+1} <= (1−r)Δ_t + η(L−μ+2ηL²)D_t + η²vΣp², with D_t <= η²(jζ + sqrt(jv))² at its largest, j = τ − 1, hence
    U(τ) = (1−r)^{Kτ} Δ₀ + (η²/r) vΣp² + (η³(L−μ+2ηL²)/r) [(τ−1)ζ + sqrt((τ−1)v)]².
    """
    eta, mu, smoothness = problem.learning_rate, problem.strong_convexity, problem.smoothness
    _check(problem, eta * smoothness, "1/(2L)")
    contraction = 2 * eta * mu * (1 - eta * smoothness)
    return Bound(
        rounds=problem.rounds,
        decay=_decay(contraction),
        squared_distance=problem.initial_distance**2,
        floor=eta * eta / contraction * problem.gradient_variance * problem.weight_concentration,
        scale=eta**3 * (smoothness - mu + 2 * eta * smoothness**2) / contraction,
        spread=problem.dissimilarity,
        variance=problem.gradient_variance,
        cross=2.0,
    )


def _decay(contraction: float) -> float:
    """ρ = −ln(1 − contraction)."""
    return -math.log1p(-contraction) if contraction < 1 else math.inf


def _check(problem: Problem, product: float, most: str) -> None:
    if not 0 < problem.strong_convexity <= problem.smoothness:
        raise ConfigError(
            f"strong_convexity={problem.strong_convexity} must be above 0 and at most smoothness={problem.smoothness}"
        )
    if not 0 < product <= 0.5:  # noqa: PLR2004 (η·L or η·μ)
        raise ConfigError(f"learning_rate={problem.learning_rate} must be at most {most}, or the bound does not hold")
