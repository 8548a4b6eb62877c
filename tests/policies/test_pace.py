"""The even pace and the cap."""

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alidpfl.errors import ConfigError
from alidpfl.policies import Decision, make_policy, paced, ratio_steps
from tests.policies.conftest import BASE, run


def test_the_even_pace_by_hand():
    assert [ratio_steps(k, 4, 10) for k in range(4)] == [2, 3, 2, 3]
    assert [ratio_steps(k, 3, 7) for k in range(3)] == [2, 2, 3]
    assert [ratio_steps(k, 5, 3) for k in range(5)] == [1] * 5


@settings(max_examples=50, deadline=None)
@given(max_rounds=st.integers(1, 120), max_steps=st.integers(1, 500))
def test_ratio_is_the_bresenham_sequence_and_spends_all(max_rounds, max_steps):
    taken = run(make_policy("ratio"), replace(BASE, max_rounds=max_rounds, max_steps=max_steps))
    if max_steps > max_rounds:
        targets = [(k + 1) * max_steps // max_rounds for k in range(max_rounds)]
        assert list(accumulate(taken)) == targets
        assert taken == [ratio_steps(k, max_rounds, max_steps) for k in range(max_rounds)]
    else:
        assert taken == [1] * max_steps


@settings(max_examples=50, deadline=None)
@given(k=st.integers(0, 59), spent=st.integers(0, 299), max_rounds=st.integers(60, 90))
def test_off_plan_the_rest_is_spread_evenly_and_spent(k, spent, max_rounds):
    policy, rounds, left = make_policy("ratio"), max_rounds - k, 300 - spent
    taken = []
    for now in range(k, max_rounds):
        if spent + sum(taken) < 300:
            told = replace(BASE, max_rounds=max_rounds, max_steps=300, round=now, steps_spent=spent + sum(taken))
            taken.append(policy.decide(told).local_steps)
    assert sum(taken) == left
    if left >= rounds:
        assert len(taken) == rounds
        assert min(taken) >= left // rounds
        assert max(taken) <= -(-left // rounds)
    else:
        assert taken == [1] * left


def test_lemma_1_where_there_are_rounds_enough(situation):
    told = replace(situation, max_rounds=100, max_steps=50, curvature=1.0)
    assert make_policy("ali").decide(told).why == "ali: Lemma 1"
    assert make_policy("ali").decide(replace(told, max_steps=200)).why != "ali: Lemma 1"


def wants(steps):
    return Decision(local_steps=steps, why="x")


def test_the_cap_by_hand(situation):
    told = replace(situation, max_rounds=10, max_steps=25)  # 2.5 a round, ceil 3
    assert paced(wants(99), told).local_steps == 6
    assert paced(wants(99), told, 1.0).local_steps == 3
    assert paced(wants(99), told, 1.5).local_steps == 4
    assert paced(wants(99), told, 4.0).local_steps == 12
    assert paced(wants(99), told, None) == replace(wants(25), why="x, held to 25 by what is left")
    assert paced(wants(0), told).local_steps == 1
    assert paced(wants(5), told) == wants(5)
    assert paced(wants(99), told).why == "x, held to 6 by the pace"
    # One step stays for each of the nine rounds to come.
    assert paced(wants(99), replace(told, steps_spent=13)).local_steps == 3
    assert paced(wants(99), replace(told, steps_spent=15)).local_steps == 1
    assert paced(wants(99), replace(told, round=9)).local_steps == 25


@settings(max_examples=40, deadline=None)
@given(max_rounds=st.integers(1, 80), more=st.integers(0, 300), limit=st.floats(1, 8))
def test_a_capped_rule_that_wants_everything_runs_every_round(max_rounds, more, limit):
    told = replace(BASE, max_rounds=max_rounds, max_steps=max_rounds + more)
    taken = run(make_policy("fixed", local_steps=10**6, pace_limit=limit), told)
    assert len(taken) == max_rounds
    assert sum(taken) == max_rounds + more


def test_the_cap_stops_a_runaway(situation):
    """Scattering features and softmax: as μ falls from 0.07 to 0.008, Lemma 2 asks for 5, then 38 steps a round."""
    told = replace(situation, max_steps=314, num_params=39690, expected_batch_size=49.0, heterogeneity=0.0)

    def converging(k):
        return {"curvature": None if k == 0 else max(0.008, 0.07 * 0.85**k)}

    free = run(make_policy("ali", pace_limit=None), told, converging)
    assert len(free) <= 30
    assert max(free) >= 20
    assert sum(free) == 314
    capped = run(make_policy("ali"), told, converging)
    assert len(capped) >= 150
    assert max(capped) <= 4
    assert sum(capped) <= 314


@pytest.mark.parametrize("limit", [0.99, 0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["ali", "paper", "reference", "fixed"])
def test_a_cap_below_the_even_pace_is_refused(limit, name):
    with pytest.raises(ConfigError, match=f"pace_limit={limit}"):
        make_policy(name, pace_limit=limit)


@pytest.mark.parametrize("name", ["ali", "corrected"])
def test_one_round_without_a_signal_does_not_spend_what_others_saved(name, situation):
    """The noise hides the curvature in the last round only: what was saved until then is not spent in that one."""
    start = replace(situation, max_rounds=60, max_steps=180, expected_batch_size=1.0, learning_rate=0.01)

    def signals(k):
        return {"curvature": None if k in (0, 59) else 3.7}

    policy = make_policy(name) if name == "ali" else make_policy(name, strong_convexity=3.7, initial_distance=1e-3)
    taken = run(policy, start, signals)
    assert sum(taken[:59]) < 120  # something was saved
    assert taken[-1] == 3
