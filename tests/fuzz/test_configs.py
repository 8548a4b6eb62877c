"""Damaged configurations and odd but valid settings: they are refused, or the run works."""

import annotated_types
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alidpfl.config.schema import Config
from alidpfl.config.wording import toml
from alidpfl.errors import ConfigError
from alidpfl.runs import execute, load_config
from alidpfl.store.files import to_toml
from tests.runs.command import config, overrides

from .damage import damaged
from .harness import check_text, command, examples, fine_or_refused

SMALL = {"federation__max_rounds": 2, "data__clients": 2, "run__evaluate_every": 1}


@examples(30)
@given(content=damaged(to_toml(config(**SMALL).to_dict()).encode()))
@example(content=b"[" * 50_000)
@example(content=b"[data]\nclients = " + b"9" * 5000)
def test_a_damaged_file(tmp_path, content):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    try:
        load_config(path)
    except ConfigError as error:
        check_text(str(error))


def test_a_damaged_file_by_the_command(tmp_path):
    for number, content in enumerate((b"\xff\xfe", b"[data]\nname = 3\n", b"x = \x1b[2J", b"[" * 50_000)):
        path = tmp_path / f"{number}.toml"
        path.write_bytes(content)
        status, _ = command("run", path, "--out", tmp_path / "run")
        assert status == 2
        assert not (tmp_path / "run").exists()


ODD = {
    "data__alpha": (0.0, 1e300),
    "data__beta": (0.0, 1e300),
    "data__validation": (1e-300, 0.999999),
    "data__min_samples": (10**18,),
    "method__clip_norm": (1e-300, 1e-7, 1e300),
    "method__heterogeneity": (0.0, 1e300),
    "method__learning_rate": (1e-9, 1e6),
    "method__options": ({"a": 1}, {"clip_norm": "x"}, {"draws": []}),
    "method__policy_options": ({"pace_limit": "x"}, {"pace_limit": -1e300}, {"b": {}}),
    "privacy__delta": (5e-324, 0.999999999),
    "privacy__epsilon": (1e-300, 1e6),
    "privacy__max_steps": (10**30,),
    "privacy__noise_multiplier": (1e-300, 1e-3, 1e300),
    "privacy__sample_rate": (1e-9, 1.0),
    "federation__clients_per_round": (10**18,),
    "federation__quorum": (5e-324,),
    "federation__time_limit": (1e-300, 1e9),
    "federation__traffic_limit": (1, 10**30),
    "federation__weight_exponent": (0.0, 2.0),
    "federation__momentum": (0.999999999999,),
    "federation__dropout_rate": (0.999999999,),
    "run__seed": (2**63 - 1,),
    "run__evaluate_every": (10**30,),
}


@examples(6)
@given(key=st.sampled_from(sorted(ODD)), place=st.integers(0, 9))
def test_odd_values_run_or_are_refused(tmp_path_factory, key, place):
    values = ODD[key]
    changes = {**SMALL, key: values[place % len(values)]}
    out = tmp_path_factory.mktemp("odd") / "run"
    fine_or_refused(lambda: execute(load_config(overrides=[*_typed(changes)]), out))


def _typed(changes):
    tables = {key: value for key, value in changes.items() if isinstance(value, dict)}
    yield from overrides(**{key: value for key, value in changes.items() if key not in tables})
    for key, value in tables.items():
        yield f"{key.replace('__', '.')}={toml(value)}"


@pytest.mark.parametrize(
    "override",
    [
        "data.clients=1000000000",
        "model.hidden=1000000000",
        "run.processes=100000",
        "privacy.epsilon=1e300",
        "privacy.sample_rate=1e-300",
        "method.learning_rate=1e-300",
        "federation.time_limit=1.7e308",
    ],
)
def test_values_beyond_all_measure_are_refused_at_once(override):
    """Each of these once took all memory, all processes or endless time, or caused a traceback."""
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        load_config(overrides=[override])


def test_every_number_has_a_least_value():
    seen = 0
    for section in Config.model_fields.values():
        for name, field in section.annotation.model_fields.items():
            if field.annotation in (int, float, int | None, float | None):
                assert any(isinstance(rule, annotated_types.Ge | annotated_types.Gt) for rule in field.metadata), name
                seen += 1
    assert seen > 20
