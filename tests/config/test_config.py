"""Configurations: every mistake is a ConfigError that names key, value and remedy."""

import contextlib
import re
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alidpfl.config.load import keys, load_config, parse_config
from alidpfl.config.schema import Config
from alidpfl.errors import ConfigError
from alidpfl.store.files import to_toml


def _error(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("pricavy.epsilon=2", ["pricavy", "did you mean privacy?"]),
        ("privacy.epsilom=2", ["privacy.epsilom", "did you mean privacy.epsilon?"]),
        ("privacy.seed=2", ["privacy.seed", "did you mean run.seed?"]),
        ("privacy.zzz=2", ["privacy.zzz is not a setting; [privacy] has epsilon, delta"]),
        ("zzz.epsilon=2", ["zzz is not a setting; the sections are data, "]),
        ("method.name=zzz", ["method.name='zzz' must be one of 'fedavg_dp'"]),
        ("method.name=ali_dpfk", ["method.name='ali_dpfk'", "'fedavg_dp'", "did you mean 'ali_dpfl'?"]),
        ("method.policy=rato", ["method.policy='rato'", "'corrected'", "did you mean 'ratio'?"]),
        ('unsafe=["signals"]', ["privacy.unsafe.0='signals'", "did you mean 'unaccounted-signals'?"]),
        ("method.name=3", ["method.name=3 must be one of", '"adap_dpfl"']),
        ("privacy.epsilon=much", ["privacy.epsilon='much' must be a number > 0, ≤ 1e+06, such as 2.0"]),
        ("privacy.epsilon=-1", ["privacy.epsilon=-1 must be a number > 0"]),
        ("privacy.epsilon=nan", ["privacy.epsilon=nan must be a number > 0"]),
        ("privacy.delta=1", ["privacy.delta=1 must be a number > 0, < 1, such as 1e-05"]),
        ("sample_rate=1.5", ["privacy.sample_rate=1.5 must be a number ≥ 1e-09, ≤ 1"]),
        ("max_rounds=0", ["federation.max_rounds=0 must be a whole number ≥ 1, such as 50"]),
        ("max_rounds=2.5", ["federation.max_rounds=2.5 must be a whole number"]),
        ("data.clients=[1, 2]", ["data.clients=[1, 2] must be a whole number"]),
        ("pixel_range=[1]", ["data.pixel_range=[1] must be a list of 2 numbers, such as [-1.0, 1.0]"]),
        ('pixel_range=["a", true]', ["data.pixel_range=['a', True] must be a list of 2 numbers"]),
        ("unsafe=yes", ["privacy.unsafe='yes' must be a list of", 'such as ["unaccounted-signals"]']),
        ("unsafe=[3]", ["privacy.unsafe=[3] must be a list of"]),
        ("privacy.epsilon=true", ["privacy.epsilon=true must be a number"]),
        ('privacy.epsilon="4"', ["privacy.epsilon='4' must be a number"]),
        ("privacy.epsilon=[4]", ["privacy.epsilon=[4] must be a number"]),
        ("max_rounds=true", ["federation.max_rounds=true must be a whole number"]),
        ('max_rounds="3"', ["federation.max_rounds='3' must be a whole number"]),
        ("noise_multiplier=false", ["privacy.noise_multiplier=false must be a number > 0, such as 1.1"]),
        ("data_dir=3", ["data.data_dir=3 must be text, such as"]),
        ("options=3", ["method.options=3 must be a table, such as {draws = 2}"]),
        ("positions=3", ["model.positions=3 must be one of 1, 2, 4"]),
        ("positions=true", ["model.positions=true must be one of 1, 2, 4"]),
        ("positions=two", ["model.positions='two' must be one of 1, 2, 4"]),
        ("time_limit=true", ["federation.time_limit=true must be a duration"]),
        ("traffic_limit=1.5", ["federation.traffic_limit=1.5 must be a size"]),
        ("seed=-1", ["run.seed=-1"]),
        ("data={}", ["--set data"]),
        ("time_limit=soon", ["federation.time_limit='soon'", 'must be a duration > 0, ≤ 1e+09, such as "2h"']),
        ("time_limit=0", ["federation.time_limit=0 must be a duration > 0"]),
        ("time_limit=-5m", ["federation.time_limit='-5m'", "2h"]),
        ("traffic_limit=5 parsecs", ["federation.traffic_limit='5 parsecs'", "5GB"]),
        ("traffic_limit=" + "9" * 400 + "GB", ["federation.traffic_limit", "5GB"]),
        ("epsilom=2", ["--set epsilom", "did you mean privacy.epsilon?"]),
        ("zzz=2", ["--set zzz: there is no such key; the sections are data, "]),
        ("name=x", ["--set name", "data.name", "model.name", "method.name"]),
        ("epsilon", ["--set epsilon", "key=value"]),
        ("", ["--set", "key=value"]),
        ("=3", ["--set =3", "key=value"]),
        ("run.seed.x=1", ["run.seed"]),
        ("run.seed=1" + "0" * 5000, ["run.seed='1000"]),
        ("run.seed=0x1" + "0" * 5000, ["run.seed=(int)"]),
        ("run.seed=" + "[" * 5000, ["run.seed='[[["]),
    ],
)
def test_a_mistake_is_named_with_its_remedy(override, parts):
    message = _error(override)
    assert all(part in message for part in parts), message
    assert "\n" not in message
    assert len(message) < 500


