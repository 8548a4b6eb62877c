"""The curves that the planner plots, as numbers: ε against steps, and convergence bounds against τ."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from alidpfl.planner.policy_paths import TYPICAL_CURVATURE, PlannedRun, first_situation
from alidpfl.planner.request import PlanRequest
from alidpfl.policies import Bound, bound_a, bound_b, paper_bound
from alidpfl.policies.corrected import CONVEXITY_SHARE, Corrected
from alidpfl.privacy import MAX_STEPS, SampledGaussian, epsilon_bound

_POINTS = 16
_BEYOND = 1.25  # ε is plotted up to this multiple of the largest R_c
_MAX_LOCAL_STEPS = 64

Line = list[tuple[float, float]]
Lines = dict[str, Line]


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Points (x, y) of every line."""

    epsilon: Lines
    """By accountant: ε against steps."""
    bounds: Lines
    """By bound: its value against τ at R_s rounds, divided by its smallest value."""
    best_steps: dict[str, float | None]
    """By bound: the τ at which it is smallest; None if it always falls."""
    assumed: str
    """The values for which the bounds were computed."""


def make_curves(request: PlanRequest, run: PlannedRun, max_steps: dict[str, int]) -> Curves:
    """Return all lines for one run; `max_steps` is R_c by accountant."""
    curvature = request.curvature or TYPICAL_CURVATURE
    rate = min(request.learning_rate, 1 / (2 * curvature))
    lines, best = _bounds(request, run, curvature, rate)
    return Curves(
        epsilon={name: _epsilon_line(request, run, name, max(max_steps.values())) for name in max_steps},
        bounds=lines,
        best_steps={name: steps if math.isfinite(steps) else None for name, steps in best.items()},
        assumed=(
            f"L = {curvature:g}, μ = L/{1 / CONVEXITY_SHARE:.0f}, η = {rate:.3g} (what bound (B) allows), "
            f"Γ = {request.gamma:g}, ‖w₀ − w*‖ = C/μ"
        ),
    )


def _epsilon_line(request: PlanRequest, run: PlannedRun, accountant: str, most: int) -> Line:
    step = SampledGaussian(sample_rate=run.sample_rate, noise_multiplier=run.noise_multiplier)
    furthest = min(most * _BEYOND, MAX_STEPS)
    counts = sorted({max(1, round(furthest * (k / _POINTS) ** 2)) for k in range(1, _POINTS + 1)})
    line = [(float(n), epsilon_bound([replace(step, steps=n)], request.delta, accountant)) for n in counts]
    return [(steps, cost) for steps, cost in line if math.isfinite(cost)]


def _bounds(request: PlanRequest, run: PlannedRun, curvature: float, rate: float) -> tuple[Lines, dict[str, float]]:
    """Return lines and minima of the paper's h (at R_c steps) and G (at R_s rounds), and of U in (A) and (B)."""
    situation = replace(first_situation(request, run), learning_rate=rate)
    problem = Corrected().problem(situation, curvature)
    paper = paper_bound(
        curvature=curvature,
        heterogeneity=request.gamma,
        clip_norm=request.clip_norm,
        noise_power=problem.noise_power,
        total_steps=run.max_steps,
    )
    distance = problem.initial_distance**2
    valid: dict[str, Bound] = {"U (A)": bound_a(problem), "U (B)": bound_b(problem)}
    values: dict[str, Callable[[float], float]] = {
        "h": partial(paper.at_fixed_steps, total_steps=run.max_steps, smoothness=curvature, distance=distance),
        "G": partial(paper.at_fixed_rounds, rounds=run.max_rounds, smoothness=curvature, distance=distance),
        **{name: bound.value for name, bound in valid.items()},
    }
    best = {"h": paper.best_at_fixed_steps, "G": paper.best_at_fixed_rounds}
    best |= {name: bound.best_real() for name, bound in valid.items()}
    furthest = max(10, min(_MAX_LOCAL_STEPS, 3 * run.max_steps // run.max_rounds))
    lines = {}
    for name, value in values.items():
        line = [(x, y) for x in map(float, range(1, furthest + 1)) if 0 < (y := value(x)) < math.inf]
        smallest = min((y for _, y in line), default=1.0)
        lines[name] = [(x, y / smallest) for x, y in line]
    return lines, best
