"""The paper's formula, by hand, and the rules built on it."""

import math
from dataclasses import replace

import pytest

from alidpfl.errors import ConfigError
from alidpfl.policies import heterogeneity_for, make_policy, noise_power, paper_bound
from tests.policies.conftest import BASE


def tau(mu, gamma, batch, steps, tail=1.0):
    power = noise_power(1.1, 1.0, 582026, batch)
    bound = paper_bound(
        curvature=mu, heterogeneity=gamma, clip_norm=1.0, noise_power=power, total_steps=steps, tail=tail
    )
    return bound.best_at_fixed_rounds


@pytest.mark.parametrize(
    ("batch", "steps", "expected"),
    [
        # V = 1.21·582026/144 = 4890.635; [4/13.69 + 3 + 20·317·3.7 + V] / [(2 + 1/317)·4891.635] = 28351.9/9798.7
        (12, 317, math.sqrt(1 + 28351.927 / 9798.701)),
        (20, 317, math.sqrt(1 + 25221.921 / 3528.811)),
        (12, 775, math.sqrt(1 + 62243.927 / 9789.582)),
        (20, 775, math.sqrt(1 + 59113.921 / 3525.527)),
    ],
)
def test_golden_values(batch, steps, expected):
    assert tau(3.7, 10, batch, steps) == pytest.approx(expected, rel=1e-5)


def test_the_paper_s_picture():
    """2–3 at T = 317 and 3–4 at T = 775."""
    assert {int(tau(3.7, 10, b, 317) + 0.5) for b in range(12, 21)} == {2, 3}
    assert {int(tau(3.7, 10, b, 775) + 0.5) for b in range(12, 21)} == {3, 4}


def test_limits():
    assert tau(3.7, 10, 1e-4, 317) == pytest.approx(math.sqrt(1.5), rel=1e-3)  # V leads
    assert tau(3.7, 1e6, 12, 4000) / tau(3.7, 1e6, 12, 1000) == pytest.approx(2, rel=1e-3)  # like sqrt(T)
    valley = min((tau(mu, 10, 12, 317), mu) for mu in [0.001 * 1.02**i for i in range(400)])[1]
    assert valley == pytest.approx((8 / (20 * 317)) ** (1 / 3), rel=0.02)  # d/dμ [4/μ² + 2ΓTμ] = 0, near 0.1
    assert tau(5e-324, 10, 12, 317) == math.inf


def test_the_rules_use_it(situation):
    told = replace(situation, previous_steps=2, raw_curvature=3.7, curvature=3.7, raw_heterogeneity=40.0)
    paper = make_policy("paper").decide(told)  # T = min(158·2, 317) = 316
    assert (paper.local_steps, paper.why) == (2, f"paper: τ* = {tau(3.7, 10, 12, 316):.2f}")
    assert (paper.curvature, paper.heterogeneity) == (3.7, 10.0)
    reference = make_policy("reference").decide(told)
    assert reference.why == f"reference: τ* = {tau(3.7, 40, 12, 316, tail=2.0):.2f}"
    assert reference.heterogeneity == 40.0
    assert make_policy("ali").decide(told).why == f"ali: τ* = {tau(3.7, 10, 12, 316):.2f}"


def test_the_reference_s_constant_differs_where_few_steps_show_it():
    assert tau(3.7, 10, 12, 2, tail=2.0) ** 2 - 1 == pytest.approx((tau(3.7, 10, 12, 2) ** 2 - 1) * 2.5 / 3)
    told = replace(BASE, max_rounds=1, max_steps=2, previous_steps=2, raw_curvature=0.01)  # T = 2
    assert make_policy("paper").decide(told).why == f"paper: τ* = {tau(0.01, 10, 12, 2):.2f}"
    assert make_policy("reference").decide(told).why.startswith(f"reference: τ* = {tau(0.01, 10, 12, 2, tail=2.0):.2f}")
    assert f"{tau(0.01, 10, 12, 2):.2f}" != f"{tau(0.01, 10, 12, 2, tail=2.0):.2f}"


def test_the_horizon_is_the_smaller_budget(situation):
    told = replace(situation, raw_curvature=3.7)
    for previous, steps in [(0, 158), (1, 158), (2, 316), (3, 317), (9, 317)]:
        why = make_policy("paper").decide(replace(told, previous_steps=previous)).why
        assert why == f"paper: τ* = {tau(3.7, 10, 12, steps):.2f}"


def test_a_batch_below_one_counts_as_one(situation):
    small, one = (replace(situation, raw_curvature=3.7, expected_batch_size=b) for b in (0.01, 1.0))
    assert make_policy("paper").decide(small) == make_policy("paper").decide(one)


def test_without_a_signal(situation):
    assert make_policy("paper").decide(situation).local_steps == 1
    assert make_policy("paper").decide(replace(situation, previous_steps=3)).local_steps == 3
    told = replace(situation, round=1, steps_spent=2)
    assert make_policy("ali").decide(told).why == "curvature not resolved: ratio"
    assert make_policy("ali").decide(told).local_steps == make_policy("ratio").decide(told).local_steps == 2
    assert make_policy("corrected").decide(told).why == "curvature not resolved: ratio"
    assert make_policy("reference").decide(replace(told, raw_curvature=1.0)).heterogeneity == 10.0


def test_heterogeneity_as_the_paper_sets_it():
    known = {None: 0.0, 1e-6: 10.0, 0.05: 10.0, 0.5: 5.0, 1.0: 1.0, 50.0: 1.0}
    assert {beta: heterogeneity_for(beta) for beta in known} == pytest.approx(known)
    assert heterogeneity_for(math.sqrt(0.05 * 0.5)) == pytest.approx(7.5)  # half way in log β
    between = [heterogeneity_for(0.05 * 1.05**i) for i in range(62)]
    assert between == sorted(between, reverse=True)
    for beta in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="dirichlet_beta"):
            heterogeneity_for(beta)
