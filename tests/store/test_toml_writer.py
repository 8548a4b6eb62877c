import math
import tomllib
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alidpfl.errors import ConfigError
from alidpfl.store import to_toml

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = texts | st.booleans() | st.integers() | st.floats(allow_nan=False)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


def identical(a, b):
    """Equality that tells 1, 1.0 and True apart."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(identical, a, b))
    return a == b


@given(st.dictionaries(texts, values, max_size=5))
def test_what_is_written_is_read_back(config):
    assert identical(tomllib.loads(to_toml(config)), config)


def test_the_text_is_for_people():
    config = {"data": {"name": "mnist", "clients": 10}, "method": {"rates": (0.5, 1e-5), "deep": {"on": True}}, "n": 1}
    assert to_toml(config) == (
        'n = 1\n\n[data]\nname = "mnist"\nclients = 10\n\n[method]\nrates = [0.5, 1e-05]\n\n[method.deep]\non = true\n'
    )


def test_none_is_left_out_and_nan_survives():
    read = tomllib.loads(to_toml({"a": {"beta": None, "nan": math.nan, "list": [{"x": None, "y": 1}]}}))
    assert read["a"].keys() == {"nan", "list"}
    assert math.isnan(read["a"]["nan"])
    assert read["a"]["list"] == [{"y": 1}]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"run": {"day": date(2026, 1, 2)}}, "run.day=datetime.date"),
        ({"run": {"list": [None]}}, "run.list=None cannot be written as TOML"),
        ({3: 1}, "key 3 must be a string"),
        ({"name": "\ud800"}, "not valid Unicode"),
    ],
)
def test_what_toml_cannot_hold_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        to_toml(config)
