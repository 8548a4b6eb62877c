"""Names and settings of policies, the situation's checks, and what importing brings along."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from alidpfl.errors import ConfigError
from alidpfl.policies import POLICIES, make_policy


@pytest.mark.parametrize(("typed", "meant"), [("ratoi", "ratio"), ("ALI", "ali"), ("refrence", "reference")])
def test_an_unknown_policy_is_answered_with_the_nearest(typed, meant):
    with pytest.raises(ConfigError, match=f"policy={typed!r}.*'{meant}'"):
        make_policy(typed)


@pytest.mark.parametrize("typed", [3, "xyzzy", ""])
def test_a_name_that_is_near_to_none_gets_all_names_and_no_guess(typed):
    with pytest.raises(ConfigError, match=f"policy={typed!r}") as error:
        make_policy(typed)
    assert all(name in str(error.value) for name in POLICIES)
    assert not any(repr(name) in str(error.value) for name in POLICIES)


def test_an_unknown_setting_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"'ali'.*'pace_limt'.*'pace_limit'"):
        make_policy("ali", pace_limt=2)
    with pytest.raises(ConfigError, match=r"'ratio'.*'local_steps'"):
        make_policy("ratio", local_steps=2)
    with pytest.raises(ConfigError, match="local_steps=0"):
        make_policy("fixed", local_steps=0)


def test_every_policy_goes_by_its_name():
    assert {name: make_policy(name).name for name in POLICIES} == {name: name for name in POLICIES}
    assert set(POLICIES) == {"ali", "corrected", "fixed", "paper", "ratio", "reference"}


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
