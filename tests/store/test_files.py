"""TOML is read back with the same values and types."""

import math
import tomllib
from pathlib import Path

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


def test_numbers_keep_their_type_and_value():
    config = {"rates": (0.5, 1e-5, 1e16, 1.0, -0.0), "counts": [1, 10**18], "deep": {"on": True, "name": "μ"}, "n": 1}
    read = tomllib.loads(to_toml(config))
    assert identical(read, {**config, "rates": list(config["rates"])})
    assert str(read["rates"][-1]) == "-0.0"


def test_none_is_left_out_and_nan_survives():
    read = tomllib.loads(to_toml({"a": {"beta": None, "nan": math.nan, "list": [{"x": None, "y": 1}]}}))
    assert read["a"].keys() == {"nan", "list"}
    assert math.isnan(read["a"]["nan"])
    assert read["a"]["list"] == [{"y": 1}]


@pytest.mark.parametrize(
    ("config", "value"),
    [
        ({"run": {"path": Path("a")}}, "Path"),
        ({"run": {"list": [None]}}, "NoneType"),
        ({3: 1}, "3"),
        ({"name": "\ud800"}, "surrogates"),
    ],
)
def test_what_toml_cannot_hold_is_refused(config, value):
    with pytest.raises(ConfigError, match=value):
        to_toml(config)
