"""What the planner draws, as numbers: ε against steps, the bounds against τ."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from alidpfl.planner.policy_paths import TYPICAL_CURVATURE, Mechanism
from alidpfl.planner.requirements import Wishes
from alidpfl.policies import Bound, Problem, bound_a, bound_b, noise_power, paper_bound
from alidpfl.policies.corrected import CONVEXITY_SHARE
from alidpfl.privacy import MAX_STEPS, SampledGaussian, epsilon_bound

_POINTS = 16
_BEYOND = 1.25  # how far past the largest R_c ε is drawn
_MOST_BOUND_STEPS = 64

Line = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Points (x, y) of every line."""

    epsilon: dict[str, Line]
    """By accountant: ε against steps."""
    bounds: dict[str, Line]
    """By bound: its value against τ at R_s rounds, over its smallest value."""
    best_steps: dict[str, float | None]
    """By bound: the τ where it is smallest; None where it falls for ever."""
    assumed: str
    """What the bounds were drawn for."""


def make_curves(wishes: Wishes, mechanism: Mechanism, max_steps: dict[str, int]) -> Curves:
    """All lines for one mechanism."""
    curvature = wishes.curvature or TYPICAL_CURVATURE
    rate = min(wishes.learning_rate, 1 / (2 * curvature))
    lines, best = _bounds(wishes, mechanism, curvature, rate)
    return Curves(
        epsilon={name: _epsilon_line(wishes, mechanism, name, max(max_steps.values())) for name in max_steps},
        bounds=lines,
        best_steps={name: steps if math.isfinite(steps) else None for name, steps in best.items()},
        assumed=(
            f"L = {curvature:g}, μ = L/{1 / CONVEXITY_SHARE:.0f}, η = {rate:.3g} (what bound (B) allows), "
            f"Γ = {wishes.gamma:g}, ‖w₀ − w*‖ = C/μ"
        ),
    )


def _epsilon_line(wishes: Wishes, mechanism: Mechanism, accountant: str, most: int) -> Line:
    rate, noise = mechanism.sample_rate, mechanism.noise_multiplier
    furthest = min(most * _BEYOND, MAX_STEPS)
    counts = sorted({max(1, round(furthest * (k / _POINTS) ** 2)) for k in range(1, _POINTS + 1)})
    cost = (
        epsilon_bound([SampledGaussian(sample_rate=rate, noise_multiplier=noise, steps=n)], wishes.delta, accountant)
        for n in counts
    )
    return [(float(n), value) for n, value in zip(counts, cost, strict=True) if math.isfinite(value)]


def _bounds(
    wishes: Wishes, mechanism: Mechanism, curvature: float, rate: float
) -> tuple[dict[str, Line], dict[str, float]]:
    """The paper's h for R_c steps and G for R_s rounds; U of (A) and (B) for R_s rounds."""
    problem = _problem(wishes, mechanism, curvature, rate)
    paper = paper_bound(
        curvature=curvature,
        heterogeneity=wishes.gamma,
        clip_norm=wishes.clip_norm,
        noise_power=problem.noise_power,
        total_steps=mechanism.max_steps,
    )
    distance = problem.initial_distance**2
    held: dict[str, Bound] = {"U (A)": bound_a(problem), "U (B)": bound_b(problem)}
    of_paper: dict[str, Callable[[float], float]] = {
        "h": partial(paper.at_fixed_steps, total_steps=mechanism.max_steps, smoothness=curvature, distance=distance),
        "G": partial(paper.at_fixed_rounds, rounds=mechanism.max_rounds, smoothness=curvature, distance=distance),
    }
    values = of_paper | {name: bound.value for name, bound in held.items()}
    best = {"h": paper.best_at_fixed_steps, "G": paper.best_at_fixed_rounds}
    best |= {name: bound.best_real() for name, bound in held.items()}
    furthest = max(10, min(_MOST_BOUND_STEPS, 3 * mechanism.max_steps // mechanism.max_rounds))
    counts = [float(steps) for steps in range(1, furthest + 1)]
    return {name: _over_least([(x, value(x)) for x in counts]) for name, value in values.items()}, best


def _problem(wishes: Wishes, mechanism: Mechanism, curvature: float, rate: float) -> Problem:
    batch = max(1.0, mechanism.sample_rate * wishes.client_size)
    convexity = CONVEXITY_SHARE * curvature
    return Problem(
        smoothness=curvature,
        strong_convexity=convexity,
        learning_rate=rate,
        rounds=mechanism.max_rounds,
        clip_norm=wishes.clip_norm,
        noise_power=noise_power(mechanism.noise_multiplier, wishes.clip_norm, wishes.num_params, batch),
        sample_rate=mechanism.sample_rate,
        batch_size=batch,
        weight_concentration=1 / wishes.clients,
        initial_distance=wishes.clip_norm / convexity,
        dissimilarity=min(wishes.clip_norm, math.sqrt(2 * curvature * wishes.gamma)),
    )


def _over_least(line: Line) -> Line:
    finite = [(steps, value) for steps, value in line if 0 < value < math.inf]
    least = min((value for _, value in finite), default=1.0)
    return [(steps, value / least) for steps, value in finite]
