"""Learning rates, names, Γ, and what importing brings along."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from alidpfl.errors import ConfigError
from alidpfl.policies import POLICIES, SCHEDULES, heterogeneity_for, learning_rate, make_policy


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 2, 317, 100_000])
def test_schedules_start_at_the_base_never_rise_and_stay_positive(schedule, steps):
    rates = [learning_rate(schedule, 0.5, t / steps) for t in range(0, steps, max(1, steps // 1000))]
    rates.append(learning_rate(schedule, 0.5, (steps - 1) / steps))
    assert rates[0] == 0.5
    assert rates == sorted(rates, reverse=True)
    assert 0 < learning_rate(schedule, 0.5, 1.0) <= rates[-1]


def test_schedules_by_hand():
    assert learning_rate("constant", 0.5, 0.99) == 0.5
    assert [learning_rate("late_decay", 1.0, p) for p in (0.3, 0.6, 0.8, 0.9)] == pytest.approx([1, 1, 0.55, 0.325])
    assert learning_rate("late_decay", 1.0, 1.0) == pytest.approx(0.1, abs=0.003)
    assert [learning_rate("linear", 2.0, p) for p in (0.25, 0.75, 1.0)] == pytest.approx([1.5, 0.5, 0.002])
    assert [learning_rate("cosine", 1.0, p) for p in (0.5, 2 / 3)] == pytest.approx([0.5, 0.25])
    assert learning_rate("cosine", 1.0, 1.0) == pytest.approx((math.pi / 2 * 0.001) ** 2, rel=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("late-decay", 0.5, 0.1), "schedule='late-decay' is not known; did you mean 'late_decay'"),
        (("linear", 0.0, 0.1), "learning_rate=0.0 must be above 0"),
        (("linear", math.nan, 0.1), "learning_rate=nan must be above 0"),
        (("linear", 0.5, 1.01), r"progress=1.01 must be in \[0, 1\]"),
        (("linear", 0.5, -0.1), r"progress=-0.1 must be in \[0, 1\]"),
        (("linear", 0.5, math.nan), "progress=nan must be"),
    ],
)
def test_schedules_refuse_what_they_cannot_mean(given, message):
    with pytest.raises(ConfigError, match=message):
        learning_rate(*given)


@pytest.mark.parametrize(("typed", "meant"), [("ratoi", "ratio"), ("ALI", "ali"), ("refrence", "reference")])
def test_an_unknown_policy_is_answered_with_the_nearest(typed, meant):
    with pytest.raises(ConfigError, match=f"policy={typed!r} is not known; did you mean '{meant}"):
        make_policy(typed)


@pytest.mark.parametrize("typed", [3, "xyzzy", ""])
def test_what_is_near_to_nothing_gets_no_guess(typed):
    with pytest.raises(ConfigError, match=f"policy={typed!r} is not known; there are: ali, corrected"):
        make_policy(typed)


def test_an_unknown_setting_is_answered_with_the_nearest():
    with pytest.raises(
        ConfigError, match="policy 'ali': the setting 'pace_limt' is not known; did you mean 'pace_limit'"
    ):
        make_policy("ali", pace_limt=2)
    with pytest.raises(ConfigError, match="there are none"):
        make_policy("ratio", local_steps=2)
    with pytest.raises(ConfigError, match="local_steps=0 must be between"):
        make_policy("fixed", local_steps=0)


def test_every_policy_goes_by_its_name():
    assert {name: make_policy(name).name for name in POLICIES} == {name: name for name in POLICIES}
    assert set(POLICIES) == {"ali", "corrected", "fixed", "paper", "ratio", "reference"}


def test_heterogeneity_as_the_paper_sets_it():
    known = {None: 0.0, 1e-6: 10.0, 0.05: 10.0, 0.5: 5.0, 1.0: 1.0, 50.0: 1.0}
    assert {beta: heterogeneity_for(beta) for beta in known} == pytest.approx(known)
    assert heterogeneity_for(math.sqrt(0.05 * 0.5)) == pytest.approx(7.5)  # half way in log β
    between = [heterogeneity_for(0.05 * 1.05**i) for i in range(62)]
    assert between == sorted(between, reverse=True)
    for beta in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="dirichlet_beta"):
            heterogeneity_for(beta)


@pytest.mark.parametrize(
    "change",
    [
        {"round": -1},
        {"max_rounds": 0},
        {"max_steps": 0},
        {"steps_spent": -1},
        {"previous_steps": 1.5},
        {"num_params": 0},
        {"clip_norm": 0.0},
        {"noise_multiplier": -1.0},
        {"sample_rate": 50.0},
        {"learning_rate": 0.0},
        {"expected_batch_size": 0.0},
        {"weight_concentration": math.nan},
        {"heterogeneity": -1.0},
    ],
    ids=str,
)
def test_a_situation_that_cannot_be_is_refused(change, situation):
    with pytest.raises(ConfigError, match=f"{next(iter(change))}="):
        replace(situation, **change)


def test_importing_brings_no_torch():
    code = "import sys, alidpfl.policies; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