_WRONG = (True, "abc", "4", [1], {"a": 1}, 3, 2.5, float("nan"))


@pytest.mark.parametrize("key", [f"{section}.{name}" for section, names in keys().items() for name in names])
def test_whatever_is_wrong_with_a_setting_is_said_in_our_words(key):
    """For every setting and every kind of value: accepted, or one line with the key, the value and an example."""
    section, name = key.split(".")
    for value in _WRONG:
        with contextlib.suppress(ConfigError):
            found = getattr(getattr(parse_config({section: {name: value}}), section), name)
            assert isinstance(found, bool) == isinstance(value, bool), f"{key}={value} was taken for a number"
            kinds = (type(value), float, int) if type(value) is not list else (list, tuple)
            assert type(found) in kinds
            continue
        with pytest.raises(ConfigError, match=re.escape(key)) as caught:
            parse_config({section: {name: value}})
        message = str(caught.value)
        assert " must be " in message
        assert "\n" not in message
        assert not re.search("[Ii]nput|valid |pydantic|string|tuple|dictionary|integer", message)


def test_a_section_that_is_none():
    with pytest.raises(ConfigError, match=r'data=3.*data\.name="strokes"'):
        parse_config({"data": 3})


def test_several_mistakes_are_named_at_once():
    message = _error("privacy.epsilon=-1", "run.sed=3")
    assert "privacy.epsilon=-1" in message
    assert "run.seed?" in message


def test_a_value_is_not_a_section():
    assert "name is a value, not a section" in _error("data.name=mnist", "data.name.first=x")


@pytest.mark.parametrize("key", [f"{section}.{name}" for section, names in keys().items() for name in names])
def test_a_misspelt_key_finds_its_way_back(key):
    assert f"did you mean {key}?" in _error(f"{key}_=1")


def test_a_key_in_one_section_needs_no_section():
    found = load_config(overrides=["epsilon=4", "policy=ratio", "seed=7", "data.name=mnist", "method.options.draws=2"])
    assert (found.privacy.epsilon, found.method.policy, found.run.seed) == (4.0, "ratio", 7)
    assert found.data.name == "mnist"
    assert found.method.options == {"draws": 2}


def test_a_later_override_wins_over_an_earlier_and_over_the_file(tmp_path):
    (tmp_path / "run.toml").write_text("[run]\nseed = 1\n[privacy]\nepsilon = 3\n")
    found = load_config(tmp_path / "run.toml", ["seed=2", "run.seed=3"])
    assert (found.run.seed, found.privacy.epsilon) == (3, 3.0)


@pytest.mark.parametrize(
    ("text", "seconds"), [('"2h"', 7200), ('"15m"', 900), ("90", 90), ('"90"', 90), ("1.5h", 5400), ("1d", 86400)]
)
def test_durations(text, seconds):
    assert load_config(overrides=[f"time_limit={text}"]).federation.time_limit == seconds


