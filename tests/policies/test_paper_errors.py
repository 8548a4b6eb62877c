"""Each error that docs/explanation/theory.md finds in the paper's theory, as a number."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from alidpfl.policies import bound_a, bound_b, noise_power, paper_bound
from reproduction.experiments.convex import random_case, weights
from tests.policies.test_theory import PROBLEM

MNIST = {"curvature": 3.7, "clip_norm": 1.0, "noise_power": noise_power(1.1, 1.0, 582026, 12)}


def test_theorem_1_is_exceeded_by_gradient_descent():
    """One client, F = ½‖w‖², no noise, no clipping, η = 1/(Tμ): T steps leave e⁻² of F, the theorem promises 1/T."""
    steps, start, eta = 100, 10.0, 1 / 100
    point = start
    for _ in range(steps):
        assert abs(point) <= 10  # C
        point -= eta * point
    printed = paper_bound(curvature=1, heterogeneity=0, clip_norm=10, noise_power=0, total_steps=steps)
    promised = printed.at_fixed_steps(1, total_steps=steps, smoothness=1, distance=start**2)
    assert promised == pytest.approx(2.02)
    assert 0.5 * point**2 == pytest.approx(6.70, abs=0.005)


def test_the_sum_that_should_be_a_product():
    """Δ_{t+1} = (1 − μη_t)Δ_t + η_t²A with η_t = β/t, β = 2/μ: t·Δ_t tends to β²A and passes β² + A."""
    mu, power, distance = 0.1, 100.0, 0.0
    for t in range(2, 10_000):
        eta = 2 / (mu * t)
        distance = (1 - mu * eta) * distance + eta**2 * power
    assert 10_000 * distance == pytest.approx(4 / mu**2 * power, rel=1e-3) == 40_000
    assert 4 / mu**2 + power == pytest.approx(500)


@pytest.mark.parametrize("unit", [0.1, 10.0])
def test_the_paper_s_optimum_depends_on_the_unit_of_the_loss(unit):
    """cF with C, μ, Γ times c and η through c makes the very same models, so that τ* must not change."""
    given = {"curvature": 0.5, "heterogeneity": 1.0, "clip_norm": 1.0, "noise_power": 3.0, "total_steps": 200}
    powers = {"curvature": 1, "heterogeneity": 1, "clip_norm": 1, "noise_power": 2, "total_steps": 0}
    changed = {name: value * unit ** powers[name] for name, value in given.items()}
    assert paper_bound(**given).best_at_fixed_rounds == pytest.approx(5.36, abs=0.005)
    # 4/μ² alone is to blame: all else in e and a goes with c²
    assert paper_bound(**changed).best_at_fixed_rounds == pytest.approx({0.1: 141.3, 10.0: 5.17}[unit], rel=1e-3)


@pytest.mark.parametrize("unit", [0.1, 10.0])
@pytest.mark.parametrize("make", [bound_a, bound_b])
def test_ours_does_not(make, unit):
    same = replace(
        PROBLEM,
        smoothness=PROBLEM.smoothness * unit,
        strong_convexity=PROBLEM.strong_convexity * unit,
        clip_norm=PROBLEM.clip_norm * unit,
        dissimilarity=PROBLEM.dissimilarity * unit,
        noise_power=PROBLEM.noise_power * unit**2,
        learning_rate=PROBLEM.learning_rate / unit,
    )
    for local_steps in (1, 2.5, 9):
        assert make(same).value(local_steps) == pytest.approx(make(PROBLEM).value(local_steps), rel=1e-12)
    assert make(same).best() == make(PROBLEM).best()


def test_with_t_equal_to_k_tau_heterogeneity_drops_out():
    """2Γ/η = 2ΓTμ = 2ΓKτμ, over τ: a constant. Lemma 2 differentiates as if T did not depend on τ."""
    rounds = 158

    def true_minimiser(heterogeneity):
        def g(local_steps):
            bound = paper_bound(**MNIST, heterogeneity=heterogeneity, total_steps=rounds * local_steps)
            return bound.at_fixed_rounds(local_steps, rounds=rounds, smoothness=1, distance=1)

        return minimize_scalar(g, bounds=(1, 50), method="bounded", options={"xatol": 1e-8}).x

    assert true_minimiser(0) == pytest.approx(1.2247, abs=2e-3)  # sqrt(1.5), since V leads
    assert true_minimiser(10) == pytest.approx(true_minimiser(0), rel=1e-4)
    for heterogeneity, expected in ((0, 1.22), (10, 1.97)):
        printed = paper_bound(**MNIST, heterogeneity=heterogeneity, total_steps=316)
        assert printed.best_at_fixed_rounds == pytest.approx(expected, abs=0.005)


def cases():
    random = np.random.default_rng(5)
    return [random_case(random)[0] for _ in range(30)]


def gap(clients):
    """Γ = F* − Σ p_i min F_i: what is lost by one model for all; ½ (w* − ā_i)ᵀ H_i (w* − ā_i) for quadratics."""
    apart = clients.optimum - clients.means
    return float(weights(clients) @ np.einsum("id,ide,ie->i", apart, clients.hessians, apart) / 2)


def test_heterogeneity_is_a_gap_of_minima_and_bounds_the_gradients_at_the_optimum():
    """Σ p_i ‖∇F_i(w*)‖² <= 2LΓ; the appendix's Γ, identically 0, would have all clients share one minimum."""
    for clients in cases():
        each = clients.client_gradients(clients.optimum[None, None])[0]
        spread = float(weights(clients) @ (each**2).sum(-1))
        assert 1e-9 < spread <= 2 * clients.smoothness * gap(clients) * (1 + 1e-9)


def test_the_measured_mu_is_a_secant_between_mu_and_l():
    """‖∇F_i(w) − ∇F_i(w')‖ / ‖w − w'‖ after a step is mostly that of the steep directions: often far above μ."""
    steep = 0
    for clients in cases():
        low, high = clients.strong_convexity, clients.smoothness
        start = clients.optimum + 1.0
        before = clients.client_gradients(start[None, None])[0]
        moved = start - 0.1 * before  # one local step each
        after = clients.client_gradients(moved[None])[0]
        secants = np.linalg.norm(after - before, axis=-1) / np.linalg.norm(moved - start, axis=-1)
        mean = float(weights(clients) @ secants)
        assert low * (1 - 1e-9) <= mean <= high * (1 + 1e-9)
        steep += mean > 3 * low
    assert steep >= 5


def test_gradients_cannot_be_bounded_where_f_is_strongly_convex():
    """‖∇F(w)‖ >= μ‖w − w*‖: beyond C/μ every gradient is longer than C."""
    for clients in cases():
        direction = np.ones(len(clients.optimum)) / math.sqrt(len(clients.optimum))
        far = clients.optimum + 1.01 / clients.strong_convexity * direction  # C = 1
        gradient = weights(clients) @ clients.client_gradients(far[None, None])[0]
        assert np.linalg.norm(gradient) > 1


def test_the_step_of_the_lemma_is_not_the_step_that_is_taken():
    assert pytest.approx(8.5e-4, rel=0.01) == 1 / (317 * 3.7)
    assert pytest.approx(586, abs=1) == 0.5 / (1 / (317 * 3.7))
