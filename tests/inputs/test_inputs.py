"""Checks of the numbers and names that users type."""

import re
from pathlib import Path

import pytest

import alidpfl
from alidpfl.data import load
from alidpfl.errors import ConfigError
from alidpfl.inputs import checks
from alidpfl.inputs.names import named, nearest
from alidpfl.methods import make_method
from alidpfl.policies import learning_rate, make_policy
from alidpfl.privacy import epsilon


@pytest.mark.parametrize(
    ("typed", "meant"), [("Late-Decay", "late_decay"), ("latedecay", "late_decay"), ("cosin", "cosine"), ("", None)]
)
def test_the_nearest_name_forgives_capitals_and_hyphens(typed, meant):
    found = nearest(typed, ["constant", "late_decay", "linear", "cosine"])
    assert meant is None or found == meant


@pytest.mark.parametrize("typed", ["greedy", "adaptive", "none", "x", ""])
def test_a_far_guess_is_no_hint(typed):
    assert nearest(typed, ["ali", "corrected", "fixed", "paper", "ratio", "reference"]) is None


@pytest.mark.parametrize(
    ("ask", "meant"),
    [
        (lambda: load("Fashion-MNIST"), "fashion_mnist"),
        (lambda: make_method("FedAvg-DP", clip_norm=1.0, noise_multiplier=1.0), "fedavg_dp"),
        (lambda: make_policy("Ratio"), "ratio"),
        (lambda: learning_rate("latedecay", 1.0, 0.5), "late_decay"),
        (lambda: epsilon([], 1e-5, "RDP-Paper"), "rdp-paper"),
        (lambda: alidpfl.load_config(overrides=["model.name=Compact-CNN"]), "compact_cnn"),
    ],
)
def test_every_name_is_looked_up_in_the_same_way(ask, meant):
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        ask()


def test_the_search_for_the_nearest_stands_in_one_place():
    sources = Path(alidpfl.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if "difflib" in path.read_text()] == ["names.py"]


def test_a_name_among_none_and_a_name_that_is_no_text():
    with pytest.raises(ConfigError, match="option='x'"):
        named("option", "x", {})
    with pytest.raises(ConfigError, match=re.escape("policy=['ali']")):
        named("policy", ["ali"], {"ali": 1})


@pytest.mark.parametrize("value", [0, 1, 0.5, 3, float("nan"), float("inf"), True, "0.7", None])
def test_ends_are_open_or_closed_as_asked(value):
    inside = {"above": 0.5, "high": 1.0, "rule": "must be in (0.5, 1]"}
    if value == 1 and value is not True:
        assert checks.real("x", value, **inside) == 1.0
    else:
        with pytest.raises(ConfigError, match=re.escape(f"x={value!r} must be ")):
            checks.real("x", value, **inside)


def test_whole_numbers_have_one_end_or_two():
    assert checks.whole("n", 3) == 3
    for limits, told in (({}, "at least 0"), ({"high": 5}, "between 0 and 5")):
        with pytest.raises(ConfigError, match=f"n=-1 must be {told}"):
            checks.whole("n", -1, **limits)
