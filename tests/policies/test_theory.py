"""Bounds and their minimisers, against scipy and against the recursions that they solve."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from alidpfl.errors import ConfigError
from alidpfl.policies import Problem, bound_a, bound_b, make_policy, paper_bound

PROBLEM = Problem(
    smoothness=1.0, strong_convexity=0.05, learning_rate=0.1, rounds=20, clip_norm=1.0, noise_power=2.0,
    sample_rate=0.1, batch_size=30.0, weight_concentration=0.1, initial_distance=5.0, dissimilarity=0.5,
)  # fmt: skip


def problems():
    rng = np.random.default_rng(3)
    for _ in range(40):
        smoothness = 10 ** rng.uniform(-1, 1)
        yield replace(
            PROBLEM,
            smoothness=smoothness,
            strong_convexity=smoothness * 10 ** rng.uniform(-3, 0),
            learning_rate=rng.uniform(0.01, 0.5) / smoothness,
            rounds=int(rng.integers(2, 300)),
            noise_power=10 ** rng.uniform(-3, 3),
            initial_distance=10 ** rng.uniform(-1, 2),
            dissimilarity=rng.uniform(0, 2),
        )


@pytest.mark.parametrize("make", [bound_a, bound_b])
def test_minimisers_agree_with_scipy_and_with_trying_all(make):
    inner = 0
    for problem in problems():
        bound = make(problem)
        best = bound.best_real()
        if best < 2000:
            found = minimize_scalar(
                bound.value, bounds=(1, max(4.0, 3 * best)), method="bounded", options={"xatol": 1e-9}
            )
            assert bound.value(best) <= found.fun * (1 + 1e-12)
            whole = np.array([bound.value(t) for t in range(1, int(best) + 4)])
            assert whole[bound.best() - 1] <= whole.min() * (1 + 1e-12)
            assert abs(bound.best() - best) < 1
            inner += best > 1
    assert inner >= 10


@pytest.mark.parametrize("make", [bound_a, bound_b])
def test_slope_is_the_derivative(make):
    bound = make(PROBLEM)
    for t in (1.5, 2.0, 7.3, 20.0):
        assert bound.slope(t) == pytest.approx(
            (bound.value(t + 1e-5) - bound.value(t - 1e-5)) / 2e-5, rel=1e-5, abs=1e-9
        )


def test_bound_a_by_hand():
    # κ = 1 + 0.9/30 = 1.03, v = 0.03 + 2, V̄ = 0.2, 1 − 2ημ = 0.99
    expected = 0.99**60 * 25 + 0.1 / 0.1 * (1.03 + 0.2) + 0.01 * 0.95 / 0.05 * (4 + 2 * 2.03)
    assert bound_a(PROBLEM).value(3) == pytest.approx(expected, rel=1e-12)
    # τ* solves KρΔ₀ e^{−Kρτ} = (η²(L−μ)/μ)[2(τ−1)C² + v]
    best, rho = bound_a(PROBLEM).best_real(), -math.log(0.99)
    left = 20 * rho * 25 * math.exp(-20 * rho * best)
    assert left == pytest.approx(0.01 * 0.95 / 0.05 * (2 * (best - 1) + 2.03), rel=1e-7)


def recursion(problem, local_steps, step):
    distance = problem.initial_distance**2
    for t in range(int(problem.rounds) * local_steps):
        distance = step(problem, distance, t % local_steps)
    return distance


def step_a(p, distance, j):
    drift = p.learning_rate**2 * (j * p.clip_norm + math.sqrt(j * p.gradient_variance)) ** 2
    kappa = 1 + (1 - p.sample_rate) / p.batch_size
    noise = p.learning_rate**2 * (kappa * p.clip_norm**2 + p.noise_power * p.weight_concentration)
    pull = p.learning_rate * (p.smoothness - p.strong_convexity)
    return (1 - 2 * p.learning_rate * p.strong_convexity) * distance + pull * drift + noise


def step_b(p, distance, j):
    eta, smooth, mu = p.learning_rate, p.smoothness, p.strong_convexity
    drift = eta**2 * (j * p.dissimilarity + math.sqrt(j * p.gradient_variance)) ** 2
    kept = 1 - 2 * eta * mu * (1 - eta * smooth)
    return kept * distance + eta * (smooth - mu + 2 * eta * smooth**2) * drift + (
        eta**2 * p.weight_concentration * p.gradient_variance
    )  # fmt: skip


@pytest.mark.parametrize(("make", "step"), [(bound_a, step_a), (bound_b, step_b)])
def test_the_closed_form_lies_above_its_recursion_and_near_it(make, step):
    for problem in problems():
        for local_steps in (1, 2, 5):
            exact, closed = recursion(problem, local_steps, step), make(problem).value(local_steps)
            assert exact <= closed * (1 + 1e-9)
    late = replace(PROBLEM, rounds=5000)  # nothing of Δ₀ is left: for τ = 1 the two are equal
    assert make(late).value(1) == pytest.approx(recursion(late, 1, step), rel=1e-6)


def test_more_to_learn_asks_for_more_steps_and_more_drift_for_fewer():
    best = bound_b(PROBLEM).best()
    assert bound_b(replace(PROBLEM, initial_distance=50.0)).best() > best > 1
    assert bound_b(replace(PROBLEM, dissimilarity=5.0)).best() < best
    assert bound_b(replace(PROBLEM, noise_power=200.0)).best() < best
    assert bound_b(replace(PROBLEM, rounds=10**6)).best() == 1
    assert bound_a(replace(PROBLEM, strong_convexity=1.0)).best_real() > 100  # L = μ: no drift, as far as ρ can see
    assert bound_a(replace(PROBLEM, strong_convexity=1.0, learning_rate=0.5)).best() == 1  # one step arrives


@pytest.mark.parametrize(
    ("make", "change"),
    [(bound_a, {"learning_rate": 10.1}), (bound_b, {"learning_rate": 0.51}), (bound_b, {"strong_convexity": 2.0})],
)
def test_outside_its_conditions_a_bound_is_refused(make, change):
    with pytest.raises(ConfigError, match="".join(f"{name}={value}" for name, value in change.items())):
        make(replace(PROBLEM, **change))


def powers_of_ten(low, high):
    return st.floats(low, high).map(lambda exponent: 10**exponent)


PAPER_BOUNDS = st.builds(
    paper_bound,
    curvature=powers_of_ten(-2, 2),
    heterogeneity=st.floats(0, 20),
    clip_norm=powers_of_ten(-1, 1),
    noise_power=powers_of_ten(-3, 4),
    total_steps=st.integers(1, 4000),
)


@given(bound=PAPER_BOUNDS, distance=powers_of_ten(-2, 4))
@settings(max_examples=200, deadline=None)
def test_lemma_2_is_where_g_is_smallest(bound, distance):
    best = bound.best_at_fixed_rounds

    def g(log):
        return bound.at_fixed_rounds(math.exp(log), rounds=50, smoothness=2.0, distance=0.0)

    found = minimize_scalar(g, bounds=(-1, math.log(best) + 3), method="bounded", options={"xatol": 1e-10})
    assert math.exp(found.x) == pytest.approx(best, rel=1e-5)
    for other in (0.9, 1.1):  # whatever Δ₁ is, which only lifts G
        assert bound.at_fixed_rounds(best, rounds=50, smoothness=2.0, distance=distance) < bound.at_fixed_rounds(
            best * other, rounds=50, smoothness=2.0, distance=distance
        )


@given(bound=PAPER_BOUNDS, distance=powers_of_ten(-2, 4))
@settings(max_examples=200, deadline=None)
def test_lemma_1_h_turns_at_its_vertex_and_is_smallest_at_one(bound, distance):
    def h(local_steps):
        return bound.at_fixed_steps(local_steps, total_steps=200, smoothness=2.0, distance=distance)

    turn = 1 - distance / (2 * bound.drift)
    assert turn < 1
    for away in (0.5, 3.0):
        assert h(turn + away) == pytest.approx(h(turn - away), rel=1e-9, abs=1e-9 * h(1))
        assert h(turn + away) > h(turn)
    rising = [h(1 + step) for step in (0, 0.01, 0.5, 4, 300)]
    assert rising == sorted(set(rising))
    assert bound.best_at_fixed_steps == 1


PROBLEMS = st.builds(
    lambda ratio, step, **others: replace(PROBLEM, strong_convexity=ratio, learning_rate=step, **others),
    powers_of_ten(-3, 0),
    st.floats(0.01, 0.5),
    rounds=st.integers(1, 300),
    noise_power=powers_of_ten(-3, 3),
    sample_rate=st.floats(0.01, 1),
    weight_concentration=st.floats(0.05, 1),
    initial_distance=powers_of_ten(-1, 2),
    dissimilarity=st.floats(0, 2),
)


@pytest.mark.parametrize("make", [bound_a, bound_b])
@given(problem=PROBLEMS)
@settings(max_examples=100, deadline=None)
def test_minimisers_of_any_problem(make, problem):
    bound = make(problem)
    best, whole = bound.best_real(), bound.best()
    tried = [bound.value(t) for t in (*range(1, 60), 1e6)]
    assert bound.value(whole) <= min(tried) * (1 + 1e-12)
    if math.isfinite(best):
        assert abs(whole - best) < 1
        around = [bound.value(max(1.0, best * (1 + move))) for move in (-0.3, -0.01, 0.01, 0.3)]
        assert bound.value(best) <= min(around) * (1 + 1e-12)


def test_equal_curvature_has_no_drift_in_a_so_more_steps_never_hurt():
    assert bound_a(replace(PROBLEM, strong_convexity=1.0, learning_rate=0.25, rounds=1)).best_real() == math.inf


@pytest.mark.parametrize("make", [bound_a, bound_b])
def test_with_both_budgets_the_best_is_the_smaller_of_optimum_and_even_pace(make):
    """K = min(R_s, R_c/τ): up to the even pace U falls towards τ*, beyond it T is fixed and U rises."""
    held, free = 0, 0
    for problem in problems():
        pace, grid = 3.0, np.linspace(1, 20, 381)
        bounds = [make(replace(problem, rounds=problem.rounds * min(1.0, pace / t))).value(t) for t in grid]
        expected = min(make(problem).best_real(), pace)
        assert make(problem).value(expected) <= min(bounds) * (1 + 1e-12)
        after = [value for t, value in zip(grid, bounds, strict=True) if t >= pace]
        assert after == sorted(after)
        held, free = held + (expected == pace), free + (1 < expected < pace)
    assert held >= 3
    assert free >= 3


def test_theorem_1_and_both_lemmas():
    bound = paper_bound(curvature=0.5, heterogeneity=5, clip_norm=1, noise_power=3, total_steps=200)
    assert bound.drift == pytest.approx((2 + 1 / 200) * 4)
    assert bound.rest == pytest.approx(16 + 3 + 2 * 5 * 200 * 0.5 + 3)
    given = {"smoothness": 2.0, "distance": 9.0}
    for steps in (1, 2, 3.5):  # h and G are one function: T = Kτ
        h = bound.at_fixed_steps(steps, total_steps=50 * steps, **given)
        assert h == pytest.approx(bound.at_fixed_rounds(steps, rounds=50, **given))
    # h(2) = L/(2T)[4a + 2(Δ₁ − 2a) + a + e] = (1/200)[18 + a + e]
    assert bound.at_fixed_steps(2, total_steps=200, **given) == pytest.approx((18 + bound.drift + bound.rest) / 200)
    found = minimize_scalar(lambda t: bound.at_fixed_rounds(t, rounds=50, **given), bounds=(1, 100), method="bounded")
    assert bound.best_at_fixed_rounds == pytest.approx(found.x, rel=1e-4)
    h = [bound.at_fixed_steps(t, total_steps=200, **given) for t in (1, 1.1, 2, 5)]
    assert bound.best_at_fixed_steps == 1
    assert h == sorted(h)


def small(situation, **changes):
    told = replace(situation, num_params=100, expected_batch_size=90.0, max_steps=1580, curvature=0.5)
    return replace(told, **changes)


def test_corrected_takes_the_minimiser_or_the_even_pace(situation):
    told = small(situation)
    free = make_policy("corrected").decide(told)
    assert free.why == f"corrected: (B) τ* = {free.local_steps}"
    assert 1 < free.local_steps < 10
    assert free == make_policy("corrected", strong_convexity=0.005, initial_distance=200.0, dissimilarity=1.0).decide(
        told
    )
    held = make_policy("corrected", strong_convexity=0.0005).decide(told)
    assert held.local_steps == 10
    assert held.why.endswith("held to the even pace 10")
    assert held.curvature == 0.5
    with_a = make_policy("corrected", bound="A").decide(told)
    assert with_a.why.startswith("corrected: (A) τ* = ")
    assert with_a.local_steps <= free.local_steps


def test_corrected_says_so_where_the_step_is_too_long(situation):
    told = small(situation, curvature=3.7)
    decision = make_policy("corrected").decide(told)
    assert (decision.local_steps, decision.why) == (10, "η = 0.5 above 0.135, no bound (B): ratio")
    assert make_policy("corrected", bound="A").decide(told).why.startswith("corrected: (A)")  # ημ = 0.0185


@pytest.mark.parametrize(
    "settings",
    [{"bound": "C"}, {"strong_convexity": 0.0}, {"initial_distance": -1.0}, {"dissimilarity": -0.1}, {"bound": None}],
)
def test_corrected_refuses_settings_that_mean_nothing(settings):
    with pytest.raises(ConfigError, match=f"{next(iter(settings))}="):
        make_policy("corrected", **settings)
