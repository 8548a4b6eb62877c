"""Properties of every policy, for any situation."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alidpfl.errors import ConfigError
from alidpfl.policies import POLICIES, make_policy
from tests.policies.conftest import BASE, run

MADE = [
    *(make_policy(name) for name in POLICIES),
    make_policy("fixed", local_steps=7),
    make_policy("fixed", local_steps=7, pace_limit=1.5),
    make_policy("ali", pace_limit=None),
    make_policy("ali", pace_limit=1.0),
    make_policy("paper", pace_limit=3.0),
    make_policy("corrected", bound="A"),
    make_policy("corrected", strong_convexity=0.1, initial_distance=3.0, dissimilarity=0.0),
]
POLICY = pytest.mark.parametrize("policy", MADE, ids=repr)
EXTREMES = [None, math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 5e-324, 1e-200, 1e-9, 0.07, 3.7, 1e9, 1e200, 1.7e308]
SIGNALS = st.one_of(st.sampled_from(EXTREMES), st.floats())


EXTREME_SETTINGS = [
    {},
    {"expected_batch_size": 1e-6, "clip_norm": 1e9, "noise_multiplier": 1e6, "num_params": 10**12},
    {"noise_multiplier": 0.0, "clip_norm": 1e-9, "learning_rate": 1e-300},
    {"learning_rate": 1e300, "heterogeneity": 0.0, "sample_rate": 1.0},
]


@POLICY
def test_any_signal_gives_a_step_that_can_be_paid(policy):
    for signal, gamma, extreme in product(EXTREMES, [None, math.nan, -1e300, 0.0, 1e300], EXTREME_SETTINGS):
        told = replace(
            BASE, steps_spent=300, curvature=signal, raw_curvature=signal, raw_heterogeneity=gamma, **extreme
        )
        decision = policy.decide(told)
        assert type(decision.local_steps) is int
        assert 1 <= decision.local_steps <= told.steps_left
        assert decision == policy.decide(told)
        assert decision.why
        assert decision.curvature is None or decision.curvature == signal


@POLICY
@settings(max_examples=20, deadline=None)
@given(
    max_rounds=st.integers(1, 60),
    max_steps=st.integers(1, 200),
    data=st.data(),
)
def test_no_run_passes_its_budget(policy, max_rounds, max_steps, data):
    seen = data.draw(st.lists(st.tuples(SIGNALS, SIGNALS), min_size=1, max_size=8))
    told = replace(BASE, max_rounds=max_rounds, max_steps=max_steps)

    def signals(k):
        mu, gamma = seen[k % len(seen)]
        return {"curvature": mu, "raw_curvature": mu, "raw_heterogeneity": gamma}

    taken = run(policy, told, signals)
    assert min(taken) >= 1
    assert sum(taken) <= max_steps


@POLICY
def test_no_run_passes_its_budget_when_history_is_not_as_planned(policy):
    """Dropouts leave steps unspent, limits move, a client is ahead: the sum still fits."""
    rng = np.random.default_rng(7)
    for _ in range(40):
        max_steps, max_rounds, spent, k = int(rng.integers(1, 301)), int(rng.integers(1, 101)), 0, 0
        while spent < max_steps and k < max_rounds:
            if rng.random() < 0.1:
                max_rounds = int(rng.integers(1, 101))  # a clock ran fast; the round may even lie beyond
            mu = EXTREMES[rng.integers(len(EXTREMES))]
            told = replace(
                BASE, max_rounds=max_rounds, max_steps=max_steps, steps_spent=spent, round=k,
                previous_steps=int(rng.integers(400)), curvature=mu, raw_curvature=mu,
            )  # fmt: skip
            steps = policy.decide(told).local_steps
            assert 1 <= steps <= max_steps - spent
            spent, k = spent + int(rng.choice([steps, steps, 0, rng.integers(steps + 1)])), k + 1
        assert spent <= max_steps


@POLICY
@pytest.mark.parametrize("spent", [317, 400])
def test_nothing_left_is_an_error_that_says_so(policy, spent, situation):
    with pytest.raises(ConfigError, match=rf"steps_spent={spent} .*max_steps=317"):
        policy.decide(replace(situation, steps_spent=spent, curvature=0.1, raw_curvature=0.1))


def test_only_the_paper_s_own_rules_look_at_raw_signals(situation):
    for name in POLICIES:
        policy = make_policy(name)
        plain = replace(situation, curvature=0.1)
        told = replace(plain, raw_curvature=3.7, raw_heterogeneity=4.0, previous_steps=0)
        moved = policy.decide(plain) != policy.decide(told)
        assert moved == policy.needs_raw_signals == (name in ("paper", "reference"))
        private = policy.decide(plain) != policy.decide(replace(plain, curvature=None))
        assert private == policy.needs_curvature == (name in ("ali", "corrected"))


@POLICY
def test_with_more_rounds_than_steps_every_round_takes_one(policy, situation):
    """Lemma 1."""
    if policy.name != "fixed":
        told = replace(situation, max_rounds=317, curvature=3.7, raw_curvature=3.7)
        assert run(policy, told) == [1] * 317


@POLICY
def test_the_reason_is_short(policy, situation):
    for mu in EXTREMES:
        assert len(policy.decide(replace(situation, curvature=mu, raw_curvature=mu)).why) <= 80