@pytest.mark.parametrize(
    ("text", "count"), [("5GB", 5 * 10**9), ("800 mb", 8 * 10**8), ("1000", 1000), ("1.5kB", 1500)]
)
def test_sizes(text, count):
    assert load_config(overrides=[f"traffic_limit={text}"]).federation.traffic_limit == count


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"[run\nseed = 1", "line 1"),
        (b"[run]\nseed = 1\nseed = 2\n", "line 3"),
        (b"\xff\xfe", "decode"),
        (b"[run]\nseed = 1" + b"0" * 5000, "digits"),
        (b"[run]\nseed = " + b"[" * 5000, "recursion"),
    ],
)
def test_a_file_that_is_no_toml(tmp_path, content, part):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(str(path))) as caught:
        load_config(path)
    assert "is not valid TOML" in str(caught.value)
    assert part in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        load_config(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match=r"config\.toml"):
        load_config(tmp_path)


_SCALARS = (
    st.booleans()
    | st.integers()
    | st.integers(-3, 3)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["2h", "5GB", "ali", "cnn", "synthetic", ""])
    | st.dates()
    | st.times()
    | st.datetimes()
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_KEYS = st.sampled_from([name for names in keys().values() for name in names]) | st.text(max_size=5)
_SECTIONS = st.sampled_from(list(keys())) | st.text(max_size=5)
_FILES = st.dictionaries(_SECTIONS, st.dictionaries(_KEYS, _VALUES, max_size=4) | _VALUES, max_size=4)


@settings(max_examples=300, deadline=None)
@given(_FILES)
def test_whatever_stands_in_a_file_is_a_config_or_a_config_error(values):
    with contextlib.suppress(ConfigError):
        assert isinstance(parse_config(values), Config)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text(max_size=20) | st.tuples(_SECTIONS, _KEYS, st.text(max_size=8)).map("{0[0]}.{0[1]}={0[2]}".format))
)
def test_whatever_is_set_is_a_config_or_a_config_error(overrides):
    with contextlib.suppress(ConfigError):
        assert isinstance(load_config(overrides=overrides), Config)


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
_PLAIN = st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS


@st.composite
def _configs(draw) -> Config:
    values = {
        "data": {
            "name": draw(st.sampled_from(["mnist", "synthetic"])),
            "data_dir": draw(st.none() | _TEXTS),
            "partition": draw(st.sampled_from([None, "iid", "natural"])),
            "pixel_range": draw(st.tuples(st.floats(-5, 0), st.floats(0.1, 5))),
        },
        "privacy": {
            "epsilon": draw(st.floats(1e-9, 1e6)),
            "delta": draw(st.floats(1e-300, 0.99)),
            "noise_multiplier": draw(st.none() | st.floats(1e-9, 1e9)),
            "unsafe": draw(st.sampled_from([(), ("unaccounted-signals",)])),
        },
        "method": {
            "options": draw(st.dictionaries(_TEXTS, _PLAIN | st.lists(_PLAIN, max_size=3), max_size=3)),
            "policy_options": draw(st.dictionaries(_TEXTS, st.dictionaries(_TEXTS, _PLAIN, max_size=2), max_size=2)),
        },
        "federation": {
            "time_limit": draw(st.none() | st.floats(1e-6, 1e9) | st.sampled_from(["2h", "15m"])),
            "traffic_limit": draw(st.none() | st.integers(1, 2**60) | st.just("5GB")),
        },
        "run": {"seed": draw(st.integers(0, 2**63 - 1)), "processes": draw(st.none() | st.integers(1, 64))},
    }
    return parse_config(values)


@settings(max_examples=150, deadline=None)
@given(_configs())
def test_what_a_run_writes_down_is_what_it_ran(found):
    _assert_survives(found)


def test_the_default_survives_too():
    _assert_survives(Config())


def _assert_survives(found: Config) -> None:
    """The file may say what was left out and took effect; all else is the same."""
    again = parse_config(tomllib.loads(to_toml(found.to_dict())))
    assert again.to_dict() == found.to_dict()
    for section in ("model", "privacy", "federation", "run"):
        assert getattr(again, section) == getattr(found, section)
    for section, written in (("data", again.data), ("method", again.method)):
        for name, value in getattr(found, section):
            assert value is None or getattr(written, name) == value
    assert (again.policy, again.partition) == (found.policy, found.partition)
    assert found.policy != "fixed" or again.local_steps == found.local_steps
